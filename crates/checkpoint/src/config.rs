//! `config.json` → [`ModelConfig`]. Sizes must be within named limits. Every field that would change the output and is
//! not supported is refused by name. Defaults are those of the architecture's class in transformers.

use serde_json::{Map, Value, json};

use crate::config_file::CONFIG_FILE;
use crate::decoder::{Architecture, ModelConfig, families, refusal_reason};
use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::json::parse_object;
use crate::limits;

impl ModelConfig {
    /// Parses a `config.json`, in the spelling of transformers 5 or of earlier versions.
    ///
    /// # Errors
    /// A [`CheckpointError`] that names the field: it is malformed, out of its limits, contradictory or not supported.
    pub fn from_json(bytes: &[u8]) -> Result<Self, CheckpointError> {
        Self::read(&parse_object(CONFIG_FILE, bytes)?)
    }

    /// Parses the members of a `config.json`, without reading them. Bare words `Infinity` become texts.
    ///
    /// # Errors
    /// [`CheckpointError::Json`] with the path of the faulty value.
    pub fn members(bytes: &[u8]) -> Result<Map<String, Value>, CheckpointError> {
        parse_object(CONFIG_FILE, bytes)
    }

    /// Reads the members of a `config.json`.
    pub(crate) fn read(members: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let name = class(&Fields::new(CONFIG_FILE, members))?;
        match Architecture::wraps_text(name) {
            true => {
                let text = text_members(members, name)?;
                families::read(wrapped_architecture(&Fields::new(CONFIG_FILE, &text), name)?, &text)
            }
            false => families::read(architecture(&Fields::new(CONFIG_FILE, members), name)?, members),
        }
    }

    /// Reads the configuration as one of `architecture`, also if the file names another.
    pub(crate) fn read_as(
        architecture: Architecture,
        members: &Map<String, Value>,
    ) -> Result<Self, CheckpointError> {
        families::read(architecture, members)
    }
}

/// The members of the text model of a model that also takes images: `text_config`, with what the outer object says about
/// tokens and weights.
fn text_members(members: &Map<String, Value>, class: &str) -> Result<Map<String, Value>, CheckpointError> {
    let fields = Fields::new(CONFIG_FILE, members);
    // Before transformers 4.52, these classes had the text model's fields beside `vision_config`.
    let is_flat = matches!(class, "Qwen2VLForConditionalGeneration" | "Qwen2_5_VLForConditionalGeneration");
    let mut text = match members.get("text_config") {
        Some(Value::Object(text)) => text.clone(),
        None if is_flat => members.clone(),
        _ => return Err(fields.missing("text_config")),
    };
    for field in ["bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config"] {
        if let Some(value) = members.get(field).filter(|value| !value.is_null()) {
            text.insert(field.to_owned(), value.clone());
        }
    }
    let model_type = text.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (field, value) in text_defaults(&model_type).as_object().into_iter().flatten() {
        text.entry(field.as_str()).or_insert_with(|| value.clone());
    }
    set_fixed_values(&fields, &mut text, &model_type)?;
    Ok(text)
}

/// What the class of a text model assumes where it differs from the class of the same model alone, or where the model
/// alone must say it. A text model within another often leaves out what is as its class has it.
fn text_defaults(model_type: &str) -> Value {
    match model_type {
        "llama" => json!({
            "hidden_size": 4_096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32,
            "vocab_size": 32_000,
        }),
        "mistral" => json!({
            "hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "vocab_size": 32_000,
        }),
        "qwen2_vl" | "qwen2_vl_text" | "qwen2_5_vl" | "qwen2_5_vl_text" => {
            json!({ "num_key_value_heads": 8, "rms_norm_eps": 1e-5 })
        }
        "qwen3_vl_text" => json!({ "max_position_embeddings": 128_000 }),
        "qwen3_vl_moe_text" => json!({
            "max_position_embeddings": 128_000, "num_experts_per_tok": 4, "num_key_value_heads": 16,
        }),
        "glm4v_text" => json!({ "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5 }),
        "glm4v_moe_text" => json!({ "attention_bias": true, "max_position_embeddings": 65_536 }),
        _ => Value::Null,
    }
}

/// Sets what the class of a text model does in spite of its configuration, or computes from other fields.
fn set_fixed_values(
    fields: &Fields<'_>,
    text: &mut Map<String, Value>,
    model_type: &str,
) -> Result<(), CheckpointError> {
    match model_type {
        "qwen3_vl_moe_text" => {
            if let Some(value) = text.get("norm_topk_prob").filter(|value| value.as_bool() == Some(false)) {
                return Err(fields.unsupported("text_config.norm_topk_prob", value, "true is"));
            }
            text.insert("norm_topk_prob".to_owned(), true.into());
            if text.get("head_dim").is_none_or(Value::is_null) {
                set_head_dim(text);
            }
        }
        // The class has no field for the width of a head, and no share of a head that it assumes.
        "glm4v_text" => {
            set_head_dim(text);
            let rope = ["rope_parameters", "rope_scaling"].iter().find_map(|field| text.get(*field));
            let is_said = rope.is_some_and(|rope| rope.get("partial_rotary_factor").is_some());
            if !is_said {
                text.entry("partial_rotary_factor").or_insert_with(|| 1.0.into());
            }
        }
        _ => {}
    }
    Ok(())
}

/// Sets the width of a head to the hidden size divided by the heads, if both are there.
fn set_head_dim(text: &mut Map<String, Value>) {
    let number = |field: &str| text.get(field).and_then(Value::as_u64);
    let width = number("hidden_size").zip(number("num_attention_heads"));
    if let Some(width) = width.and_then(|(hidden, heads)| hidden.checked_div(heads)) {
        text.insert("head_dim".to_owned(), width.into());
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
        // GPT-2 and models after it have other names for the longest context.
        let mut max_positions = None;
        for field in ["max_position_embeddings", "n_positions", "n_ctx"] {
            max_positions = max_positions.or(inner.count(field, 1..=limits::MAX_POSITIONS)?);
        }
        Ok(Self { vocab_size, max_positions, eos: ids(&whole)?.or(ids(inner)?).unwrap_or_default() })
    }
}

/// The class that `architectures` names.
fn class<'a>(fields: &Fields<'a>) -> Result<&'a str, CheckpointError> {
    let Some(value) = fields.get("architectures") else {
        return Err(fields.missing("architectures"));
    };
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(name)]) => Ok(name),
        _ => Err(fields.wrong("architectures", value, "a list of one name")),
    }
}

fn architecture(fields: &Fields<'_>, name: &str) -> Result<Architecture, CheckpointError> {
    let architecture =
        Architecture::from_hf_name(name).ok_or_else(|| CheckpointError::UnsupportedArchitecture {
            found: with_reason(name),
            supported: Architecture::SUPPORTED,
        })?;
    match fields.text("model_type")? {
        Some(other) if !architecture.has_model_type(other) => {
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

/// The name of a class that is not computed, with the reason if it is known.
fn with_reason(class: &str) -> String {
    match refusal_reason(class) {
        Some(reason) => format!("{} ({reason})", shown(class)),
        None => shown(class),
    }
}

/// The architecture of the text model within a model of class `name`.
fn wrapped_architecture(fields: &Fields<'_>, name: &str) -> Result<Architecture, CheckpointError> {
    let Some(model_type) = fields.text("model_type")? else {
        return Err(fields.missing("text_config.model_type"));
    };
    Architecture::from_model_type(model_type).ok_or_else(|| CheckpointError::UnsupportedArchitecture {
        found: format!("{} of {}", shown(name), shown(model_type)),
        supported: Architecture::SUPPORTED,
    })
}
