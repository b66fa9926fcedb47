//! What is known here of a model at a worker. Knows no job.

use std::sync::Arc;

use headrace_domain::Clock;
use headrace_engine_api::Capabilities;

use crate::workers::line::Slot;

/// What is known of a model at a worker.
pub(crate) struct TheirModel {
    pub(crate) capabilities: Capabilities,
    /// What decides its bits.
    pub(crate) bits: String,
    pub(crate) slot: Arc<Slot>,
    pub(crate) clock: Arc<dyn Clock>,
}
