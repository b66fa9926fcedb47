//! The newest calls of a running server, for commands that read the stored traces beside it. Waits until ended calls
//! are stored.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use headrace_domain::{RequestId, Stage};
use headrace_gateway::Gateway;
use headrace_trace::{SharedRecord, TraceRecorder};
use serde_json::Value;

/// Time limit for recording the calls that have sent their last byte.
const ENDED_WAIT: Duration = Duration::from_millis(500);
/// Interval at which these records are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time limit for storing the recorded calls.
const STORE_WAIT: Duration = Duration::from_secs(2);

/// The recorder, and the gateway with the calls that have not reached it yet.
pub(crate) struct NewestCalls {
    gateway: Weak<Gateway>,
    recorder: Arc<TraceRecorder>,
}

impl NewestCalls {
    pub(crate) fn new(gateway: &Arc<Gateway>, recorder: &Arc<TraceRecorder>) -> Self {
        Self { gateway: Arc::downgrade(gateway), recorder: Arc::clone(recorder) }
    }

    /// Waits until every ended call is stored, and returns at most `most` of the newest records in memory. Blocks.
    pub(crate) fn settled(&self, most: usize) -> Vec<Value> {
        let ended = self.ended();
        let deadline = Instant::now() + ENDED_WAIT;
        while ended.iter().any(|id| self.recorder.recent(*id).is_none()) && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        // If the store cannot be written, the records stay in memory and are returned nevertheless.
        self.recorder.flush(STORE_WAIT);
        let json = |record: &SharedRecord| serde_json::to_value(&**record).ok();
        self.recorder.newest(most).iter().filter_map(json).collect()
    }

    /// The calls that may have sent their last byte without being recorded yet.
    fn ended(&self) -> Vec<RequestId> {
        let calls = self.gateway.upgrade().map(|gateway| gateway.in_flight_calls()).unwrap_or_default();
        let last_steps = [Stage::Settle, Stage::Deliver];
        calls.iter().filter(|call| last_steps.contains(&call.stage)).map(|call| call.id).collect()
    }
}
