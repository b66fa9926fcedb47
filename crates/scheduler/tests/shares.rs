//! The tenants' shares of cache groups whose blocks have different sizes: counted in bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use headrace_kv_layout::{KvGroup, KvGroupKind, KvLayout};
use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SeqId, StepPlan};

mod common;

use common::{Rng, config, each_seed, seeds, spec, step};

/// Full layers and states, whose blocks are a hundred times as large.
fn hybrid() -> KvLayout {
    KvLayout::new(&[KvGroup::full(40, 1), KvGroup::new(KvGroupKind::State, 8, 100)])
}

/// A tenant that holds most of the full layers' blocks, and one that holds most of the states.
fn crowded() -> (Scheduler, SeqId, Vec<SeqId>) {
    let config = SchedulerConfig { max_running: 12, prefix_cache: false, ..config() };
    let mut s = Scheduler::new(config, hybrid()).unwrap();
    let long = s.add(&spec(1, 0, 390, 100), 0).unwrap();
    while step(&mut s, 0) != [(long, 1)] {}
    let short: Vec<_> = (0..5).map(|i| s.add(&spec(2, 1000 * i, 5, 100), 0).unwrap()).collect();
    while step(&mut s, 0).len() < 6 {}
    (s, long, short)
}

#[test]
fn a_tenant_gives_way_if_it_holds_more_bytes_than_its_share() {
    // Tenant 3 lacks a state. Tenant 1 holds 26 of all 48 blocks, but only 125 of 840 bytes: one state and 25 small blocks.
    let (mut s, long, short) = crowded();
    let third = s.add(&spec(3, 9000, 5, 10), 0).unwrap();
    let plan = s.plan(1).clone();
    assert_eq!(plan.preempted, [short[4]]);
    assert!(plan.chunks.iter().any(|chunk| chunk.seq == third));
    assert!(plan.chunks.iter().any(|chunk| chunk.seq == long));
}

/// A second slot for a state, which a step needs to complete a block, does not push a tenant beyond its share. Otherwise
/// two sequences that cannot run at once would displace each other for ever.
#[test]
fn sequences_with_states_do_not_displace_each_other_in_turn() {
    let layout = KvLayout::new(&[KvGroup::full(26, 1), KvGroup::new(KvGroupKind::State, 3, 100)]);
    for prefix_cache in [false, true] {
        let config = SchedulerConfig { max_chunk: 1, context_window: 256, prefix_cache, ..config() };
        let mut s = Scheduler::new(config, layout).unwrap();
        for tenant in [1, 2, 1, 2, 3] {
            s.add(&spec(tenant, 1000 * tenant as u32, 100, 60), 0).unwrap();
        }
        let mut steps = 0;
        while !s.is_idle() {
            step(&mut s, steps);
            steps += 1;
            assert!(steps < 10_000, "no end in sight, prefix cache {prefix_cache}");
        }
    }
}

/// The plans of a world of some tenants, with blocks `size` times as large.
fn plans(seed: u64, size: usize) -> Vec<StepPlan> {
    let mut rng = Rng(seed);
    let rng = &mut rng;
    let full = KvGroup::full(24 + rng.below(30) as usize, size * rng.between((1, 5)) as usize);
    let states = 5 + rng.below(6) as usize;
    let state = KvGroup::new(KvGroupKind::State, states, size * rng.between((1, 90)) as usize);
    let window = KvGroup::new(KvGroupKind::Window(20), 40 + rng.below(20) as usize, size * 3);
    let layout = match rng.below(4) {
        0 => KvLayout::single(full),
        1 => KvLayout::new(&[full, state]),
        2 => KvLayout::new(&[full, window]),
        _ => KvLayout::new(&[full, window, state]),
    };
    let config = SchedulerConfig {
        context_window: 256,
        max_running: 3 + rng.below(8) as usize,
        prefix_cache: rng.one_in(2),
        ..config()
    };
    let mut s = Scheduler::new(config, layout).unwrap();
    let mut plans = Vec::new();
    for now in 0..120 {
        if rng.one_in(3) {
            let tenant = rng.below(4);
            let (first, len) = (rng.below(5) * 1000, rng.between((1, 150)) as usize);
            let mut job = spec(tenant, first as u32, len, rng.between((1, 60)) as u32);
            job.weight = 1 + (tenant as u32 % 3);
            // A full queue refuses some.
            let _ = s.add(&job, now);
        }
        let plan = s.plan(now).clone();
        if !plan.chunks.is_empty() {
            let outcomes = plan.chunks.iter().map(|chunk| match (chunk.reaches_end, rng.one_in(40)) {
                (true, true) => Outcome::Ended,
                (true, false) => Outcome::Token(rng.below(3) as u32),
                (false, _) => Outcome::Advanced,
            });
            let outcomes: Vec<_> = outcomes.collect();
            s.commit(&outcomes, now + 1);
        }
        s.check_invariants().unwrap();
        plans.push(plan);
    }
    plans
}

/// Only the ratio of the groups' sizes counts, so blocks that are a thousand times as large change no decision.
#[test]
fn decisions_depend_on_the_ratio_of_sizes_alone() {
    let preempted: usize = each_seed(seeds(300), |seed| {
        let (small, large) = (plans(seed, 1 << 10), plans(seed, 1 << 20));
        assert_eq!(small, large, "seed {seed}");
        small.iter().map(|plan| plan.preempted.len()).sum::<usize>()
    })
    .into_iter()
    .sum();
    assert!(preempted > 100, "{preempted} preempted");
}
