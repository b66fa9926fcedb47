//! From configured models to engines that run: checkpoint, tokenizer, template, weights, KV pool. Says how far it is
//! when it takes longer than a second. Knows no keys, no money and no HTTP.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headrace_checkpoint::{Checkpoint, DType};
use headrace_domain::{BLOCK_TOKENS, Clock, SamplingDefaults};
use headrace_engine::{EmbeddedEngine, EngineConfig};
use headrace_engine_api::{Engine, SharedEngine};
use headrace_fleet::Worker;
use headrace_gateway::ServedModel;
use headrace_kernels::attention::KvType;
use headrace_kernels::{ComputeMode, Isa};
use headrace_model::{LoadOptions, Model, kv_bytes_per_block, weight_bytes};
use headrace_prompt::{ChatTemplate, ReplyFamily, SpecialTokenTexts, TemplateLimits};
use headrace_scheduler::SchedulerConfig;
use headrace_tokenizer::Tokenizer;

use crate::config::arithmetic::Arithmetic;
use crate::config::{Config, EngineSettings, ModelConfig};
use crate::machine;
use crate::progress::Progress;

/// When the demo model was trained: 2026-11-20.
const DEMO_CREATED_UNIX_S: u64 = 1_795_132_800;
/// Memory left to everything that is neither weights nor KV.
pub(crate) const RESERVE_BYTES: u64 = 256 << 20;
/// KV blocks that a model gets at least by default: one context of 4096 tokens.
const LEAST_BLOCKS: usize = 256;

/// The demo model's files, in the program.
macro_rules! demo_file {
    ($name:literal) => {
        (
            $name.to_owned(),
            Cow::Borrowed(&include_bytes!(concat!("../../../demo-model/checkpoint/", $name))[..]),
        )
    };
}

/// A model that runs.
pub(crate) struct Running {
    /// For the gateway.
    pub(crate) served: ServedModel,
    /// For the fleet.
    pub(crate) worker: Worker,
    /// For gauges and for the end.
    pub(crate) engine: Arc<EmbeddedEngine>,
}

/// Models that could not be loaded, each with its reason.
#[derive(Debug)]
pub(crate) struct ModelFaults(Vec<(String, String)>);

impl fmt::Display for ModelFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, why)) in self.0.iter().enumerate() {
            let line = if index == 0 { "" } else { "\n" };
            write!(f, "{line}model `{name}` cannot be served: {why}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ModelFaults {}

/// A checkpoint that was opened.
struct Opened<'a> {
    config: &'a ModelConfig,
    checkpoint: Checkpoint,
    arithmetic: Arithmetic,
    mode: ComputeMode,
    kv: KvType,
    weight_bytes: u64,
    created_unix_s: u64,
}

/// Loads and starts all models.
///
/// # Errors
/// Every model that cannot be served, at once.
pub(crate) fn start(config: &Config, clock: &Arc<dyn Clock>) -> Result<Vec<Running>, ModelFaults> {
    let mut faults = Vec::new();
    let isa = match Isa::choose(config.engine.isa.as_deref()) {
        Ok(isa) => isa,
        Err(error) => return Err(ModelFaults(vec![("any".to_owned(), error.to_string())])),
    };
    let mut opened = Vec::new();
    for model in &config.models {
        match open(model, config.engine.arithmetic) {
            Ok(found) => opened.push(found),
            Err(why) => faults.push((model.name.to_string(), why)),
        }
    }
    if !faults.is_empty() {
        return Err(ModelFaults(faults));
    }
    let pool = KvBudget::new(&opened, &config.engine);
    let mut running = Vec::new();
    for model in opened {
        let name = model.config.name.to_string();
        match run(model, config, isa, &pool, clock) {
            Ok(started) => running.push(started),
            Err(why) => faults.push((name, why)),
        }
    }
    if faults.is_empty() { Ok(running) } else { Err(ModelFaults(faults)) }
}

fn open(config: &ModelConfig, general: Arithmetic) -> Result<Opened<'_>, String> {
    let checkpoint = open_checkpoint(config.path.as_deref())?;
    let created_unix_s = config.path.as_deref().map_or(DEMO_CREATED_UNIX_S, changed);
    let arithmetic = config.arithmetic.or(general);
    let weights = weight_bytes(&checkpoint, arithmetic.quantize).map_err(|error| error.to_string())?;
    let weight_bytes = u64::try_from(weights).unwrap_or(u64::MAX);
    let (mode, kv) = arithmetic.settle(mostly_quantized(&checkpoint, arithmetic));
    Ok(Opened { config, checkpoint, arithmetic, mode, kv, weight_bytes, created_unix_s })
}

/// A directory or file, or the demo model.
///
/// # Errors
/// Why it is refused, beginning with its path.
pub(crate) fn open_checkpoint(path: Option<&Path>) -> Result<Checkpoint, String> {
    let Some(path) = path else {
        return Checkpoint::from_files(demo_files()).map_err(|error| error.to_string());
    };
    Checkpoint::open(path).map_err(|error| match path.is_dir() {
        true => format!("{}: {error}", path.display()),
        // The error of a single file begins with its name.
        false => error.to_string(),
    })
}

/// Whether most weights are blocks, or will be.
fn mostly_quantized(checkpoint: &Checkpoint, arithmetic: Arithmetic) -> bool {
    let matrices = checkpoint.tensor_names().filter(|name| name.ends_with("_proj.weight"));
    let count = |(all, blocks), name| match checkpoint.dtype(name) {
        Some(DType::Block(_)) => (all + 1, blocks + 1),
        _ => (all + 1, blocks),
    };
    let (all, blocks) = matrices.fold((0, 0), count);
    arithmetic.quantize.is_some() || 2 * blocks > all
}

fn demo_files() -> Vec<(String, Cow<'static, [u8]>)> {
    vec![
        demo_file!("config.json"),
        demo_file!("generation_config.json"),
        demo_file!("model.safetensors"),
        demo_file!("tokenizer.json"),
        demo_file!("tokenizer_config.json"),
    ]
}

/// When a model's configuration was last written, in seconds since 1970; 0 if that cannot be told.
fn changed(path: &Path) -> u64 {
    let told = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let time = std::fs::metadata(told).and_then(|data| data.modified()).ok();
    let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}

/// How much memory KV pools may take.
struct KvBudget {
    /// Of each model that is not told otherwise.
    each_bytes: u64,
}

impl KvBudget {
    /// Half of what the weights and a reserve leave of the process's memory, shared evenly.
    fn new(models: &[Opened<'_>], settings: &EngineSettings) -> Self {
        let weights = models.iter().fold(0_u64, |sum, model| sum.saturating_add(model.weight_bytes));
        let left = machine::memory_bytes().saturating_sub(weights).saturating_sub(RESERVE_BYTES) / 2;
        let shares = u64::try_from(models.len()).unwrap_or(1).max(1);
        Self { each_bytes: settings.kv_bytes.unwrap_or(left / shares) }
    }

    /// Blocks for a model. Bounded by what full contexts of all running sequences could use: more would lie idle.
    fn blocks(
        &self,
        model: &Opened<'_>,
        max_positions: usize,
        scheduler: &SchedulerConfig,
    ) -> Result<usize, String> {
        let block_bytes = kv_bytes_per_block(model.checkpoint.config(), model.kv).max(1);
        let affordable = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / block_bytes;
        if let Some(bytes) = model.config.kv_bytes {
            let blocks = affordable(bytes);
            return if blocks > 0 {
                Ok(blocks)
            } else {
                Err(format!("`kv_memory` of {bytes} bytes holds no block of {block_bytes} bytes"))
            };
        }
        let useful =
            max_positions.div_ceil(BLOCK_TOKENS).saturating_mul(scheduler.max_running).max(LEAST_BLOCKS);
        Ok(affordable(self.each_bytes).clamp(LEAST_BLOCKS.min(useful), useful))
    }
}

fn run(
    model: Opened<'_>,
    config: &Config,
    isa: Isa,
    pool: &KvBudget,
    clock: &Arc<dyn Clock>,
) -> Result<Running, String> {
    let (named, checkpoint) = (model.config, &model.checkpoint);
    let text = Words::of(checkpoint)?;
    let asked = named.max_positions.or(config.engine.max_positions);
    let own = checkpoint.config().max_positions;
    let max_positions = asked.map_or(own, |asked| asked.min(own));
    let options = LoadOptions {
        isa,
        threads: named.threads.or(config.engine.threads).unwrap_or_else(machine::processors),
        kv_blocks: pool.blocks(&model, max_positions, &config.scheduler)?,
        max_positions: Some(max_positions),
        mode: model.mode,
        kv: model.kv,
        quantize: model.arithmetic.quantize,
    };
    let mut progress = Progress::new(&format!("loading {}", named.name));
    let loaded = Model::load(checkpoint, options, &mut |done, total| progress.bytes(done, total));
    let loaded = loaded.map_err(|error| error.to_string())?;
    progress.end();
    checkpoint.release_pages();
    let generation = checkpoint.generation();
    let eos = generation.eos.clone().unwrap_or_else(|| checkpoint.config().eos.clone());
    let engine = EngineConfig {
        model: named.name.to_string(),
        compute_mode: model.mode.to_string(),
        eos,
        skip_special: true,
        max_choices: config.engine.max_choices,
        isa,
        scheduler: config.scheduler.clone(),
        clock: Arc::clone(clock),
    };
    let engine = EmbeddedEngine::start(Box::new(loaded), Arc::clone(&text.tokenizer), engine);
    let engine = Arc::new(engine.map_err(|error| error.to_string())?);
    let shared: SharedEngine = Arc::clone(&engine) as SharedEngine;
    let recommended = generation.max_new_tokens.and_then(|count| u32::try_from(count).ok());
    let served = ServedModel {
        name: named.name.clone(),
        tokenizer: text.tokenizer,
        template: text.template,
        family: text.family,
        defaults: SamplingDefaults {
            temperature: generation.temperature,
            top_p: generation.top_p,
            top_k: generation.top_k.and_then(std::num::NonZeroU32::new),
            min_p: generation.min_p,
            repetition_penalty: generation.repetition_penalty,
        },
        capabilities: engine.capabilities().clone(),
        created_unix_s: model.created_unix_s,
        default_max_tokens: named.default_max_tokens.or(recommended),
        limits: named.limits,
    };
    let worker = Worker::new(&format!("{}@local", named.name), named.name.clone(), shared);
    Ok(Running { served, worker, engine })
}

/// Words to ids and back, as a checkpoint says.
pub(crate) struct Words {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) family: ReplyFamily,
}

impl Words {
    /// Reads them, or says why they cannot be served.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self, String> {
        let config = checkpoint.tokenizer_config();
        let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), config);
        let tokenizer = Arc::new(tokenizer.map_err(|error| error.to_string())?);
        let Some(source) = checkpoint.chat_template() else {
            return Ok(Self { tokenizer, template: None, family: ReplyFamily::Plain });
        };
        let tokens = SpecialTokenTexts::new(
            &tokenizer,
            config.bos_token.clone(),
            config.eos_token.clone(),
            config.pad_token.clone(),
            config.unk_token.clone(),
        );
        let template = ChatTemplate::compile(source, &tokens, TemplateLimits::default());
        let template = template.map_err(|error| error.to_string())?;
        Ok(Self { tokenizer, template: Some(template), family: ReplyFamily::detect(source) })
    }
}

/// Ends all engines, cutting off what still runs.
pub(crate) fn stop(engines: &[Arc<EmbeddedEngine>]) {
    engines.iter().for_each(|engine| engine.shutdown(Duration::ZERO));
}
