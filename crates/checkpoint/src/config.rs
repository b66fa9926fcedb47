//! `config.json` → [`ModelConfig`]. Sizes must be within named limits. Every field that would change the output and is
//! not supported is refused by name. Defaults are those of the architecture's class in transformers.

use serde_json::{Map, Value};

use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::json::parse_object;
use crate::limits;
use crate::rope::Rope;

/// File name of the configuration.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// A decoder architecture that this project can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// `LlamaForCausalLM`: RMSNorm, RoPE, grouped-query attention, SwiGLU.
    Llama,
    /// `Qwen2ForCausalLM`: like Llama, with biases on the query, key and value projections.
    Qwen2,
    /// `Qwen3ForCausalLM`: like Llama, with RMSNorm over each query and key head.
    Qwen3,
}

impl Architecture {
    /// The supported architectures, by their names in `config.json`.
    pub const SUPPORTED: &'static [&'static str] =
        &["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];

    /// The name in `config.json`.
    pub fn hf_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The name in the metadata of a GGUF file.
    pub fn gguf_name(self) -> &'static str {
        self.model_type()
    }

    fn from_hf_name(name: &str) -> Option<Self> {
        [Self::Llama, Self::Qwen2, Self::Qwen3].into_iter().find(|known| known.hf_name() == name)
    }

    fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// `max_position_embeddings` if a configuration gives none.
    fn default_positions(self) -> usize {
        match self {
            Self::Llama => 2_048,
            Self::Qwen2 | Self::Qwen3 => 32_768,
        }
    }
}

/// Sizes and switches of a decoder-only transformer. All sizes are in elements, and within [`limits`].
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The decoder architecture.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads. Divides `heads`.
    pub kv_heads: usize,
    /// Width of a head. Always even. `heads * head_dim` need not equal `hidden_size`.
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding. May exceed the number of token ids, because of padding.
    pub vocab_size: usize,
    /// Longest context, in positions. An unchecked claim of the file: never allocate in proportion to this value alone.
    pub max_positions: usize,
    /// Epsilon of every RMSNorm. Positive.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// Whether the three MLP projections have biases.
    pub mlp_bias: bool,
    /// Whether each query and key head passes an RMSNorm before RoPE.
    pub qk_norm: bool,
    /// Whether the embedding also serves as the output projection.
    pub tie_embeddings: bool,
    /// Beginning-of-sequence id.
    pub bos: Option<u32>,
    /// End-of-sequence ids. Empty if the file names none.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Parses a `config.json`, in the spelling of transformers 5 or of earlier versions.
    ///
    /// # Errors
    /// A [`CheckpointError`] that names the field: it is malformed, out of its limits, contradictory or not supported.
    pub fn from_json(bytes: &[u8]) -> Result<Self, CheckpointError> {
        Self::read(&parse_object(CONFIG_FILE, bytes)?)
    }

    fn read(members: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let architecture = architecture(&Fields::new(CONFIG_FILE, members))?;
        Self::read_as(architecture, members)
    }

    /// Reads the configuration as `architecture`, whatever architecture the file names.
    pub(crate) fn read_as(
        architecture: Architecture,
        members: &Map<String, Value>,
    ) -> Result<Self, CheckpointError> {
        let fields = Fields::new(CONFIG_FILE, members);
        refuse_unsupported(&fields)?;
        let hidden_size = fields.required_count("hidden_size", 1..=limits::MAX_HIDDEN_SIZE)?;
        let layers = fields.required_count("num_hidden_layers", 1..=limits::MAX_LAYERS)?;
        let heads = fields.required_count("num_attention_heads", 1..=limits::MAX_HEADS)?;
        let max_positions = fields
            .count("max_position_embeddings", 1..=limits::MAX_POSITIONS)?
            .unwrap_or(architecture.default_positions());
        refuse_sliding_window(&fields, architecture, layers, max_positions)?;
        let vocab_size = fields.required_count("vocab_size", 1..=limits::MAX_VOCAB_SIZE)?;
        let attention_bias = match architecture {
            // Qwen2's class has no such switch.
            Architecture::Qwen2 => false,
            Architecture::Llama | Architecture::Qwen3 => fields.flag("attention_bias")?.unwrap_or(false),
        };
        Ok(Self {
            architecture,
            hidden_size,
            layers,
            heads,
            kv_heads: kv_heads(&fields, architecture, heads)?,
            head_dim: head_dim(&fields, architecture, hidden_size, heads)?,
            intermediate_size: fields
                .required_count("intermediate_size", 1..=limits::MAX_INTERMEDIATE_SIZE)?,
            vocab_size,
            max_positions,
            rms_norm_eps: rms_norm_eps(&fields)?,
            rope: Rope::read(&fields)?,
            qkv_bias: attention_bias || architecture == Architecture::Qwen2,
            o_bias: attention_bias,
            mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: architecture == Architecture::Qwen3,
            tie_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            bos: fields.token_ids("bos_token_id", 1, vocab_size)?.and_then(|ids| ids.first().copied()),
            eos: fields.token_ids("eos_token_id", limits::MAX_EOS_IDS, vocab_size)?.unwrap_or_default(),
        })
    }
}

/// Sizes that must be known of a model of any architecture that an upstream computes.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) vocab_size: usize,
    pub(crate) max_positions: Option<usize>,
    pub(crate) eos: Vec<u32>,
}

impl Sizes {
    /// Reads the sizes. Multimodal models have those of their text model in `text_config`.
    pub(crate) fn read(members: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let whole = Fields::new(CONFIG_FILE, members);
        let text = whole.object("text_config")?;
        let inner = text.as_ref().filter(|_| whole.get("vocab_size").is_none()).unwrap_or(&whole);
        let vocab_size = inner.required_count("vocab_size", 1..=limits::MAX_VOCAB_SIZE)?;
        let ids = |fields: &Fields<'_>| fields.token_ids("eos_token_id", limits::MAX_EOS_IDS, vocab_size);
        Ok(Self {
            vocab_size,
            max_positions: inner.count("max_position_embeddings", 1..=limits::MAX_POSITIONS)?,
            eos: ids(&whole)?.or(ids(inner)?).unwrap_or_default(),
        })
    }
}

fn architecture(fields: &Fields<'_>) -> Result<Architecture, CheckpointError> {
    let Some(value) = fields.get("architectures") else {
        return Err(fields.missing("architectures"));
    };
    let Some([Value::String(name)]) = value.as_array().map(Vec::as_slice) else {
        return Err(fields.wrong("architectures", value, "a list of one name"));
    };
    let architecture = Architecture::from_hf_name(name).ok_or_else(|| {
        CheckpointError::UnsupportedArchitecture { found: shown(name), supported: Architecture::SUPPORTED }
    })?;
    match fields.text("model_type")? {
        Some(other) if other != architecture.model_type() => {
            let problem = format!(
                "\"{}\" contradicts architectures, which says {}",
                shown(other),
                architecture.hf_name()
            );
            Err(fields.problem("model_type", problem))
        }
        _ => Ok(architecture),
    }
}

fn kv_heads(fields: &Fields<'_>, architecture: Architecture, heads: usize) -> Result<usize, CheckpointError> {
    // If the field is absent, Llama's class has one KV head per query head, and Qwen's has 32. An explicit null means
    // one per query head in all classes.
    let absent = !fields.values().any(|(field, _)| field == "num_key_value_heads");
    let default = if absent && architecture != Architecture::Llama { 32 } else { heads };
    let kv_heads = fields.count("num_key_value_heads", 1..=limits::MAX_HEADS)?.unwrap_or(default);
    if !heads.is_multiple_of(kv_heads) {
        let problem = format!("{kv_heads} does not divide num_attention_heads {heads}");
        return Err(fields.problem("num_key_value_heads", problem));
    }
    Ok(kv_heads)
}

fn head_dim(
    fields: &Fields<'_>,
    architecture: Architecture,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, CheckpointError> {
    let given = fields.count("head_dim", 2..=limits::MAX_HEAD_DIM)?;
    let head_dim = match (given, architecture) {
        (Some(given), _) => given,
        (None, Architecture::Qwen3) => 128,
        (None, _) if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        (None, _) => {
            let problem = format!(
                "is missing, and num_attention_heads {heads} do not divide hidden_size {hidden_size}"
            );
            return Err(fields.problem("head_dim", problem));
        }
    };
    if !head_dim.is_multiple_of(2) || !(2..=limits::MAX_HEAD_DIM).contains(&head_dim) {
        let problem = format!("{head_dim} must be even and from 2 to {}", limits::MAX_HEAD_DIM);
        return Err(fields.problem("head_dim", problem));
    }
    Ok(head_dim)
}

fn rms_norm_eps(fields: &Fields<'_>) -> Result<f32, CheckpointError> {
    let wide = fields.number("rms_norm_eps", 0.0, limits::MAX_RMS_NORM_EPS)?.unwrap_or(1e-6);
    let narrow = wide as f32;
    if !narrow.is_normal() {
        return Err(fields.problem("rms_norm_eps", format!("{wide:e} vanishes in 32-bit floating point")));
    }
    Ok(narrow)
}

/// Refuses every setting that a supported class would honour and this project does not implement.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    refuse_formats(fields)?;
    if let Some(activation) = fields.get("hidden_act")
        && activation.as_str() != Some("silu")
    {
        return Err(fields.unsupported("hidden_act", activation, "\"silu\" is"));
    }
    Ok(())
}

/// Refuses weight formats that this crate does not read.
pub(crate) fn refuse_formats(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    for field in ["quantization_config", "compression_config"] {
        if let Some(value) = fields.get(field) {
            return Err(fields.unsupported(field, value, "weights stored as F32, F16 or BF16 are"));
        }
    }
    for field in ["dtype", "torch_dtype"] {
        if let Some(dtype) = fields.get(field)
            && !matches!(dtype.as_str(), Some("float32" | "float16" | "bfloat16"))
        {
            return Err(fields.unsupported(field, dtype, "\"float32\", \"float16\" and \"bfloat16\" are"));
        }
    }
    Ok(())
}

/// Refuses a sliding window that some position could reach. A window that is switched off, or is never reached, has no
/// effect.
fn refuse_sliding_window(
    fields: &Fields<'_>,
    architecture: Architecture,
    layers: usize,
    max_positions: usize,
) -> Result<(), CheckpointError> {
    const FULL: &str = "full attention in every layer is";
    if let Some(value) = fields.get("layer_types") {
        let Some(types) = value.as_array().filter(|types| types.len() == layers) else {
            return Err(fields.wrong("layer_types", value, &format!("a list of num_hidden_layers {layers}")));
        };
        if let Some(other) = types.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            return Err(fields.unsupported("layer_types", other, FULL));
        }
        return Ok(());
    }
    // Llama's class has no window. Qwen's classes use one from layer `max_window_layers` on, 28 by default.
    if architecture == Architecture::Llama || !fields.flag("use_sliding_window")?.unwrap_or(false) {
        return Ok(());
    }
    let first = fields.count("max_window_layers", 0..=usize::MAX)?.unwrap_or(28);
    let given = fields.values().any(|(field, _)| field == "sliding_window");
    let window = fields.count("sliding_window", 1..=usize::MAX)?.or((!given).then_some(4_096));
    match window {
        Some(window) if first < layers && window < max_positions => {
            Err(fields.unsupported("use_sliding_window", &Value::Bool(true), FULL))
        }
        _ => Ok(()),
    }
}
