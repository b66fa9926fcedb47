//! State that all batches share: slots for their requests, and the means to cancel each batch. Knows no batch.

use std::collections::HashMap;
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
    /// The running batches by id. Cancelling a token ends its batch.
    pub(crate) ends: Mutex<HashMap<String, CancellationToken>>,
}

impl Default for RunningBatches {
    fn default() -> Self {
        Self { slots: OrgSlots::new(LINES_AT_ONCE, LINES_OF_AN_ORG), ends: Mutex::default() }
    }
}
