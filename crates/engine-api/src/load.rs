//! What an engine can do, how busy it is, and why it turns a job away.

use std::fmt;
use std::time::Duration;

use headrace_domain::Sampling;
use serde::{Deserialize, Serialize};

use crate::grammar::FormKinds;

/// What an engine serves. Published when it registers: the gateway refuses early by it, the engine asserts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The model's name.
    pub model: String,
    /// The compute mode, part of the model's identity: `exact` or `fast`.
    pub compute_mode: String,
    /// Instruction set, mode, KV type and kernel version: equal fingerprints give equal bits.
    pub numerics: String,
    /// Vocabulary, in ids.
    pub vocab: u32,
    /// The most tokens, prompt and output together, of one sequence.
    pub context_window: u32,
    /// The most alternatives reported with a token.
    pub max_logprobs: u8,
    /// KV tokens that fit in all.
    pub kv_tokens: u64,
    /// How it goes on with an answer that another engine began.
    #[serde(default)]
    pub continues: Continues,
    /// Whether it holds answers to grammars that are compiled here, or by itself in the same way.
    #[serde(default)]
    pub grammars: bool,
    /// Whether it ends thoughts that have had enough tokens ([`crate::Job::thought`]).
    #[serde(default)]
    pub thought_caps: bool,
    /// Forms that it is told in words, where it takes no grammars.
    #[serde(default)]
    pub forms: FormKinds,
}

/// How an engine goes on with an answer that another one began ([`crate::Job::generated`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Continues {
    /// Not at all.
    #[default]
    Never,
    /// By the same tokens as another one of its kind, where the likeliest token is taken and nothing but the tokens before decides
    /// which that is: no numbers by chance, no penalties.
    Likeliest,
    /// By the very bits, where the other one's `numerics` are the same.
    Exactly,
}

impl Capabilities {
    /// Whether an answer that `other` began goes on here as it would have gone on there.
    pub fn continue_of(&self, other: &Self, sampling: &Sampling) -> bool {
        match (self.continues, other.continues) {
            (Continues::Exactly, Continues::Exactly) => self.numerics == other.numerics,
            (Continues::Likeliest, Continues::Likeliest) => {
                self.compute_mode == other.compute_mode && is_plain(sampling)
            }
            _ => false,
        }
    }
}

/// Whether only the tokens before decide the next one, whoever computes it.
fn is_plain(sampling: &Sampling) -> bool {
    let Sampling { temperature, frequency_penalty, presence_penalty, repetition_penalty, .. } = *sampling;
    temperature == 0.0 && frequency_penalty == 0.0 && presence_penalty == 0.0 && repetition_penalty == 1.0
}

/// Of when a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reported {
    /// Of this moment.
    #[default]
    Now,
    /// It came from elsewhere, so long ago.
    Ago {
        /// How long, in nanoseconds.
        nanos: u64,
    },
    /// Never: nothing is known. That is not the same as idle.
    Never,
}

/// How busy an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Of when it is. Whoever passes a report on says how old it is by then: it does not travel along.
    #[serde(skip)]
    pub reported: Reported,
    /// Sequences being computed.
    pub running: u32,
    /// Sequences that stand still until their readers have caught up.
    #[serde(default)]
    pub paused: u32,
    /// Sequences waiting.
    pub waiting: u32,
    /// Prompt tokens waiting to be computed.
    pub waiting_tokens: u64,
    /// KV blocks in all.
    pub blocks_total: u32,
    /// KV blocks that no sequence holds (cached ones included: they are given up when needed).
    pub blocks_free: u32,
    /// Of the free ones, those that hold a cached prefix.
    pub blocks_cached: u32,
    /// Part of the KV memory in use, in thousandths, where it is told so and not in blocks.
    #[serde(default)]
    pub cache_used_permille: Option<u16>,
    /// Tokens computed per second lately; 0 while unknown.
    pub tokens_per_second: u32,
    /// Prompt tokens per second in steps of nothing else; 0 while unknown.
    #[serde(default)]
    pub prefill_tokens_per_second: u32,
    /// Tokens generated per second at the present batch; 0 while unknown.
    #[serde(default)]
    pub decode_tokens_per_second: u32,
    /// How often its loop broke and began again.
    #[serde(default)]
    pub restarts: u32,
    /// Nanoseconds of all steps since the start.
    #[serde(default)]
    pub step_ns: u64,
    /// Of those, the ones in which the model computed.
    #[serde(default)]
    pub forward_ns: u64,
    /// Of those, the ones of choosing tokens.
    #[serde(default)]
    pub sample_ns: u64,
}

impl LoadReport {
    /// The part of the steps' time that went into neither computing nor choosing tokens: scheduling, and handing events
    /// over. 0 to 1.
    pub fn scheduling_share(&self) -> f64 {
        let rest = self.step_ns.saturating_sub(self.forward_ns).saturating_sub(self.sample_ns);
        if self.step_ns == 0 { 0.0 } else { rest as f64 / self.step_ns as f64 }
    }
}

/// Why an engine turns a job away before any work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitRefusal {
    /// The queue is full.
    QueueFull {
        /// What is full: `sequences` or `tokens`.
        what: &'static str,
        /// Its bound.
        limit: u64,
        /// When there may be room, computed from the queue.
        retry_after: Duration,
    },
    /// Prompt and output together can never fit.
    DoesNotFit {
        /// What the job needs, in tokens.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// Its first token cannot be there before its own deadline.
    TooLate {
        /// How long it would wait for others.
        wait: Duration,
        /// How long its own prompt would take.
        prefill: Duration,
        /// When the wait may be short enough; `None`: its own prompt takes longer than it has.
        retry_after: Option<Duration>,
    },
    /// A value the engine cannot take.
    Invalid {
        /// Which.
        what: String,
    },
    /// The engine is draining or dead.
    Unavailable {
        /// Why.
        why: String,
    },
}

impl fmt::Display for SubmitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { what, limit, retry_after } => write!(
                f,
                "the engine's queue is full ({what}, limit {limit}); room is expected in {} s",
                retry_after.as_secs().max(1)
            ),
            Self::DoesNotFit { needed, limit } => {
                write!(f, "the call needs {needed} tokens of KV cache and the engine has {limit}")
            }
            Self::TooLate { wait, prefill, .. } => {
                let (wait, prefill) = (wait.as_secs_f64(), prefill.as_secs_f64());
                write!(
                    f,
                    "the first token would come after {:.1} s ({wait:.1} s of waiting, {prefill:.1} s for the prompt), \
                     later than the call's `timeout` allows",
                    wait + prefill
                )
            }
            Self::Invalid { what } => write!(f, "the engine cannot take this: {what}"),
            Self::Unavailable { why } => write!(f, "the engine is not available: {why}"),
        }
    }
}

impl std::error::Error for SubmitRefusal {}
