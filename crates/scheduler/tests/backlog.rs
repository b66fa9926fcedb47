//! Tests the fairness bound in a seeded world where every tenant always has work waiting. For any prompts, answers,
//! weights and pool sizes, the service per weight of any two tenants differs by at most a constant, over any stretch of
//! time. The same check runs against schedulers with one defect each, to show that it can fail. `HEADRACE_SEEDS=n` runs
//! more seeds. A failure prints its seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::sync::Arc;

use headrace_domain::{BLOCK_TOKENS, CacheSalt};
use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SeqId, SequenceSpec};

mod common;

use common::{Rng, each_seed, layout, seeds};

/// Number of seeds if `HEADRACE_SEEDS` is not set.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 2000 };
const LONGEST_PROMPT: u64 = 150;
const LONGEST_ANSWER: u64 = 40;
/// Fewest sequences that each tenant has waiting.
const BACKLOG: usize = 8;

/// The defect of the scheduler under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// It ignores the tenants' weights.
    Weights,
    /// It charges tokens that came from the cache, so a tenant that repeats prompts is served less.
    ChargesCached,
    /// It serves one tenant beyond its weight.
    Favourite,
    /// It serves sequences in the order of arrival.
    FirstCome,
}

struct Live {
    tenant: usize,
    left: u64,
    prompt: usize,
    /// Prompt tokens counted as served: found in the cache, or computed once.
    counted: usize,
}

struct World {
    scheduler: Scheduler,
    rng: Rng,
    broken: Broken,
    weights: Vec<u32>,
    live: HashMap<SeqId, Live>,
    /// Tokens served, per tenant.
    service: Vec<f64>,
    next: u32,
    /// Number of waiting sequences, per tenant.
    waiting: Vec<usize>,
    steps: usize,
    pool_tokens: usize,
    step_tokens: usize,
}

impl World {
    fn new(seed: u64, broken: Broken) -> Self {
        let mut rng = Rng(seed);
        let step_tokens = [64, 96, 128][rng.below(3) as usize];
        let max_bypass = rng.below(5) as u32;
        let config = SchedulerConfig {
            step_tokens,
            max_running: 2 + rng.below(14) as usize,
            max_chunk: [32, 64, 128][rng.below(3) as usize],
            context_window: 200,
            queue_sequences: 4000,
            max_bypass,
            ..SchedulerConfig::default()
        };
        let blocks = 20 + rng.below(60) as usize;
        let tenants = 2 + rng.below(3) as usize;
        Self {
            scheduler: Scheduler::new(config, layout(blocks)).unwrap(),
            weights: (0..tenants).map(|_| 1 + rng.below(4) as u32).collect(),
            rng,
            broken,
            live: HashMap::new(),
            service: vec![0.0; tenants],
            next: 0,
            waiting: vec![0; tenants],
            steps: 0,
            pool_tokens: blocks * BLOCK_TOKENS,
            step_tokens,
        }
    }

    /// How far service per weight may drift over any stretch. At any moment a tenant may be ahead by the sum of four
    /// parts. It may continue with what it holds in the pool. A tenant below its share of the pool may lead by a
    /// quarter of the pool. Then come a burst of two steps, and one request that passed. The stretch may start at one
    /// tenant's greatest lead and end at the other's, hence the factor of two.
    fn bound(&self) -> f64 {
        let held = (self.pool_tokens as u64).max(LONGEST_PROMPT);
        let lead = held + held / 4 + 2 * self.step_tokens as u64 + LONGEST_PROMPT + LONGEST_ANSWER;
        2.0 * lead as f64
    }

    fn refill(&mut self) {
        for tenant in 0..self.weights.len() {
            // Sending more earns no more service: the first tenant sends three times what is needed.
            let wanted = if tenant == 0 { 3 * BACKLOG } else { BACKLOG };
            for _ in self.waiting[tenant]..wanted {
                self.send(tenant);
            }
        }
    }

    fn send(&mut self, tenant: usize) {
        // The second tenant repeats itself: its prompts share their first hundred tokens.
        let repeats = tenant == 1;
        let len = (1 + self.rng.below(LONGEST_PROMPT - 1)) as usize;
        let len = if repeats { len.max(100) } else { len };
        self.next += 1;
        let own = self.next * 256;
        let prompt: Arc<[u32]> =
            (0..len).map(|i| if repeats && i < 100 { i as u32 } else { own + i as u32 }).collect();
        let answer = 1 + self.rng.below(LONGEST_ANSWER - 1);
        let broken = self.broken;
        let weight = match broken {
            Broken::Weights => 1,
            Broken::Favourite if tenant == 0 => 8 * self.weights[tenant],
            _ => self.weights[tenant],
        };
        let charged = if broken == Broken::FirstCome { 0 } else { tenant as u64 };
        let salt = CacheSalt::derive(&[3; 32], &tenant.to_string(), "m", None);
        let usual = SequenceSpec::new(charged, salt, prompt, LONGEST_ANSWER as u32);
        let spec = SequenceSpec { weight, ..usual };
        let id = self.scheduler.add(&spec, 0).unwrap();
        self.waiting[tenant] += 1;
        self.live.insert(id, Live { tenant, left: answer, prompt: len, counted: 0 });
    }

    fn step(&mut self) {
        let plan = self.scheduler.plan(0).clone();
        for started in &plan.started {
            let live = self.live.get_mut(&started.seq).unwrap();
            self.waiting[live.tenant] -= 1;
            // To simulate a scheduler that charges for cached tokens, this check counts them as served.
            live.counted = if self.broken == Broken::ChargesCached { 0 } else { started.cached_tokens };
        }
        let mut outcomes = Vec::new();
        for chunk in &plan.chunks {
            let live = self.live.get_mut(&chunk.seq).unwrap();
            let end = (chunk.start + chunk.len).min(live.prompt);
            let mut served = end.saturating_sub(live.counted);
            live.counted = live.counted.max(end);
            let outcome = match chunk.reaches_end {
                false => Outcome::Advanced,
                true if live.left == 1 => Outcome::Ended,
                true => Outcome::Token(7),
            };
            if chunk.reaches_end {
                served += 1;
                live.left -= 1;
            }
            self.service[live.tenant] += served as f64;
            outcomes.push(outcome);
        }
        assert!(!outcomes.is_empty(), "nothing planned with {:?}", self.scheduler.load());
        for (chunk, outcome) in plan.chunks.iter().zip(&outcomes) {
            if *outcome == Outcome::Ended {
                self.live.remove(&chunk.seq);
            }
        }
        self.scheduler.commit(&outcomes, 0);
        self.steps += 1;
        if self.steps.is_multiple_of(64) {
            // Other tests check the invariants after every step.
            self.scheduler.check_invariants().unwrap();
        }
    }

    /// The largest drift between two tenants' service over any stretch, as a fraction of the bound.
    fn run(&mut self) -> f64 {
        let bound = self.bound();
        let pairs: Vec<(usize, usize)> =
            (0..self.weights.len()).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
        let mut range = vec![(0.0f64, 0.0f64); pairs.len()];
        self.refill();
        while self.service.iter().sum::<f64>() < 3.0 * bound * self.weights.len() as f64 {
            self.step();
            self.refill();
            for (&(a, b), (low, high)) in pairs.iter().zip(&mut range) {
                let per = |t: usize| self.service[t] / f64::from(self.weights[t]);
                let lead = per(a) - per(b);
                (*low, *high) = (low.min(lead), high.max(lead));
            }
        }
        range.iter().map(|(low, high)| (high - low) / bound).fold(0.0, f64::max)
    }
}

#[test]
fn service_for_weight_differs_by_a_constant_between_tenants_that_always_wait() {
    let drifts = each_seed(seeds(SEEDS), |seed| World::new(seed, Broken::Nothing).run());
    let (mut widest, mut at) = (0.0, 0);
    for (seed, drift) in drifts.into_iter().enumerate() {
        assert!(
            drift <= 1.0,
            "seed {seed}: the service of two tenants drifted apart by {drift:.2} of the bound"
        );
        if drift > widest {
            (widest, at) = (drift, seed);
        }
    }
    println!("the widest drift was {widest:.2} of the bound, with seed {at}");
}

#[test]
fn a_broken_scheduler_is_caught() {
    for broken in [Broken::Weights, Broken::ChargesCached, Broken::Favourite, Broken::FirstCome] {
        let drifts: Vec<f64> = (0..20).map(|seed| World::new(seed, broken).run()).collect();
        let caught = drifts.iter().filter(|&&drift| drift > 1.0).count();
        println!("{broken:?}: caught by {caught} of {} seeds", drifts.len());
        assert!(caught >= drifts.len() / 4, "{broken:?}: {drifts:.2?}");
    }
}
