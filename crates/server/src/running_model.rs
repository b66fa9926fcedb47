//! Loaded models: types that planning, loading and ending models share. Decides nothing.

use std::path::Path;
use std::sync::Arc;

use headrace_catalog::ServedModel;
use headrace_config::ModelConfig;
use headrace_fleet::Worker;
use headrace_model::KvBlocks;

use crate::local_engine::LocalEngine;
use crate::worker_offers::WorkerOffer;

/// A running model.
#[derive(Clone)]
pub struct RunningModel {
    /// Its loaded configuration and its memory.
    pub loaded: LoadedModel,
    /// The model for the gateway.
    pub(crate) served: Arc<ServedModel>,
    /// The worker for the fleet.
    pub(crate) worker: Arc<Worker>,
    /// The engine, for gauges and for shutdown.
    pub engine: Arc<dyn LocalEngine>,
    /// The offer to other gateways, if they may send jobs.
    pub(crate) offered: Option<WorkerOffer>,
}

/// The configuration with which a model was loaded, and its memory.
#[derive(Clone)]
pub struct LoadedModel {
    /// Its configuration.
    pub config: ModelConfig,
    /// Blocks of its KV pool.
    pub(crate) kv_blocks: KvBlocks,
    /// Bytes of weights and KV pool.
    pub(crate) bytes: u64,
}

/// What is already in memory when models are planned. Empty by default.
#[derive(Default)]
pub struct InMemory {
    /// Models that need not be loaded again. A model that is no longer wanted, or wanted in another way, stays until
    /// its calls have ended.
    pub(crate) running: Vec<LoadedModel>,
    /// Bytes of models that end with their last calls.
    pub(crate) ending_bytes: u64,
    /// Number of compute threads. `None` before they are started.
    pub(crate) threads: Option<usize>,
    /// Whether the server has no engines, so that it can load no model.
    pub(crate) no_engines: bool,
}

impl InMemory {
    /// The state of a server without engines.
    pub(crate) fn without_engines() -> Self {
        Self { no_engines: true, ..Self::default() }
    }
}

/// The time at which a model's configuration was last written, in seconds since 1970. 0 if it is unknown.
pub(crate) fn changed(path: &Path) -> u64 {
    let told = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let time = std::fs::metadata(told).and_then(|data| data.modified()).ok();
    let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}
