//! Shared prompts through the step loop. A cold prefix is computed once for all jobs that share it, and keys sent with
//! a job change nothing. A warm-up leaves nothing behind, and each report says why its prompt missed.

use std::sync::Arc;

use headrace_domain::{CacheLife, CacheMiss, CachePin, HeldPrefix, MissReason, RequestId, Sampling};
use headrace_engine_api::{Job, Tenant};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{Computed, ScriptedForward, ToyVocabulary};

use crate::support::{Bench, Reader, greedy, job, keys, roomy, salt};

const PREFIX: usize = 448;
const USERS: u32 = 16;

fn world(scheduler: SchedulerConfig) -> (Bench, Computed) {
    let forward = ScriptedForward::new(64, 1024, 1024);
    let computed = forward.computed();
    (Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[], scheduler), computed)
}

/// The shared prefix, then a question of 64 tokens that depends on the user.
fn prompt(user: u32) -> Vec<u32> {
    let shared = (0..PREFIX as u32).map(|i| i * 11 % 64);
    shared.chain((0..64).map(|i| (user * 17 + i * 3 + 1) % 64)).collect()
}

fn sampling(max_tokens: u32) -> Sampling {
    Sampling { ignore_eos: true, ..greedy(max_tokens) }
}

#[test]
fn sixteen_users_with_one_cold_prefix_compute_it_once() {
    let limits = SchedulerConfig { context_window: 1024, step_tokens: 256, max_chunk: 128, ..roomy() };
    // (name, steps between arrivals, whether the first job is dropped and after how many steps)
    let rows: [(&str, usize, Option<usize>); 5] = [
        ("all at once", 0, None),
        ("one a step", 1, None),
        ("all at once, the first goes away midway", 0, Some(2)),
        ("one a step, the first goes away midway", 1, Some(2)),
        ("all at once, the first goes away in the queue", 0, Some(0)),
    ];
    let mut expected = Vec::new();
    for user in 0..USERS {
        expected.push(world(limits.clone()).0.ask(job(&prompt(user), sampling(8))).0);
    }
    for (what, pause, leaves) in rows {
        let (mut bench, computed) = world(limits.clone());
        let (first, control) = bench.stepper.submit(job(&prompt(0), sampling(8))).unwrap().split();
        let (mut readers, mut leaving) = (vec![Reader::new(first)], Some(control));
        let mut steps = 0;
        for user in 1..USERS {
            for _ in 0..pause {
                bench.step();
                steps += 1;
            }
            readers.push(bench.submit(job(&prompt(user), sampling(8))));
            if leaves == Some(steps) && pause > 0 {
                drop(leaving.take().map(|control| control.cancel()));
            }
        }
        while let Some(at) = leaves.filter(|_| leaving.is_some()) {
            if steps >= at {
                drop(leaving.take().map(|control| control.cancel()));
            } else {
                bench.step();
                steps += 1;
            }
        }
        bench.run();
        let mut questions = 0;
        for (user, reader) in readers.iter_mut().enumerate() {
            reader.pump();
            if user > 0 || leaves.is_none() {
                assert_eq!(reader.answer, expected[user], "{what}: user {user}");
                questions += 1;
            }
        }
        // Eight generated tokens. The last one is never an input.
        let own = questions * (64 + 7);
        let total = computed.tokens();
        assert_eq!(total, PREFIX as u64 + own, "{what}: {total} tokens computed");
    }
}

#[test]
fn keys_that_travel_with_a_job_change_nothing_but_who_hashes() {
    let limits = SchedulerConfig { context_window: 1024, ..roomy() };
    let (mut bench, _) = world(limits);
    let plain = job(&prompt(1), sampling(8));
    let first = bench.ask(plain.clone());
    let given =
        Job { keys: Some(headrace_domain::PrefixKeys::of(&plain.salt, &plain.prompt)), ..plain.clone() };
    let second = bench.ask(given);
    assert_eq!((first.0, second.1.usage.cached_input), (second.0.clone(), 496));
    // Keys of another prompt are ignored.
    let foreign = Job { keys: Some(keys(0, &prompt(2))), ..plain };
    assert_eq!(bench.ask(foreign).0, second.0);
}

#[test]
fn a_warm_up_leaves_nothing_behind() {
    let limits = SchedulerConfig { context_window: 1024, ..roomy() };
    let expected = world(limits.clone()).0.ask(job(&[0; 48], sampling(8))).0;
    let (mut bench, computed) = world(limits);
    bench.stepper.warm_up().unwrap();
    assert_eq!(computed.tokens(), 41, "a short prompt, one token after it and one of each of eight");
    assert_eq!(bench.stepper.cached_prefix(&keys(0, &[0; 48])), 0);
    let load = bench.stepper.load();
    assert_eq!((load.blocks_free, load.blocks_cached, load.step_ns), (load.blocks_total, 0, 0));
    let (answer, report) = bench.ask(job(&[0; 48], sampling(8)));
    assert_eq!((answer, report.usage.cached_input), (expected, 0));
}

#[test]
fn a_report_says_why_its_prompt_missed() {
    let (mut bench, _) = world(SchedulerConfig { context_window: 1024, ..roomy() });
    let base = prompt(1);
    let mut changed = base.clone();
    changed[300] = 63 - changed[300];
    let elsewhere = Job { salt: salt(7), tenant: Tenant(7), ..job(&base, sampling(2)) };
    let scored = Sampling { prompt_logprobs: Some(0), ..sampling(2) };
    let miss =
        |reason, token, elsewhere| Some(CacheMiss { reason, token, elsewhere, place: None, other: None });
    let differs =
        miss(MissReason::Differs, 300, false).map(|miss| CacheMiss { other: Some(base[300]), ..miss });
    let rows = [
        ("cold", job(&base, sampling(2)), miss(MissReason::NeverSeen, 0, false)),
        ("the same again", job(&base, sampling(2)), None),
        ("one token differs", job(&changed, sampling(2)), differs),
        ("another tenant", elsewhere, miss(MissReason::NeverSeen, 0, true)),
        ("short", job(&base[..9], sampling(2)), miss(MissReason::BelowBlock, 0, false)),
        ("one block", job(&base[..16], sampling(2)), miss(MissReason::BelowBlock, 0, false)),
        ("scored", job(&base, scored), miss(MissReason::Bypassed, 0, false)),
    ];
    for (what, job, expected) in rows {
        let (_, report) = bench.ask(job);
        let (found, all) = (report.engine.cached_blocks, report.engine.prompt_blocks);
        assert_eq!(
            found == all,
            matches!(what, "the same again" | "short" | "one block"),
            "{what}: {found} of {all}"
        );
        assert_eq!(report.engine.miss, expected, "{what}");
    }
}

/// Pinned blocks are reported as cache writes, once and by lifetime. Blocks beyond the tenant's share are reported as
/// unpinned.
#[test]
fn what_a_call_has_kept_is_told_to_the_block() {
    let limits = SchedulerConfig { context_window: 1024, pinned_percent_of_one: 10, ..roomy() };
    let (mut bench, _) = world(limits);
    let share = bench.stepper.load().blocks_total / 10;
    let base = prompt(1);
    let wish = |pins: &[(u32, CacheLife)]| {
        let pins = pins.iter().map(|&(tokens, life)| CachePin { tokens, life }).collect();
        Job { pins, ..job(&base, sampling(2)) }
    };
    let (minutes, hour) = (CacheLife::Minutes, CacheLife::Hour);
    let (plain, _) = bench.ask(Job { salt: salt(9), tenant: Tenant(9), ..job(&base, sampling(2)) });
    let (answer, report) = bench.ask(wish(&[(40, hour), (100, minutes)]));
    assert_eq!(answer, plain, "what is kept changes no answer");
    let usage = report.usage;
    // Whole blocks: two for an hour, and the four after them.
    assert_eq!((usage.cache_write_1h, usage.cache_write, usage.cached_input), (32, 64, 0));
    assert_eq!(usage.prompt_tokens(), base.len() as u64);
    assert_eq!((report.engine.pinned_blocks, report.engine.unpinned_blocks), (6, 0));
    let (_, again) = bench.ask(wish(&[(40, hour), (100, minutes)]));
    assert_eq!((again.usage.cache_writes(), again.engine.pinned_blocks), (0, 0), "it is there already");
    let (_, more) = bench.ask(Job { salt: salt(5), ..wish(&[(base.len() as u32, minutes)]) });
    let whole = base.len() as u32 / 16;
    assert_eq!(more.engine.pinned_blocks + 6, share.min(6 + whole));
    assert_eq!(more.engine.pinned_blocks + more.engine.unpinned_blocks, whole);
    assert_eq!(more.usage.cache_write, u64::from(more.engine.pinned_blocks) * 16);
}

/// What a call holds outlives a flood of other prompts, costs no one anything, and is gone when the call releases it,
/// even if its job still runs.
#[test]
fn what_a_call_holds_stays_until_the_call_releases_it() {
    let limits = SchedulerConfig { context_window: 1024, ..roomy() };
    let base = prompt(1);
    let held = HeldPrefix { owner: RequestId::from_bits(7), tokens: base.len() as u32 };
    let whole = base.len() / 16;
    for (holds, releases, kept) in [(true, false, true), (true, true, false), (false, false, false)] {
        let (mut bench, _) = world(limits.clone());
        let first = Job { held: holds.then_some(held), ..job(&base, sampling(2)) };
        let (plain, _) = bench.ask(Job { salt: salt(9), tenant: Tenant(9), ..job(&base, sampling(2)) });
        let (answer, report) = bench.ask(first.clone());
        assert_eq!(answer, plain, "what is held changes no answer");
        assert_eq!((report.usage.cache_writes(), report.engine.pinned_blocks), (0, 0), "no one asked for it");
        assert_eq!(bench.stepper.pinned_blocks(), if holds { whole } else { 0 });
        // A second round of the same call holds the same blocks once.
        bench.ask(first);
        assert_eq!(bench.stepper.pinned_blocks(), if holds { whole } else { 0 });
        if releases {
            bench.stepper.release_pins(held.owner);
            assert_eq!(bench.stepper.pinned_blocks(), 0);
        }
        for user in 20..60 {
            let flood: Vec<u32> = (0..500).map(|i| (user * 29 + i * 7) % 64).collect();
            bench.ask(Job { salt: salt(3), tenant: Tenant(3), ..job(&flood, sampling(2)) });
        }
        let (_, again) = bench.ask(job(&base, sampling(2)));
        let found = again.usage.cached_input as usize;
        assert_eq!(found >= base.len() - 16, kept, "{found} of {}", base.len());
        bench.stepper.release_pins(held.owner);
        assert_eq!(bench.stepper.pinned_blocks(), 0, "at its baseline");
    }
}

#[test]
fn a_call_that_releases_early_holds_nothing_of_a_job_that_still_runs() {
    let limits = SchedulerConfig { context_window: 1024, step_tokens: 64, max_chunk: 64, ..roomy() };
    let base = prompt(1);
    let held = HeldPrefix { owner: RequestId::from_bits(7), tokens: base.len() as u32 };
    for steps in [0, 1, 3, 20] {
        let (mut bench, _) = world(limits.clone());
        let mut reader = bench.submit(Job { held: Some(held), ..job(&base, sampling(4)) });
        for _ in 0..steps {
            bench.step();
        }
        bench.stepper.release_pins(held.owner);
        assert_eq!(bench.stepper.pinned_blocks(), 0, "after {steps} steps");
        bench.run();
        reader.pump();
        assert!(reader.report.is_some(), "the job itself goes on");
        assert_eq!(bench.stepper.pinned_blocks(), 0, "after {steps} steps");
    }
}
