//! The ledger as a service: the core behind a lock, and one thread that writes the journal in groups.
//! Knows no clock (times are arguments) and no database (a [`Journal`] is given to it).
//!
//! **Two states.** `transact` decides on the *live* state and queues the transactions; the journal thread appends them
//! and, once they are on the disk, applies them to a *durable* state of its own. Batches that arrive while an append
//! is under way form the next group: one row, one fsync.
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

use crate::command::{Command, Owner, Receipt, Verdict};
use crate::core::Core;
use crate::durable::{Durable, Group, JournalFailed};
use crate::journal::{Journal, LedgerError};
use crate::refusal::LedgerRefusal;
use crate::state::{HoldView, Standing, Totals};
use crate::transaction::{Event, Held, Transaction};

mod replay;
mod writer;

use writer::Writer;

/// What can be set about a ledger. Every limit names its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerOptions {
    /// Transactions that may wait for the disk before new work is refused.
    pub max_queued_transactions: usize,
    /// Bytes of stored answers that may wait for the disk before new work is refused.
    pub max_queued_answer_bytes: usize,
    /// Rows between two snapshots at least; more when the state is large.
    pub snapshot_rows: u64,
    /// First wait before a failed journal is tried again; it doubles up to 20 times this.
    pub retry: Duration,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            max_queued_transactions: 16_384,
            max_queued_answer_bytes: 64 << 20,
            // Writing one keeps the journal's thread for some 10 ms at full state: rare enough that fewer than one
            // call in a hundred waits for it at ten thousand rows a second, and replaying as many rows takes a
            // fraction of a second.
            snapshot_rows: 65_536,
            retry: Duration::from_millis(50),
        }
    }
}

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

/// What the callers and the journal thread share.
struct Shared {
    inner: Mutex<Inner>,
    /// There is work for the journal thread.
    work: Condvar,
}

struct Inner {
    core: Core,
    forming: Forming,
    in_flight: Option<Arc<Group>>,
    status: Status,
    health: Health,
}

/// What the next append will write.
#[derive(Default)]
struct Forming {
    transactions: Vec<Transaction>,
    answer_bytes: usize,
    group: Arc<Group>,
}

#[derive(Clone, PartialEq, Eq)]
enum Status {
    Up,
    /// The journal failed and is being tried again.
    Down(Arc<str>),
    /// What is queued is written, nothing new is taken.
    Closing,
    /// The journal thread has ended.
    Closed,
}

/// How the journal does, for metrics and health checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Why commands are refused now, if they are.
    pub down: Option<Arc<str>>,
    /// The last row on the disk.
    pub sequence: u64,
    /// Appends that succeeded since the start.
    pub commits: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// How long the last append took, in nanoseconds: what the disk makes it.
    pub last_commit_nanos: u64,
    /// All appends together, in nanoseconds.
    pub total_commit_nanos: u64,
    /// Appends that failed.
    pub failures: u64,
    /// Holds that expired: whoever took them did not end them in time, and nothing was charged.
    pub expired: u64,
    /// Snapshots written.
    pub snapshots: u64,
    /// Snapshots that could not be written; the ledger goes on without.
    pub snapshot_failures: u64,
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
        let was_idle = inner.forming.transactions.is_empty();
        for command in batch {
            let verdict = inner.decide(command, now, &self.handle.options);
            verdicts.push(verdict.map_or_else(Verdict::Refused, Verdict::Done));
        }
        let has_work = !inner.forming.transactions.is_empty();
        let durable = inner.durable();
        drop(inner);
        if was_idle && has_work {
            self.handle.shared.work.notify_one();
        }
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

impl Shared {
    fn ask_to_close(&self) {
        let mut inner = self.inner.lock();
        if inner.status != Status::Closed {
            inner.status = Status::Closing;
        }
        drop(inner);
        self.work.notify_one();
    }
}

impl Status {
    fn refusal(&self) -> Option<Arc<str>> {
        match self {
            Self::Up => None,
            Self::Down(why) => Some(Arc::clone(why)),
            Self::Closing | Self::Closed => Some("it is closed".into()),
        }
    }
}

impl Inner {
    fn refuses_all(&self) -> Option<LedgerRefusal> {
        self.status.refusal().map(|why| LedgerRefusal::Unavailable { why })
    }

    fn decide(
        &mut self,
        command: Command,
        now: UnixNanos,
        options: &LedgerOptions,
    ) -> Result<Receipt, LedgerRefusal> {
        // What ends work is never refused for a full queue: there are at most as many of these as open holds.
        let ends_work = matches!(
            command,
            Command::Settle { .. }
                | Command::Release { .. }
                | Command::ReleaseOrphans { .. }
                | Command::ExpireHolds
        );
        let queued = self.forming.transactions.len();
        let full = queued >= options.max_queued_transactions
            || self.forming.answer_bytes >= options.max_queued_answer_bytes;
        if full && !ends_work {
            return Err(LedgerRefusal::Busy { queued, limit: options.max_queued_transactions });
        }
        let expires = command == Command::ExpireHolds;
        let applied = self.core.apply(command, now)?;
        if let Receipt::ReleasedMany { holds, .. } = &applied.receipt
            && expires
        {
            self.health.expired += holds.len() as u64;
        }
        for transaction in &applied.transactions {
            if let Event::Settled(settled) = &transaction.event {
                self.forming.answer_bytes += settled.answer.as_ref().map_or(0, |answer| answer.body.len());
            }
        }
        self.forming.transactions.extend(applied.transactions);
        Ok(applied.receipt)
    }

    /// What a batch decided now waits for: the group being formed, or else the one being written.
    fn durable(&self) -> Durable {
        if !self.forming.transactions.is_empty() {
            return Durable::of(Arc::clone(&self.forming.group));
        }
        self.in_flight.clone().map_or_else(Durable::now, Durable::of)
    }

    /// Takes the live state back to `core` and tells everyone whose batch is lost.
    fn fail_forming(&mut self, failed: &JournalFailed) {
        let forming = std::mem::take(&mut self.forming);
        forming.group.resolve(Err(failed.clone()));
    }
}
