//! The tensors that a configuration calls for, with their shapes, and those that contradict it. Must not know what the
//! tensors are used for.

use crate::config::ModelConfig;
use crate::tensor::DType;

/// A tensor that must exist.
pub(crate) struct Required {
    pub(crate) name: String,
    /// One or two dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// The fields of `config.json` that give the shape, in the same order.
    pub(crate) fields: &'static str,
}

/// Element types that weights may have, as messages show them.
pub(crate) const SUPPORTED_DTYPES: &str = "F32, F16 and BF16";

/// The element type used for computation, by its safetensors name. `None` if this project cannot compute with it.
pub(crate) fn supported_dtype(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "F16" => Some(DType::F16),
        "BF16" => Some(DType::BF16),
        _ => None,
    }
}

impl ModelConfig {
    /// Names and shapes of all required tensors, outermost dimension first. Tensors outside the layers come first, then
    /// layer by layer.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let layers = (0..self.layers).flat_map(|index| layer(self, index));
        let all = global(self).into_iter().chain(layers);
        all.map(|required| (required.name, required.shape)).collect()
    }
}

/// The tensors outside the layers.
pub(crate) fn global(config: &ModelConfig) -> Vec<Required> {
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let mut list = vec![
        required("model.embed_tokens.weight", [vocab, hidden], "[vocab_size, hidden_size]"),
        required("model.norm.weight", [hidden], "[hidden_size]"),
    ];
    if !config.tie_embeddings {
        list.push(required("lm_head.weight", [vocab, hidden], "[vocab_size, hidden_size]"));
    }
    list
}

/// The tensors of layer `layer`.
pub(crate) fn layer(config: &ModelConfig, layer: usize) -> Vec<Required> {
    let hidden = config.hidden_size;
    // Head counts and widths are within `limits`, so their products cannot overflow.
    let (query, key) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let inner = config.intermediate_size;
    let mut list = Vec::with_capacity(18);
    let mut add = |name: &str, shape: &[usize], fields| {
        list.push(Required { name: format!("model.layers.{layer}.{name}"), shape: shape.to_vec(), fields });
    };
    add("input_layernorm.weight", &[hidden], "[hidden_size]");
    add("post_attention_layernorm.weight", &[hidden], "[hidden_size]");
    add("self_attn.q_proj.weight", &[query, hidden], "[num_attention_heads × head_dim, hidden_size]");
    add("self_attn.k_proj.weight", &[key, hidden], "[num_key_value_heads × head_dim, hidden_size]");
    add("self_attn.v_proj.weight", &[key, hidden], "[num_key_value_heads × head_dim, hidden_size]");
    add("self_attn.o_proj.weight", &[hidden, query], "[hidden_size, num_attention_heads × head_dim]");
    add("mlp.gate_proj.weight", &[inner, hidden], "[intermediate_size, hidden_size]");
    add("mlp.up_proj.weight", &[inner, hidden], "[intermediate_size, hidden_size]");
    add("mlp.down_proj.weight", &[hidden, inner], "[hidden_size, intermediate_size]");
    if config.qkv_bias {
        add("self_attn.q_proj.bias", &[query], "[num_attention_heads × head_dim]");
        add("self_attn.k_proj.bias", &[key], "[num_key_value_heads × head_dim]");
        add("self_attn.v_proj.bias", &[key], "[num_key_value_heads × head_dim]");
    }
    if config.o_bias {
        add("self_attn.o_proj.bias", &[hidden], "[hidden_size]");
    }
    if config.mlp_bias {
        add("mlp.gate_proj.bias", &[inner], "[intermediate_size]");
        add("mlp.up_proj.bias", &[inner], "[intermediate_size]");
        add("mlp.down_proj.bias", &[hidden], "[hidden_size]");
    }
    if config.qk_norm {
        add("self_attn.q_norm.weight", &[config.head_dim], "[head_dim]");
        add("self_attn.k_norm.weight", &[config.head_dim], "[head_dim]");
    }
    list
}

/// Returns the tensors of layer `layer` that the configuration excludes and that would change the output, each with the
/// reason. transformers drops such tensors with a warning, and a mislabelled checkpoint then answers nonsense.
pub(crate) fn contradictions(config: &ModelConfig, layer: usize) -> Vec<(String, &'static str)> {
    const NO_QKV: &str = "the architecture and attention_bias say that there is none";
    const NO_MLP: &str = "the architecture and mlp_bias say that there is none";
    const NO_NORM: &str = "the architecture has no norm over query and key heads";
    let groups: [(bool, &[&str], &str); 4] = [
        (
            config.qkv_bias,
            &["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"],
            NO_QKV,
        ),
        (config.o_bias, &["self_attn.o_proj.bias"], NO_QKV),
        (config.mlp_bias, &["mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"], NO_MLP),
        (config.qk_norm, &["self_attn.q_norm.weight", "self_attn.k_norm.weight"], NO_NORM),
    ];
    let absent = groups.into_iter().filter(|(present, ..)| !present);
    absent
        .flat_map(|(_, names, why)| names.iter().map(move |n| (format!("model.layers.{layer}.{n}"), why)))
        .collect()
}

pub(crate) fn required<const N: usize>(name: &str, shape: [usize; N], fields: &'static str) -> Required {
    Required { name: name.to_owned(), shape: shape.to_vec(), fields }
}
