//! Property: a job's ids, texts, log-probabilities and finish reasons equal those of the same job alone. This holds for
//! any other jobs, any way of serving and any way of reading. `HEADRACE_SEEDS=n` runs more seeds. A failure prints its
//! seed.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use headrace_domain::{CacheLife, CachePin, FinishReason, Sampling, Seed};
use headrace_engine::Progress;
use headrace_engine_api::{
    Job, JobError, Priority, ReasoningBudget, SharedGrammar, SubmitRefusal, Tenant, TicketControl,
};
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{Fault, ScriptedForward, ToyGrammar, ToyVocabulary, Trigger};

use crate::support::{Answer, Bench, HeldMasks, Reader, job, roomy, salt};

const VOCAB: usize = 48;
pub(crate) const EOS: u32 = 5;
const CONTEXT: usize = 300;
/// A prompt with this id panics. The id is never generated.
const PANICS: u32 = 46;
/// A prompt with this id yields NaN.
const NOT_FINITE: u32 = 47;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

pub(crate) fn model(blocks: usize) -> ScriptedForward {
    let forward = ScriptedForward::new(VOCAB, CONTEXT, blocks);
    forward.faults().add(Trigger::Token(PANICS), Fault::Panic);
    forward.faults().add(Trigger::Token(NOT_FINITE), Fault::NotFinite);
    forward
}

pub(crate) fn some_job(rng: &mut Rng) -> Job {
    // Prompts with common beginnings, so that the cache and the wait for a shared prefix are exercised.
    let (kind, len) = (rng.below(3) as u32, 1 + rng.below(150) as u32);
    let mut prompt: Vec<u32> = (0..len).map(|i| (i * (3 + kind) + i / 16) % 46).collect();
    if rng.one_in(12) {
        let at = rng.below(u64::from(len)) as usize;
        prompt[at] = rng.of(&[PANICS, NOT_FINITE]);
    }
    let pick = |rng: &mut Rng, value: f32| if rng.one_in(3) { value } else { 0.0 };
    let sampling = Sampling {
        temperature: rng.of(&[0.0, 0.0, 0.7, 1.0, 1.8]),
        top_p: rng.of(&[1.0, 1.0, 0.9, 0.4]),
        top_k: NonZeroU32::new(rng.of(&[0, 0, 1, 5, 40])),
        min_p: rng.of(&[0.0, 0.0, 0.05]),
        frequency_penalty: pick(rng, 0.5),
        presence_penalty: pick(rng, 0.8),
        repetition_penalty: rng.of(&[1.0, 1.0, 1.3]),
        logit_bias: vec![(PANICS, -100.0), (NOT_FINITE, -100.0)],
        seed: Seed(rng.below(5)),
        max_tokens: rng.below(60) as u32,
        min_tokens: rng.of(&[0, 0, 10]),
        stop: if rng.one_in(3) { vec!["ab ".into(), "é".into(), "the\nx".into()] } else { Vec::new() },
        stop_token_ids: if rng.one_in(4) { vec![9] } else { Vec::new() },
        ignore_eos: rng.one_in(2),
        n: rng.of(&[1, 1, 1, 2, 3]),
        logprobs: rng.of(&[None, Some(0), Some(4)]),
        prompt_logprobs: if rng.one_in(5) { Some(2) } else { None },
    };
    let tenant = rng.below(3);
    let fails_at = if rng.one_in(8) { Some(rng.below(20) as usize) } else { None };
    let grammar = ToyGrammar { fails_at, ..ToyGrammar::new(rng.below(1000), 46, EOS) };
    let grammar = rng.one_in(3).then_some(Arc::new(grammar) as SharedGrammar);
    let thought = ReasoningBudget {
        most_tokens: rng.below(30) as u32,
        open: rng.of(&[&[3][..], &[3, 4]]).to_vec(),
        close: 11,
        ending: rng.of(&[&[11][..], &[1, 2, 11], &[1, 11, 2, 3]]).to_vec(),
        is_open: rng.one_in(2),
    };
    // The toy's forms do not support reasoning.
    let thinks = grammar.is_none() && rng.one_in(3);
    Job {
        grammar,
        pins: (0..rng.below(3)).map(|_| some_pin(rng)).collect(),
        thought: thinks.then(|| Arc::new(thought)),
        salt: salt(tenant),
        tenant: Tenant(tenant),
        weight: 1 + rng.below(3) as u32,
        generated: 0,
        unread_bytes: rng.of(&[usize::MAX, 1, 400, 3000]),
        priority: rng.of(&[Priority::Idle, Priority::Normal, Priority::Normal, Priority::Normal]),
        ..job(&prompt, sampling)
    }
}

fn some_pin(rng: &mut Rng) -> CachePin {
    CachePin { tokens: rng.below(160) as u32, life: rng.of(&CacheLife::ALL) }
}

fn alone(job: &Job) -> Answer {
    Bench::new(Box::new(model(64)), Arc::new(ToyVocabulary), &[EOS], roomy())
        .ask(Job { unread_bytes: usize::MAX, ..job.clone() })
        .0
}

struct World {
    rng: Rng,
    bench: Bench,
    jobs: Vec<(Job, Reader, Option<TicketControl>)>,
    /// Paused sequences, summed over the steps.
    stood_still: u64,
    /// The work on forms, if it comes late.
    masks: Option<HeldMasks>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let step_tokens = rng.of(&[32, 100, 512]);
        let scheduler = SchedulerConfig {
            step_tokens,
            max_chunk: rng.of(&[7, 64, 512]),
            max_running: rng.of(&[1, 3, 32]),
            max_score_chunk: rng.of(&[1, 5, 32]),
            context_window: CONTEXT,
            max_bypass: rng.below(4) as u32,
            prefix_cache: !rng.one_in(5),
            prefix_lifetime_ns: rng.one_in(4).then(|| rng.below(20_000_000)),
            ..SchedulerConfig::default()
        };
        // From a pool that always preempts to one that never does.
        let blocks = rng.of(&[14, 20, 40, 400]);
        let forward = model(blocks);
        for _ in 0..rng.below(4) {
            // Steps that fail through no sequence's fault. A step with one sequence is not retried, so worlds with few
            // running sequences get no such faults.
            let call = 1 + rng.below(120);
            if scheduler.max_running > 3 && rng.one_in(2) {
                forward.faults().add(Trigger::Call(call), Fault::Error);
            }
        }
        let bench = Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], scheduler);
        let masks = rng.one_in(2).then(HeldMasks::default);
        let bench = match &masks {
            Some(masks) => bench.with_masks(masks),
            None => bench,
        };
        Self { rng, bench, jobs: Vec::new(), stood_still: 0, masks }
    }

    fn arrive(&mut self) {
        let job = some_job(&mut self.rng);
        match self.bench.stepper.submit(job.clone()) {
            Ok(ticket) => {
                let (events, control) = ticket.split();
                self.jobs.push((job, Reader::new(events), Some(control)));
            }
            Err(SubmitRefusal::QueueFull { .. } | SubmitRefusal::DoesNotFit { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn cancel_one(&mut self) {
        if !self.jobs.is_empty() {
            let at = self.rng.below(self.jobs.len() as u64) as usize;
            if let Some(control) = self.jobs[at].2.take() {
                drop(control.cancel());
            }
        }
    }

    /// Each reader reads everything, a few events or nothing.
    fn read_some(&mut self) {
        for (_, reader, _) in &mut self.jobs {
            let events = self.rng.of(&[usize::MAX, 5, 1, 0, 0]);
            for event in std::iter::from_fn(|| reader.events.try_next()).take(events).collect::<Vec<_>>() {
                reader.take(event);
            }
        }
    }

    /// Does some of the work on forms, in any order.
    fn do_some_masks(&mut self) {
        let Some(masks) = &self.masks else { return };
        for _ in 0..self.rng.below(6) {
            if masks.len() > 0 {
                masks.run_piece(self.rng.below(masks.len() as u64) as usize);
            }
        }
    }

    fn do_all_masks(&self) {
        if let Some(masks) = &self.masks {
            masks.run_all(|_| true);
        }
    }

    fn live(&mut self) {
        for _ in 0..12 {
            for _ in 0..self.rng.below(4) {
                self.arrive();
            }
            if self.rng.one_in(5) {
                self.cancel_one();
            }
            for _ in 0..self.rng.below(8) {
                self.do_some_masks();
                self.bench.step();
                self.stood_still += u64::from(self.bench.stepper.load().paused);
            }
            self.read_some();
        }
        while self.jobs.iter().any(|(_, reader, _)| reader.report.is_none()) {
            self.do_all_masks();
            while self.bench.step() != Progress::Idle {
                self.do_some_masks();
            }
            self.read_some();
        }
        self.do_all_masks();
        self.bench.run();
    }

    /// Compares every answer with that of the same job alone. Returns the numbers of complete answers, preemptions and
    /// paused sequences.
    fn judge(mut self, memory: &mut HashMap<String, Answer>) -> (usize, u32, u64) {
        let (mut complete, mut preemptions) = (0, 0);
        for (job, reader, _) in &mut self.jobs {
            reader.pump();
            let report = reader.report.as_ref().expect("a terminal event");
            preemptions += report.engine.preemptions;
            let key = format!("{:?} {:?} {:?} {:?}", job.prompt, job.sampling, job.grammar, job.thought);
            let expected = memory.entry(key).or_insert_with(|| alone(job));
            let got = &reader.answer;
            let wanted_error = expected.error.as_ref().map(std::mem::discriminant);
            if got.error == Some(JobError::Cancelled)
                || matches!(&got.error, Some(JobError::Internal { detail }) if detail.contains("scripted error"))
            {
                // Cut off: the received part must be a prefix of the whole answer.
                for (number, choice) in &got.choices {
                    let whole = expected.choices.get(number);
                    let begins = whole
                        .is_some_and(|w| w.ids.starts_with(&choice.ids) && w.text.starts_with(&choice.text));
                    assert!(begins || expected.error.is_some(), "{job:?}\n{choice:?}\n{whole:?}");
                }
            } else if wanted_error.is_some() {
                assert_eq!(got.error.as_ref().map(std::mem::discriminant), wanted_error, "{job:?}");
            } else {
                assert_eq!(got, expected, "{job:?}");
                let output: usize = got.choices.values().map(|c| c.ids.len()).sum();
                let usage = report.usage;
                assert_eq!(usage.output, output as u64);
                assert_eq!(usage.prompt_tokens(), job.prompt.len() as u64);
                assert_eq!(got.choices.len(), job.sampling.n as usize);
                let length =
                    |c: &crate::support::ChoiceAnswer| c.ids.len() == job.sampling.max_tokens as usize;
                let lengths = got.choices.values().filter(|c| c.reason == Some(FinishReason::Length));
                assert!(lengths.into_iter().all(length));
                complete += 1;
            }
        }
        (complete, preemptions, self.stood_still)
    }
}

#[test]
fn answers_do_not_depend_on_what_else_happens() {
    let seeds = std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let (mut complete, mut preemptions, mut stood_still) = (0, 0, 0);
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.live();
            world.judge(&mut HashMap::new())
        });
        let Ok(run) = run else { panic!("seed {seed} failed (HEADRACE_SEEDS runs seeds 0..n)") };
        complete += run.0;
        preemptions += run.1;
        stood_still += run.2;
    }
    println!(
        "{seeds} seeds: {complete} complete answers, {preemptions} preemptions, {stood_still} stood still"
    );
    if seeds >= 50 {
        let wild = complete > 1000 && preemptions > 100 && stood_still > 1000;
        assert!(wild, "the world is too tame: {complete}, {preemptions}, {stood_still}");
    }
}
