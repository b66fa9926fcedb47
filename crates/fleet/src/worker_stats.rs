//! Statistics of a worker from its calls: counts, rates, durations, and recent traffic. Time is an argument. Must not
//! decide anything.

use std::sync::Arc;

use crate::hedge::LatencyHistogram;
use crate::latency::PeakEwma;
use crate::outcome::WorkerOutcome;
use crate::window::SlidingCounter;

const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Time resolution of the recent traffic.
const FLOW_SLOT_NS: u64 = SECOND_NS / 8;
/// How far back the recent traffic is known. An older load report cannot be corrected.
pub(crate) const FLOW_NS: u64 = 8 * SECOND_NS;

/// The statistics of one worker. Held under a lock, so every operation is short.
#[derive(Debug)]
pub(crate) struct WorkerStats {
    pub(crate) totals: OutcomeTotals,
    /// Calls that say something about the worker, and the failed ones among them.
    judged: SlidingCounter<61>,
    failed: SlidingCounter<61>,
    pub(crate) last_error: Option<Arc<str>>,
    /// Time from placing a call to its first output.
    pub(crate) first: PeakEwma,
    /// Histogram of the same times.
    pub(crate) firsts: LatencyHistogram,
    /// Time from placing a call to its end.
    pub(crate) whole: PeakEwma,
    started: SlidingCounter<65>,
    ended: SlidingCounter<65>,
    /// Blocks of sent prompts that were not in its cache, and the blocks among them that no longer wait.
    blocks: SlidingCounter<65>,
    blocks_done: SlidingCounter<65>,
    /// Calls since the last outlier comparison.
    pub(crate) sample: RecentCalls,
}

/// Number of calls by outcome, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutcomeTotals {
    /// All ended calls.
    pub calls: u64,
    /// Failed calls.
    pub failures: u64,
    /// Refused calls: the worker was overloaded.
    pub refusals: u64,
}

/// Calls since workers were last compared.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RecentCalls {
    pub(crate) calls: u32,
    pub(crate) failures: u32,
    /// Sum of the times to the first output; `firsts` is their number.
    pub(crate) first_sum_ns: f64,
    pub(crate) firsts: u32,
}

/// Traffic to a worker since some time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TrafficSince {
    pub(crate) started: f64,
    pub(crate) ended: f64,
    /// Change in the blocks to compute.
    pub(crate) blocks: f64,
}

impl WorkerStats {
    pub(crate) fn new() -> Self {
        let flow = || SlidingCounter::new(FLOW_SLOT_NS);
        let lately = || SlidingCounter::new(5 * SECOND_NS);
        Self {
            totals: OutcomeTotals::default(),
            judged: lately(),
            failed: lately(),
            last_error: None,
            first: PeakEwma::NONE,
            firsts: LatencyHistogram::NONE,
            whole: PeakEwma::NONE,
            started: flow(),
            ended: flow(),
            blocks: flow(),
            blocks_done: flow(),
            sample: RecentCalls::default(),
        }
    }

    /// Records a sent call, with `blocks` blocks to compute.
    pub(crate) fn start(&mut self, now_ns: u64, blocks: u64) {
        self.started.add(now_ns, 1);
        self.blocks.add(now_ns, blocks);
    }

    /// Stops counting a call as sent, with the `blocks` blocks that were still waiting.
    pub(crate) fn release(&mut self, now_ns: u64, blocks: u64) {
        self.ended.add(now_ns, 1);
        self.blocks_done.add(now_ns, blocks);
    }

    /// Records the first output of a call. Its blocks are then computed.
    pub(crate) fn began(&mut self, now_ns: u64, after_ns: u64, blocks: u64) {
        self.blocks_done.add(now_ns, blocks);
        self.first.add(now_ns, after_ns);
        self.firsts.add(after_ns);
        self.sample.first_sum_ns += after_ns as f64;
        self.sample.firsts = self.sample.firsts.saturating_add(1);
    }

    /// Records that a call had no output for `after_ns`, when another worker was faster.
    pub(crate) fn outrun(&mut self, now_ns: u64, after_ns: u64) {
        self.first.add(now_ns, after_ns);
        self.sample.first_sum_ns += after_ns as f64;
        self.sample.firsts = self.sample.firsts.saturating_add(1);
    }

    /// Records how a call ended.
    pub(crate) fn end(&mut self, now_ns: u64, took_ns: u64, outcome: &WorkerOutcome) {
        self.totals.calls += 1;
        match outcome {
            WorkerOutcome::Answered => {
                self.judged.add(now_ns, 1);
                self.whole.add(now_ns, took_ns);
                self.sample.calls = self.sample.calls.saturating_add(1);
            }
            WorkerOutcome::Failed { failure, why } => {
                self.judged.add(now_ns, 1);
                self.failed.add(now_ns, 1);
                self.totals.failures += 1;
                self.last_error = Some(format!("{failure}: {why}").into());
                self.sample.calls = self.sample.calls.saturating_add(1);
                self.sample.failures = self.sample.failures.saturating_add(1);
            }
            WorkerOutcome::Refused { .. } => self.totals.refusals += 1,
            WorkerOutcome::CallersFault | WorkerOutcome::Cancelled => {}
        }
    }

    /// Fraction of the calls of the last `span_ns` that failed. `None` if there were none.
    pub(crate) fn failed_share(&self, now_ns: u64, span_ns: u64) -> Option<f64> {
        let judged = self.judged.within(now_ns, span_ns);
        (judged > 0.0).then(|| (self.failed.within(now_ns, span_ns) / judged).min(1.0))
    }

    /// Traffic since a report of this age.
    pub(crate) fn since(&self, now_ns: u64, age_ns: u64) -> TrafficSince {
        TrafficSince {
            started: self.started.within(now_ns, age_ns),
            ended: self.ended.within(now_ns, age_ns),
            blocks: self.blocks.within(now_ns, age_ns) - self.blocks_done.within(now_ns, age_ns),
        }
    }
}
