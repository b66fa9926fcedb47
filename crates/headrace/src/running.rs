//! What runs, and as what it was loaded: words that whoever plans, loads and ends models has in common. Decides nothing.

use std::path::Path;
use std::sync::Arc;

use headrace_fleet::Worker;
use headrace_gateway::ServedModel;

use crate::config::ModelConfig;
use crate::hosted::Hosted;
use crate::offers::Offered;

/// A model that runs.
#[derive(Clone)]
pub(crate) struct Running {
    /// As what it was loaded, and what of the memory it takes.
    pub(crate) loaded: Loaded,
    /// For the gateway.
    pub(crate) served: Arc<ServedModel>,
    /// For the fleet.
    pub(crate) worker: Arc<Worker>,
    /// For gauges and for the end.
    pub(crate) engine: Arc<dyn Hosted>,
    /// For other Headraces, where they may ask.
    pub(crate) offered: Option<Offered>,
}

/// As what a model was loaded.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) config: ModelConfig,
    pub(crate) kv_blocks: usize,
    /// Of weights and KV pool.
    pub(crate) bytes: u64,
}

/// What is in memory already when models are planned. By default: nothing.
#[derive(Default)]
pub(crate) struct InMemory {
    /// Models that need not be loaded again. One that is wanted no longer, or otherwise, stays until its calls have ended.
    pub(crate) running: Vec<Loaded>,
    /// Bytes of models that end with their last calls.
    pub(crate) ending_bytes: u64,
    /// The threads that arithmetic has; `None`: they are not started yet.
    pub(crate) threads: Option<usize>,
}

/// When a model's configuration was last written, in seconds since 1970; 0 if that cannot be told.
pub(crate) fn changed(path: &Path) -> u64 {
    let told = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let time = std::fs::metadata(told).and_then(|data| data.modified()).ok();
    let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}
