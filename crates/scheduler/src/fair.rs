//! The order of service: each tenant's queues, and the virtual token counters by which tenants take turns (arXiv
//! 2401.00588). Knows ids and counters, nothing of blocks or budgets.
//!
//! A tenant's counter grows by the tokens computed for it, divided by its weight. The tenant with the lowest counter is
//! served next. A tenant that begins to wait is lifted to the lowest waiting counter, less a burst of a few steps. If
//! no tenant waits, it is lifted to the counter of the tenant that waited last, less the same burst. So an absence
//! earns a tenant immediate service, and nothing more.

use std::collections::{BTreeSet, VecDeque};

use headrace_kv_layout::PerGroup;

use crate::sequence::{Class, SeqId};
use crate::tables::ByTenant;

/// Counter units per token at weight 1. The scale leaves room to divide by weights.
pub(crate) const SCALE: u64 = 1 << 16;
/// Tenants remembered beyond twice the active ones. Above that, tenants that no longer matter are forgotten.
const REMEMBERED: usize = 1024;
const CLASSES: usize = Class::SERVED.len();

#[derive(Debug)]
struct Tenant {
    counter: u64,
    /// The counter under which the `waiting` sets list the tenant. Differs from `counter` while the tenant is in
    /// `dirty`.
    placed: u64,
    weight: u32,
    /// Its living sequences.
    live: usize,
    /// Living sequences that are neither idle work nor paused.
    busy: usize,
    /// Of the busy sequences, those that hold blocks.
    running: usize,
    /// Blocks of each group that the running sequences hold. A block shared by several of them counts once for each.
    blocks: PerGroup<usize>,
    dirty: bool,
    queues: [VecDeque<SeqId>; CLASSES],
    /// Waiting tokens, per class.
    queued_tokens: [u64; CLASSES],
}

/// A tenant's waiting sequences of one class, in total.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) tenant: u64,
    pub(crate) counter: u64,
    pub(crate) weight: u32,
    pub(crate) sequences: usize,
    pub(crate) tokens: u64,
}

#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    tenants: ByTenant<Tenant>,
    /// Tenants with living sequences.
    active: usize,
    /// (counter, tenant) of the tenants with a waiting sequence, per class.
    waiting: [BTreeSet<(u64, u64)>; CLASSES],
    dirty: Vec<u64>,
    lengths: [usize; CLASSES],
    /// Counter of the tenant whose queue of normal work emptied most recently.
    last: u64,
    /// How far below the lowest waiting counter a tenant may begin to wait.
    burst: u64,
    /// How far a tenant's counter may exceed another's and still pass it, if the tenant is below its share of the pool.
    lead: u64,
    /// Bytes of a block of each group. Groups have blocks of different sizes, so shares are counted in bytes.
    block_bytes: PerGroup<usize>,
    /// Total weight of the tenants with sequences that are neither idle work nor paused.
    busy_weight: u64,
    /// Sequences of all tenants that hold blocks, without idle work and paused sequences.
    running: usize,
}

impl FairQueue {
    /// Creates an empty queue. A tenant that was away may be ahead of the others by `burst_tokens`. A tenant below its
    /// share of the pool may be ahead by `lead_tokens` more. `block_bytes` is the size of a block of each group.
    pub(crate) fn new(burst_tokens: usize, lead_tokens: usize, block_bytes: PerGroup<usize>) -> Self {
        let units = |tokens: usize| (tokens as u64).saturating_mul(SCALE);
        let burst = units(burst_tokens);
        Self { burst, lead: burst.saturating_add(units(lead_tokens)), block_bytes, ..Self::default() }
    }

    /// Registers a new sequence of this tenant, and updates the tenant's weight.
    pub(crate) fn enter(&mut self, tenant: u64, class: Class, weight: u32) {
        self.forget_if_many();
        let entry = self.tenants.entry(tenant).or_insert_with(|| Tenant {
            counter: 0,
            placed: 0,
            weight: 1,
            live: 0,
            busy: 0,
            running: 0,
            blocks: PerGroup::default(),
            dirty: false,
            queues: Default::default(),
            queued_tokens: [0; CLASSES],
        });
        if entry.busy > 0 {
            self.busy_weight -= u64::from(entry.weight);
        }
        entry.weight = weight.max(1);
        entry.busy += usize::from(class != Class::Idle);
        if entry.busy > 0 {
            self.busy_weight += u64::from(entry.weight);
        }
        self.active += usize::from(entry.live == 0);
        entry.live += 1;
    }

    /// Removes a sequence of this tenant. The sequence is in no queue any more.
    pub(crate) fn leave(&mut self, tenant: u64, class: Class) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        entry.live = entry.live.saturating_sub(1);
        if class != Class::Idle {
            entry.busy = entry.busy.saturating_sub(1);
            if entry.busy == 0 {
                self.busy_weight -= u64::from(entry.weight);
            }
        }
        if entry.live == 0 {
            self.active -= 1;
            if self.active == 0 {
                // No tenant competes, so none is owed anything.
                self.tenants.clear();
                self.dirty.clear();
                self.last = 0;
            }
        }
    }

    /// Pauses (`true`) or resumes (`false`) a sequence that is in no queue. A paused sequence earns its tenant no
    /// share. On resume, the tenant has earned no more than a tenant that was away.
    pub(crate) fn set_paused(&mut self, tenant: u64, class: Class, paused: bool) {
        let counter = self.entry_counter(tenant, class);
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        if class != Class::Idle {
            let before = entry.busy;
            entry.busy = if paused { before.saturating_sub(1) } else { before + 1 };
            match (before > 0, entry.busy > 0) {
                (true, false) => self.busy_weight -= u64::from(entry.weight),
                (false, true) => self.busy_weight += u64::from(entry.weight),
                _ => {}
            }
        }
        if !paused {
            entry.counter = counter;
            self.touch(tenant);
        }
    }

    /// A sequence of this tenant takes (`true`) or loses (`false`) its running slot.
    pub(crate) fn runs(&mut self, tenant: u64, class: Class, begins: bool) {
        if class == Class::Idle {
            return;
        }
        if let Some(entry) = self.tenants.get_mut(&tenant) {
            for count in [&mut entry.running, &mut self.running] {
                *count = if begins { *count + 1 } else { count.saturating_sub(1) };
            }
        }
    }

    /// A sequence of this tenant takes (`true`) or gives back (`false`) this many blocks of each group.
    pub(crate) fn holds(&mut self, tenant: u64, class: Class, blocks: &PerGroup<usize>, takes: bool) {
        if class == Class::Idle {
            return;
        }
        if let Some(entry) = self.tenants.get_mut(&tenant) {
            for (held, &blocks) in entry.blocks.iter_mut().zip(blocks.iter()) {
                *held = if takes { *held + blocks } else { held.saturating_sub(blocks) };
            }
        }
    }

    /// Blocks of each group that a tenant's running sequences hold, without idle work.
    pub(crate) fn blocks(&self, tenant: u64) -> PerGroup<usize> {
        self.tenants.get(&tenant).map_or(PerGroup::default(), |entry| entry.blocks)
    }

    /// Bytes of this number of blocks of each group.
    pub(crate) fn bytes_of(&self, blocks: &PerGroup<usize>) -> usize {
        let products = blocks.iter().zip(self.block_bytes.iter());
        products.fold(0, |sum, (count, size)| sum.saturating_add(count.saturating_mul(*size)))
    }

    /// Bytes of the blocks that a tenant's running sequences hold, without idle work. A sequence has a second slot for
    /// its state while a step completes a block. It does not count, or sequences would displace each other in turn.
    pub(crate) fn bytes(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |entry| self.lasting_bytes(entry))
    }

    fn lasting_bytes(&self, entry: &Tenant) -> usize {
        let mut blocks = entry.blocks;
        let states = blocks.each_mut().2;
        *states = entry.running.min(*states);
        self.bytes_of(&blocks)
    }

    /// Whether a tenant holds its fair share of `whole` bytes of blocks: one more block would exceed it.
    pub(crate) fn has_its_bytes(&self, tenant: u64, whole: usize) -> bool {
        let least = self.block_bytes.iter().copied().filter(|&bytes| bytes > 0).min().unwrap_or(1);
        self.bytes(tenant).saturating_add(least) > self.share(tenant, whole).max(least)
    }

    /// The other tenant that exceeds its fair share of running slots the most, or its share of `bytes` if given. Only
    /// tenants that `tenant` may pass are considered.
    pub(crate) fn furthest_beyond(&self, tenant: u64, places: usize, bytes: Option<usize>) -> Option<u64> {
        let counter = self.counter(tenant);
        let excess = |&id: &u64, other: &Tenant| match bytes {
            None => other.running.saturating_sub(self.share(id, places).max(1)),
            Some(whole) => self.lasting_bytes(other).saturating_sub(self.share(id, whole)),
        };
        let others = self.tenants.iter().filter(|(id, other)| {
            **id != tenant && other.running > 0 && counter <= self.within_lead(other.counter)
        });
        let beyond = others.map(|(id, other)| (excess(id, other), *id)).filter(|&(excess, _)| excess > 0);
        beyond.max().map(|(_, id)| id)
    }

    /// Running sequences of all tenants, without idle work and paused sequences.
    pub(crate) fn all_running(&self) -> usize {
        self.running
    }

    /// Running sequences of a tenant, without idle work and paused sequences.
    pub(crate) fn running(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |entry| entry.running)
    }

    /// Living sequences of a tenant, without idle work and paused sequences.
    pub(crate) fn busy(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |entry| entry.busy)
    }

    /// A tenant's fair share of `whole` among the busy tenants, rounded down. Idle work earns no share.
    pub(crate) fn share(&self, tenant: u64, whole: usize) -> usize {
        let weight = self.tenants.get(&tenant).map_or(1, |entry| u64::from(entry.weight));
        let part = whole as u128 * u128::from(weight) / u128::from(self.busy_weight.max(weight));
        usize::try_from(part).unwrap_or(whole)
    }

    /// The weight that divides a tenant's use.
    pub(crate) fn weight(&self, tenant: u64) -> u64 {
        self.tenants.get(&tenant).map_or(1, |entry| u64::from(entry.weight))
    }

    /// Each tenant's waiting sequences of one class, in total.
    pub(crate) fn queued(&self, class: Class) -> impl Iterator<Item = Queued> + '_ {
        let set = self.waiting.get(class.index());
        set.into_iter().flatten().filter_map(move |&(_, tenant)| {
            let entry = self.tenants.get(&tenant)?;
            Some(Queued {
                tenant,
                counter: entry.counter,
                weight: entry.weight,
                sequences: entry.queues.get(class.index())?.len(),
                tokens: entry.queued_tokens.get(class.index()).copied()?,
            })
        })
    }

    /// The first waiting sequence of a tenant in a class.
    pub(crate) fn front(&self, tenant: u64, class: Class) -> Option<SeqId> {
        self.tenants.get(&tenant)?.queues.get(class.index())?.front().copied()
    }

    /// Sequences and tokens that a tenant has waiting, in all classes.
    pub(crate) fn queued_by(&self, tenant: u64) -> (usize, u64) {
        self.tenants.get(&tenant).map_or((0, 0), |entry| {
            (entry.queues.iter().map(VecDeque::len).sum(), entry.queued_tokens.iter().sum())
        })
    }

    /// The highest counter that may still pass a tenant with this counter.
    pub(crate) fn within_lead(&self, counter: u64) -> u64 {
        counter.saturating_add(self.lead)
    }

    /// The counter that a tenant gets when it begins to wait.
    pub(crate) fn entry_counter(&self, tenant: u64, class: Class) -> u64 {
        let own = self.counter(tenant);
        if self.waits(tenant, class) { own } else { own.max(self.floor(class).saturating_sub(self.burst)) }
    }

    /// The first tenant of a class, as (counter, tenant).
    pub(crate) fn first(&mut self, class: Class) -> Option<(u64, u64)> {
        self.settle();
        self.waiting.get(class.index())?.first().copied()
    }

    /// Appends a new sequence to its tenant's queue.
    pub(crate) fn push_back(&mut self, tenant: u64, class: Class, id: SeqId, tokens: u64) {
        self.settle();
        let counter = self.entry_counter(tenant, class);
        if let Some(entry) = self.tenants.get_mut(&tenant) {
            entry.counter = counter;
        }
        self.touch(tenant);
        self.settle();
        self.push(tenant, class, tokens, |queue| queue.push_back(id));
    }

    /// Puts a returning sequence at the head of its tenant's queue.
    pub(crate) fn push_front(&mut self, tenant: u64, class: Class, id: SeqId, tokens: u64) {
        self.push(tenant, class, tokens, |queue| queue.push_front(id));
    }

    fn push(&mut self, tenant: u64, class: Class, tokens: u64, put: impl FnOnce(&mut VecDeque<SeqId>)) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        if let (Some(queue), Some(queued)) =
            (entry.queues.get_mut(class.index()), entry.queued_tokens.get_mut(class.index()))
        {
            put(queue);
            *queued += tokens;
        }
        if let (Some(set), Some(length)) =
            (self.waiting.get_mut(class.index()), self.lengths.get_mut(class.index()))
        {
            set.insert((entry.placed, tenant));
            *length += 1;
        }
    }

    /// Removes a sequence from its queue. Takes time linear in that queue, which is bounded. No dead entry remains.
    pub(crate) fn remove(&mut self, tenant: u64, class: Class, id: SeqId, tokens: u64) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        let (Some(queue), Some(queued)) =
            (entry.queues.get_mut(class.index()), entry.queued_tokens.get_mut(class.index()))
        else {
            return;
        };
        let Some(at) = queue.iter().position(|&other| other == id) else { return };
        queue.remove(at);
        *queued = queued.saturating_sub(tokens);
        let empty = queue.is_empty();
        if let (Some(set), Some(length)) =
            (self.waiting.get_mut(class.index()), self.lengths.get_mut(class.index()))
        {
            if empty {
                set.remove(&(entry.placed, tenant));
                if class != Class::Idle {
                    self.last = entry.counter;
                }
            }
            *length -= 1;
        }
    }

    /// Charges a tenant for tokens computed.
    pub(crate) fn charge(&mut self, tenant: u64, tokens: u64) {
        let Some(entry) = self.tenants.get_mut(&tenant) else { return };
        let units = tokens.saturating_mul(SCALE) / u64::from(entry.weight);
        entry.counter = entry.counter.saturating_add(units);
        self.touch(tenant);
    }

    /// Marks a tenant whose counter changed, so that [`Self::settle`] moves it in the sets.
    fn touch(&mut self, tenant: u64) {
        if let Some(entry) = self.tenants.get_mut(&tenant).filter(|entry| !entry.dirty) {
            entry.dirty = true;
            self.dirty.push(tenant);
        }
    }

    /// Whether the tenant has a waiting sequence in a class.
    fn waits(&self, tenant: u64, class: Class) -> bool {
        let queues = self.tenants.get(&tenant).map(|entry| &entry.queues);
        queues.and_then(|queues| queues.get(class.index())).is_some_and(|queue| !queue.is_empty())
    }

    /// The lowest counter that waits in a class.
    fn floor(&self, class: Class) -> u64 {
        let first = self.waiting.get(class.index()).and_then(BTreeSet::first).map(|&(counter, _)| counter);
        first.unwrap_or(if class == Class::Idle { 0 } else { self.last })
    }

    /// A tenant's counter. The higher it is, the less the tenant is entitled to.
    pub(crate) fn counter(&self, tenant: u64) -> u64 {
        self.tenants.get(&tenant).map_or(0, |entry| entry.counter)
    }

    pub(crate) fn len(&self, class: Class) -> usize {
        self.lengths.get(class.index()).copied().unwrap_or(0)
    }

    /// Appends at most `limit` waiting sequences of the tenant that follows `after` in a class. `None` starts at the
    /// first tenant. Returns that tenant as (counter, tenant), to be passed as `after` in the next call.
    pub(crate) fn candidates(
        &mut self,
        class: Class,
        after: Option<(u64, u64)>,
        limit: usize,
        into: &mut Vec<SeqId>,
    ) -> Option<(u64, u64)> {
        use std::ops::Bound::{Excluded, Unbounded};
        if after.is_none() {
            self.settle();
        }
        let set = self.waiting.get(class.index())?;
        let &next = match after {
            None => set.first(),
            Some(after) => set.range((Excluded(after), Unbounded)).next(),
        }?;
        let queue = self.tenants.get(&next.1)?.queues.get(class.index())?;
        into.extend(queue.iter().take(limit));
        Some(next)
    }

    /// Moves tenants whose counters changed to their new positions.
    fn settle(&mut self) {
        while let Some(tenant) = self.dirty.pop() {
            let Some(entry) = self.tenants.get_mut(&tenant) else { continue };
            entry.dirty = false;
            let (old, new) = ((entry.placed, tenant), (entry.counter, tenant));
            entry.placed = entry.counter;
            if old == new || entry.live == 0 {
                continue;
            }
            for set in &mut self.waiting {
                if set.remove(&old) {
                    set.insert(new);
                }
            }
        }
    }

    /// Forgets inactive tenants whose counters are not above the lowest waiting counter. If they return, they are
    /// lifted to about that counter anyway.
    fn forget_if_many(&mut self) {
        if self.tenants.len() > self.active * 2 + REMEMBERED {
            let floor = self.floor(Class::Normal);
            self.tenants.retain(|_, entry| entry.live > 0 || entry.counter > floor);
        }
    }

    /// For tests: calls `queued` with every queued id, its tenant and its class. Returns its error, or one if the sets
    /// and counts disagree with the queues.
    pub(crate) fn audit(
        &self,
        mut queued: impl FnMut(SeqId, u64, Class) -> Result<(), String>,
    ) -> Result<(), String> {
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
                queue.iter().try_for_each(|&id| queued(id, tenant, class))?;
            }
            if count != self.len(class) {
                return Err(format!("{class:?}: {count} queued, {} counted", self.len(class)));
            }
        }
        let live = self.tenants.values().filter(|t| t.live > 0).count();
        if live != self.active {
            return Err(format!("{live} tenants live, {} active", self.active));
        }
        let busy: u64 = self.tenants.values().filter(|t| t.busy > 0).map(|t| u64::from(t.weight)).sum();
        if busy != self.busy_weight {
            return Err(format!("weights of {busy} are busy, {} counted", self.busy_weight));
        }
        Ok(())
    }
}
