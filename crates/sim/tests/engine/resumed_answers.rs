//! An answer that another engine began continues exactly as it would have there. Cut at any token, both parts together
//! have the bits of the whole, with every sampling parameter.

use std::sync::Arc;

use headrace_domain::{FinishReason, Sampling, Seed};
use headrace_engine_api::{Job, JobEvent, SharedGrammar, SubmitRefusal};
use headrace_sim::{ToyGrammar, ToyVocabulary};

use crate::same_answers::{EOS, Rng, model, some_job};
use crate::support::{Bench, ChoiceAnswer, job, roomy};

fn bench() -> Bench {
    Bench::new(Box::new(model(64)), Arc::new(ToyVocabulary), &[EOS], roomy())
}

/// Runs a job with one choice. Returns the answer so far after each of its events.
fn answers_by_event(bench: &mut Bench, job: Job) -> Vec<ChoiceAnswer> {
    let number = job.first_choice;
    let mut reader = bench.submit(job);
    bench.run();
    let (mut so_far, mut all) = (ChoiceAnswer::default(), Vec::new());
    while let Some(event) = reader.events.try_next() {
        match event {
            JobEvent::Tokens { choice, ids, text, logprobs } => {
                assert_eq!(choice, number);
                so_far.ids.extend(ids);
                so_far.text.push_str(&text);
                so_far.logprobs.extend(logprobs);
                all.push(so_far.clone());
            }
            JobEvent::Finished { choice, reason } => {
                assert_eq!(choice, number);
                so_far.reason = Some(reason);
                all.push(so_far.clone());
            }
            JobEvent::Started { .. } | JobEvent::Done(_) | JobEvent::Scored(_) => {}
            JobEvent::Encoded(_) => panic!("nothing is encoded"),
            JobEvent::Failed { error, .. } => panic!("{error:?}"),
        }
    }
    all
}

/// Continues an answer after the part `before`.
fn rest(bench: &mut Bench, whole: &Job, before: &ChoiceAnswer) -> Vec<ChoiceAnswer> {
    let prompt: Vec<u32> = whole.prompt.iter().chain(&before.ids).copied().collect();
    let generated = u32::try_from(before.ids.len()).unwrap();
    answers_by_event(bench, Job { prompt: prompt.into(), generated, keys: None, ..whole.clone() })
}

fn check_every_cut(whole: &Job) {
    let all = answers_by_event(&mut bench(), whole.clone());
    let last = all.last().cloned().unwrap_or_default();
    let mut elsewhere = bench();
    for before in &all {
        if before.reason.is_some() {
            continue;
        }
        let rest = rest(&mut elsewhere, whole, before).last().cloned().unwrap();
        let joined = ChoiceAnswer {
            ids: [&before.ids[..], &rest.ids].concat(),
            text: before.text.clone() + &rest.text,
            logprobs: [&before.logprobs[..], &rest.logprobs].concat(),
            reason: rest.reason,
        };
        assert_eq!(joined, last, "cut after {} tokens of {whole:?}", before.ids.len());
    }
}

#[test]
fn an_answer_cut_anywhere_goes_on_by_the_very_bits() {
    let seeds = std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let rng = &mut Rng(seed);
        let mut whole = some_job(rng);
        whole.prompt = whole.prompt.iter().map(|id| id % 46).collect();
        whole.sampling.n = 1;
        whole.sampling.prompt_logprobs = None;
        whole.unread_bytes = usize::MAX;
        let fine = |_| Arc::new(ToyGrammar::new(seed, 46, EOS)) as SharedGrammar;
        whole.grammar = whole.grammar.map(fine);
        whole.sampling.max_tokens = whole.sampling.max_tokens.max(1);
        // Any choice of a call may be the cut one.
        whole.first_choice = rng.below(4) as u32;
        check_every_cut(&whole);
    }
}

#[test]
fn what_was_cut_counts_for_lengths_stops_and_penalties() {
    let sampling = Sampling {
        temperature: 1.1,
        seed: Seed(7),
        frequency_penalty: 0.7,
        presence_penalty: 0.5,
        repetition_penalty: 1.2,
        max_tokens: 40,
        min_tokens: 12,
        stop: vec!["ab ".into(), "é".into()],
        logprobs: Some(3),
        // The model is made to fail on these ids, so they must not be generated.
        logit_bias: vec![(46, -100.0), (47, -100.0)],
        ..Sampling::default()
    };
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 46).collect();
    check_every_cut(&job(&prompt, sampling.clone()));
    check_every_cut(&job(&prompt, Sampling { stop: Vec::new(), ignore_eos: true, ..sampling }));
}

#[test]
fn what_had_ended_ends_without_a_step() {
    let prompt: Vec<u32> = (0..20).collect();
    let whole = job(&prompt, Sampling { max_tokens: 3, ignore_eos: true, ..Sampling::default() });
    let all = answers_by_event(&mut bench(), whole.clone());
    let before = all.iter().rfind(|so_far| so_far.reason.is_none()).unwrap();
    assert_eq!(before.ids.len(), 3);
    let mut elsewhere = bench();
    let rest = rest(&mut elsewhere, &whole, before);
    let end = ChoiceAnswer { reason: Some(FinishReason::Length), ..ChoiceAnswer::default() };
    assert_eq!(rest, [end]);
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let bench = bench();
    let begun = |sampling: Sampling, generated| Job { generated, ..job(&[1, 2, 3], sampling) };
    let one = Sampling { max_tokens: 9, ..Sampling::default() };
    for (what, job) in [
        ("two answers", begun(Sampling { n: 2, ..one.clone() }, 1)),
        ("scores", begun(Sampling { prompt_logprobs: Some(1), ..one.clone() }, 1)),
        ("no prompt", begun(one.clone(), 3)),
        ("less than none", begun(one, 4)),
    ] {
        let refused = bench.stepper.submit(job);
        assert!(matches!(refused, Err(SubmitRefusal::Invalid { .. })), "{what}");
    }
}
