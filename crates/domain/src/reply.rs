//! What comes back, piece by piece, in one form from which every dialect's stream and whole answer are made.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum FinishReason {
    /// The model's own end-of-text token, or a stop token id that the caller gave.
    Stop,
    /// A stop string of the caller's; Anthropic names it.
    StopString {
        /// The string that matched.
        matched: String,
    },
    /// `max_tokens` or the context window.
    Length,
    /// The answer ends in tool calls.
    ToolCalls,
    /// Moderation cut it off.
    ContentFilter,
}

impl FinishReason {
    /// The name that traces and metrics use; OpenAI's `finish_reason` too.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopString { .. } => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// An alternative at one position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// Its id.
    pub id: u32,
    /// The bytes it stands for; possibly not whole UTF-8.
    pub bytes: Vec<u8>,
    /// Natural log of its probability under the model (before temperature and penalties).
    pub logprob: f32,
}

/// A token with its log-probability and the likeliest alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Its id.
    pub id: u32,
    /// The bytes it stands for; possibly not whole UTF-8.
    pub bytes: Vec<u8>,
    /// Natural log of its probability; `None` for a prompt's first token, which nothing predicts.
    pub logprob: Option<f32>,
    /// The likeliest tokens there, best first.
    pub top: Vec<TopLogprob>,
}

/// A prompt as answers show it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownPrompt {
    /// Its text; empty where it is not to be repeated.
    pub text: String,
    /// Its ids.
    pub ids: Arc<[u32]>,
    /// One per token; empty where not asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// One piece of the answer after post-processing. `choice` counts over prompts × n.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyEvent {
    /// The prompt of a choice (where the call has `echo`, `prompt_logprobs` or `return_token_ids`); precedes its text.
    Prompt {
        /// Which answer.
        choice: u32,
        /// The prompt: one for all answers to it, as its scores may take megabytes.
        prompt: Arc<ShownPrompt>,
    },
    /// Text of the answer, whole UTF-8, stop strings withheld. May be empty where only ids or log-probabilities came.
    Text {
        /// Which answer.
        choice: u32,
        /// The text.
        text: String,
        /// Ids generated since the last event of this choice.
        ids: Vec<u32>,
        /// One per id where asked for, else empty.
        logprobs: Vec<TokenLogprob>,
    },
    /// Text of a reasoning section.
    Reasoning {
        /// Which answer.
        choice: u32,
        /// The text.
        text: String,
        /// Ids generated since the last event of this choice.
        ids: Vec<u32>,
        /// One per id where asked for, else empty.
        logprobs: Vec<TokenLogprob>,
    },
    /// The end of a reasoning section, with what vouches for it: opaque, and given back with the section in the next turn
    /// (Anthropic's `signature`). A section may have no text.
    ReasoningSignature {
        /// Which answer.
        choice: u32,
        /// The signature.
        signature: String,
    },
    /// A whole reasoning section that only the model's own server can read (Anthropic's `redacted_thinking`).
    RedactedReasoning {
        /// Which answer.
        choice: u32,
        /// The section, encrypted.
        data: String,
    },
    /// A tool call begins.
    ToolCallStart {
        /// Which answer.
        choice: u32,
        /// Which call of this answer, from 0.
        index: u32,
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a tool call's arguments: JSON text to be joined.
    ToolCallArguments {
        /// Which answer.
        choice: u32,
        /// Which call of this answer.
        index: u32,
        /// The next piece.
        fragment: String,
    },
    /// All that an encoder makes of a text: its vector, or one number, its score. The end of its answer follows.
    Encoded {
        /// Which text.
        choice: u32,
        /// The numbers.
        values: Arc<[f32]>,
    },
    /// An answer has ended.
    Finish {
        /// Which answer.
        choice: u32,
        /// Why.
        reason: FinishReason,
    },
}

impl ReplyEvent {
    /// Bytes of the texts in it, names and signatures included.
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
