//! What a call task stores of its answer if the caller wants that: that a stream has begun, before the client learns
//! its id; and how the answer ended, before its last event goes out. Must not know where it is stored.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Code;
use headrace_wire::response_begun;

use crate::Gateway;
use crate::delivery::Kept;
use crate::dossier::Dossier;
use crate::objects::keep::{self, Noted};
use crate::refused::Why;
use crate::shadows::Shadow;
use crate::state::Work;

use super::place::Placed;
use super::reply::{Reply, reply_meta};
use super::{Carried, Ended, Ending};

/// How long a stream waits until its beginning is stored.
const NOTE_WITHIN: Duration = Duration::from_secs(5);

/// The longest answer to a batch request, in bytes.
const MOST_LINE_ANSWER_BYTES: usize = 64 << 20;

impl Carried {
    /// A buffer for a copy of everything that goes out, if it is needed when the call has ended: for a batch, or to
    /// compare a shadow copy.
    pub(super) fn keeps(dossier: &Dossier, work: &Work) -> Option<Kept> {
        match &dossier.batch {
            Some(_) => Some(Kept::new(Arc::clone(&work.memory), MOST_LINE_ANSWER_BYTES)),
            None => dossier.shadow.as_deref().and_then(Shadow::keeps),
        }
    }

    /// Like [`Self::run`], after the beginning of a stream is stored, because its first event contains the id. The
    /// workers continue meanwhile.
    pub(super) async fn noted_run(&mut self, gateway: &Gateway, placed: &Placed) -> Ending {
        let work = &self.round.work;
        let notes = self.noted == Noted::Nothing && work.call.stream && keep::is_kept(&self.dossier, work);
        // Boxed, so that the futures of other calls reserve no space for it.
        if notes && let Err(why) = Box::pin(self.note(gateway)).await {
            return Ending::Failed(why);
        }
        self.run(gateway, placed).await
    }

    async fn note(&mut self, gateway: &Gateway) -> Result<(), Why> {
        let work = Arc::clone(&self.round.work);
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

    /// Encodes the end of an answer and stores it before it goes out. An answer that cannot be stored fails.
    pub(super) async fn complete(&mut self, gateway: &Gateway) -> Ending {
        match self.complete_response(gateway).await {
            Ending::Completed if self.dossier.batch.is_some() => {
                let noted = Box::pin(self.note_line(gateway)).await;
                noted.map_or_else(Ending::Failed, |()| Ending::Completed)
            }
            ending => ending,
        }
    }

    /// Stores the whole answer to a batch request before it is paid for, so that a crash after this does not lose it.
    async fn note_line(&mut self, gateway: &Gateway) -> Result<(), Why> {
        let Some(line) = &self.dossier.batch else { return Ok(()) };
        let Some(begun) = self.line.sender.kept() else {
            let message = "The answer is longer than one of a batch may be.";
            self.end = None;
            return Err(Why::new(Code::ObjectsFull, message));
        };
        let mut whole = String::from_utf8_lossy(&begun).into_owned();
        whole.push_str(&String::from_utf8_lossy(self.end.as_deref().unwrap_or_default()));
        let (batch, at, request) = (line.batch.clone(), line.at, self.dossier.id.to_string());
        let noting =
            gateway.objects().ask_files(move |store| store.note_answer(&batch, at, &request, &whole));
        let noted = noting.await;
        if noted.is_err() {
            self.end = None;
        }
        noted
    }

    async fn complete_response(&mut self, gateway: &Gateway) -> Ending {
        self.encode_end(gateway).await;
        let Some(body) = self.reply.as_mut().and_then(Reply::kept) else { return Ending::Completed };
        keep::for_next_turn(gateway, &self.dossier, &self.round.work, &body);
        if !keep::is_kept(&self.dossier, &self.round.work) {
            return Ending::Completed;
        }
        let work = Arc::clone(&self.round.work);
        match Box::pin(keep::end(gateway, &self.dossier, &work, &body)).await {
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
        if let Err(why) = Box::pin(keep::end(gateway, &self.dossier, &work, &body)).await {
            tracing::error!(request = %self.dossier.id, why = why.message, "how a response ended could not be stored");
        }
    }
}
