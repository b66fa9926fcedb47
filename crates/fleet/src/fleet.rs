//! All workers, by model. Places calls among those that take calls, and reports their status. Must not know the content
//! of calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use headrace_domain::{Clock, ModelName, PrefixKeys, Region, Residency, SystemClock};
use headrace_engine_api::{EngineHealth, SharedRelay};
use smallvec::SmallVec;

use crate::choice::{Candidate, PlacementQuery, choose};
use crate::hedge::{HedgePolicy, LatencyHistogram};
use crate::outlier::OutlierSchedule;
use crate::placement::{FleetContext, Placement, TriedWorkers};
use crate::random::AtomicSplitMix;
use crate::remembered::PrefixMarks;
use crate::site::WorkerSite;
use crate::status::{Readiness, SiteStatus, WorkerStanding, WorkerStatus};
use crate::worker::Worker;

/// The workers of all models. The crate's page describes how one is chosen.
#[derive(Debug)]
pub struct Fleet {
    by_model: HashMap<ModelName, ModelWorkers, RandomState>,
    chance: Arc<FleetContext>,
}

/// The workers of a model.
#[derive(Debug, Default)]
struct ModelWorkers {
    workers: Vec<Arc<Worker>>,
    outliers: OutlierSchedule,
}

/// Prefix marks of a call to a messages backend, so that it can go to the worker that had its prefix before.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefixHashes<'a> {
    /// One mark per part, such as the system prompt and each message so far. Each mark covers all parts before it and
    /// the tenant. Marks are keyed hashes, so no client can forge another's.
    pub marks: &'a [u64],
    /// Approximate number of tokens in all parts.
    pub tokens: usize,
}

impl Default for Fleet {
    fn default() -> Self {
        Self::new(std::iter::empty::<Worker>())
    }
}

impl Fleet {
    /// Creates a fleet with a clock of its own. Fleets that share workers need one clock for all: see [`Self::with`].
    pub fn new(workers: impl IntoIterator<Item = impl Into<Arc<Worker>>>) -> Self {
        Self::with(workers, Arc::new(SystemClock::new()), 0)
    }

    /// Creates a fleet with this clock, and with random numbers from `seed`. Fleets that share workers also share their
    /// counts and what was learnt about them.
    pub fn with(
        workers: impl IntoIterator<Item = impl Into<Arc<Worker>>>,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Self {
        let mut by_model = HashMap::<ModelName, ModelWorkers, RandomState>::default();
        for worker in workers {
            let worker = worker.into();
            by_model.entry(worker.model().clone()).or_default().workers.push(worker);
        }
        Self { by_model, chance: Arc::new(FleetContext { clock, random: AtomicSplitMix::new(seed) }) }
    }

    /// Whether any worker serves `model`.
    pub fn serves(&self, model: &ModelName) -> bool {
        self.by_model.contains_key(model)
    }

    /// Whether any worker within these regions serves `model`, regardless of its state.
    pub fn serves_within(&self, model: &ModelName, residency: &Residency) -> bool {
        self.of(model).into_iter().flatten().any(|worker| residency.allows(worker.region()))
    }

    /// The regions in which `model` is served. They include `None` if a worker's region is not configured.
    pub fn regions_of(&self, model: &ModelName) -> BTreeSet<Option<Region>> {
        self.of(model).into_iter().flatten().map(|worker| worker.region().cloned()).collect()
    }

    /// Number of workers that serve `model`, regardless of their state.
    pub fn workers_of(&self, model: &ModelName) -> usize {
        self.by_model.get(model).map_or(0, |group| group.workers.len())
    }

    /// The models whose workers all report that they are down, by name, with each worker's id and reason. Ignores
    /// breakers and similar transient states, which are in [`Self::readiness`].
    pub fn down(&self) -> Vec<(&ModelName, String)> {
        let why = |worker: &Arc<Worker>| match worker.backend.health() {
            EngineHealth::Up => None,
            health => Some(format!("worker {}: {health}", worker.id())),
        };
        let down = self.by_model.iter().filter_map(|(model, group)| {
            let whys: Option<Vec<_>> = group.workers.iter().map(why).collect();
            Some((model, whys?.join("; ")))
        });
        let mut down: Vec<_> = down.collect();
        down.sort_by_key(|&(model, _)| model);
        down
    }

    /// Whether `model` is available now to calls with these regions, with the standing of each worker within them.
    /// `None` if no worker serves it.
    pub fn readiness(&self, model: &ModelName, residency: &Residency) -> Option<Readiness> {
        let now_ns = self.now_ns();
        let allowed = self.of(model)?.iter().filter(|worker| residency.allows(worker.region()));
        let standings: Vec<_> = allowed.map(|worker| (worker, worker.standing(now_ns))).collect();
        let words: Vec<_> = standings
            .iter()
            .map(|(worker, standing)| format!("worker {}: {standing}", worker.id()))
            .collect();
        let ready = standings.iter().any(|(_, standing)| standing.takes_calls());
        let soonest = standings.iter().filter_map(|(_, standing)| standing.left()).min();
        Some(Readiness { ready, words: words.join("; "), retry_after: soonest.filter(|_| !ready) })
    }

    /// The status of every worker, by model and then in listed order.
    pub fn status(&self) -> Vec<WorkerStatus> {
        let now_ns = self.now_ns();
        let mut models: Vec<_> = self.by_model.iter().collect();
        models.sort_by_key(|&(model, _)| model);
        models.iter().flat_map(|(_, group)| &group.workers).map(|worker| worker.status(now_ns)).collect()
    }

    /// The status of an upstream.
    pub fn site_status(&self, site: &WorkerSite) -> SiteStatus {
        site.status(self.now_ns())
    }

    /// The messages backends of `model`.
    pub fn relays(&self, model: &ModelName) -> impl Iterator<Item = &SharedRelay> {
        self.of(model).into_iter().flatten().filter_map(|worker| worker.backend.relay())
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.by_model.values().flat_map(|group| &group.workers)
    }

    /// Records the answer to a health probe of an upstream. After an answer, open breakers of the upstream and its
    /// workers let the next call try. No answer, with a reason, counts as a failure.
    pub fn probed(&self, site: &Arc<WorkerSite>, answer: Result<(), &str>) {
        match answer {
            Err(why) => site.is_silent(self.now_ns(), why, self.chance.random.next()),
            Ok(()) => {
                if site.answers() {
                    let own = |worker: &&Arc<Worker>| worker.site().is_some_and(|of| Arc::ptr_eq(of, site));
                    self.workers().filter(own).for_each(|worker| worker.need_not_wait());
                }
            }
        }
    }

    /// Whether a failed call of `model` may be retried. At most a tenth of the model's calls are retried, beyond a
    /// saved balance and a small floor for lone calls.
    pub fn try_take_retry(&self, model: &ModelName) -> bool {
        // The first listed worker holds the budget, because it outlives this fleet.
        let first = self.of(model).and_then(<[_]>::first);
        first.is_some_and(|worker| worker.retries.try_take_retry(self.now_ns()))
    }

    /// How long a call may wait for its first output before a second worker is tried. It is a percentile of the
    /// first-output times of the other workers that the call may go to. `None` if there are no others, or too little is
    /// known of them. Each call asks once, and so pays its part of a race.
    pub fn record_and_get_hedge_delay(
        &self,
        model: &ModelName,
        placement: &Placement,
        hedge: &HedgePolicy,
        residency: &Residency,
    ) -> Option<Duration> {
        let workers = self.of(model)?;
        workers.first()?.races.pay_in(hedge);
        let allowed = workers.iter().filter(|worker| residency.allows(worker.region()));
        let others = allowed.filter(|worker| !Arc::ptr_eq(worker, placement.worker()));
        let mut firsts = LatencyHistogram::NONE;
        others.for_each(|worker| firsts.with(&worker.figures().firsts));
        firsts.percentile(hedge.after_percent)
    }

    /// Whether a call of `model` may race on a second worker. The policy limits the share of calls that do.
    pub fn try_take_race(&self, model: &ModelName) -> bool {
        self.of(model).and_then(<[_]>::first).is_some_and(|first| first.races.take())
    }

    /// Places a call on the worker with the least work before the first token, as the crate's page describes. Skips
    /// workers that were tried, or are outside the call's regions. `None` if no worker is left. If the model has a
    /// single worker in this process, the call goes there, because it refuses for itself.
    pub fn place(
        &self,
        model: &ModelName,
        keys: &PrefixKeys,
        tried: &TriedWorkers,
        residency: &Residency,
    ) -> Option<Placement> {
        let ask = PlacementQuery { prompt_tokens: keys.ids().len(), marks: PrefixMarks::Keys(keys) };
        self.pick(model, &ask, tried, residency)
    }

    /// As [`Self::place`], for a call to a messages backend. Prefers the worker that had its prefix before.
    pub fn place_near(
        &self,
        model: &ModelName,
        trail: PrefixHashes<'_>,
        tried: &TriedWorkers,
        residency: &Residency,
    ) -> Option<Placement> {
        let ask = PlacementQuery { prompt_tokens: trail.tokens, marks: PrefixMarks::Trail(trail.marks) };
        self.pick(model, &ask, tried, residency)
    }

    fn of(&self, model: &ModelName) -> Option<&[Arc<Worker>]> {
        Some(self.by_model.get(model)?.workers.as_slice())
    }

    fn now_ns(&self) -> u64 {
        self.chance.clock.monotonic_nanos()
    }

    /// The only function that creates a placement, so every attempt states the call's regions.
    fn pick(
        &self,
        model: &ModelName,
        ask: &PlacementQuery<'_>,
        tried: &TriedWorkers,
        residency: &Residency,
    ) -> Option<Placement> {
        let group = self.by_model.get(model)?;
        let now_ns = self.now_ns();
        match group.workers.as_slice() {
            [only] if !residency.allows(only.region()) => None,
            [only] => self.the_only_one(only, tried, now_ns),
            many => {
                group.outliers.look(many, now_ns);
                if let Some(first) = many.first().filter(|_| tried.is_empty()) {
                    first.retries.record_call();
                }
                let allowed = many.iter().filter(|worker| residency.allows(worker.region()));
                self.one_of(allowed, ask, tried, now_ns)
            }
        }
    }

    fn the_only_one(&self, only: &Arc<Worker>, tried: &TriedWorkers, now_ns: u64) -> Option<Placement> {
        // A worker in this process reports its own state. For others, the fleet knows what their calls showed.
        let takes = match only.is_judged() {
            false => !only.is_drained(),
            true => matches!(
                only.standing(now_ns),
                WorkerStanding::Ready | WorkerStanding::Trial | WorkerStanding::Down(_)
            ),
        };
        if !takes || tried.has(only) {
            return None;
        }
        Some(Placement::new(only, &self.chance, now_ns, 0, only.enter(now_ns)?))
    }

    fn one_of<'a>(
        &self,
        workers: impl Iterator<Item = &'a Arc<Worker>>,
        ask: &PlacementQuery<'_>,
        tried: &TriedWorkers,
        now_ns: u64,
    ) -> Option<Placement> {
        let (mut candidates, mut trials) =
            (SmallVec::<[Candidate<'_>; 16]>::new(), SmallVec::<[&'a Arc<Worker>; 4]>::new());
        for worker in workers.filter(|worker| !tried.has(worker)) {
            match worker.standing(now_ns) {
                WorkerStanding::Ready => candidates.push(Candidate::of(worker, ask, now_ns)),
                WorkerStanding::Trial => trials.push(worker),
                _ => {}
            }
        }
        // A call that was tried before is not used as a trial while a healthy worker is left.
        if tried.is_empty() || candidates.is_empty() {
            for worker in trials {
                let blocks = Candidate::of(worker, ask, now_ns).blocks(ask);
                if let Some(placement) = self.enter(worker, ask, blocks, now_ns) {
                    return Some(placement);
                }
            }
        }
        loop {
            let at = choose(&candidates, ask, &self.chance.random)?;
            let chosen = candidates.remove(at);
            let placement = self.enter(chosen.worker, ask, chosen.blocks(ask), now_ns);
            if placement.is_some() {
                return placement;
            }
        }
    }

    /// Places the call on this worker. `None` if the worker no longer takes calls.
    fn enter(
        &self,
        worker: &Arc<Worker>,
        ask: &PlacementQuery<'_>,
        blocks: u64,
        now_ns: u64,
    ) -> Option<Placement> {
        let trials = worker.enter(now_ns)?;
        worker.sent(now_ns, ask.marks, blocks);
        Some(Placement::new(worker, &self.chance, now_ns, blocks, trials))
    }
}
