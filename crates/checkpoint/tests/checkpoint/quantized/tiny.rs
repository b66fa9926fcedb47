//! A small model with quantized matrices in memory, for each method.

use std::collections::BTreeMap;

use headrace_checkpoint::{Checkpoint, CheckpointError};
use serde_json::{Value, json};

use crate::support::safetensors_file;

/// Tensors by name: type, shape and bytes.
pub(super) type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

/// The matrices of the only layer. All have 32 rows and columns.
pub(super) const MODULES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
pub(super) const UP: &str = "model.layers.0.mlp.up_proj";

/// A model of one layer, with its `quantization_config`.
#[derive(Clone, Debug)]
pub(super) struct Tiny {
    pub(super) quantization: Value,
    pub(super) tensors: Tensors,
}

pub(super) fn put(tensors: &mut Tensors, name: String, dtype: &str, shape: &[usize], bytes: Vec<u8>) {
    tensors.insert(name, (dtype.to_owned(), shape.to_vec(), bytes));
}

/// `count` scales of 0.5.
pub(super) fn halves(dtype: &str, count: usize) -> Vec<u8> {
    let one: &[u8] = match dtype {
        "F32" => &[0, 0, 0, 0x3F],
        "BF16" => &[0, 0x3F],
        _ => &[0, 0x38],
    };
    one.repeat(count)
}

/// Words that hold every code.
pub(super) fn codes(words: usize) -> Vec<u8> {
    (0..4 * words).map(|at| (at * 29 + 7) as u8).collect()
}

impl Tiny {
    /// A model whose matrices are made by `of_module`.
    pub(super) fn with(quantization: Value, of_module: impl Fn(&mut Tensors, &str)) -> Self {
        let mut tensors = Tensors::new();
        for name in
            ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
        {
            put(&mut tensors, format!("{name}.weight"), "BF16", &[32], halves("BF16", 32));
        }
        put(&mut tensors, "model.embed_tokens.weight".to_owned(), "BF16", &[4, 32], halves("BF16", 128));
        MODULES.iter().for_each(|module| of_module(&mut tensors, &format!("model.layers.0.{module}")));
        Self { quantization, tensors }
    }

    pub(super) fn fp8() -> Self {
        let config = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 20]});
        Self::with(config, |tensors, module| {
            let codes = (0..1024).map(|at| (at * 7 % 0x70) as u8).collect();
            put(tensors, format!("{module}.weight"), "F8_E4M3", &[32, 32], codes);
            put(tensors, format!("{module}.weight_scale_inv"), "F32", &[2, 2], halves("F32", 4));
        })
    }

    pub(super) fn awq() -> Self {
        let config = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true});
        Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.qweight"), "I32", &[32, 4], codes(128));
            put(tensors, format!("{module}.qzeros"), "I32", &[1, 4], codes(4));
            put(tensors, format!("{module}.scales"), "F16", &[1, 32], halves("F16", 32));
        })
    }

    pub(super) fn gptq() -> Self {
        let config =
            json!({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": false, "sym": true});
        Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.qweight"), "I32", &[4, 32], codes(128));
            put(tensors, format!("{module}.qzeros"), "I32", &[2, 4], codes(8));
            put(tensors, format!("{module}.scales"), "F16", &[2, 32], halves("F16", 64));
            let index = (0..32_u32).flat_map(|column| (column / 16).to_le_bytes()).collect();
            put(tensors, format!("{module}.g_idx"), "I32", &[32], index);
        })
    }

    /// compressed-tensors, with zeros and groups of 32.
    pub(super) fn packed() -> Self {
        let weights =
            json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false});
        let groups = json!({"group_0": {"targets": ["Linear"], "weights": weights}});
        let config = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups, "ignore": ["lm_head"],
        });
        Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.weight_packed"), "I32", &[32, 4], codes(128));
            put(tensors, format!("{module}.weight_zero_point"), "I32", &[4, 1], codes(4));
            put(tensors, format!("{module}.weight_scale"), "BF16", &[32, 1], halves("BF16", 32));
            let shape = [32_u64; 2].iter().flat_map(|size| size.to_le_bytes()).collect();
            put(tensors, format!("{module}.weight_shape"), "I64", &[2], shape);
        })
    }

    /// Plain matrices, and stacked ones that no configuration calls for.
    pub(super) fn mxfp4() -> Self {
        let config = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]});
        let mut tiny = Self::with(config, |tensors, module| {
            put(tensors, format!("{module}.weight"), "BF16", &[32, 32], halves("BF16", 1024));
        });
        put(&mut tiny.tensors, "experts.up_blocks".to_owned(), "U8", &[2, 3, 2, 16], codes(48));
        put(&mut tiny.tensors, "experts.up_scales".to_owned(), "U8", &[2, 3, 2], vec![120; 12]);
        tiny
    }

    pub(super) fn all() -> [Self; 5] {
        [Self::fp8(), Self::awq(), Self::gptq(), Self::packed(), Self::mxfp4()]
    }

    pub(super) fn set(mut self, field: &str, value: Value) -> Self {
        self.quantization[field] = value;
        self
    }

    /// Sets a field of the weights of compressed-tensors' group.
    pub(super) fn set_weights(mut self, field: &str, value: Value) -> Self {
        self.quantization["config_groups"]["group_0"]["weights"][field] = value;
        self
    }

    /// Replaces a tensor of the module `UP`, or adds one.
    pub(super) fn up(mut self, part: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        put(&mut self.tensors, format!("{UP}.{part}"), dtype, shape, bytes);
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        assert!(self.tensors.remove(name).is_some(), "there is no {name}");
        self
    }

    pub(super) fn weights(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend_from_slice(bytes);
        }
        safetensors_file(Value::Object(header).to_string().as_bytes(), &data)
    }

    pub(super) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 1, "intermediate_size": 32, "vocab_size": 4, "tie_word_embeddings": true,
            "quantization_config": self.quantization,
        });
        let file = |name: &str, bytes: Vec<u8>| (name.to_owned(), bytes.into());
        Checkpoint::from_files(vec![
            file("config.json", config.to_string().into_bytes()),
            file("tokenizer.json", b"{}".to_vec()),
            file("model.safetensors", self.weights()),
        ])
    }
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
