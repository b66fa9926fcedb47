//! Who is next: each tenant's queues, and the virtual token counters by which tenants take turns (arXiv 2401.00588).
//! Knows ids and counters, nothing of blocks or budgets.
//!
//! A tenant's counter grows by the tokens computed for it, divided by its weight; the tenant with the lowest is served
//! next. One that becomes active is lifted to the lowest active counter, so that idling earns no credit.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::{Class, SeqId};

/// Counter units per token at weight 1: room for weights to divide by.
const SCALE: u64 = 1 << 16;
/// Tenants remembered beyond twice the active ones before those that are no longer owed anything are forgotten.
const REMEMBERED: usize = 1024;

#[derive(Debug)]
struct Tenant {
    counter: u64,
    /// The counter under which the sets know it; differs from `counter` while it is in `dirty`.
    placed: u64,
    weight: u32,
    /// Its living sequences.
    live: usize,
    dirty: bool,
    queues: [VecDeque<SeqId>; 3],
}

#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    tenants: HashMap<u64, Tenant>,
    /// (counter, tenant) of those with living sequences.
    active: BTreeSet<(u64, u64)>,
    /// (counter, tenant) of those with a sequence waiting, per class.
    waiting: [BTreeSet<(u64, u64)>; 3],
    dirty: Vec<u64>,
    lengths: [usize; 3],
}

impl FairQueue {
    /// A sequence of this tenant begins to live.
    pub(crate) fn enter(&mut self, tenant: u64, weight: u32) {
        self.settle();
        let floor = self.active.first().map(|&(counter, _)| counter);
        self.forget_if_many(floor);
        let entry = self.tenants.entry(tenant).or_insert_with(|| Tenant {
            counter: 0,
            placed: 0,
            weight: 1,
            live: 0,
            dirty: false,
            queues: Default::default(),
        });
        entry.weight = weight.max(1);
        if entry.live == 0 {
            entry.counter = entry.counter.max(floor.unwrap_or(0));
            entry.placed = entry.counter;
            self.active.insert((entry.placed, tenant));
        }
        entry.live += 1;
    }

    /// A sequence of this tenant, in no queue any more, is gone.
    pub(crate) fn leave(&mut self, tenant: u64) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        entry.live = entry.live.saturating_sub(1);
        if entry.live == 0 {
            self.active.remove(&(entry.placed, tenant));
            entry.placed = entry.counter;
            if self.active.is_empty() {
                // Nobody competes: nobody owes anything.
                self.tenants.clear();
                self.dirty.clear();
            }
        }
    }

    pub(crate) fn push_back(&mut self, tenant: u64, class: Class, id: SeqId) {
        self.push(tenant, class, |queue| queue.push_back(id));
    }

    pub(crate) fn push_front(&mut self, tenant: u64, class: Class, id: SeqId) {
        self.push(tenant, class, |queue| queue.push_front(id));
    }

    fn push(&mut self, tenant: u64, class: Class, put: impl FnOnce(&mut VecDeque<SeqId>)) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        if let Some(queue) = entry.queues.get_mut(class.index()) {
            put(queue);
        }
        if let (Some(set), Some(length)) =
            (self.waiting.get_mut(class.index()), self.lengths.get_mut(class.index()))
        {
            set.insert((entry.placed, tenant));
            *length += 1;
        }
    }

    /// Takes a sequence out of its queue. Linear in that queue, which is bounded; no dead entry stays behind.
    pub(crate) fn remove(&mut self, tenant: u64, class: Class, id: SeqId) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        let Some(queue) = entry.queues.get_mut(class.index()) else { return };
        let Some(at) = queue.iter().position(|&other| other == id) else { return };
        queue.remove(at);
        let empty = queue.is_empty();
        if let (Some(set), Some(length)) =
            (self.waiting.get_mut(class.index()), self.lengths.get_mut(class.index()))
        {
            if empty {
                set.remove(&(entry.placed, tenant));
            }
            *length -= 1;
        }
    }

    /// Charges a tenant for tokens computed.
    pub(crate) fn charge(&mut self, tenant: u64, tokens: u64) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        let units = tokens.saturating_mul(SCALE) / u64::from(entry.weight);
        entry.counter = entry.counter.saturating_add(units);
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(tenant);
        }
    }

    /// A tenant's counter: the higher, the less it is entitled to.
    pub(crate) fn counter(&self, tenant: u64) -> u64 {
        self.tenants.get(&tenant).map_or(0, |entry| entry.counter)
    }

    pub(crate) fn len(&self, class: Class) -> usize {
        self.lengths.get(class.index()).copied().unwrap_or(0)
    }

    /// Appends at most `limit` waiting sequences of a class, those served first coming first.
    pub(crate) fn candidates(&mut self, class: Class, limit: usize, into: &mut Vec<SeqId>) {
        self.settle();
        let Some(set) = self.waiting.get(class.index()) else { return };
        for (_, tenant) in set {
            let Some(queue) = self.tenants.get(tenant).and_then(|t| t.queues.get(class.index())) else {
                continue;
            };
            for &id in queue {
                if into.len() >= limit {
                    return;
                }
                into.push(id);
            }
        }
    }

    /// Moves tenants whose counters grew to their new places.
    fn settle(&mut self) {
        while let Some(tenant) = self.dirty.pop() {
            let Some(entry) = self.tenants.get_mut(&tenant) else { continue };
            entry.dirty = false;
            let (old, new) = ((entry.placed, tenant), (entry.counter, tenant));
            entry.placed = entry.counter;
            if old == new || entry.live == 0 {
                continue;
            }
            for set in self.waiting.iter_mut().chain([&mut self.active]) {
                if set.remove(&old) {
                    set.insert(new);
                }
            }
        }
    }

    /// Forgets inactive tenants that would be lifted to `floor` anyway.
    fn forget_if_many(&mut self, floor: Option<u64>) {
        if let Some(floor) = floor
            && self.tenants.len() > self.active.len() * 2 + REMEMBERED
        {
            self.tenants.retain(|_, entry| entry.live > 0 || entry.counter > floor);
        }
    }

    /// For tests: every queued id with its tenant and class, and whether the sets agree with the queues.
    pub(crate) fn audit(&self) -> Result<Vec<(SeqId, u64, Class)>, String> {
        let mut queued = Vec::new();
        for class in Class::SERVED {
            let mut count = 0;
            for (&tenant, entry) in &self.tenants {
                let queue = entry.queues.get(class.index()).ok_or("class without a queue")?;
                let listed =
                    self.waiting.get(class.index()).is_some_and(|s| s.contains(&(entry.placed, tenant)));
                if listed == queue.is_empty() {
                    return Err(format!("tenant {tenant}: listed {listed} with {} waiting", queue.len()));
                }
                count += queue.len();
                queued.extend(queue.iter().map(|&id| (id, tenant, class)));
            }
            if count != self.len(class) {
                return Err(format!("{class:?}: {count} queued, {} counted", self.len(class)));
            }
        }
        let live = self.tenants.values().filter(|t| t.live > 0).count();
        if live != self.active.len() {
            return Err(format!("{live} tenants live, {} active", self.active.len()));
        }
        Ok(queued)
    }
}
