//! Loads a checkpoint onto a device: estimates its memory, checks that it fits, and sizes the KV pool. Must not know:
//! how a step is computed.

use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::forward::ForwardShape;
use headrace_kv_layout::{KvGroup, KvLayout};

use crate::attention::{Heads, Pages, SPLIT};
use crate::device::Device;
use crate::error::LoadError;
use crate::model::{CudaModel, Limits};
use crate::ops::Workspace;
use crate::options::LoadOptions;
use crate::plan::DecoderPlan;
use crate::rotary;
use crate::scratch::Scratch;
use crate::weights::{Tensors, Weights, device_bytes};

/// Minimum KV blocks of a pool that is sized by free memory: a context of 256 tokens.
const LEAST_BLOCKS: usize = 16;

impl CudaModel {
    /// Loads a checkpoint onto a device. `progress` is called with the tensor bytes that are done and their total. The
    /// checkpoint is not needed afterwards.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] and [`LoadError::Tensor`] for a model that the kernels do not support.
    /// [`LoadError::TooLarge`] says what would fit. Also returns the device's errors.
    pub fn load(
        device: Box<dyn Device>,
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CudaModel, LoadError> {
        Self::load_from(device, checkpoint.config(), checkpoint, options, progress)
    }

    /// Like [`CudaModel::load`], from any tensors that match a configuration.
    ///
    /// # Errors
    /// Same as [`CudaModel::load`].
    pub fn load_from(
        mut device: Box<dyn Device>,
        config: &ModelConfig,
        tensors: &dyn Tensors,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CudaModel, LoadError> {
        let plan = checked(config, options)?;
        let memory = device.memory()?;
        let sizes = Sizes::new(&plan, options, device.multiprocessors());
        let blocks = sizes.blocks(options, memory.free, device.name())?;
        let layout = KvLayout::single(sizes.group(blocks));
        let max_positions = config
            .max_positions
            .min(options.max_positions.unwrap_or(usize::MAX))
            .min(layout.first().positions());
        let (weights, weight_bytes) = Weights::load(&mut *device, &plan, tensors, options.threads, progress)?;
        let pages = pages(&mut *device, plan.layers.len(), blocks, &plan.heads)?;
        let rotaries = rotary::upload(&mut *device, &plan, max_positions)?;
        let scratch = Scratch::new(&mut *device, &plan, options)?;
        let workspace = Workspace::new(&mut *device)?;
        let partial = device.allocate(sizes.partial)?;
        let shape = ForwardShape {
            vocab: config.vocab_size,
            max_positions,
            kv: layout,
            weight_bytes,
            short_positions: None,
        };
        let limits = Limits {
            pass_rows: options.pass_rows,
            logit_rows: options.logit_rows,
            recorded_rows: options.recorded_rows.min(options.pass_rows).min(options.logit_rows),
        };
        device.synchronize()?;
        Ok(CudaModel::new(
            (device, config.clone(), shape, limits),
            (plan.heads, weights, pages, rotaries),
            (scratch, workspace, partial),
        ))
    }
}

/// Memory of a model, in bytes.
struct Sizes {
    weights: usize,
    scratch: usize,
    partial: usize,
    angles: usize,
    /// One KV block over all layers. All other fields do not depend on the KV pool.
    block: usize,
}

impl Sizes {
    fn new(plan: &DecoderPlan<'_>, options: &LoadOptions, multiprocessors: usize) -> Sizes {
        let positions = plan.config.max_positions.min(options.max_positions.unwrap_or(usize::MAX));
        // The splits of the longest sequence must fit at the same time.
        let least = plan.heads.partial_bytes() * positions.div_ceil(SPLIT);
        Sizes {
            weights: device_bytes(plan),
            scratch: Scratch::bytes(plan, options) + Workspace::bytes(multiprocessors),
            partial: options.partial_bytes.max(least),
            angles: rotary::bytes(plan, positions),
            block: block_bytes(plan),
        }
    }

    /// Returns the cache group of a pool of `blocks` blocks.
    fn group(&self, blocks: usize) -> KvGroup {
        KvGroup::full(blocks, self.block)
    }

    /// Returns the number of KV blocks of the pool.
    fn blocks(&self, options: &LoadOptions, free: usize, device: &str) -> Result<usize, LoadError> {
        let beside = self.scratch + self.partial + self.angles + options.reserve_bytes;
        let left = free.saturating_sub(self.weights.saturating_add(beside));
        let affordable = left / self.block.max(1);
        let wanted = options.kv_blocks.unwrap_or(LEAST_BLOCKS);
        if affordable < wanted {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let fits = match affordable {
                0 => format!(
                    "weights of at most {} MiB would fit with it",
                    mib(free.saturating_sub(beside.saturating_add(wanted.saturating_mul(self.block))))
                ),
                blocks => format!("{} tokens would fit", self.group(blocks).positions()),
            };
            let problem = format!(
                "{device} has {} MiB free; the weights take {} MiB, activations and a reserve {} MiB, and a KV cache of {} tokens {} \
                 MiB: {fits}",
                free >> 20,
                mib(self.weights),
                mib(beside),
                self.group(wanted).positions(),
                mib(wanted.saturating_mul(self.block)),
            );
            return Err(LoadError::TooLarge { problem });
        }
        // Slots are 32-bit integers.
        let most = options.most_kv_blocks.min(i32::MAX as usize / self.group(0).block_tokens);
        Ok(options.kv_blocks.unwrap_or(affordable.min(most).max(1)).min(most))
    }
}

/// Device memory of a model in bytes, without the KV pool and `reserve_bytes`, so that a caller can check whether it
/// fits.
///
/// # Errors
/// [`LoadError::Unsupported`] for a model or options that the kernels do not support.
pub fn bytes_beside_kv(
    config: &ModelConfig,
    options: &LoadOptions,
    multiprocessors: usize,
) -> Result<usize, LoadError> {
    let sizes = Sizes::new(&checked(config, options)?, options, multiprocessors);
    Ok(sizes.weights + sizes.scratch + sizes.partial + sizes.angles)
}

/// KV bytes per block of 16 tokens, over all layers.
///
/// # Errors
/// [`LoadError::Unsupported`] for a model that the kernels do not compute.
pub fn kv_bytes_per_block(config: &ModelConfig) -> Result<usize, LoadError> {
    Ok(block_bytes(&DecoderPlan::of(config)?))
}

fn block_bytes(plan: &DecoderPlan<'_>) -> usize {
    2 * plan.heads.block_bytes() * plan.layers.len()
}

fn checked<'c>(config: &'c ModelConfig, options: &LoadOptions) -> Result<DecoderPlan<'c>, LoadError> {
    let named = |name, problem: &str| Err(LoadError::Unsupported { name, problem: problem.to_owned() });
    for (name, value) in
        [("pass_rows", options.pass_rows), ("logit_rows", options.logit_rows), ("threads", options.threads)]
    {
        if value == 0 {
            return named(name, "must be at least 1");
        }
    }
    if options.kv_blocks == Some(0) {
        return named("kv_blocks", "must be at least 1");
    }
    if options.max_positions == Some(0) {
        return named("max_positions", "leaves room for no token");
    }
    let plan = DecoderPlan::of(config)?;
    let most = i32::MAX as usize;
    let widths = [config.vocab_size, config.hidden_size, 2 * plan.inner(), options.pass_rows];
    if widths.into_iter().any(|width| width > most / 32) {
        return named("vocab_size", "or another size is beyond what the kernels count to");
    }
    Ok(plan)
}

fn pages(
    device: &mut dyn Device,
    layers: usize,
    blocks: usize,
    heads: &Heads,
) -> Result<Vec<Pages>, LoadError> {
    let bytes = blocks * heads.block_bytes();
    let mut layer = || Ok(Pages { keys: device.allocate(bytes)?, values: device.allocate(bytes)? });
    (0..layers).map(|_| layer()).collect()
}
