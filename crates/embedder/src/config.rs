//! What an engine of encoders is told, and why it cannot start. No logic beyond checks.

use std::fmt;
use std::sync::Arc;

use headrace_domain::Clock;

/// How an encoder is served. Every bound has its unit in its name.
#[derive(Clone)]
pub struct EmbedderConfig {
    /// The model's name.
    pub model: String,
    /// The compute mode, `exact` or `fast`.
    pub compute_mode: String,
    /// The id that ends the first of two texts in one sequence, where the model tells the two apart by token types.
    pub separator: Option<u32>,
    /// The most texts that wait.
    pub queue_texts: usize,
    /// The most tokens of all texts that wait.
    pub queue_tokens: u64,
    /// The most tokens of a batch, each text's rounded up to whole blocks; one text may be longer.
    pub batch_tokens: usize,
    /// The most texts of a batch.
    pub batch_texts: usize,
    /// What times are taken from.
    pub clock: Arc<dyn Clock>,
}

impl EmbedderConfig {
    /// The usual bounds.
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

/// An engine that could not be started.
#[derive(Debug)]
pub enum EmbedderError {
    /// No thread is to be had.
    Thread {
        /// What the system said.
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
