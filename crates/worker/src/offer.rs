//! A model that is offered to gateways. Plain data: who asks for it is the desk's.

use std::any::Any;
use std::sync::Arc;

use headrace_engine_api::{SharedEngine, SharedGrammar, SubmitRefusal};

use crate::ask::HeldTo;
use crate::words::Words;

/// Compiles what answers are held to. It may take a while: not to be called where others must not wait.
pub type Compile = dyn Fn(HeldTo) -> Result<SharedGrammar, SubmitRefusal> + Send + Sync;

/// A model that jobs may be for.
#[derive(Clone)]
pub struct Offer {
    /// Its engine, which knows its name.
    pub engine: SharedEngine,
    /// What decides its bits.
    pub bits: Arc<str>,
    /// Compiles forms for its vocabulary.
    pub compile: Arc<Compile>,
    /// Its words.
    pub words: Arc<Words>,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// Length of an answer where the caller names none.
    pub default_max_tokens: Option<u32>,
    /// Held by every job: whoever made it knows by that whether the engine is in use.
    pub in_use: Arc<dyn Any + Send + Sync>,
}
