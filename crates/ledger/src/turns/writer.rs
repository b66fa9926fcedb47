//! Takes turns: applies what other gateways wrote, decides what waits, and writes one row. Makes no decisions about
//! money; the core does. Knows nothing of the database behind the journal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::{HoldId, UnixNanos};

use crate::command::{LedgerOperation, Owner, Receipt};
use crate::durable::JournalFailed;
use crate::journal::{FORMAT_VERSION, JournalError, JournalRow, LedgerError, StateSnapshot};
use crate::record::encode_payload;
use crate::refusal::LedgerRefusal;
use crate::replay::{ReplayedState, replay};
use crate::service::OpenReport;
use crate::snapshot;
use crate::transaction::Transaction;
use crate::verdict::CommandResult;

use super::decide::decide_batch;
use super::journal::{SharedJournal, StartedTurn, TurnStamp};
use super::reply::{UnclaimedHolds as _, holds_taken};
use super::shared::{QueuedBatch, SharedLedgerOptions, TurnShared, TurnState, TurnStatus, not_written};

/// The number of rows that a turn reads while it has the lock. A gateway that is further behind catches up without it.
const PAGE_ROWS: usize = 500;
/// The maximum number of transactions in one row.
const ROW_TRANSACTIONS: usize = 4_096;
/// How often a gateway looks for others that ended.
const LAPSE_CHECK_EVERY: Duration = Duration::from_secs(1);
/// How much the journal's clock may gain on this machine's monotonic clock. Budgets would turn over too early beyond it.
const MAX_CLOCK_GAIN: Duration = Duration::from_secs(3600);
/// The first wait after a turn that failed. It doubles up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(25);
const MAX_RETRY: Duration = Duration::from_millis(400);
/// How often a turn begins anew because identities changed while it loaded them.
const IDENTITY_LOADS: u32 = 16;
/// The number of failed turns after which closing gives up.
const CLOSING_TRIES: u32 = 20;

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
    checked_lapsed: Option<u64>,
    /// Since when every turn of this gateway succeeded, on the monotonic clock. While the journal is away, no
    /// gateway can renew its presence.
    in_contact_since: u64,
    rows_since_snapshot: u64,
    transactions_since_snapshot: u64,
    /// The journal's clock at the first turn, and the monotonic clock of this machine at that time.
    first_times: Option<(UnixNanos, u64)>,
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

impl TurnWriter {
    /// Joins the journal as `owner`, and replays it.
    pub(super) fn load(
        journal: &mut dyn SharedJournal,
        owner: Owner,
    ) -> Result<(ReplayedState, OpenReport), LedgerError> {
        journal.join(owner, FORMAT_VERSION)?;
        let replayed = replay(journal)?;
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
        let (rows_since_snapshot, transactions_since_snapshot) = (base.rows, base.transactions);
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
            checked_lapsed: None,
            in_contact_since,
            rows_since_snapshot,
            transactions_since_snapshot,
            first_times: None,
        }
    }

    pub(super) const fn owner(&self) -> Owner {
        self.owner
    }

    pub(super) const fn shared(&self) -> &Arc<TurnShared> {
        &self.shared
    }

    /// Takes turns until the ledger is closed.
    pub(super) fn run(mut self) -> Result<(), LedgerError> {
        struct EndOnExit(Arc<TurnShared>);
        impl Drop for EndOnExit {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        let _end = EndOnExit(Arc::clone(&self.shared));
        let (mut retry, mut tries) = (FIRST_RETRY, 0);
        loop {
            let closing = self.wait_for_work();
            match self.turn() {
                TurnOutcome::Failed => {
                    tries += 1;
                    if closing && tries >= CLOSING_TRIES {
                        return Err(not_written("the shared journal cannot be reached"));
                    }
                    std::thread::sleep(retry);
                    retry = (retry * 2).min(MAX_RETRY);
                }
                TurnOutcome::Read | TurnOutcome::Written => {
                    (retry, tries) = (FIRST_RETRY, 0);
                    if closing && self.is_idle() {
                        return self.leave();
                    }
                }
            }
        }
    }

    /// Waits until there is work, or it is time to read the rows of others. Returns whether the ledger is closing.
    fn wait_for_work(&mut self) -> bool {
        let mut inner = self.shared.inner.lock();
        let is_closing = |inner: &TurnState| matches!(inner.status, TurnStatus::Closing | TurnStatus::Closed);
        if inner.queue.is_empty() && self.again.is_empty() && self.unknown.is_none() && !is_closing(&inner) {
            self.shared.work.wait_for(&mut inner, self.options.refresh);
        }
        is_closing(&inner)
    }

    fn is_idle(&self) -> bool {
        self.again.is_empty() && self.unknown.is_none() && self.shared.inner.lock().queue.is_empty()
    }

    /// Releases the holds that this gateway still has, and leaves the journal.
    fn leave(&mut self) -> Result<(), LedgerError> {
        let ended = vec![self.owner];
        let asked = UnixNanos::new(0);
        let operations = vec![LedgerOperation::ReleaseOwners { ended }];
        self.again.push_back(QueuedBatch { operations, asked, reply: None, caller: None });
        let mut tries = 0;
        while !self.again.is_empty() || self.unknown.is_some() {
            tries += 1;
            if self.turn() == TurnOutcome::Failed {
                if tries >= CLOSING_TRIES {
                    return Err(not_written("the shared journal cannot be reached"));
                }
                std::thread::sleep(FIRST_RETRY);
            }
        }
        if self.rows_since_snapshot > 0 {
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
            self.journal.join(self.owner, FORMAT_VERSION)?;
            self.must_join = false;
        }
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
                return Err(self.journal_went_back(&started));
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
                return Err(self.journal_went_back(&started));
            }
            self.resolve_unknown();
            if let Err(error) = self.check_clock(started.time) {
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

    /// Checks that the journal's clock did not jump ahead since the first turn. It may be set right again.
    fn check_clock(&mut self, time: UnixNanos) -> Result<(), LedgerError> {
        let now = self.shared.clock.monotonic_nanos();
        let (first, since) = *self.first_times.get_or_insert((time, now));
        let gained = time.since(first).saturating_sub(Duration::from_nanos(now.saturating_sub(since)));
        if gained <= MAX_CLOCK_GAIN {
            return Ok(());
        }
        let why = format!(
            "the database's clock is {} s ahead of where it was when this gateway started, so that budgets would turn over too early: set the clock right, or restart this gateway if the clock is right now",
            gained.as_secs()
        );
        Err(JournalError::Io(why).into())
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
        let transactions = self.base.follow(row)?;
        self.rows_since_snapshot += 1;
        self.transactions_since_snapshot += transactions.len() as u64;
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
        error
    }

    /// Answers the callers of the unknown turn if its row is this one.
    fn settle_unknown(&mut self, row: &JournalRow) {
        if let Some(unknown) = self.unknown.take_if(|unknown| unknown.row.checksum == row.checksum) {
            tracing::info!(
                row = row.sequence,
                "a commit of the shared ledger whose outcome was unknown happened"
            );
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
        self.journal.join(self.owner, FORMAT_VERSION)?;
        self.must_join = false;
        Ok(())
    }

    fn journal_went_back(&mut self, started: &StartedTurn) -> LedgerError {
        let why: Arc<str> = format!(
            "the shared journal went back: this gateway knows row {}, and the journal, whose last row is now {}, does not have it. The database lost acknowledged rows, for example in a failover to a standby that was not synchronous. Compare \
             `headrace ledger verify` with a backup, then restart this gateway to continue from what the journal has",
            self.base.sequence, started.head
        )
        .into();
        self.halt(LedgerError::NotWritten(JournalFailed { why }))
    }

    /// Decides all batches that wait, and releases the holds of dead gateways.
    fn decide(&mut self, started: &StartedTurn, dead: &[Owner]) -> (Vec<DecidedBatch>, Vec<Transaction>) {
        let has_all_identities =
            self.shared.identities.get().is_none_or(|known| known.loaded() >= started.identity_changes);
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
                decide_batch(&mut inner, self.owner, started.time, &batch, &mut transactions)
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
        self.rows_since_snapshot += 1;
        self.transactions_since_snapshot += transactions.len() as u64;
        self.count_commit(&transactions, Some(started.elapsed()));
        self.answer(decided);
        let SharedLedgerOptions { snapshot_rows, snapshot_transactions, .. } = self.options;
        if self.rows_since_snapshot >= snapshot_rows
            || self.transactions_since_snapshot >= snapshot_transactions
        {
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
        self.rows_since_snapshot = 0;
        self.transactions_since_snapshot = 0;
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
