//! The sequences that hold blocks: their list, the blocks promised to them, and the order of preemption. Accounts
//! running slots and blocks to tenants. Knows nothing of steps and budgets.

use std::cmp::Reverse;

use headrace_kv_layout::PerGroup;

use crate::fair::{FairQueue, SCALE};
use crate::sequence::{Class, SeqId, Sequence, Slab, State};

/// All running sequences. Each has a running slot. Its tenant is charged for the slot and the blocks unless it is
/// paused.
#[derive(Debug, Default)]
pub(crate) struct Running {
    /// Ids in the order of admission.
    list: Vec<SeqId>,
    /// Number of admissions so far.
    admissions: u64,
    /// How many of the listed sequences are paused.
    paused: usize,
    /// Blocks of each group that their known tokens need and that they have not taken yet.
    promised: PerGroup<usize>,
}

/// What tenants share: the running slots, and the bytes of the blocks of all groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) slots: usize,
    pub(crate) bytes: usize,
}

impl Running {
    /// Number of running sequences, paused ones included.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Number of running sequences that are paused.
    pub(crate) fn paused(&self) -> usize {
        self.paused
    }

    /// Number of running sequences that are not paused.
    pub(crate) fn computed(&self) -> usize {
        self.list.len() - self.paused
    }

    /// Free blocks of each group that are promised to running sequences.
    pub(crate) fn promised(&self) -> &PerGroup<usize> {
        &self.promised
    }

    /// All running sequences, in the order of admission.
    pub(crate) fn of<'a>(&'a self, sequences: &'a Slab) -> impl Iterator<Item = (SeqId, &'a Sequence)> {
        self.list.iter().filter_map(|&id| sequences.get(id).map(|sequence| (id, sequence)))
    }

    /// Gives a sequence a running slot, with the blocks that it found. Promises it the blocks that its known tokens
    /// need beyond those (`needs`).
    pub(crate) fn enter(
        &mut self,
        id: SeqId,
        sequence: &mut Sequence,
        needs: PerGroup<usize>,
        tenants: &mut FairQueue,
    ) {
        self.admissions += 1;
        self.list.push(id);
        sequence.state = State::Running;
        sequence.admitted = self.admissions;
        sequence.promised = needs;
        for (all, &blocks) in self.promised.iter_mut().zip(needs.iter()) {
            *all += blocks;
        }
        tenants.runs(sequence.tenant, sequence.class, true);
        tenants.holds(sequence.tenant, sequence.class, &sequence.tables.held(), true);
    }

    /// Records that a sequence has taken this many more blocks in each group, promised ones first.
    pub(crate) fn grew(
        &mut self,
        sequence: &mut Sequence,
        blocks: &PerGroup<usize>,
        tenants: &mut FairQueue,
    ) {
        tenants.holds(sequence.tenant, sequence.class, blocks, true);
        let promises = self.promised.iter_mut().zip(sequence.promised.iter_mut());
        for ((all, own), &blocks) in promises.zip(blocks.iter()) {
            let taken = blocks.min(*own);
            *own -= taken;
            *all -= taken;
        }
    }

    /// Records that a sequence has released this many blocks of each group, and promises it others instead.
    pub(crate) fn shrank(
        &mut self,
        sequence: &mut Sequence,
        released: &PerGroup<usize>,
        promises: PerGroup<usize>,
        tenants: &mut FairQueue,
    ) {
        if !sequence.paused {
            tenants.holds(sequence.tenant, sequence.class, released, false);
        }
        for ((all, own), &blocks) in
            self.promised.iter_mut().zip(sequence.promised.iter_mut()).zip(promises.iter())
        {
            *all = *all + blocks - std::mem::replace(own, blocks);
        }
    }

    /// Takes the slot and the promised blocks of a sequence that is not paused. The caller must still give back its
    /// blocks.
    pub(crate) fn leave(&mut self, id: SeqId, sequence: &mut Sequence, tenants: &mut FairQueue) {
        for (all, own) in self.promised.iter_mut().zip(sequence.promised.iter_mut()) {
            *all -= std::mem::take(own);
        }
        tenants.runs(sequence.tenant, sequence.class, false);
        tenants.holds(sequence.tenant, sequence.class, &sequence.tables.held(), false);
        self.list.retain(|&other| other != id);
    }

    /// Pauses (`true`) or resumes (`false`) a sequence. Any sequence may take the slot and blocks of a paused one, and
    /// no tenant is charged for them.
    pub(crate) fn set_paused(&mut self, sequence: &Sequence, paused: bool, tenants: &mut FairQueue) {
        tenants.runs(sequence.tenant, sequence.class, !paused);
        tenants.holds(sequence.tenant, sequence.class, &sequence.tables.held(), !paused);
        if paused {
            self.paused += 1;
        } else {
            self.paused -= 1;
        }
    }

    /// The sequence least entitled to its blocks. Paused sequences come first, then idle work, then the tenant that
    /// holds most bytes for its weight, then the youngest sequence.
    pub(crate) fn least_entitled(&self, sequences: &Slab, tenants: &FairQueue) -> Option<SeqId> {
        let burden =
            |s: &Sequence| (tenants.bytes(s.tenant) as u64).saturating_mul(SCALE) / tenants.weight(s.tenant);
        let entitled = |s: &Sequence| (!s.paused, s.class, Reverse(burden(s)), Reverse(s.admitted));
        self.of(sequences).min_by_key(|(_, s)| entitled(s)).map(|(id, _)| id)
    }

    /// The paused sequence to preempt first: idle work before other work, then the youngest.
    pub(crate) fn paused_victim(&self, sequences: &Slab) -> Option<SeqId> {
        if self.paused == 0 {
            return None;
        }
        let paused = self.of(sequences).filter(|(_, s)| s.paused);
        paused.min_by_key(|(id, s)| (s.class, Reverse(s.admitted), *id)).map(|(id, _)| id)
    }

    /// The youngest idle sequence that is not paused.
    pub(crate) fn idle_victim(&self, sequences: &Slab, tenants: &FairQueue) -> Option<SeqId> {
        if tenants.all_running() == self.computed() {
            return None;
        }
        let idle = self.of(sequences).filter(|(_, s)| s.class == Class::Idle && !s.paused);
        idle.min_by_key(|(id, s)| (Reverse(s.admitted), *id)).map(|(id, _)| id)
    }

    /// The youngest sequence of a tenant beyond its fair share, if the waiting sequence stays within its own tenant's
    /// share. The waiting sequence needs blocks of `needs_bytes`; 0 means that it lacks only a running slot. So early
    /// arrivals cannot keep slots and blocks. No tenant is pushed below its share, so sequences do not displace each
    /// other in turn.
    pub(crate) fn beyond_share(
        &self,
        waiting: &Sequence,
        needs_bytes: usize,
        capacity: Capacity,
        sequences: &Slab,
        tenants: &FairQueue,
    ) -> Option<SeqId> {
        let (tenant, class) = (waiting.tenant, waiting.class);
        if tenants.running(tenant) + 1 > tenants.share(tenant, capacity.slots).max(1)
            || tenants.bytes(tenant).saturating_add(needs_bytes) > tenants.share(tenant, capacity.bytes)
        {
            return None;
        }
        let bytes = (needs_bytes > 0).then_some(capacity.bytes);
        let other = tenants.furthest_beyond(tenant, capacity.slots, bytes)?;
        let candidates = self.of(sequences).filter(|(_, s)| s.tenant == other && s.class <= class);
        candidates.max_by_key(|(_, s)| s.admitted).map(|(id, _)| id)
    }

    /// For tests: the ids of all running sequences.
    pub(crate) fn audit(&self) -> &[SeqId] {
        &self.list
    }
}
