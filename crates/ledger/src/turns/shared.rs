//! What the handles and the threads of a shared ledger share: the live state, the batches that wait, and the callers'
//! deadlines. Must not know how a turn is written.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headrace_domain::{Clock, HoldId, UnixNanos};
use parking_lot::{Condvar, Mutex};

use crate::client::CallerCheck;
use crate::command::{LedgerOperation, Owner, ReleaseReason};
use crate::core::LedgerCore;
use crate::durable::JournalFailed;
use crate::journal::{FORMAT_VERSION, LedgerError};
use crate::service::JournalHealth;

use super::journal::SharedIdentities;
use super::reply::{ReplySlot, UnclaimedHolds};

/// The options of a shared ledger. Every limit names its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLedgerOptions {
    /// How long a batch that begins work may wait for its turn. It is then refused as unavailable.
    pub wait: Duration,
    /// How long a gateway may fail to renew its presence before others declare it dead. Longer than a failover of the
    /// database takes.
    pub lease: Duration,
    /// The number of batches that may wait for a turn before new work is refused.
    pub max_queued_batches: usize,
    /// The number of rows between two snapshots.
    pub snapshot_rows: u64,
    /// The number of transactions after which a snapshot is written although there were fewer rows.
    pub snapshot_transactions: u64,
    /// How long an idle gateway waits before it reads the rows of others.
    pub refresh: Duration,
    /// The newest row format that this gateway reads and writes, at most [`FORMAT_VERSION`]. With an older one, the
    /// gateway shares the ledger as an older program does.
    pub newest_format: u32,
}

impl Default for SharedLedgerOptions {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(1),
            lease: Duration::from_secs(15),
            max_queued_batches: 16_384,
            snapshot_rows: 65_536,
            snapshot_transactions: 262_144,
            refresh: Duration::from_millis(250),
            newest_format: FORMAT_VERSION,
        }
    }
}

/// What callers and the threads of a shared ledger share.
pub(super) struct TurnShared {
    pub(super) inner: Mutex<TurnState>,
    /// Signals work for the thread that takes turns.
    pub(super) work: Condvar,
    /// Signals the other threads to end.
    pub(super) ended: Condvar,
    pub(super) clock: Arc<dyn Clock>,
    /// The identities that callers are checked against. Callers are not checked before they are set.
    pub(super) identities: OnceLock<Arc<dyn SharedIdentities>>,
}

pub(super) struct TurnState {
    pub(super) core: LedgerCore,
    pub(super) queue: VecDeque<QueuedBatch>,
    /// When callers give up, in the journal thread's order: every batch may wait equally long.
    pub(super) deadlines: VecDeque<WaitLimit>,
    pub(super) status: TurnStatus,
    pub(super) health: JournalHealth,
    pub(super) owner: Owner,
    /// Whether the ledger decides nothing until a person has looked at it. Such a gateway does not renew its presence.
    pub(super) is_halted: bool,
}

/// When a caller gives up.
pub(super) struct WaitLimit {
    /// On the monotonic clock.
    pub(super) at_nanos: u64,
    pub(super) reply: Arc<ReplySlot>,
    /// The number of operations that it asked for.
    pub(super) operations: usize,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum TurnStatus {
    Up,
    /// The journal cannot be reached, and is tried again.
    Down(Arc<str>),
    /// The queue is being written, and no new commands are accepted.
    Closing,
    Closed,
}

/// A batch that waits for a turn.
pub(super) struct QueuedBatch {
    pub(super) operations: Vec<LedgerOperation>,
    /// The caller's wall time, which its expiries refer to.
    pub(super) asked: UnixNanos,
    /// `None` if no caller waits.
    pub(super) reply: Option<Arc<ReplySlot>>,
    /// The caller to check at the moment of the decision.
    pub(super) caller: Option<Arc<dyn CallerCheck>>,
}

impl QueuedBatch {
    /// Whether the batch must be written although its caller has left: it ends work, and frees money.
    pub(super) fn ends_work(&self) -> bool {
        all_end_work(&self.operations)
    }

    /// Whether the batch can be dropped because its caller has left.
    pub(super) fn is_abandoned(&self) -> bool {
        !self.ends_work() && self.reply.as_ref().is_some_and(|reply| !reply.is_awaited())
    }
}

/// Whether a batch ends work. An empty batch, which only reads, does not.
pub(super) fn all_end_work(operations: &[LedgerOperation]) -> bool {
    let ends_work = |operation: &LedgerOperation| {
        matches!(
            operation,
            LedgerOperation::Settle { .. }
                | LedgerOperation::Release { .. }
                | LedgerOperation::ReleaseOwners { .. }
                | LedgerOperation::ExpireHolds
        )
    };
    !operations.is_empty() && operations.iter().all(ends_work)
}

impl TurnStatus {
    pub(super) fn refusal(&self) -> Option<Arc<str>> {
        match self {
            Self::Up => None,
            Self::Down(why) => Some(Arc::clone(why)),
            Self::Closing | Self::Closed => Some("it is closed".into()),
        }
    }
}

impl TurnShared {
    /// Gives up for callers whose time is over. A batch of theirs that is written nevertheless is undone by its release.
    pub(super) fn give_up(&self) {
        let now = self.clock.monotonic_nanos();
        let mut late = Vec::new();
        let why = {
            let mut inner = self.inner.lock();
            while let Some(limit) = inner.deadlines.front() {
                if limit.at_nanos > now && limit.reply.is_awaited() {
                    break;
                }
                late.extend(inner.deadlines.pop_front());
            }
            match &inner.status {
                TurnStatus::Down(why) => Arc::clone(why),
                _ => "the shared ledger did not decide in time".into(),
            }
        };
        for limit in late.into_iter().filter(|limit| limit.at_nanos <= now) {
            limit.reply.give_up(Arc::clone(&why), limit.operations);
        }
    }

    /// The name under which this gateway renews its presence. `None` if it has halted.
    pub(super) fn live_owner(&self) -> Option<Owner> {
        let inner = self.inner.lock();
        (!inner.is_halted).then_some(inner.owner)
    }

    /// Refuses new commands. The thread that takes turns ends when the queue is written.
    pub(super) fn ask_to_close(&self) {
        let mut inner = self.inner.lock();
        if inner.status != TurnStatus::Closed {
            inner.status = TurnStatus::Closing;
        }
        drop(inner);
        self.work.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.inner.lock().status == TurnStatus::Closed
    }

    /// Calls `act` again and again until the ledger is closed.
    pub(super) fn repeat(&self, every: Duration, mut act: impl FnMut()) {
        while !self.is_closed() {
            act();
            let mut inner = self.inner.lock();
            if inner.status != TurnStatus::Closed {
                self.ended.wait_for(&mut inner, every);
            }
        }
    }

    /// Ends all threads. Nothing is decided any more.
    pub(super) fn end(&self) {
        let queued: Vec<_> = {
            let mut inner = self.inner.lock();
            inner.status = TurnStatus::Closed;
            inner.queue.drain(..).collect()
        };
        self.ended.notify_all();
        for batch in queued {
            if let Some(reply) = batch.reply {
                reply.give_up("it is closed".into(), batch.operations.len());
            }
        }
    }
}

impl UnclaimedHolds for TurnShared {
    fn release(&self, holds: Vec<HoldId>) {
        let operations = holds.into_iter();
        let operations =
            operations.map(|hold| LedgerOperation::Release { hold, why: ReleaseReason::Cancelled }).collect();
        let mut inner = self.inner.lock();
        let asked = inner.core.time();
        inner.queue.push_back(QueuedBatch { operations, asked, reply: None, caller: None });
        drop(inner);
        self.work.notify_one();
    }
}

/// The error of a ledger that could not write what was pending when it was closed.
pub(super) fn not_written(why: &str) -> LedgerError {
    LedgerError::NotWritten(JournalFailed { why: why.into() })
}
