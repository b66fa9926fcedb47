//! A model that is offered to gateways. Plain data. The endpoint decides who may use it.

use std::any::Any;
use std::sync::Arc;

use headrace_engine_api::{SharedEngine, SharedGrammar, SubmitRefusal};

use crate::ask::HeldTo;
use crate::words::PackedAssets;

/// Compiles a form. It may take a while, so it must not run on the event loop.
pub type Compile = dyn Fn(HeldTo) -> Result<SharedGrammar, SubmitRefusal> + Send + Sync;

/// A model that accepts jobs.
#[derive(Clone)]
pub struct OfferedModel {
    /// The engine, which knows the model's name.
    pub engine: SharedEngine,
    /// Identifies everything that decides the bits of an answer.
    pub bits: Arc<str>,
    /// Compiles forms for the model's vocabulary.
    pub compile: Arc<Compile>,
    /// The model's tokenizer assets.
    pub words: Arc<PackedAssets>,
    /// Creation time of the model, in seconds since 1970.
    pub created_unix_s: u64,
    /// Length of an answer if the caller sets none, in tokens.
    pub default_max_tokens: Option<u32>,
    /// Held by every job, so that the owner can see whether the engine is in use.
    pub in_use: Arc<dyn Any + Send + Sync>,
}
