//! The journal thread. It writes the queue as one append, notifies waiting callers, maintains the durable state, writes
//! snapshots and recovers a failed journal. Makes no decisions about money.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::durable::{CommitGroup, JournalFailed};
use crate::journal::{Journal, JournalError, JournalRow, LedgerError};
use crate::record::encode_payload;
use crate::replay::ReplayedState;
use crate::snapshot;
use crate::snapshot_schedule::SnapshotSchedule;
use crate::transaction::{JournalEvent, Transaction};

use super::shared::{FormingGroup, LedgerOptions, LedgerShared, ServiceStatus, SharedState, WriterSleep};

/// The approximate size of answers in one row, in bytes. Beyond it, the group continues in another row of the same
/// append.
const ROW_ANSWER_BYTES: usize = 1 << 20;
/// The maximum number of transactions in one row.
const ROW_TRANSACTIONS: usize = 4_096;
/// The maximum capacity, in transactions, that one group leaves to the next.
const ROOM_KEPT_TRANSACTIONS: usize = 1_024;
/// How often an idle journal is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a batch without a waiting caller may stay in memory, so that it can be written together with others.
const LEISURE: Duration = Duration::from_millis(2);
/// The wait before retrying a failed journal grows up to this multiple of the first wait.
const MAX_RETRY_FACTOR: u32 = 20;

pub(super) struct JournalWriter {
    shared: Arc<LedgerShared>,
    journal: Box<dyn Journal>,
    options: LedgerOptions,
    /// The state that is on the disk.
    durable: ReplayedState,
    schedule: SnapshotSchedule,
    bytes_since_snapshot: usize,
    snapshot_bytes: usize,
    /// The buffer of the previous group, for reuse.
    spare: Vec<Transaction>,
}

enum WriterWork {
    Commit(Vec<Transaction>, Arc<CommitGroup>),
    /// The journal was idle for a while and must be checked.
    Check,
    Recover,
    Close,
}

/// Resolves all pending batches, no matter how the thread ends.
struct ResolveOnExit(Arc<LedgerShared>);

impl Drop for ResolveOnExit {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.status = ServiceStatus::Closed;
        let failed = JournalFailed { why: "the ledger's journal thread has ended".into() };
        inner.fail_forming(&failed);
        if let Some(group) = inner.in_flight.take() {
            group.resolve(Err(failed));
        }
    }
}

impl SharedState {
    /// Whether the next work must not be delayed to collect more batches.
    fn is_urgent(&self) -> bool {
        self.status != ServiceStatus::Up || self.forming.is_awaited
    }

    /// Returns the next work, or `None` if there is none.
    fn work(&mut self, spare: &mut Vec<Transaction>) -> Option<WriterWork> {
        if matches!(self.status, ServiceStatus::Down(_)) {
            return Some(WriterWork::Recover);
        }
        if !self.forming.transactions.is_empty() {
            let next = FormingGroup { transactions: std::mem::take(spare), ..FormingGroup::default() };
            let FormingGroup { transactions, group, .. } = std::mem::replace(&mut self.forming, next);
            self.in_flight = Some(Arc::clone(&group));
            return Some(WriterWork::Commit(transactions, group));
        }
        (self.status == ServiceStatus::Closing).then_some(WriterWork::Close)
    }
}

impl JournalWriter {
    pub(super) fn new(
        shared: Arc<LedgerShared>,
        journal: Box<dyn Journal>,
        durable: ReplayedState,
        options: LedgerOptions,
    ) -> Self {
        let LedgerOptions { snapshot_rows, snapshot_transactions, .. } = options;
        let schedule = SnapshotSchedule::after(&durable, snapshot_rows, snapshot_transactions);
        Self {
            shared,
            journal,
            options,
            durable,
            schedule,
            bytes_since_snapshot: 0,
            snapshot_bytes: 0,
            spare: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<(), LedgerError> {
        let _farewell = ResolveOnExit(Arc::clone(&self.shared));
        // The failure from which the journal has not recovered.
        let mut failure = None;
        loop {
            match self.next() {
                WriterWork::Commit(transactions, group) => {
                    failure = self.commit(&transactions, &group).err();
                    self.keep_room(transactions);
                }
                WriterWork::Check => failure = self.check().err(),
                WriterWork::Recover if self.recover() => failure = None,
                WriterWork::Recover => {}
                WriterWork::Close => break,
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if self.schedule.has_rows() {
            self.snapshot();
        }
        Ok(())
    }

    /// Does one piece of work if there is any, for a caller that turns the journal by hand.
    pub(super) fn turn(&mut self) {
        let work = self.shared.inner.lock().work(&mut self.spare);
        match work {
            Some(WriterWork::Commit(transactions, group)) => {
                // A failure shows in the ledger's health, and the next piece of work is recovery.
                let _ = self.commit(&transactions, &group);
            }
            Some(WriterWork::Recover) => {
                let _ = self.try_recover();
            }
            // Only the journal thread checks an idle journal.
            Some(WriterWork::Check | WriterWork::Close) | None => {}
        }
    }

    /// Waits for work: at first lightly, because after a write more batches usually follow.
    fn next(&mut self) -> WriterWork {
        let mut inner = self.shared.inner.lock();
        let mut is_deep = false;
        loop {
            if inner.is_urgent()
                && let Some(work) = inner.work(&mut self.spare)
            {
                return work;
            }
            let (sleep, longest) =
                if is_deep { (WriterSleep::Deep, CHECK_EVERY) } else { (WriterSleep::Light, LEISURE) };
            inner.sleep = sleep;
            let timed_out = self.shared.work.wait_for(&mut inner, longest).timed_out();
            inner.sleep = WriterSleep::Awake;
            if is_deep && timed_out {
                return WriterWork::Check;
            }
            // After a long sleep or a timeout, there are no other batches to wait for.
            if is_deep || timed_out {
                if let Some(work) = inner.work(&mut self.spare) {
                    return work;
                }
                is_deep = true;
            }
        }
    }

    /// Keeps the buffer of a written group, unless it is large.
    fn keep_room(&mut self, mut transactions: Vec<Transaction>) {
        transactions.clear();
        if transactions.capacity() <= ROOM_KEPT_TRANSACTIONS {
            self.spare = transactions;
        }
    }

    fn check(&mut self) -> Result<(), LedgerError> {
        let Err(error) = self.journal.check() else { return Ok(()) };
        self.fail(&error, &FormingGroup::default().group);
        Err(error.into())
    }

    fn commit(&mut self, transactions: &[Transaction], group: &Arc<CommitGroup>) -> Result<(), LedgerError> {
        let rows = self.rows(transactions);
        let started = Instant::now();
        let appended = self.journal.append(&rows);
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Err(error) = appended {
            self.fail(&error, group);
            return Err(error.into());
        }
        {
            // Counted before the callers wake, so that a caller that knows of the write finds it counted.
            let mut inner = self.shared.inner.lock();
            inner.in_flight = None;
            let health = &mut inner.health;
            health.commits += 1;
            health.transactions += transactions.len() as u64;
            health.last_commit_nanos = nanos;
            health.total_commit_nanos = health.total_commit_nanos.saturating_add(nanos);
            health.sequence += rows.len() as u64;
        }
        group.resolve(Ok(()));
        self.schedule.count(rows.len(), transactions.len());
        for transaction in transactions {
            // The live state accepted the transaction by the same rules. If the durable state refuses it, the ledger
            // must stop.
            self.durable.state.evolve(transaction).map_err(|breach| self.breach(breach.why()))?;
        }
        if let Some(last) = rows.last() {
            self.durable.sequence = last.sequence;
            self.durable.checksum = last.checksum;
        }
        self.bytes_since_snapshot += rows.iter().map(|row| row.payload.len()).sum::<usize>();
        // A snapshot costs its size. It is written only when the rows since the last one weigh four times as much.
        // Snapshots therefore add at most a quarter to the bytes that are written anyway.
        let due =
            self.schedule.is_due() && self.bytes_since_snapshot >= self.snapshot_bytes.saturating_mul(4);
        if due {
            self.snapshot();
        }
        Ok(())
    }

    /// Returns the rows of one append: one row, unless the group is very large.
    fn rows(&self, transactions: &[Transaction]) -> Vec<JournalRow> {
        let mut rows: Vec<JournalRow> = Vec::with_capacity(1);
        let (mut sequence, mut previous) = (self.durable.sequence, self.durable.checksum);
        let mut rest = transactions;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |transaction: &&Transaction| {
                let starts_below = bytes < ROW_ANSWER_BYTES;
                bytes += answer_bytes(transaction);
                starts_below
            };
            let count = rest.iter().take(ROW_TRANSACTIONS).take_while(fits).count().max(1);
            let (part, later) = rest.split_at(count.min(rest.len()));
            let time = part.last().map(|last| last.time).unwrap_or_default();
            sequence += 1;
            let row = JournalRow::chained(sequence, time, encode_payload(part), previous);
            previous = row.checksum;
            rows.push(row);
            rest = later;
        }
        rows
    }

    /// Takes back all changes that are not on the disk.
    fn fail(&mut self, error: &JournalError, group: &Arc<CommitGroup>) {
        let failed = JournalFailed { why: error.to_string().into() };
        tracing::error!(%error, "the ledger's journal failed: no new call is taken until it can be written again");
        let state = self.durable.state.clone();
        let mut inner = self.shared.inner.lock();
        inner.core.rebase(state);
        inner.in_flight = None;
        inner.health.failures += 1;
        if inner.status == ServiceStatus::Up {
            inner.status = ServiceStatus::Down(Arc::clone(&failed.why));
        }
        inner.fail_forming(&failed);
        drop(inner);
        group.resolve(Err(failed));
    }

    /// Retries the journal until it accepts writes again, or until the ledger is closed. Returns `true` in the first
    /// case.
    fn recover(&mut self) -> bool {
        let mut factor = 1;
        loop {
            let Err(error) = self.try_recover() else { return true };
            let mut inner = self.shared.inner.lock();
            if !matches!(inner.status, ServiceStatus::Down(_)) {
                return false;
            }
            inner.status = ServiceStatus::Down(error.to_string().into());
            // `close` also signals the condition. Any other wake-up only means that the next try comes a little early.
            let wait = self.options.retry.max(Duration::from_millis(1)) * factor;
            let _ = self.shared.work.wait_for(&mut inner, wait);
            if !matches!(inner.status, ServiceStatus::Down(_)) {
                return false;
            }
            factor = (factor * 2).min(MAX_RETRY_FACTOR);
        }
    }

    fn try_recover(&mut self) -> Result<(), LedgerError> {
        self.journal.recover()?;
        self.durable.catch_up(self.journal.as_mut())?;
        let state = self.durable.state.clone();
        let mut inner = self.shared.inner.lock();
        inner.core.rebase(state);
        inner.health.sequence = self.durable.sequence;
        if matches!(inner.status, ServiceStatus::Down(_)) {
            inner.status = ServiceStatus::Up;
            tracing::warn!(row = self.durable.sequence, "the ledger's journal can be written again");
        }
        Ok(())
    }

    fn snapshot(&mut self) {
        let payload = snapshot::encode(&self.durable.state);
        self.snapshot_bytes = payload.1.len();
        let sealed =
            crate::journal::StateSnapshot::sealed(self.durable.sequence, self.durable.checksum, payload);
        let written = self.journal.write_snapshot(&sealed);
        self.schedule.restart();
        self.bytes_since_snapshot = 0;
        let health = &mut self.shared.inner.lock().health;
        match written {
            Ok(()) => health.snapshots += 1,
            Err(_) => health.snapshot_failures += 1,
        }
    }

    /// Stops the ledger after the durable state refused a transaction that the live state accepted. That is a bug in
    /// the ledger.
    fn breach(&self, why: &'static str) -> LedgerError {
        let mut inner = self.shared.inner.lock();
        inner.status = ServiceStatus::Closing;
        LedgerError::Breach { sequence: self.durable.sequence + 1, why }
    }
}

fn answer_bytes(transaction: &Transaction) -> usize {
    match &transaction.event {
        JournalEvent::Settled(settled) => settled.answer.as_ref().map_or(0, |answer| answer.body.len()),
        _ => 0,
    }
}
