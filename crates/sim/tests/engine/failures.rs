//! A failure of one request ends that request alone, end to end through the step loop. The request gets a clear error,
//! every block is given back, and nothing of it stays in the prefix cache. The other answers keep the same bits.

use std::sync::Arc;

use headrace_domain::Sampling;
use headrace_engine_api::{Job, JobError};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{Fault, Faults, ScriptedForward, ToyVocabulary, Trigger};

use crate::support::{Answer, Bench, Reader, greedy, job, keys, roomy};

const VOCAB: usize = 64;
const POISON: u32 = 63;
const BLOCKS: usize = 96;

fn world() -> (Bench, Faults) {
    let forward = ScriptedForward::new(VOCAB, 512, BLOCKS);
    let faults = forward.faults();
    // Chunks of 32, so that a long prompt takes several steps.
    let limits = SchedulerConfig { max_chunk: 32, ..roomy() };
    (Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[], limits), faults)
}

/// The poison is never sampled: it occurs only in prompts.
fn sampling(max_tokens: u32) -> Sampling {
    Sampling { ignore_eos: true, logit_bias: vec![(POISON, -100.0)], ..greedy(max_tokens) }
}

fn bystanders() -> Vec<Job> {
    (0..4)
        .map(|i| job(&(0..40 + i).map(|j| (i * 13 + j * 5) % 60).collect::<Vec<_>>(), sampling(30)))
        .collect()
}

/// A prompt of 150 tokens that no other job shares, with `last` near its end.
fn victim(last: u32) -> Vec<u32> {
    let mut prompt: Vec<u32> = (0..150).map(|i| (i * 7 + 1) % 60).collect();
    prompt[130] = last;
    prompt
}

fn answers_undisturbed() -> (Vec<Answer>, Answer) {
    let (mut bench, _) = world();
    let readers: Vec<Reader> = bystanders().into_iter().map(|job| bench.submit(job)).collect();
    bench.run();
    let answers = readers.into_iter().map(|mut reader| {
        reader.pump();
        reader.answer
    });
    let answers = answers.collect();
    (answers, bench.ask(job(&victim(POISON), sampling(20))).0)
}

/// Checks the aftermath: the others' bits, free blocks, an empty cache for the victim's prompt, and right answers.
fn check(what: &str, bench: &mut Bench, faults: &Faults, others: Vec<Reader>, prompt: &[u32]) {
    let (expected, expected_victim) = answers_undisturbed();
    for (mut reader, expected) in others.into_iter().zip(&expected) {
        reader.pump();
        assert_eq!(reader.answer, *expected, "{what}: a bystander's answer");
    }
    let load = bench.stepper.load();
    assert_eq!((load.blocks_free, load.running, load.waiting), (BLOCKS as u32, 0, 0), "{what}");
    assert_eq!(bench.stepper.cached_prefix(&keys(0, prompt)), 0, "{what}: something of it is in the cache");
    faults.clear();
    let (again, report) = bench.ask(job(prompt, sampling(20)));
    assert_eq!(report.usage.cached_input, 0, "{what}: the next one finds nothing");
    if prompt == victim(POISON) {
        assert_eq!(again, expected_victim, "{what}: and gets the right answer");
    }
}

#[test]
fn a_panic_an_error_nan_and_infinite_logits_end_their_request_alone() {
    let rows = [
        ("a panic", Fault::Panic),
        ("an error", Fault::Error),
        ("NaN", Fault::NotFinite),
        ("+inf", Fault::Infinite { up: true }),
        ("-inf", Fault::Infinite { up: false }),
    ];
    for (what, fault) in rows {
        let (mut bench, faults) = world();
        faults.add(Trigger::Token(POISON), fault);
        let mut bad = bench.submit(job(&victim(POISON), sampling(20)));
        let others: Vec<Reader> = bystanders().into_iter().map(|job| bench.submit(job)).collect();
        bench.run();
        bad.pump();
        match (fault, bad.answer.error.clone()) {
            (Fault::Panic, Some(JobError::Panicked { .. })) => {}
            (Fault::Error, Some(JobError::Internal { .. })) => {}
            (Fault::NotFinite | Fault::Infinite { .. }, Some(JobError::NotFinite { position })) => {
                assert!((128..160).contains(&position), "{what}: at {position}");
            }
            (_, other) => panic!("{what}: {other:?}"),
        }
        assert!(bad.answer.choices.is_empty(), "{what}: nothing was delivered");
        check(what, &mut bench, &faults, others, &victim(POISON));
    }
}

#[test]
fn a_client_that_goes_away_in_the_queue_in_prefill_or_in_decode_ends_its_request_alone() {
    for (what, steps, silently) in [
        ("in the queue", 0, false),
        ("in prefill", 2, false),
        ("in prefill, without a word", 2, true),
        ("in decode", 12, false),
        ("in decode, without a word", 12, true),
    ] {
        let (mut bench, faults) = world();
        let ticket = bench.stepper.submit(job(&victim(POISON), sampling(200))).unwrap();
        let others: Vec<Reader> = bystanders().into_iter().map(|job| bench.submit(job)).collect();
        for _ in 0..steps {
            bench.step();
        }
        if silently {
            drop(ticket);
        } else {
            let (events, control) = ticket.split();
            drop(control.cancel());
            bench.step();
            let mut reader = Reader::new(events);
            reader.pump();
            assert_eq!(reader.answer.error, Some(JobError::Cancelled), "{what}");
        }
        bench.run();
        check(what, &mut bench, &faults, others, &victim(POISON));
    }
}

#[test]
fn one_choice_that_fails_takes_its_request_and_nobody_else() {
    // The fault comes in a step that the request's choices share with the bystanders. When that step is retried one by
    // one, only the victim's prompt has the poison.
    let (mut bench, faults) = world();
    faults.add(Trigger::Token(POISON), Fault::NotFinite);
    let mut bad = bench.submit(job(&victim(POISON), Sampling { n: 3, ..sampling(20) }));
    let others: Vec<Reader> = bystanders().into_iter().map(|job| bench.submit(job)).collect();
    bench.run();
    bad.pump();
    assert!(matches!(bad.answer.error, Some(JobError::NotFinite { .. })), "{:?}", bad.answer.error);
    check("three choices", &mut bench, &faults, others, &victim(POISON));
}
