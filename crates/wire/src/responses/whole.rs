//! The whole response. Events are gathered into items and written at the end.

use bytes::{Bytes, BytesMut};
use headrace_domain::{Call, Dialect, ReplyEvent, Usage};

use super::answer::{ItemStatus, ResponseAnswer, ResponseEnd};
use crate::common::encoder::{JSON, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;

/// Encodes a response as a whole body.
pub(crate) struct ResponseWhole {
    answer: ResponseAnswer,
    over: bool,
    /// Whether the response is kept as an object.
    keeps: bool,
    kept: Option<Bytes>,
}

impl ResponseWhole {
    /// Creates the encoder of a call's answer.
    pub(crate) fn new(call: &Call, meta: ReplyMeta) -> Self {
        let answer = ResponseAnswer::new(call, meta);
        Self { keeps: answer.ask().store, answer, over: false, kept: None }
    }
}

impl ReplyEncoder for ResponseWhole {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, _out: &mut BytesMut) {
        if self.over {
            return;
        }
        let answer = &mut self.answer;
        let before = answer.items.len();
        if answer.take(event).is_some_and(|taken| taken.new)
            && let Some(former) = before.checked_sub(1)
        {
            answer.end(former, ItemStatus::Completed);
        }
        if matches!(event, ReplyEvent::Finish { .. })
            && let Some(last) = answer.items.len().checked_sub(1)
        {
            answer.end(last, answer.last_status());
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let end = ResponseEnd { usage: Some(usage), failed: None, explain };
        let from = out.len();
        self.answer.write(self.answer.last_status(), &end, out);
        if self.keeps {
            self.kept = out.get(from..).map(Bytes::copy_from_slice);
        }
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.over, true) {
            write_error(Dialect::OpenAi, facts, out);
        }
    }

    fn keep_alive(&mut self, _out: &mut BytesMut) {}

    fn ended_at(&mut self, unix_s: u64) {
        self.answer.ended_at(unix_s);
    }

    fn keep(&mut self) {
        self.keeps = true;
    }

    fn kept(&mut self) -> Option<Bytes> {
        self.kept.take()
    }

    fn content_type(&self) -> &'static str {
        JSON
    }
}
