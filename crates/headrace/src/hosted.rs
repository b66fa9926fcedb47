//! The engines in this process, whatever they compute: what is asked of them beside jobs. Must not know how they turn.

use std::time::Duration;

use headrace_embedder::Embedder;
use headrace_engine::EmbeddedEngine;
use headrace_engine_api::Engine;

/// An engine whose thread runs here.
pub(crate) trait Hosted: Engine {
    /// Takes no new jobs, lets what runs end for at most `grace`, and gives back thread, weights and memory. Blocks.
    fn shutdown(&self, grace: Duration);
}

impl Hosted for EmbeddedEngine {
    fn shutdown(&self, grace: Duration) {
        Self::shutdown(self, grace);
    }
}

impl Hosted for Embedder {
    fn shutdown(&self, grace: Duration) {
        Self::shutdown(self, grace);
    }
}
