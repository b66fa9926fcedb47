//! What a model of ours is offered to other Headraces as: its engine, what decides its bits, and its words. Must not know who
//! asks, nor how.

use std::sync::Arc;

use headrace_checkpoint::Checkpoint;
use headrace_engine_api::Capabilities;
use headrace_worker::Words;

use crate::config::arithmetic::Arithmetic;

/// What of a model is told to other Headraces beside its engine.
#[derive(Clone)]
pub(crate) struct Offered {
    /// Equal ones give equal bits.
    pub(crate) bits: Arc<str>,
    pub(crate) words: Arc<Words>,
}

impl Offered {
    /// Of a model that was loaded so.
    ///
    /// # Errors
    /// Its words are none that could be sent.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        capabilities: &Capabilities,
        arithmetic: Arithmetic,
    ) -> Result<Self, String> {
        let words = Words::new(checkpoint.wording_files()).map_err(|fault| fault.to_string())?;
        let Capabilities { compute_mode, numerics, .. } = capabilities;
        let quantized = format!("{:?}", arithmetic.quantize);
        let mut hasher = blake3::Hasher::new_derive_key("headrace 2026-11 bits of a model v1");
        for part in [checkpoint.fingerprint(), compute_mode, numerics, &quantized, words.digest()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Ok(Self { bits: hasher.finalize().to_hex().as_str().into(), words: Arc::new(words) })
    }
}
