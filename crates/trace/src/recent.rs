//! The newest records in memory, so that a trace can be read right after its answer. Sharded by id: writers of
//! different requests almost never meet, and a lock is held for the length of a pointer swap or a short scan.

use headrace_domain::RequestId;
use parking_lot::Mutex;

use crate::recorded::Recorded;

const SHARDS: usize = 16;

/// About the newest `capacity` records: each of the shards keeps its own newest.
pub(crate) struct Recent {
    shards: [Mutex<Shard>; SHARDS],
    shard_capacity: usize,
}

#[derive(Default)]
struct Shard {
    ring: Vec<(RequestId, Recorded)>,
    /// The oldest entry once the ring is full: the next to be overwritten.
    oldest: usize,
}

impl Recent {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { shards: Default::default(), shard_capacity: capacity.div_ceil(SHARDS) }
    }

    pub(crate) fn insert(&self, record: &Recorded) {
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
        // Freed outside the lock.
        drop(evicted);
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<Recorded> {
        let shard = self.shard(id)?.lock();
        shard.ring.iter().find(|(key, _)| *key == id).map(|(_, record)| record.clone())
    }

    /// Every entry, in no order.
    pub(crate) fn all(&self) -> Vec<Recorded> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().ring.iter().map(|(_, record)| record.clone()));
        }
        all
    }

    /// The low bits of an id are random (UUID v7), so they spread the requests evenly.
    fn shard(&self, id: RequestId) -> Option<&Mutex<Shard>> {
        let index = usize::try_from(id.bits() % SHARDS as u128).unwrap_or(0);
        self.shards.get(index)
    }
}
