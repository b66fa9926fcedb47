//! The running prefills of one step, in turn order. Knows nothing of budgets and blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::fair::FairQueue;
use crate::running::Running;
use crate::sequence::{Class, SeqId, Sequence, Slab, State};

/// A position in the order of turns: the tenant served least goes first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) counter: u64,
    pub(crate) tenant: u64,
}

/// The running sequences that still prefill and have no chunk in this step yet. Equal turns are ordered by admission,
/// the oldest first.
#[derive(Debug)]
pub(crate) struct Prefills(BinaryHeap<Entry>);

/// Tenant's counter, admission number, and id.
type Entry = Reverse<(u64, u64, SeqId)>;

impl Turn {
    /// Whether a running prefill with this turn continues before a waiting sequence with the turn `waiting` starts.
    pub(crate) fn precedes(self, waiting: Self) -> bool {
        self.counter < waiting.counter || (self.counter == waiting.counter && self.tenant == waiting.tenant)
    }
}

impl Prefills {
    /// The prefills of one class.
    pub(crate) fn of(class: Class, running: &Running, sequences: &Slab, tenants: &FairQueue) -> Self {
        let prefills = running.of(sequences).filter(|(_, s)| s.class == class && s.prefills());
        let turn = |(id, s): (SeqId, &Sequence)| Reverse((tenants.counter(s.tenant), s.admitted, id));
        let mut heap = BinaryHeap::new();
        heap.extend(prefills.map(turn));
        Self(heap)
    }

    /// The prefill whose turn it is, left in the heap. Entries whose tenant's counter has grown are reordered first.
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

    /// Removes the first prefill after its turn.
    pub(crate) fn pop(&mut self) {
        self.0.pop();
    }
}
