//! The stream of a response. Each item is added, filled and completed under one id, and every event is numbered.
//!
//! Source: <https://platform.openai.com/docs/api-reference/responses-streaming>.

use bytes::{Bytes, BytesMut};
use headrace_domain::{Call, Dialect, ReplyEvent, TokenLogprob, Usage};

use super::answer::{AnswerItem, ItemBody, ItemStatus, ResponseAnswer, ResponseEnd, write_part, write_text};
use super::gathered::GatheredDelta;
use crate::common::encoder::{EVENT_STREAM, KEEP_ALIVE, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;
use crate::json::writer::{chat_logprobs, raw, value};

/// Encodes a response as a stream.
pub(crate) struct ResponseStream {
    answer: ResponseAnswer,
    sequence: u64,
    /// The open item.
    open: Option<usize>,
    begun: bool,
    over: bool,
    /// The client received another server's bytes.
    passed: bool,
    /// Whether the response is kept as an object.
    keeps: bool,
    kept: Option<Bytes>,
}

/// Writes the start of an event, up to its fields.
fn open_event(sequence: &mut u64, name: &str, out: &mut BytesMut) {
    raw(out, "event: ");
    raw(out, name);
    raw(out, "\ndata: {\"type\":\"");
    raw(out, name);
    raw(out, "\",\"sequence_number\":");
    value(out, sequence);
    *sequence = sequence.saturating_add(1);
}

const END: &str = "}\n\n";

impl ResponseStream {
    /// Creates the encoder of a call's answer.
    pub(crate) fn new(call: &Call, meta: ReplyMeta) -> Self {
        let answer = ResponseAnswer::new(call, meta);
        Self {
            keeps: answer.ask().store,
            answer,
            sequence: 0,
            open: None,
            begun: false,
            over: false,
            passed: false,
            kept: None,
        }
    }

    /// Writes an event with the whole response.
    fn response(&mut self, name: &str, status: ItemStatus, end: &ResponseEnd<'_>, out: &mut BytesMut) {
        open_event(&mut self.sequence, name, out);
        raw(out, ",\"response\":");
        let from = out.len();
        self.answer.write(status, end, out);
        if status != ItemStatus::InProgress && self.keeps {
            self.kept = out.get(from..).map(Bytes::copy_from_slice);
        }
        raw(out, END);
    }

    fn start(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.begun, true) {
            self.response("response.created", ItemStatus::InProgress, &ResponseEnd::default(), out);
            self.response("response.in_progress", ItemStatus::InProgress, &ResponseEnd::default(), out);
        }
    }

    /// Writes an event with a whole item.
    fn whole_item(&mut self, name: &str, at: usize, out: &mut BytesMut) {
        let Some(item) = self.answer.items.get(at) else { return };
        open_event(&mut self.sequence, name, out);
        raw(out, ",\"output_index\":");
        value(out, &at);
        raw(out, ",\"item\":");
        self.answer.write_item(item, out);
        raw(out, END);
    }

    /// Writes the start of an event about an item. Its fields follow.
    fn of_item(sequence: &mut u64, name: &str, (at, item): (usize, &AnswerItem), out: &mut BytesMut) {
        open_event(sequence, name, out);
        raw(out, ",\"item_id\":");
        value(out, &item.id);
        raw(out, ",\"output_index\":");
        value(out, &at);
    }

    /// Adds an item, and its part if it has parts.
    fn add(&mut self, at: usize, out: &mut BytesMut) {
        self.open = Some(at);
        self.whole_item("response.output_item.added", at, out);
        let (names, is_summary) = (self.part_names(at), self.is_summary(at));
        let (Some(names), Some(item)) = (names, self.answer.items.get(at)) else { return };
        Self::of_item(&mut self.sequence, names.added, (at, item), out);
        raw(out, names.index);
        raw(out, ",\"part\":");
        write_empty_part(out, item, is_summary);
        raw(out, END);
    }

    fn delta(&mut self, at: usize, text: &str, logprobs: &[TokenLogprob], out: &mut BytesMut) {
        if text.is_empty() && logprobs.is_empty() {
            return;
        }
        let names = self.part_names(at);
        let Some(item) = self.answer.items.get(at) else { return };
        let name = match (&names, &item.body) {
            (Some(names), _) => names.delta,
            (None, ItemBody::Call(call)) if call.is_custom() => "response.custom_tool_call_input.delta",
            (None, _) => "response.function_call_arguments.delta",
        };
        Self::of_item(&mut self.sequence, name, (at, item), out);
        raw(out, names.as_ref().map_or("", |names| names.index));
        raw(out, ",\"delta\":");
        value(out, text);
        if matches!(item.body, ItemBody::Message { .. }) {
            raw(out, ",\"logprobs\":[");
            chat_logprobs(out, logprobs);
            raw(out, "]");
        }
        raw(out, END);
    }

    /// Completes the open item.
    fn close(&mut self, status: ItemStatus, out: &mut BytesMut) {
        let Some(at) = self.open.take() else { return };
        let left = self.answer.end(at, status);
        self.delta(at, &left, &[], out);
        let (names, is_summary) = (self.part_names(at), self.is_summary(at));
        let Some(item) = self.answer.items.get(at) else { return };
        let sequence = &mut self.sequence;
        match &item.body {
            ItemBody::Message { text, logprobs } => {
                Self::of_item(sequence, "response.output_text.done", (at, item), out);
                raw(out, ",\"content_index\":0,\"text\":");
                value(out, text);
                raw(out, ",\"logprobs\":[");
                chat_logprobs(out, logprobs);
                raw(out, "]}\n\n");
            }
            ItemBody::Reasoning { text, .. } => {
                if let Some(names) = &names {
                    Self::of_item(sequence, names.done, (at, item), out);
                    raw(out, names.index);
                    raw(out, ",\"text\":");
                    value(out, text);
                    raw(out, END);
                }
            }
            ItemBody::Call(call) if call.is_custom() => {
                Self::of_item(sequence, "response.custom_tool_call_input.done", (at, item), out);
                raw(out, ",\"input\":");
                value(out, &call.arguments);
                raw(out, END);
            }
            ItemBody::Call(call) => {
                Self::of_item(sequence, "response.function_call_arguments.done", (at, item), out);
                raw(out, ",\"name\":");
                value(out, &call.name);
                raw(out, ",\"arguments\":");
                value(out, &call.arguments);
                raw(out, END);
            }
        }
        if let Some(names) = names {
            Self::of_item(sequence, names.part_done, (at, item), out);
            raw(out, names.index);
            raw(out, ",\"part\":");
            match &item.body {
                ItemBody::Message { text, logprobs } => write_text(out, text, logprobs),
                ItemBody::Reasoning { text, .. } => {
                    write_part(out, if is_summary { "summary_text" } else { "reasoning_text" }, text);
                }
                ItemBody::Call(_) => {}
            }
            raw(out, END);
        }
        self.whole_item("response.output_item.done", at, out);
    }

    fn is_summary(&self, at: usize) -> bool {
        let is_thought = |item: &AnswerItem| matches!(item.body, ItemBody::Reasoning { .. });
        self.answer.ask().reasoning_summary && self.answer.items.get(at).is_some_and(is_thought)
    }

    /// The names of the events for an item's part. `None` if the item has no part.
    fn part_names(&self, at: usize) -> Option<&'static PartNames> {
        match &self.answer.items.get(at)?.body {
            ItemBody::Message { .. } => Some(&OUTPUT_TEXT),
            ItemBody::Reasoning { foreign: Some(_), .. } | ItemBody::Call(_) => None,
            ItemBody::Reasoning { .. } if self.is_summary(at) => Some(&SUMMARY),
            ItemBody::Reasoning { .. } => Some(&REASONING_TEXT),
        }
    }
}

/// Names of the events of a part.
struct PartNames {
    added: &'static str,
    delta: &'static str,
    done: &'static str,
    part_done: &'static str,
    index: &'static str,
}

const OUTPUT_TEXT: PartNames = PartNames {
    added: "response.content_part.added",
    delta: "response.output_text.delta",
    done: "response.output_text.done",
    part_done: "response.content_part.done",
    index: ",\"content_index\":0",
};

const REASONING_TEXT: PartNames =
    PartNames { delta: "response.reasoning_text.delta", done: "response.reasoning_text.done", ..OUTPUT_TEXT };

const SUMMARY: PartNames = PartNames {
    added: "response.reasoning_summary_part.added",
    delta: "response.reasoning_summary_text.delta",
    done: "response.reasoning_summary_text.done",
    part_done: "response.reasoning_summary_part.done",
    index: ",\"summary_index\":0",
};

fn write_empty_part(out: &mut BytesMut, item: &AnswerItem, is_summary: bool) {
    match &item.body {
        ItemBody::Message { .. } => write_text(out, "", &[]),
        _ => write_part(out, if is_summary { "summary_text" } else { "reasoning_text" }, ""),
    }
}

impl ReplyEncoder for ResponseStream {
    fn begin(&mut self, _prompt_usage: &Usage, out: &mut BytesMut) {
        if !self.over {
            self.start(out);
        }
    }

    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut) {
        if self.over {
            return;
        }
        let taken = self.answer.take(event);
        if let Some(GatheredDelta { at, new, delta }) = taken {
            if new {
                self.close(ItemStatus::Completed, out);
                self.add(at, out);
            }
            let logprobs = if let ReplyEvent::Text { logprobs, .. } = event { &logprobs[..] } else { &[] };
            self.delta(at, &delta, logprobs, out);
        }
        if matches!(event, ReplyEvent::Finish { .. }) {
            let status = self.answer.last_status();
            self.close(status, out);
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.start(out);
        let status = self.answer.last_status();
        self.close(status, out);
        let name = match status {
            ItemStatus::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        self.response(name, status, &ResponseEnd { usage: Some(usage), failed: None, explain }, out);
        raw(out, "data: [DONE]\n\n");
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if self.passed {
            // Only the upstream knows the id and the number of its next event.
            raw(out, "event: error\ndata: ");
            write_error(Dialect::OpenAi, facts, out);
            raw(out, "\n\n");
            return;
        }
        self.start(out);
        self.close(ItemStatus::Incomplete, out);
        self.response(
            "response.failed",
            ItemStatus::Failed,
            &ResponseEnd { failed: Some(facts), ..ResponseEnd::default() },
            out,
        );
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        if !self.over {
            raw(out, KEEP_ALIVE);
        }
    }

    fn ended_at(&mut self, unix_s: u64) {
        self.answer.ended_at(unix_s);
    }

    fn passed(&mut self) {
        self.passed = true;
    }

    fn keep(&mut self) {
        self.keeps = true;
    }

    fn kept(&mut self) -> Option<Bytes> {
        self.kept.take()
    }

    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }
}
