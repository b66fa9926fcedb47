//! An answer under construction, as items. Stream events and whole answers are both written from it. Knows no stream
//! events.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{Call, Endpoint, FinishReason, Prompt, ResponseAsk, TokenLogprob, Usage};

use super::sealed::SealedReasoning;
use crate::common::answer_id::{answer_id, write_explain};
use crate::common::custom::CustomInputReader;
use crate::common::diagnosis::write_cache_diagnostics;
use crate::common::encoder::ReplyMeta;
use crate::common::error::ErrorFacts;
use crate::json::writer::{chat_logprobs, list, raw, value};

/// The items so far, and the facts about the answer as a whole.
pub(super) struct ResponseAnswer {
    meta: ReplyMeta,
    ask: Arc<ResponseAsk>,
    /// The constant fields between the output and the usage.
    sampling: String,
    custom_tools: BTreeSet<String>,
    pub(super) items: Vec<AnswerItem>,
    pub(super) reason: Option<FinishReason>,
    completed_at: Option<u64>,
}

/// One item of the output.
pub(super) struct AnswerItem {
    pub(super) id: String,
    pub(super) body: ItemBody,
    pub(super) status: ItemStatus,
}

/// The status of an item or of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl ItemStatus {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// The content of an item.
pub(super) enum ItemBody {
    Message { text: String, logprobs: Vec<TokenLogprob> },
    Reasoning { text: String, foreign: Option<String> },
    Call(ToolCall),
}

/// A tool call.
pub(super) struct ToolCall {
    pub(super) index: u32,
    pub(super) call_id: String,
    pub(super) name: String,
    /// JSON, or the text for a custom tool.
    pub(super) arguments: String,
    /// Extracts the text from what a model writes for a custom tool. `None` if the tool takes JSON.
    pub(super) text: Option<CustomInputReader>,
}

impl ToolCall {
    /// Takes a piece of what the model wrote. Returns what it adds to the arguments.
    pub(super) fn push<'f>(&mut self, fragment: &'f str) -> Cow<'f, str> {
        let piece = match &mut self.text {
            Some(text) => Cow::Owned(text.push(fragment)),
            None => Cow::Borrowed(fragment),
        };
        self.arguments.push_str(&piece);
        piece
    }

    /// Ends the arguments. Returns the text that was held back.
    pub(super) fn finish(&mut self) -> String {
        let left = self.text.as_mut().map(CustomInputReader::finish).unwrap_or_default();
        self.arguments.push_str(&left);
        left
    }

    pub(super) const fn is_custom(&self) -> bool {
        self.text.is_some()
    }
}

impl ResponseAnswer {
    pub(super) fn new(call: &Call, meta: ReplyMeta) -> Self {
        let sampling = &call.sampling;
        let shown = format!(
            "\"temperature\":{},\"top_p\":{},\"presence_penalty\":{},\"frequency_penalty\":{},",
            sampling.temperature.unwrap_or(meta.chosen.temperature),
            sampling.top_p.unwrap_or(meta.chosen.top_p),
            sampling.presence_penalty.unwrap_or(0.0),
            sampling.frequency_penalty.unwrap_or(0.0),
        );
        let custom_tools = match &call.prompt {
            Prompt::Conversation(conversation) => {
                let custom = conversation.tools.iter().filter(|tool| tool.custom.is_some());
                custom.map(|tool| tool.name.clone()).collect()
            }
            Prompt::Raw(_) | Prompt::Encode(_) | Prompt::Relayed(_) => BTreeSet::new(),
        };
        Self {
            meta,
            ask: call.dialect.response().cloned().unwrap_or_default(),
            sampling: shown,
            custom_tools,
            items: Vec::new(),
            reason: None,
            completed_at: None,
        }
    }

    pub(super) fn ask(&self) -> &ResponseAsk {
        &self.ask
    }

    pub(super) fn ended_at(&mut self, unix_s: u64) {
        self.completed_at = Some(unix_s);
    }

    /// Adds an item. Its id contains the request's id and the item's position.
    pub(super) fn push(&mut self, body: ItemBody) -> usize {
        let prefix = match &body {
            ItemBody::Message { .. } => "msg",
            ItemBody::Reasoning { .. } => "rs",
            ItemBody::Call(call) if call.is_custom() => "ctc",
            ItemBody::Call(_) => "fc",
        };
        let place = self.items.len();
        let id = format!("{prefix}_{:032x}{place:04x}", self.meta.request_id.bits());
        self.items.push(AnswerItem { id, body, status: ItemStatus::InProgress });
        place
    }

    pub(super) fn call(&self, index: u32, call_id: &str, name: &str) -> ItemBody {
        let text = self.custom_tools.contains(name).then(CustomInputReader::default);
        let (call_id, name) = (call_id.to_owned(), name.to_owned());
        ItemBody::Call(ToolCall { index, call_id, name, arguments: String::new(), text })
    }

    /// The status of an item with which the answer ends.
    pub(super) fn last_status(&self) -> ItemStatus {
        match self.reason {
            Some(FinishReason::Length | FinishReason::ContentFilter) => ItemStatus::Incomplete,
            _ => ItemStatus::Completed,
        }
    }

    /// The reason why the answer is incomplete. `None` if it is complete.
    fn incomplete(&self) -> Option<&'static str> {
        match self.reason {
            Some(FinishReason::Length) => Some("max_output_tokens"),
            Some(FinishReason::ContentFilter) => Some("content_filter"),
            _ => None,
        }
    }

    /// Writes the response as an object.
    pub(super) fn write(&self, status: ItemStatus, end: &ResponseEnd<'_>, out: &mut BytesMut) {
        self.write_as(status.name(), end, out);
    }

    /// Writes the same object with a status that no stream has.
    pub(super) fn write_as(&self, status: &str, end: &ResponseEnd<'_>, out: &mut BytesMut) {
        raw(out, "{\"id\":");
        value(out, &answer_id(Endpoint::Responses, self.meta.request_id));
        raw(out, ",\"object\":\"response\",\"created_at\":");
        value(out, &self.meta.created_unix_s);
        raw(out, ",\"completed_at\":");
        value(out, &self.completed_at.filter(|_| status == ItemStatus::Completed.name()));
        raw(out, ",\"status\":");
        value(out, status);
        raw(out, ",\"error\":");
        match end.failed {
            Some(facts) => write_failure(out, facts),
            None => raw(out, "null"),
        }
        raw(out, ",\"incomplete_details\":");
        match self.incomplete().filter(|_| status == ItemStatus::Incomplete.name()) {
            Some(reason) => {
                raw(out, "{\"reason\":");
                value(out, reason);
                raw(out, "}");
            }
            None => raw(out, "null"),
        }
        raw(out, ",\"model\":");
        value(out, &self.meta.model);
        raw(out, ",\"output\":[");
        list(out, &self.items, |out, item| self.write_item(item, out));
        raw(out, "],");
        raw(out, &self.sampling);
        raw(out, &self.ask.echo);
        raw(out, "\"usage\":");
        match end.usage {
            Some(usage) => write_usage(out, usage),
            None => raw(out, "null"),
        }
        if let (Some(diagnosis), Some(usage)) = (&self.meta.diagnosis, end.usage) {
            write_cache_diagnostics(out, diagnosis, usage);
        }
        if !self.ask.skipped_tools.is_empty() {
            raw(out, ",\"skipped_tools\":");
            value(out, &self.ask.skipped_tools);
        }
        write_explain(out, end.explain);
        raw(out, "}");
    }

    pub(super) fn write_item(&self, item: &AnswerItem, out: &mut BytesMut) {
        raw(out, "{\"id\":");
        value(out, &item.id);
        let begun = item.status != ItemStatus::InProgress;
        match &item.body {
            ItemBody::Message { text, logprobs } => {
                raw(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
                if begun {
                    write_text(out, text, logprobs);
                }
                raw(out, "]");
            }
            ItemBody::Reasoning { text, foreign } => {
                self.write_reasoning(out, begun, text, foreign.as_deref())
            }
            ItemBody::Call(call) => write_call(out, call, begun),
        }
        raw(out, ",\"status\":");
        value(out, item.status.name());
        raw(out, "}");
    }

    fn write_reasoning(&self, out: &mut BytesMut, begun: bool, text: &str, foreign: Option<&str>) {
        raw(out, ",\"type\":\"reasoning\",\"summary\":[");
        let shown = begun && !text.is_empty();
        if shown && self.ask.reasoning_summary {
            write_part(out, "summary_text", text);
        }
        raw(out, "],\"content\":[");
        if shown && !self.ask.reasoning_summary {
            write_part(out, "reasoning_text", text);
        }
        raw(out, "]");
        let sealed = match foreign {
            Some(data) => Some(SealedReasoning::Foreign(data.to_owned())),
            None => (begun && self.ask.sealed_reasoning).then(|| SealedReasoning::Text(text.to_owned())),
        };
        raw(out, ",\"encrypted_content\":");
        value(out, &sealed.map(|sealed| sealed.to_field()));
    }
}

/// The facts that are known at the end of an answer.
#[derive(Default)]
pub(super) struct ResponseEnd<'a> {
    pub(super) usage: Option<&'a Usage>,
    pub(super) failed: Option<&'a ErrorFacts>,
    pub(super) explain: Option<&'a serde_json::Value>,
}

/// Writes a text part.
pub(super) fn write_text(out: &mut BytesMut, text: &str, logprobs: &[TokenLogprob]) {
    raw(out, "{\"type\":\"output_text\",\"text\":");
    value(out, text);
    raw(out, ",\"annotations\":[],\"logprobs\":[");
    chat_logprobs(out, logprobs);
    raw(out, "]}");
}

/// Writes a part that has only its text.
pub(super) fn write_part(out: &mut BytesMut, kind: &str, text: &str) {
    raw(out, "{\"type\":");
    value(out, kind);
    raw(out, ",\"text\":");
    value(out, text);
    raw(out, "}");
}

fn write_call(out: &mut BytesMut, call: &ToolCall, begun: bool) {
    raw(out, if call.is_custom() { ",\"type\":\"custom_tool_call\"" } else { ",\"type\":\"function_call\"" });
    raw(out, ",\"call_id\":");
    value(out, &call.call_id);
    raw(out, ",\"name\":");
    value(out, &call.name);
    raw(out, if call.is_custom() { ",\"input\":" } else { ",\"arguments\":" });
    value(out, if begun { call.arguments.as_str() } else { "" });
}

/// Writes `{"code":…,"message":…}`. OpenAI has two codes for failures that are not the caller's fault. All other
/// failures have codes of our own.
fn write_failure(out: &mut BytesMut, facts: &ErrorFacts) {
    let code = match facts.status {
        429 => "rate_limit_exceeded",
        status if status >= 500 => "server_error",
        _ => facts.code.name(),
    };
    raw(out, "{\"code\":");
    value(out, code);
    raw(out, ",\"message\":");
    value(out, &format!("{} ({})", facts.message, facts.code.name()));
    raw(out, "}");
}

fn write_usage(out: &mut BytesMut, usage: &Usage) {
    raw(out, "{\"input_tokens\":");
    value(out, &usage.prompt_tokens());
    raw(out, ",\"input_tokens_details\":{\"cached_tokens\":");
    value(out, &usage.cached_input);
    raw(out, ",\"cache_write_tokens\":");
    value(out, &usage.cache_writes());
    raw(out, "},\"output_tokens\":");
    value(out, &usage.completion_tokens());
    raw(out, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    value(out, &usage.reasoning);
    raw(out, "},\"total_tokens\":");
    value(out, &usage.total());
    raw(out, "}");
}
