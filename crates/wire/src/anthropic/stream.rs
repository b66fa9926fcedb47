//! Anthropic's stream of a message: one content block after another, each opened, filled and closed.
//!
//! Source: <https://docs.anthropic.com/en/api/messages-streaming>.

use std::collections::BTreeMap;

use bytes::BytesMut;
use headrace_domain::{
    Call, ClearedContext, Dialect, DialectExtras, Endpoint, FinishReason, ReplyEvent, Usage,
};

use crate::common::answer_id::{answer_id, write_explain};
use crate::common::diagnosis;
use crate::common::encoder::{EVENT_STREAM, KEEP_ALIVE, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;
use crate::json::writer;
use crate::json::writer::{raw, value};

pub(crate) struct AnthropicStream {
    meta: ReplyMeta,
    begun: bool,
    over: bool,
    /// The open block.
    open: Option<OpenBlockKind>,
    /// The index of the open block. If none is open, the index of the next one.
    index: u32,
    /// The blocks of tool calls, by the index of the call.
    calls: BTreeMap<u32, u32>,
    /// The text of thinking is left out, but its blocks are shown.
    hides_thinking: bool,
    /// The part of the prompt that was cleared. `None` if the call did not ask for clearing.
    cleared: Option<ClearedContext>,
    reason: Option<FinishReason>,
}

/// The caller of a tool. It is always the model, because no code runs here that could call tools.
pub(super) const CALLED_BY_MODEL: &str = ",\"caller\":{\"type\":\"direct\"}";

/// The kind of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlockKind {
    Text,
    Thinking,
    RedactedThinking,
    ToolUse,
}

impl AnthropicStream {
    pub(crate) fn new(call: &Call, meta: ReplyMeta) -> Self {
        Self {
            meta,
            begun: false,
            over: false,
            open: None,
            index: 0,
            calls: BTreeMap::new(),
            hides_thinking: call.reasoning.hidden,
            cleared: cleared(call),
            reason: None,
        }
    }

    /// Opens a block of text or thinking, unless one of that kind is open.
    fn continue_block(&mut self, kind: OpenBlockKind, out: &mut BytesMut) {
        if self.open == Some(kind) {
            return;
        }
        self.close_block(out);
        self.start_block(kind, out);
        raw(
            out,
            match kind {
                OpenBlockKind::Thinking => {
                    "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n"
                }
                _ => "{\"type\":\"text\",\"text\":\"\",\"citations\":null}}\n\n",
            },
        );
    }

    fn start_block(&mut self, kind: OpenBlockKind, out: &mut BytesMut) {
        self.open = Some(kind);
        raw(out, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
        value(out, &self.index);
        raw(out, ",\"content_block\":");
    }

    fn close_block(&mut self, out: &mut BytesMut) {
        if self.open.take().is_some() {
            raw(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
            value(out, &self.index);
            raw(out, "}\n\n");
            self.index = self.index.saturating_add(1);
        }
    }

    /// Ends a block of thinking, which may have no text.
    fn signature(&mut self, signature: &str, out: &mut BytesMut) {
        self.continue_block(OpenBlockKind::Thinking, out);
        write_delta(out, self.index, "\"signature_delta\",\"signature\":", signature);
        self.close_block(out);
    }

    /// Writes a redacted block, which comes whole.
    fn redacted(&mut self, data: &str, out: &mut BytesMut) {
        self.close_block(out);
        self.start_block(OpenBlockKind::RedactedThinking, out);
        raw(out, "{\"type\":\"redacted_thinking\",\"data\":");
        value(out, data);
        raw(out, "}}\n\n");
        self.close_block(out);
    }

    fn text(&mut self, kind: OpenBlockKind, text: &str, out: &mut BytesMut) {
        if text.is_empty() {
            return;
        }
        self.continue_block(kind, out);
        let field = match kind {
            OpenBlockKind::Thinking if self.hides_thinking => return,
            OpenBlockKind::Thinking => "\"thinking_delta\",\"thinking\":",
            _ => "\"text_delta\",\"text\":",
        };
        write_delta(out, self.index, field, text);
    }
}

fn write_delta(out: &mut BytesMut, index: u32, field: &str, text: &str) {
    raw(out, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    value(out, &index);
    raw(out, ",\"delta\":{\"type\":");
    raw(out, field);
    writer::text(out, text);
    raw(out, "}}\n\n");
}

/// Writes `{"input_tokens":…,"cache_creation_input_tokens":…,"cache_read_input_tokens":…,…,"output_tokens":…}`. Every
/// field of the dialect is present, because clients' types require it. Fields that are unknown or do not apply are
/// null.
pub(super) fn write_usage(out: &mut BytesMut, usage: &Usage) {
    raw(out, "{\"input_tokens\":");
    value(out, &usage.input);
    raw(out, ",\"cache_creation_input_tokens\":");
    value(out, &usage.cache_writes());
    raw(out, ",\"cache_read_input_tokens\":");
    value(out, &usage.cached_input);
    raw(out, ",\"cache_creation\":{\"ephemeral_5m_input_tokens\":");
    value(out, &usage.cache_write);
    raw(out, ",\"ephemeral_1h_input_tokens\":");
    value(out, &usage.cache_write_1h);
    raw(out, "},\"output_tokens\":");
    value(out, &usage.completion_tokens());
    raw(out, ",\"output_tokens_details\":{\"thinking_tokens\":");
    value(out, &usage.reasoning);
    raw(out, "},\"server_tool_use\":null,\"inference_geo\":null,\"service_tier\":\"standard\"}");
}

/// The part of a call's prompt that was cleared. `None` if the call did not ask for clearing.
pub(super) fn cleared(call: &Call) -> Option<ClearedContext> {
    match &call.dialect {
        DialectExtras::Messages(extras) if extras.clears.is_some() => {
            Some(extras.cleared.unwrap_or_default())
        }
        _ => None,
    }
}

/// Writes `,"context_management":{"applied_edits":[…]}`.
pub(super) fn write_cleared(out: &mut BytesMut, cleared: Option<ClearedContext>) {
    let Some(ClearedContext { tool_uses, input_tokens }) = cleared else { return };
    raw(out, ",\"context_management\":{\"applied_edits\":[");
    if tool_uses > 0 {
        raw(out, "{\"type\":\"clear_tool_uses_20250919\",\"cleared_tool_uses\":");
        value(out, &tool_uses);
        raw(out, ",\"cleared_input_tokens\":");
        value(out, &input_tokens);
        raw(out, "}");
    }
    raw(out, "]}");
}

/// Writes `"stop_reason":…,"stop_sequence":…`.
pub(super) fn write_stop(out: &mut BytesMut, reason: Option<&FinishReason>) {
    let (name, sequence) = match reason {
        None => (None, None),
        Some(FinishReason::Stop) => (Some("end_turn"), None),
        Some(FinishReason::StopString { matched }) => (Some("stop_sequence"), Some(matched)),
        Some(FinishReason::Length) => (Some("max_tokens"), None),
        Some(FinishReason::ToolCalls) => (Some("tool_use"), None),
        Some(FinishReason::ContentFilter) => (Some("refusal"), None),
    };
    raw(out, "\"stop_reason\":");
    value(out, &name);
    raw(out, ",\"stop_sequence\":");
    value(out, &sequence);
}

/// Writes `{"id":…,"type":"message","role":"assistant","model":…,"content":`, with the diagnosis of a cache miss if
/// requested.
pub(super) fn write_head(out: &mut BytesMut, meta: &ReplyMeta, usage: &Usage) {
    raw(out, "{\"id\":");
    value(out, &answer_id(Endpoint::Messages, meta.request_id));
    raw(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    value(out, &meta.model);
    if let Some(diagnosis) = &meta.diagnosis {
        diagnosis::write(out, diagnosis, usage);
    }
    raw(out, ",\"container\":null,\"stop_details\":null,\"content\":");
}

impl ReplyEncoder for AnthropicStream {
    fn begin(&mut self, prompt_usage: &Usage, out: &mut BytesMut) {
        if self.over || std::mem::replace(&mut self.begun, true) {
            return;
        }
        raw(out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
        write_head(out, &self.meta, prompt_usage);
        raw(out, "[],");
        write_stop(out, None);
        raw(out, ",\"usage\":");
        write_usage(out, prompt_usage);
        raw(out, "}}\n\n");
    }

    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut) {
        if self.over {
            return;
        }
        match event {
            // This dialect never shows a prompt.
            ReplyEvent::Prompt { .. } | ReplyEvent::Encoded { .. } => {}
            ReplyEvent::Text { text, .. } => self.text(OpenBlockKind::Text, text, out),
            ReplyEvent::Reasoning { text, .. } => self.text(OpenBlockKind::Thinking, text, out),
            ReplyEvent::ReasoningSignature { signature, .. } => self.signature(signature, out),
            ReplyEvent::RedactedReasoning { data, .. } => self.redacted(data, out),
            ReplyEvent::ToolCallStart { index, id, name, .. } => {
                self.close_block(out);
                self.start_block(OpenBlockKind::ToolUse, out);
                self.calls.insert(*index, self.index);
                raw(out, "{\"type\":\"tool_use\",\"id\":");
                value(out, id);
                raw(out, ",\"name\":");
                value(out, name);
                raw(out, ",\"input\":{}");
                raw(out, CALLED_BY_MODEL);
                raw(out, "}}\n\n");
            }
            ReplyEvent::ToolCallArguments { index, fragment, .. } => {
                if let Some(block) = self.calls.get(index) {
                    write_delta(out, *block, "\"input_json_delta\",\"partial_json\":", fragment);
                }
            }
            ReplyEvent::Finish { reason, .. } => {
                self.close_block(out);
                self.reason = Some(reason.clone());
            }
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.close_block(out);
        raw(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
        write_stop(out, self.reason.as_ref());
        raw(out, "},\"usage\":");
        write_usage(out, usage);
        write_cleared(out, self.cleared);
        write_explain(out, explain);
        raw(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        raw(out, "event: error\ndata: ");
        write_error(Dialect::Anthropic, facts, out);
        raw(out, "\n\n");
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        match (self.over, self.begun) {
            (true, _) => {}
            (false, true) => raw(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n"),
            // The first event of a stream must be `message_start`.
            (false, false) => raw(out, KEEP_ALIVE),
        }
    }

    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_writes_are_shown_where_there_are_some() {
        let usage = Usage {
            input: 5,
            cached_input: 16,
            cache_write: 30,
            cache_write_1h: 4,
            output: 2,
            reasoning: 1,
            web_searches: 0,
        };
        let mut out = BytesMut::new();
        write_usage(&mut out, &usage);
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            r#"{"input_tokens":5,"cache_creation_input_tokens":34,"cache_read_input_tokens":16,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":4},"output_tokens":3,"output_tokens_details":{"thinking_tokens":1},"server_tool_use":null,"inference_geo":null,"service_tier":"standard"}"#
        );
    }
}
