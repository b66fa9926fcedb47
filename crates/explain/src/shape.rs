//! The sizes that determine a call's times: tokens, batch, cache. Must not know their costs.

use headrace_domain::TraceRecord;
use serde::Serialize;

/// The sizes of a call, and of the batches that it ran in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CallShape {
    /// Prompt tokens, computed or not.
    pub prompt_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u64,
    /// Generated tokens, of all choices.
    pub output_tokens: u64,
    /// Mean number of sequences in its steps, itself included. 1 if unknown.
    pub batch: f64,
    /// Whether the answer was streamed.
    pub stream: bool,
}

impl CallShape {
    /// The shape of a recorded call.
    pub fn of(record: &TraceRecord) -> Self {
        let usage = &record.usage;
        let steps = record.engine.as_ref().filter(|engine| engine.steps > 0);
        Self {
            prompt_tokens: usage.prompt_tokens(),
            computed_tokens: usage.prompt_tokens().saturating_sub(usage.cached_input),
            cached_tokens: usage.cached_input,
            output_tokens: usage.completion_tokens(),
            batch: steps.map_or(1.0, |engine| engine.batch_sum as f64 / f64::from(engine.steps)).max(1.0),
            stream: record.stream,
        }
    }

    /// Number of tokens before the middle token of its answer.
    pub const fn mean_context(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.output_tokens / 2)
    }

    /// The load of the engine, in four classes by batch size.
    pub(crate) fn load(&self) -> Load {
        match self.batch {
            batch if batch < 1.5 => Load::Alone,
            batch if batch < 4.5 => Load::Few,
            batch if batch < 16.5 => Load::Many,
            _ => Load::Full,
        }
    }
}

/// How many sequences shared the call's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Alone,
    Few,
    Many,
    Full,
}

impl Load {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Alone => "alone in the batch",
            Self::Few => "in batches of 2 to 4",
            Self::Many => "in batches of 5 to 16",
            Self::Full => "in batches of more than 16",
        }
    }
}
