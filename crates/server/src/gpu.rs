//! Models on an NVIDIA GPU, if the program was built with the feature `cuda`; otherwise the reason why not. Must not
//! know how a configuration is read, how a step is computed, or who asks for one.

use headrace_checkpoint::Checkpoint;
use headrace_kernels::forward::Forward;

/// The settings that concern a model on a GPU.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read by what is not built"))]
pub(crate) struct GpuRequest {
    /// Bytes of the KV cache. `None` gives it all memory that the weights leave.
    pub(crate) kv_bytes: Option<u64>,
    /// Maximum number of positions.
    pub(crate) max_positions: usize,
    /// Maximum number of KV blocks that could be used.
    pub(crate) useful_blocks: usize,
    /// Maximum number of tokens in a step.
    pub(crate) step_tokens: usize,
    /// Number of threads that load the weights.
    pub(crate) threads: usize,
}

/// Checks whether this program can serve a model on a GPU, as far as that is known before loading.
///
/// # Errors
/// Returns why not, and what to do.
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
/// Returns what is missing, or what would fit.
#[cfg(feature = "cuda")]
pub(crate) fn load(
    checkpoint: &Checkpoint,
    wanted: &GpuRequest,
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
        // One pass computes a whole step if it fits.
        pass_rows: wanted.step_tokens.clamp(BLOCK_TOKENS, defaults.pass_rows),
        threads: wanted.threads,
        ..defaults
    };
    let device = Nvidia::open(0).map_err(|error| error.to_string())?;
    let model = CudaModel::load(Box::new(device), checkpoint, &options, progress);
    model.map(|model| Box::new(model) as _).map_err(|error| error.to_string())
}

/// Refuses, because the feature is missing.
///
/// # Errors
/// Always returns an error.
#[cfg(not(feature = "cuda"))]
pub(crate) fn load(
    _checkpoint: &Checkpoint,
    _wanted: &GpuRequest,
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
