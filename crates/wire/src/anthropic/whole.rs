//! Anthropic's whole message. Events are gathered into blocks and written at the end.
//!
//! Source: <https://docs.anthropic.com/en/api/messages>.

use bytes::BytesMut;
use headrace_domain::{Call, ClearedContext, Dialect, FinishReason, ReplyEvent, Usage};

use crate::anthropic::stream::{
    CALLED_BY_MODEL, cleared, write_cleared, write_head, write_stop, write_usage,
};
use crate::common::answer_id::write_explain;
use crate::common::encoder::{JSON, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;
use crate::json::writer::{list, raw, value};

pub(crate) struct AnthropicWhole {
    meta: ReplyMeta,
    blocks: Vec<WholeBlock>,
    /// The text of thinking is left out, but its blocks are shown.
    hides_thinking: bool,
    /// The part of the prompt that was cleared. `None` if the call did not ask for clearing.
    cleared: Option<ClearedContext>,
    reason: Option<FinishReason>,
    over: bool,
}

enum WholeBlock {
    Text(String),
    /// The text and, once the block is over, its signature.
    Thinking(String, Option<String>),
    RedactedThinking(String),
    ToolUse {
        index: u32,
        id: String,
        name: String,
        input: String,
    },
}

impl AnthropicWhole {
    pub(crate) fn new(call: &Call, meta: ReplyMeta) -> Self {
        let hides_thinking = call.reasoning.hidden;
        Self { meta, blocks: Vec::new(), hides_thinking, cleared: cleared(call), reason: None, over: false }
    }

    fn text(&mut self, text: &str) {
        match self.blocks.last_mut() {
            _ if text.is_empty() => {}
            Some(WholeBlock::Text(open)) => open.push_str(text),
            _ => self.blocks.push(WholeBlock::Text(text.to_owned())),
        }
    }

    fn thinking(&mut self, text: &str) {
        let shown = if self.hides_thinking { "" } else { text };
        match self.blocks.last_mut() {
            _ if text.is_empty() => {}
            Some(WholeBlock::Thinking(open, None)) => open.push_str(shown),
            _ => self.blocks.push(WholeBlock::Thinking(shown.to_owned(), None)),
        }
    }

    fn signature(&mut self, signature: &str) {
        match self.blocks.last_mut() {
            Some(WholeBlock::Thinking(_, open @ None)) => *open = Some(signature.to_owned()),
            _ => self.blocks.push(WholeBlock::Thinking(String::new(), Some(signature.to_owned()))),
        }
    }

    fn arguments(&mut self, call: u32, fragment: &str) {
        let input = self.blocks.iter_mut().rev().find_map(|block| match block {
            WholeBlock::ToolUse { index, input, .. } if *index == call => Some(input),
            _ => None,
        });
        if let Some(input) = input {
            input.push_str(fragment);
        }
    }
}

impl WholeBlock {
    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Text(text) => {
                raw(out, "{\"type\":\"text\",\"text\":");
                value(out, text);
                raw(out, ",\"citations\":null");
            }
            Self::Thinking(text, signature) => {
                raw(out, "{\"type\":\"thinking\",\"thinking\":");
                value(out, text);
                raw(out, ",\"signature\":");
                value(out, signature.as_deref().unwrap_or_default());
            }
            Self::RedactedThinking(data) => {
                raw(out, "{\"type\":\"redacted_thinking\",\"data\":");
                value(out, data);
            }
            Self::ToolUse { id, name, input, .. } => {
                raw(out, "{\"type\":\"tool_use\",\"id\":");
                value(out, id);
                raw(out, ",\"name\":");
                value(out, name);
                raw(out, ",\"input\":");
                write_input(out, input);
                raw(out, CALLED_BY_MODEL);
            }
        }
        raw(out, "}");
    }
}

/// Writes the arguments as the model wrote them. If they are not JSON (cut off at `max_tokens`, or nonsense), they are
/// written as a string, so that nothing is lost and the body stays JSON.
fn write_input(out: &mut BytesMut, input: &str) {
    let trimmed = input.trim();
    if trimmed.is_empty() {
        raw(out, "{}");
    } else if serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
        raw(out, trimmed);
    } else {
        value(out, input);
    }
}

impl ReplyEncoder for AnthropicWhole {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, _out: &mut BytesMut) {
        if self.over {
            return;
        }
        match event {
            ReplyEvent::Prompt { .. } | ReplyEvent::Encoded { .. } => {}
            ReplyEvent::Text { text, .. } => self.text(text),
            ReplyEvent::Reasoning { text, .. } => self.thinking(text),
            ReplyEvent::ReasoningSignature { signature, .. } => self.signature(signature),
            ReplyEvent::RedactedReasoning { data, .. } => {
                self.blocks.push(WholeBlock::RedactedThinking(data.clone()));
            }
            ReplyEvent::ToolCallStart { index, id, name, .. } => self.blocks.push(WholeBlock::ToolUse {
                index: *index,
                id: id.clone(),
                name: name.clone(),
                input: String::new(),
            }),
            ReplyEvent::ToolCallArguments { index, fragment, .. } => self.arguments(*index, fragment),
            ReplyEvent::Finish { reason, .. } => self.reason = Some(reason.clone()),
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        write_head(out, &self.meta, usage);
        raw(out, "[");
        list(out, &self.blocks, |out, block| block.write(out));
        raw(out, "],");
        write_stop(out, self.reason.as_ref());
        raw(out, ",\"usage\":");
        write_usage(out, usage);
        write_cleared(out, self.cleared);
        write_explain(out, explain);
        raw(out, "}");
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.over, true) {
            write_error(Dialect::Anthropic, facts, out);
        }
    }

    fn keep_alive(&mut self, _out: &mut BytesMut) {}

    fn content_type(&self) -> &'static str {
        JSON
    }
}
