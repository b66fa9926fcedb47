//! Encoders among the configured models: recognized by their files, planned and loaded beside the decoders, and run by
//! an engine of their own. Knows no keys, no money and no HTTP.

use std::path::Path;
use std::sync::Arc;

use headrace_catalog::{Backend, EncoderOutput, ModelPolicy, ServedModel, VectorBackend};
use headrace_checkpoint::{EncoderCheckpoint, ModelRefusal};
use headrace_config::{EngineSettings, ModelConfig, ServerSettings};
use headrace_domain::Clock;
use headrace_embedder::{Embedder, EmbedderConfig};
use headrace_engine_api::{Engine, SharedEngine};
use headrace_fleet::Worker;
use headrace_inspect::WordsError;
use headrace_kernels::pool::Workers;
use headrace_kernels::{ComputeMode, Isa};
use headrace_model::{Encoder, EncoderOptions, KvBlocks};
use headrace_quant::BlockType;
use headrace_terminal::progress::ProgressLine;
use headrace_tokenizer::Tokenizer;

use crate::running_model::{InMemory, LoadedModel, RunningModel, changed};

/// Maximum tokens of a batch. Activations are allocated for as many.
const BATCH_TOKENS: usize = 2_048;

/// An encoder of a plan.
pub(crate) struct PlannedEncoder {
    pub(crate) config: ModelConfig,
    checkpoint: EncoderCheckpoint,
    tokenizer: Arc<Tokenizer>,
    mode: ComputeMode,
    quantize: Option<BlockType>,
    created_unix_s: u64,
    /// Whether it already runs as configured.
    pub(crate) runs: bool,
}

impl PlannedEncoder {
    /// Opens the model if its path holds an encoder. Returns `None` if the path holds something else, or nothing
    /// readable.
    ///
    /// # Errors
    /// Returns why the encoder is refused, beginning with its path.
    pub(crate) fn open(
        config: &ModelConfig,
        engine: &EngineSettings,
        present: &InMemory,
    ) -> Option<Result<Self, ModelRefusal>> {
        let path = config.path.as_deref()?;
        // An unreadable path is refused later, when decoders are opened.
        if !EncoderCheckpoint::is_one(path).unwrap_or(false) {
            return None;
        }
        Some(Self::read(config, path, engine, present))
    }

    fn read(
        config: &ModelConfig,
        path: &Path,
        engine: &EngineSettings,
        present: &InMemory,
    ) -> Result<Self, ModelRefusal> {
        let (checkpoint, tokenizer) = open(path)?;
        let arithmetic = config.arithmetic.or(engine.arithmetic);
        let (mode, _) = arithmetic.settle(arithmetic.quantize.is_some());
        Ok(Self {
            created_unix_s: changed(path),
            runs: present.running.iter().any(|loaded| loaded.config.is_loaded_as(config)),
            config: config.clone(),
            checkpoint,
            tokenizer,
            mode,
            quantize: arithmetic.quantize,
        })
    }

    /// Approximate bytes of the weights. They are packed as they are stored, or smaller.
    pub(crate) fn bytes(&self) -> u64 {
        self.checkpoint.weight_bytes()
    }

    /// The columns of the table of models: name, longest text, output, numerics, memory.
    pub(crate) fn row(&self) -> Vec<String> {
        vec![
            self.config.name.to_string(),
            format!("{} tokens", self.checkpoint.max_tokens()),
            match makes(&self.checkpoint) {
                EncoderOutput::Vectors { width } => format!("embeddings of {width}"),
                EncoderOutput::Scores => "scores of pairs".to_owned(),
            },
            self.mode.to_string(),
            format!("{} MiB", self.bytes() >> 20),
            "none".to_owned(),
        ]
    }

    /// Loads the encoder and starts its engine.
    ///
    /// # Errors
    /// Returns why it cannot run.
    pub(crate) fn run(
        self,
        config: &ServerSettings,
        isa: Isa,
        workers: &Arc<Workers>,
        clock: &Arc<dyn Clock>,
    ) -> Result<RunningModel, String> {
        let (named, checkpoint) = (&self.config, &self.checkpoint);
        let loaded =
            LoadedModel { config: named.clone(), kv_blocks: KvBlocks::default(), bytes: self.bytes() };
        let options = EncoderOptions {
            isa,
            threads: named.threads.or(config.engine.threads).unwrap_or_else(|| workers.threads()),
            mode: self.mode,
            quantize: self.quantize,
            batch_tokens: BATCH_TOKENS,
        };
        let mut progress = ProgressLine::new(&format!("loading {}", named.name));
        let on_progress = &mut |done, total| progress.bytes(done, total);
        let encoder = Encoder::load_over(workers, checkpoint, options, on_progress);
        let encoder = encoder.map_err(|error| error.to_string())?;
        progress.end();
        let mut engine = EmbedderConfig::new(named.name.as_str(), self.mode.name(), Arc::clone(clock));
        engine.batch_tokens = BATCH_TOKENS;
        engine.separator = self.tokenizer.pair_separator().filter(|_| checkpoint.config().score.is_some());
        let engine = Embedder::start(Box::new(encoder), engine).map_err(|error| error.to_string())?;
        let engine = Arc::new(engine);
        let modules = checkpoint.modules();
        let served = ServedModel {
            name: named.name.clone(),
            backend: Backend::Vectors(VectorBackend {
                tokenizer: Arc::clone(&self.tokenizer),
                capabilities: engine.capabilities().clone(),
                makes: makes(checkpoint),
                lower_case: modules.lower_case,
                prompts: modules.prompts.clone(),
                default_prompt: modules.default_prompt.clone(),
            }),
            created_unix_s: self.created_unix_s,
            default_max_tokens: None,
            limits: named.limits,
            policy: ModelPolicy::default(),
        };
        let shared: SharedEngine = Arc::clone(&engine) as SharedEngine;
        let worker = Worker::new(&format!("{}@local", named.name), named.name.clone(), shared);
        let worker = worker.within(config.gateway.region.clone());
        Ok(RunningModel { loaded, served: Arc::new(served), worker: Arc::new(worker), engine, offered: None })
    }
}

/// Opens an encoder's directory and its tokenizer.
///
/// # Errors
/// Returns why it is refused, beginning with its path.
pub(crate) fn open(path: &Path) -> Result<(EncoderCheckpoint, Arc<Tokenizer>), ModelRefusal> {
    let checkpoint = EncoderCheckpoint::open(path).map_err(|error| ModelRefusal::of_path(path, &error))?;
    let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config());
    let unusable = |error| ModelRefusal::from(&WordsError::Tokenizer(error)).at(&path.display());
    Ok((checkpoint, Arc::new(tokenizer.map_err(unusable)?)))
}

/// What the encoder makes of a text.
pub(crate) fn makes(checkpoint: &EncoderCheckpoint) -> EncoderOutput {
    match checkpoint.config().score {
        Some(_) => EncoderOutput::Scores,
        None => EncoderOutput::Vectors {
            width: u32::try_from(checkpoint.config().hidden_size).unwrap_or(u32::MAX),
        },
    }
}
