//! Batches the items that a source already has: handling each one alone would cost a full turn of the call's event
//! loop. Must not know what the items say.

use headrace_domain::ReplyEvent;

use crate::dossier::Dossier;

use super::reply::Reply;
use super::source::Source;
use super::source::said::{More, Said};

/// Most items that are added to the first one. Their bytes go out together after the last one.
const TOGETHER: usize = 16;

/// The item that ended a batch and must be handled differently.
#[derive(Default)]
pub(super) struct Ahead(Option<Said>);

impl Ahead {
    /// The next item of a source. Cancelling the wait loses nothing.
    pub(super) async fn next(
        &mut self,
        source: &mut Source,
        dossier: &Dossier,
        events: &mut Vec<ReplyEvent>,
    ) -> Said {
        match self.0.take() {
            Some(said) => said,
            None => source.next(dossier, events).await,
        }
    }

    /// Encodes an item together with those that the source already has after it.
    pub(super) async fn take_in(
        &mut self,
        reply: &mut Reply,
        source: &mut Source,
        mut more: More,
        events: &mut Vec<ReplyEvent>,
        dossier: &Dossier,
    ) {
        let (from_ns, mut alone) = (more.at_ns, true);
        for _ in 0..TOGETHER {
            match source.said_already(from_ns, dossier, events) {
                Some(Said::More(next)) => {
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
            more.at_ns = source.took_in(from_ns, more.at_ns, dossier);
        }
        reply.take(&more, events, dossier).await;
    }
}
