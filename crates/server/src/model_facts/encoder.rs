//! The facts of an encoder's checkpoint: its output, its longest text and its settings. Must not load weights.

use std::path::Path;

use headrace_catalog::EncoderOutput;
use headrace_checkpoint::{EncoderBody, EncoderCheckpoint, ModelRefusal, ScoreActivation};
use serde_json::{Value, json};

use super::decoder::tokenizer_kind;
use super::layers::LayerFacts;
use super::numbers::{bytes, count};
use crate::encoders::{makes, open};
use crate::machine;

/// Returns the facts as text.
pub(super) fn to_text(path: &Path) -> Result<String, ModelRefusal> {
    let (checkpoint, tokenizer) = open(path)?;
    let (config, modules) = (checkpoint.config(), checkpoint.modules());
    let made = match (makes(&checkpoint), config.score) {
        (EncoderOutput::Vectors { width }, _) => format!("embeddings of {width} numbers"),
        (EncoderOutput::Scores, Some((_, ScoreActivation::Sigmoid))) => {
            "scores of pairs of texts, 0 to 1".to_owned()
        }
        (EncoderOutput::Scores, _) => "scores of pairs of texts".to_owned(),
    };
    let (layers, heads) = match &config.body {
        EncoderBody::Bert(bert) => (bert.layers, bert.heads),
        EncoderBody::Modern(modern) => (modern.global.len(), modern.heads),
        EncoderBody::Causal(decoder) => {
            let heads = LayerFacts::of(decoder).first_attention(|attention| attention.heads);
            (decoder.layers.len(), heads.unwrap_or(0))
        }
    };
    let said = if modules.given { "as modules.json says" } else { "no modules.json: the usual" };
    let length = if modules.normalize { "brought to length 1" } else { "as they come" };
    let prompts: Vec<&str> = modules.prompts.keys().map(String::as_str).collect();
    let lines = [
        ("architecture", format!("{}, an encoder", config.architecture)),
        ("makes", made),
        ("parameters", count(parameters(&checkpoint))),
        ("layers", format!("{layers} of {heads} heads, hidden {}", config.hidden_size)),
        ("longest text", format!("{} tokens", checkpoint.max_tokens())),
        ("pooling", format!("{}, {length} ({said})", modules.pooling.name())),
        ("prompts", if prompts.is_empty() { "none".to_owned() } else { prompts.join(", ") }),
        (
            "vocabulary",
            format!("{} tokens ({})", tokenizer.vocab_size(), tokenizer_kind(checkpoint.tokenizer_json())),
        ),
        ("identity", checkpoint.fingerprint().get(..16).unwrap_or_default().to_owned()),
        (
            "memory",
            format!(
                "{} for weights, of {} here",
                bytes(checkpoint.weight_bytes()),
                bytes(machine::memory_bytes())
            ),
        ),
    ];
    let mut text = format!("{}\n", path.display());
    for (name, value) in lines {
        text.push_str(&format!("  {name:<13}{value}\n"));
    }
    Ok(text)
}

/// Returns the facts as JSON.
pub(super) fn to_json(path: &Path) -> Result<Value, ModelRefusal> {
    let (checkpoint, _) = open(path)?;
    let (config, modules) = (checkpoint.config(), checkpoint.modules());
    Ok(json!({
        "path": path, "kind": "encoder", "architecture": config.architecture, "parameters": parameters(&checkpoint),
        "makes": match makes(&checkpoint) { EncoderOutput::Vectors { .. } => "embeddings", EncoderOutput::Scores => "scores" },
        "hidden_size": config.hidden_size, "max_tokens": checkpoint.max_tokens(), "vocab_size": config.vocab_size,
        "pooling": modules.pooling.name(), "normalize": modules.normalize, "lower_case": modules.lower_case,
        "prompts": modules.prompts, "weight_bytes": checkpoint.weight_bytes(),
        "fingerprint": checkpoint.fingerprint(),
    }))
}

fn parameters(checkpoint: &EncoderCheckpoint) -> u64 {
    let weights = |shape: &[usize]| shape.iter().map(|n| *n as u64).product::<u64>();
    checkpoint.tensors().iter().fold(0, |sum: u64, (_, shape)| sum.saturating_add(weights(shape)))
}
