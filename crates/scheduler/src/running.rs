//! The sequences that hold blocks: who they are, what is promised to them, and which of them gives way first. Keeps the
//! tenants' books of places and blocks. Knows nothing of steps and budgets.

use std::cmp::Reverse;

use crate::fair::{FairQueue, SCALE};
use crate::sequence::{Class, SeqId, Sequence, Slab, State, blocks_for};

/// Everyone who runs. Each has a place, and its tenant is charged for the place and the blocks unless it stands still.
#[derive(Debug, Default)]
pub(crate) struct Running {
    /// In the order of admission.
    list: Vec<SeqId>,
    /// How many were admitted so far.
    admissions: u64,
    /// Of the list, those that stand still.
    still: usize,
    /// Blocks that their known tokens need and that they have not taken yet.
    promised: usize,
}

/// What there is of places and blocks in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) places: usize,
    pub(crate) blocks: usize,
}

impl Running {
    /// How many there are, those that stand still included.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// How many of them stand still.
    pub(crate) fn still(&self) -> usize {
        self.still
    }

    /// How many of them are computed.
    pub(crate) fn computed(&self) -> usize {
        self.list.len() - self.still
    }

    /// Blocks that are free and yet spoken for.
    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    /// Everyone, in the order of admission.
    pub(crate) fn of<'a>(&'a self, sequences: &'a Slab) -> impl Iterator<Item = (SeqId, &'a Sequence)> {
        self.list.iter().filter_map(|&id| sequences.get(id).map(|sequence| (id, sequence)))
    }

    /// A sequence takes a place with the blocks that it found. What its known tokens need beyond them is promised to it.
    pub(crate) fn enter(&mut self, id: SeqId, sequence: &mut Sequence, tenants: &mut FairQueue) {
        self.admissions += 1;
        self.list.push(id);
        sequence.state = State::Running;
        sequence.admitted = self.admissions;
        sequence.promised = blocks_for(sequence.known().len()) - sequence.blocks.len();
        self.promised += sequence.promised;
        tenants.runs(sequence.tenant, sequence.class, true);
        // A pool has fewer blocks than half of what a machine word counts, here and below.
        tenants.holds(sequence.tenant, sequence.class, sequence.blocks.len() as isize);
    }

    /// A sequence has taken so many blocks more, the promised ones first.
    pub(crate) fn grew(&mut self, sequence: &mut Sequence, blocks: usize, tenants: &mut FairQueue) {
        tenants.holds(sequence.tenant, sequence.class, blocks as isize);
        let kept = sequence.promised.min(blocks);
        sequence.promised -= kept;
        self.promised -= kept;
    }

    /// A sequence that does not stand still loses its place and what was promised to it. Its blocks are still to be given
    /// back.
    pub(crate) fn leave(&mut self, id: SeqId, sequence: &mut Sequence, tenants: &mut FairQueue) {
        self.promised -= std::mem::take(&mut sequence.promised);
        tenants.runs(sequence.tenant, sequence.class, false);
        tenants.holds(sequence.tenant, sequence.class, -(sequence.blocks.len() as isize));
        self.list.retain(|&other| other != id);
    }

    /// A sequence stands still: its place and blocks are anybody's and count as nobody's. Or it goes on (`false`).
    pub(crate) fn rests(&mut self, sequence: &Sequence, rests: bool, tenants: &mut FairQueue) {
        let blocks = sequence.blocks.len() as isize;
        tenants.runs(sequence.tenant, sequence.class, !rests);
        tenants.holds(sequence.tenant, sequence.class, if rests { -blocks } else { blocks });
        if rests {
            self.still += 1;
        } else {
            self.still -= 1;
        }
    }

    /// The one least entitled to its blocks: what stands still before what does not, idle work before other, then of the
    /// tenant that holds most for its weight, then the youngest.
    pub(crate) fn least_entitled(&self, sequences: &Slab, tenants: &FairQueue) -> Option<SeqId> {
        let burden =
            |s: &Sequence| (tenants.blocks(s.tenant) as u64).saturating_mul(SCALE) / tenants.weight(s.tenant);
        let entitled = |s: &Sequence| (!s.paused, s.class, Reverse(burden(s)), Reverse(s.admitted));
        self.of(sequences).min_by_key(|(_, s)| entitled(s)).map(|(id, _)| id)
    }

    /// Who stands still and gives way first: idle work before other, then the youngest.
    pub(crate) fn still_victim(&self, sequences: &Slab) -> Option<SeqId> {
        if self.still == 0 {
            return None;
        }
        let still = self.of(sequences).filter(|(_, s)| s.paused);
        still.min_by_key(|(id, s)| (s.class, Reverse(s.admitted), *id)).map(|(id, _)| id)
    }

    /// The youngest of idle work that does not stand still.
    pub(crate) fn idle_victim(&self, sequences: &Slab, tenants: &FairQueue) -> Option<SeqId> {
        if tenants.all_running() == self.computed() {
            return None;
        }
        let idle = self.of(sequences).filter(|(_, s)| s.class == Class::Idle && !s.paused);
        idle.min_by_key(|(id, s)| (Reverse(s.admitted), *id)).map(|(id, _)| id)
    }

    /// One of a tenant beyond its fair share, where the one that waits, which needs so many blocks (0: it lacks only a
    /// place), would stay within its own. So neither places nor blocks are kept by who came first. As nobody is put below
    /// its share, nothing goes back and forth.
    pub(crate) fn beyond_share(
        &self,
        waiting: &Sequence,
        needs_blocks: usize,
        whole: Whole,
        sequences: &Slab,
        tenants: &FairQueue,
    ) -> Option<SeqId> {
        let (tenant, class) = (waiting.tenant, waiting.class);
        if tenants.running(tenant) + 1 > tenants.share(tenant, whole.places).max(1)
            || tenants.blocks(tenant) + needs_blocks > tenants.share(tenant, whole.blocks)
        {
            return None;
        }
        let blocks = (needs_blocks > 0).then_some(whole.blocks);
        let other = tenants.furthest_beyond(tenant, whole.places, blocks)?;
        let candidates = self.of(sequences).filter(|(_, s)| s.tenant == other && s.class <= class);
        candidates.max_by_key(|(_, s)| s.admitted).map(|(id, _)| id)
    }

    /// For tests: the list.
    pub(crate) fn audit(&self) -> &[SeqId] {
        &self.list
    }
}
