//! The trace record: one versioned record per request, with every stage's start and duration, and the seam that takes it.
//! No prompt, no answer, no key's secret ever stands in one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptOutcome, Continued};
use crate::beside::{Ahead, Beside, Billed, ConnectionTrace};
use crate::shadow::ShadowOf;
use crate::stage::{Stage, StageSpan};
use crate::timeline::Timeline;
use crate::worker_job::WorkerJob;
use crate::{
    Code, EndUser, Endpoint, KeyId, NanoDollars, OrgId, PriceTier, ProjectId, RequestId, UnixNanos, Usage,
    UsageSource,
};

/// The version that this program writes. Older ones stay readable; a newer one is refused.
///
/// 1: stages could overlap and outlast the request; places of misses counted messages as the template was given them.
/// 2: stages partition the request's time; `inside`, `after_ns`, the stages `receive`, `reader` and `handover`; places of
/// misses in the caller's own terms.
pub const TRACE_VERSION: u32 = 2;

/// What the engine saw of a request. For several prompts: the sums, and the first one's times.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EngineTrace {
    /// Sequences waiting when this one arrived.
    pub queue_depth: u32,
    /// Nanoseconds from arrival to the first step that computed any of it.
    pub queue_ns: u64,
    /// Nanoseconds from there to its first token.
    pub prefill_ns: u64,
    /// Nanoseconds from the first token to the last.
    pub decode_ns: u64,
    /// Steps that computed any of it.
    pub steps: u32,
    /// Steps that computed prompt tokens.
    pub prefill_chunks: u32,
    /// Fewest sequences in one of its steps.
    pub batch_min: u32,
    /// Most sequences in one of its steps.
    pub batch_max: u32,
    /// Sum of sequences over its steps; divided by `steps` it is the mean batch.
    pub batch_sum: u64,
    /// Times it lost its blocks and was recomputed.
    pub preemptions: u32,
    /// Prompt blocks found in the prefix cache.
    pub cached_blocks: u32,
    /// Prompt blocks that could be found there: the whole ones before the last token, which is always computed.
    pub prompt_blocks: u32,
    /// Why not more of the prompt came from the prefix cache; `None`: all that can did. Of several prompts the first that
    /// missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss: Option<CacheMiss>,
    /// Nanoseconds of the engine's steps while the request ran, whoever else was in them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub step_ns: u64,
    /// Of those, the nanoseconds in which the model computed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forward_ns: u64,
    /// Of those, the nanoseconds of choosing tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sample_ns: u64,
    /// Nanoseconds for which it stood still, because what it had generated was not read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paused_ns: u64,
    /// Answers of it whose thought was ended because it had as many tokens as it may have.
    #[serde(default, skip_serializing_if = "is_none")]
    pub thoughts_cut: u32,
    /// Prompt blocks computed for it that are kept, as its caller wishes.
    #[serde(default, skip_serializing_if = "is_none")]
    pub pinned_blocks: u32,
    /// Those that are not, though its caller wishes it: its organisation keeps as many as it may.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unpinned_blocks: u32,
    /// What was computed before its turn; `None`: nobody knows, as in older records. For operators alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Ahead>,
    /// What was computed beside it; `None`: nobody knows, as in older records. For operators alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
}

/// Answers of former turns in a prompt, which goes on with the ids that they were generated as, though their texts would become others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAnswers {
    /// How many.
    pub answers: u32,
    /// How many tokens they have in the prompt.
    pub tokens: u32,
}

/// What a caller was told of its prompt beside that of an answer that it named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldOfCache {
    /// In a word: `nothing`, `not_found`, `unavailable`, `same`, or what was changed, such as `tools_changed`.
    pub word: String,
    /// Tokens of the former prompt that cannot be found because of that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed_tokens: u64,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PromptPlace>,
}

impl EngineTrace {
    /// With what engines saw of more of the same request: this one's times, and the sums of both.
    #[must_use]
    pub fn with(self, more: &Self) -> Self {
        Self {
            steps: self.steps.saturating_add(more.steps),
            prefill_chunks: self.prefill_chunks.saturating_add(more.prefill_chunks),
            batch_min: self.batch_min.min(more.batch_min),
            batch_max: self.batch_max.max(more.batch_max),
            batch_sum: self.batch_sum.saturating_add(more.batch_sum),
            preemptions: self.preemptions.saturating_add(more.preemptions),
            cached_blocks: self.cached_blocks.saturating_add(more.cached_blocks),
            prompt_blocks: self.prompt_blocks.saturating_add(more.prompt_blocks),
            pinned_blocks: self.pinned_blocks.saturating_add(more.pinned_blocks),
            unpinned_blocks: self.unpinned_blocks.saturating_add(more.unpinned_blocks),
            thoughts_cut: self.thoughts_cut.saturating_add(more.thoughts_cut),
            ..self
        }
    }
}

fn is_counted(source: &UsageSource) -> bool {
    *source == UsageSource::Counted
}

fn is_standard(tier: &PriceTier) -> bool {
    *tier == PriceTier::Standard
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// Why a prompt's blocks were not all found in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMiss {
    /// Why.
    pub reason: MissReason,
    /// The prompt token at which it shows: the first that differs, or the first of the block that was not there.
    pub token: u32,
    /// The same tokens lie in the cache under another tenant's (or cache salt's) name. For operators alone: to tell a
    /// caller would tell it what others ask.
    #[serde(default)]
    pub elsewhere: bool,
    /// Where that token stands in what the caller sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PromptPlace>,
    /// Where it `differs`, the token with which the nearest cached prompt of the same cache goes on: what the two have in
    /// common shows where exactly they part. It is a piece of a prompt, so it is never written or shown.
    #[serde(skip)]
    pub other: Option<u32>,
}

/// Why a block was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissReason {
    /// The prompt has no whole block before its last token: only whole blocks are cached, and the last token is always
    /// computed.
    BelowBlock,
    /// Prompts whose log-probabilities are wanted are computed in full.
    Bypassed,
    /// The cache is switched off.
    Disabled,
    /// It was there, and its room was needed for others.
    Evicted,
    /// It was there, and nobody had used it for longer than prefixes are kept.
    Expired,
    /// The nearest cached prompt goes on with another token here.
    Differs,
    /// Nothing that is cached goes on from here.
    NeverSeen,
}

impl MissReason {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BelowBlock => "below_block",
            Self::Bypassed => "bypassed",
            Self::Disabled => "disabled",
            Self::Evicted => "evicted",
            Self::Expired => "expired",
            Self::Differs => "differs",
            Self::NeverSeen => "never_seen",
        }
    }
}

/// A place in what the caller sent, in the terms of the dialect that it spoke. Indexes and characters count from 0.
///
/// Records of version 1 know `message`, `template` and `prompt` only, and count messages as the chat template was given them:
/// Anthropic's `system` as the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum PromptPlace {
    /// In the text of Anthropic's `system`.
    System {
        /// Which character of it.
        character: u32,
    },
    /// In the text of a message.
    Message {
        /// Which message.
        index: u32,
        /// Which block of its content, where a message is taken as several: each result of a tool, and the text between.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        block: Option<u32>,
        /// Which character of its text, or of that block's.
        character: u32,
    },
    /// In the reasoning that a message gives back.
    Reasoning {
        /// Which message.
        index: u32,
        /// Which character of it.
        character: u32,
    },
    /// In a call of a tool that a message gives back.
    ToolCall {
        /// Which message.
        index: u32,
        /// Which of its calls.
        call: u32,
    },
    /// In a tool: its name, description or parameters.
    Tool {
        /// Which tool.
        index: u32,
    },
    /// Where the list of tools begins or ends: the nearest cached prompt has more of them, fewer or none.
    Tools,
    /// Between the texts of messages, in what the chat template wrote: a message that ends earlier or later, or another role.
    Template {
        /// The message that follows; as many as there are: none does.
        before_message: u32,
    },
    /// In a raw prompt.
    Prompt {
        /// Which prompt.
        index: u32,
        /// Which character; of a prompt given as ids, which id.
        character: u32,
    },
}

/// A refusal as the trace keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRefusal {
    /// Where.
    pub stage: Stage,
    /// The rule's name, such as `requests_per_minute`.
    pub rule: String,
    /// HTTP status.
    pub status: u16,
    /// The error's `code`.
    pub code: String,
    /// The message shown to the caller (which never holds prompt text).
    pub message: String,
}

/// The error that the caller of a failed call received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedFailure {
    /// The error's `code`.
    pub code: String,
    /// Its HTTP status. If the answer had begun, the caller saw 200 and then the error as an event.
    pub status: u16,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Outcome {
    /// Answered to the end; the finish reason of each choice.
    Completed {
        /// One per choice.
        finish: Vec<String>,
    },
    /// Turned away before any work.
    Refused(TracedRefusal),
    /// The client went away or stopped reading.
    Cancelled {
        /// What showed it.
        why: String,
    },
    /// We or an upstream failed.
    Failed {
        /// Where.
        stage: Stage,
        /// What the caller was told.
        message: String,
    },
}

/// One request from first byte to bill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceRecord {
    /// [`TRACE_VERSION`] when written.
    pub version: u32,
    /// Which request.
    pub request_id: RequestId,
    /// W3C trace id (32 hex digits), the caller's where it sent `traceparent`.
    pub trace_id: Option<String>,
    /// The caller's span id (16 hex digits).
    pub parent_span_id: Option<String>,
    /// When its first byte arrived.
    pub started: UnixNanos,
    /// Nanoseconds from first byte to settled.
    pub duration_ns: u64,
    /// Nanoseconds from first byte to the first token. See [`TraceRecord::time_to_first_token_ns`] for the server's part.
    pub first_token_ns: Option<u64>,
    /// Nanoseconds of work for this record once the request was over: nobody waited for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after_ns: u64,
    /// Nanoseconds of `render` in which the form of its answers was compiled: a schema, a grammar, or tools.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub form_ns: u64,
    /// Whose: known from `authenticate` on.
    pub org: Option<OrgId>,
    /// As `org`.
    pub project: Option<ProjectId>,
    /// As `org`; the public id, never the secret.
    pub key: Option<KeyId>,
    /// Whom its caller says that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<EndUser>,
    /// What was called: known from routing the path on.
    pub endpoint: Option<Endpoint>,
    /// The model asked for (cut to 256 bytes).
    pub model_asked: Option<String>,
    /// The model that handled it.
    pub model_served: Option<String>,
    /// Compute mode and numerics fingerprint of that model.
    pub numerics: Option<String>,
    /// Whether the answer streamed.
    pub stream: bool,
    /// Where its time went: spans in order, each followed by what ran inside it. Without those inside others they are a
    /// partition of `duration_ns` (see [`crate::is_partition`]).
    pub stages: Vec<StageSpan>,
    /// Tokens by class.
    pub usage: Usage,
    /// The class of service that they were priced in.
    #[serde(default, skip_serializing_if = "is_standard")]
    pub price_tier: PriceTier,
    /// How they are known.
    #[serde(default, skip_serializing_if = "is_counted")]
    pub usage_source: UsageSource,
    /// Why tokens are estimated. `None` unless `usage_source` is [`UsageSource::Estimated`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_estimated: Option<Box<str>>,
    /// Oddities of the upstream's answer that did not end it, each as `kind: detail`, at most one of a kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answer_notes: Vec<String>,
    /// Whose server answered, by its name in the configuration; `None`: an engine of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Arc<str>>,
    /// The model that it says answered, which may be a dated version of the one that it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_model: Option<String>,
    /// The id that it gave its answer, which is the id that the caller sees if the answer is passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<String>,
    /// Who was asked to answer its prompts, in the order of asking. Empty where it never got there, and in records of programs
    /// that asked only once. Of very many, the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Answers that another worker went on with in its own way, as their model's policy allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continued: Vec<Continued>,
    /// What the engine saw; `None` where it never got there.
    pub engine: Option<EngineTrace>,
    /// Former answers that its prompt goes on with as they were generated; `None`: none, or they are what their texts become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_answers: Option<KeptAnswers>,
    /// What its caller was told of its prompt, where it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_of_cache: Option<Box<ToldOfCache>>,
    /// What was held.
    pub held: NanoDollars,
    /// What was charged.
    pub cost: NanoDollars,
    /// What went to the loss account.
    pub loss: NanoDollars,
    /// What others charge us for it, all its tries together; `None`: nobody knows. For operators alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid: Option<NanoDollars>,
    /// At which prices it was held for and charged; `None`: it never got there, or is of a program that kept none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed: Option<Box<Billed>>,
    /// How its connection stood; `None`: it came from inside, or is of a program that did not look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionTrace>,
    /// What moderation said, where it ran.
    pub moderation: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// The error that the caller received. `None` unless the call failed. [`TraceRecord::failure`] reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_with: Option<TracedFailure>,
    /// Whose copy it is; `None`: it is a caller's own call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_of: Option<Box<ShadowOf>>,
    /// The gateway's call that this job was run for. `None` unless the record is of a worker job: such a record is no call, has no
    /// caller here, and costs nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_job: Option<Box<WorkerJob>>,
}

impl TraceRecord {
    /// The span of a stage, if it was reached.
    pub fn span(&self, stage: Stage) -> Option<&StageSpan> {
        self.stages.iter().find(|span| span.stage == stage && span.inside.is_none())
    }

    /// Returns whether the record is of a caller's own call: neither a copy of one nor a worker job.
    pub const fn is_call(&self) -> bool {
        self.shadow_of.is_none() && self.worker_job.is_none()
    }

    /// Returns the code and the HTTP status of the error that the caller received. `None` unless the call failed.
    pub fn failure(&self) -> Option<TracedFailure> {
        if !matches!(self.outcome, Outcome::Failed { .. }) {
            return None;
        }
        self.failed_with.clone().or_else(|| {
            // Records of programs that did not note it: the last try says why the call failed.
            let (AttemptOutcome::Refused { code, .. } | AttemptOutcome::Failed { code, .. }) =
                &self.attempts.last()?.outcome
            else {
                return None;
            };
            let known = Code::ALL.iter().find(|known| known.name() == code)?;
            Some(TracedFailure { code: code.clone(), status: known.status() })
        })
    }

    /// Nanoseconds in which the server could only wait for the client: its body, and its reading.
    pub fn client_ns(&self) -> u64 {
        let client =
            |span: &&StageSpan| span.inside.is_none() && matches!(span.stage, Stage::Receive | Stage::Reader);
        self.stages.iter().filter(client).fold(0, |sum, span| sum.saturating_add(span.duration_ns))
    }

    /// Nanoseconds that the server took: all but the client's.
    pub fn server_ns(&self) -> u64 {
        self.duration_ns.saturating_sub(self.client_ns())
    }

    /// Nanoseconds from when the request was whole to its first token: what the server answers for.
    pub fn time_to_first_token_ns(&self) -> Option<u64> {
        let whole = self.span(Stage::Receive).or_else(|| self.span(Stage::Connect));
        let whole = whole.map_or(0, |span| span.start_ns.saturating_add(span.duration_ns));
        Some(self.first_token_ns?.saturating_sub(whole))
    }

    /// A record of an older version, in today's terms: version 1 did not promise that stages partition a request's time.
    pub fn upgraded(mut self) -> Self {
        if self.version < TRACE_VERSION {
            self.stages = Timeline::from_overlapping(&self.stages, self.duration_ns).into_spans();
            self.version = TRACE_VERSION;
        }
        self
    }
}

/// Takes finished records. It never blocks: what it cannot take it drops and counts.
pub trait TraceSink: Send + Sync {
    /// Takes one record.
    fn record(&self, record: Box<TraceRecord>);
}

/// Forgets every record: for tests and benchmarks.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTrace;

impl TraceSink for NoTrace {
    fn record(&self, _record: Box<TraceRecord>) {}
}
