//! A job and the events that answer it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{
    CachePin, CacheSalt, EngineTrace, FinishReason, PrefixKeys, RequestId, Sampling, TokenLogprob, Usage,
};

use crate::grammar::{GrammarFailed, SharedGrammar};
use crate::load::SubmitRefusal;
use crate::thought::ThoughtCap;

/// Who the engine shares itself between. It is a number: the engine learns no names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u64);

/// How a job stands to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Only when nothing else waits.
    Idle,
    /// The usual.
    #[default]
    Normal,
}

/// One prompt to be continued `sampling.n` times (or only scored, with `max_tokens` 0).
#[derive(Debug, Clone)]
pub struct Job {
    /// For which request: stands in logs and panics' reports, decides nothing.
    pub request: RequestId,
    /// Choices of this job are numbered from here on.
    pub first_choice: u32,
    /// The prompt's ids; at least one.
    pub prompt: Arc<[u32]>,
    /// How many of the last ids of `prompt` are an answer's own that another engine began: it goes on behind them, as if they
    /// had been generated here, and nothing of them is told again. More than 0 only with one choice, without scores of the prompt.
    pub generated: u32,
    /// How tokens are chosen. Choice `first_choice + i` draws its numbers from (seed, first_choice + i, position).
    pub sampling: Sampling,
    /// What each choice is held to; `None`: to nothing. Only for engines that say [`crate::Capabilities::grammars`].
    pub grammar: Option<SharedGrammar>,
    /// How much each choice may think; `None`: as much as it likes. Only for engines that say [`crate::Capabilities::thought_caps`].
    pub thought: Option<Arc<ThoughtCap>>,
    /// Separates prefix caches.
    pub salt: CacheSalt,
    /// The keys of the prompt's blocks, where they are known already: hashing is what looking them up costs.
    pub keys: Option<PrefixKeys>,
    /// What of the prompt is to be kept in the cache. A wish: an engine that cannot passes over it.
    pub pins: Arc<[CachePin]>,
    /// Whom to charge in the fair queue.
    pub tenant: Tenant,
    /// The tenant's share of the engine relative to others, at least 1.
    pub weight: u32,
    /// How it stands to others.
    pub priority: Priority,
    /// Nanoseconds of the engine's monotonic clock by which its first token must be there: refused if that cannot be, and
    /// dropped if it has not started by then; `None`: whenever it comes.
    pub start_deadline_ns: Option<u64>,
    /// What a server of somebody else's is told of the trace that it works in: `traceparent`
    /// (<https://www.w3.org/TR/trace-context/>); `None`: nothing. Engines in this process have no use for it.
    pub trace: Option<Arc<str>>,
    /// Bytes of its events ([`Event::bytes`]) that may wait for their reader. At that many the job stands still, and goes on
    /// once half of them are read. What one step makes of its choices comes on top, and so do its scores.
    pub unread_bytes: usize,
}

impl Job {
    /// The prompt itself, and what of its answer there is already.
    pub fn parts(&self) -> (&[u32], &[u32]) {
        let own = self.prompt.len().saturating_sub(self.generated as usize);
        self.prompt.split_at_checked(own).unwrap_or((&self.prompt, &[]))
    }
}

/// Log-probabilities of the prompt's own tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScores {
    /// One per prompt token; the first has no log-probability.
    pub tokens: Vec<TokenLogprob>,
}

/// What an engine says of a job, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Its first step begins.
    Started {
        /// Prompt tokens taken from the prefix cache.
        cached_tokens: u32,
    },
    /// The prompt's scores, where asked for; before any token.
    Scored(PromptScores),
    /// Tokens of one choice.
    Tokens {
        /// Which choice.
        choice: u32,
        /// Ids generated since the last event of this choice.
        ids: Vec<u32>,
        /// Text that may be delivered: whole UTF-8, nothing that a stop string may still swallow.
        text: String,
        /// One per id where asked for, else empty.
        logprobs: Vec<TokenLogprob>,
    },
    /// All that an encoder makes of the prompt: its vector, or its score alone.
    Encoded(Arc<[f32]>),
    /// One choice has ended; its last text came before.
    Finished {
        /// Which choice.
        choice: u32,
        /// Why. The engine alone decides this.
        reason: FinishReason,
    },
    /// Terminal: all choices have ended.
    Done(Arc<JobReport>),
    /// Terminal: the job failed or was cancelled.
    Failed {
        /// Why.
        error: JobError,
        /// What had been computed by then.
        report: Arc<JobReport>,
    },
}

impl Event {
    /// Bytes that it takes while it waits to be read, near enough: what it points at counts with a usual allocation's
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

/// What an allocation of so many bytes takes.
const fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_multiple_of(16) + 16 }
}

/// What a job took.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobReport {
    /// Tokens: the prompt once (computed or cached), the output of all choices.
    pub usage: Usage,
    /// Queue, batch and cache figures for the trace.
    pub engine: EngineTrace,
}

/// Why a job ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobError {
    /// The caller cancelled it.
    Cancelled,
    /// It waited past its deadline.
    Expired {
        /// When another like it would not wait for what waits now.
        retry_after: Duration,
    },
    /// Its computation panicked.
    Panicked {
        /// Where, for the log.
        detail: String,
    },
    /// Its logits were not numbers.
    NotFinite {
        /// At which position.
        position: usize,
    },
    /// What the answer is held to could not be followed any further.
    Form {
        /// Why, for the log.
        why: String,
    },
    /// The engine is shutting down.
    ShuttingDown,
    /// An engine on another host turned it away after it had been sent there.
    Refused(SubmitRefusal),
    /// Anything else that went wrong inside.
    Internal {
        /// What, for the log.
        detail: String,
    },
}

impl From<GrammarFailed> for JobError {
    /// A panic is the engine's fault, anything else the form's.
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
            Self::Form { .. } => f.write_str("the answer could not be held to its form any further"),
            Self::ShuttingDown => f.write_str("the engine is shutting down"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Internal { .. } => f.write_str("the engine failed on this call"),
        }
    }
}

impl std::error::Error for JobError {}
