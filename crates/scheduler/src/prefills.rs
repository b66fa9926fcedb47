//! The running prefills of one step, in the order of their turns. Knows nothing of budgets and blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::fair::FairQueue;
use crate::running::Running;
use crate::sequence::{Class, SeqId, Sequence, Slab, State};

/// How somebody stands in the order of turns: the tenant served least goes first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) counter: u64,
    pub(crate) tenant: u64,
}

/// The running sequences whose known tokens are not computed yet and who are in no chunk of this step; of those whose turn
/// it is alike, the oldest first.
#[derive(Debug)]
pub(crate) struct Prefills(BinaryHeap<Entry>);

/// Its tenant's counter, the number of its admission, and who.
type Entry = Reverse<(u64, u64, SeqId)>;

impl Turn {
    /// Whether a running prefill with this turn goes on before one that waits with that turn begins.
    pub(crate) fn goes_before(self, waiting: Self) -> bool {
        self.counter < waiting.counter || (self.counter == waiting.counter && self.tenant == waiting.tenant)
    }
}

impl Prefills {
    /// Those of a class.
    pub(crate) fn of(class: Class, running: &Running, sequences: &Slab, tenants: &FairQueue) -> Self {
        let prefills = running.of(sequences).filter(|(_, s)| s.class == class && s.prefills());
        let turn = |(id, s): (SeqId, &Sequence)| Reverse((tenants.counter(s.tenant), s.admitted, id));
        let mut heap = BinaryHeap::new();
        heap.extend(prefills.map(turn));
        Self(heap)
    }

    /// The one whose turn it is. It stays: its tenant's counter may have grown since it was put there.
    pub(crate) fn first(&mut self, sequences: &Slab, tenants: &FairQueue) -> Option<(Turn, SeqId)> {
        while let Some(mut top) = self.0.peek_mut() {
            let Reverse((counter, admitted, id)) = *top;
            let sequence = sequences.get(id).filter(|s| s.state == State::Running);
            match sequence.map(|s| (tenants.counter(s.tenant), s.tenant)) {
                Some((now, tenant)) if now == counter => return Some((Turn { counter, tenant }, id)),
                Some((now, _)) => *top = Reverse((now, admitted, id)),
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
