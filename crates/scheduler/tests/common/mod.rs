//! Shared by the scheduler's tests: seeded random numbers, and helpers for small scenes.

#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod memory;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use headrace_domain::CacheSalt;
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SeqId, SequenceSpec};

/// A layout of one group with this many blocks.
pub(crate) fn layout(blocks: usize) -> KvLayout {
    KvLayout::single(KvGroup::full(blocks, 0))
}

/// Random numbers from a seed (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Time between two arrivals of a Poisson stream.
    pub(crate) fn exponential(&mut self, mean_ns: f64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean_ns) as u64
    }
}

/// Mixes a value so that every bit affects all others.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `HEADRACE_SEEDS`, or `usual` if it is not set.
pub(crate) fn seeds(usual: u64) -> u64 {
    std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Runs `world` for each of the seeds `0..seeds`, divided among the processors. Returns the results in seed order. If
/// worlds fail, panics with the first failing seed.
pub(crate) fn each_seed<T: Send>(seeds: u64, world: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let worker = || {
        let mut runs = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return runs;
            }
            let run = catch_unwind(AssertUnwindSafe(|| world(seed)));
            if run.is_err() {
                // Earlier seeds run to their ends; later ones are not started.
                next.fetch_max(seeds, Ordering::Relaxed);
            }
            runs.push((seed, run));
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut runs: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    runs.sort_by_key(|(seed, _)| *seed);
    let named = |(seed, run): (u64, thread::Result<T>)| {
        run.unwrap_or_else(|_| panic!("seed {seed} failed (HEADRACE_SEEDS runs seeds 0..n)"))
    };
    runs.into_iter().map(named).collect()
}

/// Small limits, so that a few prompts fill a step.
pub(crate) fn config() -> SchedulerConfig {
    SchedulerConfig { step_tokens: 64, max_running: 8, max_chunk: 64, ..SchedulerConfig::default() }
}

/// A prompt of a tenant, with ids counting up from `first`.
pub(crate) fn spec(tenant: u64, first: u32, len: usize, max_new: u32) -> SequenceSpec {
    spec_of(tenant, (0..len).map(|i| first + i as u32).collect::<Arc<[u32]>>(), max_new)
}

/// A prompt of a tenant.
pub(crate) fn spec_of(tenant: u64, prompt: impl Into<Arc<[u32]>>, max_new: u32) -> SequenceSpec {
    let salt = CacheSalt::derive(&[1; 32], &tenant.to_string(), "m", None);
    SequenceSpec::new(tenant, salt, prompt, max_new)
}

/// Plans and commits a step in which every sequence continues. Returns the chunks as (sequence, tokens).
pub(crate) fn step(scheduler: &mut Scheduler, now: u64) -> Vec<(SeqId, usize)> {
    let plan = scheduler.plan(now).clone();
    let next = |reaches| if reaches { Outcome::Token(1) } else { Outcome::Advanced };
    let outcomes: Vec<_> = plan.chunks.iter().map(|c| next(c.reaches_end)).collect();
    scheduler.commit(&outcomes, now + 1_000_000);
    scheduler.check_invariants().unwrap();
    plan.chunks.iter().map(|c| (c.seq, c.len)).collect()
}
