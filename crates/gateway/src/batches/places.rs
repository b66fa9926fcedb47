//! What the batches of a gateway share: places for their requests, and how each is told that it is to end. Knows no batch.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::places::Places;

/// Requests of batches that run at once, of all batches together.
const LINES_AT_ONCE: usize = 32;
/// Requests of batches that each organisation may run at once whatever others run.
const LINES_OF_AN_ORG: usize = 4;

/// See the top of the file.
pub(crate) struct Batches {
    /// A request has a place while it is under way, and none while it waits to be tried again.
    pub(super) places: Arc<Places>,
    /// Those at work, by their ids: cancelling a token ends its batch.
    pub(super) ends: Mutex<HashMap<String, CancellationToken>>,
}

impl Default for Batches {
    fn default() -> Self {
        Self { places: Places::new(LINES_AT_ONCE, LINES_OF_AN_ORG), ends: Mutex::default() }
    }
}
