//! The books as whoever spends from them sees them: verdicts that may take their time, and hints that cost nothing.
//! Knows neither where the books are kept nor how they decide.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use headrace_domain::{HoldId, OrgId, ProjectId, UnixNanos};

use crate::command::Command;
use crate::service::{Health, Ledger, Transacted};
use crate::standing::Standing;

/// Where money is held and paid. [`Ledger`] decides in this process, at once; other books may ask a database.
pub trait Books: Send + Sync {
    /// Decides a batch at `now`, each command on the outcome of those before it: all of the batch is written or none.
    /// Books that cannot be reached answer with [`crate::LedgerRefusal::Unavailable`]; they do not wait for ever.
    fn decide(&self, batch: Vec<Command>, now: UnixNanos) -> Deciding;

    /// What an organisation and a project could spend when it was last known. It may be old: only a hold decides. `None`
    /// if there is no such project in the organisation.
    fn standing_hint(&self, org: &OrgId, project: &ProjectId) -> Option<Standing>;

    /// Says at `now` that whoever took the hold is still at work: it does not expire for another `lifetime`.
    fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration);

    /// How the books do.
    fn health(&self) -> Health;
}

/// What a batch becomes. Books that decide at once give it without an allocation.
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct Deciding(State);

enum State {
    /// `None` once it was taken.
    Here(Option<Transacted>),
    OnTheWay(Pin<Box<dyn Future<Output = Transacted> + Send>>),
}

impl Deciding {
    /// Decided already.
    pub const fn now(transacted: Transacted) -> Self {
        Self(State::Here(Some(transacted)))
    }

    /// Decided elsewhere, later.
    pub fn later(verdicts: impl Future<Output = Transacted> + Send + 'static) -> Self {
        Self(State::OnTheWay(Box::pin(verdicts)))
    }
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deciding(..)")
    }
}

impl Future for Deciding {
    type Output = Transacted;

    /// After it was ready it stays pending, as futures may.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Transacted> {
        match &mut self.0 {
            State::Here(transacted) => transacted.take().map_or(Poll::Pending, Poll::Ready),
            State::OnTheWay(verdicts) => verdicts.as_mut().poll(context),
        }
    }
}

impl Books for Ledger {
    fn decide(&self, batch: Vec<Command>, now: UnixNanos) -> Deciding {
        Deciding::now(self.transact(batch, now))
    }

    fn standing_hint(&self, org: &OrgId, project: &ProjectId) -> Option<Standing> {
        self.standing(org, project)
    }

    fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        Self::keep(self, hold, now, lifetime);
    }

    fn health(&self) -> Health {
        Self::health(self)
    }
}
