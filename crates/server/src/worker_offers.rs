//! What this server offers to other gateways for a model: its engine, an identity of its bits, and its tokenizer
//! assets. Must not know who asks, nor how.

use std::sync::Arc;

use headrace_checkpoint::Checkpoint;
use headrace_engine_api::Capabilities;
use headrace_worker::PackedAssets;

use headrace_config::arithmetic::ArithmeticConfig;

/// What other gateways learn of a model besides its engine.
#[derive(Clone)]
pub(crate) struct WorkerOffer {
    /// Hash of everything that decides the bits. Equal hashes mean equal bits.
    pub(crate) bits: Arc<str>,
    pub(crate) words: Arc<PackedAssets>,
}

impl WorkerOffer {
    /// Describes a loaded model.
    ///
    /// # Errors
    /// Returns an error if its tokenizer assets cannot be sent.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        capabilities: &Capabilities,
        arithmetic: ArithmeticConfig,
    ) -> Result<Self, String> {
        let words = PackedAssets::new(checkpoint.wording_files()).map_err(|fault| fault.to_string())?;
        let Capabilities { compute_mode, numerics, .. } = capabilities;
        let quantized = format!("{:?}", arithmetic.quantize);
        let mut hasher = blake3::Hasher::new_derive_key("headrace 2026-11 bits of a model v1");
        for part in [checkpoint.fingerprint(), compute_mode, numerics, &quantized, words.digest()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        Ok(Self { bits: hasher.finalize().to_hex().as_str().into(), words: Arc::new(words) })
    }
}
