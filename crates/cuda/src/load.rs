//! Loads a checkpoint onto a device: estimates its memory, checks that it fits, and sizes the KV pool. Must not know:
//! how a step is computed.

use headrace_checkpoint::{Architecture, Checkpoint, ModelConfig, UniformConfig};
use headrace_kernels::forward::ForwardShape;
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_model::rope;

use crate::device::{Buffer, Device, DeviceError};
use crate::error::LoadError;
use crate::model::{CudaModel, Limits};
use crate::ops::{Heads, Pages, SPLIT, Workspace};
use crate::options::LoadOptions;
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
        let config = uniform(config)?;
        let heads = checked(config, options)?;
        let memory = device.memory()?;
        let sizes = Sizes::new(config, options, &heads, device.multiprocessors());
        let blocks = sizes.blocks(options, memory.free, device.name())?;
        let layout = KvLayout::single(sizes.group(blocks));
        let max_positions = config
            .max_positions
            .min(options.max_positions.unwrap_or(usize::MAX))
            .min(layout.first().positions());
        let (weights, weight_bytes) =
            Weights::load(&mut *device, config, tensors, options.threads, progress)?;
        let pages = pages(&mut *device, config.layers, blocks, &heads)?;
        let (cos, sin) = angles(&mut *device, config, max_positions)?;
        let scratch = Scratch::new(&mut *device, config, &heads, options)?;
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
            (heads, weights, pages, (cos, sin)),
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
    fn new(config: &UniformConfig, options: &LoadOptions, heads: &Heads, multiprocessors: usize) -> Sizes {
        let positions = config.max_positions.min(options.max_positions.unwrap_or(usize::MAX));
        // The splits of the longest sequence must fit at the same time.
        let least = heads.partial_bytes() * positions.div_ceil(SPLIT);
        Sizes {
            weights: device_bytes(config),
            scratch: Scratch::bytes(config, heads, options) + Workspace::bytes(multiprocessors),
            partial: options.partial_bytes.max(least),
            angles: positions * (config.head_dim / 2) * 8,
            block: 2 * heads.block_bytes() * config.layers,
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
    let config = uniform(config)?;
    let heads = checked(config, options)?;
    let sizes = Sizes::new(config, options, &heads, multiprocessors);
    Ok(sizes.weights + sizes.scratch + sizes.partial + sizes.angles)
}

/// KV bytes per block of 16 tokens, over all layers.
///
/// # Errors
/// [`LoadError::Unsupported`] for heads that the kernels do not support.
pub fn kv_bytes_per_block(config: &ModelConfig) -> Result<usize, LoadError> {
    let config = uniform(config)?;
    let heads = heads_of(config)?;
    Ok(2 * heads.block_bytes() * config.layers)
}

/// The sizes of a model whose layers are all alike, which is what the kernels compute.
fn uniform(config: &ModelConfig) -> Result<&UniformConfig, LoadError> {
    config.uniform.as_ref().ok_or_else(|| {
        let computed =
            [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3].map(Architecture::hf_name);
        let (found, computed) = (config.architecture.hf_name(), computed.join(", "));
        let problem = format!("{found} is not computed on a GPU; {computed} are. The CPU engine computes it");
        LoadError::Unsupported { name: "architecture", problem }
    })
}

fn checked(config: &UniformConfig, options: &LoadOptions) -> Result<Heads, LoadError> {
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
    let most = i32::MAX as usize;
    let widths = [config.vocab_size, config.hidden_size, 2 * config.intermediate_size, options.pass_rows];
    if widths.into_iter().any(|width| width > most / 32) {
        return named("vocab_size", "or another size is beyond what the kernels count to");
    }
    heads_of(config)
}

fn heads_of(config: &UniformConfig) -> Result<Heads, LoadError> {
    Heads::new(config.heads, config.kv_heads, config.head_dim).map_err(|error| match error {
        DeviceError::Shape { what, problem } => LoadError::Unsupported { name: what, problem },
        other => LoadError::Device(other),
    })
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

/// Uploads the cosines and sines of all positions.
fn angles(
    device: &mut dyn Device,
    config: &UniformConfig,
    positions: usize,
) -> Result<(Buffer, Buffer), LoadError> {
    let table = rope::table(&config.rope, config.head_dim, positions);
    let mut bring = |values: &[f32]| -> Result<Buffer, DeviceError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let buffer = device.allocate(bytes.len())?;
        device.upload(buffer, &bytes)?;
        Ok(buffer)
    };
    Ok((bring(&table.cos)?, bring(&table.sin)?))
}
