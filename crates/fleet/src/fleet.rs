//! All workers, by model: places calls among those that take any, and says how they stand.
//! Must not know what a call asks for.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use headrace_domain::{Clock, ModelName, PrefixKeys, Region, Residency, SystemClock};
use headrace_engine_api::{Health, SharedRelay};
use smallvec::SmallVec;

use crate::choice::{Ask, Candidate, choose};
use crate::hedge::{Hedge, Spread};
use crate::outlier::Outliers;
use crate::placement::{Chance, Placement, Tried};
use crate::random::Random;
use crate::remembered::Marks;
use crate::site::Site;
use crate::status::{Readiness, SiteStatus, Standing, WorkerStatus};
use crate::worker::Worker;

/// See the top of the file.
#[derive(Debug)]
pub struct Fleet {
    by_model: HashMap<ModelName, Group, RandomState>,
    chance: Arc<Chance>,
}

/// The workers of a model.
#[derive(Debug, Default)]
struct Group {
    workers: Vec<Arc<Worker>>,
    outliers: Outliers,
}

/// Where a call of messages leads, from its beginning on: for whoever would like it to go where its beginning went before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trail<'a> {
    /// One mark for each part of it, such as a system prompt and the messages so far; each stands for all before it as well, and
    /// for the tenant. Hashes with a key, so that nobody makes one of somebody else.
    pub marks: &'a [u64],
    /// How many tokens all of it takes, about.
    pub tokens: usize,
}

impl Default for Fleet {
    fn default() -> Self {
        Self::new(std::iter::empty::<Worker>())
    }
}

impl Fleet {
    /// A fleet of these workers, with a time of its own. Fleets that share workers need one clock for all: see
    /// [`Self::with`].
    pub fn new(workers: impl IntoIterator<Item = impl Into<Arc<Worker>>>) -> Self {
        Self::with(workers, Arc::new(SystemClock::new()), 0)
    }

    /// A fleet of these workers, by this clock, with random numbers that follow from `seed`. One that shares workers with another
    /// fleet counts what both send them, and knows what both have seen of them.
    pub fn with(
        workers: impl IntoIterator<Item = impl Into<Arc<Worker>>>,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Self {
        let mut by_model = HashMap::<ModelName, Group, RandomState>::default();
        for worker in workers {
            let worker = worker.into();
            by_model.entry(worker.model().clone()).or_default().workers.push(worker);
        }
        Self { by_model, chance: Arc::new(Chance { clock, random: Random::new(seed) }) }
    }

    /// Whether any worker serves `model`.
    pub fn serves(&self, model: &ModelName) -> bool {
        self.by_model.contains_key(model)
    }

    /// Whether any worker serves `model` where a call may be worked on, whatever it can do now.
    pub fn serves_within(&self, model: &ModelName, residency: &Residency) -> bool {
        self.of(model).into_iter().flatten().any(|worker| residency.allows(worker.region()))
    }

    /// Where `model` is served. `None` among them: by somebody of whom nobody has said where it is.
    pub fn regions_of(&self, model: &ModelName) -> BTreeSet<Option<Region>> {
        self.of(model).into_iter().flatten().map(|worker| worker.region().cloned()).collect()
    }

    /// How many workers serve `model`, whatever they can do now.
    pub fn workers_of(&self, model: &ModelName) -> usize {
        self.by_model.get(model).map_or(0, |group| group.workers.len())
    }

    /// The models that no worker takes calls for now, by name, and why not: of each worker, by its id. By what the workers say
    /// themselves; breakers and the like come and go ([`Self::readiness`]).
    pub fn down(&self) -> Vec<(&ModelName, String)> {
        let why = |worker: &Arc<Worker>| match worker.backend.health() {
            Health::Up => None,
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

    /// Whether `model` can be had now by calls that may be worked on there, with a word on each worker that they may go to. `None`:
    /// nobody serves it.
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

    /// How every worker stands, by model and in the order in which they are listed.
    pub fn status(&self) -> Vec<WorkerStatus> {
        let now_ns = self.now_ns();
        let mut models: Vec<_> = self.by_model.iter().collect();
        models.sort_by_key(|&(model, _)| model);
        models.iter().flat_map(|(_, group)| &group.workers).map(|worker| worker.status(now_ns)).collect()
    }

    /// How an upstream stands.
    pub fn site_status(&self, site: &Site) -> SiteStatus {
        site.status(self.now_ns())
    }

    /// Those who take messages for `model`.
    pub fn relays(&self, model: &ModelName) -> impl Iterator<Item = &SharedRelay> {
        self.of(model).into_iter().flatten().filter_map(|worker| worker.backend.relay())
    }

    /// All workers.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.by_model.values().flat_map(|group| &group.workers)
    }

    /// An upstream was asked how it is. If it answers, after its breaker or those of its workers had been opened, the next
    /// calls try them. If not, with a reason, that counts as a failure.
    pub fn probed(&self, site: &Arc<Site>, answer: Result<(), &str>) {
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

    /// Whether a call of `model` may be sent once more, after it failed: not where more than a tenth of its calls were. What
    /// was saved up and a small floor make up for bursts and for a lone call.
    pub fn may_retry(&self, model: &ModelName) -> bool {
        // The one that is listed first keeps the budget: it outlives this fleet.
        let first = self.of(model).and_then(<[_]>::first);
        first.is_some_and(|worker| worker.retries.take(self.now_ns()))
    }

    /// How long a call may wait for its first word from who has it, until a second worker is asked as well: longer than so many calls
    /// of the others did that it may go to. `None`: there is nobody else, or nothing is known of them yet. Each call asks once, and
    /// pays its part of a race.
    pub fn patience(
        &self,
        model: &ModelName,
        placement: &Placement,
        hedge: &Hedge,
        residency: &Residency,
    ) -> Option<Duration> {
        let workers = self.of(model)?;
        workers.first()?.races.pay_in(hedge);
        let allowed = workers.iter().filter(|worker| residency.allows(worker.region()));
        let others = allowed.filter(|worker| !Arc::ptr_eq(worker, placement.worker()));
        let mut firsts = Spread::NONE;
        others.for_each(|worker| firsts.with(&worker.figures().firsts));
        firsts.percentile(hedge.after_percent)
    }

    /// Whether a call of `model` may be put to a second worker: not where more than their share of the calls were.
    pub fn may_race(&self, model: &ModelName) -> bool {
        self.of(model).and_then(<[_]>::first).is_some_and(|first| first.races.take())
    }

    /// Picks the worker with the least work before the first token, among those that take calls; the page of this room says how.
    /// Nobody gets it who was tried, or is where the call may not be worked on. `None`: nobody is left. Where a model has but one, in
    /// this process, it is that one, who says itself why it takes nothing.
    pub fn place(
        &self,
        model: &ModelName,
        keys: &PrefixKeys,
        tried: &Tried,
        residency: &Residency,
    ) -> Option<Placement> {
        let ask = Ask { prompt_tokens: keys.ids().len(), marks: Marks::Keys(keys) };
        self.pick(model, &ask, tried, residency)
    }

    /// As [`Self::place`], for a call of messages, rather where its beginning went before.
    pub fn place_near(
        &self,
        model: &ModelName,
        trail: Trail<'_>,
        tried: &Tried,
        residency: &Residency,
    ) -> Option<Placement> {
        let ask = Ask { prompt_tokens: trail.tokens, marks: Marks::Trail(trail.marks) };
        self.pick(model, &ask, tried, residency)
    }

    fn of(&self, model: &ModelName) -> Option<&[Arc<Worker>]> {
        Some(self.by_model.get(model)?.workers.as_slice())
    }

    fn now_ns(&self) -> u64 {
        self.chance.clock.monotonic_nanos()
    }

    /// The one way to a placement: whoever asks, and however often, says where the call may be worked on.
    fn pick(
        &self,
        model: &ModelName,
        ask: &Ask<'_>,
        tried: &Tried,
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
                    first.retries.pay_in();
                }
                let allowed = many.iter().filter(|worker| residency.allows(worker.region()));
                self.one_of(allowed, ask, tried, now_ns)
            }
        }
    }

    fn the_only_one(&self, only: &Arc<Worker>, tried: &Tried, now_ns: u64) -> Option<Placement> {
        // How it is it says itself; what was seen of it only the fleet knows.
        let takes = match only.is_judged() {
            false => !only.is_drained(),
            true => matches!(only.standing(now_ns), Standing::Ready | Standing::Trial | Standing::Down(_)),
        };
        if !takes || tried.has(only) {
            return None;
        }
        Some(Placement::new(only, &self.chance, now_ns, 0, only.enter(now_ns)?))
    }

    fn one_of<'a>(
        &self,
        workers: impl Iterator<Item = &'a Arc<Worker>>,
        ask: &Ask<'_>,
        tried: &Tried,
        now_ns: u64,
    ) -> Option<Placement> {
        let (mut candidates, mut trials) =
            (SmallVec::<[Candidate<'_>; 16]>::new(), SmallVec::<[&'a Arc<Worker>; 4]>::new());
        for worker in workers.filter(|worker| !tried.has(worker)) {
            match worker.standing(now_ns) {
                Standing::Ready => candidates.push(Candidate::of(worker, ask, now_ns)),
                Standing::Trial => trials.push(worker),
                _ => {}
            }
        }
        // A call that was tried already is no guinea pig, as long as somebody is well.
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

    /// `None`: it takes none any longer.
    fn enter(&self, worker: &Arc<Worker>, ask: &Ask<'_>, blocks: u64, now_ns: u64) -> Option<Placement> {
        let trials = worker.enter(now_ns)?;
        worker.sent(now_ns, ask.marks, blocks);
        Some(Placement::new(worker, &self.chance, now_ns, blocks, trials))
    }
}
