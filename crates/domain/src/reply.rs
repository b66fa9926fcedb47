//! Pieces of an answer, in the one form from which every dialect builds its stream and its whole answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum FinishReason {
    /// The model's end-of-text token, or a stop token id from the caller.
    Stop,
    /// A stop string from the caller. Anthropic's dialect names it.
    StopString {
        /// The string that matched.
        matched: String,
    },
    /// `max_tokens` or the context window.
    Length,
    /// The answer ends in tool calls.
    ToolCalls,
    /// Moderation cut the answer off.
    ContentFilter,
}

impl FinishReason {
    /// Returns the name that traces, metrics and OpenAI's `finish_reason` use.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopString { .. } => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// An alternative token at one position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// The token's id.
    pub id: u32,
    /// The token's bytes, which may not be whole UTF-8.
    pub bytes: Vec<u8>,
    /// Natural log of the token's probability under the model, before temperature and penalties.
    pub logprob: f32,
}

/// A token with its log-probability and the likeliest alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token's id.
    pub id: u32,
    /// The token's bytes, which may not be whole UTF-8.
    pub bytes: Vec<u8>,
    /// Natural log of the token's probability. `None` for a prompt's first token, which no token precedes.
    pub logprob: Option<f32>,
    /// The likeliest tokens at this position, best first.
    pub top: Vec<TopLogprob>,
}

/// A prompt as it is shown in answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownPrompt {
    /// The prompt's text. Empty if it is not repeated.
    pub text: String,
    /// The prompt's token ids.
    pub ids: Arc<[u32]>,
    /// One entry per token. Empty if the client did not ask for them.
    pub logprobs: Vec<TokenLogprob>,
}

/// One piece of the answer after post-processing. `choice` counts over prompts × n.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyEvent {
    /// The prompt of a choice, if the call has `echo`, `prompt_logprobs` or `return_token_ids`. It precedes the
    /// choice's text.
    Prompt {
        /// Index of the answer.
        choice: u32,
        /// The prompt. All answers to one prompt share it, because its scores may take megabytes.
        prompt: Arc<ShownPrompt>,
    },
    /// Text of the answer: whole UTF-8, without stop strings. May be empty if only ids or log-probabilities came.
    Text {
        /// Index of the answer.
        choice: u32,
        /// The text.
        text: String,
        /// Ids generated since the last event of this choice.
        ids: Vec<u32>,
        /// One entry per id. Empty if the client did not ask for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// Text of a reasoning section.
    Reasoning {
        /// Index of the answer.
        choice: u32,
        /// The text.
        text: String,
        /// Ids generated since the last event of this choice.
        ids: Vec<u32>,
        /// One entry per id. Empty if the client did not ask for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// The end of a reasoning section, with an opaque signature (Anthropic's `signature`). The client sends both back
    /// in the next turn. A section may have no text.
    ReasoningSignature {
        /// Index of the answer.
        choice: u32,
        /// The signature.
        signature: String,
    },
    /// A whole reasoning section that only the model's own server can read (Anthropic's `redacted_thinking`).
    RedactedReasoning {
        /// Index of the answer.
        choice: u32,
        /// The section, encrypted.
        data: String,
    },
    /// The start of a tool call.
    ToolCallStart {
        /// Index of the answer.
        choice: u32,
        /// Index of the call within this answer, from 0.
        index: u32,
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a tool call's arguments: JSON text to be joined.
    ToolCallArguments {
        /// Index of the answer.
        choice: u32,
        /// Index of the call within this answer.
        index: u32,
        /// The next piece of the text.
        fragment: String,
    },
    /// The encoder's whole result for one text: its vector, or its score as one number. [`ReplyEvent::Finish`] follows.
    Encoded {
        /// Index of the text.
        choice: u32,
        /// The numbers.
        values: Arc<[f32]>,
    },
    /// The end of an answer.
    Finish {
        /// Index of the answer.
        choice: u32,
        /// Why it ended.
        reason: FinishReason,
    },
}

impl ReplyEvent {
    /// Returns the bytes of all texts in the event, including names and signatures.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } | Self::Reasoning { text, .. } => text.len(),
            Self::ReasoningSignature { signature, .. } => signature.len(),
            Self::RedactedReasoning { data, .. } => data.len(),
            Self::ToolCallStart { id, name, .. } => id.len() + name.len(),
            Self::ToolCallArguments { fragment, .. } => fragment.len(),
            Self::Prompt { .. } | Self::Encoded { .. } | Self::Finish { .. } => 0,
        }
    }
}
