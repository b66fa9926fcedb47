//! Takes turns: applies what other gateways wrote, decides what waits, and writes one row. Makes no decisions about
//! money; the core does. Knows nothing of the database behind the journal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::{HoldId, UnixNanos};

use crate::command::{LedgerOperation, Owner, Receipt};
use crate::journal::{JournalError, JournalRow, LedgerError, StateSnapshot};
use crate::record::encode_payload;
use crate::refusal::LedgerRefusal;
use crate::replay::{ReplayedState, replay};
use crate::service::OpenReport;
use crate::snapshot;
use crate::snapshot_schedule::SnapshotSchedule;
use crate::transaction::Transaction;
use crate::verdict::CommandResult;

use super::clock_check::JournalClockCheck;
use super::decide::decide_batch;
use super::journal::{SharedJournal, StartedTurn, TurnStamp};
use super::reply::{UnclaimedHolds as _, holds_taken};
use super::shared::{QueuedBatch, SharedLedgerOptions, TurnShared, TurnState, TurnStatus};
use super::vanished::{LossError, RowPosition, VanishedRows, in_doubt};

/// The number of rows that a turn reads while it has the lock. A gateway that is further behind catches up without it.
const PAGE_ROWS: usize = 500;
/// The maximum number of transactions in one row.
const ROW_TRANSACTIONS: usize = 4_096;
/// How often a gateway looks for others that ended.
const LAPSE_CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often a turn begins anew because identities changed while it loaded them.
const IDENTITY_LOADS: u32 = 16;

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnOutcome {
    /// A row was written.
    Written,
    /// Nothing was to be written.
    Read,
    /// The turn failed. Its commands wait for the next one.
    Failed,
}

/// Decides batches in turns, for one gateway.
pub(super) struct TurnWriter {
    shared: Arc<TurnShared>,
    journal: Box<dyn SharedJournal>,
    next_owner: Box<dyn FnMut() -> Owner + Send>,
    options: SharedLedgerOptions,
    /// The state as of the last durable row that this gateway knows.
    base: ReplayedState,
    owner: Owner,
    /// The number of the last turn that wrote, or tried to.
    turn: u64,
    /// Whether the journal was left in doubt, or could not be reached.
    must_join: bool,
    /// A turn whose outcome is not known.
    unknown: Option<UnknownTurn>,
    /// Batches whose turn did not happen.
    again: VecDeque<QueuedBatch>,
    /// Why the ledger must not decide until a person has looked at it.
    halted: Option<LedgerError>,
    /// The last row on which a verdict rests that a caller of this gateway received.
    confirmed: RowPosition,
    /// Rows that this gateway has read, and that are no longer in the journal.
    vanished: Option<VanishedRows>,
    checked_lapsed: Option<u64>,
    /// Since when every turn of this gateway succeeded, on the monotonic clock. While the journal is away, no
    /// gateway can renew its presence.
    in_contact_since: u64,
    schedule: SnapshotSchedule,
    clock_check: JournalClockCheck,
}

/// A batch with its verdicts, which its caller learns after the commit.
struct DecidedBatch {
    batch: QueuedBatch,
    verdicts: Vec<CommandResult>,
}

struct UnknownTurn {
    row: JournalRow,
    transactions: Vec<Transaction>,
    decided: Vec<DecidedBatch>,
}

fn check_format(found: u32, known: u32) -> Result<(), JournalError> {
    if found > known {
        return Err(JournalError::NewerFormat { what: "journal row", found, known });
    }
    Ok(())
}

fn schedule_after(replayed: &ReplayedState, options: SharedLedgerOptions) -> SnapshotSchedule {
    SnapshotSchedule::after(replayed, options.snapshot_rows, options.snapshot_transactions)
}

impl TurnWriter {
    /// Joins the journal as `owner`, and replays it.
    pub(super) fn load(
        journal: &mut dyn SharedJournal,
        owner: Owner,
        newest_format: u32,
    ) -> Result<(ReplayedState, OpenReport), LedgerError> {
        journal.join(owner, newest_format)?;
        let replayed = replay(journal)?;
        check_format(replayed.newest_format, newest_format)?;
        let report = OpenReport {
            snapshot_sequence: replayed.snapshot_sequence,
            snapshot_refused: replayed.snapshot_refused.clone(),
            rows_replayed: replayed.rows,
            totals: replayed.state.totals(),
            ..OpenReport::default()
        };
        Ok((replayed, report))
    }

    pub(super) fn new(
        shared: Arc<TurnShared>,
        journal: Box<dyn SharedJournal>,
        base: ReplayedState,
        next_owner: Box<dyn FnMut() -> Owner + Send>,
        options: SharedLedgerOptions,
    ) -> Self {
        let owner = shared.inner.lock().owner;
        let schedule = schedule_after(&base, options);
        let in_contact_since = shared.clock.monotonic_nanos();
        Self {
            shared,
            journal,
            next_owner,
            options,
            base,
            owner,
            turn: 0,
            must_join: false,
            unknown: None,
            again: VecDeque::new(),
            halted: None,
            confirmed: RowPosition::START,
            vanished: None,
            checked_lapsed: None,
            in_contact_since,
            schedule,
            clock_check: JournalClockCheck::default(),
        }
    }

    pub(super) const fn shared(&self) -> &Arc<TurnShared> {
        &self.shared
    }

    /// Waits until there is work, or it is time to read the rows of others. Returns whether the ledger is closing.
    pub(super) fn wait_for_work(&mut self) -> bool {
        let mut inner = self.shared.inner.lock();
        let is_closing = |inner: &TurnState| matches!(inner.status, TurnStatus::Closing | TurnStatus::Closed);
        if inner.queue.is_empty() && self.again.is_empty() && self.unknown.is_none() && !is_closing(&inner) {
            self.shared.work.wait_for(&mut inner, self.options.refresh);
        }
        is_closing(&inner)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.again.is_empty() && self.unknown.is_none() && self.shared.inner.lock().queue.is_empty()
    }

    /// Queues the release of the holds that this gateway still has.
    pub(super) fn release_own(&mut self) {
        let ended = vec![self.owner];
        let asked = UnixNanos::new(0);
        let operations = vec![LedgerOperation::ReleaseOwners { ended }];
        self.again.push_back(QueuedBatch { operations, asked, reply: None, caller: None });
    }

    /// Whether nothing waits to be decided again.
    pub(super) fn has_decided_all(&self) -> bool {
        self.again.is_empty() && self.unknown.is_none()
    }

    /// Leaves the journal, with a snapshot for the next start.
    pub(super) fn leave(&mut self) -> Result<(), LedgerError> {
        if self.schedule.has_rows() {
            self.snapshot();
        }
        Ok(self.journal.leave(self.owner)?)
    }

    /// Takes one turn.
    pub(super) fn turn(&mut self) -> TurnOutcome {
        match self.try_turn() {
            Ok(outcome) => {
                self.recovered();
                outcome
            }
            Err(error) => {
                self.failed(&error);
                TurnOutcome::Failed
            }
        }
    }

    fn try_turn(&mut self) -> Result<TurnOutcome, LedgerError> {
        if let Some(error) = &self.halted {
            return Err(error.clone());
        }
        if self.must_join {
            self.journal.join(self.owner, self.options.newest_format)?;
            self.must_join = false;
        }
        self.observe_vanished()?;
        let Some(started) = self.begin()? else { return Ok(TurnOutcome::Read) };
        let dead: Vec<Owner> = started.lapsed.iter().copied().filter(|owner| *owner != self.owner).collect();
        let (decided, transactions) = self.decide(&started, &dead);
        if transactions.is_empty() && dead.is_empty() {
            self.journal.abandon();
            self.answer(decided);
            return Ok(TurnOutcome::Read);
        }
        self.commit(decided, transactions, &dead)
    }

    /// Locks the head and applies all rows of others. Returns `None` if this gateway was declared dead and has joined
    /// again under another name.
    fn begin(&mut self) -> Result<Option<StartedTurn>, LedgerError> {
        let now = self.shared.clock.monotonic_nanos();
        let since = |at: u64| Duration::from_nanos(now.saturating_sub(at));
        // Others had this long to renew their presence.
        let is_due = since(self.in_contact_since) >= self.options.lease
            && self.checked_lapsed.is_none_or(|at| since(at) >= LAPSE_CHECK_EVERY);
        let lease = is_due.then_some(self.options.lease);
        let mut loads = 0;
        loop {
            let started = self.journal.begin(self.owner, self.base.sequence, PAGE_ROWS, lease)?;
            let is_other = |row: &JournalRow| row.previous != self.base.checksum;
            if started.head < self.base.sequence || started.rows.first().is_some_and(is_other) {
                self.journal.abandon();
                return Err(self.rows_vanished(&started));
            }
            if let Err(error) = self.follow_all(&started.rows) {
                self.journal.abandon();
                return Err(error);
            }
            if self.base.sequence < started.head {
                // Too far behind to catch up while others wait.
                self.journal.abandon();
                self.catch_up(started.head)?;
                continue;
            }
            if self.base.checksum != started.checksum {
                self.journal.abandon();
                return Err(self.rows_vanished(&started));
            }
            self.resolve_unknown();
            if let Err(error) = self.clock_check.check(started.time, self.shared.clock.monotonic_nanos()) {
                self.journal.abandon();
                return Err(error);
            }
            if !started.is_live {
                self.journal.abandon();
                self.rename()?;
                return Ok(None);
            }
            if self.must_load_identities(&started) {
                // Without the lock: a change may wait for it.
                self.journal.abandon();
                loads += 1;
                self.load_identities(loads)?;
                continue;
            }
            if is_due {
                self.checked_lapsed = Some(now);
            }
            return Ok(Some(started));
        }
    }

    /// Whether callers must be checked in this turn against identities that changed since they were loaded.
    fn must_load_identities(&self, started: &StartedTurn) -> bool {
        let has_changed =
            self.shared.identities.get().is_some_and(|known| known.loaded() < started.identity_changes);
        let has_caller = |batch: &QueuedBatch| batch.caller.is_some();
        has_changed
            && (self.again.iter().any(has_caller) || self.shared.inner.lock().queue.iter().any(has_caller))
    }

    fn load_identities(&self, loads: u32) -> Result<(), LedgerError> {
        if loads > IDENTITY_LOADS {
            let why = "identities change faster than this gateway can load them".to_owned();
            return Err(JournalError::Io(why).into());
        }
        match self.shared.identities.get() {
            Some(known) => Ok(known.load()?),
            None => Ok(()),
        }
    }

    /// Applies rows without the lock until row `head` is reached.
    fn catch_up(&mut self, head: u64) -> Result<(), LedgerError> {
        while self.base.sequence < head {
            let rows = self.journal.rows_after(self.base.sequence, PAGE_ROWS)?;
            if rows.is_empty() {
                let why = format!("it is missing, and the journal's head is row {head}");
                return Err(self.halt(JournalError::Corrupt { sequence: self.base.sequence + 1, why }.into()));
            }
            self.follow_all(&rows)?;
        }
        Ok(())
    }

    /// Applies rows to the durable state and to the live one, which are equal between turns. A row that breaks a rule
    /// or cannot be read halts the ledger: later decisions would rest on a state that no other gateway has.
    fn follow_all(&mut self, rows: &[JournalRow]) -> Result<(), LedgerError> {
        for row in rows {
            self.follow(row).map_err(|error| self.halt(error))?;
            self.settle_unknown(row);
        }
        Ok(())
    }

    fn follow(&mut self, row: &JournalRow) -> Result<(), LedgerError> {
        check_format(row.format_version, self.options.newest_format)?;
        let transactions = self.base.follow(row)?;
        self.schedule.count(1, transactions.len());
        let mut inner = self.shared.inner.lock();
        for transaction in &transactions {
            let followed = inner.core.follow(transaction);
            followed.map_err(|breach| LedgerError::Breach { sequence: row.sequence, why: breach.why() })?;
        }
        inner.health.sequence = row.sequence;
        Ok(())
    }

    fn halt(&mut self, error: LedgerError) -> LedgerError {
        self.halted = Some(error.clone());
        self.shared.inner.lock().is_halted = true;
        error
    }

    /// Answers the callers of the unknown turn if its row is this one.
    fn settle_unknown(&mut self, row: &JournalRow) {
        if let Some(unknown) = self.unknown.take_if(|unknown| unknown.row.checksum == row.checksum) {
            tracing::info!(
                row = row.sequence,
                "a commit of the shared ledger whose outcome was unknown happened"
            );
            self.confirmed = RowPosition::of(row);
            self.count_commit(&unknown.transactions, None);
            self.answer(unknown.decided);
        }
    }

    /// The head is locked, all rows are known, and the row of the unknown turn is not among them: it never happened.
    fn resolve_unknown(&mut self) {
        if let Some(unknown) = self.unknown.take() {
            tracing::info!(
                row = unknown.row.sequence,
                "a commit of the shared ledger did not happen; it is decided anew"
            );
            self.decide_again(unknown.decided);
        }
    }

    fn decide_again(&mut self, decided: Vec<DecidedBatch>) {
        for decided in decided.into_iter().rev() {
            self.again.push_front(decided.batch);
        }
    }

    /// Returns the error of a turn whose journal does not have the last row that this gateway has read. Halts if a row
    /// is lost that was acknowledged to one of its callers.
    fn rows_vanished(&mut self, started: &StartedTurn) -> LedgerError {
        let (read, head) = (self.base.sequence, started.head);
        match VanishedRows::missed(self.journal.as_mut(), (self.owner, read), head, self.confirmed) {
            Ok(vanished) => {
                self.vanished = Some(vanished);
                in_doubt()
            }
            Err(LossError::Lost(loss)) => self.halt(loss),
            // The next turn misses the row again.
            Err(LossError::Unreachable(error)) => error.into(),
        }
    }

    /// Continues from what the journal has if rows vanished that were never acknowledged.
    fn observe_vanished(&mut self) -> Result<(), LedgerError> {
        let Some(vanished) = &self.vanished else { return Ok(()) };
        match vanished.are_gateways_running(self.journal.as_mut(), self.owner)? {
            None => return Err(in_doubt()),
            Some(true) => {}
            Some(false) => {
                let loss = vanished.loss();
                return Err(self.halt(loss));
            }
        }
        let replayed = replay(self.journal.as_mut())?;
        tracing::warn!(
            from = self.base.sequence,
            to = replayed.sequence,
            "the rows that vanished were never acknowledged; this gateway continues from what the journal has"
        );
        self.vanished = None;
        // A turn whose outcome is unknown followed rows that vanished, so its row is not in the journal either. The next
        // turn decides its commands again.
        self.schedule = schedule_after(&replayed, self.options);
        self.base = replayed;
        self.undo();
        Ok(())
    }

    fn rename(&mut self) -> Result<(), LedgerError> {
        let former = std::mem::replace(&mut self.owner, (self.next_owner)());
        self.turn = 0;
        tracing::error!(
            former = %format_args!("{:032x}", former.get()),
            "this gateway did not reach the shared ledger for so long that others declared it dead and released its holds; it \
             continues under another name"
        );
        self.shared.inner.lock().owner = self.owner;
        self.must_join = true;
        self.journal.join(self.owner, self.options.newest_format)?;
        self.must_join = false;
        Ok(())
    }

    /// Decides all batches that wait, and releases the holds of dead gateways.
    fn decide(&mut self, started: &StartedTurn, dead: &[Owner]) -> (Vec<DecidedBatch>, Vec<Transaction>) {
        let has_all_identities =
            self.shared.identities.get().is_none_or(|known| known.loaded() >= started.identity_changes);
        // A gateway that cannot read rows that the journal has is lost already.
        let format = started.newest_format.max(self.base.newest_format);
        let mut transactions = Vec::new();
        let mut decided = Vec::new();
        let mut inner = self.shared.inner.lock();
        if !dead.is_empty() {
            let release = LedgerOperation::ReleaseOwners { ended: dead.to_vec() };
            if let Ok(Receipt::ReleasedMany { holds, .. }) =
                inner.core.apply_to(release, started.time, &mut transactions)
                && !holds.is_empty()
            {
                let (count, gateways) = (holds.len(), dead.len());
                tracing::warn!(
                    count,
                    gateways,
                    "released the holds of gateways that ended; nothing was charged"
                );
            }
        }
        while transactions.len() < ROW_TRANSACTIONS {
            let Some(batch) = self.again.pop_front().or_else(|| inner.queue.pop_front()) else { break };
            if batch.is_abandoned() {
                continue;
            }
            if batch.caller.is_some() && !has_all_identities {
                // It arrived after this turn began. The next one loads identities first.
                self.again.push_front(batch);
                break;
            }
            let has_ended = batch.caller.as_ref().is_some_and(|caller| !caller.is_valid());
            let verdicts = if has_ended {
                vec![CommandResult::Refused(LedgerRefusal::CallerEnded); batch.operations.len()]
            } else {
                decide_batch(&mut inner, self.owner, started.time, &batch, format, &mut transactions)
            };
            decided.push(DecidedBatch { batch, verdicts });
        }
        (decided, transactions)
    }

    fn commit(
        &mut self,
        decided: Vec<DecidedBatch>,
        transactions: Vec<Transaction>,
        dead: &[Owner],
    ) -> Result<TurnOutcome, LedgerError> {
        self.turn += 1;
        let stamp = TurnStamp { owner: self.owner, turn: self.turn };
        let row = (!transactions.is_empty()).then(|| {
            let time = transactions.last().map_or(UnixNanos::new(0), |last| last.time);
            let (sequence, previous) = (self.base.sequence + 1, self.base.checksum);
            JournalRow::chained(sequence, time, encode_payload(&transactions), previous)
        });
        let started = Instant::now();
        let committed = self.journal.commit(row.as_ref(), stamp, dead);
        let Some(row) = row else {
            // Only gateways were declared dead, and none of them held anything.
            self.answer(decided);
            return match committed {
                Ok(()) => Ok(TurnOutcome::Written),
                Err(error) => Err(error.into()),
            };
        };
        if let Err(error) = committed {
            self.undo();
            // The next turn finds out.
            self.unknown = Some(UnknownTurn { row, transactions, decided });
            return Err(error.into());
        }
        for transaction in &transactions {
            // The live state accepted the transaction by the same rules. If the durable state refuses it, the ledger
            // must stop.
            self.base
                .state
                .evolve(transaction)
                .map_err(|breach| LedgerError::Breach { sequence: row.sequence, why: breach.why() })?;
        }
        self.base.sequence = row.sequence;
        self.base.checksum = row.checksum;
        self.base.newest_format = self.base.newest_format.max(row.format_version);
        self.confirmed = RowPosition::of(&row);
        self.schedule.count(1, transactions.len());
        self.count_commit(&transactions, Some(started.elapsed()));
        self.answer(decided);
        if self.schedule.is_due() {
            self.snapshot();
        }
        Ok(TurnOutcome::Written)
    }

    /// Returns the live state to the durable one.
    fn undo(&mut self) {
        let state = self.base.state.clone();
        self.shared.inner.lock().core.rebase(state);
    }

    fn count_commit(&self, transactions: &[Transaction], took: Option<Duration>) {
        let mut inner = self.shared.inner.lock();
        let health = &mut inner.health;
        health.commits += 1;
        health.transactions += transactions.len() as u64;
        health.sequence = self.base.sequence;
        if let Some(took) = took {
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            health.last_commit_nanos = nanos;
            health.total_commit_nanos = health.total_commit_nanos.saturating_add(nanos);
        }
    }

    /// Delivers verdicts. Holds whose caller has left are released in the next turn.
    fn answer(&self, decided: Vec<DecidedBatch>) {
        let mut unclaimed: Vec<HoldId> = Vec::new();
        for DecidedBatch { batch, verdicts } in decided {
            if let Some(reply) = batch.reply
                && let Err(verdicts) = reply.deliver(verdicts)
            {
                unclaimed.extend(holds_taken(&verdicts));
            }
        }
        if !unclaimed.is_empty() {
            self.shared.release(unclaimed);
        }
    }

    fn recovered(&mut self) {
        let mut inner = self.shared.inner.lock();
        if matches!(inner.status, TurnStatus::Down(_)) {
            inner.status = TurnStatus::Up;
            tracing::warn!(row = self.base.sequence, "the shared ledger can be reached again");
        }
    }

    fn failed(&mut self, error: &LedgerError) {
        self.must_join = true;
        self.checked_lapsed = None;
        self.in_contact_since = self.shared.clock.monotonic_nanos();
        let mut inner = self.shared.inner.lock();
        inner.health.failures += 1;
        if inner.status == TurnStatus::Up {
            tracing::error!(%error, "the shared ledger cannot be reached; new calls are refused until it can");
        }
        if matches!(inner.status, TurnStatus::Up | TurnStatus::Down(_)) {
            inner.status = TurnStatus::Down(error.to_string().into());
        }
    }

    fn snapshot(&mut self) {
        self.schedule.restart();
        let payload = snapshot::encode(&self.base.state);
        let sealed = StateSnapshot::sealed(self.base.sequence, self.base.checksum, payload);
        let written = self.journal.write_snapshot(&sealed);
        let mut inner = self.shared.inner.lock();
        match written {
            Ok(()) => inner.health.snapshots += 1,
            Err(_) => inner.health.snapshot_failures += 1,
        }
    }
}
