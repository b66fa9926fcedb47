//! Every reason for a cache miss, with the token at which the miss begins. One scene per row.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use headrace_domain::{CacheLife, CacheMiss, CachePin, CacheSalt, MissReason, PrefixKeys};
use headrace_kv_layout::{KvGroup, KvGroupKind, KvLayout};
use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SequenceSpec};

mod common;

use common::{layout, spec_of};

fn spec(tenant: u64, prompt: &[u32]) -> SequenceSpec {
    spec_of(tenant, prompt, 1)
}

/// Computes one sequence to its end. Returns the cached tokens and the reason for a miss.
fn run(s: &mut Scheduler, spec: &SequenceSpec) -> (usize, Option<CacheMiss>) {
    run_at(s, spec, 0)
}

fn run_at(s: &mut Scheduler, spec: &SequenceSpec, now_ns: u64) -> (usize, Option<CacheMiss>) {
    s.add(spec, now_ns).unwrap();
    let mut found = None;
    while !s.is_idle() {
        let plan = s.plan(now_ns).clone();
        found = found.or(plan.started.first().map(|started| (started.cached_tokens, started.miss)));
        let outcome = |reaches| if reaches { Outcome::Ended } else { Outcome::Advanced };
        let outcomes: Vec<_> = plan.chunks.iter().map(|chunk| outcome(chunk.reaches_end)).collect();
        s.commit(&outcomes, 0);
        s.check_invariants().unwrap();
    }
    found.unwrap()
}

fn numbers(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).collect()
}

#[test]
fn each_reason_is_told_with_the_token_where_it_shows() {
    let config = SchedulerConfig::default();
    let mut s = Scheduler::new(config.clone(), layout(64)).unwrap();
    let base = numbers(0, 100);
    assert_eq!(run(&mut s, &spec(1, &base)).1.map(|m| (m.reason, m.token)), Some((MissReason::NeverSeen, 0)));
    let change = |at: usize| {
        let mut changed = base.clone();
        changed[at] = 9999;
        changed
    };
    let scored = SequenceSpec { score_prompt: true, ..spec(1, &base) };
    let longer = [&base[..], &numbers(500, 60)].concat();
    let rows = [
        ("all that can be found is", spec(1, &base), 96, None),
        (
            "a block whose last token must be computed",
            spec(1, &base[..16]),
            0,
            Some((MissReason::BelowBlock, 0, false)),
        ),
        (
            "another token in the third block",
            spec(1, &change(37)),
            32,
            Some((MissReason::Differs, 37, false)),
        ),
        ("at the very beginning", spec(1, &change(0)), 0, Some((MissReason::Differs, 0, false))),
        ("at a block's first token", spec(1, &change(80)), 80, Some((MissReason::Differs, 80, false))),
        ("beyond what was cached", spec(1, &longer), 96, Some((MissReason::NeverSeen, 96, false))),
        ("another tenant asked the same", spec(2, &base), 0, Some((MissReason::NeverSeen, 0, true))),
        ("scored", scored, 0, Some((MissReason::Bypassed, 0, false))),
    ];
    for (what, spec, cached, miss) in rows {
        let found = run(&mut s, &spec);
        assert_eq!(found.0, cached, "{what}");
        assert_eq!(found.1.map(|m| (m.reason, m.token, m.elsewhere)), miss, "{what}");
    }
    let mut off = Scheduler::new(SchedulerConfig { prefix_cache: false, ..config }, layout(64)).unwrap();
    assert_eq!(run(&mut off, &spec(1, &base)).1.map(|m| m.reason), Some(MissReason::Disabled));
}

#[test]
fn the_nearest_of_several_cached_prompts_is_meant() {
    let mut s = Scheduler::new(SchedulerConfig::default(), layout(64)).unwrap();
    let branch = |at: u32| [&numbers(0, at)[..], &numbers(1000 + at, 60 - at)].concat();
    for at in [17, 25, 21] {
        run(&mut s, &spec(1, &branch(at)));
    }
    let found = run(&mut s, &spec(1, &numbers(0, 60)));
    assert_eq!((found.0, found.1.map(|m| (m.reason, m.token))), (16, Some((MissReason::Differs, 25))));
}

#[test]
fn what_lost_its_room_was_evicted() {
    let mut s = Scheduler::new(SchedulerConfig::default(), layout(10)).unwrap();
    let first = spec(1, &numbers(0, 100));
    run(&mut s, &first);
    run(&mut s, &spec(1, &numbers(5000, 150)));
    let found = run(&mut s, &first);
    assert_eq!((found.0, found.1.map(|m| (m.reason, m.token))), (0, Some((MissReason::Evicted, 0))));
}

#[test]
fn what_nobody_asked_for_in_its_lifetime_has_expired() {
    let config = SchedulerConfig { prefix_lifetime_ns: Some(1_000), ..SchedulerConfig::default() };
    let mut s = Scheduler::new(config, layout(64)).unwrap();
    let job = spec(1, &numbers(0, 100));
    let reason = |found: (usize, Option<CacheMiss>)| (found.0, found.1.map(|m| (m.reason, m.token)));
    run_at(&mut s, &job, 0);
    // Each use renews the lifetime.
    for now in [1_000, 2_000] {
        assert_eq!(reason(run_at(&mut s, &job, now)), (96, None), "{now}");
    }
    assert_eq!(reason(run_at(&mut s, &job, 3_001)), (0, Some((MissReason::Expired, 0))));
    assert_eq!(reason(run_at(&mut s, &job, 3_002)), (96, None), "it was computed again");
}

#[test]
fn what_an_aborted_or_failed_sequence_computed_is_not_findable_unless_others_rely_on_it() {
    let config = SchedulerConfig { max_chunk: 32, step_tokens: 64, ..SchedulerConfig::default() };
    for (keep_aborted, fail, steps, expected) in [
        // Aborted in prefill, then in decode.
        (false, false, 2, 0),
        (false, false, 6, 0),
        (true, false, 2, 64),
        (true, false, 6, 96),
        (false, true, 2, 0),
        (true, true, 6, 0),
    ] {
        let mut s = Scheduler::new(SchedulerConfig { keep_aborted, ..config.clone() }, layout(64)).unwrap();
        let job = SequenceSpec { max_new: 50, ..spec(1, &numbers(0, 100)) };
        let keys = PrefixKeys::of(&job.salt, &job.prompt);
        let step = |s: &mut Scheduler| {
            let plan = s.plan(0).clone();
            let next = |reaches| if reaches { Outcome::Token(7) } else { Outcome::Advanced };
            let outcomes: Vec<_> = plan.chunks.iter().map(|chunk| next(chunk.reaches_end)).collect();
            s.commit(&outcomes, 0);
            s.check_invariants().unwrap();
        };
        let id = s.add(&job, 0).unwrap();
        (0..steps).for_each(|_| step(&mut s));
        assert!(if fail { s.fail(id) } else { s.abort(id) });
        s.check_invariants().unwrap();
        assert_eq!(s.cached_prefix(&keys), expected, "keep {keep_aborted}, fail {fail}, {steps} steps");
        let load = s.load();
        assert_eq!((load.blocks.full().free, load.blocks.full().cached), (64, expected / 16));
        // Once another sequence has built on the blocks, they stay findable.
        let id = s.add(&job, 0).unwrap();
        (0..6).for_each(|_| step(&mut s));
        let other = s.add(&job, 0).unwrap();
        step(&mut s);
        assert!(s.abort(other) && s.fail(id));
        assert_eq!(s.cached_prefix(&keys), 96);
    }
}

#[test]
fn keys_of_another_prompt_or_salt_are_passed_over() {
    let mut s = Scheduler::new(SchedulerConfig::default(), layout(64)).unwrap();
    let one = spec(1, &numbers(0, 100));
    run(&mut s, &one);
    let other: Arc<[u32]> = numbers(700, 100).into();
    let foreign = CacheSalt::derive(&[1; 32], "2", "m", None);
    for keys in [PrefixKeys::of(&one.salt, &other), PrefixKeys::of(&foreign, &one.prompt)] {
        let mut asked = SequenceSpec { keys: Some(keys), ..one.clone() };
        assert_eq!(run(&mut s, &asked).0, 96);
        asked.prompt = numbers(900, 100).into();
        assert_eq!(run(&mut s, &asked).0, 0);
        let again = spec(1, &numbers(900, 100));
        assert_eq!(run(&mut s, &again).0, 96, "it was cached under its own keys");
        s = Scheduler::new(SchedulerConfig::default(), layout(64)).unwrap();
        run(&mut s, &one);
    }
    let right = SequenceSpec { keys: Some(PrefixKeys::of(&one.salt, &one.prompt)), ..one };
    assert_eq!(run(&mut s, &right).0, 96);
}

#[test]
fn pins_are_reserved_for_the_blocks_that_a_window_keeps() {
    let window = KvGroup::new(KvGroupKind::Window(40), 64, 1);
    // Of ten pinned blocks, the query behind them sees the last three.
    for (layout, expected) in
        [(KvLayout::single(window), 3), (KvLayout::new(&[KvGroup::full(64, 1), window]), 10)]
    {
        let mut s = Scheduler::new(SchedulerConfig::default(), layout).unwrap();
        let pins = [CachePin { tokens: 160, life: CacheLife::Hour }].into();
        s.add(&SequenceSpec { pins, ..spec(1, &numbers(0, 200)) }, 0).unwrap();
        let pinned = s.plan(0).started[0].pinned;
        assert_eq!((pinned.blocks, pinned.beyond), ([0, expected], 0));
        s.check_invariants().unwrap();
    }
}
