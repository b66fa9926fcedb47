//! What the batches of a gateway share: places for their requests, and how each is told that it is to end. Knows no batch.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Requests of batches that run at once, of all batches together.
const LINES_AT_ONCE: usize = 32;

/// See the top of the file.
pub(crate) struct Batches {
    /// Whoever waits longest is next, whichever batch it is of.
    pub(super) places: Semaphore,
    /// Those at work, by their ids: whoever wants one to end says so here.
    pub(super) ends: Mutex<HashMap<String, CancellationToken>>,
}

impl Default for Batches {
    fn default() -> Self {
        Self { places: Semaphore::new(LINES_AT_ONCE), ends: Mutex::default() }
    }
}
