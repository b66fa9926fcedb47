//! State that all batches share: slots for their requests, and the means to cancel each batch. Knows no batch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use headrace_call_state::OrgSlots;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Requests that run concurrently, over all batches.
const LINES_AT_ONCE: usize = 32;
/// Requests that each organisation may run concurrently, even if others use all the shared slots.
const LINES_OF_AN_ORG: usize = 4;

/// The state that all batches share.
pub(crate) struct RunningBatches {
    /// A request holds a slot while it runs, and none while it waits for a retry.
    pub(crate) slots: Arc<OrgSlots>,
    /// The running batches by id.
    pub(crate) running: Mutex<HashMap<String, BatchSignals>>,
    /// Batches that are being stored. They run once that is done.
    creating: Mutex<HashSet<String>>,
}

/// The ways to end the task of a batch.
#[derive(Clone, Default)]
pub(crate) struct BatchSignals {
    /// Cancelled when no further request of the batch may start.
    pub(crate) ends: CancellationToken,
    /// Cancelled when another gateway runs the batch. Cancel it before `ends`.
    pub(crate) lost: CancellationToken,
}

/// A batch that is being stored. Until this is dropped, it counts as running.
pub(crate) struct BatchCreation<'a> {
    batches: &'a RunningBatches,
    id: String,
}

impl Default for RunningBatches {
    fn default() -> Self {
        Self {
            slots: OrgSlots::new(LINES_AT_ONCE, LINES_OF_AN_ORG),
            running: Mutex::default(),
            creating: Mutex::default(),
        }
    }
}

impl RunningBatches {
    /// Marks a batch as one that is being stored.
    pub(crate) fn create(&self, id: &str) -> BatchCreation<'_> {
        self.creating.lock().insert(id.to_owned());
        BatchCreation { batches: self, id: id.to_owned() }
    }

    /// Whether a batch runs here, or will run once it is stored.
    pub(crate) fn has(&self, id: &str) -> bool {
        // In the order in which a new batch passes through both.
        self.creating.lock().contains(id) || self.running.lock().contains_key(id)
    }

    /// Marks a batch as running. Returns `None` if it runs already.
    pub(crate) fn start(&self, id: &str) -> Option<BatchSignals> {
        let mut running = self.running.lock();
        if running.contains_key(id) {
            return None;
        }
        let signals = BatchSignals::default();
        running.insert(id.to_owned(), signals.clone());
        Some(signals)
    }
}

impl Drop for BatchCreation<'_> {
    fn drop(&mut self) {
        self.batches.creating.lock().remove(&self.id);
    }
}
