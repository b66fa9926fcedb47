//! A shared journal in memory, for tests: several handles see the same rows, and a test decides how commits fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;
use parking_lot::Mutex;

use crate::admin::{GatewayState, JournalHistory};
use crate::command::Owner;
use crate::journal::{FORMAT_VERSION, GENESIS, JournalError, JournalRow, LoadedJournal, StateSnapshot};
use crate::verify::{VerifyReport, verify};

use super::journal::{GatewayPresence, SharedJournal, StartedTurn, TurnStamp};

/// A handle to a shared journal in memory. Clones are other handles to the same journal.
#[derive(Debug, Clone)]
pub struct MemorySharedJournal {
    shared: Arc<Mutex<SharedRows>>,
    /// The id of this handle's connection. Writes of earlier connections do not arrive.
    connection: Option<u64>,
    /// Whether this handle cannot reach the journal.
    faults: Arc<Mutex<HandleFaults>>,
}

#[derive(Debug, Default)]
struct HandleFaults {
    is_cut: bool,
    next_commit: Option<CommitFault>,
}

#[derive(Debug, Default)]
struct SharedRows {
    time: UnixNanos,
    rows: Vec<JournalRow>,
    /// Each change of identities: the number of rows at that time.
    identity_changes: Vec<usize>,
    stamps: Vec<TurnStamp>,
    snapshots: Vec<StateSnapshot>,
    gateways: BTreeMap<Owner, MemberRecord>,
    connections: u64,
    /// The connection that has the head locked.
    locked: Option<u64>,
    /// A commit that has not arrived yet. It keeps the head locked.
    late: Option<LateCommit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemberRecord {
    seen: UnixNanos,
    state: GatewayState,
    newest_format: u32,
}

#[derive(Debug)]
struct LateCommit {
    row: Option<JournalRow>,
    stamp: TurnStamp,
    dead: Vec<Owner>,
}

/// The way in which a commit fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// Nothing is written, and the connection stays open.
    Refused,
    /// Nothing is written, and the connection breaks.
    Lost,
    /// The row is written, and the connection breaks before the answer.
    Unheard,
    /// The row is written or lost later, when [`MemorySharedJournal::arrive`] says so. Until then the head is locked.
    Late,
}

fn io(why: &str) -> JournalError {
    JournalError::Io(why.into())
}

impl Default for MemorySharedJournal {
    fn default() -> Self {
        Self::new()
    }
}

impl MemorySharedJournal {
    /// Creates an empty journal, and a handle to it.
    pub fn new() -> Self {
        Self { shared: Arc::default(), connection: None, faults: Arc::default() }
    }

    /// Returns another handle, for another gateway.
    pub fn other_handle(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), connection: None, faults: Arc::default() }
    }

    /// Sets the journal's clock.
    pub fn set_time(&self, time: UnixNanos) {
        self.shared.lock().time = time;
    }

    /// Returns the journal's clock.
    pub fn time(&self) -> UnixNanos {
        self.shared.lock().time
    }

    /// Makes the next commit of this handle and its clones fail.
    pub fn fail_commit(&self, fault: CommitFault) {
        self.faults.lock().next_commit = Some(fault);
    }

    /// Cuts this handle and its clones off the journal, or lets them reach it again.
    pub fn set_cut(&self, is_cut: bool) {
        self.faults.lock().is_cut = is_cut;
    }

    /// Ends all faults of this handle and its clones.
    pub fn heal(&self) {
        *self.faults.lock() = HandleFaults::default();
    }

    /// Ends the late commit, if there is one: it is written, or lost.
    pub fn arrive(&self, is_written: bool) {
        let mut shared = self.shared.lock();
        if let Some(LateCommit { row, stamp, dead }) = shared.late.take() {
            shared.locked = None;
            if is_written {
                shared.write(row.as_ref(), stamp, &dead);
            }
        }
    }

    /// Counts a change of identities, as a transaction that locks the head does. Returns `false` if the head is locked.
    pub fn change_identities(&self) -> bool {
        let mut shared = self.shared.lock();
        let is_free = shared.locked.is_none();
        if is_free {
            let rows = shared.rows.len();
            shared.identity_changes.push(rows);
        }
        is_free
    }

    /// Returns the number of rows at each change of identities, in order.
    pub fn identity_changes(&self) -> Vec<usize> {
        self.shared.lock().identity_changes.clone()
    }

    /// Returns the whole content.
    pub fn contents(&self) -> LoadedJournal {
        let shared = self.shared.lock();
        LoadedJournal { snapshots: shared.snapshots.clone(), rows: shared.rows.clone() }
    }

    /// Returns the stamp of each row, in order.
    pub fn stamps(&self) -> Vec<TurnStamp> {
        self.shared.lock().stamps.clone()
    }

    /// Removes the last `count` rows, like a failover to a standby that did not have them.
    pub fn lose_rows(&self, count: usize) {
        let mut shared = self.shared.lock();
        let kept = shared.rows.len().saturating_sub(count);
        shared.rows.truncate(kept);
        shared.stamps.truncate(kept);
    }

    fn reach(&self) -> Result<u64, JournalError> {
        if self.faults.lock().is_cut {
            return Err(io("the connection is cut"));
        }
        self.connection.ok_or_else(|| io("it is not connected"))
    }
}

impl SharedRows {
    fn rows_after(&self, sequence: u64, limit: usize) -> Vec<JournalRow> {
        self.rows.iter().filter(|row| row.sequence > sequence).take(limit).cloned().collect()
    }

    fn write(&mut self, row: Option<&JournalRow>, stamp: TurnStamp, dead: &[Owner]) {
        if let Some(row) = row {
            self.rows.push(row.clone());
            self.stamps.push(stamp);
        }
        for owner in dead {
            if let Some(gateway) = self.gateways.get_mut(owner) {
                gateway.state = GatewayState::Dead;
            }
        }
    }

    fn newest_format(&self) -> u32 {
        let live = self.gateways.values().filter(|gateway| gateway.state == GatewayState::Live);
        live.map(|gateway| gateway.newest_format).min().unwrap_or(FORMAT_VERSION)
    }

    fn is_live(&self, owner: Owner) -> bool {
        self.gateways.get(&owner).is_some_and(|gateway| gateway.state == GatewayState::Live)
    }
}

impl SharedJournal for MemorySharedJournal {
    fn join(&mut self, owner: Owner, newest_format: u32) -> Result<(), JournalError> {
        if self.faults.lock().is_cut {
            return Err(io("the connection is cut"));
        }
        let mut shared = self.shared.lock();
        let time = shared.time;
        let joined = MemberRecord { seen: time, state: GatewayState::Live, newest_format };
        let gateway = shared.gateways.entry(owner).or_insert(joined);
        if gateway.state == GatewayState::Live {
            gateway.seen = time;
        }
        if shared.late.is_none() && shared.locked.is_some() && shared.locked == self.connection {
            shared.locked = None;
        }
        shared.connections += 1;
        self.connection = Some(shared.connections);
        Ok(())
    }

    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        self.reach()?;
        let shared = self.shared.lock();
        Ok(shared.snapshots.iter().rev().find(|snapshot| snapshot.sequence < sequence).cloned())
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        self.reach()?;
        Ok(self.shared.lock().rows_after(sequence, limit))
    }

    fn begin(
        &mut self,
        owner: Owner,
        sequence: u64,
        limit: usize,
        lease: Option<Duration>,
    ) -> Result<StartedTurn, JournalError> {
        let connection = self.reach()?;
        let mut shared = self.shared.lock();
        if shared.locked.is_some() {
            return Err(io("another gateway keeps the head of the journal locked"));
        }
        shared.locked = Some(connection);
        let time = shared.time;
        let lapsed = lease.map_or_else(Vec::new, |lease| {
            let gateways = shared.gateways.iter();
            let lapsed = gateways.filter(|(_, gateway)| {
                gateway.state == GatewayState::Live && time.since(gateway.seen) >= lease
            });
            lapsed.map(|(owner, _)| *owner).collect()
        });
        let rows = shared.rows_after(sequence, limit);
        let last = shared.rows.last();
        Ok(StartedTurn {
            head: last.map_or(0, |row| row.sequence),
            checksum: last.map_or(GENESIS, |row| row.checksum),
            time,
            is_live: shared.is_live(owner),
            newest_format: shared.newest_format(),
            identity_changes: shared.identity_changes.len() as u64,
            rows,
            lapsed,
        })
    }

    fn commit(
        &mut self,
        row: Option<&JournalRow>,
        stamp: TurnStamp,
        dead: &[Owner],
    ) -> Result<(), JournalError> {
        let connection = self.reach()?;
        let mut shared = self.shared.lock();
        if shared.locked != Some(connection) {
            return Err(io("the turn has ended"));
        }
        let fault = self.faults.lock().next_commit.take();
        if fault != Some(CommitFault::Late) {
            shared.locked = None;
        }
        match fault {
            None => {
                shared.write(row, stamp, dead);
                return Ok(());
            }
            Some(CommitFault::Refused) => return Err(io("a fault was injected")),
            Some(CommitFault::Lost) => {}
            Some(CommitFault::Unheard) => shared.write(row, stamp, dead),
            Some(CommitFault::Late) => {
                shared.late = Some(LateCommit { row: row.cloned(), stamp, dead: dead.to_vec() });
            }
        }
        self.connection = None;
        Err(io("the connection broke during the commit"))
    }

    fn abandon(&mut self) {
        let mut shared = self.shared.lock();
        if shared.late.is_none() && shared.locked.is_some() && shared.locked == self.connection {
            shared.locked = None;
        }
    }

    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
        self.reach()?;
        self.shared.lock().snapshots.push(snapshot.clone());
        Ok(())
    }

    fn history(&self) -> Arc<dyn JournalHistory> {
        Arc::new(self.clone())
    }

    fn leave(&mut self, owner: Owner) -> Result<(), JournalError> {
        self.reach()?;
        if let Some(gateway) = self.shared.lock().gateways.get_mut(&owner) {
            gateway.state = GatewayState::Left;
        }
        Ok(())
    }
}

impl GatewayPresence for MemorySharedJournal {
    fn renew(&mut self, owner: Owner) -> Result<bool, JournalError> {
        if self.faults.lock().is_cut {
            return Err(io("the connection is cut"));
        }
        let mut shared = self.shared.lock();
        let time = shared.time;
        let Some(gateway) = shared.gateways.get_mut(&owner) else { return Ok(false) };
        if gateway.state == GatewayState::Live {
            gateway.seen = time;
        }
        Ok(gateway.state == GatewayState::Live)
    }
}

impl JournalHistory for MemorySharedJournal {
    fn rows_after(&self, after: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        Ok(self.shared.lock().rows_after(after, limit))
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        Ok(verify(&self.contents()))
    }
}
