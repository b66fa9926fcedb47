//! The encoder engine. Texts of many calls wait in one queue and are encoded in batches. Each is answered with a
//! vector or a score.
//! Must not know: HTTP, keys, money, where a text came from, or how a model computes.

mod config;
mod embedder;
mod intake;
mod queue;

pub use config::{EmbedderConfig, EmbedderError};
pub use embedder::Embedder;
