//! Readers that read slowly, late or never. The bytes that wait for them are bounded, other jobs are unaffected, and
//! the bits are the same once they resume.

use std::sync::Arc;

use headrace_domain::Sampling;
use headrace_engine::Progress;
use headrace_engine_api::{Job, JobError, JobEvent, Tenant};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{ScriptedForward, ToyVocabulary};

use crate::support::{Bench, greedy, job, roomy, salt};

const BOUND: usize = 8 * 1024;

fn bench(blocks: usize, scheduler: SchedulerConfig) -> Bench {
    Bench::new(Box::new(ScriptedForward::new(64, 512, blocks)), Arc::new(ToyVocabulary), &[], scheduler)
}

fn endless(max_tokens: u32) -> Sampling {
    Sampling { ignore_eos: true, ..greedy(max_tokens) }
}

fn prompt(first: u32) -> Vec<u32> {
    (0..40).map(|i| (first + i * 7) % 64).collect()
}

/// Many choices with many alternatives: about 1,500 bytes per event.
fn greedy_for_memory() -> Job {
    let sampling = Sampling { n: 8, logprobs: Some(20), temperature: 1.0, ..endless(300) };
    Job { unread_bytes: BOUND, ..job(&prompt(1), sampling) }
}

fn other(tenant: u64) -> Job {
    Job { salt: salt(tenant), tenant: Tenant(tenant), ..job(&prompt(tenant as u32), endless(60)) }
}

/// Most bytes that one step can add: one event for each of the eight choices, and `Started`.
fn one_step() -> usize {
    let mut bench = bench(256, roomy());
    let mut reader = bench.submit(Job { unread_bytes: usize::MAX, ..greedy_for_memory() });
    let mut most = 0;
    while reader.report.is_none() {
        bench.step();
        let mut events = 0;
        while let Some(event) = reader.events.try_next() {
            events += event.bytes();
            reader.take(event);
        }
        most = most.max(events);
    }
    most
}

#[test]
fn a_reader_that_never_reads_holds_its_bound_and_the_others_run_at_full_speed() {
    let steps_of_others = |beside: bool| {
        let mut bench = bench(256, roomy());
        let mut never = beside.then(|| bench.submit(greedy_for_memory()));
        // Until the slow job is paused, or there is no job.
        while bench.step() != Progress::Idle {}
        let mut others: Vec<_> = (1..4).map(|tenant| bench.submit(other(tenant))).collect();
        let mut batches = Vec::new();
        while let Progress::Stepped { sequences, .. } = bench.step() {
            batches.push(sequences);
        }
        for reader in &mut others {
            reader.pump();
            assert_eq!(reader.answer.choices[&0].ids.len(), 60);
        }
        let load = bench.stepper.load();
        assert_eq!((load.running, load.waiting, load.paused), (0, 0, if beside { 8 } else { 0 }));
        if let Some(never) = &mut never {
            let unread = never.events.unread_bytes();
            assert!((BOUND..BOUND + one_step()).contains(&unread), "{unread} bytes wait");
            assert!(unread < 300 * 8 * 1500 / 20, "and not all that it asked for");
            // The reader comes back. Every bit is the same as if it had read all along.
            bench.run_unread(std::slice::from_mut(never));
            let expected =
                self::bench(256, roomy()).ask(Job { unread_bytes: usize::MAX, ..greedy_for_memory() });
            assert_eq!(never.answer, expected.0);
            let trace = &never.report.as_ref().unwrap().engine;
            assert!(trace.paused_ns > 0 && trace.paused_ns < trace.decode_ns, "{trace:?}");
        }
        batches
    };
    assert_eq!(steps_of_others(true), steps_of_others(false));
}

#[test]
fn who_stands_still_gives_up_its_blocks_and_goes_on_with_the_same_bits() {
    // Room for two of these jobs; then three others arrive.
    let mut bench = bench(24, roomy());
    let mut readers: Vec<_> =
        (0..2).map(|i| bench.submit(Job { unread_bytes: 1000, ..job(&prompt(i), endless(120)) })).collect();
    while bench.step() != Progress::Idle {}
    assert_eq!(bench.stepper.load().paused, 2);
    let mut others: Vec<_> =
        (2..5).map(|i| bench.submit(Job { unread_bytes: 1000, ..job(&prompt(i), endless(120)) })).collect();
    readers.append(&mut others);
    let rounds = bench.run_unread(&mut readers);
    assert!(rounds > 10, "they stood still {rounds} times");
    let preemptions: u32 = readers.iter().map(|r| r.report.as_ref().unwrap().engine.preemptions).sum();
    assert!(preemptions > 0);
    for (i, reader) in readers.iter().enumerate() {
        let expected = self::bench(64, roomy()).ask(job(&prompt(i as u32), endless(120)));
        assert_eq!(reader.answer, expected.0, "job {i}");
    }
}

/// Without a cache, the other choices overtake the scored one, whose scores must be delivered first.
#[test]
fn answers_that_wait_for_their_prompts_scores_are_bounded_too() {
    let limits = SchedulerConfig { prefix_cache: false, max_score_chunk: 1, ..roomy() };
    let scored = |unread_bytes| {
        let sampling = Sampling { n: 3, prompt_logprobs: Some(2), logprobs: Some(2), ..endless(100) };
        Job { unread_bytes, ..job(&prompt(3), sampling) }
    };
    let mut bench = bench(64, limits.clone());
    let mut reader = bench.submit(scored(2000));
    let mut stood_still = 0;
    while reader.report.is_none() {
        bench.step();
        reader.pump();
        let waits = reader.answer.scores.is_none();
        stood_still += usize::from(waits && bench.stepper.load().paused == 2);
    }
    assert!(stood_still > 20, "the other two stood still in {stood_still} of the 40 steps of the scores");
    let expected = self::bench(64, limits).ask(scored(usize::MAX));
    assert_eq!(reader.answer, expected.0);
}

#[test]
fn who_stands_still_can_be_cancelled_and_may_hang_up_without_a_word() {
    for silently in [false, true] {
        let mut bench = bench(64, roomy());
        let ticket =
            bench.stepper.submit(Job { unread_bytes: 500, ..job(&prompt(1), endless(300)) }).unwrap();
        while bench.step() != Progress::Idle {}
        assert_eq!((bench.stepper.load().paused, bench.stepper.load().blocks_free), (1, 61));
        let (mut events, control) = ticket.split();
        if silently {
            drop(events);
            bench.run();
        } else {
            drop(control.cancel());
            bench.run();
            let last = std::iter::from_fn(|| events.try_next()).last();
            assert!(matches!(last, Some(JobEvent::Failed { error: JobError::Cancelled, .. })), "{last:?}");
        }
        assert_eq!(bench.stepper.load().paused, 0);
    }
}
