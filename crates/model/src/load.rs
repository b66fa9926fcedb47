//! Loads a decoder from a checkpoint. Must not know: where the checkpoint came from, or how a step is computed.

use std::sync::Arc;

use headrace_checkpoint::Checkpoint;
use headrace_kernels::attention::KvType;
use headrace_kernels::forward::ForwardShape;
use headrace_kernels::pool::{Pool, Workers};
use headrace_kernels::{ComputeMode, Isa, Kernels};
use headrace_kv_layout::BLOCK_TOKENS;
use headrace_quant::BlockType;

use crate::error::ModelError;
use crate::kv_plan::{KvBlocks, KvGroups};
use crate::memory::{KeptLayers, KvStores};
use crate::model::Model;
use crate::rope;
use crate::states::RecurrentStates;
use crate::weights::Loader;

/// Options for loading a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadOptions {
    /// The instruction set.
    pub isa: Isa,
    /// Number of threads, the caller of `step` included. At least 1.
    pub threads: usize,
    /// Number of KV blocks of each cache group. At least 1. The system commits their memory on the first write.
    pub kv_blocks: KvBlocks,
    /// Most tokens of one sequence in a step, which decides how long a sequence fits the blocks of a window.
    pub chunk: usize,
    /// A limit on positions that applies if it is below the checkpoint's own limit.
    pub max_positions: Option<usize>,
    /// How activations are represented in matrix products.
    pub mode: ComputeMode,
    /// How keys and values are stored.
    pub kv: KvType,
    /// The type to which dense matrices are quantized. Norms and biases are not quantized.
    pub quantize: Option<BlockType>,
}

impl LoadOptions {
    /// Compute mode `exact`: f32 activations, keys and values, and weights as stored. Every cache group has `kv_blocks`
    /// blocks, which a single sequence may fill in one step.
    pub fn exact(isa: Isa, threads: usize, kv_blocks: usize) -> LoadOptions {
        let (mode, kv) = (ComputeMode::Exact, KvType::F32);
        let (blocks, chunk) = (KvBlocks::same(kv_blocks), kv_blocks.saturating_mul(BLOCK_TOKENS));
        LoadOptions { isa, threads, kv_blocks: blocks, chunk, max_positions: None, mode, kv, quantize: None }
    }
}

impl Model {
    /// Loads a model with its own threads. Weights are repacked once into anonymous memory. `progress` is called with
    /// the tensor bytes that are done and their total. The checkpoint is not needed afterwards.
    ///
    /// # Errors
    /// Fails if the checkpoint contradicts itself, an option is invalid, or memory runs out.
    pub fn load(
        checkpoint: &Checkpoint,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, ModelError> {
        let workers = Workers::new(options.threads)?;
        Model::load_over(&workers, checkpoint, options, progress)
    }

    /// Like [`Model::load`], with worker threads that other models share. The model uses `options.threads` of them, or
    /// all if there are fewer. Neither number changes a bit of any model's output.
    pub fn load_over(
        workers: &Arc<Workers>,
        checkpoint: &Checkpoint,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model, ModelError> {
        let config = checkpoint.config();
        let layout = KvGroups::of(config, options.kv).layout(options.kv_blocks);
        let least = layout.used().map(|group| group.block_count).min().unwrap_or(0);
        for (name, value) in [("threads", options.threads), ("kv_blocks", least)] {
            if value == 0 {
                return Err(ModelError::Option { name, problem: "must be at least 1".to_owned() });
            }
        }
        // A sequence cannot be longer than the pools allow.
        let asked = options.max_positions.unwrap_or(usize::MAX);
        let max_positions = config.max_positions.min(layout.positions(options.chunk)).min(asked);
        if max_positions == 0 {
            let problem = "leaves room for no token".to_owned();
            return Err(ModelError::Option { name: "max_positions", problem });
        }
        let mut kernels = Kernels::over(options.isa, Pool::over(workers, options.threads), options.mode)?;
        let kv = KvStores::new(config, options.kv, &layout, KeptLayers::All)?;
        let recurrent = RecurrentStates::new(config, layout.groups().state().block_count)?;
        let total = checkpoint.tensor_bytes();
        let quantize = options.quantize;
        let loader = Loader { tensors: checkpoint, pool: kernels.pool(), quantize, done: 0, total, progress };
        let weights = loader.load(config)?;
        let shape = ForwardShape {
            vocab: config.vocab_size,
            max_positions,
            kv: layout,
            weight_bytes: weights.bytes(),
            short_positions: rope::short_positions(config, max_positions),
        };
        let tables = rope::tables(config, max_positions);
        Ok(Model::new(config.clone(), kernels, weights, (kv, recurrent), tables, shape))
    }
}
