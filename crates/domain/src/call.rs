//! One call, independent of the dialect: after parsing, before any decision about it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    CacheMark, CallLabels, Conversation, DialectExtras, EndUser, FieldConcern, MediaPart, PromptItem,
    ReasoningOptions, ResponseFormat, SamplingRequest, ToEncode,
};

/// The API whose request and answer shapes are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI's API.
    OpenAi,
    /// Anthropic's API.
    Anthropic,
}

/// The endpoint of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/rerank`, `POST /v2/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
}

impl Endpoint {
    /// Returns the name that traces, metrics and entitlements use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat.completions",
            Self::Completions => "completions",
            Self::Messages => "messages",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
        }
    }

    /// Returns the dialect of the endpoint.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::ChatCompletions
            | Self::Completions
            | Self::Responses
            | Self::Embeddings
            | Self::Rerank
            | Self::Score => Dialect::OpenAi,
            Self::Messages => Dialect::Anthropic,
        }
    }
}

/// The input that is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A conversation, rendered with the model's template.
    Conversation(Conversation),
    /// One or more raw prompts. Each is answered `n` times.
    Raw(Vec<PromptItem>),
    /// Texts to encode. Each is answered with a vector or a score.
    Encode(ToEncode),
    /// A body that is forwarded to an upstream, which speaks the caller's dialect or another one.
    Relayed(RelayedBody),
}

/// A body that is forwarded in its caller's dialect. The receiver defines what it means. Only what limits, money and
/// rules need is known here.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayedBody {
    /// The body as received: one JSON object.
    pub body: Bytes,
    /// Approximate bytes of all strings in the body. The prompt's tokens are estimated from it.
    pub text_bytes: usize,
    /// Number of images, documents and sounds in the body.
    pub media: u32,
    /// Number of prompts in the body. Each is answered `n` times.
    pub prompts: u32,
    /// Whether the body has fields that are not forwarded unchanged: Headrace's own, and cache salts.
    pub has_own_fields: bool,
    /// What the body requests besides tokens. Usually empty.
    pub concerns: Vec<FieldConcern>,
    /// The places of the fields that later steps need. `None` if the body was not read since it was written.
    pub fields: Option<BodyFields>,
}

impl RelayedBody {
    /// Returns these facts with another body. The places of fields were those of the former body, so they are dropped.
    pub fn with_body(&self, body: Bytes) -> Self {
        Self { body, fields: None, ..self.clone() }
    }
}

/// The places of a relayed body's top-level fields that later steps need, and whether it has others. The pass that reads
/// the body records them, so that no later step searches the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BodyFields {
    /// The model's name.
    pub model: FieldSpan,
    /// Anthropic's system prompt.
    pub system: FieldSpan,
    /// The tools.
    pub tools: FieldSpan,
    /// The messages of a conversation.
    pub messages: FieldSpan,
    /// A raw prompt.
    pub prompt: FieldSpan,
    /// OpenAI's `response_format`.
    pub response_format: FieldSpan,
    /// Anthropic's `output_config`.
    pub output_config: FieldSpan,
    /// vLLM's `structured_outputs`.
    pub structured_outputs: FieldSpan,
    /// Whether every field is one of a call with a plain text answer: no tools, no format, no stop strings, no field that
    /// is not known. `false` for a body that is no object.
    pub only_plain: bool,
}

/// The place of a value in a body, in bytes. White space may precede the value. Empty if the body has no such value, or
/// if it is beyond the first 4 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FieldSpan {
    /// The first byte.
    pub start: u32,
    /// The byte behind the last one.
    pub end: u32,
}

impl FieldSpan {
    /// The span of a value between two bytes of a body.
    pub fn new(start: usize, end: usize) -> Self {
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) => Self { start, end },
            _ => Self::default(),
        }
    }

    /// The bytes of the value, without white space before it. `None` if there is no such value.
    pub fn of(self, body: &[u8]) -> Option<&[u8]> {
        let value = body.get(self.start as usize..self.end as usize)?.trim_ascii_start();
        (!value.is_empty()).then_some(value)
    }
}

/// Priority of a call over others (OpenAI's `service_tier`). It also decides the prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceTier {
    /// The default.
    #[default]
    Standard,
    /// Runs only when no other work waits.
    Flex,
    /// Like `Flex`, for a line of a batch. No body can request it. The batch runner sets it.
    Batch,
}

/// Origin of a conversation's message in what the caller sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageOrigin {
    /// In a separate parameter: Anthropic's `system`.
    System,
    /// In the list of messages.
    Message {
        /// Index of the message.
        index: u32,
        /// Index of the content block that this message begins with, if the caller's message became several.
        block: Option<u32>,
    },
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The endpoint, which decides the dialect of the answer.
    pub endpoint: Endpoint,
    /// The model name that the caller sent.
    pub model: String,
    /// The input that is answered.
    pub prompt: Prompt,
    /// Origin of each message of the conversation in what the caller sent. If empty, each message has its own index as
    /// its origin.
    pub origins: Vec<MessageOrigin>,
    /// How tokens are chosen.
    pub sampling: SamplingRequest,
    /// Whether the answer streams.
    pub stream: bool,
    /// Whether a streamed answer ends with its usage (`stream_options.include_usage`).
    pub include_usage: bool,
    /// Whether token ids come with the answer (vLLM's `return_token_ids`).
    pub return_token_ids: bool,
    /// Whether the answer carries the `headrace` block of stage timings and cost.
    pub explain: bool,
    /// Prefixes of the prompt that the cache should keep.
    pub cache_marks: Vec<CacheMark>,
    /// The caller's own cache salt. It can only narrow who shares cached prefixes.
    pub cache_salt: Option<String>,
    /// Time from arrival within which the first token must come. `None` for no limit.
    pub timeout: Option<Duration>,
    /// Priority of the call.
    pub tier: ServiceTier,
    /// The end user. `None` if the caller named none.
    pub user: Option<EndUser>,
    /// The labels of `metadata`. `None` if the caller sent none.
    pub labels: Option<Box<CallLabels>>,
    /// The form that the answer's text must match. `None` for free text.
    pub form: Option<Arc<ResponseFormat>>,
    /// How much the model reasons.
    pub reasoning: ReasoningOptions,
    /// Parameters that only the endpoint's dialect has.
    pub dialect: DialectExtras,
}

impl Call {
    /// A call with only a prompt, and defaults for everything else.
    pub fn of_prompt(endpoint: Endpoint, model: String, prompt: Prompt) -> Self {
        Self {
            endpoint,
            model,
            prompt,
            origins: Vec::new(),
            sampling: SamplingRequest::default(),
            stream: false,
            include_usage: false,
            return_token_ids: false,
            explain: false,
            cache_marks: Vec::new(),
            cache_salt: None,
            timeout: None,
            tier: ServiceTier::Standard,
            user: None,
            labels: None,
            form: None,
            reasoning: ReasoningOptions::default(),
            dialect: DialectExtras::None,
        }
    }

    /// Returns the path of a media part of message number `at` in what the caller sent: `messages[2].content[1]`.
    pub fn place(&self, at: usize, part: &MediaPart) -> String {
        let list = if self.endpoint == Endpoint::Responses { "input" } else { "messages" };
        let in_conversation = self.dialect.response().is_some_and(|ask| ask.conversation.is_some());
        match self.origin(at) {
            MessageOrigin::Message { index, .. } => format!("{list}[{index}].{}", part.place),
            // Stored messages are not part of this call's body.
            MessageOrigin::System if in_conversation => "conversation".to_owned(),
            MessageOrigin::System => "previous_response_id".to_owned(),
        }
    }

    /// Returns the origin of message number `at` in what the caller sent.
    pub fn origin(&self, at: usize) -> MessageOrigin {
        let same = MessageOrigin::Message { index: u32::try_from(at).unwrap_or(u32::MAX), block: None };
        self.origins.get(at).copied().unwrap_or(same)
    }
}
