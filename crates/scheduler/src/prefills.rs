//! The running prefills of one step, in the order of their turns. Knows nothing of budgets and blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::fair::FairQueue;
use crate::running::Running;
use crate::sequence::{Class, SeqId, Sequence, Slab, State};

/// How somebody stands in the order of turns: the highest class first, then the tenant served least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) class: Class,
    pub(crate) counter: u64,
    pub(crate) tenant: u64,
}

/// The running sequences whose known tokens are not computed yet and who are in no chunk of this step; of those whose turn
/// it is alike, the oldest first.
#[derive(Debug)]
pub(crate) struct Prefills(BinaryHeap<Entry>);

/// Class, counter, number of its admission, and who.
type Entry = Reverse<(Reverse<Class>, u64, u64, SeqId)>;

impl Turn {
    /// Whether a running prefill with this turn goes on before one that waits with that turn begins.
    pub(crate) fn goes_before(self, waiting: Self) -> bool {
        let rank = |turn: Self| (Reverse(turn.class), turn.counter);
        rank(self) < rank(waiting) || (rank(self) == rank(waiting) && self.tenant == waiting.tenant)
    }
}

impl Prefills {
    /// Those of idle work, or all others.
    pub(crate) fn of(running: &Running, sequences: &Slab, tenants: &FairQueue, idle: bool) -> Self {
        let prefills = running.of(sequences).filter(|(_, s)| s.is_idle_work() == idle && s.prefills());
        let turn = |(id, s): (SeqId, &Sequence)| {
            Reverse((Reverse(s.class), tenants.counter(s.tenant), s.admitted, id))
        };
        let mut heap = BinaryHeap::new();
        heap.extend(prefills.map(turn));
        Self(heap)
    }

    /// The one whose turn it is. It stays: its tenant's counter may have grown since it was put there.
    pub(crate) fn first(&mut self, sequences: &Slab, tenants: &FairQueue) -> Option<(Turn, SeqId)> {
        while let Some(mut top) = self.0.peek_mut() {
            let Reverse((Reverse(class), counter, admitted, id)) = *top;
            let sequence = sequences.get(id).filter(|s| s.state == State::Running);
            match sequence.map(|s| (tenants.counter(s.tenant), s.tenant)) {
                Some((now, tenant)) if now == counter => return Some((Turn { class, counter, tenant }, id)),
                Some((now, _)) => *top = Reverse((Reverse(class), now, admitted, id)),
                None => {
                    PeekMut::pop(top);
                }
            }
        }
        None
    }

    /// The first one has had its turn.
    pub(crate) fn pop(&mut self) {
        self.0.pop();
    }
}
