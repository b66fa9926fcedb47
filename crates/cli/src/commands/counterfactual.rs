//! `headrace trace --explain ID --try LEVER`: runs a call's shape on an engine in this process, unchanged and with the
//! lever. So the prediction can be compared with the outcome. Traces contain no prompts, so token ids are random.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_config::ModelConfig;
use headrace_domain::{BLOCK_TOKENS, CacheSalt, Clock, RequestId, Sampling, SystemClock, TraceRecord};
use headrace_engine_api::{Job, JobEvent, JobEvents, Priority, Tenant};
use headrace_explain::{CallShape, LeverName, Ran, Trial, shape_with, trial};
use headrace_server::local_engine::LocalEngine;
use headrace_server::models::{self, ServingPlan};
use headrace_server::running_model::InMemory;

use crate::arguments::ServerArgs;
use crate::commands::{CommandError, configuration};

/// Number of runs of each shape. The median run counts.
const RUNS: usize = 5;
/// Maximum number of other answers in the batch.
const MOST_BESIDE: usize = 31;
/// Prompt tokens of each other answer in the batch.
const BESIDE_PROMPT: usize = 16;
/// Maximum time for one run.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs both shapes and compares them.
pub(crate) fn run(at: &ServerArgs, record: &TraceRecord, lever: LeverName) -> Result<Trial, CommandError> {
    let other = CommandError::Other;
    let mut notes =
        vec!["Prompts are drawn: a trace keeps none, and what a token is changes nothing.".to_owned()];
    let shape = CallShape::of(record);
    if shape.output_tokens == 0 || shape.prompt_tokens == 0 {
        return Err(other("the call generated nothing: there is no shape to run again".to_owned()));
    }
    let lab = TrialEngine::start(at, record, &mut notes)?;
    let before = lab.fitting(shape, &mut notes);
    let missed = record.engine.as_ref().map_or(0, |engine| {
        u64::from(engine.prompt_blocks.saturating_sub(engine.cached_blocks)) * BLOCK_TOKENS as u64
    });
    let changed = shape_with(lever, before, missed);
    let after = changed.ok_or_else(|| {
        let can: Vec<&str> =
            LeverName::ALL.into_iter().filter(|lever| lever.can_be_tried()).map(LeverName::name).collect();
        other(format!("`{lever}` lies outside of an engine and cannot be tried: {} can", can.join(", ")))
    })?;
    let beside = (before.batch.round() as usize).saturating_sub(1).min(MOST_BESIDE);
    if beside > 0 {
        notes.push(format!("{beside} other answers were generated beside it, as in its batch."));
    }
    let done = lab.measured([before, after], beside);
    lab.engine.shutdown(Duration::ZERO);
    let [before, after] = done.map_err(other)?;
    Ok(trial(record, lever, &lab.model, (&before, &after), (RUNS, notes)))
}

/// The engine for the trial.
struct TrialEngine {
    engine: Arc<dyn LocalEngine>,
    model: String,
    vocab: u32,
    window: u64,
}

impl TrialEngine {
    /// Starts the model of the call if the configuration has it, otherwise the demo model.
    fn start(at: &ServerArgs, record: &TraceRecord, notes: &mut Vec<String>) -> Result<Self, CommandError> {
        let mut config = configuration(at)?;
        let is_its = |model: &ModelConfig| record.model_served.as_deref() == Some(model.name.as_str());
        if config.models.iter().any(is_its) {
            config.models.retain(is_its);
        } else {
            config.models = configuration(&ServerArgs { data_dir: None, config: None, json: false })?.models;
            let model = record.model_served.as_deref().map(headrace_trace::plain).unwrap_or_default();
            notes.push(format!(
                "`{model}` is not served from this configuration (--config names one): it was tried with the demo model, whose times are others."
            ));
        }
        let other = CommandError::Other;
        let faults =
            |faults: Vec<models::ModelFault>| faults.into_iter().map(|fault| fault.why).collect::<Vec<_>>();
        let plan = ServingPlan::new(&config, &InMemory::default())
            .map_err(|found| other(faults(found).join("\n")))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let workers = models::workers(&config).map_err(other)?;
        let running =
            models::start(&config, plan, &workers, &clock).map_err(|found| other(found.to_string()))?;
        let model = running.into_iter().next().ok_or_else(|| other("no model could be loaded".to_owned()))?;
        let capabilities = model.engine.capabilities();
        let (vocab, window) = (capabilities.vocab, u64::from(capabilities.context_window));
        Ok(Self { model: model.loaded.config.name.to_string(), vocab, window, engine: model.engine })
    }

    /// Cuts the shape to the context window.
    fn fitting(&self, shape: CallShape, notes: &mut Vec<String>) -> CallShape {
        let all = shape.prompt_tokens + shape.output_tokens;
        if all <= self.window {
            return shape;
        }
        let part = |tokens: u64| tokens * self.window / all;
        notes.push(format!("It was cut to {} of its {all} tokens, which the window takes.", self.window));
        let (computed, cached) = (part(shape.computed_tokens).max(1), part(shape.cached_tokens));
        CallShape {
            prompt_tokens: computed + cached,
            computed_tokens: computed,
            cached_tokens: cached,
            output_tokens: part(shape.output_tokens).max(1),
            ..shape
        }
    }

    /// Returns the median run of each shape. Runs of the two shapes alternate, so that other load on the machine
    /// affects both alike.
    fn measured(&self, shapes: [CallShape; 2], beside: usize) -> Result<[Ran; 2], String> {
        let mut company = Vec::new();
        for seed in 0..beside {
            company.push(self.company(seed as u64)?);
        }
        let mut runs = [Vec::with_capacity(RUNS), Vec::with_capacity(RUNS)];
        for run in 0..RUNS {
            for (shape, runs) in shapes.iter().zip(&mut runs) {
                runs.push(self.once(*shape, run as u64)?);
            }
            for (seed, events) in company.iter_mut().enumerate() {
                // A finished answer is replaced by a new one.
                if drained(events) {
                    *events = self.company(seed as u64)?;
                }
            }
        }
        let [before, after] = runs.map(middle);
        before.zip(after).map(Into::into).ok_or_else(|| "nothing ran".to_owned())
    }

    fn once(&self, shape: CallShape, run: u64) -> Result<Ran, String> {
        let cached = (shape.cached_tokens as usize / BLOCK_TOKENS) * BLOCK_TOKENS;
        let salt = CacheSalt::derive(&[7; 32], "counterfactual", &format!("{shape:?} {run}"), None);
        let mut prompt = drawn(cached, self.vocab, 1);
        if cached > 0 {
            // Compute the cached part once before. The last token of a prompt is always computed, so add one.
            let mut warm = prompt.clone();
            warm.extend(drawn(1, self.vocab, 2));
            self.finished(self.job(warm, 1, salt, run))?;
        }
        prompt.extend(drawn(
            shape.prompt_tokens as usize - cached.min(shape.prompt_tokens as usize),
            self.vocab,
            3 + run,
        ));
        let job = self.job(prompt, shape.output_tokens, salt, run);
        self.finished(job).map(|(report, first_token_ns, total_ns)| Ran {
            shape: CallShape {
                computed_tokens: report.usage.input,
                cached_tokens: report.usage.cached_input,
                output_tokens: report.usage.output,
                ..shape
            },
            engine: report.engine,
            usage: report.usage,
            first_token_ns,
            total_ns,
        })
    }

    fn finished(&self, job: Job) -> Result<(headrace_engine_api::JobReport, u64, u64), String> {
        let began = Instant::now();
        let nanos = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (mut events, _control) = self.engine.submit(job).map_err(|refused| refused.to_string())?.split();
        let mut first = None;
        while let Some(event) = events.next_blocking() {
            match event {
                JobEvent::Tokens { .. } => {
                    first.get_or_insert_with(nanos);
                }
                JobEvent::Done(report) => {
                    let total = nanos();
                    return Ok((Arc::unwrap_or_clone(report), first.unwrap_or(total), total));
                }
                JobEvent::Failed { error, .. } => return Err(error.to_string()),
                _ => {}
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("a run takes longer than {} s", PATIENCE.as_secs()));
            }
        }
        Err("the engine is gone".to_owned())
    }

    /// Starts another answer in the batch, and waits for its first tokens.
    fn company(&self, seed: u64) -> Result<JobEvents, String> {
        let salt = CacheSalt::derive(&[8; 32], "company", &seed.to_string(), None);
        let most = self.window.saturating_sub(BESIDE_PROMPT as u64);
        let job = self.job(drawn(BESIDE_PROMPT, self.vocab, 1_000 + seed), most, salt, seed);
        let (mut events, _control) = self.engine.submit(job).map_err(|refused| refused.to_string())?.split();
        while let Some(event) = events.next_blocking() {
            if matches!(event, JobEvent::Tokens { .. }) {
                return Ok(events);
            }
        }
        Err("an answer beside it did not begin".to_owned())
    }

    fn job(&self, prompt: Vec<u32>, output: u64, salt: CacheSalt, seed: u64) -> Job {
        let max_tokens = u32::try_from(output).unwrap_or(u32::MAX);
        let sampling = Sampling {
            max_tokens,
            ignore_eos: true,
            temperature: 0.0,
            top_k: NonZeroU32::new(1),
            ..Sampling::default()
        };
        Job {
            request: RequestId::from_bits(u128::from(seed)),
            first_choice: 0,
            prompt: prompt.into(),
            generated: 0,
            sampling,
            grammar: None,
            thought: None,
            salt,
            keys: None,
            pins: Arc::default(),
            held: None,
            tenant: Tenant(seed),
            weight: 1,
            priority: Priority::Normal,
            start_deadline_ns: None,
            trace: None,
            unread_bytes: usize::MAX,
        }
    }
}

/// Returns the run with the median duration.
fn middle(mut runs: Vec<Ran>) -> Option<Ran> {
    runs.sort_by_key(|run| run.total_ns);
    runs.into_iter().nth(RUNS / 2)
}

/// Takes all waiting events. Returns whether the answer has ended.
fn drained(events: &mut JobEvents) -> bool {
    while let Some(event) = events.try_next() {
        if matches!(event, JobEvent::Done(_) | JobEvent::Failed { .. }) {
            return true;
        }
    }
    false
}

/// Returns `count` pseudo-random ids, which depend only on `seed` (SplitMix64).
fn drawn(count: usize, vocab: u32, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..count).map(|_| u32::try_from(next() % u64::from(vocab.max(1))).unwrap_or(0)).collect()
}
