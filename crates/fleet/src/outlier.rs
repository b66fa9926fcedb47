//! Leaves out workers that are much worse than the others of their model although no breaker opens. Examples are a
//! throttled machine and a card with errors. Passive: judges by the calls that a worker had. Time is an argument.

use std::cmp::Ordering::Equal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::worker::Worker;
use crate::worker_stats::RecentCalls;

const SECOND_NS: u64 = 1_000_000_000;
/// Interval of the comparisons.
const EVERY_NS: u64 = 5 * SECOND_NS;
/// Fewest calls by which a worker is compared. Calls are collected until it has them.
const LEAST_CALLS: u32 = 20;
/// Longest time for which calls are collected.
const COLLECTED_NS: u64 = 60 * SECOND_NS;
/// Fewest workers with that many calls. With only two, the outlier cannot be identified.
const LEAST_WORKERS: usize = 3;
/// A failure rate above the median by more than this is an outlier.
const WORSE_SHARE: f64 = 0.2;
/// A time to the first output is an outlier if it exceeds the median by this factor and by [`SLOWER_NS`].
const SLOWER_TIMES: f64 = 3.0;
const SLOWER_NS: f64 = 20e6;
/// How long an outlier is left out. Each consecutive time adds as much again.
const EJECTED_NS: u64 = 10 * SECOND_NS;
const EJECTED_MOST: u64 = 30;

/// Schedule of the comparisons of a model's workers.
#[derive(Debug, Default)]
pub(crate) struct OutlierSchedule {
    due_ns: AtomicU64,
    /// Start of the present collection of calls.
    since_ns: AtomicU64,
}

impl OutlierSchedule {
    /// Compares the workers if a comparison is due.
    pub(crate) fn look(&self, workers: &[Arc<Worker>], now_ns: u64) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        if now_ns < due_ns || workers.len() < LEAST_WORKERS {
            return;
        }
        let next_ns = now_ns.saturating_add(EVERY_NS);
        if self.due_ns.compare_exchange(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let compared = compare(workers, now_ns);
        let collected_ns = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed));
        if compared || collected_ns >= COLLECTED_NS {
            workers.iter().for_each(|worker| worker.figures().sample = RecentCalls::default());
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
    }
}

struct ComparedWorker<'a> {
    worker: &'a Worker,
    failed: f64,
    first_ns: f64,
}

/// Compares the workers and ejects outliers. Returns `false` if there were too few calls.
fn compare(workers: &[Arc<Worker>], now_ns: u64) -> bool {
    let seen: SmallVec<[ComparedWorker<'_>; 16]> = workers.iter().filter_map(seen).collect();
    if seen.len() < LEAST_WORKERS {
        return false;
    }
    let failed = median(seen.iter().map(|seen| seen.failed));
    let first_ns = median(seen.iter().map(|seen| seen.first_ns));
    let is_far_off = |seen: &ComparedWorker<'_>| {
        seen.failed > failed + WORSE_SHARE
            || (seen.first_ns > first_ns * SLOWER_TIMES && seen.first_ns > first_ns + SLOWER_NS)
    };
    let is_out = |worker: &&Arc<Worker>| worker.ejected_until_ns.load(Ordering::Relaxed) > now_ns;
    let mut out = workers.iter().filter(is_out).count();
    let (mut far_off, fine): (SmallVec<[&ComparedWorker<'_>; 16]>, SmallVec<[&ComparedWorker<'_>; 16]>) =
        seen.iter().partition(|seen| is_far_off(seen));
    for seen in fine {
        let less = |times: u32| Some(times.saturating_sub(1));
        let _ = seen.worker.ejections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    // The worst first, because at most half of the workers may be out.
    let badness = |seen: &ComparedWorker<'_>| (seen.failed, seen.first_ns);
    far_off.sort_by(|a, b| badness(b).partial_cmp(&badness(a)).unwrap_or(Equal));
    for seen in far_off {
        if (out + 1) * 2 > workers.len() {
            break;
        }
        out += 1;
        let times = u64::from(seen.worker.ejections.fetch_add(1, Ordering::Relaxed));
        let ejected_ns = EJECTED_NS.saturating_mul((times + 1).min(EJECTED_MOST));
        seen.worker.ejected_until_ns.store(now_ns.saturating_add(ejected_ns), Ordering::Relaxed);
    }
    true
}

fn seen(worker: &Arc<Worker>) -> Option<ComparedWorker<'_>> {
    let sample = worker.figures().sample;
    if !worker.is_judged() || sample.calls < LEAST_CALLS {
        return None;
    }
    let failed = f64::from(sample.failures) / f64::from(sample.calls);
    let first_ns = if sample.firsts > 0 { sample.first_sum_ns / f64::from(sample.firsts) } else { 0.0 };
    Some(ComparedWorker { worker, failed, first_ns })
}

/// The median; the lower one of two for an even number of values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: SmallVec<[f64; 16]> = values.collect();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Equal));
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}
