//! Batches the items that a source already has: handling each one alone would cost a full turn of the call's event
//! loop. Must not know what the items say.

use headrace_domain::ReplyEvent;

use crate::request_context::RequestContext;

use super::reply::ReplyWriter;
use super::source::AnswerSource;
use super::source::source_event::{ReplyProgress, SourceEvent};

/// Most items that are added to the first one. Their bytes go out together after the last one.
const TOGETHER: usize = 16;

/// The item that ended a batch and must be handled differently.
#[derive(Default)]
pub(super) struct EventBatcher(Option<SourceEvent>);

impl EventBatcher {
    /// The next item of a source. Cancelling the wait loses nothing.
    pub(super) async fn next(
        &mut self,
        source: &mut AnswerSource,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        match self.0.take() {
            Some(said) => said,
            None => source.next(context, events).await,
        }
    }

    /// Encodes an item together with those that the source already has after it.
    pub(super) async fn take_in(
        &mut self,
        reply: &mut ReplyWriter,
        source: &mut AnswerSource,
        mut more: ReplyProgress,
        events: &mut Vec<ReplyEvent>,
        context: &RequestContext,
    ) {
        let (from_ns, mut alone) = (more.at_ns, true);
        for _ in 0..TOGETHER {
            match source.said_already(from_ns, context, events) {
                Some(SourceEvent::More(next)) => {
                    more.join(next);
                    alone = false;
                }
                other => {
                    self.0 = other;
                    break;
                }
            }
        }
        // A single item was timed when it came.
        if !alone {
            more.at_ns = source.took_in(from_ns, more.at_ns, context);
        }
        reply.take(&more, events, context).await;
    }
}
