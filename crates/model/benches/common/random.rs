//! Models of any size with random weights.

use std::borrow::Cow;

/// Any error that stops a benchmark.
pub(crate) type Failure = Box<dyn std::error::Error>;
/// File names and contents.
pub(crate) type Files = Vec<(String, Cow<'static, [u8]>)>;

const HEAD_DIM: usize = 64;
const MAX_POSITIONS: usize = 32_768;

/// Sizes of a model with tied embeddings.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) inner: usize,
}

/// A checkpoint in memory: `config.json`, a tokenizer and one file of weights.
pub(crate) fn files(shape: Shape, vocab: usize, tokenizer: Vec<u8>) -> Result<Files, Failure> {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM, "intermediate_size": shape.inner, "vocab_size": vocab, "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1,
    });
    Ok(vec![
        ("config.json".to_owned(), Cow::Owned(serde_json::to_vec(&config)?)),
        ("tokenizer.json".to_owned(), Cow::Owned(tokenizer)),
        ("model.safetensors".to_owned(), Cow::Owned(weights(shape, vocab)?)),
    ])
}

fn weights(shape: Shape, vocab: usize) -> Result<Vec<u8>, Failure> {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, shape.hidden]),
        ("model.norm.weight".to_owned(), vec![shape.hidden]),
    ];
    for layer in 0..shape.layers {
        for (name, dimensions) in [
            ("input_layernorm", vec![shape.hidden]),
            ("self_attn.q_proj", vec![shape.heads * HEAD_DIM, shape.hidden]),
            ("self_attn.k_proj", vec![shape.kv_heads * HEAD_DIM, shape.hidden]),
            ("self_attn.v_proj", vec![shape.kv_heads * HEAD_DIM, shape.hidden]),
            ("self_attn.o_proj", vec![shape.hidden, shape.heads * HEAD_DIM]),
            ("post_attention_layernorm", vec![shape.hidden]),
            ("mlp.gate_proj", vec![shape.inner, shape.hidden]),
            ("mlp.up_proj", vec![shape.inner, shape.hidden]),
            ("mlp.down_proj", vec![shape.hidden, shape.inner]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), dimensions));
        }
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0_usize);
    for (name, dimensions) in &tensors {
        let begin = end;
        end += 2 * dimensions.iter().product::<usize>();
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": "BF16", "shape": dimensions, "data_offsets": [begin, end]}),
        );
    }
    let header = serde_json::to_vec(&header)?;
    let mut file = Vec::with_capacity(8 + header.len() + end);
    file.extend_from_slice(&(header.len() as u64).to_le_bytes());
    file.extend_from_slice(&header);
    // xorshift64 generates four bf16 at a time, with magnitudes from 2⁻⁷ to 2⁻⁶ and random signs.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..end / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let four = (state & 0x807f_807f_807f_807f) | 0x3c00_3c00_3c00_3c00;
        file.extend_from_slice(&four.to_le_bytes());
    }
    Ok(file)
}
