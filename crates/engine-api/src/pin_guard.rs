//! Releases what a call holds in the prefix caches of engines, however the call ends. Must not know calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use headrace_domain::{HeldPrefix, RequestId};

use crate::SharedEngine;

/// Prefixes that one call holds ([`crate::Job::held`]). Dropping it releases them in every engine that was noted.
pub struct PinGuard {
    owner: RequestId,
    engines: Vec<SharedEngine>,
}

impl PinGuard {
    /// Creates a guard for a call that holds nothing yet.
    pub const fn new(owner: RequestId) -> Self {
        Self { owner, engines: Vec::new() }
    }

    /// Notes an engine before it gets a job of the call. Returns what the job is to hold: all of its prompt.
    pub fn hold(&mut self, engine: &SharedEngine, prompt_tokens: usize) -> HeldPrefix {
        if !self.engines.iter().any(|known| Arc::ptr_eq(known, engine)) {
            self.engines.push(Arc::clone(engine));
        }
        HeldPrefix { owner: self.owner, tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX) }
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        for engine in &self.engines {
            // An engine that panics must not keep the others from releasing.
            let _ = catch_unwind(AssertUnwindSafe(|| engine.release_pins(self.owner)));
        }
    }
}
