//! What a call task stores of its answer if the caller wants that: that a stream has begun, before the client learns
//! its id; and how the answer ended, before its last event goes out. Must not know where it is stored.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::Code;
use headrace_resources::StoredCall;
use headrace_wire::responses::response_begun;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::placement::Placed;
use super::reply::ReplyWriter;
use super::reply_meta::reply_meta;
use super::{CallEnding, CallTask, SettledEnd, StoreProgress};

/// How long a stream waits until its beginning is stored.
const NOTE_WITHIN: Duration = Duration::from_secs(5);

/// Whether the call's task stores its answer. A background response is stored by its reader, and a shadow copy is
/// never stored.
fn is_stored(context: &RequestContext, work: &RenderedWork) -> bool {
    let wants = work.call.dialect.response().is_some_and(|ask| ask.store && !ask.background);
    wants && context.copy().is_none()
}

/// The call as the resources store it. `None` if its answer is no response.
fn stored_call<'a>(context: &'a RequestContext, work: &'a RenderedWork) -> Option<StoredCall<'a>> {
    Some(StoredCall {
        id: context.id,
        created: context.record.started,
        project: context.record.project.as_ref()?,
        key: context.record.key.as_ref()?,
        ask: work.call.dialect.response()?,
        body_bytes: work.body_bytes,
    })
}

impl CallTask {
    /// Like [`Self::run`], after the beginning of a stream is stored, because its first event contains the id. The
    /// workers continue meanwhile.
    pub(super) async fn noted_run(&mut self, gateway: &Gateway, placed: &Placed) -> CallEnding {
        let work = &self.round.work;
        let notes =
            self.noted == StoreProgress::Nothing && work.call.stream && is_stored(&self.context, work);
        // Boxed, so that the futures of other calls reserve no space for it.
        if notes && let Err(rejection) = Box::pin(self.note(gateway)).await {
            return CallEnding::Failed(rejection);
        }
        self.run(gateway, placed).await
    }

    async fn note(&mut self, gateway: &Gateway) -> Result<(), Rejection> {
        let work = Arc::clone(&self.round.work);
        let body = response_begun(&work.call, reply_meta(&work, &self.context), "in_progress");
        let Some(call) = stored_call(&self.context, &work) else { return Ok(()) };
        let noting = gateway.resources().store_begun(call, body);
        let noted = tokio::time::timeout(NOTE_WITHIN, noting).await;
        let late = || {
            let message = "What clients store cannot be written in time. Try again, or send `store: false`.";
            Rejection::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
        };
        noted.unwrap_or_else(|_| Err(late()))?;
        self.noted = StoreProgress::Begun;
        Ok(())
    }

    /// Encodes the end of an answer and stores it before it goes out. An answer that cannot be stored fails.
    pub(super) async fn complete(&mut self, gateway: &Gateway) -> CallEnding {
        match self.complete_response(gateway).await {
            CallEnding::Completed if self.context.batch.is_some() => {
                let noted = Box::pin(self.note_line(gateway)).await;
                noted.map_or_else(CallEnding::Failed, |()| CallEnding::Completed)
            }
            ending => ending,
        }
    }

    /// Stores the whole answer to a batch request before it is paid for, so that a crash after this does not lose it.
    async fn note_line(&mut self, gateway: &Gateway) -> Result<(), Rejection> {
        let Some(line) = &self.context.batch else { return Ok(()) };
        let Some(sent) = self.line.sender.kept() else {
            let message = "The answer is longer than one of a batch may be.";
            self.end = None;
            return Err(Rejection::new(Code::ObjectsFull, message));
        };
        let mut whole = String::from_utf8_lossy(&sent).into_owned();
        whole.push_str(&String::from_utf8_lossy(self.end.as_deref().unwrap_or_default()));
        let noted = gateway.resources().note_line(line, self.context.id, whole).await;
        if noted.is_err() {
            self.end = None;
        }
        noted
    }

    async fn complete_response(&mut self, gateway: &Gateway) -> CallEnding {
        self.encode_end(gateway).await;
        let Some(body) = self.reply.as_mut().and_then(ReplyWriter::kept) else {
            return CallEnding::Completed;
        };
        if let (Some(session), Some(call)) =
            (&self.context.turns, stored_call(&self.context, &self.round.work))
        {
            gateway.resources().keep_for_next_turn(session, call, &body);
        }
        if !is_stored(&self.context, &self.round.work) {
            return CallEnding::Completed;
        }
        let work = Arc::clone(&self.round.work);
        match Box::pin(store_end(gateway, &self.context, &work, &body)).await {
            Ok(()) => {
                self.noted = StoreProgress::Ended;
                CallEnding::Completed
            }
            Err(rejection) => {
                self.end = None;
                CallEnding::Failed(rejection)
            }
        }
    }

    /// Stores how a stream ended that had begun and did not end well.
    pub(super) async fn note_end(&mut self, gateway: &Gateway) {
        if self.noted != StoreProgress::Begun {
            return;
        }
        self.noted = StoreProgress::Ended;
        let status = match self.ended.as_ref().map(|SettledEnd { ending, .. }| ending) {
            Some(CallEnding::ClientGone | CallEnding::Stalled { .. }) => "cancelled",
            _ => "failed",
        };
        let work = Arc::clone(&self.round.work);
        let stored = self.reply.as_mut().and_then(ReplyWriter::kept);
        let body = stored.unwrap_or_else(|| {
            response_begun(&work.call, reply_meta(&work, &self.context), status).into_bytes().into()
        });
        if let Err(rejection) = Box::pin(store_end(gateway, &self.context, &work, &body)).await {
            tracing::error!(request = %self.context.id, why = rejection.message, "how a response ended could not be stored");
        }
    }
}

/// Stores a finished answer.
async fn store_end(
    gateway: &Gateway,
    context: &RequestContext,
    work: &RenderedWork,
    body: &[u8],
) -> Result<(), Rejection> {
    let Some(call) = stored_call(context, work) else { return Ok(()) };
    gateway.resources().store_ended(call, body).await
}
