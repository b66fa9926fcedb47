//! The configuration of an encoder engine and its start error. No logic.

use std::fmt;
use std::sync::Arc;

use headrace_domain::Clock;

/// How an encoder is served. The name of every limit includes its unit.
#[derive(Clone)]
pub struct EmbedderConfig {
    /// The model's name.
    pub model: String,
    /// Compute mode: `exact` or `fast`.
    pub compute_mode: String,
    /// Id of the token that ends the first of two texts in one sequence. `None` if the model does not use token
    /// types.
    pub separator: Option<u32>,
    /// Most texts in the queue.
    pub queue_texts: usize,
    /// Most tokens of all texts in the queue. Each text's tokens are rounded up to whole blocks.
    pub queue_tokens: u64,
    /// Most tokens in a batch. Each text's tokens are rounded up to whole blocks. A longer text gets a batch of its
    /// own.
    pub batch_tokens: usize,
    /// Most texts in a batch.
    pub batch_texts: usize,
    /// The clock for all measured times.
    pub clock: Arc<dyn Clock>,
}

impl EmbedderConfig {
    /// Creates a configuration with the default limits.
    pub fn new(model: &str, compute_mode: &str, clock: Arc<dyn Clock>) -> Self {
        Self {
            model: model.to_owned(),
            compute_mode: compute_mode.to_owned(),
            separator: None,
            queue_texts: 16_384,
            queue_tokens: 4 << 20,
            batch_tokens: 2_048,
            batch_texts: 64,
            clock,
        }
    }
}

/// Why an engine could not be started.
#[derive(Debug)]
pub enum EmbedderError {
    /// The system could not start a thread.
    Thread {
        /// The system's error.
        source: std::io::Error,
    },
}

impl fmt::Display for EmbedderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread { source } => write!(f, "the engine's thread could not be started: {source}"),
        }
    }
}

impl std::error::Error for EmbedderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread { source } => Some(source),
        }
    }
}
