//! Models on an NVIDIA GPU, where the program was built with the feature `cuda`; elsewhere, why not.
//! Must not know: how a configuration is read, how a step is computed, or who asks for one.

use headrace_checkpoint::Checkpoint;
use headrace_kernels::forward::Forward;

/// What of a configuration concerns a model on a GPU.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read by what is not built"))]
pub(crate) struct Wanted {
    /// Bytes of the KV cache; none: all that the weights leave.
    pub(crate) kv_bytes: Option<u64>,
    /// A bound on positions.
    pub(crate) max_positions: usize,
    /// KV blocks that could be of use at all.
    pub(crate) useful_blocks: usize,
    /// Tokens of a step.
    pub(crate) step_tokens: usize,
    /// Threads that bring the weights.
    pub(crate) threads: usize,
}

/// Whether this program could serve a model there, as far as can be known before it is loaded.
///
/// # Errors
/// Why not, and what to do.
pub(crate) fn possible() -> Result<(), String> {
    if cfg!(feature = "cuda") {
        return Ok(());
    }
    Err("`device` is \"cuda\", and this program was built without it: build it with `cargo build --release --features cuda`, or leave \
         `device` out to serve the model on the CPU"
        .to_owned())
}

/// Loads a model onto the first GPU.
///
/// # Errors
/// What is missing, or what would fit.
#[cfg(feature = "cuda")]
pub(crate) fn load(
    checkpoint: &Checkpoint,
    wanted: &Wanted,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Forward>, String> {
    use headrace_cuda::device::Nvidia;
    use headrace_cuda::{CudaModel, LoadOptions};
    use headrace_domain::BLOCK_TOKENS;

    let defaults = LoadOptions::default();
    let block = headrace_cuda::kv_bytes_per_block(checkpoint.config()).map_err(|error| error.to_string())?;
    let blocks = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / block.max(1);
    let options = LoadOptions {
        kv_blocks: wanted.kv_bytes.map(|bytes| blocks(bytes).max(1)),
        most_kv_blocks: wanted.useful_blocks.max(1),
        max_positions: Some(wanted.max_positions),
        // A step is one pass where it can be.
        pass_rows: wanted.step_tokens.clamp(BLOCK_TOKENS, defaults.pass_rows),
        threads: wanted.threads,
        ..defaults
    };
    let device = Nvidia::open(0).map_err(|error| error.to_string())?;
    let model = CudaModel::load(Box::new(device), checkpoint, &options, progress);
    model.map(|model| Box::new(model) as _).map_err(|error| error.to_string())
}

/// Without the feature: why not.
///
/// # Errors
/// Always.
#[cfg(not(feature = "cuda"))]
pub(crate) fn load(
    _checkpoint: &Checkpoint,
    _wanted: &Wanted,
    _progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Forward>, String> {
    possible().and(Err(String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_it_says_how_to_have_it() {
        let possible = possible();
        assert_eq!(possible.is_ok(), cfg!(feature = "cuda"));
        if let Err(why) = possible {
            assert!(why.contains("--features cuda") && why.contains("CPU"), "{why}");
        }
    }
}
