//! The part of a trace record that marks it as a job which a worker ran for another server. Must not know the protocol of workers.

use serde::{Deserialize, Serialize};

use crate::RequestId;

/// The id of the key under which worker jobs are traced. No key has it.
pub const WORKER_JOB_KEY: &str = "worker-job";

/// The call at a gateway that a worker job belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerJob {
    /// The id of the call at the gateway that sent the job.
    pub call: RequestId,
}
