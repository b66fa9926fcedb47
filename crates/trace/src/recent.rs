//! The newest records in memory, so that a trace can be read right after its answer. Sharded by id, so writers of
//! different requests almost never meet. A lock is held only for a pointer swap or a short scan.

use headrace_domain::RequestId;
use parking_lot::Mutex;

use crate::recorded::SharedRecord;

const SHARDS: usize = 16;

/// About the newest `capacity` records. Each shard keeps its own newest records.
pub(crate) struct RecentRecords {
    shards: [Mutex<RecentShard>; SHARDS],
    shard_capacity: usize,
}

#[derive(Default)]
struct RecentShard {
    ring: Vec<(RequestId, SharedRecord)>,
    /// Index of the oldest entry once the ring is full. It is the next to be overwritten.
    oldest: usize,
}

impl RecentRecords {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { shards: Default::default(), shard_capacity: capacity.div_ceil(SHARDS) }
    }

    pub(crate) fn insert(&self, record: &SharedRecord) {
        if self.shard_capacity == 0 {
            return;
        }
        let Some(shard) = self.shard(record.request_id) else { return };
        let entry = (record.request_id, record.clone());
        let mut shard = shard.lock();
        if shard.ring.len() < self.shard_capacity {
            shard.ring.push(entry);
            return;
        }
        let oldest = shard.oldest;
        let evicted = shard.ring.get_mut(oldest).map(|slot| std::mem::replace(slot, entry));
        shard.oldest = (oldest + 1) % self.shard_capacity;
        drop(shard);
        // Free the evicted record outside the lock.
        drop(evicted);
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<SharedRecord> {
        let shard = self.shard(id)?.lock();
        shard.ring.iter().find(|(key, _)| *key == id).map(|(_, record)| record.clone())
    }

    /// Removes the records for which `is_gone` holds.
    pub(crate) fn remove(&self, is_gone: impl Fn(&SharedRecord) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            // In the order in which they came, so that the oldest is overwritten next.
            let oldest = std::mem::take(&mut shard.oldest);
            shard.ring.rotate_left(oldest);
            shard.ring.retain(|(_, record)| !is_gone(record));
        }
    }

    /// All entries, in no particular order.
    pub(crate) fn all(&self) -> Vec<SharedRecord> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().ring.iter().map(|(_, record)| record.clone()));
        }
        all
    }

    /// Picks a shard by the id's low bits. They are random (UUID v7), so the requests spread evenly.
    fn shard(&self, id: RequestId) -> Option<&Mutex<RecentShard>> {
        let index = usize::try_from(id.bits() % SHARDS as u128).unwrap_or(0);
        self.shards.get(index)
    }
}
