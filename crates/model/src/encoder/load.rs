//! Loads an encoder from a checkpoint. Must not know: where the checkpoint came from, or how a batch is computed.

use std::sync::Arc;

use headrace_checkpoint::{
    BertConfig, EncoderBody, EncoderCheckpoint, EncoderConfig, HiddenAct, ModernBertConfig, Pooling,
    ScoreActivation, ScoreHead,
};
use headrace_kernels::attention::{KvShape, KvStore, KvType, KvValues};
use headrace_kernels::encode::EncodeShape;
use headrace_kernels::forward::ForwardShape;
use headrace_kernels::pool::{Pool, Workers};
use headrace_kernels::{Activation, ComputeMode, Isa, Kernels};
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_quant::BlockType;

use super::bert::{self, Bert};
use super::causal::Causal;
use super::layers::{Norm, Scratch, Work};
use super::modern::{self, Modern};
use super::output::{Head, Kind, Output};
use super::rows::Rows;
use super::{Body, Encoder};
use crate::batch;
use crate::error::ModelError;
use crate::memory::{self, KeptLayers, KvStores};
use crate::model::Core;
use crate::quantize::Role;
use crate::rope;
use crate::states::RecurrentStates;
use crate::weights::{Loader, Projection};

/// Options for loading an encoder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncoderOptions {
    /// The instruction set.
    pub isa: Isa,
    /// Number of threads, the caller of `encode` included. At least 1.
    pub threads: usize,
    /// How activations are represented in matrix products.
    pub mode: ComputeMode,
    /// The type to which dense matrices are quantized. Norms, biases and position tables are not quantized.
    pub quantize: Option<BlockType>,
    /// Tokens that a batch should have room for. More if a single sequence may be longer.
    pub batch_tokens: usize,
}

impl EncoderOptions {
    /// Compute mode `exact`: f32 activations, and weights as stored.
    pub fn exact(isa: Isa, threads: usize) -> EncoderOptions {
        EncoderOptions { isa, threads, mode: ComputeMode::Exact, quantize: None, batch_tokens: 2_048 }
    }
}

impl Encoder {
    /// Loads an encoder with its own threads. The checkpoint is not needed afterwards.
    ///
    /// # Errors
    /// Fails if the checkpoint contradicts itself, an option is invalid, or memory runs out.
    pub fn load(
        checkpoint: &EncoderCheckpoint,
        options: EncoderOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Encoder, ModelError> {
        let workers = Workers::new(options.threads)?;
        Encoder::load_over(&workers, checkpoint, options, progress)
    }

    /// Like [`Encoder::load`], with worker threads that other models share.
    pub fn load_over(
        workers: &Arc<Workers>,
        checkpoint: &EncoderCheckpoint,
        options: EncoderOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Encoder, ModelError> {
        if options.threads == 0 {
            let problem = "must be at least 1".to_owned();
            return Err(ModelError::Option { name: "threads", problem });
        }
        let (config, modules) = (checkpoint.config(), checkpoint.modules());
        let (max_tokens, hidden) = (checkpoint.max_tokens(), config.hidden_size);
        let block_bytes = match &config.body {
            EncoderBody::Causal(own) => memory::block_bytes(own, KvType::F32, KeptLayers::One, false),
            EncoderBody::Bert(own) => KvType::F32.block_bytes(kv_shape(own.heads, hidden)),
            EncoderBody::Modern(own) => KvType::F32.block_bytes(kv_shape(own.heads, hidden)),
        };
        let group = KvGroup::holding(options.batch_tokens.max(max_tokens), block_bytes);
        let layout = KvLayout::single(group);
        let mut kernels = Kernels::over(options.isa, Pool::over(workers, options.threads), options.mode)?;
        let numerics = kernels.numerics(KvType::F32);
        let total = checkpoint.weight_bytes();
        let mut loader = Loader {
            tensors: checkpoint,
            pool: kernels.pool(),
            quantize: options.quantize,
            done: 0,
            total,
            progress,
        };
        let (kind, pooling) = match config.score {
            None => (Kind::Vector { normalize: modules.normalize }, modules.pooling),
            Some((head, activation)) => {
                let mean = matches!(head, ScoreHead::Modern { mean: true, .. });
                let pooling = if mean { Pooling::Mean } else { Pooling::Cls };
                (Kind::Score(score_head(&mut loader, config, head, activation)?), pooling)
            }
        };
        let output = Output::new(hidden, pooling, kind);
        let (body, bytes) = match &config.body {
            EncoderBody::Bert(own) => {
                let bert = load_bert(&mut loader, own, config)?;
                let kv = KvStore::new(kv_shape(own.heads, hidden), KvType::F32, group.block_count)?;
                let bytes = bert.bytes();
                (Body::Bert(bert, Work { kernels, kv, scratch: Scratch::default() }), bytes)
            }
            EncoderBody::Modern(own) => {
                let modern = load_modern(&mut loader, own, config, max_tokens)?;
                let kv = KvStore::new(kv_shape(own.heads, hidden), KvType::F32, group.block_count)?;
                let bytes = modern.bytes();
                (Body::Modern(modern, Work { kernels, kv, scratch: Scratch::default() }), bytes)
            }
            EncoderBody::Causal(own) => {
                let weights = loader.load(own)?;
                let bytes = weights.bytes();
                let shape = ForwardShape {
                    vocab: own.vocab_size,
                    max_positions: max_tokens,
                    kv: layout,
                    weight_bytes: bytes,
                    short_positions: rope::short_positions(own, max_tokens),
                };
                let kv = KvStores::new(own, KvType::F32, &layout, KeptLayers::One)?;
                let tables = rope::tables(own, max_tokens);
                let recurrent = RecurrentStates::new(own, 0)?;
                let core = Core { kernels, weights, kv, recurrent, tables, scratch: Default::default() };
                let rows = batch::Rows::default();
                (Body::Causal(Box::new(Causal { config: (**own).clone(), shape, core, rows })), bytes)
            }
        };
        checkpoint.release_pages();
        let shape = EncodeShape {
            vocab: config.vocab_size,
            max_tokens,
            max_batch_tokens: group.positions(),
            block_tokens: layout.block_tokens(),
            width: output.width(),
            weight_bytes: bytes + output.bytes(),
        };
        Ok(Encoder { shape, numerics, body, output, rows: Rows::default() })
    }
}

/// Shape of the keys and values of one layer, whose heads divide the hidden size.
fn kv_shape(heads: usize, hidden: usize) -> KvShape {
    KvShape { layers: 1, kv_heads: heads, head_dim: hidden / heads.max(1), values: KvValues::Own }
}

fn activation(act: HiddenAct) -> Activation {
    match act {
        HiddenAct::Gelu => Activation::Gelu,
        HiddenAct::GeluTanh => Activation::GeluTanh,
        HiddenAct::QuickGelu => Activation::QuickGelu,
        HiddenAct::Silu => Activation::Silu,
        HiddenAct::Relu => Activation::Relu,
        HiddenAct::Tanh => Activation::Tanh,
    }
}

fn norm(loader: &mut Loader<'_>, name: &str, width: usize, bias: bool, eps: f32) -> Result<Norm, ModelError> {
    let weight = loader.vector(&format!("{name}.weight"), width)?;
    let bias = match bias {
        true => loader.vector(&format!("{name}.bias"), width)?,
        false => Vec::new(),
    };
    Ok(Norm { weight, bias, eps })
}

fn load_bert(loader: &mut Loader<'_>, own: &BertConfig, config: &EncoderConfig) -> Result<Bert, ModelError> {
    let (hidden, inner, eps) = (config.hidden_size, own.intermediate_size, own.eps);
    let words = loader.whole("embeddings.word_embeddings.weight", Role::Inner, config.vocab_size, hidden)?;
    let positions = loader.widened("embeddings.position_embeddings.weight", &[own.positions, hidden])?;
    let types = loader.widened("embeddings.token_type_embeddings.weight", &[own.token_types, hidden])?;
    let embedding_norm = norm(loader, "embeddings.LayerNorm", hidden, true, eps)?;
    let mut layers = Vec::with_capacity(own.layers);
    for layer in 0..own.layers {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        let heads = ["query", "key", "value"].map(|part| name(&format!("attention.self.{part}")));
        let heads: Vec<Projection<'_>> = heads.iter().map(|name| (name.as_str(), hidden, true)).collect();
        let output = name("attention.output.dense");
        layers.push(bert::Layer {
            qkv: loader.dense(hidden, &heads)?,
            output: loader.dense(hidden, &[(&output, hidden, true)])?,
            output_norm: norm(loader, &name("attention.output.LayerNorm"), hidden, true, eps)?,
            up: loader.dense(hidden, &[(&name("intermediate.dense"), inner, true)])?,
            down: loader.dense(inner, &[(&name("output.dense"), hidden, true)])?,
            down_norm: norm(loader, &name("output.LayerNorm"), hidden, true, eps)?,
        });
        loader.tensors.release_pages();
    }
    let act = activation(own.act);
    Ok(Bert { config: own.clone(), hidden, act, words, positions, types, norm: embedding_norm, layers })
}

fn load_modern(
    loader: &mut Loader<'_>,
    own: &ModernBertConfig,
    config: &EncoderConfig,
    max_tokens: usize,
) -> Result<Modern, ModelError> {
    let (hidden, inner, eps) = (config.hidden_size, own.intermediate_size, own.eps);
    let (attention, mlp) = (own.attention_bias, own.mlp_bias);
    let words = loader.whole("embeddings.tok_embeddings.weight", Role::Inner, config.vocab_size, hidden)?;
    let embedding_norm = norm(loader, "embeddings.norm", hidden, own.norm_bias, eps)?;
    let mut layers = Vec::with_capacity(own.global.len());
    for (layer, &global) in own.global.iter().enumerate() {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let attention_norm = match layer {
            0 => None,
            _ => Some(norm(loader, &name("attn_norm"), hidden, own.norm_bias, eps)?),
        };
        layers.push(modern::Layer {
            global,
            attention_norm,
            qkv: loader.dense(hidden, &[(&name("attn.Wqkv"), 3 * hidden, attention)])?,
            output: loader.dense(hidden, &[(&name("attn.Wo"), hidden, attention)])?,
            mlp_norm: norm(loader, &name("mlp_norm"), hidden, own.norm_bias, eps)?,
            up: loader.dense(hidden, &[(&name("mlp.Wi"), 2 * inner, mlp)])?,
            down: loader.dense(inner, &[(&name("mlp.Wo"), hidden, mlp)])?,
        });
        loader.tensors.release_pages();
    }
    let final_norm = norm(loader, "final_norm", hidden, own.norm_bias, eps)?;
    let head_dim = hidden / own.heads.max(1);
    let table = |global| rope::table(&own.rope(global), head_dim, max_tokens);
    let (global_rope, local_rope) = (table(true), table(false));
    let act = activation(own.act);
    let config = own.clone();
    Ok(Modern {
        config,
        hidden,
        act,
        words,
        norm: embedding_norm,
        layers,
        final_norm,
        global_rope,
        local_rope,
    })
}

fn score_head(
    loader: &mut Loader<'_>,
    config: &EncoderConfig,
    head: ScoreHead,
    score: ScoreActivation,
) -> Result<Head, ModelError> {
    let hidden = config.hidden_size;
    let (dense, row, act, dense_bias) = match head {
        ScoreHead::Bert => ("pooler.dense", "classifier", Activation::Tanh, true),
        ScoreHead::Roberta => ("classifier.dense", "classifier.out_proj", Activation::Tanh, true),
        ScoreHead::Modern { act, dense_bias, .. } => {
            ("head.dense", "classifier", activation(act), dense_bias)
        }
    };
    let after = match &config.body {
        EncoderBody::Modern(own) => Some(norm(loader, "head.norm", hidden, own.norm_bias, own.eps)?),
        EncoderBody::Bert(_) | EncoderBody::Causal(_) => None,
    };
    // A score is a single number that depends strongly on both matrices, so neither is quantized.
    let quantize = loader.quantize.take();
    let dense = loader.dense(hidden, &[(dense, hidden, dense_bias)])?;
    let row = loader.dense(hidden, &[(row, 1, true)])?;
    loader.quantize = quantize;
    Ok(Head { dense, act, norm: after, row, activation: score })
}
