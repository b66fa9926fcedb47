//! The ledger as a service: the core behind a lock, and one thread that writes the journal in groups. Knows no clock
//! (times are arguments) and no database (the caller provides a [`Journal`]).
//!
//! **Two states.** `transact` decides on the *live* state and queues the transactions. The journal thread appends them
//! and, when they are on the disk, applies them to a *durable* state of its own. Batches that arrive during an append
//! form the next group: one row, one fsync. A caller that waits for a batch ([`DurableFuture`]) wakes an idle journal thread
//! once for all batches decided by then. A batch without a waiting caller is written with the next group that has one,
//! or after two milliseconds. This applies to most settlements, and to the holds of calls that have no output yet.
//!
//! **When an append fails**, all queued batches were decided on a state that the disk may not have. Under the lock, the
//! live state then becomes a copy of the durable one. All batches of the failed group and of the queue resolve to an
//! error, and the ledger refuses new commands as `Unavailable`. The thread asks the journal to recover, at growing
//! intervals. When the journal accepts writes again, rows that reached the disk after all are read back and applied,
//! because an fsync that reports an error may still have written. Then commands are accepted again. A caller whose
//! settlement failed sends it again: either its hold is still open, or `AlreadyResolved` shows that the disk had the
//! settlement.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_domain::{HoldId, OrgId, ProjectId, UnixNanos};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::budget_rule::{AlertRaised, BudgetReport};
use crate::command::{LedgerOperation, Owner, Receipt};
use crate::core::LedgerCore;
use crate::durable::DurableFuture;
use crate::free_tier::FreeTierReport;
use crate::journal::{Journal, LedgerError};
use crate::lot::LotReport;
use crate::refund::RefundMade;
use crate::replay::replay;
use crate::standing::{HoldView, LedgerTotals, SpendableBalance};
use crate::transaction::HoldTaken;
use crate::verdict::CommandResult;

mod shared;
mod writer;

use shared::{FormingGroup, LedgerShared, ServiceStatus, SharedState, WriterSleep};
pub use shared::{JournalHealth, LedgerOptions};
use writer::JournalWriter;

/// A handle to the ledger. Clones are cheap and share the ledger. Dropping the last one without [`Ledger::close`] still
/// writes the queue, but does not wait for that.
#[derive(Clone)]
pub struct Ledger {
    handle: Arc<LedgerHandle>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// The journal of a ledger that was opened by [`Ledger::open_by_hand`]. After it is dropped, pending batches never
/// resolve.
pub struct JournalHand(JournalWriter);

impl JournalHand {
    /// Writes the queue, or retries a journal that failed.
    pub fn turn(&mut self) {
        self.0.turn();
    }
}

struct LedgerHandle {
    shared: Arc<LedgerShared>,
    options: LedgerOptions,
    thread: Mutex<Option<JoinHandle<Result<(), LedgerError>>>>,
}

impl Drop for LedgerHandle {
    fn drop(&mut self) {
        self.shared.ask_to_close();
    }
}

/// The results of opening a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenReport {
    /// The row of the snapshot that was used, or 0 without one.
    pub snapshot_sequence: u64,
    /// The reason why the newest snapshot was skipped. An older snapshot, or none, was used instead.
    pub snapshot_refused: Option<String>,
    /// The number of rows replayed after the snapshot.
    pub rows_replayed: u64,
    /// How far the time of the newest row is ahead of the clock. Budgets do not turn over until the clock has caught up
    /// or [`LedgerOperation::SetClock`] sets ledger time back.
    pub ahead: Duration,
    /// Holds of earlier processes that were released without a charge.
    pub orphans: Vec<HoldId>,
    /// The totals after that.
    pub totals: LedgerTotals,
}

/// The result of a batch.
#[derive(Debug)]
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct BatchResult {
    /// One verdict per command, in order. They are decided at once, in memory.
    pub verdicts: Vec<CommandResult>,
    /// Resolves when everything that the verdicts depend on is on the disk.
    pub durable: DurableFuture,
}

impl Ledger {
    /// Opens a ledger over a journal: replays the journal, then releases the holds of owners that have ended. These are
    /// all owners except this one, because one process at a time has the journal. Blocks until the releases are on the
    /// disk.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read or written, is corrupt, breaks a rule of the ledger or has a
    /// newer format.
    pub fn open(
        journal: Box<dyn Journal>,
        owner: Owner,
        now: UnixNanos,
    ) -> Result<(Self, OpenReport), LedgerError> {
        Self::open_with(journal, owner, now, LedgerOptions::default())
    }

    /// Like [`Ledger::open`], with custom limits.
    ///
    /// # Errors
    /// Those of [`Ledger::open`].
    pub fn open_with(
        journal: Box<dyn Journal>,
        owner: Owner,
        now: UnixNanos,
        options: LedgerOptions,
    ) -> Result<(Self, OpenReport), LedgerError> {
        let (ledger, writer, mut report) = Self::set_up(journal, now, options)?;
        let thread = std::thread::Builder::new()
            .name("ledger-journal".into())
            .spawn(move || writer.run())
            .map_err(|error| LedgerError::Thread(error.to_string()))?;
        *ledger.handle.thread.lock() = Some(thread);
        ledger.release_all_but(owner, now, &mut report, || {})?;
        Ok((ledger, report))
    }

    /// Like [`Ledger::open`], but without a thread. The caller turns the journal with [`JournalHand::turn`], so that a
    /// simulation decides when and in which order writes happen.
    ///
    /// # Errors
    /// Those of [`Ledger::open`].
    pub fn open_by_hand(
        journal: Box<dyn Journal>,
        owner: Owner,
        now: UnixNanos,
    ) -> Result<(Self, JournalHand), LedgerError> {
        let (ledger, writer, mut report) = Self::set_up(journal, now, LedgerOptions::default())?;
        let mut hand = JournalHand(writer);
        ledger.release_all_but(owner, now, &mut report, || hand.turn())?;
        Ok((ledger, hand))
    }

    fn set_up(
        mut journal: Box<dyn Journal>,
        now: UnixNanos,
        options: LedgerOptions,
    ) -> Result<(Self, JournalWriter, OpenReport), LedgerError> {
        let replayed = replay(journal.as_mut())?;
        let report = OpenReport {
            snapshot_sequence: replayed.snapshot_sequence,
            snapshot_refused: replayed.snapshot_refused.clone(),
            rows_replayed: replayed.rows,
            ahead: replayed.state.time.since(now),
            ..OpenReport::default()
        };
        let inner = SharedState {
            core: LedgerCore::over(replayed.state.clone()),
            forming: FormingGroup::default(),
            in_flight: None,
            status: ServiceStatus::Up,
            health: JournalHealth { sequence: replayed.sequence, ..JournalHealth::default() },
            sleep: WriterSleep::Awake,
        };
        let shared = Arc::new(LedgerShared { inner: Mutex::new(inner), work: Condvar::new() });
        let writer = JournalWriter::new(Arc::clone(&shared), journal, replayed, options);
        let handle = LedgerHandle { shared, options, thread: Mutex::new(None) };
        Ok((Self { handle: Arc::new(handle) }, writer, report))
    }

    /// Releases the holds of every owner except this one.
    fn release_all_but(
        &self,
        owner: Owner,
        now: UnixNanos,
        report: &mut OpenReport,
        turn: impl FnOnce(),
    ) -> Result<(), LedgerError> {
        let ended = self.owners().into_iter().filter(|other| *other != owner).collect();
        let released = self.transact(vec![LedgerOperation::ReleaseOwners { ended }], now);
        turn();
        if let Err(failed) = released.durable.wait() {
            return Err(LedgerError::NotWritten(failed));
        }
        for verdict in released.verdicts {
            if let CommandResult::Done(Receipt::ReleasedMany { holds, .. }) = verdict {
                report.orphans.extend(holds);
            }
        }
        report.totals = self.totals();
        Ok(())
    }

    /// Decides a batch at `now`, each command on the outcome of the earlier ones. Changes take effect in memory at
    /// once, and on the disk when `durable` resolves: either all of the batch or none. A refusal may also depend on
    /// changes that are not on the disk yet, and `durable` waits for those, too.
    pub fn transact(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> BatchResult {
        let mut verdicts = Vec::with_capacity(batch.len());
        let mut inner = self.handle.shared.inner.lock();
        if let Some(refusal) = inner.refuses_all() {
            verdicts.resize(batch.len(), CommandResult::Refused(refusal));
            return BatchResult { verdicts, durable: DurableFuture::now() };
        }
        for command in batch {
            let verdict = inner.decide(command, now, &self.handle.options);
            verdicts.push(verdict.map_or_else(CommandResult::Refused, CommandResult::Done));
        }
        let awaited = inner.awaited();
        drop(inner);
        let durable = awaited.map_or_else(DurableFuture::now, |group| {
            DurableFuture::of(group, Arc::<LedgerShared>::clone(&self.handle.shared))
        });
        BatchResult { verdicts, durable }
    }

    /// Returns the amounts that an organisation and a project can spend, as of the latest time that the ledger has
    /// seen. `None` if the organisation has no such project. Calls in flight may change the amounts at any moment.
    pub fn standing(&self, org: &OrgId, project: &ProjectId) -> Option<SpendableBalance> {
        self.standing_at(org, project, UnixNanos::new(0))
    }

    /// Like [`Ledger::standing`], at a time that the caller gives. The time matters to monthly budgets at the turn of a
    /// month.
    pub fn standing_at(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<SpendableBalance> {
        self.lock().core.standing(org, project, now)
    }

    /// Returns whether a call of the project claimed this idempotency key. It may have ended since, or expired.
    pub fn knows_key(&self, project: &ProjectId, key: &str) -> bool {
        self.lock().core.knows_key(project, key)
    }

    /// Returns the state of a hold, as far as it is remembered.
    pub fn hold(&self, hold: &HoldId) -> Option<HoldView> {
        self.lock().core.hold_view(hold)
    }

    /// Records at `now` that the owner of the hold is still working. The hold does not expire for another `lifetime`.
    /// This is kept in memory only, and works while the journal is down, because the expiry means nothing to another
    /// process.
    pub fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        self.lock().core.keep(hold, now, lifetime);
    }

    /// Returns all open holds, oldest id first.
    pub fn open_holds(&self) -> Vec<HoldTaken> {
        self.lock().core.open_holds()
    }

    /// Returns the owners of all open holds, in order and each once.
    pub fn owners(&self) -> Vec<Owner> {
        self.lock().core.owners()
    }

    /// Returns all projects with their organisations, sorted by both names.
    pub fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        self.lock().core.projects()
    }

    /// Returns the totals over the whole ledger.
    pub fn totals(&self) -> LedgerTotals {
        self.lock().core.totals()
    }

    /// Returns all budget rules with the counters of their current windows at `now`, by name.
    pub fn budgets(&self, now: UnixNanos) -> Vec<BudgetReport> {
        self.lock().core.budgets(now)
    }

    /// Returns the newest alerts with the times at which they were raised, oldest first, at most 1,000.
    pub fn alerts(&self) -> Vec<(UnixNanos, AlertRaised)> {
        self.lock().core.alerts()
    }

    /// Returns the lots that have not ended at `now`, of an organisation or of all, in the order in which they were made.
    pub fn lots(&self, org: Option<&OrgId>, now: UnixNanos) -> Vec<LotReport> {
        self.lock().core.lots(org, now)
    }

    /// Returns all free tiers with the counters of their current windows at `now`, by name.
    pub fn free_tiers(&self, now: UnixNanos) -> Vec<FreeTierReport> {
        self.lock().core.free_tiers(now)
    }

    /// Returns the refund of an organisation with this reference.
    pub fn refund_by_reference(&self, org: &OrgId, reference: &str) -> Option<RefundMade> {
        self.lock().core.refund_by_reference(org, reference)
    }

    /// Returns the time of the newest transaction.
    pub fn time(&self) -> UnixNanos {
        self.lock().core.time()
    }

    /// Returns the health of the journal.
    pub fn health(&self) -> JournalHealth {
        let inner = self.lock();
        let down = inner.status.refusal();
        JournalHealth { down, ..inner.health.clone() }
    }

    /// Writes the queue and a snapshot, and ends the journal thread. Blocks. Other handles refuse commands from now on.
    ///
    /// # Errors
    /// Returns an error if the queue could not be written.
    pub fn close(self) -> Result<(), LedgerError> {
        self.handle.shared.ask_to_close();
        let Some(thread) = self.handle.thread.lock().take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(LedgerError::Thread("it panicked".into())))
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.handle.shared.inner.lock()
    }
}
