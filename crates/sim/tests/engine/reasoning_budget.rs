//! Reasoning with a token budget: where it ends, which ids follow, and that nothing else in the answer changes.

use std::sync::Arc;

use headrace_domain::{FinishReason, ResponseFormat, Sampling, Seed};
use headrace_engine_api::{
    CompiledGrammar, GrammarFailed, GrammarState, Job, ReasoningBudget, SubmitRefusal,
};
use headrace_sim::{ScriptedForward, ToyGrammar, ToyVocabulary};

use crate::support::{Bench, greedy, job, roomy};

const VOCAB: u32 = 48;
const EOS: u32 = 5;
const OPEN: u32 = 3;
const CLOSE: u32 = 11;
const LAST_WORDS: [u32; 2] = [1, 2];

fn bench() -> Bench {
    let forward = ScriptedForward::new(VOCAB as usize, 300, 64);
    Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], roomy())
}

fn cap(most_tokens: u32, is_open: bool) -> ReasoningBudget {
    let ending = LAST_WORDS.into_iter().chain([CLOSE]).collect();
    ReasoningBudget { most_tokens, open: vec![OPEN], close: CLOSE, ending, is_open }
}

fn hot(seed: u64, max_tokens: u32) -> Sampling {
    Sampling { temperature: 2.0, seed: Seed(seed), ..greedy(max_tokens) }
}

fn thinks(cap: &ReasoningBudget, sampling: Sampling) -> Job {
    Job { thought: Some(Arc::new(cap.clone())), ..job(&[1, 2, 3, 7, 9], sampling) }
}

/// Reads an answer plainly. Returns its reasoning tokens, and where the budget is first used up.
fn read(cap: &ReasoningBudget, ids: &[u32]) -> (usize, Option<usize>) {
    let (mut inside, mut tokens, mut enough) = (cap.is_open, 0, None);
    for (at, id) in ids.iter().enumerate() {
        if inside && tokens >= cap.most_tokens as usize && enough.is_none() {
            enough = Some(at);
        }
        match (inside, *id) {
            (true, CLOSE) => inside = false,
            (true, _) => tokens += 1,
            (false, OPEN) => inside = true,
            (false, _) => {}
        }
    }
    (tokens, enough)
}

#[test]
fn no_answer_thinks_for_longer_and_all_before_the_end_is_as_it_was() {
    let (mut cut, mut by_itself) = (0, 0);
    for seed in 0..400 {
        let cap = cap((seed % 23) as u32, seed % 3 != 0);
        // In half of the cases, reasoning may also open and close by itself.
        let bias =
            if seed % 2 == 0 { vec![(OPEN, 2.0), (CLOSE, 2.0), (EOS, -100.0)] } else { vec![(EOS, -100.0)] };
        let sampling = Sampling { logit_bias: bias, n: 1 + (seed % 3) as u32, ..hot(seed, 60) };
        let (free, _) = bench().ask(job(&[1, 2, 3, 7, 9], sampling.clone()));
        let (held, report) = bench().ask(thinks(&cap, sampling));
        assert_eq!((held.error.as_ref(), free.error.as_ref()), (None, None));
        let mut cuts = 0;
        for (number, choice) in &held.choices {
            let free = &free.choices[number];
            let same = choice.ids.iter().zip(&free.ids).take_while(|(one, other)| one == other).count();
            let (_, enough) = read(&cap, &choice.ids);
            let Some(enough) = enough else {
                assert_eq!((&choice.ids, &choice.text), (&free.ids, &free.text), "seed {seed}");
                by_itself += usize::from(choice.ids.contains(&CLOSE));
                continue;
            };
            assert!(same >= enough, "seed {seed}: all before the end is as it was");
            let rest = &choice.ids[enough..];
            let ending = &cap.ending[..cap.ending.len().min(rest.len())];
            assert!(rest.starts_with(ending), "seed {seed}: {rest:?}");
            // Reasoning that opens after that has no budget left.
            let behind = &rest[ending.len()..];
            for at in behind.iter().enumerate().filter(|(_, id)| **id == OPEN).map(|(at, _)| at + 1) {
                let again = &behind[at..];
                let ending = &cap.ending[..cap.ending.len().min(again.len())];
                assert!(again.starts_with(ending), "seed {seed}: {again:?}");
            }
            cuts += 1;
        }
        assert_eq!(report.engine.thoughts_cut, cuts, "seed {seed}");
        let output: usize = held.choices.values().map(|choice| choice.ids.len()).sum();
        assert_eq!(report.usage.output, output as u64);
        cut += cuts;
    }
    assert!(cut > 200 && by_itself > 20, "too tame: {cut}, {by_itself}");
}

/// With log-probabilities each id has its own step. Without them, the ids of the ending are taken together.
#[test]
fn the_ending_costs_no_steps_of_its_own_and_changes_nothing_by_that() {
    for seed in 0..100 {
        let cap = cap((seed % 20) as u32, true);
        let sampling = hot(seed, 40);
        let (together, fast) = bench().ask(thinks(&cap, sampling.clone()));
        let (one_by_one, slow) = bench().ask(thinks(&cap, Sampling { logprobs: Some(0), ..sampling }));
        let bare = |answer: &crate::support::Answer| {
            let choice = answer.choices[&0].clone();
            (choice.ids, choice.text, choice.reason)
        };
        assert_eq!(bare(&together), bare(&one_by_one), "seed {seed}");
        if fast.engine.thoughts_cut > 0 && bare(&together).0.len() > cap.most_tokens as usize + 3 {
            assert!(fast.engine.steps < slow.engine.steps, "seed {seed}");
        }
    }
}

/// Another engine continues at any point where the first one stopped, also within the ending.
#[test]
fn a_thought_that_another_engine_began_ends_where_it_would_have() {
    for seed in 0..60 {
        let cap = cap((seed % 12) as u32, seed % 2 == 0);
        let whole = bench().ask(thinks(&cap, hot(seed, 30))).0;
        let choice = &whole.choices[&0];
        for cut in 1..choice.ids.len() {
            let begun = thinks(&cap, hot(seed, 30));
            let prompt: Vec<u32> = begun.prompt.iter().chain(&choice.ids[..cut]).copied().collect();
            let rest = bench().ask(Job { prompt: prompt.into(), generated: cut as u32, ..begun }).0;
            assert_eq!(rest.choices[&0].ids, choice.ids[cut..], "seed {seed}, cut {cut}");
            assert_eq!(rest.choices[&0].reason, choice.reason);
        }
    }
}

/// The toy grammar after reasoning that the prompt has opened. The reasoning may contain any id except the end.
#[derive(Debug)]
struct Behind(ToyGrammar);

struct BehindState {
    thinks: bool,
    toy: Box<dyn GrammarState>,
}

impl CompiledGrammar for Behind {
    fn form(&self) -> &Arc<ResponseFormat> {
        self.0.form()
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(BehindState { thinks: true, toy: self.0.begin() })
    }

    fn state_bytes(&self) -> usize {
        self.0.state_bytes()
    }
}

impl GrammarState for BehindState {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        if !self.thinks {
            return self.toy.mask(allowed);
        }
        for (word, bits) in allowed.iter_mut().enumerate() {
            let ids = (0..32).map(|bit| word as u32 * 32 + bit);
            *bits = ids.filter(|id| *id < VOCAB && *id != EOS).fold(0, |bits, id| bits | 1 << (id % 32));
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed> {
        if self.thinks {
            self.thinks = id != CLOSE;
            return Ok(());
        }
        self.toy.accept(id)
    }

    fn forced(&self) -> &[u32] {
        if self.thinks { &[] } else { self.toy.forced() }
    }

    fn is_over(&self) -> bool {
        !self.thinks && self.toy.is_over()
    }
}

#[test]
fn the_form_begins_behind_a_thought_that_was_ended() {
    let (mut ended, mut complete) = (0, 0);
    for seed in 0..200 {
        let toy = ToyGrammar::new(seed, VOCAB, EOS);
        let cap = cap((seed % 15) as u32, true);
        let asked = Job { grammar: Some(Arc::new(Behind(toy.clone()))), ..thinks(&cap, hot(seed, 90)) };
        let (answer, report) = bench().ask(asked);
        assert_eq!(answer.error, None, "seed {seed}");
        let choice = &answer.choices[&0];
        let close = choice.ids.iter().position(|id| *id == CLOSE).expect("it must end");
        assert!(close <= cap.most_tokens as usize + LAST_WORDS.len(), "seed {seed}: {:?}", choice.ids);
        ended += report.engine.thoughts_cut;
        let mut state = toy.begin();
        let answer = &choice.ids[close + 1..];
        for id in answer.iter().filter(|id| **id != EOS) {
            state.accept(*id).unwrap_or_else(|failed| panic!("seed {seed}: {failed}: {answer:?}"));
        }
        complete += usize::from(choice.reason == Some(FinishReason::Stop));
    }
    assert!(ended > 100 && complete > 100, "too tame: {ended}, {complete}");
}

#[test]
fn marks_that_cannot_be_are_refused_before_they_cost_anything() {
    for (wrong, why) in [
        (ReasoningBudget { open: Vec::new(), ..cap(1, true) }, "from 1 to"),
        (ReasoningBudget { ending: vec![1; 300], ..cap(1, true) }, "from 1 to"),
        (ReasoningBudget { ending: vec![1], ..cap(1, true) }, "does not close"),
        (ReasoningBudget { open: vec![VOCAB], ..cap(1, true) }, "outside the vocabulary"),
    ] {
        match bench().stepper.submit(thinks(&wrong, greedy(3))) {
            Err(SubmitRefusal::Invalid { what }) => assert!(what.contains(why), "{what}"),
            other => panic!("{}", other.is_ok()),
        }
    }
}
