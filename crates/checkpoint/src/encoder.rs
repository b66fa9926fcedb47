//! Encoders: models that read whole sequences and give a vector or a score for each, and what sentence-transformers says
//! of them. Must not know how any of it is computed with.

pub(crate) mod checkpoint;
pub(crate) mod config;
mod inventory;
pub(crate) mod modules;
