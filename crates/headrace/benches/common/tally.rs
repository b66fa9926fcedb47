//! Mean time per stage inside the server, summed from the traces of its calls.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use headrace_domain::{Stage, TraceRecord, TraceSink};

#[derive(Default)]
struct Sums {
    calls: u64,
    stage_ns: [u64; Stage::ALL.len()],
}

/// Passes records on and sums their stages.
pub(crate) struct Tally {
    to: Arc<dyn TraceSink>,
    sums: Mutex<Sums>,
}

impl Tally {
    pub(crate) fn before(to: Arc<dyn TraceSink>) -> Arc<Self> {
        Arc::new(Self { to, sums: Mutex::default() })
    }

    /// One line with the mean of each stage.
    pub(crate) fn line(&self) -> String {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let per_call = |total: u64| total as f64 / sums.calls.max(1) as f64;
        let mut line = format!("{} calls:", sums.calls);
        for (stage, ns) in Stage::ALL.into_iter().zip(sums.stage_ns) {
            if ns > 0 {
                // Writing to a string does not fail.
                let _ = write!(line, " {stage} {:.1} us", per_call(ns) / 1e3);
            }
        }
        line
    }
}

impl TraceSink for Tally {
    fn record(&self, record: Box<TraceRecord>) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.calls += 1;
        for span in &record.stages {
            let place = Stage::ALL.iter().position(|stage| *stage == span.stage);
            if let Some(sum) = place.and_then(|place| sums.stage_ns.get_mut(place)) {
                *sum += span.duration_ns;
            }
        }
        drop(sums);
        self.to.record(record);
    }
}
