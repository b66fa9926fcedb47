//! The recorded form of an answer whose values were put back: the same answer with placeholders, in the same dialect. Must
//! not know where it is stored.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_call_state::delivery::DeliverySender;
use headrace_domain::{DialectExtras, ReplyEvent, ResponseAsk, UnixNanos, Usage};
use headrace_wire::{ErrorFacts, ReplyEncoder, encoder};

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::reply_meta::reply_meta;

/// See the top of the file.
pub(super) struct RecordedReply {
    encoder: Box<dyn ReplyEncoder>,
    bytes: BytesMut,
}

impl RecordedReply {
    /// Starts the answer to a call. A response repeats the redacted fields of its call.
    pub(super) fn of(work: &RenderedWork, context: &RequestContext) -> Self {
        let meta = reply_meta(work, context);
        let echo = context.request.as_ref().and_then(|request| request.echo.clone());
        let encoder = match (echo, work.call.dialect.response()) {
            (Some(echo), Some(ask)) => {
                let mut call = work.call.clone();
                call.dialect = DialectExtras::Responses(Arc::new(ResponseAsk { echo, ..(**ask).clone() }));
                encoder(&call, meta)
            }
            _ => encoder(&work.call, meta),
        };
        Self { encoder, bytes: BytesMut::new() }
    }

    /// Records the usage of the prompt.
    pub(super) fn begin(&mut self, prompt: &Usage) {
        self.encoder.begin(prompt, &mut self.bytes);
    }

    /// Records events before values are put back.
    pub(super) fn take(&mut self, events: &[ReplyEvent]) {
        events.iter().for_each(|event| self.encoder.event(event, &mut self.bytes));
    }

    /// Records the end of an answer that ended well.
    pub(super) fn finish(&mut self, usage: &Usage, explained: Option<&serde_json::Value>, now: UnixNanos) {
        self.encoder.ended_at(now.seconds());
        self.encoder.finish(usage, explained, &mut self.bytes);
    }

    /// Records the end of an answer that failed after it began.
    pub(super) fn fail(&mut self, facts: &ErrorFacts) {
        self.encoder.fail(facts, &mut self.bytes);
    }

    /// Records an answer that is passed on as it came.
    pub(super) fn pass(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
    }

    /// Hands over what was written.
    pub(super) fn hand_over(&mut self, sender: &DeliverySender) {
        sender.put_recorded(&self.bytes);
        self.bytes.clear();
    }
}
