//! What the program needs of the engines in this process besides running jobs. Must not know how an engine computes.

use std::time::Duration;

use headrace_embedder::Embedder;
use headrace_engine::EmbeddedEngine;
use headrace_engine_api::Engine;

/// An engine whose thread runs in this process.
pub trait LocalEngine: Engine {
    /// Takes no new jobs, waits at most `grace` for running jobs, and frees thread, weights and memory. Blocks.
    fn shutdown(&self, grace: Duration);
}

impl LocalEngine for EmbeddedEngine {
    fn shutdown(&self, grace: Duration) {
        Self::shutdown(self, grace);
    }
}

impl LocalEngine for Embedder {
    fn shutdown(&self, grace: Duration) {
        Self::shutdown(self, grace);
    }
}
