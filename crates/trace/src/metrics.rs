//! All metrics for Prometheus, in atomics: counting a request does not wait and does not allocate. Labels are bounded:
//! models are those served (others are `other`), and codes and rules are those in the table of refusals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use headrace_domain::{
    CallOutcome, Code, Endpoint, EngineTrace, NanoDollars, Stage, TokenClass, TraceRecord, UnixNanos,
};

use crate::context::TraceContext;
use crate::family::{Exemplar, FamilyKind};
use crate::gauges::{GaugeRegistry, Read};
use crate::histogram::{BATCH_BOUNDS_MILLI, DURATION_BOUNDS_NS, Histogram};
use crate::intern::InternedNames;
use crate::labels::LabelList;

mod pages;

/// Decimal places of nanoseconds in seconds.
const NANO: u32 = 9;
/// Decimal places of thousandths in units.
const MILLI: u32 = 3;

const ENDPOINTS: [&str; 8] = [
    Endpoint::ChatCompletions.name(),
    Endpoint::Completions.name(),
    Endpoint::Messages.name(),
    Endpoint::Responses.name(),
    Endpoint::Embeddings.name(),
    Endpoint::Rerank.name(),
    Endpoint::Score.name(),
    // Requests refused before their path was known.
    "none",
];

/// Rules whose name differs from their error's code.
const OTHER_RULES: [&str; 2] = ["balance", "budget"];

/// All names in the table of refusals.
fn names() -> impl Iterator<Item = &'static str> {
    Code::ALL.iter().map(|code| code.name())
}

/// Why a record never reached the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropReason {
    QueueFull,
    StoreFailed,
    Closed,
    /// The caller is unknown, and this second's quota for such records is used up.
    Sampled,
}

impl DropReason {
    const ALL: [Self; 4] = [Self::QueueFull, Self::StoreFailed, Self::Closed, Self::Sampled];

    const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::StoreFailed => "store_failed",
            Self::Closed => "closed",
            Self::Sampled => "sampled",
        }
    }
}

/// Configuration of the metrics.
#[derive(Debug, Clone, Default)]
pub struct MetricsConfig {
    /// The models that have their own label from the start.
    pub models: Vec<String>,
    /// The program's version, for `headrace_build_info`.
    pub version: String,
}

/// The metrics registry, one per scraped process. Share it with `Arc`.
pub struct Metrics {
    version: String,
    models: LabelList,
    codes: InternedNames,
    rules: InternedNames,
    finishes: InternedNames,
    stages: [Histogram; Stage::ALL.len()],
    duration: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    batch: Histogram,
    journal: Histogram,
    /// Indexed by endpoint, then outcome and code, then model.
    requests: Box<[AtomicU64]>,
    /// Indexed by stage, then rule.
    refusals: Box<[AtomicU64]>,
    failures: [AtomicU64; Stage::ALL.len()],
    finished: Box<[AtomicU64]>,
    /// Indexed by model, then class.
    tokens: Box<[AtomicU64]>,
    cost: Box<[AtomicU64]>,
    loss: Box<[AtomicU64]>,
    blocks_hit: AtomicU64,
    blocks_missed: AtomicU64,
    preemptions: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
    stored: AtomicU64,
    gauges: GaugeRegistry,
}

impl Metrics {
    /// Creates an empty registry.
    pub fn new(config: &MetricsConfig) -> Self {
        let models = LabelList::new(&config.models);
        let codes = InternedNames::new(names());
        let rules = InternedNames::new(names().chain(OTHER_RULES));
        let finishes = InternedNames::new([]);
        Self {
            version: config.version.clone(),
            requests: zeros(ENDPOINTS.len() * (PLAIN_OUTCOMES + codes.len()) * models.len()),
            refusals: zeros(Stage::ALL.len() * rules.len()),
            finished: zeros(finishes.len()),
            tokens: zeros(models.len() * TokenClass::ALL.len()),
            cost: zeros(models.len()),
            loss: zeros(models.len()),
            stages: std::array::from_fn(|_| Histogram::new(&DURATION_BOUNDS_NS)),
            failures: std::array::from_fn(|_| AtomicU64::new(0)),
            drops: std::array::from_fn(|_| AtomicU64::new(0)),
            duration: Histogram::new(&DURATION_BOUNDS_NS),
            first_token: Histogram::new(&DURATION_BOUNDS_NS),
            inter_token: Histogram::new(&DURATION_BOUNDS_NS),
            journal: Histogram::new(&DURATION_BOUNDS_NS),
            batch: Histogram::new(&BATCH_BOUNDS_MILLI),
            blocks_hit: AtomicU64::new(0),
            blocks_missed: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            gauges: GaugeRegistry::default(),
            models,
            codes,
            rules,
            finishes,
        }
    }

    /// Records how long a group commit of the ledger's journal took to become durable.
    pub fn observe_journal(&self, took: Duration) {
        self.journal.observe(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Gives a newly served model its own label, if there is room. Otherwise the model counts as `other`.
    pub fn add_model(&self, name: &str) {
        self.models.add(name);
    }

    /// Registers a gauge that another crate owns. `read` is called at each scrape; it must be quick and must not call
    /// back into the metrics. Registering the same name and labels again replaces the callback. A name that this
    /// registry uses itself is not shown.
    pub fn register_gauge(&self, name: &str, help: &str, labels: &[(&str, &str)], read: Read) {
        self.gauges.register(name, help, FamilyKind::Gauge, labels, read);
    }

    /// Like [`Metrics::register_gauge`], for a value that only grows.
    pub fn register_counter(&self, name: &str, help: &str, labels: &[(&str, &str)], read: Read) {
        self.gauges.register(name, help, FamilyKind::Counter, labels, read);
    }

    /// Removes all registered gauges and counters with this label, and drops their callbacks.
    pub fn unregister(&self, label: (&str, &str)) {
        self.gauges.unregister(label);
    }

    /// Counts a finished request. Of a shadow copy, only the loss is counted. Skips worker jobs: the gateway that sent
    /// the job counts the call.
    pub fn observe(&self, record: &TraceRecord) {
        if record.worker_job.is_some() {
            return;
        }
        let model = self.model_index(record);
        if record.shadow_of.is_some() {
            // A shadow copy is no client's request, so it must not appear among the clients' figures. Its cost is the
            // operator's loss.
            return add(&self.loss, model, amount(record.loss));
        }
        let call = exemplar(record);
        self.observe_stages(record, &call);
        self.duration.observe_of(record.duration_ns, &call);
        if let Some(nanos) = record.time_to_first_token_ns() {
            self.first_token.observe_of(nanos, &call);
        }
        self.observe_outcome(record, model);
        let classes = self.tokens.get(model * TokenClass::ALL.len()..).unwrap_or_default();
        for (counter, class) in classes.iter().zip(TokenClass::ALL) {
            let tokens = record.usage.of(class);
            if tokens > 0 {
                counter.fetch_add(tokens, Relaxed);
            }
        }
        add(&self.cost, model, amount(record.cost));
        add(&self.loss, model, amount(record.loss));
        if let Some(engine) = &record.engine {
            self.observe_engine(record, engine, &call);
        }
    }

    /// Observes the time per stage. A stage with several spans counts once, with their total time.
    fn observe_stages(&self, record: &TraceRecord, call: &Exemplar) {
        let mut times = [None::<u64>; Stage::ALL.len()];
        for span in &record.stages {
            if let Some(time) = times.get_mut(stage_index(span.stage)) {
                *time = Some(time.unwrap_or(0).saturating_add(span.duration_ns));
            }
        }
        for (histogram, time) in self.stages.iter().zip(times) {
            if let Some(nanos) = time {
                histogram.observe_of(nanos, call);
            }
        }
    }

    fn observe_outcome(&self, record: &TraceRecord, model: usize) {
        let endpoint = endpoint_index(record.endpoint);
        let how = match &record.outcome {
            CallOutcome::Completed { finish } => {
                for reason in finish {
                    add(&self.finished, self.finishes.index(reason), 1);
                }
                0
            }
            CallOutcome::Cancelled { .. } => 1,
            CallOutcome::Failed { stage, .. } => {
                add(&self.failures, stage_index(*stage), 1);
                2
            }
            CallOutcome::Refused(refusal) => {
                let rule = self.rules.index(&refusal.rule);
                add(&self.refusals, stage_index(refusal.stage) * self.rules.len() + rule, 1);
                PLAIN_OUTCOMES + self.codes.index(&refusal.code)
            }
        };
        let hows = PLAIN_OUTCOMES + self.codes.len();
        add(&self.requests, (endpoint * hows + how) * self.models.len() + model, 1);
    }

    fn observe_engine(&self, record: &TraceRecord, engine: &EngineTrace, call: &Exemplar) {
        if let Some(gap) = inter_token_ns(record) {
            self.inter_token.observe_of(gap, call);
        }
        if let Some(mean) = engine.batch_sum.saturating_mul(1_000).checked_div(engine.steps.into()) {
            self.batch.observe_of(mean, call);
        }
        let missed = engine.prompt_blocks.saturating_sub(engine.cached_blocks);
        self.blocks_hit.fetch_add(engine.cached_blocks.into(), Relaxed);
        self.blocks_missed.fetch_add(missed.into(), Relaxed);
        self.preemptions.fetch_add(engine.preemptions.into(), Relaxed);
    }

    fn model_index(&self, record: &TraceRecord) -> usize {
        self.models.index(record.model_served.as_deref().or(record.model_asked.as_deref()))
    }

    pub(crate) fn count_drops(&self, reason: DropReason, records: usize) {
        let at = DropReason::ALL.iter().position(|r| *r == reason).unwrap_or(0);
        add(&self.drops, at, u64::try_from(records).unwrap_or(u64::MAX));
    }

    pub(crate) fn count_stored(&self, records: usize) {
        self.stored.fetch_add(u64::try_from(records).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn trace_drops(&self) -> u64 {
        self.drops.iter().map(|count| count.load(Relaxed)).sum()
    }
}

/// The call as an exemplar, without a value yet.
fn exemplar(record: &TraceRecord) -> Exemplar {
    let at = UnixNanos::new(record.started.get().saturating_add(record.duration_ns));
    Exemplar { value: 0, at, request: record.request_id, context: TraceContext::of(record) }
}

/// Number of outcomes without a code: completed, cancelled, failed.
const PLAIN_OUTCOMES: usize = 3;

/// Mean nanoseconds between a request's tokens: its decode time, without pauses for a slow reader, divided by the gaps
/// of one choice.
pub(crate) fn inter_token_ns(record: &TraceRecord) -> Option<u64> {
    let choices = match &record.outcome {
        CallOutcome::Completed { finish } => u64::try_from(finish.len()).unwrap_or(1).max(1),
        _ => 1,
    };
    // The engine's times are the first choice's, but the tokens are those of all choices.
    let gaps = (record.usage.completion_tokens() / choices).checked_sub(1)?;
    let engine = record.engine.as_ref()?;
    engine.decode_ns.saturating_sub(engine.paused_ns).checked_div(gaps)
}

fn zeros(n: usize) -> Box<[AtomicU64]> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

fn add(counters: &[AtomicU64], at: usize, by: u64) {
    if let Some(counter) = counters.get(at).filter(|_| by > 0) {
        counter.fetch_add(by, Relaxed);
    }
}

fn load(counters: &[AtomicU64], at: usize) -> u64 {
    counters.get(at).map_or(0, |counter| counter.load(Relaxed))
}

fn nonzero(counters: &[AtomicU64]) -> impl Iterator<Item = (usize, u64)> {
    counters.iter().map(|counter| counter.load(Relaxed)).enumerate().filter(|(_, count)| *count > 0)
}

fn name_at<S: AsRef<str>>(names: &[S], at: usize) -> &str {
    names.get(at).map_or("other", AsRef::as_ref)
}

fn stage_index(stage: Stage) -> usize {
    // `Stage::ALL` lists the variants in the order of their declaration.
    stage as usize
}

fn stage_at(at: usize) -> &'static str {
    Stage::ALL.get(at).map_or("other", |stage| stage.name())
}

fn endpoint_index(endpoint: Option<Endpoint>) -> usize {
    match endpoint {
        Some(Endpoint::ChatCompletions) => 0,
        Some(Endpoint::Completions) => 1,
        Some(Endpoint::Messages) => 2,
        Some(Endpoint::Responses) => 3,
        Some(Endpoint::Embeddings) => 4,
        Some(Endpoint::Rerank) => 5,
        Some(Endpoint::Score) => 6,
        None => 7,
    }
}

/// A counter cannot fall, so a negative amount (a correction) counts as 0.
fn amount(money: NanoDollars) -> u64 {
    u64::try_from(money.get()).unwrap_or(0)
}
