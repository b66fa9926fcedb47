//! Answers with a grammar: the ids they may contain, how they end, and that forced ids cost no steps of their own.

use std::sync::Arc;

use headrace_domain::{FinishReason, Sampling, Seed};
use headrace_engine_api::{CompiledGrammar, Job, JobError, SubmitRefusal};
use headrace_sim::{ScriptedForward, ToyGrammar, ToyVocabulary};

use crate::support::{Answer, Bench, greedy, job, roomy};

const VOCAB: u32 = 48;
const EOS: u32 = 5;

fn bench() -> Bench {
    let forward = ScriptedForward::new(VOCAB as usize, 300, 64);
    Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], roomy())
}

fn held(grammar: &ToyGrammar, sampling: Sampling) -> Job {
    Job { grammar: Some(Arc::new(grammar.clone())), ..job(&[1, 2, 3, 7, 9], sampling) }
}

fn hot(seed: u64, max_tokens: u32) -> Sampling {
    Sampling { temperature: 2.0, seed: Seed(seed), ..greedy(max_tokens) }
}

/// Checks an answer against its grammar. Returns whether it is complete.
fn follow(grammar: &ToyGrammar, ids: &[u32]) -> bool {
    let mut state = grammar.begin();
    let mut mask = vec![0u32; VOCAB.div_ceil(32) as usize];
    for (at, id) in ids.iter().enumerate() {
        state.mask(&mut mask).unwrap();
        let may = mask[*id as usize / 32] >> (id % 32) & 1 == 1;
        assert!(may, "id {id} at {at} of {ids:?}");
        if *id == EOS {
            assert_eq!(at + 1, ids.len());
            return true;
        }
        state.accept(*id).unwrap();
    }
    state.is_over()
}

#[test]
fn every_id_is_one_that_the_grammar_allows() {
    let mut ends = [0; 3];
    for seed in 0..300 {
        let grammar = ToyGrammar::new(seed, VOCAB, EOS);
        let penalties = if seed % 3 == 0 { 1.5 } else { 0.0 };
        let sampling = Sampling {
            frequency_penalty: penalties,
            logit_bias: vec![(11, 50.0)],
            n: 1 + (seed % 2) as u32,
            ..hot(seed, 30)
        };
        let (answer, report) = bench().ask(held(&grammar, sampling.clone()));
        assert_eq!(answer.error, None);
        for choice in answer.choices.values() {
            let complete = follow(&grammar, &choice.ids);
            let reason = choice.reason.clone().unwrap();
            let by_eos = choice.ids.last() == Some(&EOS);
            match (complete, reason) {
                (true, FinishReason::Stop) => ends[usize::from(by_eos)] += 1,
                (false, FinishReason::Length) => {
                    assert_eq!(choice.ids.len(), 30);
                    ends[2] += 1;
                }
                other => panic!("seed {seed}: {other:?} {choice:?}"),
            }
        }
        let output: usize = answer.choices.values().map(|choice| choice.ids.len()).sum();
        assert_eq!(report.usage.output, output as u64);
    }
    assert!(ends.iter().all(|count| *count > 10), "too tame: {ends:?}");
}

/// With log-probabilities each id has its own step. Without them, forced ids are taken together.
#[test]
fn ids_that_must_come_change_nothing_but_the_number_of_steps() {
    let (mut fewer, mut steps) = (0, 0);
    for seed in 0..200 {
        let grammar = ToyGrammar::new(seed, VOCAB, EOS);
        let stop = if seed % 4 == 0 { vec!["ab".to_owned(), "é".to_owned()] } else { Vec::new() };
        let sampling =
            Sampling { stop, presence_penalty: 0.3, min_tokens: (seed % 5) as u32, ..hot(seed, 40) };
        let (together, report) = bench().ask(held(&grammar, sampling.clone()));
        let (one_by_one, slow) = bench().ask(held(&grammar, Sampling { logprobs: Some(0), ..sampling }));
        let bare = |answer: &Answer| {
            let choice = answer.choices[&0].clone();
            (choice.ids, choice.text, choice.reason)
        };
        assert_eq!(bare(&together), bare(&one_by_one), "seed {seed}");
        assert_eq!(one_by_one.choices[&0].logprobs.len(), one_by_one.choices[&0].ids.len());
        assert_eq!(slow.engine.steps as usize, one_by_one.choices[&0].ids.len());
        fewer += slow.engine.steps - report.engine.steps;
        steps += slow.engine.steps;
    }
    assert!(fewer * 3 > steps, "{fewer} of {steps} steps saved");
}

/// The answer's log-probabilities equal, to the last bit, those of the same ids read as a prompt without any grammar.
/// Forbidden ids are among the alternatives.
#[test]
fn log_probabilities_are_the_models_own_whatever_is_allowed() {
    let (prompt, mut forbidden) = ([1, 2, 3, 7, 9], 0);
    for seed in 0..60 {
        let grammar = ToyGrammar::new(seed, VOCAB, EOS);
        let penalties = if seed % 3 == 0 { 1.5 } else { 0.0 };
        let sampling =
            Sampling { logprobs: Some(6), frequency_penalty: penalties, min_tokens: 2, ..hot(seed, 30) };
        let answer = bench().ask(held(&grammar, sampling)).0;
        let choice = &answer.choices[&0];
        let whole: Vec<u32> = prompt.iter().chain(&choice.ids).copied().collect();
        let scored = Sampling { prompt_logprobs: Some(6), ..greedy(0) };
        let scores = bench().ask(job(&whole, scored)).0.scores.unwrap().tokens;
        assert_eq!(choice.logprobs, scores[prompt.len()..], "seed {seed}");
        let mut state = grammar.begin();
        let mut mask = vec![0u32; VOCAB.div_ceil(32) as usize];
        for token in choice.logprobs.iter().take_while(|token| token.id != EOS) {
            state.mask(&mut mask).unwrap();
            let may = |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
            forbidden += token.top.iter().filter(|other| !may(other.id)).count();
            state.accept(token.id).unwrap();
        }
    }
    assert!(forbidden > 1_000, "{forbidden} alternatives that could not come");
}

#[test]
fn a_grammar_that_fails_ends_its_own_call() {
    let grammar = ToyGrammar { fails_at: Some(3), longest: 20, ..ToyGrammar::new(3, VOCAB, EOS) };
    let mut bench = bench();
    let mut fails = bench.submit(held(&grammar, hot(1, 20)));
    let mut other = bench.submit(job(&[4, 4, 4], hot(2, 20)));
    bench.run();
    fails.pump();
    other.pump();
    assert!(matches!(&fails.answer.error, Some(JobError::Form { why }) if why.contains("made to fail")));
    assert_eq!(other.answer.error, None);
    assert_eq!(fails.report.unwrap().usage.prompt_tokens(), 5, "its computed tokens are reported");
}

#[test]
fn an_answer_that_another_engine_began_goes_on_in_its_form() {
    for seed in 0..60 {
        let grammar = ToyGrammar::new(seed, VOCAB, EOS);
        let whole = bench().ask(held(&grammar, hot(seed, 30))).0;
        let choice = &whole.choices[&0];
        for cut in 1..choice.ids.len() {
            let begun = held(&grammar, hot(seed, 30));
            let prompt: Vec<u32> = begun.prompt.iter().chain(&choice.ids[..cut]).copied().collect();
            let onward = Job { prompt: prompt.into(), generated: cut as u32, ..begun };
            let rest = bench().ask(onward).0;
            assert_eq!(rest.choices[&0].ids, choice.ids[cut..], "seed {seed}, cut {cut}");
            assert_eq!(rest.choices[&0].reason, choice.reason);
        }
    }
    // A continuation that does not match its grammar is refused before it costs anything.
    let grammar = ToyGrammar::new(1, 8, EOS);
    let wrong = Job { prompt: Arc::from([1, 2, 40]), generated: 1, ..held(&grammar, greedy(9)) };
    let mut forced = ToyGrammar::new(1, 8, EOS);
    forced.seed = (0..100).find(|seed| !ToyGrammar::new(*seed, 8, EOS).begin().forced().is_empty()).unwrap();
    let wrong = Job { grammar: Some(Arc::new(forced)), ..wrong };
    assert!(matches!(bench().stepper.submit(wrong), Err(SubmitRefusal::Invalid { .. })));
}
