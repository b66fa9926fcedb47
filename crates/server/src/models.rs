//! Turns configured models into running engines: checkpoint, tokenizer, template, weights, KV pool. Shows progress if
//! that takes longer than a second. Knows no keys, no money and no HTTP.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use headrace_catalog::{Backend, ServedModel, TokenBackend};
use headrace_checkpoint::decoder::LinearConfig;
use headrace_checkpoint::{Checkpoint, DType, GenerationDefaults, ModelRefusal};
use headrace_config::arithmetic::{ArithmeticConfig, ComputeDevice};
use headrace_config::{EngineSettings, ModelConfig, ServerSettings};
use headrace_domain::{BLOCK_TOKENS, Clock, ModelName, SamplingDefaults};
use headrace_engine::{EmbeddedEngine, EngineConfig};
use headrace_engine_api::{Engine, SharedEngine};
use headrace_fleet::Worker;
use headrace_grammar::FormCompiler;
use headrace_inspect::Words;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::Forward;
use headrace_kernels::pool::Workers;
use headrace_kernels::{ComputeMode, Isa};
use headrace_model::{KvBlocks, KvGroups, KvUse, LoadOptions, Model, weight_bytes};
use headrace_prompt::ReplyFamily;
use headrace_terminal::output;
use headrace_terminal::progress::ProgressLine;

use crate::encoders::PlannedEncoder;
use crate::gpu::{self, GpuRequest};
use crate::machine;
use crate::running_model::{InMemory, LoadedModel, RunningModel, changed};
use crate::worker_offers::WorkerOffer;

/// The date on which the demo model was trained: 2026-11-20.
const DEMO_CREATED_UNIX_S: u64 = 1_795_132_800;
/// Memory reserved for everything except weights and KV pools, in bytes.
pub(crate) const RESERVE_BYTES: u64 = 256 << 20;
/// Minimum number of KV blocks of a model by default: one context of 4096 tokens.
const LEAST_BLOCKS: usize = 256;
/// Minimum number of KV blocks of a configured pool if no context length is configured: 256 tokens.
const LEAST_CONTEXT_BLOCKS: usize = 16;

/// A file of the demo model, which is built into the program.
macro_rules! demo_file {
    ($name:literal) => {
        (
            $name.to_owned(),
            Cow::Borrowed(&include_bytes!(concat!("../../../demo-model/checkpoint/", $name))[..]),
        )
    };
}

/// Models that could not be loaded, each with its reason.
#[derive(Debug)]
pub struct ModelFaults(Vec<(String, String)>);

impl fmt::Display for ModelFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl std::error::Error for ModelFaults {}

impl ModelFaults {
    /// One line per model.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(name, why)| format!("model `{name}` cannot be served: {why}")).collect()
    }
}

/// A reason why a model cannot be served.
pub struct ModelFault {
    /// The setting that could fix it.
    pub(crate) setting: String,
    /// What is wrong, with the numbers.
    pub why: String,
    /// What to do, if the model's files are at fault.
    pub(crate) way_out: Option<String>,
}

impl ModelFault {
    /// Creates the fault of a model that cannot be served.
    pub(crate) fn of_model(setting: &str, name: &ModelName, fault: ServingFault) -> Self {
        let why = format!("model `{name}` cannot be served: {}", fault.why);
        Self { setting: setting.to_owned(), why, way_out: fault.way_out }
    }
}

/// Why a model cannot be served, and what to do if its files are at fault.
pub(crate) struct ServingFault {
    why: String,
    way_out: Option<String>,
}

impl From<String> for ServingFault {
    fn from(why: String) -> Self {
        Self { why, way_out: None }
    }
}

impl From<ModelRefusal> for ServingFault {
    fn from(refusal: ModelRefusal) -> Self {
        Self { why: refusal.message, way_out: Some(refusal.way_out) }
    }
}

/// The models to run: checkpoints opened, tokenizer assets read, memory divided. Nothing is loaded yet.
pub struct ServingPlan {
    isa: Isa,
    models: Vec<PlannedModel>,
    encoders: Vec<PlannedEncoder>,
}

/// One model of a plan.
struct PlannedModel {
    config: ModelConfig,
    checkpoint: Checkpoint,
    text: Words,
    arithmetic: ArithmeticConfig,
    mode: ComputeMode,
    kv: KvType,
    weight_bytes: u64,
    created_unix_s: u64,
    max_positions: usize,
    kv_blocks: KvBlocks,
    /// Whether it already runs as configured.
    runs: bool,
}

impl ServingPlan {
    /// Opens every model and divides the memory that `present` leaves.
    ///
    /// # Errors
    /// Returns every fault of a model that can be found without loading its weights.
    pub fn new(config: &ServerSettings, present: &InMemory) -> Result<Self, Vec<ModelFault>> {
        let mut faults = Vec::new();
        let isa = Isa::choose(config.engine.isa.as_deref());
        let isa = isa.map_err(|error| faults.push(fault("engine.isa", error.to_string()))).ok();
        let (mut models, mut encoders) = (Vec::new(), Vec::new());
        for model in &config.models {
            if present.no_engines {
                faults.push(fault(&model.setting, without_engines(&model.name)));
                continue;
            }
            let found = match PlannedEncoder::open(model, &config.engine, present) {
                Some(encoder) => encoder.map(|encoder| encoders.push(encoder)).map_err(ServingFault::from),
                None => PlannedModel::open(model, &config.engine, present).map(|model| models.push(model)),
            };
            if let Err(why) = found {
                faults.push(ModelFault::of_model(&model.setting, &model.name, why));
            }
        }
        let runs = models.iter().map(|model| (&model.config, model.runs));
        let runs = runs.chain(encoders.iter().map(|model| (&model.config, model.runs)));
        faults.extend(runs.filter_map(|(model, runs)| too_many_threads(model, runs, present)));
        let beside = encoders.iter().fold(0_u64, |sum, encoder| sum.saturating_add(encoder.bytes()));
        part_memory(&mut models, beside, config, present, &mut faults);
        match isa {
            Some(isa) if faults.is_empty() => Ok(Self { isa, models, encoders }),
            _ => Err(faults),
        }
    }

    /// The names of its models: decoders first, then encoders.
    pub(crate) fn names(&self) -> impl Iterator<Item = &ModelName> {
        let decoders = self.models.iter().map(|model| &model.config.name);
        decoders.chain(self.encoders.iter().map(|encoder| &encoder.config.name))
    }

    /// Answer length of a model for callers that set none. `None` leaves it to the gateway's default.
    pub(crate) fn default_max_tokens(&self, name: &ModelName) -> Option<u32> {
        let model = self.models.iter().find(|model| model.config.name == *name)?;
        model.config.default_max_tokens.or(model.recommended())
    }

    /// A table with one line per model: how it will be served.
    pub fn describe(&self, config: &ServerSettings) -> String {
        let rows = self.models.iter().map(|model| {
            let (answer, from) = model.default_max_tokens(config);
            let held = model.kv_groups().layout(model.kv_blocks).positions(config.scheduler.chunk());
            // The capacity of a GPU is known only after loading.
            let context = if model.on_gpu() { model.max_positions } else { model.max_positions.min(held) };
            vec![
                model.config.name.to_string(),
                format!("{context} tokens"),
                format!("{answer} tokens ({from})"),
                model.numerics(),
                format!("{} MiB", model.weight_bytes >> 20),
                if model.on_gpu() {
                    "of the GPU".to_owned()
                } else {
                    format!("{} MiB", model.kv_bytes() >> 20)
                },
            ]
        });
        let head =
            ["model", "context", "answer where the caller names no length", "numerics", "weights", "KV"];
        output::table(&head, rows.chain(self.encoders.iter().map(PlannedEncoder::row)).collect())
    }
}

fn fault(setting: &str, why: String) -> ModelFault {
    ModelFault { setting: setting.to_owned(), why, way_out: None }
}

/// Why a server without engines refuses a model of its configuration.
fn without_engines(name: &ModelName) -> String {
    format!(
        "model `{name}` cannot be served: this server has no engines to load it; name other servers in its `targets`, or \
         serve it where engines run"
    )
}

/// Reports a model that asks for more threads than the process has. Only a restart can start more.
fn too_many_threads(model: &ModelConfig, runs: bool, present: &InMemory) -> Option<ModelFault> {
    let (asked, there) = (model.threads?, present.threads?);
    let why = || format!("{asked} threads, and the process computes on {there}: more need a restart");
    (!runs && asked > there).then(|| fault(&format!("{}.threads", model.setting), why()))
}

/// Starts the compute threads that all models share: the configured number, or the largest number that a single model
/// asks for.
///
/// # Errors
/// Returns why the system gives no threads.
pub fn workers(config: &ServerSettings) -> Result<Arc<Workers>, String> {
    let all = config.engine.threads.unwrap_or_else(machine::processors);
    let most = config.models.iter().filter_map(|model| model.threads).fold(all, usize::max);
    Workers::new(most).map_err(|error| error.to_string())
}

/// Loads and starts all models of a plan that do not run yet, on shared threads.
///
/// # Errors
/// Returns every model that cannot be loaded. In that case, none of the newly loaded ones stays in memory.
pub fn start(
    config: &ServerSettings,
    plan: ServingPlan,
    workers: &Arc<Workers>,
    clock: &Arc<dyn Clock>,
) -> Result<Vec<RunningModel>, ModelFaults> {
    let (mut faults, mut running) = (Vec::new(), Vec::new());
    for model in plan.models.into_iter().filter(|model| !model.runs) {
        let name = model.config.name.to_string();
        match run(model, config, plan.isa, workers, clock) {
            Ok(started) => running.push(started),
            Err(why) => faults.push((name, why)),
        }
    }
    for encoder in plan.encoders.into_iter().filter(|encoder| !encoder.runs) {
        let name = encoder.config.name.to_string();
        match encoder.run(config, plan.isa, workers, clock) {
            Ok(started) => running.push(started),
            Err(why) => faults.push((name, why)),
        }
    }
    if faults.is_empty() { Ok(running) } else { Err(ModelFaults(faults)) }
}

impl PlannedModel {
    fn open(config: &ModelConfig, engine: &EngineSettings, present: &InMemory) -> Result<Self, ServingFault> {
        let checkpoint = open_checkpoint(config.path.as_deref())?;
        let text = words_of(&checkpoint, config.reply)?;
        checkpoint.warnings().iter().for_each(|warning| output::note(&format!("warning: {warning}")));
        let arithmetic = config.arithmetic.or(engine.arithmetic);
        if arithmetic.place() == ComputeDevice::Cuda {
            gpu::possible()?;
            arithmetic.on_gpu()?;
        }
        let weights = weight_bytes(&checkpoint, arithmetic.quantize).map_err(|error| error.to_string())?;
        let (mode, kv) = arithmetic.settle(mostly_quantized(&checkpoint, arithmetic));
        let own = checkpoint.config().max_positions;
        let asked = config.max_positions.or(engine.max_positions);
        let running = present.running.iter().find(|loaded| loaded.config.is_loaded_as(config));
        Ok(Self {
            config: config.clone(),
            created_unix_s: config.path.as_deref().map_or(DEMO_CREATED_UNIX_S, changed),
            weight_bytes: u64::try_from(weights).unwrap_or(u64::MAX),
            max_positions: asked.map_or(own, |asked| asked.min(own)),
            kv_blocks: running.map_or(KvBlocks::default(), |loaded| loaded.kv_blocks),
            runs: running.is_some(),
            checkpoint,
            text,
            arithmetic,
            mode,
            kv,
        })
    }

    fn on_gpu(&self) -> bool {
        self.arithmetic.place() == ComputeDevice::Cuda
    }

    /// Whether it needs memory of this machine that is not allocated yet.
    fn takes_memory(&self) -> bool {
        !self.runs && !self.on_gpu()
    }

    /// Its compute mode and KV type.
    fn numerics(&self) -> String {
        if self.on_gpu() { "cuda/bf16".to_owned() } else { format!("{}/{}", self.mode, self.kv) }
    }

    /// KV blocks of the first cache group that full contexts of all running sequences could use. Further blocks would be
    /// idle.
    fn useful_blocks(&self, config: &ServerSettings) -> usize {
        self.kv_groups().useful(self.kv_use(config)).max(LEAST_BLOCKS)
    }

    fn kv_groups(&self) -> KvGroups {
        KvGroups::of(self.checkpoint.config(), self.kv)
    }

    fn kv_use(&self, config: &ServerSettings) -> KvUse {
        let scheduler = &config.scheduler;
        KvUse { sequences: scheduler.max_running, chunk: scheduler.chunk(), tokens: self.max_positions }
    }

    fn kv_bytes(&self) -> u64 {
        u64::try_from(self.kv_groups().bytes(self.kv_blocks)).unwrap_or(u64::MAX)
    }

    /// Bytes of weights and KV pool in this machine's memory.
    fn bytes(&self) -> u64 {
        if self.on_gpu() { 0 } else { self.weight_bytes.saturating_add(self.kv_bytes()) }
    }

    /// Answer length for callers that set none, and the setting or file that it comes from.
    fn default_max_tokens(&self, config: &ServerSettings) -> (u32, &'static str) {
        let named = self.config.default_max_tokens.map(|count| (count, "its `default_max_tokens`"));
        let generation = self.recommended().map(|count| (count, "its generation_config.json"));
        named.or(generation).unwrap_or((config.gateway.default_max_tokens, "gateway.default_max_tokens"))
    }

    fn recommended(&self) -> Option<u32> {
        self.checkpoint.generation().max_new_tokens.and_then(|count| u32::try_from(count).ok())
    }
}

/// Divides the memory between the KV pools. A pool of a configured size must hold a context and fit the machine. The
/// other pools share half of what the weights and a reserve leave. Each of them is bounded by what full contexts of all
/// running sequences could use. Running models keep their pools, and ending models count until they have ended.
/// Encoders have no pool; only their weights, `beside`, count.
fn part_memory(
    models: &mut [PlannedModel],
    beside: u64,
    config: &ServerSettings,
    present: &InMemory,
    faults: &mut Vec<ModelFault>,
) {
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let here = || models.iter().filter(|model| !model.on_gpu());
    let weights = sum(&mut here().map(|model| model.weight_bytes)).saturating_add(beside);
    let configured = |model: &PlannedModel| model.config.kv_bytes.or(config.engine.kv_bytes);
    let goes = |loaded: &&LoadedModel| !config.models.iter().any(|model| loaded.config.is_loaded_as(model));
    let going = sum(&mut present.running.iter().filter(goes).map(|loaded| loaded.bytes));
    let kept = sum(&mut here().filter(|model| model.runs).map(PlannedModel::kv_bytes));
    let taken = weights.saturating_add(going).saturating_add(present.ending_bytes).saturating_add(kept);
    let pools = sum(&mut here().filter(|model| !model.runs).filter_map(configured));
    let free = machine::known_memory_bytes().map(|memory| memory.saturating_sub(taken));
    let new = here().filter(|model| !model.runs).count();
    let shares = u64::try_from(new).unwrap_or(1).max(1);
    let left = machine::memory_bytes().saturating_sub(taken).saturating_sub(RESERVE_BYTES) / 2 / shares;
    for model in models.iter_mut().filter(|model| model.takes_memory()) {
        size_pool(model, config, left, faults);
        if let (Some(_), Some(free)) = (configured(model), free.filter(|free| pools > *free)) {
            let why = format!(
                "the KV caches of {} models come to {}, and {} of memory are left beside {} of weights{}: give less",
                if taken > weights { "new" } else { "all" },
                size(pools),
                size(free),
                size(weights),
                if taken > weights {
                    format!(" and {} in use", size(taken - weights))
                } else {
                    String::new()
                },
            );
            faults.push(fault(&pool_setting(model), why));
        }
    }
    // A running server must not be put at risk, so new models must fit beside everything in memory.
    let whole = sum(&mut models.iter().filter(|model| model.takes_memory()).map(PlannedModel::kv_bytes))
        .saturating_add(taken);
    let memory = machine::known_memory_bytes().filter(|memory| whole > *memory);
    if let Some(memory) = memory.filter(|_| faults.is_empty() && new > 0 && !present.running.is_empty()) {
        let why = format!(
            "with the new models they need {}, {} of it for models that end with their last calls, and the machine has {}: \
             wait until those have ended, or give less",
            size(whole),
            size(going.saturating_add(present.ending_bytes)),
            size(memory),
        );
        faults.push(fault("models", why));
    }
}

/// Sizes a pool: the configured bytes, or what `left` bytes hold, between [`LEAST_BLOCKS`] and the useful blocks.
fn size_pool(model: &mut PlannedModel, config: &ServerSettings, left: u64, faults: &mut Vec<ModelFault>) {
    let (groups, usage) = (model.kv_groups(), model.kv_use(config));
    let affordable = |bytes: u64| groups.fitting(usize::try_from(bytes).unwrap_or(usize::MAX), usage);
    let full = groups.needed(model.max_positions, usage.chunk);
    let Some(bytes) = model.config.kv_bytes.or(config.engine.kv_bytes) else {
        let useful = model.useful_blocks(config);
        let first = affordable(left).clamp(LEAST_BLOCKS.min(useful), useful);
        model.kv_blocks = groups.beside(first, usage);
        return;
    };
    let first = affordable(bytes);
    model.kv_blocks = groups.beside(first, usage);
    let asked = model.config.max_positions.or(config.engine.max_positions).is_some();
    let least = if asked { full } else { full.min(LEAST_CONTEXT_BLOCKS) };
    if first < least {
        let why = format!(
            "{} holds {} tokens of model `{}`; a context of {} tokens needs {}: give that much{}",
            size(bytes),
            first.saturating_mul(BLOCK_TOKENS),
            model.config.name,
            least.saturating_mul(BLOCK_TOKENS),
            size(u64::try_from(groups.bytes(groups.beside(least, usage))).unwrap_or(u64::MAX)),
            if asked { ", or lower `max_positions`" } else { " or more" },
        );
        faults.push(fault(&pool_setting(model), why));
    }
}

/// The setting that gives a configured pool its size.
fn pool_setting(model: &PlannedModel) -> String {
    let own = model.config.kv_bytes.is_some();
    if own { format!("{}.kv_memory", model.config.setting) } else { "engine.kv_memory".to_owned() }
}

/// A size for display, rounded up.
fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes < MIB {
        format!("{} KiB", bytes.div_ceil(1 << 10))
    } else {
        format!("{} MiB", bytes.div_ceil(MIB))
    }
}

/// Opens a directory, a file, or the demo model.
///
/// # Errors
/// Returns why it is refused, beginning with its path.
pub fn open_checkpoint(path: Option<&Path>) -> Result<Checkpoint, ModelRefusal> {
    match path {
        None => Checkpoint::from_files(demo_files()).map_err(|error| ModelRefusal::from(&error)),
        Some(path) => Checkpoint::open(path).map_err(|error| ModelRefusal::of_path(path, &error)),
    }
}

/// Whether most weights are quantized blocks, or will be.
fn mostly_quantized(checkpoint: &Checkpoint, arithmetic: ArithmeticConfig) -> bool {
    let matrices = checkpoint.config().layers.iter().flat_map(|layer| layer.matrices()).flatten();
    let is_block =
        |linear: &LinearConfig| matches!(checkpoint.dtype(&linear.weight.tensor.name), Some(DType::Block(_)));
    let (all, blocks) =
        matrices.fold((0, 0), |(all, blocks), linear| (all + 1, blocks + usize::from(is_block(linear))));
    arithmetic.quantize.is_some() || 2 * blocks > all
}

pub(crate) fn demo_files() -> Vec<(String, Cow<'static, [u8]>)> {
    vec![
        demo_file!("config.json"),
        demo_file!("generation_config.json"),
        demo_file!("model.safetensors"),
        demo_file!("tokenizer.json"),
        demo_file!("tokenizer_config.json"),
    ]
}

/// The sampling defaults that the model's authors recommend.
pub(crate) fn recommended_sampling(generation: &GenerationDefaults) -> SamplingDefaults {
    SamplingDefaults {
        temperature: generation.temperature,
        top_p: generation.top_p,
        top_k: generation.top_k.and_then(std::num::NonZeroU32::new),
        min_p: generation.min_p,
        repetition_penalty: generation.repetition_penalty,
    }
}

fn run(
    model: PlannedModel,
    config: &ServerSettings,
    isa: Isa,
    workers: &Arc<Workers>,
    clock: &Arc<dyn Clock>,
) -> Result<RunningModel, String> {
    let recommended = model.recommended();
    let mut progress = ProgressLine::new(&format!("loading {}", model.config.name));
    let forward = forward(&model, config, isa, workers, &mut |done, total| progress.bytes(done, total))?;
    progress.end();
    let (kv_blocks, bytes) = (model.kv_blocks, model.bytes());
    let loaded = LoadedModel { config: model.config.clone(), kv_blocks, bytes };
    let compute_mode = if model.on_gpu() { "bf16".to_owned() } else { model.mode.to_string() };
    let (named, checkpoint, text) = (&model.config, &model.checkpoint, model.text);
    checkpoint.release_pages();
    let generation = checkpoint.generation();
    let eos = generation.eos.clone().unwrap_or_else(|| checkpoint.config().eos.clone());
    let engine = EngineConfig {
        model: named.name.to_string(),
        compute_mode,
        eos: eos.clone(),
        skip_special: true,
        max_choices: config.engine.max_choices,
        isa,
        scheduler: config.scheduler.clone(),
        clock: Arc::clone(clock),
    };
    let engine = EmbeddedEngine::start(forward, Arc::clone(&text.tokenizer), engine);
    let engine = Arc::new(engine.map_err(|error| error.to_string())?);
    let offer = || WorkerOffer::new(checkpoint, engine.capabilities(), model.arithmetic);
    let offered = config.worker_secret.is_some().then(offer).transpose()?;
    let grammars = FormCompiler::new(Arc::clone(&text.tokenizer), &eos, engine.capabilities().vocab);
    let shared: SharedEngine = Arc::clone(&engine) as SharedEngine;
    let served = ServedModel {
        name: named.name.clone(),
        backend: Backend::Tokens(TokenBackend {
            tokenizer: text.tokenizer,
            template: text.template,
            replies: text.replies,
            defaults: recommended_sampling(generation),
            capabilities: engine.capabilities().clone(),
            grammars: Arc::new(grammars),
        }),
        created_unix_s: model.created_unix_s,
        default_max_tokens: named.default_max_tokens.or(recommended),
        limits: named.limits,
        policy: named.policy(),
    };
    let worker = Worker::new(&format!("{}@local", named.name), named.name.clone(), shared);
    let worker = worker.within(config.gateway.region.clone());
    Ok(RunningModel { loaded, served: Arc::new(served), worker: Arc::new(worker), engine, offered })
}

/// Loads the weights to the device that computes the model.
fn forward(
    model: &PlannedModel,
    config: &ServerSettings,
    isa: Isa,
    workers: &Arc<Workers>,
    told: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Forward>, String> {
    let threads = model.config.threads.or(config.engine.threads).unwrap_or_else(|| workers.threads());
    if model.on_gpu() {
        let wanted = GpuRequest {
            kv_bytes: model.config.kv_bytes.or(config.engine.kv_bytes),
            usage: model.kv_use(config),
            useful_blocks: model.useful_blocks(config),
            step_tokens: config.scheduler.step_tokens,
            threads,
        };
        return gpu::load(&model.checkpoint, &wanted, told);
    }
    let options = LoadOptions {
        isa,
        threads,
        kv_blocks: model.kv_blocks,
        chunk: config.scheduler.chunk(),
        max_positions: Some(model.max_positions),
        mode: model.mode,
        kv: model.kv,
        quantize: model.arithmetic.quantize,
    };
    let loaded = Model::load_over(workers, &model.checkpoint, options, told);
    loaded.map(|loaded| Box::new(loaded) as _).map_err(|error| error.to_string())
}

/// Reads a checkpoint's tokenizer assets, or returns why they cannot be served. `family` overrides the format of tool
/// calls that the template implies.
pub fn words_of(checkpoint: &Checkpoint, family: Option<ReplyFamily>) -> Result<Words, ModelRefusal> {
    let (json, config) = (checkpoint.tokenizer_json(), checkpoint.tokenizer_config());
    Words::read(json, config, checkpoint.chat_template(), family).map_err(|error| ModelRefusal::from(&error))
}
