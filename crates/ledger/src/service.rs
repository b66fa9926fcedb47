//! The ledger as a service: the core behind a lock, and one thread that writes the journal in groups.
//! Knows no clock (times are arguments) and no database (a [`Journal`] is given to it).
//!
//! **Two states.** `transact` decides on the *live* state and queues the transactions; the journal thread appends them
//! and, once they are on the disk, applies them to a *durable* state of its own. Batches that arrive while an append
//! is under way form the next group: one row, one fsync. An idle journal thread is woken by those who wait for a batch
//! ([`Durable`]), once for all that was decided by then. What nobody waits for is written with the next group that somebody does wait
//! for, or after two milliseconds: so most calls' ends, and the holds of calls that have nothing to say yet.
//!
//! **When an append fails**, everything queued was decided on a state that the disk may not have. Under the lock, the
//! live state becomes a copy of the durable one, every batch of the failed group and of those queued behind it
//! resolves to an error, and the ledger refuses new commands as `Unavailable`. The thread then asks the journal to
//! recover, at growing intervals; once it takes writes again, rows that reached the disk after all are read back and
//! applied (an fsync that reports an error may have written), and commands are taken again. A caller whose settlement
//! failed sends it again: its hold is open still, or `AlreadyResolved` says that the disk had it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_domain::{HoldId, OrgId, ProjectId, UnixNanos};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::command::{Command, Owner, Receipt};
use crate::core::Core;
use crate::durable::Durable;
use crate::journal::{Journal, LedgerError};
use crate::standing::{HoldView, Standing, Totals};
use crate::transaction::Held;
use crate::verdict::Verdict;

mod replay;
mod shared;
mod writer;

use shared::{Forming, Inner, Shared, Sleep, Status};
pub use shared::{Health, LedgerOptions};
use writer::Writer;

/// A handle to the ledger; clones are cheap and share it. Dropping the last one without [`Ledger::close`] still writes
/// what is queued, but does not wait for it.
#[derive(Clone)]
pub struct Ledger {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// The journal of a ledger that was opened by hand. Once it is dropped, what waits for the disk waits for ever.
pub struct JournalHand(Writer);

impl JournalHand {
    /// Writes what has queued up, or tries a journal that failed.
    pub fn turn(&mut self) {
        self.0.turn();
    }
}

struct Handle {
    shared: Arc<Shared>,
    options: LedgerOptions,
    thread: Mutex<Option<JoinHandle<Result<(), LedgerError>>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.ask_to_close();
    }
}

/// What opening found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenReport {
    /// The row that the snapshot stood at; 0 without one.
    pub snapshot_sequence: u64,
    /// Why the newest snapshot was passed over and everything replayed.
    pub snapshot_refused: Option<String>,
    /// Rows replayed after it.
    pub rows_replayed: u64,
    /// How far the time of the newest row lies ahead of the clock: budgets turn over when the clock has caught up, or
    /// when [`Command::SetClock`] sets it back.
    pub ahead: Duration,
    /// Holds of earlier processes that were released, and nothing charged.
    pub orphans: Vec<HoldId>,
    /// The sums after that.
    pub totals: Totals,
}

/// What became of a batch.
#[derive(Debug)]
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct Transacted {
    /// One per command, in order. Decided in memory, at once.
    pub verdicts: Vec<Verdict>,
    /// Resolves when everything that the verdicts rest on is on the disk.
    pub durable: Durable,
}

impl Ledger {
    /// Opens a ledger over a journal: replays it, then releases the holds of every owner but this one.
    /// Blocks until that is on the disk.
    ///
    /// # Errors
    /// When the journal cannot be read or written, is corrupt, breaks a rule of the ledger or has a newer format.
    pub fn open(
        journal: Box<dyn Journal>,
        owner: Owner,
        now: UnixNanos,
    ) -> Result<(Self, OpenReport), LedgerError> {
        Self::open_with(journal, owner, now, LedgerOptions::default())
    }

    /// As [`Ledger::open`], with limits of one's own.
    ///
    /// # Errors
    /// As there.
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
        ledger.release_orphans(owner, now, &mut report, || {})?;
        Ok((ledger, report))
    }

    /// As [`Ledger::open`], without a thread: the journal is written when the caller turns it, so that a simulation
    /// decides when and in which order things happen.
    ///
    /// # Errors
    /// As there.
    pub fn open_by_hand(
        journal: Box<dyn Journal>,
        owner: Owner,
        now: UnixNanos,
    ) -> Result<(Self, JournalHand), LedgerError> {
        let (ledger, writer, mut report) = Self::set_up(journal, now, LedgerOptions::default())?;
        let mut hand = JournalHand(writer);
        ledger.release_orphans(owner, now, &mut report, || hand.turn())?;
        Ok((ledger, hand))
    }

    fn set_up(
        mut journal: Box<dyn Journal>,
        now: UnixNanos,
        options: LedgerOptions,
    ) -> Result<(Self, Writer, OpenReport), LedgerError> {
        let replayed = replay::replay(journal.as_mut())?;
        let report = OpenReport {
            snapshot_sequence: replayed.snapshot_sequence,
            snapshot_refused: replayed.snapshot_refused.clone(),
            rows_replayed: replayed.rows,
            ahead: replayed.state.time.since(now),
            ..OpenReport::default()
        };
        let inner = Inner {
            core: Core::over(replayed.state.clone()),
            forming: Forming::default(),
            in_flight: None,
            status: Status::Up,
            health: Health { sequence: replayed.sequence, ..Health::default() },
            sleep: Sleep::Awake,
        };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), work: Condvar::new() });
        let writer = Writer::new(Arc::clone(&shared), journal, replayed, options);
        let handle = Handle { shared, options, thread: Mutex::new(None) };
        Ok((Self { handle: Arc::new(handle) }, writer, report))
    }

    fn release_orphans(
        &self,
        owner: Owner,
        now: UnixNanos,
        report: &mut OpenReport,
        turn: impl FnOnce(),
    ) -> Result<(), LedgerError> {
        let released = self.transact(vec![Command::ReleaseOrphans { current_owner: owner }], now);
        turn();
        if let Err(failed) = released.durable.wait() {
            return Err(LedgerError::NotWritten(failed));
        }
        for verdict in released.verdicts {
            if let Verdict::Done(Receipt::ReleasedMany { holds, .. }) = verdict {
                report.orphans.extend(holds);
            }
        }
        report.totals = self.totals();
        Ok(())
    }

    /// Decides a batch at `now`, each command on the outcome of those before it. What is done is done in memory at
    /// once and on the disk when `durable` resolves: all of the batch or none. A refusal, too, may rest on changes
    /// that are not on the disk yet, and `durable` waits for these.
    pub fn transact(&self, batch: Vec<Command>, now: UnixNanos) -> Transacted {
        let mut verdicts = Vec::with_capacity(batch.len());
        let mut inner = self.handle.shared.inner.lock();
        if let Some(refusal) = inner.refuses_all() {
            verdicts.resize(batch.len(), Verdict::Refused(refusal));
            return Transacted { verdicts, durable: Durable::now() };
        }
        for command in batch {
            let verdict = inner.decide(command, now, &self.handle.options);
            verdicts.push(verdict.map_or_else(Verdict::Refused, Verdict::Done));
        }
        let awaited = inner.awaited();
        drop(inner);
        let durable = awaited
            .map_or_else(Durable::now, |group| Durable::of(group, Arc::<Shared>::clone(&self.handle.shared)));
        Transacted { verdicts, durable }
    }

    /// A read-only look at what an organisation and a project can spend, as of the latest time that the ledger has
    /// seen. `None` if there is no such project in the organisation. Calls in flight may change it at any moment.
    pub fn standing(&self, org: &OrgId, project: &ProjectId) -> Option<Standing> {
        self.standing_at(org, project, UnixNanos::new(0))
    }

    /// As [`Ledger::standing`], at a time of the caller's: it matters to monthly budgets at the turn of a month.
    pub fn standing_at(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<Standing> {
        self.lock().core.standing(org, project, now)
    }

    /// What became of a hold, as far as it is remembered.
    pub fn hold(&self, hold: &HoldId) -> Option<HoldView> {
        self.lock().core.hold_view(hold)
    }

    /// Says at `now` that whoever took the hold is still at work: it does not expire for another `lifetime`. In memory
    /// only, and also while the journal is down: to another process expiry means nothing.
    pub fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        self.lock().core.keep(hold, now, lifetime);
    }

    /// Every open hold, oldest id first.
    pub fn open_holds(&self) -> Vec<Held> {
        self.lock().core.open_holds()
    }

    /// Every project and its organisation, in order of both names.
    pub fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        self.lock().core.projects()
    }

    /// Sums over everything.
    pub fn totals(&self) -> Totals {
        self.lock().core.totals()
    }

    /// The time of its newest transaction.
    pub fn time(&self) -> UnixNanos {
        self.lock().core.time()
    }

    /// How the journal does.
    pub fn health(&self) -> Health {
        let inner = self.lock();
        let down = inner.status.refusal();
        Health { down, ..inner.health.clone() }
    }

    /// Writes what is queued and a snapshot, and ends the journal thread. Blocks. Other handles refuse from now on.
    ///
    /// # Errors
    /// When what was queued could not be written.
    pub fn close(self) -> Result<(), LedgerError> {
        self.handle.shared.ask_to_close();
        let Some(thread) = self.handle.thread.lock().take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(LedgerError::Thread("it panicked".into())))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.handle.shared.inner.lock()
    }
}
