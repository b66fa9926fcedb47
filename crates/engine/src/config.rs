//! The configuration of an engine and its start errors. Must not know: files or the environment.

use std::fmt;
use std::sync::Arc;

use headrace_domain::Clock;
use headrace_kernels::Isa;
use headrace_kernels::forward::ForwardShape;
use headrace_scheduler::{Scheduler, SchedulerConfig};

/// Most alternatives that are reported with a token.
pub const MAX_LOGPROBS: u8 = 20;

/// Everything an engine needs besides its model and its tokenizer.
#[derive(Clone)]
pub struct EngineConfig {
    /// The model's name.
    pub model: String,
    /// The compute mode, part of the model's identity: `exact` or `fast`.
    pub compute_mode: String,
    /// The model's end-of-text ids.
    pub eos: Vec<u32>,
    /// Whether to leave the text of special tokens out of the delivered text.
    pub skip_special: bool,
    /// Most answers to one prompt.
    pub max_choices: u32,
    /// The instruction set for the sums of log-probabilities. The model's own, because it is part of the numerics
    /// fingerprint.
    pub isa: Isa,
    /// The scheduler's limits. `context_window` is reduced to the model's maximum if it exceeds that.
    pub scheduler: SchedulerConfig,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
}

impl EngineConfig {
    /// Creates an empty scheduler for this model.
    pub(crate) fn scheduler_for(&self, shape: &ForwardShape) -> Result<Scheduler, EngineError> {
        Scheduler::new(self.scheduler_within(shape), shape.kv)
            .map_err(|bad| EngineError::Config { problems: vec![bad.to_string()] })
    }

    /// Returns the scheduler's limits, reduced to those of the model.
    fn scheduler_within(&self, shape: &ForwardShape) -> SchedulerConfig {
        let context_window = self.scheduler.context_window.min(shape.max_positions);
        SchedulerConfig { context_window, ..self.scheduler.clone() }
    }

    /// Fails with every value that cannot work with this model.
    pub(crate) fn check(&self, shape: &ForwardShape) -> Result<(), EngineError> {
        let mut problems = Vec::new();
        if shape.vocab == 0 || u32::try_from(shape.vocab).is_err() {
            problems.push(format!("a vocabulary of {}", shape.vocab));
        }
        if let Some(id) = self.eos.iter().find(|&&id| id as usize >= shape.vocab) {
            problems.push(format!("end-of-text id {id} is outside the vocabulary of {}", shape.vocab));
        }
        if self.max_choices == 0 {
            problems.push("max_choices must be at least 1".to_owned());
        }
        if let Err(bad) = self.scheduler_within(shape).check(&shape.kv) {
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
    /// Configuration values that cannot work. Lists all of them.
    Config {
        /// A message for each value.
        problems: Vec<String>,
    },
    /// The operating system refused to start a thread.
    Thread {
        /// The system's error.
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
