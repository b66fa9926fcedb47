//! Models on an NVIDIA GPU, if the program was built with the feature `cuda`; otherwise the reason why not. Must not
//! know how a configuration is read, how a step is computed, or who asks for one.

use headrace_checkpoint::Checkpoint;
use headrace_kernels::forward::Forward;
use headrace_model::KvUse;

/// The settings that concern a model on a GPU.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read by what is not built"))]
pub(crate) struct GpuRequest {
    /// Bytes of the KV cache. `None` gives it all memory that the weights leave.
    pub(crate) kv_bytes: Option<u64>,
    /// Running sequences, their chunks, and the maximum number of positions.
    pub(crate) usage: KvUse,
    /// Maximum number of KV blocks of the first cache group that could be used.
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
    let groups = headrace_cuda::kv_groups(checkpoint.config()).map_err(|error| error.to_string())?;
    let useful = wanted.useful_blocks.max(1);
    let blocks = |bytes: u64| {
        let first = groups.fitting(usize::try_from(bytes).unwrap_or(usize::MAX), wanted.usage);
        groups.beside(first.clamp(1, useful), wanted.usage)
    };
    let options = LoadOptions {
        kv_blocks: wanted.kv_bytes.map(blocks),
        most_kv_blocks: useful,
        sequences: wanted.usage.sequences,
        chunk: wanted.usage.chunk,
        max_positions: Some(wanted.usage.tokens),
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
