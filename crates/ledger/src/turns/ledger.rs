//! The handle to a shared ledger: queues batches, answers questions from memory, and gives up for callers that waited
//! too long. Knows neither how a turn is written nor where the journal is.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_domain::{Clock, HoldId, OrgId, ProjectId, UnixNanos};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::admin::{JournalHistory, LedgerAdmin};
use crate::budget_rule::{AlertRaised, BudgetReport};
use crate::client::{CallerCheck, LedgerClient, PendingBatch, StandingHint};
use crate::command::{LedgerOperation, Owner};
use crate::core::LedgerCore;
use crate::durable::DurableFuture;
use crate::free_tier::FreeTierReport;
use crate::journal::LedgerError;
use crate::lot::LotReport;
use crate::refund::RefundMade;
use crate::refusal::LedgerRefusal;
use crate::service::{BatchResult, JournalHealth, OpenReport};
use crate::standing::{HoldView, LedgerTotals, SpendableBalance};
use crate::transaction::HoldTaken;
use crate::verdict::CommandResult;

use super::journal::{GatewayPresence, SharedIdentities, SharedJournal};
use super::reply::{ReplyReceiver, ReplySlot, UnclaimedHolds};
use super::shared::{
    QueuedBatch, SharedLedgerOptions, TurnShared, TurnState, TurnStatus, WaitLimit, all_end_work,
};
use super::thread::take_turns;
use super::writer::{TurnOutcome, TurnWriter};

/// How often the presence of a gateway is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// How often waiting callers are checked against their deadline.
const SWEEP_EVERY: Duration = Duration::from_millis(25);

/// A handle to a ledger that several gateways share. Clones are cheap and share the ledger.
#[derive(Clone)]
pub struct SharedLedger {
    handle: Arc<SharedLedgerHandle>,
}

/// The journal of a ledger that was opened by [`SharedLedger::open_by_hand`]. After it is dropped, pending batches end
/// only when they are given up.
pub struct TurnHand {
    writer: TurnWriter,
    presence: Box<dyn GatewayPresence>,
}

struct SharedLedgerHandle {
    shared: Arc<TurnShared>,
    options: SharedLedgerOptions,
    history: Arc<dyn JournalHistory>,
    threads: Mutex<LedgerThreads>,
}

#[derive(Default)]
struct LedgerThreads {
    writer: Option<JoinHandle<Result<(), LedgerError>>>,
    others: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for SharedLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedLedger").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl Drop for SharedLedgerHandle {
    fn drop(&mut self) {
        self.shared.ask_to_close();
    }
}

impl TurnHand {
    /// Takes one turn.
    pub fn turn(&mut self) -> TurnOutcome {
        self.writer.turn()
    }

    /// Renews the gateway's presence. Returns `false` if the journal cannot be reached, or the gateway has halted.
    pub fn renew(&mut self) -> bool {
        let owner = self.writer.shared().live_owner();
        owner.is_some_and(|owner| self.presence.renew(owner).is_ok())
    }

    /// Gives up for callers that have waited too long.
    pub fn give_up(&mut self) {
        self.writer.shared().give_up();
    }
}

impl SharedLedger {
    /// Opens a ledger over a shared journal as gateway `owner`, and starts its threads. `next_owner` makes the name
    /// under which it continues after it was declared dead. Blocks until the journal was replayed.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be reached, is corrupt, breaks a rule of the ledger or has a newer format.
    pub fn open(
        journal: Box<dyn SharedJournal>,
        mut presence: Box<dyn GatewayPresence>,
        owner: Owner,
        next_owner: Box<dyn FnMut() -> Owner + Send>,
        clock: Arc<dyn Clock>,
        options: SharedLedgerOptions,
    ) -> Result<(Self, OpenReport), LedgerError> {
        let (ledger, writer, report) = Self::set_up(journal, owner, next_owner, clock, options)?;
        let shared = &ledger.handle.shared;
        let mut threads = LedgerThreads::default();
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.into());
            builder.spawn(run).map_err(|error| LedgerError::Thread(error.to_string()))
        };
        let sweeping = Arc::clone(shared);
        threads.others.push(start(
            "ledger-waits",
            Box::new(move || sweeping.repeat(SWEEP_EVERY, || sweeping.give_up())),
        )?);
        let renewing = Arc::clone(shared);
        threads.others.push(start(
            "ledger-presence",
            Box::new(move || {
                renewing.repeat(RENEW_EVERY, || {
                    if let Some(owner) = renewing.live_owner() {
                        // A failure shows in the next turn, which needs the same database.
                        let _ = presence.renew(owner);
                    }
                });
            }),
        )?);
        let thread = std::thread::Builder::new().name("ledger-turns".into());
        let thread = thread.spawn(move || take_turns(writer));
        threads.writer = Some(thread.map_err(|error| LedgerError::Thread(error.to_string()))?);
        *ledger.handle.threads.lock() = threads;
        Ok((ledger, report))
    }

    /// Like [`SharedLedger::open`], but without threads. The caller takes the turns, so that a simulation decides when
    /// and in which order they happen.
    ///
    /// # Errors
    /// Those of [`SharedLedger::open`].
    pub fn open_by_hand(
        journal: Box<dyn SharedJournal>,
        presence: Box<dyn GatewayPresence>,
        owner: Owner,
        next_owner: Box<dyn FnMut() -> Owner + Send>,
        clock: Arc<dyn Clock>,
        options: SharedLedgerOptions,
    ) -> Result<(Self, TurnHand), LedgerError> {
        let (ledger, writer, _) = Self::set_up(journal, owner, next_owner, clock, options)?;
        Ok((ledger, TurnHand { writer, presence }))
    }

    fn set_up(
        mut journal: Box<dyn SharedJournal>,
        owner: Owner,
        next_owner: Box<dyn FnMut() -> Owner + Send>,
        clock: Arc<dyn Clock>,
        options: SharedLedgerOptions,
    ) -> Result<(Self, TurnWriter, OpenReport), LedgerError> {
        let (base, report) = TurnWriter::load(journal.as_mut(), owner, options.newest_format)?;
        let history = journal.history();
        let inner = TurnState {
            core: LedgerCore::over(base.state.clone()),
            queue: VecDeque::new(),
            deadlines: VecDeque::new(),
            status: TurnStatus::Up,
            health: JournalHealth { sequence: base.sequence, ..JournalHealth::default() },
            owner,
            is_halted: false,
        };
        let (inner, work, ended) = (Mutex::new(inner), Condvar::new(), Condvar::new());
        let shared = Arc::new(TurnShared { inner, work, ended, clock, identities: OnceLock::new() });
        let writer = TurnWriter::new(Arc::clone(&shared), journal, base, next_owner, options);
        let handle = SharedLedgerHandle { shared, options, history, threads: Mutex::default() };
        Ok((Self { handle: Arc::new(handle) }, writer, report))
    }

    fn enqueue(
        &self,
        operations: Vec<LedgerOperation>,
        now: UnixNanos,
        caller: Option<Arc<dyn CallerCheck>>,
    ) -> Result<ReplyReceiver, BatchResult> {
        let shared = &self.handle.shared;
        let refused = |refusal: LedgerRefusal, count: usize| BatchResult {
            verdicts: vec![CommandResult::Refused(refusal); count],
            durable: DurableFuture::now(),
        };
        let count = operations.len();
        let must_be_written = all_end_work(&operations);
        let reply = ReplySlot::new();
        let mut inner = shared.inner.lock();
        if matches!(inner.status, TurnStatus::Closing | TurnStatus::Closed) {
            let why = inner.status.refusal().unwrap_or_default();
            return Err(refused(LedgerRefusal::Unavailable { why }, count));
        }
        let (queued, limit) = (inner.queue.len(), self.handle.options.max_queued_batches);
        if queued >= limit && !must_be_written {
            return Err(refused(LedgerRefusal::Busy { queued, limit }, count));
        }
        if !must_be_written {
            let wait = u64::try_from(self.handle.options.wait.as_nanos()).unwrap_or(u64::MAX);
            let at_nanos = shared.clock.monotonic_nanos().saturating_add(wait);
            inner.deadlines.push_back(WaitLimit { at_nanos, reply: Arc::clone(&reply), operations: count });
        }
        inner.queue.push_back(QueuedBatch {
            operations,
            asked: now,
            reply: Some(Arc::clone(&reply)),
            caller,
        });
        drop(inner);
        shared.work.notify_one();
        let shared: Weak<TurnShared> = Arc::downgrade(shared);
        let unclaimed: Weak<dyn UnclaimedHolds> = shared;
        Ok(ReplyReceiver::new(reply, unclaimed))
    }

    /// Applies all rows that any gateway has written, as far as the journal can be reached. Blocks for one turn, or until
    /// the wait for one is over.
    pub fn refresh(&self) {
        let _ = self.transact(Vec::new(), UnixNanos::new(0));
    }

    /// Checks the callers of [`LedgerClient::decide_for`] against `identities` from now on. Later calls change nothing.
    pub fn check_callers(&self, identities: Arc<dyn SharedIdentities>) {
        let _ = self.handle.shared.identities.set(identities);
    }

    fn decided(
        &self,
        batch: Vec<LedgerOperation>,
        now: UnixNanos,
        caller: Option<Arc<dyn CallerCheck>>,
    ) -> PendingBatch {
        match self.enqueue(batch, now, caller) {
            Ok(receiver) => PendingBatch::later(receiver),
            Err(refused) => PendingBatch::now(refused),
        }
    }

    /// Returns the state of a hold, as far as it is remembered.
    pub fn hold(&self, hold: &HoldId) -> Option<HoldView> {
        self.lock().core.hold_view(hold)
    }

    /// Returns the name under which this gateway takes holds now.
    pub fn owner(&self) -> Owner {
        self.lock().owner
    }

    /// Returns the health of the journal.
    pub fn health(&self) -> JournalHealth {
        let inner = self.lock();
        JournalHealth { down: inner.status.refusal(), ..inner.health.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.handle.shared.inner.lock()
    }
}

impl LedgerClient for SharedLedger {
    fn decide(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> PendingBatch {
        self.decided(batch, now, None)
    }

    fn checks_callers(&self) -> bool {
        self.handle.shared.identities.get().is_some()
    }

    fn counts_places(&self) -> bool {
        true
    }

    fn decide_for(
        &self,
        caller: Arc<dyn CallerCheck>,
        batch: Vec<LedgerOperation>,
        now: UnixNanos,
    ) -> PendingBatch {
        self.decided(batch, now, Some(caller))
    }

    fn standing_hint(&self, _org: &OrgId, _project: &ProjectId) -> StandingHint {
        StandingHint::Unknown
    }

    /// As of the last turn, which an idle gateway takes four times a second.
    fn knows_key(&self, project: &ProjectId, key: &str) -> bool {
        self.lock().core.knows_key(project, key)
    }

    fn keep(&self, hold: HoldId, _now: UnixNanos, lifetime: Duration) {
        // The caller's clock must not move the ledger's time, which is that of the journal.
        self.lock().core.keep(hold, UnixNanos::new(0), lifetime);
    }

    fn health(&self) -> JournalHealth {
        Self::health(self)
    }
}

/// Answers are as old as the last turn, which an idle gateway takes four times a second. After an empty batch, they
/// include what other gateways wrote before it.
impl LedgerAdmin for SharedLedger {
    /// Decides a batch in the next turn, and blocks until its row is durable. `now` is the caller's clock, to which
    /// expiries refer.
    fn transact(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> BatchResult {
        self.enqueue(batch, now, None).map_or_else(|refused| refused, ReplyReceiver::wait)
    }

    fn totals(&self) -> LedgerTotals {
        self.lock().core.totals()
    }

    fn open_holds(&self) -> Vec<HoldTaken> {
        self.lock().core.open_holds()
    }

    fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        self.lock().core.projects()
    }

    fn standing_at(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<SpendableBalance> {
        self.lock().core.standing(org, project, now)
    }

    fn budgets(&self, now: UnixNanos) -> Vec<BudgetReport> {
        self.lock().core.budgets(now)
    }

    fn alerts(&self) -> Vec<(UnixNanos, AlertRaised)> {
        self.lock().core.alerts()
    }

    fn lots(&self, org: Option<&OrgId>, now: UnixNanos) -> Vec<LotReport> {
        self.lock().core.lots(org, now)
    }

    fn free_tiers(&self, now: UnixNanos) -> Vec<FreeTierReport> {
        self.lock().core.free_tiers(now)
    }

    fn refund_by_reference(&self, org: &OrgId, reference: &str) -> Option<RefundMade> {
        self.lock().core.refund_by_reference(org, reference)
    }

    fn time(&self) -> UnixNanos {
        self.lock().core.time()
    }

    fn health(&self) -> JournalHealth {
        Self::health(self)
    }

    fn owner(&self) -> Option<Owner> {
        Some(Self::owner(self))
    }

    fn history(&self) -> &dyn JournalHistory {
        self.handle.history.as_ref()
    }

    /// Writes the queue, releases the holds of this gateway that are still open, leaves the journal and ends the
    /// threads.
    fn close(&self) -> Result<(), LedgerError> {
        self.handle.shared.ask_to_close();
        let threads = std::mem::take(&mut *self.handle.threads.lock());
        let panicked = || LedgerError::Thread("it panicked".into());
        let written =
            threads.writer.map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(panicked())));
        self.handle.shared.end();
        for thread in threads.others {
            thread.join().map_err(|_| panicked())?;
        }
        written
    }
}
