//! What a call's task stores of its answer, where its caller wants that: that a stream has begun, before the client learns its id; and
//! how the answer ended, before its last word goes out. Must not know what keeps it.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Code;
use headrace_wire::{ReplyMeta, response_begun};

use crate::Gateway;
use crate::dossier::Dossier;
use crate::objects::keep;
use crate::refused::Why;
use crate::state::Work;

use super::reply::Reply;
use super::{Carried, Ended, Ending};

/// How long a stream waits until it is stored that it has begun.
const NOTE_WITHIN: Duration = Duration::from_secs(5);

/// How far the storing has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing is stored.
    #[default]
    Nothing,
    /// It has begun.
    Begun,
    /// It has ended.
    Ended,
}

/// What an answer to a call says of itself.
pub(crate) fn reply_meta(work: &Work, dossier: &Dossier) -> ReplyMeta {
    Reply::meta(work, dossier)
}

impl Carried {
    /// Stores that a stream has begun: its first event tells the id. What it waits for goes on meanwhile.
    pub(super) async fn note(&mut self, gateway: &Gateway) -> Result<(), Why> {
        let work = Arc::clone(&self.round.work);
        if self.noted != Noted::Nothing || !work.call.stream || !keep::is_kept(&self.dossier, &work) {
            return Ok(());
        }
        let body = response_begun(&work.call, reply_meta(&work, &self.dossier), "in_progress");
        let noting = keep::note(gateway, &self.dossier, &work, body);
        let noted = tokio::time::timeout(NOTE_WITHIN, noting).await;
        let late = || {
            let message = "What clients store cannot be written in time. Try again, or send `store: false`.";
            Why::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
        };
        noted.unwrap_or_else(|_| Err(late()))?;
        self.noted = Noted::Begun;
        Ok(())
    }

    /// Stores the answer, whose end is encoded and has not gone out: what cannot be stored is not told as if it were.
    pub(super) async fn keep(&mut self, gateway: &Gateway) -> Ending {
        let work = Arc::clone(&self.round.work);
        let kept = self.reply.as_mut().and_then(Reply::kept);
        let Some(body) = kept.filter(|_| keep::is_kept(&self.dossier, &work)) else {
            return Ending::Completed;
        };
        match keep::end(gateway, &self.dossier, &work, &body).await {
            Ok(()) => {
                self.noted = Noted::Ended;
                Ending::Completed
            }
            Err(why) => {
                self.end = None;
                Ending::Failed(why)
            }
        }
    }

    /// Stores how a stream ended that had begun and did not end well.
    pub(super) async fn note_end(&mut self, gateway: &Gateway) {
        if self.noted != Noted::Begun {
            return;
        }
        self.noted = Noted::Ended;
        let status = match self.ended.as_ref().map(|Ended { ending, .. }| ending) {
            Some(Ending::ClientGone | Ending::Stalled { .. }) => "cancelled",
            _ => "failed",
        };
        let work = Arc::clone(&self.round.work);
        let told = self.reply.as_mut().and_then(Reply::kept);
        let body = told.unwrap_or_else(|| {
            response_begun(&work.call, reply_meta(&work, &self.dossier), status).into_bytes().into()
        });
        if let Err(why) = keep::end(gateway, &self.dossier, &work, &body).await {
            tracing::error!(request = %self.dossier.id, why = why.message, "how a response ended could not be stored");
        }
    }
}
