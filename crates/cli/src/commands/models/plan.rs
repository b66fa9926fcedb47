//! The plan of a random checkpoint: its shape, and the type of each tensor. Must not know how it is written.

use std::path::Path;

use headrace_checkpoint::decoder::TensorSpec;
use headrace_checkpoint::gguf::{FileDescription, FileTensor, RowOrigin, describe};
use headrace_checkpoint::{DType, ModelConfig};
use serde_json::{Map, Value, json};

use crate::arguments::MakeArgs;

use super::words::{LEAST, MOST_WORDS};

/// Named shapes: hidden size, layers, heads, KV heads, head width, MLP width, vocabulary, context.
const SHAPES: [(&str, [usize; 8]); 3] = [
    ("1.04b", [2_048, 16, 32, 8, 64, 8_192, 32_000, 32_768]),
    ("0.39b", [896, 24, 14, 2, 64, 4_864, 32_000, 32_768]),
    ("tiny", [256, 2, 4, 2, 64, 512, 2_048, 2_048]),
];

/// A checkpoint to be made.
pub(super) struct CheckpointPlan {
    pub(super) config: ModelConfig,
    /// The members of its `config.json`.
    pub(super) members: Map<String, Value>,
    /// What the file consists of, if it is a GGUF file.
    pub(super) description: Option<FileDescription>,
    pub(super) tensors: Vec<PlannedTensor>,
    /// Requested types that did not fit, with their replacements.
    pub(super) fallbacks: Vec<String>,
}

/// A tensor to be made.
pub(super) struct PlannedTensor {
    pub(super) dtype: DType,
    rows: TensorRows,
}

/// Where the rows of a tensor come from.
enum TensorRows {
    /// It is a tensor of the Hugging Face checkpoint.
    Checkpoint(TensorSpec),
    /// It is a tensor of the GGUF file.
    File(FileTensor),
}

impl PlannedTensor {
    /// Its name in the file.
    pub(super) fn name(&self) -> &str {
        match &self.rows {
            TensorRows::Checkpoint(tensor) => &tensor.name,
            TensorRows::File(tensor) => &tensor.name,
        }
    }

    /// Its dimensions in the file, outermost first.
    pub(super) fn shape(&self) -> &[usize] {
        match &self.rows {
            TensorRows::Checkpoint(tensor) => &tensor.shape,
            TensorRows::File(tensor) => &tensor.shape,
        }
    }

    /// Returns the number of rows, and their length.
    pub(super) fn rows(&self) -> (usize, usize) {
        match &self.rows {
            TensorRows::Checkpoint(tensor) => {
                let (inner, outer) = tensor.shape.split_last().unwrap_or((&0, &[]));
                (outer.iter().product(), *inner)
            }
            TensorRows::File(tensor) => (tensor.rows(), tensor.row_elements),
        }
    }

    /// Returns the elements of the checkpoint that a row holds.
    pub(super) fn origin(&self, row: usize) -> Option<RowOrigin<'_>> {
        match &self.rows {
            TensorRows::Checkpoint(tensor) => {
                let first = row.checked_mul(*tensor.shape.last()?)?;
                Some(RowOrigin::following(tensor, first))
            }
            TensorRows::File(tensor) => tensor.origin(row),
        }
    }

    pub(super) fn weights(&self) -> u64 {
        let (rows, k) = self.rows();
        rows as u64 * k as u64
    }

    pub(super) fn bytes(&self) -> usize {
        let (rows, k) = self.rows();
        // The plan has replaced types that do not fit a row.
        self.dtype.row_bytes(k).unwrap_or(0).saturating_mul(rows)
    }
}

impl CheckpointPlan {
    /// Makes the plan for `args`, or returns why it is impossible.
    pub(super) fn of(args: &MakeArgs) -> Result<Self, String> {
        let mut members = match (&args.config, &args.shape) {
            (Some(path), _) => read(path)?,
            (None, name) => named(name.as_deref().unwrap_or("tiny"))?,
        };
        // The weights are made in the types of the arguments.
        for key in ["quantization_config", "compression_config"] {
            members.remove(key);
        }
        let text = Value::Object(members.clone()).to_string();
        let config = ModelConfig::from_json(text.as_bytes()).map_err(|error| error.to_string())?;
        if config.vocab_size < LEAST {
            return Err(format!("a vocabulary of {} is too small: at least {LEAST}", config.vocab_size));
        }
        let end = config.vocab_size.min(MOST_WORDS) - 1;
        for (key, id) in [("bos_token_id", end - 2), ("eos_token_id", end)] {
            members.insert(key.to_owned(), json!(id));
        }
        let dtype = of_type(&args.r#type)?;
        let embedding = args.embedding_type.as_deref().map_or(Ok(dtype), of_type)?;
        let types = PlannedTypes { dtype, embedding };
        let mut fallbacks = Vec::new();
        let mut tensors = Vec::new();
        let mut description = None;
        if args.format == "gguf" {
            let mut described = describe(&config).map_err(|error| error.to_string())?;
            for tensor in std::mem::take(&mut described.tensors) {
                let dtype = types.of_file(&tensor, &mut fallbacks);
                tensors.push(PlannedTensor { dtype, rows: TensorRows::File(tensor) });
            }
            description = Some(described);
        } else {
            for tensor in config.required() {
                let dtype = if is_embedding(&config, &tensor.name) { embedding } else { dtype };
                tensors.push(PlannedTensor { dtype, rows: TensorRows::Checkpoint(tensor.clone()) });
            }
        }
        Ok(Self { config, members, description, tensors, fallbacks })
    }
}

fn is_embedding(config: &ModelConfig, name: &str) -> bool {
    let output = config.head.linear.as_ref().map(|linear| &linear.weight);
    [Some(&config.embedding.words), output].into_iter().flatten().any(|source| source.tensor.name == name)
}

/// Parts of tensor names of a GGUF file whose weights stay exact, as llama.cpp's converter keeps them.
const EXACT: [&str; 5] = ["ffn_gate_inp", "_norm.", "position_embd", "ssm_conv1d", "shortconv.conv"];

/// The types of the arguments.
#[derive(Clone, Copy)]
struct PlannedTypes {
    dtype: DType,
    embedding: DType,
}

impl PlannedTypes {
    /// The type of a tensor of a GGUF file. Vectors are small, and every loader expects them exact.
    fn of_file(self, tensor: &FileTensor, fallbacks: &mut Vec<String>) -> DType {
        let is_vector = tensor.row_elements == 1 || tensor.shape.len() < 2;
        if is_vector || EXACT.iter().any(|part| tensor.name.contains(part)) {
            return DType::F32;
        }
        let wanted = match tensor.name.as_str() {
            "token_embd.weight" | "output.weight" => self.embedding,
            _ => self.dtype,
        };
        fitting(wanted, tensor.row_elements, fallbacks)
    }
}

/// Returns the type for rows of length `k`: `wanted`, or the type that llama.cpp uses instead.
fn fitting(wanted: DType, k: usize, fallbacks: &mut Vec<String>) -> DType {
    if wanted.row_bytes(k).is_some() {
        return wanted;
    }
    let instead = match wanted.name() {
        "q4_k" => "q5_0",
        "q5_k" => "q5_1",
        "q6_k" => "q8_0",
        _ => "f16",
    };
    let next = DType::from_name(instead).unwrap_or(DType::F16);
    let taken = if next.row_bytes(k).is_some() { next } else { DType::F16 };
    let line = format!("rows of {k} are no whole {} blocks: {} instead", wanted.name(), taken.name());
    if !fallbacks.contains(&line) {
        fallbacks.push(line);
    }
    taken
}

fn of_type(name: &str) -> Result<DType, String> {
    let made = |dtype: &DType| !matches!(dtype, DType::Block(kind) if !kind.is_quantized_here());
    DType::from_name(name).filter(made).ok_or_else(|| {
        format!("`{name}` is not a type; there are f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, iq4_nl and mxfp4")
    })
}

fn read(path: &Path) -> Result<Map<String, Value>, String> {
    let failed = |why: String| format!("{}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    // Check the file with the reader of configurations before its members are copied.
    ModelConfig::from_json(&bytes).map_err(|error| failed(error.to_string()))?;
    ModelConfig::members(&bytes).map_err(|error| failed(error.to_string()))
}

fn named(name: &str) -> Result<Map<String, Value>, String> {
    let known = SHAPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let Some((_, [hidden, layers, heads, kv_heads, head_dim, inner, vocab, context])) = known else {
        let names = SHAPES.map(|(name, _)| name).join(", ");
        return Err(format!("`{name}` is not a shape; there are {names}, and --config for any other"));
    };
    let members = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner, "vocab_size": vocab,
        "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
    });
    match members {
        Value::Object(members) => Ok(members),
        _ => Err("a shape is an object".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_fall_back_as_in_llama_cpp() {
        for (wanted, k, expected) in [
            ("q4_k", 2_048, "q4_k"),
            ("q4_k", 896, "q5_0"),
            ("q5_k", 896, "q5_1"),
            ("q6_k", 896, "q8_0"),
            ("q4_k", 48, "f16"),
            ("mxfp4", 48, "f16"),
            ("q8_0", 896, "q8_0"),
            ("bf16", 7, "bf16"),
        ] {
            let mut said = Vec::new();
            let taken = fitting(DType::from_name(wanted).unwrap(), k, &mut said);
            assert_eq!(taken.name(), expected, "{wanted} in rows of {k}");
            assert_eq!(said.is_empty(), wanted == expected);
        }
    }

    #[test]
    fn named_shapes_are_as_large_as_they_say() {
        for (name, least, most) in
            [("1.04b", 1_035_000_000, 1_045_000_000), ("0.39b", 380_000_000, 395_000_000)]
        {
            let text = Value::Object(named(name).unwrap()).to_string();
            let config = ModelConfig::from_json(text.as_bytes()).unwrap();
            let weights: usize =
                config.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
            assert!((least..most).contains(&weights), "{name}: {weights}");
        }
        assert!(named("2b").unwrap_err().contains("tiny"));
    }
}
