//! The journal thread: takes what has queued up, writes it as one append, tells who waits, keeps the durable state,
//! writes snapshots, and nurses a failed journal back. Decides nothing about money.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::durable::{Group, JournalFailed};
use crate::journal::{Journal, JournalError, JournalRow, LedgerError};
use crate::record::encode_payload;
use crate::snapshot;
use crate::transaction::{Event, Transaction};

use super::replay::Replayed;
use super::shared::{Forming, Inner, LedgerOptions, Shared, Sleep, Status};

/// About how large a row gets before the group goes on in another row of the same append, in bytes of answers.
const ROW_ANSWER_BYTES: usize = 1 << 20;
/// Transactions in one row at most.
const ROW_TRANSACTIONS: usize = 4_096;
/// Most room that a group leaves to the next, in transactions.
const ROOM_KEPT_TRANSACTIONS: usize = 1_024;
/// How often an idle journal is asked whether it is still where it was.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long what nobody waits for may stay in memory, for company.
const LEISURE: Duration = Duration::from_millis(2);
/// The wait before trying a failed journal again grows to this many times the first one.
const MAX_RETRY_FACTOR: u32 = 20;

pub(super) struct Writer {
    shared: Arc<Shared>,
    journal: Box<dyn Journal>,
    options: LedgerOptions,
    /// What is on the disk.
    durable: Replayed,
    rows_since_snapshot: u64,
    bytes_since_snapshot: usize,
    snapshot_bytes: usize,
    /// The room of the group before, for the next.
    spare: Vec<Transaction>,
}

enum Work {
    Commit(Vec<Transaction>, Arc<Group>),
    /// Nothing came for a while.
    Check,
    Recover,
    Close,
}

/// Whatever ends the thread, nobody is left waiting.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.status = Status::Closed;
        let failed = JournalFailed { why: "the ledger's journal thread has ended".into() };
        inner.fail_forming(&failed);
        if let Some(group) = inner.in_flight.take() {
            group.resolve(Err(failed));
        }
    }
}

impl Inner {
    /// Whether what is to be done next cannot wait for company.
    fn is_urgent(&self) -> bool {
        self.status != Status::Up || self.forming.is_awaited
    }

    /// What is to be done next.
    fn work(&mut self, spare: &mut Vec<Transaction>) -> Option<Work> {
        if matches!(self.status, Status::Down(_)) {
            return Some(Work::Recover);
        }
        if !self.forming.transactions.is_empty() {
            let next = Forming { transactions: std::mem::take(spare), ..Forming::default() };
            let Forming { transactions, group, .. } = std::mem::replace(&mut self.forming, next);
            self.in_flight = Some(Arc::clone(&group));
            return Some(Work::Commit(transactions, group));
        }
        (self.status == Status::Closing).then_some(Work::Close)
    }
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        journal: Box<dyn Journal>,
        durable: Replayed,
        options: LedgerOptions,
    ) -> Self {
        let rows_since_snapshot = durable.rows;
        Self {
            shared,
            journal,
            options,
            durable,
            rows_since_snapshot,
            bytes_since_snapshot: 0,
            snapshot_bytes: 0,
            spare: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<(), LedgerError> {
        let _farewell = Farewell(Arc::clone(&self.shared));
        // The failure that the journal has not recovered from.
        let mut failure = None;
        loop {
            match self.next() {
                Work::Commit(transactions, group) => {
                    failure = self.commit(&transactions, &group).err();
                    self.keep_room(transactions);
                }
                Work::Check => failure = self.check().err(),
                Work::Recover if self.recover() => failure = None,
                Work::Recover => {}
                Work::Close => break,
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if self.rows_since_snapshot > 0 {
            self.snapshot();
        }
        Ok(())
    }

    /// Does one piece of work, if there is any: for whoever turns the journal by hand.
    pub(super) fn turn(&mut self) {
        let work = self.shared.inner.lock().work(&mut self.spare);
        match work {
            Some(Work::Commit(transactions, group)) => {
                // A failure shows in the ledger's health, and recovering is the next piece of work.
                let _ = self.commit(&transactions, &group);
            }
            Some(Work::Recover) => {
                let _ = self.try_recover();
            }
            // A file that is looked at only when nothing else comes is the thread's own affair.
            Some(Work::Check | Work::Close) | None => {}
        }
    }

    /// Waits for something to do: lightly at first, as where something was written more follows.
    fn next(&mut self) -> Work {
        let mut inner = self.shared.inner.lock();
        let mut is_deep = false;
        loop {
            if inner.is_urgent()
                && let Some(work) = inner.work(&mut self.spare)
            {
                return work;
            }
            let (sleep, longest) = if is_deep { (Sleep::Deep, CHECK_EVERY) } else { (Sleep::Light, LEISURE) };
            inner.sleep = sleep;
            let timed_out = self.shared.work.wait_for(&mut inner, longest).timed_out();
            inner.sleep = Sleep::Awake;
            if is_deep && timed_out {
                return Work::Check;
            }
            // The first in a while, or nobody else came: there is no company to wait for.
            if is_deep || timed_out {
                if let Some(work) = inner.work(&mut self.spare) {
                    return work;
                }
                is_deep = true;
            }
        }
    }

    /// Keeps the room of a group that is written, unless that was a large one.
    fn keep_room(&mut self, mut transactions: Vec<Transaction>) {
        transactions.clear();
        if transactions.capacity() <= ROOM_KEPT_TRANSACTIONS {
            self.spare = transactions;
        }
    }

    fn check(&mut self) -> Result<(), LedgerError> {
        let Err(error) = self.journal.check() else { return Ok(()) };
        self.fail(&error, &Forming::default().group);
        Err(error.into())
    }

    fn commit(&mut self, transactions: &[Transaction], group: &Arc<Group>) -> Result<(), LedgerError> {
        let rows = self.rows(transactions);
        let started = Instant::now();
        let appended = self.journal.append(&rows);
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Err(error) = appended {
            self.fail(&error, group);
            return Err(error.into());
        }
        {
            // Before the callers wake: who was told that it is on the disk finds it counted.
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
        for transaction in transactions {
            // The live state took it by the same rules; should that ever differ, stop before it goes further.
            self.durable.state.evolve(transaction).map_err(|breach| self.breach(breach.why()))?;
        }
        if let Some(last) = rows.last() {
            self.durable.sequence = last.sequence;
            self.durable.checksum = last.checksum;
        }
        self.rows_since_snapshot += rows.len() as u64;
        self.bytes_since_snapshot += rows.iter().map(|row| row.payload.len()).sum::<usize>();
        // A snapshot costs its size: taken when the rows since the last one weigh four times as much, writing
        // snapshots adds at most a quarter to what is written anyway.
        let due = self.rows_since_snapshot >= self.options.snapshot_rows
            && self.bytes_since_snapshot >= self.snapshot_bytes.saturating_mul(4);
        if due {
            self.snapshot();
        }
        Ok(())
    }

    /// The rows of one append: one, unless the group is very large.
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

    /// Takes everything that is not on the disk back.
    fn fail(&mut self, error: &JournalError, group: &Arc<Group>) {
        let failed = JournalFailed { why: error.to_string().into() };
        tracing::error!(%error, "the ledger's journal failed: no new call is taken until it can be written again");
        let state = self.durable.state.clone();
        let mut inner = self.shared.inner.lock();
        inner.core.rebase(state);
        inner.in_flight = None;
        inner.health.failures += 1;
        if inner.status == Status::Up {
            inner.status = Status::Down(Arc::clone(&failed.why));
        }
        inner.fail_forming(&failed);
        drop(inner);
        group.resolve(Err(failed));
    }

    /// Tries the journal until it takes writes again (true), or the ledger is closed.
    fn recover(&mut self) -> bool {
        let mut factor = 1;
        loop {
            let Err(error) = self.try_recover() else { return true };
            let mut inner = self.shared.inner.lock();
            if !matches!(inner.status, Status::Down(_)) {
                return false;
            }
            inner.status = Status::Down(error.to_string().into());
            // The condition is also signalled by `close`; any other wake-up only means trying a little early.
            let wait = self.options.retry.max(Duration::from_millis(1)) * factor;
            let _ = self.shared.work.wait_for(&mut inner, wait);
            if !matches!(inner.status, Status::Down(_)) {
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
        if matches!(inner.status, Status::Down(_)) {
            inner.status = Status::Up;
            tracing::warn!(row = self.durable.sequence, "the ledger's journal can be written again");
        }
        Ok(())
    }

    fn snapshot(&mut self) {
        let payload = snapshot::encode(&self.durable.state);
        self.snapshot_bytes = payload.len();
        let sealed = crate::journal::Snapshot::sealed(self.durable.sequence, self.durable.checksum, payload);
        let written = self.journal.write_snapshot(&sealed);
        self.rows_since_snapshot = 0;
        self.bytes_since_snapshot = 0;
        let health = &mut self.shared.inner.lock().health;
        match written {
            Ok(()) => health.snapshots += 1,
            Err(_) => health.snapshot_failures += 1,
        }
    }

    /// The durable state refused what the live one took: a fault in the ledger, after which nothing more is taken.
    fn breach(&self, why: &'static str) -> LedgerError {
        let mut inner = self.shared.inner.lock();
        inner.status = Status::Closing;
        LedgerError::Breach { sequence: self.durable.sequence + 1, why }
    }
}

fn answer_bytes(transaction: &Transaction) -> usize {
    match &transaction.event {
        Event::Settled(settled) => settled.answer.as_ref().map_or(0, |answer| answer.body.len()),
        _ => 0,
    }
}
