//! One call as every dialect means it, after parsing and before anything was decided about it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    CacheMark, ClearTools, Cleared, Concern, Conversation, EndUser, Form, Media, PromptItem, ReasoningWish,
    ResponseAsk, SamplingRequest, ToEncode,
};

/// Whose request and answer shapes are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// What was called.
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
    /// The name that traces, metrics and entitlements use.
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

    /// The dialect spoken there.
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

/// What the answer continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A conversation, to be rendered with the model's template.
    Conversation(Conversation),
    /// One or more raw prompts, each answered `n` times.
    Raw(Vec<PromptItem>),
    /// Texts to be encoded, each answered with a vector or a score.
    Encode(ToEncode),
    /// A body for somebody who speaks its caller's dialect, or another one.
    Relayed(Relayed),
}

/// A body that is sent on, in its caller's dialect. What is in it means what its receiver says that it means; here only that
/// is known which limits, money and rules need.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayed {
    /// The body as it came: one JSON object.
    pub body: Bytes,
    /// Bytes of all strings in it, about: what a prompt's tokens are estimated from.
    pub text_bytes: usize,
    /// Images, documents and sounds in it.
    pub media: u32,
    /// Prompts in it that are answered `n` times each.
    pub prompts: u32,
    /// Whether it has fields that are not passed on as they came: Headrace's own, and salts of cached prefixes.
    pub has_own_fields: bool,
    /// What it asks for beside tokens. Usually empty.
    pub concerns: Vec<Concern>,
}

/// How a call stands to others (OpenAI's `service_tier`), and at which prices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceTier {
    /// The usual.
    #[default]
    Standard,
    /// Only when nothing else waits: work that has time.
    Flex,
    /// The same, as a line of a batch. No body says this: whoever runs a batch does.
    Batch,
}

/// Where a message of a conversation stands in what the caller sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageOrigin {
    /// In a parameter of its own: Anthropic's `system`.
    System,
    /// In the list of messages.
    Message {
        /// Which.
        index: u32,
        /// With which block of its content it begins, where that message became several.
        block: Option<u32>,
    },
}

/// What a call says of raw prompts beside their text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawWish {
    /// Control tokens that are spelt out in the prompt are taken as such.
    pub parse_special: bool,
    /// What follows behind the gap that the answer fills.
    pub suffix: Option<String>,
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// What was called, and so the dialect of the answer.
    pub endpoint: Endpoint,
    /// The model's name as asked for.
    pub model: String,
    /// What the answer continues.
    pub prompt: Prompt,
    /// Where each message of a conversation stands in what the caller sent. Empty: each stands where it stood.
    pub origins: Vec<MessageOrigin>,
    /// How tokens are chosen.
    pub sampling: SamplingRequest,
    /// Whether the answer streams.
    pub stream: bool,
    /// Whether a streamed answer ends with its usage (`stream_options.include_usage`).
    pub include_usage: bool,
    /// Whether ids come with the answer (vLLM's `return_token_ids`).
    pub return_token_ids: bool,
    /// Whether the prompt is repeated before the answer (completions).
    pub echo: bool,
    /// How raw prompts are read (completions).
    pub raw: RawWish,
    /// Whether the answer carries the `headrace` block of stage timings and cost.
    pub explain: bool,
    /// Whether the answer says why a cached prefix was missed (Anthropic's `diagnostics`).
    pub diagnoses: bool,
    /// Since which answer, by its id.
    pub previous_answer: Option<String>,
    /// Prefixes of its prompt that are to be kept.
    pub cache_marks: Vec<CacheMark>,
    /// Which results of tools are left out where the conversation has grown.
    pub clears: Option<Box<ClearTools>>,
    /// What was left out of it.
    pub cleared: Option<Cleared>,
    /// A caller's own salt: it can only narrow who shares cached prefixes.
    pub cache_salt: Option<String>,
    /// Within which time of its arrival its first token must come; `None`: whenever it comes.
    pub timeout: Option<Duration>,
    /// How it stands to others.
    pub tier: ServiceTier,
    /// Whom it is for; `None`: its caller did not say.
    pub user: Option<EndUser>,
    /// What the answer's text is held to; `None`: to nothing.
    pub form: Option<Arc<Form>>,
    /// How much it is to think.
    pub reasoning: ReasoningWish,
    /// What a call of the Responses API says beside that; `None` for every other call.
    pub response: Option<Arc<ResponseAsk>>,
}

impl Call {
    /// A call with nothing said but its prompt.
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
            echo: false,
            raw: RawWish::default(),
            explain: false,
            diagnoses: false,
            previous_answer: None,
            cache_marks: Vec::new(),
            clears: None,
            cleared: None,
            cache_salt: None,
            timeout: None,
            tier: ServiceTier::Standard,
            user: None,
            form: None,
            reasoning: ReasoningWish::default(),
            response: None,
        }
    }

    /// Where a part that is no text stands in what the caller sent, in message number `at`: `messages[2].content[1]`.
    pub fn place(&self, at: usize, part: &Media) -> String {
        let list = if self.endpoint == Endpoint::Responses { "input" } else { "messages" };
        let goes_on = self.response.as_ref().is_some_and(|ask| ask.conversation.is_some());
        match self.origin(at) {
            MessageOrigin::Message { index, .. } => format!("{list}[{index}].{}", part.place),
            // What was stored before stands nowhere in this call.
            MessageOrigin::System if goes_on => "conversation".to_owned(),
            MessageOrigin::System => "previous_response_id".to_owned(),
        }
    }

    /// Where message number `at` of the conversation stands in what the caller sent.
    pub fn origin(&self, at: usize) -> MessageOrigin {
        let same = MessageOrigin::Message { index: u32::try_from(at).unwrap_or(u32::MAX), block: None };
        self.origins.get(at).copied().unwrap_or(same)
    }
}
