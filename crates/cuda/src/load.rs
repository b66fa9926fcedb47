//! Loads a checkpoint onto a device: estimates its memory, checks that it fits, and sizes the KV pool. Must not know:
//! how a step is computed.

use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::forward::ForwardShape;
use headrace_kv_layout::{BLOCK_TOKENS, KvLayout};
use headrace_model::{KvBlocks, KvGroups, KvUse, rope};

use crate::attention::{Pages, SPLIT};
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
        let layout = sizes.groups.layout(blocks);
        let max_positions = config
            .max_positions
            .min(options.max_positions.unwrap_or(usize::MAX))
            .min(layout.positions(options.chunk));
        let (weights, weight_bytes) = Weights::load(&mut *device, &plan, tensors, options.threads, progress)?;
        let pages = pages(&mut *device, &plan, &layout)?;
        let rotaries = rotary::upload(&mut *device, &plan, max_positions)?;
        let scratch = Scratch::new(&mut *device, &plan, options)?;
        let workspace = Workspace::new(&mut *device)?;
        let partial = device.allocate(sizes.partial)?;
        let shape = ForwardShape {
            vocab: config.vocab_size,
            max_positions,
            kv: layout,
            weight_bytes,
            short_positions: rope::short_positions(config, max_positions),
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
    /// The cache groups. All other fields do not depend on the KV pools.
    groups: KvGroups,
    usage: KvUse,
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
            groups: plan.kv_groups(),
            usage: KvUse { sequences: options.sequences, chunk: options.chunk, tokens: positions },
        }
    }

    /// Returns the number of KV blocks of each cache group.
    fn blocks(&self, options: &LoadOptions, free: usize, device: &str) -> Result<KvBlocks, LoadError> {
        let Sizes { weights, scratch, partial, angles, groups, usage } = self;
        let beside = scratch + partial + angles + options.reserve_bytes;
        let left = free.saturating_sub(weights.saturating_add(beside));
        let affordable = groups.fitting(left, *usage);
        let wanted = options.kv_blocks.unwrap_or_else(|| groups.beside(LEAST_BLOCKS, *usage));
        let tokens = |blocks: KvBlocks| groups.layout(blocks).first().positions();
        if groups.bytes(wanted) > left {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let fits = match affordable {
                0 if free <= beside.saturating_add(groups.bytes(wanted)) => {
                    "nothing would fit: end the other programs that use this GPU, or limit them (`kv_memory`)"
                        .to_owned()
                }
                0 => format!(
                    "weights of at most {} MiB would fit with it",
                    mib(free.saturating_sub(beside.saturating_add(groups.bytes(wanted))))
                ),
                first => format!("{} tokens would fit", tokens(groups.beside(first, *usage))),
            };
            let problem = format!(
                "{device} has {} MiB free; the weights take {} MiB, activations and a reserve {} MiB, and a KV cache of {} tokens {} \
                 MiB: {fits}",
                free >> 20,
                mib(*weights),
                mib(beside),
                tokens(wanted),
                mib(groups.bytes(wanted)),
            );
            return Err(LoadError::TooLarge { problem });
        }
        let first = affordable.min(options.most_kv_blocks).max(1);
        let KvBlocks { full, window, states } =
            options.kv_blocks.unwrap_or_else(|| groups.beside(first, *usage));
        // Slots are 32-bit integers.
        let most = i32::MAX as usize / BLOCK_TOKENS;
        Ok(KvBlocks { full: full.min(most), window: window.min(most), states })
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

/// The cache groups of a model on a device, without numbers of blocks.
///
/// # Errors
/// [`LoadError::Unsupported`] for a model that the kernels do not compute.
pub fn kv_groups(config: &ModelConfig) -> Result<KvGroups, LoadError> {
    Ok(DecoderPlan::of(config)?.kv_groups())
}

fn checked<'c>(config: &'c ModelConfig, options: &LoadOptions) -> Result<DecoderPlan<'c>, LoadError> {
    let named = |name, problem: &str| Err(LoadError::Unsupported { name, problem: problem.to_owned() });
    for (name, value) in [
        ("pass_rows", options.pass_rows),
        ("logit_rows", options.logit_rows),
        ("threads", options.threads),
        ("sequences", options.sequences),
        ("chunk", options.chunk),
    ] {
        if value == 0 {
            return named(name, "must be at least 1");
        }
    }
    if options.max_positions == Some(0) {
        return named("max_positions", "leaves room for no token");
    }
    let plan = DecoderPlan::of(config)?;
    let given = options.kv_blocks.map(|blocks| plan.kv_groups().layout(blocks));
    if given.is_some_and(|layout| layout.used().any(|group| group.block_count == 0)) {
        return named("kv_blocks", "must be at least 1");
    }
    let most = i32::MAX as usize;
    let widths = [config.vocab_size, config.hidden_size, 2 * plan.inner(), options.pass_rows];
    if widths.into_iter().any(|width| width > most / 32) {
        return named("vocab_size", "or another size is beyond what the kernels count to");
    }
    Ok(plan)
}

fn pages(
    device: &mut dyn Device,
    plan: &DecoderPlan<'_>,
    layout: &KvLayout,
) -> Result<Vec<Pages>, LoadError> {
    let mut pages = Vec::with_capacity(plan.layers.len());
    for layer in &plan.layers {
        let groups = layout.groups();
        let group = if layer.window.is_some() { groups.window() } else { groups.full() };
        let bytes = group.block_count * plan.heads.block_bytes();
        pages.push(Pages { keys: device.allocate(bytes)?, values: device.allocate(bytes)? });
    }
    Ok(pages)
}
