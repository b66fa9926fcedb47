//! What the callers and the journal thread share: the live state, the group being formed, and how the journal does.
//! Must not know how a group is written.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::command::{Command, Receipt};
use crate::core::Core;
use crate::durable::{Group, JournalFailed, Scribe};
use crate::refusal::LedgerRefusal;
use crate::transaction::{Event, Transaction};

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

/// What the callers and the journal thread share.
pub(super) struct Shared {
    pub(super) inner: Mutex<Inner>,
    /// There is work for the journal thread.
    pub(super) work: Condvar,
}

pub(super) struct Inner {
    pub(super) core: Core,
    pub(super) forming: Forming,
    pub(super) in_flight: Option<Arc<Group>>,
    pub(super) status: Status,
    pub(super) health: Health,
    /// How the journal thread waits to be woken, while nobody has.
    pub(super) sleep: Sleep,
}

/// How the journal thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    /// It does not, or was woken.
    Awake,
    /// It will soon look by itself whether something was queued.
    Light,
    /// It has to be woken.
    Deep,
}

/// What the next append will write.
#[derive(Default)]
pub(super) struct Forming {
    pub(super) transactions: Vec<Transaction>,
    pub(super) answer_bytes: usize,
    pub(super) group: Arc<Group>,
    /// Somebody waits for it.
    pub(super) is_awaited: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Status {
    Up,
    /// The journal failed and is being tried again.
    Down(Arc<str>),
    /// What is queued is written, nothing new is taken.
    Closing,
    /// The journal thread has ended.
    Closed,
}

impl Scribe for Shared {
    fn call(&self, group: &Arc<Group>) {
        let mut inner = self.inner.lock();
        if inner.is_forming(group) {
            inner.forming.is_awaited = true;
            self.wake(inner);
        }
    }

    fn mention(&self, group: &Arc<Group>) {
        let inner = self.inner.lock();
        if inner.sleep == Sleep::Deep && inner.is_forming(group) {
            self.wake(inner);
        }
    }
}

impl Shared {
    /// Wakes the journal thread, if it sleeps.
    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let slept = std::mem::replace(&mut inner.sleep, Sleep::Awake) != Sleep::Awake;
        drop(inner);
        if slept {
            self.work.notify_one();
        }
    }

    pub(super) fn ask_to_close(&self) {
        let mut inner = self.inner.lock();
        if inner.status != Status::Closed {
            inner.status = Status::Closing;
        }
        drop(inner);
        self.work.notify_one();
    }
}

impl Status {
    pub(super) fn refusal(&self) -> Option<Arc<str>> {
        match self {
            Self::Up => None,
            Self::Down(why) => Some(Arc::clone(why)),
            Self::Closing | Self::Closed => Some("it is closed".into()),
        }
    }
}

impl Inner {
    /// Whether a group is the one that the next append will write, and not under way or written.
    fn is_forming(&self, group: &Arc<Group>) -> bool {
        Arc::ptr_eq(&self.forming.group, group) && !self.forming.transactions.is_empty()
    }

    pub(super) fn refuses_all(&self) -> Option<LedgerRefusal> {
        self.status.refusal().map(|why| LedgerRefusal::Unavailable { why })
    }

    pub(super) fn decide(
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
        let expires = matches!(command, Command::ExpireHolds);
        let receipt = self.core.apply_to(command, now, &mut self.forming.transactions)?;
        if let Receipt::ReleasedMany { holds, .. } = &receipt
            && expires
        {
            self.health.expired += holds.len() as u64;
        }
        for transaction in self.forming.transactions.get(queued..).unwrap_or_default() {
            if let Event::Settled(settled) = &transaction.event {
                self.forming.answer_bytes += settled.answer.as_ref().map_or(0, |answer| answer.body.len());
            }
        }
        Ok(receipt)
    }

    /// What a batch decided now waits for: the group being formed, or else the one being written.
    pub(super) fn awaited(&self) -> Option<Arc<Group>> {
        if !self.forming.transactions.is_empty() {
            return Some(Arc::clone(&self.forming.group));
        }
        self.in_flight.clone()
    }

    /// Takes the live state back to `core` and tells everyone whose batch is lost.
    pub(super) fn fail_forming(&mut self, failed: &JournalFailed) {
        let forming = std::mem::take(&mut self.forming);
        forming.group.resolve(Err(failed.clone()));
    }
}
