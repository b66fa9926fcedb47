//! The data that callers and the journal thread share: the live state, the group that is being formed, and the health
//! of the journal. Must not know how a group is written.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::command::{LedgerOperation, Receipt};
use crate::core::LedgerCore;
use crate::durable::{CommitGroup, GroupWriter, JournalFailed};
use crate::refusal::LedgerRefusal;
use crate::transaction::{JournalEvent, Transaction};

/// The options of a ledger. Every limit names its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerOptions {
    /// The number of transactions that may wait for the disk before new work is refused.
    pub max_queued_transactions: usize,
    /// The bytes of stored answers that may wait for the disk before new work is refused.
    pub max_queued_answer_bytes: usize,
    /// The minimum number of rows between two snapshots. A large state needs more.
    pub snapshot_rows: u64,
    /// The number of transactions after which a snapshot is written although there were fewer rows.
    pub snapshot_transactions: u64,
    /// The first wait before a failed journal is tried again. It doubles up to 20 times this value.
    pub retry: Duration,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            max_queued_transactions: 16_384,
            max_queued_answer_bytes: 64 << 20,
            // At full state, writing a snapshot occupies the journal thread for some 10 ms. With this interval, fewer
            // than one call in a hundred waits for it at ten thousand rows per second. Replaying as many rows takes a
            // fraction of a second.
            snapshot_rows: 65_536,
            // A start replays about a million transactions in a second.
            snapshot_transactions: 262_144,
            retry: Duration::from_millis(50),
        }
    }
}

/// The health of the journal, for metrics and health checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JournalHealth {
    /// The reason why commands are refused now. `None` if they are accepted.
    pub down: Option<Arc<str>>,
    /// The last row on the disk.
    pub sequence: u64,
    /// The number of successful appends since the start.
    pub commits: u64,
    /// The number of transactions in those appends.
    pub transactions: u64,
    /// The duration of the last append in nanoseconds, which depends on the disk.
    pub last_commit_nanos: u64,
    /// The total duration of all appends, in nanoseconds.
    pub total_commit_nanos: u64,
    /// The number of failed appends.
    pub failures: u64,
    /// The number of holds that expired because their owner did not end them in time. Nothing was charged for them.
    pub expired: u64,
    /// The number of snapshots written.
    pub snapshots: u64,
    /// The number of snapshots that could not be written. The ledger continues without them.
    pub snapshot_failures: u64,
}

/// The data that callers and the journal thread share.
pub(super) struct LedgerShared {
    pub(super) inner: Mutex<SharedState>,
    /// Signals work for the journal thread.
    pub(super) work: Condvar,
}

pub(super) struct SharedState {
    pub(super) core: LedgerCore,
    pub(super) forming: FormingGroup,
    pub(super) in_flight: Option<Arc<CommitGroup>>,
    pub(super) status: ServiceStatus,
    pub(super) health: JournalHealth,
    /// How the journal thread is waiting. [`WriterSleep::Awake`] after it was woken.
    pub(super) sleep: WriterSleep,
}

/// How the journal thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriterSleep {
    /// It does not wait, or was woken.
    Awake,
    /// It will soon check by itself whether a batch was queued.
    Light,
    /// It must be woken.
    Deep,
}

/// The content of the next append.
#[derive(Default)]
pub(super) struct FormingGroup {
    pub(super) transactions: Vec<Transaction>,
    pub(super) answer_bytes: usize,
    pub(super) group: Arc<CommitGroup>,
    /// Whether a caller waits for it.
    pub(super) is_awaited: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum ServiceStatus {
    Up,
    /// The journal failed and is being retried.
    Down(Arc<str>),
    /// The queue is being written, and no new commands are accepted.
    Closing,
    /// The journal thread has ended.
    Closed,
}

impl GroupWriter for LedgerShared {
    fn call(&self, group: &Arc<CommitGroup>) {
        let mut inner = self.inner.lock();
        if inner.is_forming(group) {
            inner.forming.is_awaited = true;
            self.wake(inner);
        }
    }

    fn mention(&self, group: &Arc<CommitGroup>) {
        let inner = self.inner.lock();
        if inner.sleep == WriterSleep::Deep && inner.is_forming(group) {
            self.wake(inner);
        }
    }
}

impl LedgerShared {
    /// Wakes the journal thread if it sleeps.
    fn wake(&self, mut inner: MutexGuard<'_, SharedState>) {
        let slept = std::mem::replace(&mut inner.sleep, WriterSleep::Awake) != WriterSleep::Awake;
        drop(inner);
        if slept {
            self.work.notify_one();
        }
    }

    pub(super) fn ask_to_close(&self) {
        let mut inner = self.inner.lock();
        if inner.status != ServiceStatus::Closed {
            inner.status = ServiceStatus::Closing;
        }
        drop(inner);
        self.work.notify_one();
    }
}

impl ServiceStatus {
    pub(super) fn refusal(&self) -> Option<Arc<str>> {
        match self {
            Self::Up => None,
            Self::Down(why) => Some(Arc::clone(why)),
            Self::Closing | Self::Closed => Some("it is closed".into()),
        }
    }
}

impl SharedState {
    /// Whether a group is the one that the next append will write, and not one in progress or already written.
    fn is_forming(&self, group: &Arc<CommitGroup>) -> bool {
        Arc::ptr_eq(&self.forming.group, group) && !self.forming.transactions.is_empty()
    }

    pub(super) fn refuses_all(&self) -> Option<LedgerRefusal> {
        self.status.refusal().map(|why| LedgerRefusal::Unavailable { why })
    }

    pub(super) fn decide(
        &mut self,
        command: LedgerOperation,
        now: UnixNanos,
        options: &LedgerOptions,
    ) -> Result<Receipt, LedgerRefusal> {
        // Commands that end work are never refused because of a full queue. There are at most as many of them as open
        // holds.
        let ends_work = matches!(
            command,
            LedgerOperation::Settle { .. }
                | LedgerOperation::Release { .. }
                | LedgerOperation::ReleaseOwners { .. }
                | LedgerOperation::ExpireHolds
        );
        let queued = self.forming.transactions.len();
        let full = queued >= options.max_queued_transactions
            || self.forming.answer_bytes >= options.max_queued_answer_bytes;
        if full && !ends_work {
            return Err(LedgerRefusal::Busy { queued, limit: options.max_queued_transactions });
        }
        let expires = matches!(command, LedgerOperation::ExpireHolds);
        let receipt = self.core.apply_to(command, now, &mut self.forming.transactions)?;
        if let Receipt::ReleasedMany { holds, .. } = &receipt
            && expires
        {
            self.health.expired += holds.len() as u64;
        }
        for transaction in self.forming.transactions.get(queued..).unwrap_or_default() {
            if let JournalEvent::Settled(settled) = &transaction.event {
                self.forming.answer_bytes += settled.answer.as_ref().map_or(0, |answer| answer.body.len());
            }
        }
        Ok(receipt)
    }

    /// Returns the group that a batch decided now must wait for: the one being formed, or else the one being written.
    pub(super) fn awaited(&self) -> Option<Arc<CommitGroup>> {
        if !self.forming.transactions.is_empty() {
            return Some(Arc::clone(&self.forming.group));
        }
        self.in_flight.clone()
    }

    /// Drops the group that is being formed and reports the failure to all callers that wait for it.
    pub(super) fn fail_forming(&mut self, failed: &JournalFailed) {
        let forming = std::mem::take(&mut self.forming);
        forming.group.resolve(Err(failed.clone()));
    }
}
