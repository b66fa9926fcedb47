//! The sizes of a call that its times follow from: tokens, batch, cache. Must not know what any of them costs.

use headrace_domain::TraceRecord;
use serde::Serialize;

/// How big a call was, and in what company.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CallShape {
    /// Prompt tokens, computed or not.
    pub prompt_tokens: u64,
    /// Of those, the ones that were computed.
    pub computed_tokens: u64,
    /// Of those, the ones that came from the cache.
    pub cached_tokens: u64,
    /// Tokens generated, of all answers.
    pub output_tokens: u64,
    /// Sequences in a step of it, itself included; 1 where nobody knows.
    pub batch: f64,
    /// Whether the answer was streamed.
    pub stream: bool,
}

impl CallShape {
    /// Of a recorded call.
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

    /// Tokens that stood before the one in the middle of its answer.
    pub const fn mean_context(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.output_tokens / 2)
    }

    /// How busy the engine was, in four classes: alone, a few, many, full.
    pub(crate) fn load(&self) -> Load {
        match self.batch {
            batch if batch < 1.5 => Load::Alone,
            batch if batch < 4.5 => Load::Few,
            batch if batch < 16.5 => Load::Many,
            _ => Load::Full,
        }
    }
}

/// How many sequences shared its steps.
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
