//! Which sequence gets the next step: fairness, classes, bypass, shared prefixes, deadlines, bounds. One scene per
//! test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use headrace_domain::{CacheSalt, PrefixKeys};
use headrace_scheduler::{AddRefusal, Class, ExpiredSequence, Outcome, Scheduler, SchedulerConfig};

mod common;

use common::{config, layout, spec, step};

#[test]
fn one_budget_serves_decodes_first_and_prefill_takes_the_rest() {
    let mut s = Scheduler::new(config(), layout(64)).unwrap();
    let a = s.add(&spec(1, 0, 10, 9), 0).unwrap();
    assert_eq!(step(&mut s, 0), [(a, 10)]);
    let b = s.add(&spec(1, 500, 150, 9), 0).unwrap();
    assert_eq!(step(&mut s, 1), [(a, 1), (b, 63)]);
    assert_eq!(step(&mut s, 2), [(a, 1), (b, 63)]);
    assert_eq!(step(&mut s, 3), [(a, 1), (b, 24)]);
    assert_eq!(step(&mut s, 4), [(a, 1), (b, 1)]);
}

#[test]
fn tenants_take_turns_by_tokens_and_weight() {
    // One running slot, so each admission shows whose turn it is.
    let config = SchedulerConfig { max_running: 1, ..config() };
    for (weights, expected) in [([1, 1], [1, 2, 1, 2, 1, 2]), ([1, 3], [1, 2, 2, 2, 1, 2])] {
        let mut s = Scheduler::new(config.clone(), layout(64)).unwrap();
        let mut owner = std::collections::HashMap::new();
        for tenant in [1, 2] {
            for i in 0..6 {
                let mut job = spec(tenant, i * 100, 30, 0);
                job.weight = weights[tenant as usize - 1];
                owner.insert(s.add(&job, 0).unwrap(), tenant);
            }
        }
        let mut turns = Vec::new();
        for now in 0..6 {
            let id = s.plan(now).chunks[0].seq;
            turns.push(owner[&id]);
            s.commit(&[Outcome::Ended], now);
        }
        assert_eq!(turns, expected, "weights {weights:?}");
    }
}

#[test]
fn a_tenant_that_was_away_has_earned_no_more_than_a_burst() {
    let mut s = Scheduler::new(SchedulerConfig { max_running: 1, ..config() }, layout(64)).unwrap();
    let served = |s: &mut Scheduler| {
        let id = s.plan(0).chunks[0].seq;
        s.commit(&[Outcome::Ended], 0);
        id
    };
    for i in 0..80 {
        s.add(&spec(1, i * 100, 32, 0), 0).unwrap();
    }
    for _ in 0..40 {
        served(&mut s);
    }
    // If it had kept its counter of zero, it would be served forty times in a row now.
    let late: Vec<_> = (0..20).map(|i| s.add(&spec(2, i * 100, 32, 0), 0).unwrap()).collect();
    let turns: Vec<_> = (0..20).map(|_| late.contains(&served(&mut s))).collect();
    // A burst of two steps of 64 tokens is four prompts. From then on the tenants take turns.
    assert_eq!(turns[..4], [true; 4]);
    assert_eq!(turns[4..].iter().filter(|&&t| t).count(), 8, "{turns:?}");
}

#[test]
fn idle_work_gives_way_within_a_step() {
    let mut s = Scheduler::new(SchedulerConfig { max_running: 2, ..config() }, layout(12)).unwrap();
    let mut idle = spec(1, 0, 80, 60);
    idle.class = Class::Idle;
    let a = s.add(&idle, 0).unwrap();
    step(&mut s, 0);
    step(&mut s, 1);
    // It needs more blocks than are left, so the idle sequence loses its own.
    let b = s.add(&spec(2, 900, 150, 20), 2).unwrap();
    assert_eq!(step(&mut s, 2), [(b, 64)]);
    assert_eq!(s.current().preempted, [a]);
    // While normal work waits for a running slot, idle work is not computed, even if budget is left.
    let c = s.add(&spec(2, 2000, 150, 1), 3).unwrap();
    for now in 3..6 {
        assert!(step(&mut s, now).iter().all(|&(id, _)| id == b));
    }
    assert!(s.abort(b));
    assert_eq!(step(&mut s, 7), [(c, 64)]);
    assert!(s.abort(c));
    assert_eq!(step(&mut s, 8).first().map(|&(id, _)| id), Some(a));
}

#[test]
fn a_head_that_does_not_fit_is_passed_a_bounded_number_of_times() {
    let mut s = Scheduler::new(SchedulerConfig { max_bypass: 3, ..config() }, layout(20)).unwrap();
    let big = s.add(&spec(1, 0, 150, 20), 0).unwrap();
    while step(&mut s, 0) != [(big, 1)] {}
    let head = s.add(&spec(1, 1000, 200, 20), 0).unwrap();
    let small: Vec<_> = (0..6).map(|i| s.add(&spec(1, 3000 + i * 100, 5, 1), 0).unwrap()).collect();
    let mut passed = Vec::new();
    for now in 1..10 {
        let plan = s.plan(now).clone();
        passed.extend(plan.chunks.iter().map(|c| c.seq).filter(|id| small.contains(id)));
        let outcome = |id| if small.contains(&id) { Outcome::Ended } else { Outcome::Token(1) };
        let outcomes: Vec<_> = plan.chunks.iter().map(|c| outcome(c.seq)).collect();
        s.commit(&outcomes, now);
        s.check_invariants().unwrap();
    }
    assert_eq!(passed, small[..3], "three may pass, then room is kept for the head");
    assert!(s.abort(big));
    assert_eq!(step(&mut s, 20).first().map(|&(id, _)| id), Some(head));
}

#[test]
fn a_cold_prefix_is_computed_once_for_all_who_share_it() {
    let mut s =
        Scheduler::new(SchedulerConfig { step_tokens: 512, max_chunk: 40, ..config() }, layout(64)).unwrap();
    let mut ids = Vec::new();
    s.add_group(&spec(1, 0, 100, 5), 4, 0, &mut ids).unwrap();
    // Another tenant sends the same prompt and shares nothing.
    let other = s.add(&spec(2, 0, 100, 5), 0).unwrap();
    assert_eq!(step(&mut s, 0), [(ids[0], 40), (other, 40)]);
    assert_eq!(step(&mut s, 1), [(ids[0], 40), (other, 40)]);
    assert_eq!(step(&mut s, 2), [(ids[0], 20), (other, 20)]);
    // 96 of the 100 tokens lie in full blocks.
    let rest = step(&mut s, 3);
    assert_eq!(rest, [(ids[0], 1), (other, 1), (ids[1], 4), (ids[2], 4), (ids[3], 4)]);
    assert!(s.current().started.iter().all(|started| started.cached_tokens == 96));
    assert_eq!(s.load().waiting, 0);
}

#[test]
fn followers_go_on_when_their_leader_is_gone() {
    let mut s = Scheduler::new(SchedulerConfig { max_chunk: 40, ..config() }, layout(64)).unwrap();
    let mut ids = Vec::new();
    s.add_group(&spec(1, 0, 100, 5), 3, 0, &mut ids).unwrap();
    assert_eq!(step(&mut s, 0), [(ids[0], 40)]);
    assert_eq!(s.load().waiting, 2);
    assert!(s.abort(ids[0]));
    assert_eq!(step(&mut s, 1), [(ids[1], 40)], "the next one leads, from what was computed");
    assert_eq!(s.current().started[0].cached_tokens, 32);
}

#[test]
fn nobody_waits_for_the_prefix_of_idle_work() {
    let mut s = Scheduler::new(SchedulerConfig { max_chunk: 40, ..config() }, layout(64)).unwrap();
    let mut idle = spec(1, 0, 200, 5);
    idle.class = Class::Idle;
    let a = s.add(&idle, 0).unwrap();
    assert_eq!(step(&mut s, 0), [(a, 40)]);
    let b = s.add(&spec(1, 0, 200, 5), 0).unwrap();
    assert_eq!(step(&mut s, 1)[0], (b, 40), "from the 32 tokens that were cached");
    // Later sequences wait for the normal one, which is sure to continue.
    s.add(&spec(1, 0, 200, 5), 0).unwrap();
    assert_eq!(step(&mut s, 2), [(b, 40)]);
    assert_eq!(s.load().waiting, 1);
}

#[test]
fn a_group_has_started_when_its_first_has() {
    let mut s = Scheduler::new(SchedulerConfig { max_chunk: 40, ..config() }, layout(64)).unwrap();
    let mut group = spec(1, 0, 200, 5);
    group.start_deadline_ns = Some(10);
    let mut ids = Vec::new();
    s.add_group(&group, 3, 0, &mut ids).unwrap();
    for now in [0, 100, 200, 300, 400] {
        assert_eq!(step(&mut s, now)[0].0, ids[0]);
        assert!(s.current().expired.is_empty());
    }
    assert_eq!(step(&mut s, 500).len(), 3);
}

#[test]
fn work_that_is_too_late_is_dropped_before_prefill() {
    let mut s = Scheduler::new(SchedulerConfig { max_running: 1, ..config() }, layout(64)).unwrap();
    s.add(&spec(1, 0, 30, 50), 0).unwrap();
    step(&mut s, 0);
    let mut late = spec(1, 500, 60, 5);
    late.start_deadline_ns = Some(5_000_000);
    let id = s.add(&late, 1_000_000).unwrap();
    step(&mut s, 5_000_000);
    assert!(s.current().expired.is_empty());
    step(&mut s, 5_000_001);
    assert_eq!(s.current().expired, [ExpiredSequence { seq: id, retry_after_ns: 1_000_000_000 }]);
    assert!(!s.abort(id));
    // 32 tokens took 3 ms, so 640 waiting tokens take longer than this deadline allows.
    s.add(&spec(1, 2000, 640, 5), 6_000_000).unwrap();
    late.start_deadline_ns = Some(20_000_000);
    assert!(
        matches!(s.add(&late, 6_000_000), Err(AddRefusal::TooLate { wait_ns, .. }) if wait_ns > 14_000_000)
    );
}

#[test]
fn what_came_too_late_is_told_how_long_the_queue_still_is() {
    let second = 1_000_000_000;
    let mut s = Scheduler::new(SchedulerConfig { max_running: 1, ..config() }, layout(64)).unwrap();
    let mut late = spec(1, 500, 60, 5);
    late.start_deadline_ns = Some(2 * second);
    // Nothing was measured yet, so nothing is refused.
    s.add(&spec(1, 0, 30, 50), 0).unwrap();
    let id = s.add(&late, 0).unwrap();
    s.add(&spec(1, 1000, 640, 5), 0).unwrap();
    for now in 0..=3 {
        s.plan(now * second);
        s.commit(&[Outcome::Token(1)], (now + 1) * second);
        if now == 2 {
            assert!(s.current().expired.is_empty());
        }
    }
    let [ExpiredSequence { seq, retry_after_ns }] = s.current().expired[..] else {
        panic!("it waited too long")
    };
    assert_eq!(seq, id);
    // Fewer than 35 tokens were computed in three seconds, and 640 still wait.
    assert!(retry_after_ns > 20 * second, "{retry_after_ns}");
}

/// Until its first step has ended, the scheduler knows only the warm-up measurements from `calibrate`.
#[test]
fn a_cold_scheduler_foretells_its_first_wait_as_it_will_be() {
    let millis = |count: u64| count * 1_000_000;
    // Milliseconds per step, prompt token and sequence: memory-bound, compute-bound, and in between.
    for (fixed, token, each) in [(200, 1, 2), (5, 10, 60), (60, 5, 30)] {
        let limits = SchedulerConfig { step_tokens: 512, max_running: 4, queue_sequences: 8, ..config() };
        let mut s = Scheduler::new(limits, layout(64)).unwrap();
        s.calibrate(16, 0, millis(fixed + 16 * token));
        s.calibrate(0, 1, millis(fixed + each));
        s.calibrate(0, 8, millis(fixed + 8 * each));
        let call = |first: u32| spec(1, first * 100, 50, 90);
        (0..4).for_each(|first| assert!(s.add(&call(first), 0).is_ok()));
        assert_eq!(s.plan(0).chunks.len(), 4);
        (4..11).for_each(|first| assert!(s.add(&call(first), 0).is_ok()));
        let refused = s.add(&call(11), 0);
        let Err(AddRefusal::QueueFull { retry_after_ns, .. }) = refused else { panic!("{refused:?}") };
        let mut now = 0;
        while s.add(&call(11), now).is_err() {
            let chunks = s.current().chunks.clone();
            let cost = |len: usize| if len == 1 { each } else { token * len as u64 };
            now += millis(fixed + chunks.iter().map(|chunk| cost(chunk.len)).sum::<u64>());
            let next = |reaches| if reaches { Outcome::Token(1) } else { Outcome::Advanced };
            let outcomes: Vec<_> = chunks.iter().map(|chunk| next(chunk.reaches_end)).collect();
            s.commit(&outcomes, now);
            s.plan(now);
        }
        let ratio = retry_after_ns as f64 / now as f64;
        assert!((0.6..1.6).contains(&ratio), "{fixed} ms a step: forecast {retry_after_ns} for {now}");
    }
}

#[test]
fn what_cannot_be_taken_is_refused_with_the_number_it_hit() {
    let limits = SchedulerConfig { queue_sequences: 3, queue_tokens: 100, context_window: 200, ..config() };
    let mut s = Scheduler::new(limits, layout(10)).unwrap();
    let fits = |needed, limit| AddRefusal::DoesNotFit { needed, limit };
    assert_eq!(s.add(&spec(1, 0, 150, 51), 0), Err(fits(201, 160)));
    assert_eq!(s.add(&spec(1, 0, 150, 12), 0), Err(fits(162, 160)));
    assert!(s.add(&spec(1, 0, 150, 11), 0).is_ok(), "the last token needs no slot; nothing else waits");
    assert!(matches!(s.add(&spec(1, 0, 0, 5), 0), Err(AddRefusal::Invalid { .. })));
    // The last eighth of the tokens is reserved for other tenants.
    let full = s.add(&spec(1, 0, 60, 5), 0);
    assert!(matches!(full, Err(AddRefusal::QueueFull { what: "tokens", limit: 88, .. })), "{full:?}");
    step(&mut s, 0);
    let mut ids = Vec::new();
    assert!(matches!(s.add_group(&spec(1, 0, 9, 5), 4, 0, &mut ids), Err(AddRefusal::Invalid { .. })));
    s.add_group(&spec(1, 0, 9, 5), 2, 0, &mut ids).unwrap();
    let full = s.add_group(&spec(1, 0, 9, 5), 2, 0, &mut ids);
    assert!(
        matches!(full, Err(AddRefusal::QueueFull { what: "sequences", limit: 3, retry_after_ns }) if retry_after_ns >= 1_000_000_000)
    );
    assert_eq!(ids.len(), 2);
    s.check_invariants().unwrap();
}

#[test]
fn preemption_takes_the_youngest_and_resumes_it_first() {
    let mut s = Scheduler::new(config(), layout(10)).unwrap();
    let a = s.add(&spec(1, 0, 60, 90), 0).unwrap();
    step(&mut s, 0);
    let b = s.add(&spec(1, 900, 60, 90), 0).unwrap();
    let c = s.add(&spec(1, 2000, 60, 2), 0).unwrap();
    let mut now = 1;
    while s.current().preempted.is_empty() {
        step(&mut s, now);
        now += 1;
        assert!(now < 200);
    }
    assert_eq!(s.current().preempted, [b]);
    assert!(s.abort(a));
    let next = step(&mut s, now);
    assert_eq!(next[0].0, b, "the victim comes before {c:?}");
    assert!(s.current().started.iter().all(|started| started.seq != b), "it has started already");
}

#[test]
fn a_failed_chunk_leaves_nothing_in_the_cache() {
    let mut s = Scheduler::new(config(), layout(64)).unwrap();
    let job = spec(1, 0, 60, 5);
    for (outcome, cached) in [(Outcome::Failed, 0), (Outcome::Ended, 48)] {
        s.add(&job, 0).unwrap();
        s.plan(0);
        s.commit(&[outcome], 0);
        s.check_invariants().unwrap();
        assert_eq!(s.cached_prefix(&PrefixKeys::of(&job.salt, &job.prompt)), cached);
    }
    let foreign = CacheSalt::derive(&[1; 32], "2", "m", None);
    assert_eq!(s.cached_prefix(&PrefixKeys::of(&foreign, &job.prompt)), 0);
}
