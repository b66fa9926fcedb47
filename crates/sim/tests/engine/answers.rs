//! The engine's answer to each parameter, on a model whose tokens are all known in advance. One scene per test.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::support::{Bench, Reader, greedy, job, keys, roomy};
use headrace_domain::{FinishReason, Sampling, Seed};
use headrace_engine_api::{JobError, SubmitRefusal};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{Fault, ScriptedForward, ToyVocabulary, Trigger};

const VOCAB: usize = 64;
/// Text pieces repeat every 16 ids; this id has the text "c".
const EOS: u32 = 5;

fn bench(scheduler: SchedulerConfig) -> Bench {
    Bench::new(Box::new(ScriptedForward::new(VOCAB, 512, 64)), Arc::new(ToyVocabulary), &[EOS], scheduler)
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| i * 7 % 64).collect()
}

#[test]
fn lengths_stops_and_what_is_delivered() {
    let mut bench = bench(roomy());
    let free = Sampling { ignore_eos: true, ..greedy(40) };
    let (whole, report) = bench.ask(job(&prompt(20), free.clone()));
    let whole = &whole.choices[&0];
    assert_eq!((whole.ids.len(), &whole.reason), (40, &Some(FinishReason::Length)));
    assert_eq!((report.usage.input, report.usage.cached_input, report.usage.output), (20, 0, 40));
    assert_eq!((report.engine.steps, report.engine.prefill_chunks, report.engine.prompt_blocks), (40, 1, 1));
    assert_eq!((report.engine.batch_min, report.engine.batch_max, report.engine.batch_sum), (1, 1, 40));

    // A stop id from the caller: it is in the ids, not in the text.
    let stop_id = whole.ids[10];
    let first = whole.ids.iter().position(|&id| id == stop_id).unwrap();
    let (cut, report) =
        bench.ask(job(&prompt(20), Sampling { stop_token_ids: vec![stop_id], ..free.clone() }));
    let cut = &cut.choices[&0];
    assert_eq!((&cut.ids[..], &cut.reason), (&whole.ids[..=first], &Some(FinishReason::Stop)));
    assert!(whole.text.starts_with(cut.text.trim_end_matches(char::REPLACEMENT_CHARACTER)));
    assert_eq!(report.usage.output, first as u64 + 1);
    assert_eq!(report.usage.cached_input, 16, "the first block is in the cache now");

    // Not before `min_tokens`: stop ids are suppressed until then, so the answer differs from the first one.
    let min = Sampling { stop_token_ids: vec![stop_id], min_tokens: 30, ..free.clone() };
    let (kept, _) = bench.ask(job(&prompt(20), min));
    assert!(!kept.choices[&0].ids[..30].contains(&stop_id));

    // The text ends before the stop string, wherever the tokens end.
    let stop: String = whole.text.chars().skip(8).take(3).collect();
    let at = whole.text.find(&stop).unwrap();
    let (cut, _) =
        bench.ask(job(&prompt(20), Sampling { stop: vec!["never".into(), stop.clone()], ..free.clone() }));
    let cut = &cut.choices[&0];
    assert_eq!(
        (&cut.text[..], &cut.reason),
        (&whole.text[..at], &Some(FinishReason::StopString { matched: stop.clone() }))
    );
    assert_eq!(cut.ids[..], whole.ids[..cut.ids.len()]);

    // A stop string that only begins to match at the end stays in the text.
    let tail: String = whole.text.chars().rev().take(2).collect::<Vec<_>>().into_iter().rev().collect();
    if whole.text.find(&tail).unwrap() + tail.len() == whole.text.len() {
        let (held, _) = bench.ask(job(&prompt(20), Sampling { stop: vec![tail + "~"], ..free.clone() }));
        assert_eq!(held.choices[&0].text, whole.text);
    }

    // A stop string within the first `min_tokens` ids does not count.
    let (kept, _) = bench.ask(job(&prompt(20), Sampling { stop: vec![stop], min_tokens: 39, ..free }));
    assert_eq!(kept.choices[&0].ids.len(), 40);
}

#[test]
fn eos_ends_unless_ignored() {
    let mut bench = bench(roomy());
    // Biased, so that the end comes at once.
    let eos_now = Sampling { logit_bias: vec![(EOS, 100.0)], ..greedy(9) };
    let (answer, _) = bench.ask(job(&prompt(5), eos_now.clone()));
    let choice = &answer.choices[&0];
    assert_eq!(
        (&choice.ids[..], &choice.text[..], &choice.reason),
        (&[EOS][..], "", &Some(FinishReason::Stop))
    );
    let (answer, _) = bench.ask(job(&prompt(5), Sampling { ignore_eos: true, ..eos_now.clone() }));
    let choice = &answer.choices[&0];
    assert_eq!(
        (&choice.ids[..], &choice.text[..], &choice.reason),
        (&[EOS; 9][..], "ccccccccc", &Some(FinishReason::Length))
    );
    let (answer, _) = bench.ask(job(&prompt(5), Sampling { min_tokens: 4, ..eos_now }));
    assert_eq!(answer.choices[&0].ids.iter().position(|&id| id == EOS), Some(4), "suppressed four times");
}

#[test]
fn the_context_ends_the_answer() {
    let mut bench = bench(SchedulerConfig { context_window: 32, ..roomy() });
    let free = |max_tokens| Sampling { ignore_eos: true, ..greedy(max_tokens) };
    let (answer, _) = bench.ask(job(&prompt(20), free(12)));
    assert_eq!((answer.choices[&0].ids.len(), &answer.choices[&0].reason), (12, &Some(FinishReason::Length)));
    let refused = bench.stepper.submit(job(&prompt(20), free(13))).err();
    assert_eq!(refused, Some(SubmitRefusal::DoesNotFit { needed: 33, limit: 32 }));
}

#[test]
fn several_choices_share_one_prompt() {
    let mut bench = bench(roomy());
    let sampling = Sampling { n: 4, temperature: 1.0, seed: Seed(9), ignore_eos: true, ..greedy(12) };
    let (four, report) = bench.ask(job(&prompt(100), sampling.clone()));
    assert_eq!(four.choices.len(), 4);
    assert_ne!(four.choices[&0].ids, four.choices[&1].ids);
    assert_eq!((report.usage.input, report.usage.cached_input, report.usage.output), (100, 0, 48));
    assert_eq!((report.engine.cached_blocks, report.engine.prompt_blocks), (0, 6));
    // Choice 2 alone is the same: its random numbers depend only on the seed and the choice's number.
    let alone =
        headrace_engine_api::Job { first_choice: 2, ..job(&prompt(100), Sampling { n: 1, ..sampling }) };
    let (one, report) = bench.ask(alone);
    assert_eq!(one.choices[&2], four.choices[&2]);
    assert_eq!((report.usage.input, report.usage.cached_input), (4, 96));
}

#[test]
fn log_probabilities_are_of_the_raw_distribution() {
    let mut bench = bench(roomy());
    let sampling =
        Sampling { logprobs: Some(20), prompt_logprobs: Some(3), n: 2, ignore_eos: true, ..greedy(6) };
    let (plain, _) = bench.ask(job(&prompt(70), sampling.clone()));
    let scores = plain.scores.clone().unwrap().tokens;
    assert_eq!(scores.iter().map(|s| s.id).collect::<Vec<_>>(), prompt(70));
    assert_eq!((scores[0].logprob, scores[0].top.len()), (None, 0));
    assert!(scores[1..].iter().all(|s| s.logprob.is_some() && s.top.len() == 3));
    for choice in plain.choices.values() {
        assert_eq!(choice.logprobs.len(), choice.ids.len());
        for (token, id) in choice.logprobs.iter().zip(&choice.ids) {
            assert_eq!((token.id, token.top.len()), (*id, 20));
            assert_eq!(token.top[0].id, *id, "greedy takes the best");
            assert_eq!(Some(token.top[0].logprob), token.logprob);
            let mass: f64 = token.top.iter().map(|t| f64::from(t.logprob).exp()).sum();
            assert!(mass < 1.0 + 1e-6 && token.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        }
    }
    // Temperature and bias do not change the scores. Neither does a warm cache, which scoring bypasses.
    let hot =
        Sampling { temperature: 0.7, logit_bias: vec![(plain.choices[&0].ids[0], 100.0)], n: 1, ..sampling };
    let (hot, report) = bench.ask(job(&prompt(70), hot));
    assert_eq!(hot.scores, plain.scores);
    assert_eq!(hot.choices[&0].logprobs[0], plain.choices[&0].logprobs[0]);
    assert_eq!((report.usage.input, report.usage.cached_input), (70, 0));
}

#[test]
fn scoring_alone_generates_nothing() {
    let mut bench = bench(roomy());
    for len in [1, 2, 16, 17, 90] {
        let (answer, report) =
            bench.ask(job(&prompt(len), Sampling { prompt_logprobs: Some(0), ..greedy(0) }));
        let choice = &answer.choices[&0];
        assert_eq!(
            (choice.ids.len(), &choice.text[..], &choice.reason),
            (0, "", &Some(FinishReason::Length))
        );
        assert_eq!(answer.scores.unwrap().tokens.len(), len as usize);
        assert_eq!((report.usage.input, report.usage.output), (u64::from(len), 0));
    }
    let (answer, _) = bench.ask(job(&prompt(9), greedy(0)));
    assert_eq!((answer.scores, &answer.choices[&0].reason), (None, &Some(FinishReason::Length)));
}

#[test]
fn penalties_and_filters_reach_the_sampler() {
    let mut bench = bench(roomy());
    let base = Sampling { ignore_eos: true, temperature: 1.5, seed: Seed(3), ..greedy(60) };
    let (free, _) = bench.ask(job(&prompt(10), base.clone()));
    let repeats = |ids: &[u32]| ids.len() - ids.iter().collect::<std::collections::HashSet<_>>().len();
    let penalised = Sampling { presence_penalty: 2.0, frequency_penalty: 2.0, ..base.clone() };
    let (varied, _) = bench.ask(job(&prompt(10), penalised));
    assert!(repeats(&varied.choices[&0].ids) < repeats(&free.choices[&0].ids));
    let (top, _) = bench.ask(job(&prompt(10), Sampling { top_k: NonZeroU32::new(1), ..base.clone() }));
    let (best, _) = bench.ask(job(&prompt(10), Sampling { temperature: 0.0, ..base }));
    assert_eq!(top, best);
}

#[test]
fn bad_values_are_refused_by_name() {
    let bench = bench(roomy());
    let set = |change: fn(&mut Sampling)| {
        let mut sampling = greedy(4);
        change(&mut sampling);
        sampling
    };
    type Change = fn(&mut Sampling);
    let rows: [(&str, Change); 12] = [
        ("temperature", |s| s.temperature = f32::NAN),
        ("temperature", |s| s.temperature = -1.0),
        ("top_p", |s| s.top_p = 0.0),
        ("min_p", |s| s.min_p = 1.5),
        ("frequency_penalty", |s| s.frequency_penalty = f32::INFINITY),
        ("repetition_penalty", |s| s.repetition_penalty = 0.0),
        ("logit_bias", |s| s.logit_bias = vec![(64, 1.0)]),
        ("logit_bias", |s| s.logit_bias = vec![(1, f32::NAN)]),
        ("logprobs", |s| s.logprobs = Some(21)),
        ("stop", |s| s.stop = vec![String::new()]),
        ("n = 0", |s| s.n = 0),
        ("n = 1000000", |s| s.n = 1_000_000),
    ];
    for (name, change) in rows {
        match bench.stepper.submit(job(&prompt(4), set(change))).err() {
            Some(SubmitRefusal::Invalid { what }) => assert!(what.contains(name), "{what}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(matches!(bench.stepper.submit(job(&[64], greedy(1))).err(), Some(SubmitRefusal::Invalid { .. })));
    assert!(matches!(bench.stepper.submit(job(&[], greedy(1))).err(), Some(SubmitRefusal::Invalid { .. })));
    assert_eq!(bench.stepper.load().waiting, 0);
}

#[test]
fn cancelling_frees_blocks_within_a_step_and_says_what_was_taken() {
    let mut bench = bench(SchedulerConfig { max_chunk: 32, ..roomy() });
    for (steps, input, output) in [(0, 0, 0), (1, 32, 0), (4, 100, 1), (9, 100, 6)] {
        let unlike: Vec<u32> = prompt(100).iter().map(|id| (id + steps + 1) % 64).collect();
        let ticket =
            bench.stepper.submit(job(&unlike, Sampling { ignore_eos: true, ..greedy(300) })).unwrap();
        let (events, control) = ticket.split();
        for _ in 0..steps {
            bench.step();
        }
        let receipt = control.cancel();
        bench.step();
        let load = bench.stepper.load();
        assert_eq!((load.blocks_free, load.running, load.waiting), (load.blocks_total, 0, 0));
        let mut reader = Reader::new(events);
        reader.pump();
        assert_eq!(reader.answer.error, Some(JobError::Cancelled));
        let usage = reader.report.clone().unwrap().usage;
        assert_eq!((usage.input, usage.output), (input, output), "after {steps} steps");
        let received =
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(receipt.report());
        assert_eq!(Some(received), reader.report);
    }
    // A reader that is dropped without a cancel counts as a cancel.
    drop(bench.submit(job(&prompt(100), greedy(300))));
    bench.step();
    assert_eq!(bench.stepper.load().running, 0);
}

#[test]
fn a_panic_or_nan_ends_one_job_and_the_next_answer_is_right() {
    const POISON: u32 = 63;
    let clean: Vec<u32> = (0..50).map(|i| i % 60).collect();
    let avoid =
        |max_tokens| Sampling { ignore_eos: true, logit_bias: vec![(POISON, -100.0)], ..greedy(max_tokens) };
    let expected = bench(roomy()).ask(job(&clean, avoid(20))).0;
    for fault in [Fault::Panic, Fault::NotFinite, Fault::Error] {
        let forward = ScriptedForward::new(VOCAB, 512, 64);
        forward.faults().add(Trigger::Token(POISON), fault);
        // Also one fault for the whole batch. Every job in it survives that.
        if fault != Fault::NotFinite {
            forward.faults().add(Trigger::Call(9), fault);
        }
        let mut bench = Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], roomy());
        let mut poisoned = clean.clone();
        poisoned[40] = POISON;
        let mut good: Vec<_> = (0..3).map(|_| bench.submit(job(&clean, avoid(20)))).collect();
        let mut bad = bench.submit(job(&poisoned, avoid(20)));
        good.push(bench.submit(job(&clean, avoid(20))));
        bench.run();
        bad.pump();
        match (fault, bad.answer.error) {
            (Fault::Panic, Some(JobError::Panicked { detail })) => assert_eq!(detail, "a scripted panic"),
            (Fault::NotFinite, Some(JobError::NotFinite { position })) => assert_eq!(position, 49),
            (Fault::Error, Some(JobError::Internal { detail })) => assert!(detail.contains("scripted error")),
            other => panic!("{other:?}"),
        }
        for reader in &mut good {
            reader.pump();
            assert_eq!(reader.answer, expected, "{fault:?}");
        }
        assert_eq!(
            bench.stepper.cached_prefix(&keys(0, &poisoned)),
            32,
            "the good ones' prefix alone is cached"
        );
        let again = bench.ask(job(&clean, avoid(20)));
        assert_eq!((again.0, again.1.usage.cached_input), (expected.clone(), 48));
    }
}

#[test]
fn no_block_behind_a_nan_is_ever_shared() {
    // The NaN is in an inner chunk of the prompt, whose logits no job needs.
    let forward = ScriptedForward::new(VOCAB, 512, 64);
    let faults = forward.faults();
    faults.add(Trigger::Token(63), Fault::NotFinite);
    let limits = SchedulerConfig { max_chunk: 32, ..roomy() };
    let mut bench = Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], limits);
    let mut poisoned: Vec<u32> = (0..200).map(|i| i % 60).collect();
    poisoned[70] = 63;
    let (answer, report) = bench.ask(job(&poisoned, greedy(5)));
    assert_eq!(answer.error, Some(JobError::NotFinite { position: 95 }));
    assert_eq!(report.usage.input, 64);
    assert_eq!(bench.stepper.cached_prefix(&keys(0, &poisoned)), 0, "not even what was right");
    faults.clear();
    let free = Sampling { ignore_eos: true, ..greedy(5) };
    let healed = bench.ask(job(&poisoned, free.clone()));
    assert_eq!((healed.0.error.is_none(), healed.1.usage.cached_input), (true, 0));
    let fresh =
        Bench::new(Box::new(ScriptedForward::new(VOCAB, 512, 64)), Arc::new(ToyVocabulary), &[EOS], roomy())
            .ask(job(&poisoned, free));
    assert_eq!(healed.0, fresh.0);
}

#[test]
fn a_job_that_generates_nothing_fails_on_a_nan_too() {
    for prefix_cache in [true, false] {
        let forward = ScriptedForward::new(VOCAB, 512, 64);
        forward.faults().add(Trigger::Token(63), Fault::NotFinite);
        let limits = SchedulerConfig { prefix_cache, max_chunk: 32, ..roomy() };
        let mut bench = Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], limits);
        let (answer, _) = bench.ask(job(&[1, 63, 2, 3], greedy(0)));
        assert_eq!(answer.error, Some(JobError::NotFinite { position: 3 }), "cache {prefix_cache}");
    }
}

#[test]
fn expired_work_is_never_computed() {
    let mut bench = bench(SchedulerConfig { max_running: 1, ..roomy() });
    let mut first = bench.submit(job(&prompt(20), Sampling { ignore_eos: true, ..greedy(30) }));
    let late = headrace_engine_api::Job { start_deadline_ns: Some(3_000_000), ..job(&prompt(50), greedy(5)) };
    let mut late = bench.submit(late);
    bench.run();
    first.pump();
    late.pump();
    assert!(!late.started);
    assert!(
        matches!(late.answer.error, Some(JobError::Expired { retry_after }) if retry_after.as_secs() >= 1)
    );
    assert_eq!(late.report.unwrap().usage.input, 0);
    assert_eq!(first.answer.choices[&0].ids.len(), 30);
}
