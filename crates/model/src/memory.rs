//! Estimates the memory of a model before it is loaded, so that a caller can size the KV pool. Must not know: how much
//! memory the machine has.

use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::attention::{KvShape, KvType};
use headrace_kernels::matrix::Matrix;
use headrace_quant::BlockType;

use crate::error::ModelError;
use crate::quantize::{Role, target};
use crate::weights::{LayerNames, embedding_name, embedding_role, head_name, weight_type};

/// The shape of the model's keys and values.
pub(crate) fn kv_shape(config: &ModelConfig) -> KvShape {
    KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim }
}

/// KV bytes per block of 16 tokens, over all layers.
pub fn kv_bytes_per_block(config: &ModelConfig, kv: KvType) -> usize {
    kv.block_bytes(kv_shape(config))
}

/// Bytes of the packed matrices if dense ones are quantized to `quantize`. Norms and biases are small and are not
/// counted.
///
/// # Errors
/// Fails if a tensor is missing.
pub fn weight_bytes(checkpoint: &Checkpoint, quantize: Option<BlockType>) -> Result<usize, ModelError> {
    let config = checkpoint.config();
    let mut total = 0_usize;
    let mut add = |names: &[(&str, usize)], role: Role, k: usize| -> Result<(), ModelError> {
        let mut parts = Vec::new();
        for &(name, rows) in names {
            // Requesting a tensor that is missing or of another type returns an error with its name.
            let dtype =
                checkpoint.dtype(name).map_or_else(|| checkpoint.tensor(name).map(|t| t.dtype), Ok)?;
            let stored = weight_type(dtype);
            parts.push((target(quantize, stored, role, k), rows));
        }
        total = total.saturating_add(Matrix::packed_bytes(&parts, k));
        Ok(())
    };
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    add(&[(embedding_name(), config.vocab_size)], embedding_role(config), hidden)?;
    if !config.tie_embeddings {
        add(&[(head_name(), config.vocab_size)], Role::Head, hidden)?;
    }
    for layer in 0..config.layers {
        let names = LayerNames { layer };
        let (q, k, v) = (
            names.weight("self_attn.q_proj"),
            names.weight("self_attn.k_proj"),
            names.weight("self_attn.v_proj"),
        );
        let (gate, up) = (names.weight("mlp.gate_proj"), names.weight("mlp.up_proj"));
        add(&[(&q, queries), (&k, kv), (&v, kv)], Role::Inner, hidden)?;
        add(&[(&names.weight("self_attn.o_proj"), hidden)], Role::Inner, queries)?;
        add(&[(&gate, inner), (&up, inner)], Role::Inner, hidden)?;
        add(&[(&names.weight("mlp.down_proj"), hidden)], Role::Inner, inner)?;
    }
    Ok(total)
}
