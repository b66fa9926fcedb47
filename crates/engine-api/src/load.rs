//! An engine's capabilities, its load, and its reasons to refuse a job.

use std::fmt;
use std::time::Duration;

use headrace_domain::{CacheSalt, Sampling};
use serde::{Deserialize, Serialize};

use crate::grammar::FormKinds;

/// The variant of a cache salt for sequences that use the second set of rotary frequencies.
const LONG_CONTEXT: &str = "long context";

/// What an engine serves. Published when the engine registers. The gateway uses it to refuse early, and the engine
/// asserts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The model's name.
    pub model: String,
    /// The compute mode, part of the model's identity: `exact` or `fast`.
    pub compute_mode: String,
    /// Instruction set, mode, KV type and kernel version. Equal fingerprints give equal bits.
    pub numerics: String,
    /// Vocabulary size, in ids.
    pub vocab: u32,
    /// Maximum tokens of one sequence, prompt and output together.
    pub context_window: u32,
    /// Maximum number of alternatives reported with a token.
    pub max_logprobs: u8,
    /// Capacity of the KV cache, in tokens.
    pub kv_tokens: u64,
    /// How the engine continues an answer that another engine began.
    #[serde(default)]
    pub continues: ResumeSupport,
    /// Whether the engine enforces grammars that are compiled here, or compiles and enforces them in the same way
    /// itself.
    #[serde(default)]
    pub grammars: bool,
    /// Whether the engine enforces reasoning budgets ([`crate::Job::thought`]).
    #[serde(default)]
    pub thought_caps: bool,
    /// Response formats that the engine takes as source text, if it takes no compiled grammars.
    #[serde(default)]
    pub forms: FormKinds,
    /// The most tokens of a sequence, prompt and longest answer together, that uses the first of the model's two sets of
    /// rotary frequencies (LongRoPE). `None` for models with one set, and for workers that do not report it.
    #[serde(default)]
    pub short_context: Option<u32>,
}

/// How an engine continues an answer that another engine began ([`crate::Job::generated`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ResumeSupport {
    /// Not at all.
    #[default]
    Never,
    /// With the tokens that another engine of its kind would choose. Only if each token is the likeliest one and
    /// depends on nothing but the tokens before it: no random numbers and no penalties.
    Likeliest,
    /// With identical bits, if both engines have the same `numerics`.
    Exactly,
}

impl Capabilities {
    /// Returns whether a sequence of `prompt_tokens` tokens and at most `max_tokens` new ones uses the second set of
    /// rotary frequencies, from its first position on.
    pub fn is_long_context(&self, prompt_tokens: usize, max_tokens: u32) -> bool {
        let Some(short) = self.short_context else { return false };
        let new_tokens =
            (max_tokens as usize).min((self.context_window as usize).saturating_sub(prompt_tokens));
        prompt_tokens.saturating_add(new_tokens) > short as usize
    }

    /// Returns the salt of the block keys of such a sequence. `salt` is the salt of its job. Keys and values of a long
    /// context are rotated by other angles, so they have a salt of their own.
    pub fn block_salt(&self, salt: &CacheSalt, prompt_tokens: usize, max_tokens: u32) -> CacheSalt {
        if self.is_long_context(prompt_tokens, max_tokens) { salt.variant(LONG_CONTEXT) } else { *salt }
    }

    /// Returns whether this engine would continue an answer exactly as `other`, which began it.
    pub fn continue_of(&self, other: &Self, sampling: &Sampling) -> bool {
        match (self.continues, other.continues) {
            (ResumeSupport::Exactly, ResumeSupport::Exactly) => self.numerics == other.numerics,
            (ResumeSupport::Likeliest, ResumeSupport::Likeliest) => {
                self.compute_mode == other.compute_mode && is_plain(sampling)
            }
            _ => false,
        }
    }
}

/// Returns whether only the preceding tokens decide the next one, on any engine.
fn is_plain(sampling: &Sampling) -> bool {
    let Sampling { temperature, frequency_penalty, presence_penalty, repetition_penalty, .. } = *sampling;
    temperature == 0.0 && frequency_penalty == 0.0 && presence_penalty == 0.0 && repetition_penalty == 1.0
}

/// The age of a load report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReportAge {
    /// The report is current.
    #[default]
    Now,
    /// The report came from another process some time ago.
    Ago {
        /// The age in nanoseconds.
        nanos: u64,
    },
    /// No report has arrived. This does not mean that the engine is idle.
    Never,
}

/// The blocks of one cache group. A block of states is a slot for one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupBlocks {
    /// Blocks in total.
    pub total: u32,
    /// Blocks that no sequence holds.
    pub free: u32,
    /// Free blocks that hold a cached prefix.
    pub cached: u32,
}

/// The blocks of a cache group in a format with names. Binary frames leave them out, because older programs read frames
/// by position.
mod only_in_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::GroupBlocks;

    pub(super) fn serialize<S: Serializer>(blocks: &Option<GroupBlocks>, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { blocks.serialize(to) } else { to.serialize_unit() }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GroupBlocks>, D::Error> {
        if from.is_human_readable() {
            Option::deserialize(from)
        } else {
            <()>::deserialize(from).map(|()| None)
        }
    }
}

/// The load of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// The age of this report. It is not serialised: a process that passes a report on states its age separately.
    #[serde(skip)]
    pub reported: ReportAge,
    /// Sequences that are being computed.
    pub running: u32,
    /// Sequences that are paused until their readers have caught up.
    #[serde(default)]
    pub paused: u32,
    /// Sequences that wait.
    pub waiting: u32,
    /// Prompt tokens that wait to be computed.
    pub waiting_tokens: u64,
    /// Total KV blocks of the layers that keep every position, or of the only cache group.
    pub blocks_total: u32,
    /// KV blocks that no sequence holds. They include cached blocks, which are evicted when needed.
    pub blocks_free: u32,
    /// Free blocks that hold a cached prefix.
    pub blocks_cached: u32,
    /// Blocks of the layers with a window, if other layers keep every position.
    #[serde(default, with = "only_in_json")]
    pub window: Option<GroupBlocks>,
    /// Slots for recurrent states, if other layers keep positions.
    #[serde(default, with = "only_in_json")]
    pub states: Option<GroupBlocks>,
    /// Used share of the KV memory, in thousandths. Set if the engine reports a share instead of blocks.
    #[serde(default)]
    pub cache_used_permille: Option<u16>,
    /// Tokens computed per second recently. 0 while unknown.
    pub tokens_per_second: u32,
    /// Prompt tokens per second in steps that compute only prompts. 0 while unknown.
    #[serde(default)]
    pub prefill_tokens_per_second: u32,
    /// Tokens generated per second at the current batch size. 0 while unknown.
    #[serde(default)]
    pub decode_tokens_per_second: u32,
    /// How often the engine's loop failed and was restarted.
    #[serde(default)]
    pub restarts: u32,
    /// Nanoseconds of all steps since the start.
    #[serde(default)]
    pub step_ns: u64,
    /// The part of `step_ns` in which the model computed.
    #[serde(default)]
    pub forward_ns: u64,
    /// The part of `step_ns` in which tokens were sampled.
    #[serde(default)]
    pub sample_ns: u64,
}

impl LoadReport {
    /// The share of the step time spent neither on the model nor on sampling: scheduling, and sending events. From 0 to
    /// 1.
    pub fn scheduling_share(&self) -> f64 {
        let rest = self.step_ns.saturating_sub(self.forward_ns).saturating_sub(self.sample_ns);
        if self.step_ns == 0 { 0.0 } else { rest as f64 / self.step_ns as f64 }
    }
}

/// Why an engine refuses a job before any work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitRefusal {
    /// The queue is full.
    QueueFull {
        /// What is full: `sequences` or `tokens`.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// When there may be room, computed from the queue.
        retry_after: Duration,
    },
    /// Prompt and output together can never fit.
    DoesNotFit {
        /// The tokens that the job needs.
        needed: u64,
        /// The tokens that the engine has.
        limit: u64,
    },
    /// The job's first token cannot be ready before its deadline.
    TooLate {
        /// Time that the job would wait for others.
        wait: Duration,
        /// Time that its own prompt would take.
        prefill: Duration,
        /// When the wait may be short enough. `None` if the prompt alone takes longer than the deadline allows.
        retry_after: Option<Duration>,
    },
    /// The engine cannot take a value of the job.
    Invalid {
        /// The value.
        what: String,
    },
    /// The engine is draining or dead.
    Unavailable {
        /// The reason.
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
