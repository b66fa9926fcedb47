//! How much memory a model will take, before it is loaded, so that a caller can size the KV pool.
//! Must not know: how much there is.

use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::attention::KvShape;
use headrace_kernels::matrix::Matrix;

use crate::error::ModelError;
use crate::weights::{LayerNames, embedding_name, head_name, weight_type};

/// The shape of the model's keys and values.
pub(crate) fn kv_shape(config: &ModelConfig) -> KvShape {
    KvShape { layers: config.layers, kv_heads: config.kv_heads, head_dim: config.head_dim }
}

/// Bytes of KV per block of 16 tokens over all layers.
pub fn kv_bytes_per_block(config: &ModelConfig) -> usize {
    kv_shape(config).bytes_per_block()
}

/// Bytes that the packed matrices will take (norms and biases, which are small, left out). Errors when a tensor is
/// missing.
pub fn weight_bytes(checkpoint: &Checkpoint) -> Result<usize, ModelError> {
    let config = checkpoint.config();
    let mut total = 0_usize;
    let mut add = |names: &[&str], n: usize, k: usize| -> Result<(), ModelError> {
        let mut types = Vec::new();
        for name in names {
            types.push(weight_type(checkpoint.tensor(name)?.dtype));
        }
        total = total.saturating_add(Matrix::packed_bytes(Matrix::stored_type(types), n, k));
        Ok(())
    };
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (queries, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    add(&[embedding_name()], config.vocab_size, hidden)?;
    if !config.tie_embeddings {
        add(&[head_name()], config.vocab_size, hidden)?;
    }
    for layer in 0..config.layers {
        let names = LayerNames { layer };
        let (q, k, v) = (
            names.weight("self_attn.q_proj"),
            names.weight("self_attn.k_proj"),
            names.weight("self_attn.v_proj"),
        );
        add(&[&q, &k, &v], queries + 2 * kv, hidden)?;
        add(&[&names.weight("self_attn.o_proj")], hidden, queries)?;
        add(&[&names.weight("mlp.gate_proj"), &names.weight("mlp.up_proj")], 2 * inner, hidden)?;
        add(&[&names.weight("mlp.down_proj")], hidden, inner)?;
    }
    Ok(total)
}
