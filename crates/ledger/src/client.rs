//! The ledger client: the ledger as the request path uses it, with verdicts that may take time and hints that cost
//! nothing. Knows neither where the ledger is kept nor how it decides.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use headrace_domain::{HoldId, OrgId, ProjectId, UnixNanos};

use crate::command::LedgerOperation;
use crate::service::{BatchResult, JournalHealth, Ledger};
use crate::standing::SpendableBalance;

/// Access to holds and payments. [`Ledger`] decides in this process, at once; other implementations may ask a database.
pub trait LedgerClient: Send + Sync {
    /// Decides a batch at `now`, each command on the outcome of the earlier ones. Either all of the batch is written or
    /// nothing. An unreachable ledger refuses with [`crate::LedgerRefusal::Unavailable`] and does not wait forever.
    fn decide(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> PendingBatch;

    /// Whether [`LedgerClient::decide_for`] checks the caller at the moment of the decision.
    fn checks_callers(&self) -> bool {
        false
    }

    /// Whether the ledger counts calls in flight over several gateways, so that holds should name their limits.
    fn counts_places(&self) -> bool {
        false
    }

    /// Like [`LedgerClient::decide`]. If several gateways share the ledger, it also checks the caller of the batch at the
    /// moment of the decision, after it has loaded what other gateways changed. An ended caller is refused with
    /// [`crate::LedgerRefusal::CallerEnded`].
    fn decide_for(
        &self,
        _caller: Arc<dyn CallerCheck>,
        batch: Vec<LedgerOperation>,
        now: UnixNanos,
    ) -> PendingBatch {
        self.decide(batch, now)
    }

    /// Returns what an organisation and a project can spend, if that is known without asking. Only a hold decides.
    fn standing_hint(&self, org: &OrgId, project: &ProjectId) -> StandingHint;

    /// Returns whether a call of the project claimed this idempotency key, as far as it is known without asking. Only a
    /// hold decides: the call may still run, may have ended, or its key may be free again.
    fn knows_key(&self, project: &ProjectId, key: &str) -> bool;

    /// Records at `now` that the owner of the hold is still working. The hold does not expire for another `lifetime`.
    fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration);

    /// Returns the health of the ledger.
    fn health(&self) -> JournalHealth;
}

/// The caller on whose behalf a batch takes holds.
pub trait CallerCheck: Send + Sync {
    /// Whether the caller may still take holds, by the identities that this gateway has loaded. Must not block.
    fn is_valid(&self) -> bool;
}

/// What an organisation and a project can spend, as far as it is known without asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StandingHint {
    /// The amounts now.
    Known(SpendableBalance),
    /// The organisation has no such project.
    NoProject,
    /// Other gateways may have changed the amounts. A hold must find out.
    Unknown,
}

/// The pending result of a batch. A result that is known at once needs no allocation.
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct PendingBatch(PendingState);

enum PendingState {
    /// A known result. `None` after it was taken.
    Here(Option<BatchResult>),
    OnTheWay(Pin<Box<dyn Future<Output = BatchResult> + Send>>),
}

impl PendingBatch {
    /// Creates a result that is already known.
    pub const fn now(transacted: BatchResult) -> Self {
        Self(PendingState::Here(Some(transacted)))
    }

    /// Creates a result that arrives later.
    pub fn later(verdicts: impl Future<Output = BatchResult> + Send + 'static) -> Self {
        Self(PendingState::OnTheWay(Box::pin(verdicts)))
    }
}

impl fmt::Debug for PendingBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingBatch(..)")
    }
}

impl Future for PendingBatch {
    type Output = BatchResult;

    /// Polling again after completion returns pending, which the contract of futures allows.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BatchResult> {
        match &mut self.0 {
            PendingState::Here(transacted) => transacted.take().map_or(Poll::Pending, Poll::Ready),
            PendingState::OnTheWay(verdicts) => verdicts.as_mut().poll(context),
        }
    }
}

impl LedgerClient for Ledger {
    fn decide(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> PendingBatch {
        PendingBatch::now(self.transact(batch, now))
    }

    fn standing_hint(&self, org: &OrgId, project: &ProjectId) -> StandingHint {
        self.standing(org, project).map_or(StandingHint::NoProject, StandingHint::Known)
    }

    fn knows_key(&self, project: &ProjectId, key: &str) -> bool {
        Self::knows_key(self, project, key)
    }

    fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        Self::keep(self, hold, now, lifetime);
    }

    fn health(&self) -> JournalHealth {
        Self::health(self)
    }
}
