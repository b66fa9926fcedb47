//! `generation_config.json` → [`GenerationDefaults`]: the sampling parameters that the model's authors recommend. All
//! are optional. Must not know what a request may override, or how sampling works.

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;

/// File name of the generation defaults.
pub(crate) const GENERATION_FILE: &str = "generation_config.json";

/// Sampling defaults that the checkpoint recommends. Each is `None` without a recommendation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Divides the logits. 0 means greedy, and `do_sample: false` gives 0.
    pub temperature: Option<f32>,
    /// Nucleus mass, in `(0, 1]`.
    pub top_p: Option<f32>,
    /// Number of most probable ids kept, at least 1. `None` also if the file says 0 or −1, which mean "off".
    pub top_k: Option<u32>,
    /// Minimum probability relative to the most probable id, in `[0, 1]`.
    pub min_p: Option<f32>,
    /// Divides positive logits of ids that already occurred, and multiplies negative ones. Must be positive. 1 means off.
    pub repetition_penalty: Option<f32>,
    /// Maximum tokens to generate, at least 1.
    pub max_new_tokens: Option<usize>,
    /// Ids that end the sequence. They replace those of the configuration, as in transformers.
    pub eos: Option<Vec<u32>>,
}

impl GenerationDefaults {
    pub(crate) fn read(members: &Map<String, Value>, vocab_size: usize) -> Result<Self, CheckpointError> {
        let fields = Fields::new(GENERATION_FILE, members);
        let greedy = fields.flag("do_sample")? == Some(false);
        let temperature = fields.number_from("temperature", 0.0, limits::MAX_TEMPERATURE)?;
        let penalty = fields.number("repetition_penalty", 0.0, limits::MAX_REPETITION_PENALTY)?;
        Ok(Self {
            temperature: if greedy { Some(0.0) } else { temperature.map(|n| n as f32) },
            top_p: fields.number("top_p", 0.0, 1.0)?.map(|n| n as f32),
            top_k: top_k(&fields, vocab_size)?,
            min_p: fields.number_from("min_p", 0.0, 1.0)?.map(|n| n as f32),
            repetition_penalty: penalty.map(|n| n as f32),
            max_new_tokens: fields.count("max_new_tokens", 1..=limits::MAX_POSITIONS)?,
            eos: fields.token_ids("eos_token_id", limits::MAX_EOS_IDS, vocab_size)?,
        })
    }
}

fn top_k(fields: &Fields<'_>, vocab_size: usize) -> Result<Option<u32>, CheckpointError> {
    if fields.get("top_k").is_some_and(|value| value.as_i64() == Some(-1)) {
        return Ok(None);
    }
    let given = fields.count("top_k", 0..=u32::MAX as usize)?.map(|k| k.min(vocab_size));
    Ok(given.filter(|k| *k > 0).and_then(|k| u32::try_from(k).ok()))
}
