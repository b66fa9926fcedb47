//! Gateways over one journal in memory, whose turns a test takes, and the random numbers of simulations.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use headrace_domain::{Clock, ManualClock};
use headrace_ledger::{
    CommandResult, MemorySharedJournal, Owner, PendingBatch, SharedLedger, SharedLedgerOptions, TurnHand,
};

/// A seeded sequence of random numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Opens a gateway without threads, under another handle of the journal, which is returned.
pub(crate) fn opened(
    journal: &MemorySharedJournal,
    clock: &Arc<ManualClock>,
    owner: u128,
    options: SharedLedgerOptions,
) -> (SharedLedger, TurnHand, MemorySharedJournal) {
    let handle = journal.other_handle();
    let mut renamed = owner << 32;
    let next_owner = Box::new(move || {
        renamed += 1;
        Owner::new(renamed)
    });
    let (ledger, hand) = SharedLedger::open_by_hand(
        Box::new(handle.clone()),
        Box::new(handle.clone()),
        Owner::new(owner),
        next_owner,
        Arc::clone(clock) as Arc<dyn Clock>,
        options,
    )
    .unwrap();
    (ledger, hand, handle)
}

/// Returns the verdicts of a batch, or `None` if they have not arrived.
pub(crate) fn poll(pending: &mut PendingBatch) -> Option<Vec<CommandResult>> {
    match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.verdicts),
        Poll::Pending => None,
    }
}

/// Reads a number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}
