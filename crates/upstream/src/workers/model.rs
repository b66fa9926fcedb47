//! Facts about a model at a worker. Must not know a job.

use std::sync::Arc;

use headrace_domain::Clock;
use headrace_engine_api::Capabilities;

use crate::worker_link::WorkerModelState;

/// Facts about a model at a worker.
pub(crate) struct TheirModel {
    pub(crate) capabilities: Capabilities,
    /// Identifies everything that decides the bits of its answers.
    pub(crate) bits: String,
    pub(crate) slot: Arc<WorkerModelState>,
    pub(crate) clock: Arc<dyn Clock>,
}
