//! Checkpoints with random weights whose rows are whole blocks of 256 weights, made in memory from small configurations:
//! one for each kind of mixer, feed-forward network and position.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use headrace_checkpoint::{Checkpoint, ModelConfig};
use serde_json::{Map, Value, json};

/// The directories whose configurations are made wide.
pub(crate) const NAMES: [&str; 18] = [
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma3-text",
    "gemma4-moe",
    "gemma4-ple",
    "glm4-moe",
    "gpt-oss",
    "gpt2",
    "granite-hybrid",
    "lfm2",
    "lfm2-moe",
    "llama-gqa-untied",
    "mistral-swa",
    "nemotron-h-latent",
    "phi",
    "qwen2-moe",
    "qwen3-next",
    "qwen35",
];

/// Members that are replaced where a configuration has them.
const SIZES: [(&str, usize); 30] = [
    ("vocab_size", 200),
    ("vocab_size_per_layer_input", 200),
    ("hidden_size", 256),
    ("n_embd", 256),
    ("intermediate_size", 256),
    ("moe_intermediate_size", 256),
    ("shared_expert_intermediate_size", 256),
    ("moe_shared_expert_intermediate_size", 256),
    ("shared_intermediate_size", 256),
    ("moe_latent_size", 256),
    // Two weighted outputs have the same sum in either order.
    ("num_experts_per_tok", 3),
    ("top_k_experts", 3),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("head_dim", 64),
    ("global_head_dim", 128),
    ("q_lora_rank", 256),
    ("kv_lora_rank", 256),
    ("qk_nope_head_dim", 48),
    ("qk_rope_head_dim", 16),
    ("qk_head_dim", 64),
    ("v_head_dim", 64),
    ("mamba_n_heads", 8),
    ("mamba_d_head", 64),
    ("mamba_num_heads", 8),
    ("mamba_head_dim", 32),
    ("n_groups", 2),
    ("linear_num_value_heads", 4),
    ("linear_value_head_dim", 64),
    ("linear_key_head_dim", 32),
];

/// Makes the checkpoint. The seed chooses the weights.
pub(crate) fn checkpoint(dir: &Path, seed: u64) -> Checkpoint {
    let mut members: Map<String, Value> =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let is_latent = members.contains_key("kv_lora_rank");
    for (name, size) in SIZES {
        let has = members.get(name).and_then(Value::as_u64).is_some_and(|n| n > 0);
        // Heads of latent attention have keys of their own, and the width of their rotated part is a member.
        let size = match name {
            "num_key_value_heads" if is_latent => 4,
            "head_dim" if is_latent => 16,
            _ => size,
        };
        if has {
            members.insert(name.to_owned(), json!(size));
        }
    }
    for name in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        members.insert(name.to_owned(), Value::Null);
    }
    let config_bytes = serde_json::to_vec(&members).unwrap();
    let config =
        ModelConfig::from_json(&config_bytes).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    assert_wide(&config);
    let files = [
        ("config.json", config_bytes),
        ("model.safetensors", weights(&config, seed)),
        ("tokenizer.json", b"{}".to_vec()),
    ];
    let files = files.map(|(name, bytes)| (name.to_owned(), Cow::Owned(bytes)));
    Checkpoint::from_files(files.into()).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

/// Most matrices of every layer must have rows of whole blocks.
fn assert_wide(config: &ModelConfig) {
    for layer in &config.layers {
        let all: Vec<usize> = layer.matrices().iter().flatten().map(|linear| linear.inputs).collect();
        let wide = all.iter().filter(|inputs| inputs.is_multiple_of(256)).count();
        assert!(wide * 2 > all.len(), "{}: rows of {all:?}", layer.prefix);
    }
}

/// A safetensors file of random f32 weights.
fn weights(config: &ModelConfig, seed: u64) -> Vec<u8> {
    let norms = config.norm_weights();
    let (mut header, mut bytes, mut state) = (BTreeMap::new(), Vec::new(), seed);
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    for tensor in config.required() {
        if header.contains_key(&tensor.name) {
            continue;
        }
        let (mean, size) = match (norms.get(tensor.name.as_str()), &*tensor.shape) {
            (Some(neutral), _) => (*neutral, 0.1),
            (None, [_, .., inputs]) => (0.0, (3.0 / *inputs as f32).sqrt()),
            (None, _) => (0.0, 0.1),
        };
        let begin = bytes.len();
        for _ in 0..tensor.shape.iter().product::<usize>() {
            bytes.extend((mean + size * uniform()).to_le_bytes());
        }
        let entry = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, bytes.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()
}
