//! Answers whose forms are late: they sit steps out, others continue, and no answer changes. The test decides when the
//! work on a form is done, so no test here depends on time.

use std::sync::{Arc, Condvar, Mutex};

use headrace_domain::{ResponseFormat, Sampling, Seed, SystemClock};
use headrace_engine::{EmbeddedEngine, EngineConfig, Progress};
use headrace_engine_api::{CompiledGrammar, Engine, GrammarFailed, GrammarState, Job, JobError, Tenant};
use headrace_kernels::Isa;
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{ScriptedForward, ToyGrammar, ToyVocabulary};

use crate::same_answers::Rng;
use crate::support::{Answer, Bench, HeldMasks, Reader, greedy, job, roomy, salt};

const VOCAB: u32 = 48;
const EOS: u32 = 5;
/// The tenant whose forms are slow.
const SLOW: u64 = 9;

fn bench_of(blocks: usize, limits: SchedulerConfig) -> Bench {
    let forward = ScriptedForward::new(VOCAB as usize, 300, blocks);
    Bench::new(Box::new(forward), Arc::new(ToyVocabulary), &[EOS], limits)
}

fn grammar(seed: u64) -> ToyGrammar {
    ToyGrammar { longest: 25, ..ToyGrammar::new(seed, VOCAB, EOS) }
}

fn held(tenant: u64, grammar: ToyGrammar, sampling: Sampling) -> Job {
    let prompt: Vec<u32> = (0..40).map(|at| (at * 7 + tenant as u32) % 45).collect();
    Job {
        grammar: Some(Arc::new(grammar)),
        tenant: Tenant(tenant),
        salt: salt(tenant),
        ..job(&prompt, sampling)
    }
}

fn hot(seed: u64, max_tokens: u32) -> Sampling {
    Sampling { temperature: 2.0, seed: Seed(seed), ..greedy(max_tokens) }
}

fn alone(job: &Job) -> Answer {
    bench_of(64, roomy()).ask(job.clone()).0
}

#[test]
fn a_slow_form_holds_its_own_answer_and_no_other() {
    let masks = HeldMasks::default();
    let mut bench = bench_of(64, roomy()).with_masks(&masks);
    let slow = held(SLOW, grammar(3), hot(1, 40));
    let others: Vec<Job> = (0..6).map(|at| held(at % 3, grammar(at), hot(at, 30))).collect();
    let free = job(&[4, 4, 4], hot(2, 30));
    let mut late = bench.submit(slow.clone());
    let mut readers: Vec<Reader> = others.iter().map(|job| bench.submit(job.clone())).collect();
    let mut plain = bench.submit(free.clone());
    while plain.report.is_none() || readers.iter().any(|reader| reader.report.is_none()) {
        masks.run_all(|tenant| tenant != SLOW);
        assert_ne!(bench.step(), Progress::Idle, "others continue");
        plain.pump();
        readers.iter_mut().for_each(Reader::pump);
    }
    late.pump();
    assert!(late.started && late.answer.choices.is_empty() && late.report.is_none());
    for (reader, job) in readers.iter().zip(&others) {
        assert_eq!(reader.answer, alone(job));
    }
    assert_eq!(plain.answer, alone(&free));
    // It keeps its blocks, and no step is wasted.
    let load = bench.stepper.load();
    assert_eq!((load.paused, load.running, load.waiting), (1, 0, 0));
    assert!(load.blocks_free < load.blocks_total);
    assert_eq!((bench.step(), bench.step()), (Progress::Idle, Progress::Idle));
    while late.report.is_none() {
        masks.run_all(|_| true);
        bench.step();
        late.pump();
    }
    assert_eq!(late.answer, alone(&slow));
    bench.run();
}

/// Late forms in any order, beside preemption. Ids, texts and log-probabilities equal those of each job alone.
#[test]
fn when_a_form_is_done_changes_nothing_of_an_answer() {
    let (mut late_steps, mut preemptions) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng(seed);
        let masks = HeldMasks::default();
        let limits = SchedulerConfig { max_running: 4, max_chunk: 16, ..roomy() };
        let mut bench = bench_of(14, limits).with_masks(&masks);
        let jobs: Vec<Job> = (0..6)
            .map(|at| {
                let logprobs = (rng.below(2) == 0).then_some(3);
                let n = 1 + (at == 2) as u32;
                let sampling = Sampling { logprobs, n, ..hot(seed + at, 10 + rng.below(40) as u32) };
                held(at % 3, grammar(rng.below(500)), sampling)
            })
            .collect();
        let mut readers: Vec<Reader> = jobs.iter().map(|job| bench.submit(job.clone())).collect();
        while readers.iter().any(|reader| reader.report.is_none()) {
            if masks.len() > 0 && rng.below(2) == 0 {
                masks.run_piece(rng.below(masks.len() as u64) as usize);
            }
            bench.step();
            late_steps += u64::from(bench.stepper.load().paused > 0);
            readers.iter_mut().for_each(Reader::pump);
        }
        for (reader, job) in readers.iter().zip(&jobs) {
            assert_eq!(reader.answer, alone(job), "seed {seed}");
            let report = reader.report.as_ref().unwrap();
            preemptions += report.engine.preemptions;
            let ids: usize = reader.answer.choices.values().map(|choice| choice.ids.len()).sum();
            assert_eq!(report.usage.output, ids as u64, "seed {seed}");
            assert_eq!(report.usage.prompt_tokens(), 40, "seed {seed}");
        }
        masks.run_all(|_| true);
        bench.run();
    }
    assert!(late_steps > 1_000 && preemptions > 100, "too tame: {late_steps}, {preemptions}");
}

#[test]
fn a_cancelled_answer_drops_the_work_on_its_form() {
    let masks = HeldMasks::default();
    let mut bench = bench_of(64, roomy()).with_masks(&masks);
    let ticket = bench.stepper.submit(held(SLOW, grammar(3), hot(1, 40))).unwrap();
    for _ in 0..4 {
        bench.step();
    }
    assert_eq!((masks.len(), masks.wanted(), bench.stepper.load().paused), (1, 1, 1));
    let (events, control) = ticket.split();
    drop(control.cancel());
    bench.step();
    assert_eq!((masks.len(), masks.wanted()), (1, 0));
    let mut reader = Reader::new(events);
    reader.pump();
    assert_eq!(reader.answer.error, Some(JobError::Cancelled));
    masks.run_all(|_| true);
    bench.run();
}

/// A call may use 32,000,000 units, and 32,000 more for each token. A form that takes a million per token ends at its
/// 34th id.
#[test]
fn a_form_that_takes_too_much_work_ends_its_own_call() {
    for (n, most) in [(1, 33), (4, 8)] {
        let mut bench = bench_of(64, roomy());
        let hostile = ToyGrammar { units_per_id: 1_000_000, longest: 200, ..ToyGrammar::new(3, VOCAB, EOS) };
        let sampling = Sampling { logit_bias: vec![(EOS, -100.0)], n, ..hot(1, 200) };
        let mut bad = bench.submit(held(SLOW, hostile, sampling));
        let honest = held(1, grammar(5), hot(4, 30));
        let mut other = bench.submit(honest.clone());
        bench.run();
        bad.pump();
        other.pump();
        assert!(
            matches!(&bad.answer.error, Some(JobError::Form { why }) if why.contains("units of work")),
            "{:?}",
            bad.answer.error
        );
        let ids: Vec<usize> = bad.answer.choices.values().map(|choice| choice.ids.len()).collect();
        assert!(ids.iter().all(|ids| *ids <= most + 6) && ids.iter().any(|ids| *ids + 6 >= most), "{ids:?}");
        let output = bad.report.unwrap().usage.output;
        assert_eq!(output, ids.iter().sum::<usize>() as u64, "what was generated is reported");
        assert_eq!(other.answer, alone(&honest));
    }
}

/// A form that blocks until the test opens the gate.
#[derive(Debug)]
struct Gated {
    toy: ToyGrammar,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

struct GatedState {
    inner: Box<dyn GrammarState>,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl CompiledGrammar for Gated {
    fn form(&self) -> &Arc<ResponseFormat> {
        self.toy.form()
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(GatedState { inner: self.toy.begin(), gate: Arc::clone(&self.gate) })
    }

    fn state_bytes(&self) -> usize {
        self.toy.state_bytes()
    }
}

impl GrammarState for GatedState {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        let mut open = self.gate.0.lock().unwrap();
        while !*open {
            open = self.gate.1.wait(open).unwrap();
        }
        self.inner.mask(allowed)
    }

    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed> {
        self.inner.accept(id)
    }

    fn forced(&self) -> &[u32] {
        self.inner.forced()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }
}

/// With the engine's own threads: even if all forms of one tenant hang, forms of other tenants are served.
#[test]
fn forms_of_one_tenant_that_hang_leave_others_their_threads() {
    let forward = Box::new(ScriptedForward::new(VOCAB as usize, 300, 256));
    let config = EngineConfig {
        model: "m".to_owned(),
        compute_mode: "exact".to_owned(),
        eos: vec![EOS],
        skip_special: true,
        max_choices: 16,
        isa: Isa::supported().last().copied().unwrap(),
        scheduler: roomy(),
        clock: Arc::new(SystemClock::new()),
    };
    let engine = EmbeddedEngine::start_with(forward, Arc::new(ToyVocabulary), config).unwrap();
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let submit = |job: &Job| Reader::new(engine.submit(job.clone()).unwrap().split().0);
    let read = |mut reader: Reader| {
        while reader.report.is_none() {
            let event = reader.events.next_blocking().expect("a terminal event");
            reader.take(event);
        }
        reader.answer
    };
    let plain: Vec<Job> = (0..4).map(|at| held(SLOW, grammar(at), hot(at, 30))).collect();
    let hangs = |job: &Job, at| {
        let gated = Gated { toy: grammar(at), gate: Arc::clone(&gate) };
        Job { grammar: Some(Arc::new(gated)), ..job.clone() }
    };
    let stuck: Vec<Reader> = plain.iter().zip(0..).map(|(job, at)| submit(&hangs(job, at))).collect();
    for at in 0..8 {
        let honest = held(1 + at % 2, grammar(20 + at), hot(at, 30));
        assert_eq!(read(submit(&honest)), alone(&honest));
    }
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    for (reader, job) in stuck.into_iter().zip(&plain) {
        assert_eq!(read(reader), alone(job));
    }
}
