//! What an engine is started with, and why it may not start. Knows no files and no environment.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{BLOCK_TOKENS, Clock};
use headrace_kernels::Isa;
use headrace_kernels::forward::ForwardShape;
use headrace_scheduler::{Scheduler, SchedulerConfig};

// Blocks have one size: the model's are what the scheduler counts in.
const _: () = assert!(BLOCK_TOKENS == headrace_kernels::forward::BLOCK_TOKENS);

/// The most alternatives reported with a token.
pub const MAX_LOGPROBS: u8 = 20;

/// Everything an engine needs beside its model and its tokenizer.
#[derive(Clone)]
pub struct EngineConfig {
    /// The model's name.
    pub model: String,
    /// The compute mode, part of the model's identity: `exact` or `fast`.
    pub compute_mode: String,
    /// The model's end-of-text ids.
    pub eos: Vec<u32>,
    /// Whether the text of special tokens is left out of what is delivered.
    pub skip_special: bool,
    /// Most answers to one prompt.
    pub max_choices: u32,
    /// The instruction set on which log-probabilities are summed: the model's own, part of its fingerprint.
    pub isa: Isa,
    /// The scheduler's limits. A `context_window` beyond what the model can hold is cut to it.
    pub scheduler: SchedulerConfig,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

impl EngineConfig {
    /// A scheduler with nothing in it, for this model.
    pub(crate) fn scheduler_for(&self, shape: &ForwardShape) -> Result<Scheduler, EngineError> {
        Scheduler::new(self.scheduler_within(shape), shape.block_count)
            .map_err(|bad| EngineError::Config { problems: vec![bad.to_string()] })
    }

    /// The scheduler's limits within those of the model.
    fn scheduler_within(&self, shape: &ForwardShape) -> SchedulerConfig {
        let context_window = self.scheduler.context_window.min(shape.max_positions);
        SchedulerConfig { context_window, ..self.scheduler.clone() }
    }

    /// Every value that cannot work with this model.
    pub(crate) fn check(&self, shape: &ForwardShape) -> Result<(), EngineError> {
        let mut problems = Vec::new();
        if shape.block_tokens != BLOCK_TOKENS {
            problems
                .push(format!("the model's blocks hold {} tokens, not {BLOCK_TOKENS}", shape.block_tokens));
        }
        if shape.vocab == 0 || u32::try_from(shape.vocab).is_err() {
            problems.push(format!("a vocabulary of {}", shape.vocab));
        }
        if let Some(id) = self.eos.iter().find(|&&id| id as usize >= shape.vocab) {
            problems.push(format!("end-of-text id {id} is outside the vocabulary of {}", shape.vocab));
        }
        if self.max_choices == 0 {
            problems.push("max_choices must be at least 1".to_owned());
        }
        if let Err(bad) = self.scheduler_within(shape).check(shape.block_count) {
            problems.push(bad.to_string());
        }
        if problems.is_empty() { Ok(()) } else { Err(EngineError::Config { problems }) }
    }
}

impl fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineConfig")
            .field("model", &self.model)
            .field("compute_mode", &self.compute_mode)
            .field("eos", &self.eos)
            .field("isa", &self.isa)
            .field("scheduler", &self.scheduler)
            .finish_non_exhaustive()
    }
}

/// Why an engine does not start.
#[derive(Debug)]
pub enum EngineError {
    /// Values that cannot work, all of them.
    Config {
        /// In words.
        problems: Vec<String>,
    },
    /// The operating system gave no thread.
    Thread {
        /// What it said.
        source: std::io::Error,
    },
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { problems } => write!(f, "the engine cannot start: {}", problems.join("; ")),
            Self::Thread { source } => write!(f, "the engine's thread cannot start: {source}"),
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config { .. } => None,
            Self::Thread { source } => Some(source),
        }
    }
}
