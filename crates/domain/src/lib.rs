//! Vocabulary that every crate shares: ids, money, tokens, conversations, sampling, replies, time and the trace record.
//! Plain data that checks itself. No I/O, no clock except [`SystemClock`], no HTTP, no kernels.

mod admin_code;
mod attempt;
mod beside;
mod block_key;
mod cache_comparison;
mod cache_mark;
mod call;
mod call_content;
mod call_labels;
mod client_address;
mod clock;
mod code;
mod concern;
mod content_verdict;
mod conversation;
mod dialect_extras;
mod encode;
mod end_user;
mod forgotten_name;
mod forgotten_record;
mod holder_tiers;
mod http_date;
mod id;
mod media;
mod money;
mod record_policy;
mod record_verdicts;
mod region;
mod reply;
mod response;
pub mod rfc3339;
mod round;
mod sampling;
mod sent_answer;
mod shadow;
mod shown;
mod stage;
mod structure;
mod timeline;
mod token_user;
mod trace;
mod trace_sink;
mod traceparent;
mod unseen;
mod usage;
mod worker_job;

pub use admin_code::AdminCode;
pub use attempt::{Attempt, AttemptOutcome, ContinuedAnswer};
pub use beside::{BilledLine, BilledPrices, ConcurrentWork, ConnectionTrace, WorkAhead};
pub use block_key::{BLOCK_TOKENS, BlockKey, CacheLabel, CacheSalt, PrefixKeys};
pub use cache_comparison::CacheComparison;
pub use cache_mark::{CacheLife, CacheMark, CacheMarkAt, CachePin, HeldPrefix};
pub use call::{
    BodyFields, Call, Dialect, Endpoint, FieldSpan, MessageOrigin, Prompt, RelayedBody, ServiceTier,
};
pub use call_content::{CallContent, ContentSink};
pub use call_labels::CallLabels;
pub use client_address::{AskedAddress, ClientAddress, ClientAddressPolicy, ClientNetwork};
pub use clock::{Clock, ManualClock, SteadyClock, SystemClock, UnixNanos};
pub use code::{Code, ErrorKind};
pub use concern::{ConcernKind, FieldConcern};
pub use content_verdict::{ContentPlace, ContentVerdict, JudgeUse, ModerationOutcome};
pub use conversation::{
    ClearTools, ClearTrigger, ClearedContext, Conversation, CustomInput, Message, Role, TextPlace, Tool,
    ToolCall, ToolChoice,
};
pub use dialect_extras::{CompletionsExtras, DialectExtras, MessagesExtras};
pub use encode::{EncodeText, EncodeWish, PromptItem, ScoreWish, ToEncode, VectorWish};
pub use end_user::EndUser;
pub use forgotten_name::{FORGOTTEN, ForgottenName};
pub use holder_tiers::HolderTiers;
pub use http_date::HttpDate;
pub use id::{
    BudgetName, HoldId, IdError, KeyId, ModelName, OrgId, ProjectId, Region, RequestId, TierName, UserId,
};
pub use media::{MediaKind, MediaPart, MediaSource};
pub use money::{MoneyError, NanoDollars, NanoDollarsPerMillion, Rounding};
pub use record_policy::{RecordLevel, RecordPolicy, RecordRules};
pub use region::Residency;
pub use reply::{FinishReason, ReplyEvent, ShownPrompt, TokenLogprob, TopLogprob};
pub use response::ResponseAsk;
pub use round::{RoundOutcome, RoundTimes, TraceRound};
pub use sampling::{Sampling, SamplingDefaults, SamplingRequest, Seed};
pub use sent_answer::{SentAnswer, Sha256Hash};
pub use shadow::{ShadowComparison, ShadowOf, ShadowedCall};
pub use shown::steers_terminals;
pub use stage::{Stage, StageSpan};
pub use structure::{FormTag, GrammarSyntax, JsonForm, ReasoningOptions, ResponseFormat, TaggedForm};
pub use timeline::{EngineRun, EngineSeen, ReaderPauses, Timeline, is_partition};
pub use token_user::TokenUser;
pub use trace::{
    CacheMiss, CallOutcome, EngineTrace, KeptAnswers, MissReason, PromptPlace, TRACE_VERSION, TraceRecord,
    TracedDiagnosis, TracedFailure, TracedRefusal,
};
pub use trace_sink::{NoTrace, TraceSink};
pub use traceparent::parse_traceparent;
pub use unseen::{is_blank, is_ignorable};
pub use usage::{PriceTier, TokenClass, Usage, UsageSource};
pub use worker_job::{WORKER_JOB_KEY, WorkerJob};
