//! Jobs for an engine, and the events that answer them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{
    CachePin, CacheSalt, EngineTrace, FinishReason, HeldPrefix, PrefixKeys, RequestId, Sampling,
    TokenLogprob, Usage,
};

use crate::grammar::{GrammarFailed, SharedGrammar};
use crate::load::SubmitRefusal;
use crate::thought::ReasoningBudget;

/// The tenant for which the engine shares its capacity. A number, because the engine learns no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u64);

/// The priority of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Runs only when no other work waits.
    Idle,
    /// The default.
    #[default]
    Normal,
}

/// One prompt to be continued `sampling.n` times, or only scored if `max_tokens` is 0.
#[derive(Debug, Clone)]
pub struct Job {
    /// The request's id. Appears in logs and panic reports, and has no other effect.
    pub request: RequestId,
    /// The index of this job's first choice. Its choices are numbered from here.
    pub first_choice: u32,
    /// The prompt's ids. At least one.
    pub prompt: Arc<[u32]>,
    /// How many of the last ids of `prompt` are output that another engine generated. This engine continues after them
    /// as if it had generated them, and does not report them again. Above 0 only with one choice and without prompt
    /// scores.
    pub generated: u32,
    /// Sampling parameters. Choice `first_choice + i` draws its random numbers from (seed, first_choice + i, position).
    pub sampling: Sampling,
    /// The response format of each choice. `None` for free text. Only for engines with
    /// [`crate::Capabilities::grammars`].
    pub grammar: Option<SharedGrammar>,
    /// The reasoning budget of each choice. `None` for no limit. Only for engines with
    /// [`crate::Capabilities::thought_caps`].
    pub thought: Option<Arc<ReasoningBudget>>,
    /// Separates prefix caches.
    pub salt: CacheSalt,
    /// The keys of the prompt's blocks, if they are already computed. Hashing is the cost of a cache lookup.
    pub keys: Option<PrefixKeys>,
    /// The parts of the prompt to pin in the cache. This is a hint: an engine without pins ignores it.
    pub pins: Arc<[CachePin]>,
    /// The part of the prompt that its call holds in the cache until [`crate::Engine::release_pins`]. This is a hint: an
    /// engine without pins ignores it.
    pub held: Option<HeldPrefix>,
    /// The tenant that the fair queue charges.
    pub tenant: Tenant,
    /// The tenant's share of the engine relative to others, at least 1.
    pub weight: u32,
    /// The job's priority.
    pub priority: Priority,
    /// Deadline for the first token, in nanoseconds of the engine's monotonic clock. The engine refuses a job that
    /// cannot meet it, and drops a job that has not started by then. `None` for no deadline.
    pub start_deadline_ns: Option<u64>,
    /// The trace context for an upstream server: `traceparent` (<https://www.w3.org/TR/trace-context/>). `None` if
    /// nothing is sent. Engines in this process do not use it.
    pub trace: Option<Arc<str>>,
    /// Maximum bytes of unread events ([`JobEvent::bytes`]). At this bound the job is paused, and it continues once half
    /// of them are read. The output of one step for all choices, and the prompt scores, may exceed the bound.
    pub unread_bytes: usize,
}

impl Job {
    /// Splits `prompt` into the prompt proper and the part of the answer that is already generated.
    pub fn parts(&self) -> (&[u32], &[u32]) {
        let own = self.prompt.len().saturating_sub(self.generated as usize);
        self.prompt.split_at_checked(own).unwrap_or((&self.prompt, &[]))
    }
}

/// Log-probabilities of the prompt's own tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScores {
    /// One entry per prompt token. The first has no log-probability.
    pub tokens: Vec<TokenLogprob>,
}

/// Events that an engine sends about a job, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEvent {
    /// The job's first step begins.
    Started {
        /// Prompt tokens taken from the prefix cache.
        cached_tokens: u32,
    },
    /// The prompt's scores, if the job asked for them. Sent before any token.
    Scored(PromptScores),
    /// Tokens of one choice.
    Tokens {
        /// The choice's index.
        choice: u32,
        /// Ids generated since the last event of this choice.
        ids: Vec<u32>,
        /// Text that may be delivered: whole UTF-8 characters, without text that a stop string may still swallow.
        text: String,
        /// One entry per id if the job asked for them, else empty.
        logprobs: Vec<TokenLogprob>,
    },
    /// An encoder's whole result for the prompt: a vector, or a single score.
    Encoded(Arc<[f32]>),
    /// One choice has ended. Its last text was sent before.
    Finished {
        /// The choice's index.
        choice: u32,
        /// The finish reason. Only the engine decides it.
        reason: FinishReason,
    },
    /// Terminal: all choices have ended.
    Done(Arc<JobReport>),
    /// Terminal: the job failed or was cancelled.
    Failed {
        /// The error.
        error: JobError,
        /// What was computed until then.
        report: Arc<JobReport>,
    },
}

impl JobEvent {
    /// Approximate bytes that the event occupies while it waits to be read. Each heap allocation counts with its usual
    /// overhead.
    pub fn bytes(&self) -> usize {
        let pointed = match self {
            Self::Tokens { ids, text, logprobs, .. } => {
                allocated(size_of_val(ids.as_slice())) + allocated(text.len()) + scores_bytes(logprobs)
            }
            Self::Scored(scores) => scores_bytes(&scores.tokens),
            Self::Encoded(values) => allocated(size_of_val(&**values)),
            Self::Done(_) | Self::Failed { .. } => allocated(size_of::<JobReport>()),
            Self::Started { .. } | Self::Finished { .. } => 0,
        };
        size_of::<Self>() + pointed
    }
}

fn scores_bytes(scores: &[TokenLogprob]) -> usize {
    let pointed = |score: &TokenLogprob| {
        let top: usize = score.top.iter().map(|other| allocated(other.bytes.len())).sum();
        allocated(score.bytes.len()) + allocated(size_of_val(score.top.as_slice())) + top
    };
    allocated(size_of_val(scores)) + scores.iter().map(pointed).sum::<usize>()
}

/// Approximate size of a heap allocation of `bytes` bytes, overhead included.
const fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_multiple_of(16) + 16 }
}

/// The resources that a job used.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobReport {
    /// Token counts: the prompt once (computed or cached), and the output of all choices.
    pub usage: Usage,
    /// Queue, batch and cache figures for the trace.
    pub engine: EngineTrace,
}

/// Why a job ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobError {
    /// The caller cancelled the job.
    Cancelled,
    /// The job waited past its deadline.
    Expired {
        /// Time after which the jobs that wait now would no longer delay a similar job.
        retry_after: Duration,
    },
    /// The job's computation panicked.
    Panicked {
        /// The place of the panic, for the log.
        detail: String,
    },
    /// The job's logits were not finite.
    NotFinite {
        /// The position of the token.
        position: usize,
    },
    /// The answer could not follow its response format any further.
    Form {
        /// The reason, for the log.
        why: String,
    },
    /// The engine is shutting down.
    ShuttingDown,
    /// An engine on another host refused the job after it was sent there.
    Refused(SubmitRefusal),
    /// Any other internal error.
    Internal {
        /// The error, for the log.
        detail: String,
    },
}

impl From<GrammarFailed> for JobError {
    /// Treats a panic as the engine's fault, and every other failure as the response format's.
    fn from(failed: GrammarFailed) -> Self {
        if failed == GrammarFailed::panicked() {
            Self::Panicked { detail: "work on a form".to_owned() }
        } else {
            Self::Form { why: failed.why }
        }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("the call was cancelled"),
            Self::Expired { .. } => f.write_str("the call waited past its deadline before it could start"),
            Self::Panicked { .. } => f.write_str("the computation of this call failed"),
            Self::NotFinite { position } => {
                write!(f, "the model gave values that are not numbers at position {position}")
            }
            Self::Form { .. } => f.write_str("the answer could not follow its form any further"),
            Self::ShuttingDown => f.write_str("the engine is shutting down"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Internal { .. } => f.write_str("the engine failed on this call"),
        }
    }
}

impl std::error::Error for JobError {}
