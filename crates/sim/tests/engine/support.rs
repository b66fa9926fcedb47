//! Shared by the engine's tests: jobs, readers that collect answers, and an engine that is stepped by hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::{CacheSalt, FinishReason, ManualClock, PrefixKeys, RequestId, Sampling, TokenLogprob};
use headrace_engine::{EngineConfig, MaskRunner, MaskTask, Progress, Stepper, TextOf};
use headrace_engine_api::{Job, JobError, JobEvent, JobEvents, JobReport, Priority, PromptScores, Tenant};
use headrace_kernels::Isa;
use headrace_kernels::forward::Forward;
use headrace_scheduler::SchedulerConfig;

/// The answer of one choice.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ChoiceAnswer {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) reason: Option<FinishReason>,
}

/// The answer of a job.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answer {
    pub(crate) choices: BTreeMap<u32, ChoiceAnswer>,
    pub(crate) scores: Option<PromptScores>,
    pub(crate) error: Option<JobError>,
}

/// Collects a job's events as they arrive.
pub(crate) struct Reader {
    pub(crate) events: JobEvents,
    pub(crate) answer: Answer,
    pub(crate) started: bool,
    pub(crate) report: Option<Arc<JobReport>>,
}

impl Reader {
    pub(crate) fn new(events: JobEvents) -> Self {
        Self { events, answer: Answer::default(), started: false, report: None }
    }

    /// Takes the events that have arrived, and checks their order.
    pub(crate) fn pump(&mut self) {
        while let Some(event) = self.events.try_next() {
            self.take(event);
        }
    }

    pub(crate) fn take(&mut self, event: JobEvent) {
        assert!(self.report.is_none(), "{event:?} after the terminal event");
        match event {
            JobEvent::Started { .. } => {
                assert!(!self.started, "started twice");
                self.started = true;
            }
            JobEvent::Scored(scores) => {
                assert!(self.started && self.answer.choices.is_empty(), "scores come before tokens");
                self.answer.scores = Some(scores);
            }
            JobEvent::Encoded(_) => panic!("nothing is encoded"),
            JobEvent::Tokens { choice, ids, text, logprobs } => {
                assert!(self.started);
                let choice = self.answer.choices.entry(choice).or_default();
                assert!(choice.reason.is_none(), "tokens after the end");
                choice.ids.extend(ids);
                choice.text.push_str(&text);
                choice.logprobs.extend(logprobs);
            }
            JobEvent::Finished { choice, reason } => {
                let choice = self.answer.choices.entry(choice).or_default();
                assert!(choice.reason.replace(reason).is_none(), "finished twice");
            }
            JobEvent::Done(report) => {
                assert!(self.answer.choices.values().all(|c| c.reason.is_some()), "done with a choice open");
                self.report = Some(report);
            }
            JobEvent::Failed { error, report } => {
                self.answer.error = Some(error);
                self.report = Some(report);
            }
        }
    }
}

pub(crate) fn salt(tenant: u64) -> CacheSalt {
    CacheSalt::derive(&[5; 32], &tenant.to_string(), "m", None)
}

/// The keys of a tenant's prompt.
pub(crate) fn keys(tenant: u64, prompt: &[u32]) -> PrefixKeys {
    PrefixKeys::of(&salt(tenant), &prompt.into())
}

pub(crate) fn job(prompt: &[u32], sampling: Sampling) -> Job {
    Job {
        request: RequestId::from_bits(1),
        first_choice: 0,
        prompt: prompt.into(),
        sampling,
        salt: salt(0),
        keys: None,
        pins: Arc::default(),
        held: None,
        grammar: None,
        thought: None,
        tenant: Tenant(0),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        generated: 0,
        unread_bytes: usize::MAX,
    }
}

pub(crate) fn greedy(max_tokens: u32) -> Sampling {
    Sampling { max_tokens, ..Sampling::default() }
}

/// Limits that every test job fits.
pub(crate) fn roomy() -> SchedulerConfig {
    SchedulerConfig { context_window: 512, ..SchedulerConfig::default() }
}

/// Work on forms that runs when the test calls for it.
#[derive(Clone, Default)]
pub(crate) struct HeldMasks(Arc<Mutex<VecDeque<MaskTask>>>);

impl MaskRunner for HeldMasks {
    fn submit(&mut self, task: MaskTask) {
        self.0.lock().unwrap().push_back(task);
    }
}

impl HeldMasks {
    /// Runs one piece of task `at`. The rest of the task goes to the end of the queue. Returns `false` if there is no
    /// such task.
    pub(crate) fn run_piece(&self, at: usize) -> bool {
        let Some(task) = self.0.lock().unwrap().remove(at) else { return false };
        if let Some(left) = task.run_piece() {
            self.0.lock().unwrap().push_back(left);
        }
        true
    }

    /// Runs all tasks of the tenants that `picks` selects.
    pub(crate) fn run_all(&self, picks: impl Fn(u64) -> bool) {
        loop {
            let at = self.0.lock().unwrap().iter().position(|task| picks(task.tenant()));
            match at {
                Some(at) => self.run_piece(at),
                None => return,
            };
        }
    }

    /// Number of waiting tasks.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Number of waiting tasks whose answers still need them.
    pub(crate) fn wanted(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|task| task.is_wanted()).count()
    }
}

/// An engine that is stepped by hand, in virtual time.
pub(crate) struct Bench {
    pub(crate) stepper: Stepper,
    pub(crate) clock: Arc<ManualClock>,
}

impl Bench {
    pub(crate) fn new(
        forward: Box<dyn Forward>,
        text: Arc<dyn TextOf>,
        eos: &[u32],
        scheduler: SchedulerConfig,
    ) -> Self {
        Self::timed(forward, text, eos, scheduler, Arc::new(ManualClock::default()))
    }

    /// [`Self::new`] with a clock that other code advances too.
    pub(crate) fn timed(
        forward: Box<dyn Forward>,
        text: Arc<dyn TextOf>,
        eos: &[u32],
        scheduler: SchedulerConfig,
        clock: Arc<ManualClock>,
    ) -> Self {
        let config = EngineConfig {
            model: "m".to_owned(),
            compute_mode: "exact".to_owned(),
            eos: eos.to_vec(),
            skip_special: true,
            max_choices: 16,
            isa: Isa::supported().last().copied().expect("at least one"),
            scheduler,
            clock: clock.clone(),
        };
        Self { stepper: Stepper::new(forward, text, config).expect("a good configuration"), clock }
    }

    /// The same engine, with work on forms that runs when the test calls for it.
    pub(crate) fn with_masks(self, masks: &HeldMasks) -> Self {
        let Self { stepper, clock } = self;
        Self { stepper: stepper.with_masks(Box::new(masks.clone())), clock }
    }

    pub(crate) fn submit(&self, job: Job) -> Reader {
        Reader::new(self.stepper.submit(job).expect("accepted").split().0)
    }

    pub(crate) fn step(&mut self) -> Progress {
        self.clock.advance(Duration::from_micros(500));
        let progress = self.stepper.step();
        self.stepper.check_invariants().expect("the books agree");
        progress
    }

    /// Steps until no work is left.
    pub(crate) fn run(&mut self) {
        let mut steps = 0;
        while self.step() != Progress::Idle {
            steps += 1;
            assert!(steps < 100_000, "no end in sight");
        }
        let load = self.stepper.load();
        assert_eq!(load.blocks_free, load.blocks_total, "blocks did not come back");
        assert_eq!((load.running, load.waiting), (0, 0));
    }

    /// Steps until every job has ended. The readers read only when the engine can compute nothing more without that.
    /// Returns how often they read.
    pub(crate) fn run_unread(&mut self, readers: &mut [Reader]) -> usize {
        let (mut times, mut steps) = (0, 0);
        while readers.iter().any(|reader| reader.report.is_none()) {
            while self.step() != Progress::Idle {
                steps += 1;
                assert!(steps < 100_000, "no end in sight");
            }
            readers.iter_mut().for_each(Reader::pump);
            times += 1;
            assert!(times < 100_000, "no end in sight");
        }
        self.run();
        times
    }

    /// Runs one job alone, to its end.
    pub(crate) fn ask(&mut self, job: Job) -> (Answer, JobReport) {
        let mut reader = self.submit(job);
        self.run();
        reader.pump();
        (reader.answer, Arc::unwrap_or_clone(reader.report.expect("a terminal event")))
    }
}
