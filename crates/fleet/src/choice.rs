//! Chooses one of several workers for a call. Pure: the state of the workers and randomness are arguments. Must not
//! know whether the workers take calls at all.

use std::sync::Arc;

use headrace_domain::BLOCK_TOKENS;
use headrace_engine_api::ReportAge;

use crate::random::AtomicSplitMix;
use crate::remembered::PrefixMarks;
use crate::worker::Worker;
use crate::worker_stats::{FLOW_NS, TrafficSince};

/// Work of one sequence ahead, in blocks: about the cost of one step of one sequence.
const BLOCKS_PER_SEQUENCE_AHEAD: f64 = 4.0;
/// Workers whose work differs by at most this many blocks are alike, unless all reports are current. Chance decides
/// among them, so that senders with the same report do not all choose the same worker. It is scaled by the root of the
/// number of other senders, as a standard deviation grows.
const ALIKE_BLOCKS: f64 = 2.0 * BLOCKS_PER_SEQUENCE_AHEAD;
/// Workers whose expected times differ by at most this factor are alike.
const ALIKE_TIMES: f64 = 1.25;
/// A conversation stays with its worker unless that is expected to take this many times longer than elsewhere.
const STAYS_UP_TO: f64 = 2.0;
/// An idle worker takes a call regardless of caches once the workers have this many sequences each on average.
/// Otherwise a common prefix that it lacks would keep all calls away from it.
const BUSY_SEQUENCES: f64 = 4.0;
/// Highest ratio of all senders' calls to ours. Beyond it the ratio is noise.
const MOST_OTHERS: f64 = 16.0;

/// The call to place.
#[derive(Clone, Copy)]
pub(crate) struct PlacementQuery<'a> {
    pub(crate) prompt_tokens: usize,
    pub(crate) marks: PrefixMarks<'a>,
}

/// A worker that could take the call, with its state at this moment.
pub(crate) struct Candidate<'a> {
    pub(crate) worker: &'a Arc<Worker>,
    weight: f64,
    in_flight: f64,
    load: WorkerLoad,
    /// Tokens of the prompt that are likely to be in its cache.
    cached: usize,
    /// Expected time to the first output. Known only for workers that are judged by their calls.
    expected_ns: Option<f64>,
}

/// The load of a worker, as far as it is known.
enum WorkerLoad {
    Unknown,
    Known {
        /// Sequences that run or wait there.
        sequences: f64,
        /// Blocks of prompts that wait to be computed.
        blocks: f64,
        /// Our own calls since the report. `None` if the report is current.
        since: Option<TrafficSince>,
    },
}

impl<'a> Candidate<'a> {
    pub(crate) fn of(worker: &'a Arc<Worker>, ask: &PlacementQuery<'_>, now_ns: u64) -> Self {
        let report = worker.backend.load();
        let age_ns = match report.reported {
            ReportAge::Now => Some(0),
            ReportAge::Ago { nanos } if nanos <= FLOW_NS => Some(nanos),
            ReportAge::Ago { .. } | ReportAge::Never => None,
        };
        let (mut since, mut expected_ns) = (None, None);
        if worker.is_judged() {
            let figures = worker.figures();
            since = age_ns.filter(|&age_ns| age_ns > 0).map(|age_ns| figures.since(now_ns, age_ns));
            expected_ns = figures.first.expected_ns(now_ns);
        }
        let load = match age_ns {
            None => WorkerLoad::Unknown,
            Some(_) => WorkerLoad::Known {
                sequences: f64::from(report.running) + f64::from(report.waiting),
                blocks: report.waiting_tokens.div_ceil(BLOCK_TOKENS as u64) as f64,
                since,
            },
        };
        Self {
            worker,
            weight: f64::from(worker.weight()),
            in_flight: f64::from(worker.in_flight()),
            load,
            cached: worker.cached(ask.marks, ask.prompt_tokens),
            expected_ns,
        }
    }

    /// Blocks of the prompt that it would have to compute.
    pub(crate) fn blocks(&self, ask: &PlacementQuery<'_>) -> u64 {
        ask.prompt_tokens.saturating_sub(self.cached).div_ceil(BLOCK_TOKENS) as u64
    }

    /// Estimated number of sequences that run or wait there now. `None` if its load is unknown.
    fn sequences(&self, others: f64) -> Option<f64> {
        let WorkerLoad::Known { sequences, since, .. } = &self.load else { return None };
        let flow = since.unwrap_or_default();
        Some((sequences + others * (flow.started - flow.ended)).max(self.in_flight))
    }

    /// Estimated work ahead of a call there, in blocks. `None` if its load is unknown.
    fn ahead(&self, others: f64) -> Option<f64> {
        let WorkerLoad::Known { blocks, since, .. } = &self.load else { return None };
        let (flow, sequences) = (since.unwrap_or_default(), self.sequences(others)?);
        let blocks = (blocks + others * flow.blocks).max(0.0);
        Some(blocks + sequences * BLOCKS_PER_SEQUENCE_AHEAD)
    }
}

/// Index of the chosen candidate. `None` if there are no candidates.
pub(crate) fn choose(
    candidates: &[Candidate<'_>],
    ask: &PlacementQuery<'_>,
    random: &AtomicSplitMix,
) -> Option<usize> {
    if let [_] = candidates {
        return Some(0);
    }
    if candidates.iter().all(|candidate| matches!(candidate.load, WorkerLoad::Unknown)) {
        return by_time(candidates, random);
    }
    by_work(candidates, ask, random)
}

/// Chooses the least work before the first token: the blocks to compute of the prompt, and the work ahead.
fn by_work(candidates: &[Candidate<'_>], ask: &PlacementQuery<'_>, random: &AtomicSplitMix) -> Option<usize> {
    let others = others(candidates);
    let mean_weight = mean(candidates.iter().map(|candidate| candidate.weight));
    // A worker with an unknown load does not count as idle.
    let most = candidates.iter().filter_map(|candidate| candidate.ahead(others)).fold(0.0, f64::max);
    let work = |candidate: &Candidate<'_>| {
        let own = candidate.in_flight * BLOCKS_PER_SEQUENCE_AHEAD;
        let ahead = candidate.ahead(others).unwrap_or_else(|| most.max(own));
        candidate.blocks(ask) as f64 + ahead * mean_weight / candidate.weight
    };
    let is_exact =
        |candidate: &Candidate<'_>| matches!(candidate.load, WorkerLoad::Known { since: None, .. });
    let all_exact = candidates.iter().all(is_exact);
    if let Some(idle) = idle_among_busy(candidates, others).filter(|_| !all_exact) {
        return Some(idle);
    }
    let alike = if all_exact { 0.0 } else { ALIKE_BLOCKS * others.sqrt() };
    let least = candidates.iter().map(work).fold(f64::INFINITY, f64::min);
    let near = candidates.iter().enumerate().filter(|(_, candidate)| work(candidate) <= least + alike);
    let has_shares = candidates.iter().any(|candidate| candidate.weight != mean_weight);
    if alike > 0.0 || has_shares {
        by_chance(near.map(|(at, candidate)| (at, candidate.weight)), random)
    } else {
        // With current reports the first one will do, because the next call sees that this one went there.
        near.map(|(at, _)| at).next()
    }
}

/// The first idle candidate, if the others are busy.
fn idle_among_busy(candidates: &[Candidate<'_>], others: f64) -> Option<usize> {
    let busy = mean(candidates.iter().filter_map(|candidate| candidate.sequences(others)));
    let is_idle = |candidate: &Candidate<'_>| candidate.sequences(others).is_some_and(|ahead| ahead < 1.0);
    candidates.iter().position(is_idle).filter(|_| busy >= BUSY_SEQUENCES)
}

/// Ratio of all senders' calls to ours. What the others sent since a report is unknown, so they are assumed to have
/// acted as we did.
fn others(candidates: &[Candidate<'_>]) -> f64 {
    let (mut all, mut ours) = (0.0, 0.0);
    for candidate in candidates {
        if let WorkerLoad::Known { sequences, since: Some(flow), .. } = &candidate.load {
            all += sequences;
            ours += (candidate.in_flight - flow.started + flow.ended).max(0.0);
        }
    }
    if ours < 1.0 { 1.0 } else { (all / ours).clamp(1.0, MOST_OTHERS) }
}

/// Power of two choices: of two random candidates, the one with the shorter expected time. A conversation stays with
/// its worker unless that takes much longer.
fn by_time(candidates: &[Candidate<'_>], random: &AtomicSplitMix) -> Option<usize> {
    let weighted = || candidates.iter().enumerate().map(|(at, candidate)| (at, candidate.weight));
    let a = by_chance(weighted(), random)?;
    let b = by_chance(weighted().filter(|&(at, _)| at != a), random)?;
    let (left, right) = (candidates.get(a)?, candidates.get(b)?);
    let (left_time, right_time) = times(left, right);
    let (least, most) = (left_time.min(right_time), left_time.max(right_time));
    let winner = if most <= least * ALIKE_TIMES {
        by_chance([(a, left.weight), (b, right.weight)].into_iter(), random)?
    } else if left_time < right_time {
        a
    } else {
        b
    };
    let best = candidates.get(winner)?;
    let was = candidates.iter().enumerate().max_by_key(|(_, candidate)| candidate.cached);
    let stays = was.filter(|(_, candidate)| candidate.cached > best.cached).filter(|(_, candidate)| {
        let (there, elsewhere) = times(candidate, best);
        there <= elsewhere * STAYS_UP_TO
    });
    Some(stays.map_or(winner, |(at, _)| at))
}

/// Expected times of two candidates. An unknown time is assumed to equal the other's.
fn times(left: &Candidate<'_>, right: &Candidate<'_>) -> (f64, f64) {
    let known = left.expected_ns.or(right.expected_ns).unwrap_or(1.0).max(1.0);
    let time = |candidate: &Candidate<'_>| {
        candidate.expected_ns.unwrap_or(known).max(1.0) * (candidate.in_flight / candidate.weight + 1.0)
    };
    (time(left), time(right))
}

/// Draws one candidate, with a probability proportional to its weight.
fn by_chance(of: impl Iterator<Item = (usize, f64)>, random: &AtomicSplitMix) -> Option<usize> {
    // One pass: each candidate replaces the previous choice with its share of the weight so far.
    let (mut chosen, mut sum) = (None, 0.0);
    for (at, weight) in of {
        sum += weight;
        if chosen.is_none() || random.unit() * sum < weight {
            chosen = Some(at);
        }
    }
    chosen
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 1.0 }
}
