//! What is known of a worker from the calls that it had: counts, rates, times, and what was sent to it lately.
//! Time is an argument. Must not decide anything.

use std::sync::Arc;

use crate::hedge::Spread;
use crate::latency::PeakEwma;
use crate::outcome::Outcome;
use crate::window::Window;

const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const MINUTE_NS: u64 = 60 * SECOND_NS;
/// What was sent in a time is known as exactly as this.
const FLOW_SLOT_NS: u64 = SECOND_NS / 8;
/// And for so long: about a report that is older nothing is known.
pub(crate) const FLOW_NS: u64 = 8 * SECOND_NS;

/// See the top of the file. Short work under a lock.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) totals: Totals,
    /// Calls that say something, and those of them that failed.
    judged: Window<61>,
    failed: Window<61>,
    pub(crate) last_error: Option<Arc<str>>,
    /// From placing a call until the first thing came.
    pub(crate) first: PeakEwma,
    /// The same, as they lie.
    pub(crate) firsts: Spread,
    /// From placing a call until its end.
    pub(crate) whole: PeakEwma,
    started: Window<65>,
    ended: Window<65>,
    /// Blocks of prompts sent that are not in its cache, and those of them that do not wait any longer.
    blocks: Window<65>,
    blocks_done: Window<65>,
    /// What it is compared by.
    pub(crate) sample: Sample,
}

/// How many calls ended how, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// All that ended.
    pub calls: u64,
    /// Failed.
    pub failures: u64,
    /// Refused: too much to do.
    pub refusals: u64,
}

/// Calls since workers were compared last.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) calls: u32,
    pub(crate) failures: u32,
    /// Times to the first thing, and how many they are.
    pub(crate) first_sum_ns: f64,
    pub(crate) firsts: u32,
}

/// What was sent since some time, and what came to an end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flow {
    pub(crate) started: f64,
    pub(crate) ended: f64,
    /// Blocks to compute, more or fewer than then.
    pub(crate) blocks: f64,
}

impl Figures {
    pub(crate) fn new() -> Self {
        let flow = || Window::new(FLOW_SLOT_NS);
        let lately = || Window::new(5 * SECOND_NS);
        Self {
            totals: Totals::default(),
            judged: lately(),
            failed: lately(),
            last_error: None,
            first: PeakEwma::NONE,
            firsts: Spread::NONE,
            whole: PeakEwma::NONE,
            started: flow(),
            ended: flow(),
            blocks: flow(),
            blocks_done: flow(),
            sample: Sample::default(),
        }
    }

    /// A call is sent, with so many blocks to compute.
    pub(crate) fn start(&mut self, now_ns: u64, blocks: u64) {
        self.started.add(now_ns, 1);
        self.blocks.add(now_ns, blocks);
    }

    /// A call counts as sent no longer, and with it so many blocks that still waited.
    pub(crate) fn let_go(&mut self, now_ns: u64, blocks: u64) {
        self.ended.add(now_ns, 1);
        self.blocks_done.add(now_ns, blocks);
    }

    /// The first thing of a call came, so that its blocks are computed.
    pub(crate) fn began(&mut self, now_ns: u64, after_ns: u64, blocks: u64) {
        self.blocks_done.add(now_ns, blocks);
        self.first.add(now_ns, after_ns);
        self.firsts.add(after_ns);
        self.sample.first_sum_ns += after_ns as f64;
        self.sample.firsts = self.sample.firsts.saturating_add(1);
    }

    /// Nothing of a call came in this time, and somebody else was faster.
    pub(crate) fn outrun(&mut self, now_ns: u64, after_ns: u64) {
        self.first.add(now_ns, after_ns);
        self.sample.first_sum_ns += after_ns as f64;
        self.sample.firsts = self.sample.firsts.saturating_add(1);
    }

    /// A call ended.
    pub(crate) fn end(&mut self, now_ns: u64, took_ns: u64, outcome: &Outcome) {
        self.totals.calls += 1;
        match outcome {
            Outcome::Answered => {
                self.judged.add(now_ns, 1);
                self.whole.add(now_ns, took_ns);
                self.sample.calls = self.sample.calls.saturating_add(1);
            }
            Outcome::Failed { failure, why } => {
                self.judged.add(now_ns, 1);
                self.failed.add(now_ns, 1);
                self.totals.failures += 1;
                self.last_error = Some(format!("{failure}: {why}").into());
                self.sample.calls = self.sample.calls.saturating_add(1);
                self.sample.failures = self.sample.failures.saturating_add(1);
            }
            Outcome::Refused { .. } => self.totals.refusals += 1,
            Outcome::CallersFault | Outcome::Cancelled => {}
        }
    }

    /// The part of the calls of the last `span_ns` that failed; `None`: there were none.
    pub(crate) fn failed_share(&self, now_ns: u64, span_ns: u64) -> Option<f64> {
        let judged = self.judged.within(now_ns, span_ns);
        (judged > 0.0).then(|| (self.failed.within(now_ns, span_ns) / judged).min(1.0))
    }

    /// What was sent since a report of this age.
    pub(crate) fn since(&self, now_ns: u64, age_ns: u64) -> Flow {
        Flow {
            started: self.started.within(now_ns, age_ns),
            ended: self.ended.within(now_ns, age_ns),
            blocks: self.blocks.within(now_ns, age_ns) - self.blocks_done.within(now_ns, age_ns),
        }
    }
}
