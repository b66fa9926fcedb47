//! What a source has said already is taken in together: each thing by itself would be a turn of everything that a call waits for.
//! Must not know what is said.

use headrace_domain::ReplyEvent;

use crate::dossier::Dossier;

use super::reply::Reply;
use super::source::Source;
use super::source::said::{More, Said};

/// Things more than the first that are taken in at a time. What they make goes out behind the last of them.
const TOGETHER: usize = 16;

/// Something that was said behind what was taken in, and is to be looked at otherwise.
#[derive(Default)]
pub(super) struct Ahead(Option<Said>);

impl Ahead {
    /// The next thing that a source says. The wait may be given up at any time.
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

    /// Takes in a thing, and what the source has said behind it.
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
        // What came by itself was timed when it came.
        if !alone {
            more.at_ns = source.took_in(from_ns, more.at_ns, dossier);
        }
        reply.take(&more, events, dossier).await;
    }
}
