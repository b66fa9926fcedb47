//! The trace record: one versioned record per request with the start and duration of every stage, and the trait that
//! receives it. A record never holds a prompt, an answer or a key's secret.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptOutcome, ContinuedAnswer};
use crate::beside::{BilledPrices, ConcurrentWork, ConnectionTrace, WorkAhead};
use crate::content_verdict::{ContentVerdict, JudgeUse};
use crate::round::TraceRound;
use crate::shadow::ShadowOf;
use crate::stage::{Stage, StageSpan};
use crate::timeline::Timeline;
use crate::worker_job::WorkerJob;
use crate::{
    CallLabels, ClientAddress, Code, EndUser, Endpoint, KeyId, NanoDollars, OrgId, PriceTier, ProjectId,
    Region, RequestId, TokenUser, UnixNanos, Usage, UsageSource,
};

/// The version that this program writes. Older versions stay readable, newer ones are refused.
///
/// 1: stages could overlap and outlast the request. Cache-miss positions counted messages as the template received
/// them.
///
/// 2: stages partition the request's time. Added `inside`, `after_ns` and the stages `receive`, `reader` and
/// `handover`. Cache-miss positions use the caller's own terms.
pub const TRACE_VERSION: u32 = 2;

/// What the engine measured for a request. For several prompts: the sums of the counts, and the times of the first
/// prompt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EngineTrace {
    /// Sequences waiting when this one arrived.
    pub queue_depth: u32,
    /// Nanoseconds from arrival to the first step that computed any of it.
    pub queue_ns: u64,
    /// Nanoseconds from that step to the first token.
    pub prefill_ns: u64,
    /// Nanoseconds from the first token to the last.
    pub decode_ns: u64,
    /// Steps that computed any of the request.
    pub steps: u32,
    /// Steps that computed prompt tokens.
    pub prefill_chunks: u32,
    /// Fewest sequences in one of its steps.
    pub batch_min: u32,
    /// Most sequences in one of its steps.
    pub batch_max: u32,
    /// Sum of the sequences over the request's steps. Divided by `steps`, it is the mean batch size.
    pub batch_sum: u64,
    /// Number of times that the request lost its blocks and was recomputed.
    pub preemptions: u32,
    /// Prompt blocks found in the prefix cache.
    pub cached_blocks: u32,
    /// Prompt blocks that the cache could have held: the whole blocks before the last token, which is always computed.
    pub prompt_blocks: u32,
    /// Why the prefix cache did not supply more of the prompt. `None` if it supplied all that it can. For several
    /// prompts: the first one with a miss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss: Option<CacheMiss>,
    /// Nanoseconds of the engine's steps while the request ran, including the work for other requests in those steps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub step_ns: u64,
    /// The part of `step_ns` in which the model computed, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forward_ns: u64,
    /// The part of `step_ns` in which tokens were sampled, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sample_ns: u64,
    /// Nanoseconds for which the request was paused because its output was not read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paused_ns: u64,
    /// Answers whose reasoning was cut off at the reasoning budget.
    #[serde(default, skip_serializing_if = "is_none")]
    pub thoughts_cut: u32,
    /// Prompt blocks computed for the request and pinned in the cache because its caller asked for that.
    #[serde(default, skip_serializing_if = "is_none")]
    pub pinned_blocks: u32,
    /// Prompt blocks that the caller asked to pin but that were not pinned, because its organisation has reached its
    /// limit.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unpinned_blocks: u32,
    /// What the engine computed ahead of the request. `None` if unknown, as in older records. For operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<WorkAhead>,
    /// What the engine computed in the same steps as the request. `None` if unknown, as in older records. For operators
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<ConcurrentWork>,
}

/// Earlier answers that the prompt repeats with their generated token ids. Tokenizing their text again would give other
/// ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAnswers {
    /// Number of answers.
    pub answers: u32,
    /// Tokens that these answers have in the prompt.
    pub tokens: u32,
}

/// The cache diagnosis sent to the caller: how the prompt compares with the prompt of an earlier answer that the caller
/// named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedDiagnosis {
    /// The result in one word: `nothing`, `not_found`, `unavailable`, `same`, or what changed, such as `tools_changed`.
    pub word: String,
    /// Tokens of the earlier prompt that cannot be found in the cache because of the change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed_tokens: u64,
    /// Where the prompts first differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PromptPlace>,
}

impl EngineTrace {
    /// Adds `more`, the trace of another part of the same request: counts are summed, and the times stay those of
    /// `self`.
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
    /// The cause.
    pub reason: MissReason,
    /// Index of the prompt token at which the miss shows: the first that differs, or the first of the missing block.
    pub token: u32,
    /// Whether the same tokens are in the cache under another tenant or cache salt. For operators only: it would reveal
    /// to the caller what others send.
    #[serde(default)]
    pub elsewhere: bool,
    /// Position of that token in what the caller sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PromptPlace>,
    /// For [`MissReason::Differs`]: the next token of the nearest cached prompt in the same cache. Together with the
    /// common part it shows exactly where the two differ. It is part of a prompt, so it is never written or shown.
    #[serde(skip)]
    pub other: Option<u32>,
}

/// Why a block was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissReason {
    /// The prompt has no whole block before its last token. Only whole blocks are cached, and the last token is always
    /// computed.
    BelowBlock,
    /// The client wants the prompt's log-probabilities, so the prompt is computed in full.
    Bypassed,
    /// The cache is switched off.
    Disabled,
    /// The block was cached, but its space was needed for others.
    Evicted,
    /// The block was cached, but unused for longer than prefixes are kept.
    Expired,
    /// The nearest cached prompt continues with another token here.
    Differs,
    /// No cached prompt continues from here.
    NeverSeen,
    /// The block is cached, but not the state of the recurrent layers there, from which a sequence could continue.
    StateNotKept,
    /// The block is cached, but the layers with a window no longer keep the positions before it.
    WindowFreed,
}

impl MissReason {
    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BelowBlock => "below_block",
            Self::Bypassed => "bypassed",
            Self::Disabled => "disabled",
            Self::Evicted => "evicted",
            Self::Expired => "expired",
            Self::Differs => "differs",
            Self::NeverSeen => "never_seen",
            Self::StateNotKept => "state_not_kept",
            Self::WindowFreed => "window_freed",
        }
    }
}

/// A position in what the caller sent, in the terms of the caller's dialect. Indexes and characters count from 0.
///
/// Records of version 1 use only `message`, `template` and `prompt`. They count messages as the chat template received
/// them, so Anthropic's `system` is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum PromptPlace {
    /// In the text of Anthropic's `system`.
    System {
        /// Index of the character.
        character: u32,
    },
    /// In the text of a message.
    Message {
        /// Index of the message.
        index: u32,
        /// Index of the content block, if one message is treated as several: each tool result, and the text between
        /// them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        block: Option<u32>,
        /// Index of the character in the message's text, or in that block's text.
        character: u32,
    },
    /// In reasoning that a message sends back.
    Reasoning {
        /// Index of the message.
        index: u32,
        /// Index of the character.
        character: u32,
    },
    /// In a tool call that a message sends back.
    ToolCall {
        /// Index of the message.
        index: u32,
        /// Index of the call within the message.
        call: u32,
    },
    /// In a tool: its name, description or parameters.
    Tool {
        /// Index of the tool.
        index: u32,
    },
    /// At the beginning or end of the tool list: the nearest cached prompt has more tools, fewer or none.
    Tools,
    /// Between the texts of messages, in what the chat template wrote. A message ends earlier or later, or has another
    /// role.
    Template {
        /// Index of the message that follows. Equals the number of messages if none follows.
        before_message: u32,
    },
    /// In a raw prompt.
    Prompt {
        /// Index of the prompt.
        index: u32,
        /// Index of the character, or of the token id if the prompt was sent as ids.
        character: u32,
    },
}

/// A refusal in a trace record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedRefusal {
    /// The stage that refused.
    pub stage: Stage,
    /// The rule's name, such as `requests_per_minute`.
    pub rule: String,
    /// HTTP status.
    pub status: u16,
    /// The error's `code`.
    pub code: String,
    /// The message shown to the caller. It never holds prompt text.
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
pub enum CallOutcome {
    /// The request was answered to the end.
    Completed {
        /// The finish reason of each choice.
        finish: Vec<String>,
    },
    /// The request was refused before any work.
    Refused(TracedRefusal),
    /// The client went away or stopped reading.
    Cancelled {
        /// How the server noticed.
        why: String,
    },
    /// This server or an upstream failed.
    Failed {
        /// The stage that failed.
        stage: Stage,
        /// The message that the caller received.
        message: String,
    },
}

/// One request, from its first byte to its bill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceRecord {
    /// [`TRACE_VERSION`] when written.
    pub version: u32,
    /// The id of the request.
    pub request_id: RequestId,
    /// W3C trace id (32 hex digits). It is the caller's own if the caller sent `traceparent`.
    pub trace_id: Option<String>,
    /// The caller's span id (16 hex digits).
    pub parent_span_id: Option<String>,
    /// When the request's first byte arrived.
    pub started: UnixNanos,
    /// Nanoseconds from the first byte to the end of settlement.
    pub duration_ns: u64,
    /// Nanoseconds from the first byte to the first token. [`TraceRecord::time_to_first_token_ns`] returns the server's
    /// part.
    pub first_token_ns: Option<u64>,
    /// Nanoseconds of work on this record after the request was over. No client waits for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after_ns: u64,
    /// The part of `render`, in nanoseconds, that compiled the answer's form: a schema, a grammar, or tools.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub form_ns: u64,
    /// The organisation that pays. Known from `authenticate` on.
    pub org: Option<OrgId>,
    /// The project. Known from `authenticate` on.
    pub project: Option<ProjectId>,
    /// The key's public id, never its secret. Known from `authenticate` on.
    pub key: Option<KeyId>,
    /// The caller by its identity provider, if it sent a token instead of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_user: Option<Arc<TokenUser>>,
    /// The region of the server that made the record. `None` if it has none, or in records of versions without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// The address of the client, as far as the settings allow it to be recorded. `None` if nothing is, for a call that did not
    /// come over the network, and in records of versions without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientAddress>,
    /// The end user that the caller named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<EndUser>,
    /// The labels that the caller gave to the call (`metadata`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Box<CallLabels>>,
    /// The endpoint. Known once the path was routed.
    pub endpoint: Option<Endpoint>,
    /// The model that the caller named, cut to 256 bytes.
    pub model_asked: Option<String>,
    /// The model that handled the request.
    pub model_served: Option<String>,
    /// Compute mode and numerics fingerprint of that model.
    pub numerics: Option<String>,
    /// Whether the answer streamed.
    pub stream: bool,
    /// How the time was spent: spans in order, each followed by the spans inside it. The spans that are not inside
    /// others partition `duration_ns` (see [`crate::is_partition`]).
    pub stages: Vec<StageSpan>,
    /// Tokens by class.
    pub usage: Usage,
    /// The service tier whose prices apply.
    #[serde(default, skip_serializing_if = "is_standard")]
    pub price_tier: PriceTier,
    /// How the token counts were obtained.
    #[serde(default, skip_serializing_if = "is_counted")]
    pub usage_source: UsageSource,
    /// Why the token counts are estimates. `None` unless `usage_source` is [`UsageSource::Estimated`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_estimated: Option<Box<str>>,
    /// Oddities of the upstream's answer that did not end it, each as `kind: detail`, at most one per kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answer_notes: Vec<String>,
    /// The upstream that answered, by its name in the configuration. `None` for a local engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Arc<str>>,
    /// The model that the upstream reports. It may be a dated version of the model that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_model: Option<String>,
    /// The upstream's id of its answer. The caller sees this id if the answer is passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_id: Option<String>,
    /// The attempts to have the prompts answered, in order. Empty if the request never got that far, and in records of
    /// versions that made only one attempt. Only the first ones are kept if there are very many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Answers that another worker continued with tokens that may differ from those of the lost worker, as the model's
    /// policy allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continued: Vec<ContinuedAnswer>,
    /// The rounds of the call, in order. One entry if a worker took any of its prompts once, more if it ran again. Empty
    /// if no worker took it, for a worker job, and in records of versions that did not record rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<TraceRound>,
    /// What engines measured, all rounds together. `None` if the request never reached one.
    pub engine: Option<EngineTrace>,
    /// Earlier answers that the prompt repeats with their generated token ids. `None` if there are none, or if
    /// tokenizing their text gives the same ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_answers: Option<KeptAnswers>,
    /// The cache diagnosis that the caller received, if it asked for one.
    #[serde(default, rename = "told_of_cache", skip_serializing_if = "Option::is_none")]
    pub cache_diagnosis: Option<Box<TracedDiagnosis>>,
    /// The amount of the hold.
    pub held: NanoDollars,
    /// The amount charged.
    pub cost: NanoDollars,
    /// The amount that went to the loss account.
    pub loss: NanoDollars,
    /// What upstreams charge us for all attempts together. `None` if unknown. For operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid: Option<NanoDollars>,
    /// The prices of the hold and the charge. `None` if the request never got that far, or in records of versions that
    /// did not keep them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed: Option<Box<BilledPrices>>,
    /// State of the client's connection. `None` for a request from inside the server, or in records of versions that
    /// did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionTrace>,
    /// The name of the content rule that decided about the request, if one matched.
    pub moderation: Option<String>,
    /// The content rules that matched the request. Empty in records of versions without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_verdicts: Vec<ContentVerdict>,
    /// The content rules that matched what the model wrote. The rule that ended the answer comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_verdicts: Vec<ContentVerdict>,
    /// What judges on other servers were asked, one entry for each rule and part of the call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judge_uses: Vec<JudgeUse>,
    /// How the request ended.
    pub outcome: CallOutcome,
    /// The error that the caller received. `None` unless the call failed. Read it with [`TraceRecord::failure`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_with: Option<TracedFailure>,
    /// The call that this request is a shadow copy of. `None` for a caller's own call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_of: Option<Box<ShadowOf>>,
    /// The request whose stored answer was returned, because both have one idempotency key. `None` if the request ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<RequestId>,
    /// Hash and length of the answer's body as the client got it. `None` if they were not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Box<crate::SentAnswer>>,
    /// The gateway's call that this job was run for. `None` unless the record is of a worker job: such a record is no call, has no
    /// caller here, and costs nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_job: Option<Box<WorkerJob>>,
}

impl TraceRecord {
    /// Creates the record of a request that has just begun, with `outcome` in case nothing else is recorded.
    pub fn new(request_id: RequestId, started: UnixNanos, outcome: CallOutcome) -> Self {
        Self {
            version: TRACE_VERSION,
            request_id,
            trace_id: None,
            parent_span_id: None,
            started,
            duration_ns: 0,
            first_token_ns: None,
            after_ns: 0,
            form_ns: 0,
            org: None,
            project: None,
            key: None,
            token_user: None,
            region: None,
            client: None,
            user: None,
            labels: None,
            endpoint: None,
            model_asked: None,
            model_served: None,
            numerics: None,
            stream: false,
            stages: Vec::new(),
            usage: Usage::default(),
            price_tier: PriceTier::Standard,
            usage_source: UsageSource::Counted,
            why_estimated: None,
            answer_notes: Vec::new(),
            upstream: None,
            upstream_model: None,
            upstream_id: None,
            attempts: Vec::new(),
            continued: Vec::new(),
            rounds: Vec::new(),
            engine: None,
            held: NanoDollars::ZERO,
            cost: NanoDollars::ZERO,
            loss: NanoDollars::ZERO,
            paid: None,
            billed: None,
            connection: None,
            moderation: None,
            input_verdicts: Vec::new(),
            output_verdicts: Vec::new(),
            judge_uses: Vec::new(),
            outcome,
            kept_answers: None,
            cache_diagnosis: None,
            failed_with: None,
            shadow_of: None,
            replay_of: None,
            sent: None,
            worker_job: None,
        }
    }

    /// Returns the span of a stage, if the request reached that stage.
    pub fn span(&self, stage: Stage) -> Option<&StageSpan> {
        self.stages.iter().find(|span| span.stage == stage && span.inside.is_none())
    }

    /// Returns whether the record is of a caller's own call: neither a copy of one nor a worker job.
    pub const fn is_call(&self) -> bool {
        self.shadow_of.is_none() && self.worker_job.is_none()
    }

    /// Returns the code and HTTP status of the error that the caller received. `None` unless the call failed.
    pub fn failure(&self) -> Option<TracedFailure> {
        if !matches!(self.outcome, CallOutcome::Failed { .. }) {
            return None;
        }
        self.failed_with.clone().or_else(|| {
            // Records of versions without `failed_with`: the last attempt holds the reason for the failure.
            let (AttemptOutcome::Refused { code, .. } | AttemptOutcome::Failed { code, .. }) =
                &self.attempts.last()?.outcome
            else {
                return None;
            };
            let known = Code::ALL.iter().find(|known| known.name() == code)?;
            Some(TracedFailure { code: code.clone(), status: known.status() })
        })
    }

    /// Nanoseconds in which the server only waited for the client: to send its body, and to read.
    pub fn client_ns(&self) -> u64 {
        let client =
            |span: &&StageSpan| span.inside.is_none() && matches!(span.stage, Stage::Receive | Stage::Reader);
        self.stages.iter().filter(client).fold(0, |sum, span| sum.saturating_add(span.duration_ns))
    }

    /// Nanoseconds that the server took: the duration without the client's part.
    pub fn server_ns(&self) -> u64 {
        self.duration_ns.saturating_sub(self.client_ns())
    }

    /// Nanoseconds from the complete request to its first token: the part that the server is responsible for.
    pub fn time_to_first_token_ns(&self) -> Option<u64> {
        let whole = self.span(Stage::Receive).or_else(|| self.span(Stage::Connect));
        let whole = whole.map_or(0, |span| span.start_ns.saturating_add(span.duration_ns));
        Some(self.first_token_ns?.saturating_sub(whole))
    }

    /// Converts a record of an older version to today's terms. In version 1, stages did not partition a request's time.
    pub fn upgraded(mut self) -> Self {
        if self.version < TRACE_VERSION {
            self.stages = Timeline::from_overlapping(&self.stages, self.duration_ns).into_spans();
            self.version = TRACE_VERSION;
        }
        self
    }
}
