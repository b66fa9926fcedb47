//! A seeded world around the scheduler, with every KV slot simulated. It has arrivals, tenants, cancels, failures,
//! readers that stop and come back, and pools that are too small. After each step the invariants must hold, and every
//! slot that is read must have the expected content. `HEADRACE_SEEDS=n` runs more seeds. A failure prints its seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use headrace_domain::{CacheLife, CachePin, CacheSalt, HeldPrefix, RequestId};
use headrace_kv_layout::{KvGroup, KvGroupKind, KvLayout, PerGroup};
use headrace_scheduler::{
    AddRefusal, BlockCounts, Class, Outcome, Scheduler, SchedulerConfig, SeqId, SequenceSpec, StepPlan,
};

mod common;

use common::memory::{Chunk, Memory, chain};
use common::{Rng, each_seed, mix, seeds};

/// Number of seeds if `HEADRACE_SEEDS` is not set. Fewer in an unoptimized build.
const SEEDS: u64 = if cfg!(debug_assertions) { 200 } else { 2000 };

/// Most tokens of other sequences of its class that may be computed before a running sequence advances. Tenants with
/// lower counters go first. A counter may be ahead by the pool's tokens (at most 912 here) and a burst (1024), times
/// the weights (1 to 4) of three other tenants.
const STILL_TOKENS: usize = (912 + 1024) * (2 + 3 + 4);

/// Number of tenants.
const TENANTS: usize = 4;
/// Calls that hold prefixes.
const CALLS: u64 = 5;

#[derive(Debug)]
struct Known {
    tokens: Vec<u32>,
    /// The hashes up to the leading tokens, as many as were needed so far. They are the same at each recompute.
    hashes: Vec<u64>,
    prompt: usize,
    max_new: usize,
    tenant: u64,
    salt: u64,
    class: Class,
    /// Idle work that is served as normal work.
    raised: bool,
    /// Whether it holds blocks.
    runs: bool,
    /// Whether it is paused.
    paused: bool,
    /// Tokens computed for others of its class since it last advanced while running.
    still: usize,
    /// Whether the planned step computes it.
    served: bool,
}

impl Known {
    /// Computes the hashes up to each of the first `end` tokens.
    fn ensure_hashes(&mut self, end: usize) {
        let mut hash = self.hashes.last().copied().unwrap_or(0);
        let from = self.hashes.len().min(end);
        self.hashes.extend(self.tokens[from..end].iter().map(|&token| {
            hash = chain(hash, self.salt, token);
            hash
        }));
    }
}

/// The living sequences, by their slots.
#[derive(Debug, Default)]
struct Living {
    slots: Vec<Option<(SeqId, Known)>>,
    count: usize,
}

impl Living {
    fn get(&self, id: SeqId) -> Option<&Known> {
        let (of, known) = self.slots.get(id.slot())?.as_ref()?;
        (*of == id).then_some(known)
    }

    fn get_mut(&mut self, id: SeqId) -> Option<&mut Known> {
        let (of, known) = self.slots.get_mut(id.slot())?.as_mut()?;
        (*of == id).then_some(known)
    }

    /// Adds a sequence. Returns `false` if another one lives in its slot.
    fn insert(&mut self, id: SeqId, known: Known) -> bool {
        let slots = self.slots.len().max(id.slot() + 1);
        self.slots.resize_with(slots, || None);
        self.count += 1;
        self.slots[id.slot()].replace((id, known)).is_none()
    }

    fn remove(&mut self, id: SeqId) -> Option<Known> {
        self.get(id)?;
        self.count -= 1;
        self.slots[id.slot()].take().map(|(_, known)| known)
    }

    /// The sequences in the order of their slots.
    fn iter(&self) -> impl Iterator<Item = (SeqId, &Known)> {
        self.slots.iter().flatten().map(|(id, known)| (*id, known))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (SeqId, &mut Known)> {
        self.slots.iter_mut().flatten().map(|(id, known)| (*id, known))
    }

    /// A random sequence. Takes no random number if there is none.
    fn one(&self, rng: &mut Rng) -> Option<SeqId> {
        if self.count == 0 {
            return None;
        }
        let at = rng.below(self.count as u64) as usize;
        self.iter().nth(at).map(|(id, _)| id)
    }
}

/// Counts of events in one world, or in several.
#[derive(Debug, Default)]
struct Tally {
    ended: usize,
    failed: usize,
    preempted: usize,
    cached: usize,
    refused: usize,
    pauses: usize,
    /// Sequences that lost their blocks while they were paused.
    parked: usize,
    /// Idle sequences that were served as normal work.
    raised: usize,
}

struct World {
    scheduler: Scheduler,
    rng: Rng,
    now: u64,
    memory: Memory,
    /// The salt of each tenant.
    salts: [CacheSalt; TENANTS],
    known: Living,
    seen: Tally,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.failed += other.failed;
        self.preempted += other.preempted;
        self.cached += other.cached;
        self.refused += other.refused;
        self.pauses += other.pauses;
        self.parked += other.parked;
        self.raised += other.raised;
    }
}

/// A layout of one to three groups, with pools of different sizes.
fn random_layout(rng: &mut Rng, chunk: usize) -> KvLayout {
    let full = KvGroup::full(17 + rng.below(40) as usize, 4096);
    let window = [1, 5, 16, 20, 47, 100][rng.below(6) as usize];
    let window = KvGroup::new(KvGroupKind::Window(window), 0, 512);
    let block_count = window.most_held(260, chunk) + rng.below(24) as usize;
    let window = KvGroup { block_count, ..window };
    let state = KvGroup::new(KvGroupKind::State, 2 + rng.below(2) as usize, 9000);
    let many = KvGroup { block_count: 2 + rng.below(7) as usize, ..state };
    match rng.below(8) {
        0 => KvLayout::new(&[full, window]),
        1 => KvLayout::new(&[full, many]),
        2 => KvLayout::new(&[full, window, many]),
        3 => KvLayout::single(window),
        4 => KvLayout::single(state),
        _ => KvLayout::single(full),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let step_tokens = [8, 33, 64, 512][rng.below(4) as usize];
        let config = SchedulerConfig {
            step_tokens,
            max_running: (1 + rng.below(12) as usize).min(step_tokens),
            max_chunk: [1, 7, 64, 512][rng.below(4) as usize],
            max_score_chunk: 1 + rng.below(9) as usize,
            context_window: 260,
            queue_sequences: 40,
            queue_tokens: 3000,
            max_bypass: rng.below(5) as u32,
            idle_patience_ns: [3_000, 20_000, u64::MAX][rng.below(3) as usize],
            dedup_tokens: 16 * (1 + rng.below(3) as usize),
            prefix_cache: !rng.one_in(6),
            prefix_lifetime_ns: rng.one_in(3).then(|| 1_000 + rng.below(40_000)),
            pinned_percent: [0, 50, 100][rng.below(3) as usize],
            pinned_percent_of_one: [10, 25, 100][rng.below(3) as usize],
            keep_aborted: rng.one_in(3),
        };
        let layout = random_layout(&mut rng, config.chunk());
        Self {
            scheduler: Scheduler::new(config, layout).unwrap(),
            rng,
            now: 1,
            memory: Memory::new(layout),
            salts: std::array::from_fn(|tenant| {
                CacheSalt::derive(&[3; 32], &format!("t{tenant}"), "m", None)
            }),
            known: Living::default(),
            seen: Tally::default(),
        }
    }

    /// A busy phase, then a drain of what is left.
    fn run(mut self) -> Tally {
        for _ in 0..60 {
            for _ in 0..self.rng.below(4) {
                self.arrive();
            }
            if self.rng.one_in(4) {
                self.cancel_one();
            }
            for _ in 0..self.rng.below(3) {
                self.pause_or_resume();
            }
            self.step();
        }
        self.drain();
        self.seen
    }

    /// Random pins, for one in three sequences.
    fn pins(&mut self) -> Arc<[CachePin]> {
        let many = if self.rng.one_in(3) { 1 + self.rng.below(3) } else { 0 };
        let life = [CacheLife::Minutes, CacheLife::Hour];
        (0..many)
            .map(|at| CachePin { tokens: self.rng.below(220) as u32, life: life[at as usize % 2] })
            .collect()
    }

    /// What a call holds of its prompt, for one in four sequences.
    fn held(&mut self) -> Option<HeldPrefix> {
        let owner = RequestId::from_bits(u128::from(self.rng.below(CALLS)));
        self.rng.one_in(4).then(|| HeldPrefix { owner, tokens: self.rng.below(220) as u32 })
    }

    fn arrive(&mut self) {
        if self.rng.one_in(8) {
            self.scheduler.release_pins(RequestId::from_bits(u128::from(self.rng.below(CALLS))));
        }
        let tenant = self.rng.below(TENANTS as u64);
        // Few distinct prompts, so that tenants send the same ones.
        let (kind, len) = (self.rng.below(3), 1 + self.rng.below(200) as usize);
        let prompt: Arc<[u32]> = (0..len).map(|i| mix(kind * 1000 + i as u64) as u32 % 97).collect();
        let max_new = self.rng.below(60) as u32;
        let spec = SequenceSpec {
            prompt: Arc::clone(&prompt),
            max_new,
            salt: self.salts[tenant as usize],
            keys: None,
            tenant,
            weight: 1 + tenant as u32,
            class: [Class::Idle, Class::Normal, Class::Normal, Class::Normal][self.rng.below(4) as usize],
            start_deadline_ns: self.rng.one_in(5).then(|| self.now + self.rng.below(40_000)),
            score_prompt: self.rng.one_in(8),
            pins: self.pins(),
            held: self.held(),
            long_context: false,
        };
        let count = if self.rng.one_in(4) { 1 + self.rng.below(4) as usize } else { 1 };
        let mut ids = Vec::new();
        match self.scheduler.add_group(&spec, count, self.now, &mut ids) {
            Ok(()) => {
                assert_eq!(ids.len(), count);
                for id in ids {
                    let known = Known {
                        tokens: prompt.to_vec(),
                        hashes: Vec::new(),
                        prompt: prompt.len(),
                        max_new: max_new as usize,
                        tenant,
                        salt: tenant,
                        class: spec.class,
                        raised: false,
                        runs: false,
                        paused: false,
                        still: 0,
                        served: false,
                    };
                    assert!(self.known.insert(id, known), "{id:?} lives twice");
                }
            }
            Err(AddRefusal::QueueFull { retry_after_ns, .. }) => {
                assert!(retry_after_ns >= 1_000_000_000);
                self.seen.refused += 1;
            }
            Err(AddRefusal::TooLate { .. }) => self.seen.refused += 1,
            Err(other) => panic!("{other}"),
        }
    }

    fn step(&mut self) {
        let plan = self.scheduler.plan(self.now).clone();
        self.scheduler.check_invariants().unwrap();
        let config = self.scheduler.config();
        assert!(plan.tokens() <= config.step_tokens);
        assert!(
            plan.chunks.iter().all(|c| c.len > 0 && c.len <= config.max_chunk.max(config.max_score_chunk))
        );
        self.seen.preempted += plan.preempted.len();
        self.check_paused(&plan);
        for expired in &plan.expired {
            let gone = self.known.remove(expired.seq).unwrap();
            assert!(!gone.paused, "{:?} expired while it was paused", expired.seq);
            assert!(expired.retry_after_ns >= 1_000_000_000);
        }
        self.check_raised(&plan);
        self.check_turns(&plan);
        for started in &plan.started {
            self.seen.cached += started.cached_tokens;
            assert!(started.cached_tokens < self.known.get(started.seq).unwrap().prompt);
        }
        if plan.chunks.is_empty() {
            assert!(self.scheduler.is_idle(), "nothing planned with {:?}", self.scheduler.load());
            return;
        }
        let mut outcomes = Vec::new();
        for chunk in &plan.chunks {
            let view = self.scheduler.view(chunk).unwrap();
            let known = self.known.get_mut(chunk.seq).unwrap();
            let (start, end) = (chunk.start, chunk.start + chunk.len);
            assert_eq!(view.tokens, &known.tokens[start..end]);
            known.ensure_hashes(end);
            let chunk_of = Chunk { hashes: &known.hashes, start, end };
            let hash = self.memory.compute(&chunk_of, &view.tables);
            if self.rng.one_in(8) {
                // A failed step is computed again.
                assert_eq!(self.memory.compute(&chunk_of, &view.tables), hash);
            }
            assert_eq!(chunk.reaches_end, end == known.tokens.len());
            outcomes.push(self.outcome(chunk.seq, chunk.reaches_end, hash));
        }
        self.now += 1000 + plan.tokens() as u64 * 10;
        self.scheduler.commit(&outcomes, self.now);
        self.scheduler.check_invariants().unwrap();
    }

    /// Paused sequences are not computed, and are preempted before any others.
    fn check_paused(&mut self, plan: &StepPlan) {
        let is_paused = |id: SeqId| self.known.get(id).unwrap().paused;
        assert!(plan.chunks.iter().all(|chunk| !is_paused(chunk.seq)));
        let lost = |id: &SeqId, paused: bool| is_paused(*id) == paused;
        self.seen.parked += plan.preempted.iter().filter(|id| lost(id, true)).count();
        if plan.preempted.iter().any(|id| lost(id, false)) {
            let keeps =
                |(id, known): &(SeqId, &Known)| known.paused && known.runs && !plan.preempted.contains(id);
            let spared = self.known.iter().find(keeps);
            assert!(spared.is_none(), "{spared:?} is paused and keeps its blocks");
        }
        let paused = self.known.iter().filter(|(_, known)| known.paused).count();
        assert_eq!(self.scheduler.load().paused, paused);
    }

    /// At most one idle sequence at a time is served as normal work.
    fn check_raised(&mut self, plan: &StepPlan) {
        for id in &plan.raised {
            let known = self.known.get_mut(*id).unwrap();
            assert!(known.class == Class::Idle && !known.paused, "{id:?} is raised: {known:?}");
            (known.class, known.raised, known.still) = (Class::Normal, true, 0);
            self.seen.raised += 1;
        }
        let raised = self.known.iter().filter(|(_, known)| known.raised).count();
        assert!(raised <= 1, "{raised} are raised at once");
    }

    /// A reader stops or comes back.
    fn pause_or_resume(&mut self) {
        let Some(id) = self.known.one(&mut self.rng) else { return };
        let known = self.known.get_mut(id).unwrap();
        let change: fn(&mut Scheduler, SeqId) -> bool =
            if known.paused { Scheduler::resume } else { Scheduler::pause };
        (known.paused, known.still) = (!known.paused, 0);
        if std::mem::take(&mut known.raised) {
            known.class = Class::Idle;
        }
        self.seen.pauses += 1;
        assert!(change(&mut self.scheduler, id));
        assert!(!change(&mut self.scheduler, id), "it is so already");
        self.scheduler.check_invariants().unwrap();
    }

    /// No running sequence is passed over without end, and idle work runs only if no other sequence could.
    fn check_turns(&mut self, plan: &StepPlan) {
        for id in &plan.preempted {
            let known = self.known.get_mut(*id).unwrap();
            (known.runs, known.still) = (false, 0);
        }
        let mut by_class = [0; 2];
        for chunk in &plan.chunks {
            let known = self.known.get_mut(chunk.seq).unwrap();
            (known.runs, known.served) = (true, true);
            by_class[known.class as usize] += chunk.len;
        }
        for (id, known) in self.known.iter_mut() {
            let served = std::mem::take(&mut known.served);
            if known.class != Class::Idle && !served && !known.paused {
                assert_eq!(by_class[0], 0, "idle work runs while {id:?} waits (runs: {})", known.runs);
            }
            known.still = match known.runs && !served && !known.paused {
                true => known.still + by_class[known.class as usize],
                false => 0,
            };
            assert!(
                known.still <= STILL_TOKENS,
                "{id:?} was passed over for {} tokens of others",
                known.still
            );
        }
    }

    fn outcome(&mut self, id: SeqId, reaches_end: bool, hash: u64) -> Outcome {
        if self.rng.one_in(200) {
            self.seen.failed += 1;
            self.known.remove(id).unwrap();
            return Outcome::Failed;
        }
        let known = self.known.get_mut(id).unwrap();
        if !reaches_end {
            return Outcome::Advanced;
        }
        if self.rng.one_in(12) {
            return Outcome::Repeat;
        }
        let generated = known.tokens.len() - known.prompt;
        if generated + 1 >= known.max_new || hash.is_multiple_of(50) {
            self.known.remove(id).unwrap();
            self.seen.ended += 1;
            return Outcome::Ended;
        }
        let token = (hash % 97) as u32;
        known.tokens.push(token);
        Outcome::Token(token)
    }

    fn cancel_one(&mut self) {
        let Some(id) = self.known.one(&mut self.rng) else { return };
        assert!(self.scheduler.abort(id));
        assert!(!self.scheduler.abort(id));
        let gone = self.known.remove(id).unwrap();
        assert!(gone.tenant < TENANTS as u64 && gone.tokens.len() >= gone.prompt);
        self.scheduler.check_invariants().unwrap();
    }

    fn drain(&mut self) {
        let mut steps = 0;
        while self.known.count > 0 {
            if self.known.iter().any(|(_, known)| known.paused) && self.rng.one_in(2) {
                self.pause_or_resume();
            }
            self.step();
            steps += 1;
            assert!(steps < 100_000, "no end in sight: {:?}", self.scheduler.load());
        }
        let load = self.scheduler.load();
        let held = |counts: &BlockCounts| counts.total - counts.free;
        assert_eq!(load.blocks.map(held), PerGroup::repeat(0), "blocks did not come back");
        assert_eq!((load.waiting, load.waiting_tokens), (0, 0));
        assert!(self.scheduler.is_idle());
    }
}

#[test]
fn books_agree_and_every_slot_holds_what_its_reader_expects() {
    let seeds = seeds(SEEDS);
    let mut seen = Tally::default();
    for run in each_seed(seeds, |seed| World::new(seed).run()) {
        seen.add(&run);
    }
    println!("{seeds} seeds: {seen:?}");
    if seeds >= 50 {
        let tame =
            [seen.ended, seen.failed, seen.preempted, seen.cached, seen.refused, seen.parked, seen.raised]
                .contains(&0);
        assert!(!tame, "the world is too tame: {seen:?}");
    }
}

#[test]
fn the_same_seed_plans_the_same_steps() {
    let trace = |seed| {
        let mut world = World::new(seed);
        let mut plans = Vec::new();
        for _ in 0..80 {
            world.arrive();
            world.pause_or_resume();
            world.step();
            plans.push(world.scheduler.current().clone());
        }
        plans
    };
    for seed in 0..20 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
}
