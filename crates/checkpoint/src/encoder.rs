//! Encoders: models that read whole sequences and return a vector or a score for each, with the configuration files of
//! sentence-transformers. Must not know how they are computed.

pub(crate) mod checkpoint;
pub(crate) mod config;
mod inventory;
pub(crate) mod modules;
