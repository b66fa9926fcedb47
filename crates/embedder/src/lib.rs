//! The engine of encoders: texts of many calls in one queue, encoded in batches, each answered by a vector or a score.
//! Must not know: HTTP, keys, money, where a text came from, or how a model computes.

mod config;
mod desk;
mod embedder;
mod queue;

pub use config::{EmbedderConfig, EmbedderError};
pub use embedder::Embedder;
