//! Paused sequences: what they keep, what they give up, and what other sequences gain. One scene per test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use headrace_scheduler::{Class, Outcome, Scheduler, SchedulerConfig, SeqId};

mod common;

use common::{config, layout, spec, step};

fn sequences(step: &[(SeqId, usize)]) -> Vec<SeqId> {
    step.iter().map(|&(id, _)| id).collect()
}

#[test]
fn what_stands_still_keeps_its_blocks_until_somebody_lacks_them() {
    let mut s = Scheduler::new(config(), layout(12)).unwrap();
    let a = s.add(&spec(1, 0, 60, 60), 0).unwrap();
    assert_eq!(step(&mut s, 0), [(a, 60)]);
    assert!(s.pause(a));
    assert!(s.is_idle(), "nothing is to be computed");
    assert_eq!(step(&mut s, 1), []);
    let load = s.load();
    assert_eq!((load.running, load.paused, load.waiting, load.blocks.full().free), (0, 1, 0, 8));
    assert!(s.resume(a));
    assert_eq!(step(&mut s, 2), [(a, 1)], "nothing is computed twice");

    // A newcomer takes the blocks of the paused sequence only if it does not fit beside them.
    assert!(s.pause(a));
    let b = s.add(&spec(2, 900, 60, 9), 3).unwrap();
    assert_eq!(step(&mut s, 3), [(b, 60)]);
    assert!(s.current().preempted.is_empty());
    let c = s.add(&spec(2, 2000, 64, 9), 4).unwrap();
    assert_eq!(step(&mut s, 4), [(b, 1), (c, 63)]);
    assert_eq!(s.current().preempted, [a], "and not the younger one, whose tenant holds more");
    assert_eq!((s.load().paused, s.load().waiting), (1, 0), "it is no part of the queue");

    // It resumes at the head of its queue, and blocks that the cache has lost are computed again.
    let d = s.add(&spec(1, 3000, 10, 9), 5).unwrap();
    assert!(s.resume(a));
    assert!(s.abort(b) && s.abort(c));
    let next = sequences(&step(&mut s, 5));
    assert_eq!((next[0], next.contains(&d)), (a, true));
    assert!(s.current().started.iter().all(|started| started.seq != a), "it has started already");
}

#[test]
fn what_stands_still_gives_its_place_to_whoever_waits() {
    let mut s = Scheduler::new(SchedulerConfig { max_running: 2, ..config() }, layout(64)).unwrap();
    let a = s.add(&spec(1, 0, 20, 60), 0).unwrap();
    let b = s.add(&spec(1, 500, 20, 60), 0).unwrap();
    assert_eq!(step(&mut s, 0).len(), 2);
    assert!(s.pause(a) && s.pause(b));
    let c = s.add(&spec(1, 1000, 20, 9), 1).unwrap();
    assert_eq!(step(&mut s, 1), [(c, 20)], "even one of the same tenant");
    assert_eq!(s.current().preempted, [b]);
    let mut idle = spec(3, 4000, 20, 9);
    idle.class = Class::Idle;
    let idle = s.add(&idle, 2).unwrap();
    assert_eq!(step(&mut s, 2), [(c, 1), (idle, 20)], "even idle work");
    assert_eq!(s.current().preempted, [a]);
    assert!(s.abort(b), "it can end while it stands aside");
    assert!(s.resume(a));
    assert_eq!(sequences(&step(&mut s, 3)), [c, a]);
    assert_eq!(s.current().preempted, [idle]);
}

#[test]
fn a_waiting_sequence_that_stands_still_blocks_nobody_behind_it() {
    let mut s =
        Scheduler::new(SchedulerConfig { max_running: 1, max_bypass: 0, ..config() }, layout(64)).unwrap();
    let a = s.add(&spec(1, 0, 20, 2), 0).unwrap();
    let b = s.add(&spec(1, 500, 20, 2), 0).unwrap();
    let c = s.add(&spec(1, 900, 20, 2), 0).unwrap();
    assert_eq!(step(&mut s, 0), [(a, 20)]);
    assert!(s.pause(b));
    assert!(s.abort(a));
    assert_eq!(step(&mut s, 1), [(c, 20)]);
    assert!(s.resume(b) && s.abort(c));
    assert_eq!(step(&mut s, 2), [(b, 20)]);
}

#[test]
fn nobody_waits_for_the_prefix_of_what_stands_still() {
    let mut s = Scheduler::new(SchedulerConfig { max_chunk: 40, ..config() }, layout(64)).unwrap();
    let mut ids = Vec::new();
    s.add_group(&spec(1, 0, 200, 5), 2, 0, &mut ids).unwrap();
    assert_eq!(step(&mut s, 0), [(ids[0], 40)]);
    assert_eq!(s.load().waiting, 1, "the second waits for what the first computes");
    assert!(s.pause(ids[0]));
    assert_eq!(step(&mut s, 1), [(ids[1], 40)], "from the 32 tokens that were cached");
    assert_eq!(s.current().started[0].cached_tokens, 32);
    // Once it resumes, newcomers may wait for it again.
    assert!(s.abort(ids[1]) && s.resume(ids[0]));
    s.add(&spec(1, 0, 200, 5), 0).unwrap();
    assert_eq!(step(&mut s, 2), [(ids[0], 40)]);
    assert_eq!(s.load().waiting, 1);
}

/// Tenants whose sequences are all paused have no share. The others divide everything.
#[test]
fn tenants_that_stand_still_leave_the_shares_to_the_others() {
    let mut s = Scheduler::new(SchedulerConfig { max_running: 4, ..config() }, layout(64)).unwrap();
    for tenant in 10..14 {
        let id = s.add(&spec(tenant, 9000 + 100 * tenant as u32, 10, 60), 0).unwrap();
        step(&mut s, 0);
        assert!(s.pause(id));
    }
    let first: Vec<_> = (0..4).map(|i| s.add(&spec(1, 100 * i, 10, 60), 0).unwrap()).collect();
    assert_eq!(sequences(&step(&mut s, 1)), first);
    let second: Vec<_> = (20..24).map(|i| s.add(&spec(2, 100 * i, 10, 60), 0).unwrap()).collect();
    step(&mut s, 2);
    let now = sequences(&step(&mut s, 3));
    let of = |ids: &[SeqId]| now.iter().filter(|id| ids.contains(id)).count();
    assert_eq!((of(&first), of(&second)), (2, 2), "half of the places each");
}

/// Like a tenant that was away: it has earned a burst and no more.
#[test]
fn a_tenant_that_stood_still_has_earned_no_more_than_a_burst() {
    let mut s = Scheduler::new(SchedulerConfig { max_running: 1, ..config() }, layout(64)).unwrap();
    let served = |s: &mut Scheduler| {
        let id = s.plan(0).chunks[0].seq;
        s.commit(&[Outcome::Ended], 0);
        id
    };
    let still: Vec<_> = (0..20).map(|i| s.add(&spec(2, 5000 + i * 100, 32, 0), 0).unwrap()).collect();
    assert!(still.iter().all(|&id| s.pause(id)));
    for i in 0..80 {
        s.add(&spec(1, i * 50, 32, 0), 0).unwrap();
    }
    for _ in 0..40 {
        served(&mut s);
    }
    assert!(still.iter().rev().all(|&id| s.resume(id)));
    let turns: Vec<_> = (0..20).map(|_| still.contains(&served(&mut s))).collect();
    assert_eq!(turns[..4], [true; 4]);
    assert_eq!(turns[4..].iter().filter(|&&t| t).count(), 8, "{turns:?}");
}

#[test]
fn a_chunk_without_a_token_computes_its_last_position_again() {
    let mut s = Scheduler::new(config(), layout(12)).unwrap();
    let a = s.add(&spec(1, 0, 60, 60), 0).unwrap();
    s.plan(0);
    s.commit(&[Outcome::Repeat], 1);
    assert!(s.pause(a));
    assert_eq!(step(&mut s, 1), []);
    assert!(s.resume(a));
    s.check_invariants().unwrap();
    assert_eq!(step(&mut s, 2), [(a, 1)], "and nothing else of the prompt");
}

#[test]
fn what_follows_a_sequence_that_gave_up_its_blocks_is_computed_with_it() {
    let mut s = Scheduler::new(config(), layout(6)).unwrap();
    let a = s.add(&spec(1, 0, 60, 20), 0).unwrap();
    assert_eq!(step(&mut s, 0), [(a, 60)]);
    assert!(s.pause(a));
    let b = s.add(&spec(2, 900, 60, 9), 1).unwrap();
    assert_eq!(step(&mut s, 1).first(), Some(&(b, 60)));
    assert_eq!(s.current().preempted, [a]);
    assert!(s.append(a, &[7, 8, 9]));
    s.check_invariants().unwrap();
    assert!(s.abort(b) && s.resume(a));
    s.check_invariants().unwrap();
    assert_eq!(s.load().waiting_tokens, 64, "the prompt, a token, and three behind it");
    step(&mut s, 2);
    s.check_invariants().unwrap();
    assert!(s.end(a) && !s.end(a));
}
