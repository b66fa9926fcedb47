//! The way to the client: the head of its answer, both ends of the body's buffer, and the stall clock for a reader that
//! takes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use headrace_call_api::AbortReason;
use headrace_call_state::{
    Answer, AnswerBody, Rejection,
    delivery::{self, Delivery, DeliveryCut, DeliverySender},
    sent_whole,
};
use headrace_domain::SentAnswer;
use tokio::sync::oneshot;

use crate::config::GatewayConfig;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::reply::ReplyWriter;

/// See the top of the file.
pub(super) struct ClientStream {
    /// Receives the head of the answer. `None` once the head was sent.
    head: Option<oneshot::Sender<Answer>>,
    /// The reader's end of the buffer, until it leaves with the head.
    delivery: Option<Delivery>,
    pub(super) sender: DeliverySender,
    headers: Vec<(&'static str, String)>,
    pub(super) content_type: &'static str,
    streamed: bool,
    /// The call continues if the client leaves before the head of its answer.
    pub(super) runs_on: bool,
    /// The body is hashed as it is sent.
    is_hashed: bool,
    /// What is sent, if that is known before the body is read.
    sent: Option<SentAnswer>,
    stall: StallClock,
}

/// Measures how long data has waited for a reader that takes nothing, here or in the transport. It is asked at
/// intervals, and compares how much was taken.
#[derive(Default)]
struct StallClock {
    taken: u64,
    since_ns: u64,
}

impl StallClock {
    fn waited(&mut self, sender: &DeliverySender, now_ns: u64) -> Duration {
        match sender.waits_after() {
            Some(taken) if taken == self.taken => {}
            taken => {
                self.taken = taken.unwrap_or(self.taken);
                self.since_ns = now_ns;
            }
        }
        Duration::from_nanos(now_ns.saturating_sub(self.since_ns)).max(sender.blocked_for())
    }
}

impl ClientStream {
    pub(super) fn new(
        config: &GatewayConfig,
        head: oneshot::Sender<Answer>,
        headers: Vec<(&'static str, String)>,
        work: &RenderedWork,
    ) -> Self {
        let memory = Arc::clone(&work.terms.memory);
        let (sender, delivery) = delivery::channel(config.delivery_buffer_bytes, memory);
        Self {
            head: Some(head),
            delivery: Some(delivery),
            sender,
            headers,
            content_type: "application/json",
            streamed: work.call.stream,
            runs_on: false,
            is_hashed: false,
            sent: None,
            stall: StallClock::default(),
        }
    }

    /// Hashes the body as it is sent.
    pub(super) fn hash(&mut self) {
        self.is_hashed = true;
        self.sender.hash();
    }

    /// Takes hash and length of the body: what the transport took, and what still waits for it. `None` if the body is
    /// not hashed.
    pub(super) fn sent(&mut self) -> Option<SentAnswer> {
        self.sent.take().or_else(|| self.sender.sent())
    }

    /// Whether the answer is a stream whose head has not gone out yet.
    pub(super) fn may_begin(&self) -> bool {
        self.streamed && self.head.is_some()
    }

    /// Whether the client has the head of its answer.
    pub(super) fn has_begun(&self) -> bool {
        self.head.is_none()
    }

    /// Sends the status line and headers, and with them the reader's end of the stream.
    pub(super) fn begin(&mut self, context: &RequestContext) {
        self.send(context, AnswerBody::Stream);
    }

    fn send(&mut self, context: &RequestContext, body: impl FnOnce(Delivery) -> AnswerBody) {
        let now_ns = context.clock.monotonic_nanos();
        let mut headers = std::mem::take(&mut self.headers);
        headers.extend(context.id_headers());
        let record = &context.record;
        // If the name leads to several models, the header says which one answers.
        if let Some(model) =
            record.model_served.as_ref().filter(|_| record.model_asked != record.model_served)
        {
            headers.push(("x-headrace-model", model.clone()));
        }
        if let Some(upstream) = &record.upstream {
            headers.push(("x-headrace-upstream", upstream.to_string()));
        }
        if !record.continued.is_empty() {
            headers.push(("x-headrace-continued", record.continued.len().to_string()));
        }
        if self.streamed {
            headers.push(("cache-control", "no-cache".to_owned()));
        }
        let (Some(head), Some(delivery)) = (self.head.take(), self.delivery.take()) else { return };
        // The reader gets its end only now, so the wait before does not count as its stall.
        self.stall.since_ns = now_ns;
        let answer = Answer { status: 200, content_type: self.content_type, headers, body: body(delivery) };
        // If the listener is gone, this drops the delivery, which notifies the sender.
        let _ = head.send(answer);
    }

    /// Returns when the client may have gone away or taken something.
    pub(super) async fn reader_moved(&mut self) {
        match &mut self.head {
            Some(_) if self.runs_on => std::future::pending().await,
            Some(head) => head.closed().await,
            None => self.sender.reader_moved().await,
        }
    }

    /// Why no client waits for the answer any more. `None` if one does.
    pub(super) fn abort_reason(&self) -> Option<AbortReason> {
        match &self.head {
            Some(head) => (head.is_closed() && !self.runs_on).then_some(AbortReason::ClientGone),
            None => self.sender.abort_reason(),
        }
    }

    /// How long the reader has taken none of the data that waits for it.
    pub(super) fn stalled(&mut self, now_ns: u64) -> Duration {
        if self.head.is_some() { Duration::ZERO } else { self.stall.waited(&self.sender, now_ns) }
    }

    /// Sends the end of an answer that ended well. If the answer is not streamed, that is all of it.
    pub(super) fn complete(&mut self, context: &RequestContext, mut end: BytesMut, tokens: u64) {
        let bytes = u64::try_from(end.len()).unwrap_or(u64::MAX);
        self.sender.push(&mut end, tokens);
        self.sender.finish();
        if self.runs_on {
            // Each repeat of the request gets this answer, also if this client is gone.
            self.sent = self.sender.sent();
        }
        if self.streamed {
            self.begin(context);
        } else {
            self.send(context, |body| AnswerBody::Long { body, bytes });
        }
    }

    /// Sends the end of an answer that failed. If the head has not gone out, this is an error status, otherwise an
    /// error event, and never the end of a good stream. If the transport has taken only a part of an event, the body
    /// can only be broken off.
    pub(super) fn fail(
        &mut self,
        reply: Option<&mut ReplyWriter>,
        context: &RequestContext,
        rejection: &Rejection,
        cut: DeliveryCut,
    ) {
        if self.head.is_some() {
            self.refuse(context, rejection);
        } else if let Some(reply) = reply.filter(|_| !cut.within) {
            let mut event = reply.fail(&rejection.facts(context));
            reply.hand_over_recorded(&self.sender);
            // If the end was already encoded there is no error event, and the remainder must not look complete.
            if !event.is_empty() {
                self.sender.push(&mut event, cut.tokens);
                self.sender.finish();
            }
        }
    }

    /// Sends an error's status and body. Returns `false` if the head of another answer has gone out.
    pub(super) fn refuse(&mut self, context: &RequestContext, rejection: &Rejection) -> bool {
        let answer = rejection.answer(context);
        let Some(head) = self.head.take() else { return false };
        let sent = match &answer.body {
            AnswerBody::Whole(body) if self.is_hashed => Some(sent_whole(body)),
            _ => None,
        };
        let is_sent = head.send(answer).is_ok();
        self.sent = sent.filter(|_| is_sent);
        is_sent
    }
}
