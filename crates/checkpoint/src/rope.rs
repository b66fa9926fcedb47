//! Rotary position embedding as `config.json` describes it, in both spellings: `rope_theta` with `rope_scaling`,
//! and `rope_parameters` (transformers 5). Where both are given they must agree. Must not know how RoPE is computed.

use serde_json::Value;

use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits::{MAX_POSITIONS, MAX_ROPE_FACTOR, MAX_ROPE_THETA};

/// The base that transformers assumes when a configuration gives none.
const DEFAULT_THETA: f64 = 10_000.0;
const SUPPORTED_TYPES: &str = "supported are default, linear, llama3";

/// Rotary position embedding over the whole `head_dim`, in the halves-rotated layout of transformers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies: pair `i` turns by `theta^(-2i / head_dim)` radians a position.
    pub theta: f64,
    /// What is done to the frequencies for contexts longer than those trained on.
    pub scaling: RopeScaling,
}

/// Changes to RoPE's frequencies, as `transformers.modeling_rope_utils` defines them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a smooth passage between.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are scaled in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept. Above `low_freq_factor`.
        high_freq_factor: f64,
        /// Context of the pretraining, in positions.
        original_max_positions: usize,
    },
}

impl Rope {
    pub(crate) fn read(config: &Fields<'_>) -> Result<Self, CheckpointError> {
        refuse_partial(config)?;
        let top = theta(config)?;
        let old = config.object("rope_scaling")?.map(|fields| spelled(&fields)).transpose()?;
        let new = config.object("rope_parameters")?.map(|fields| spelled(&fields)).transpose()?;
        if let (Some((_, old)), Some((_, new))) = (old, new)
            && old != new
        {
            let problem = format!("says {old:?}, but rope_parameters says {new:?}");
            return Err(config.problem("rope_scaling", problem));
        }
        let thetas = [top, new.and_then(|(theta, _)| theta), old.and_then(|(theta, _)| theta)];
        let mut given = thetas.into_iter().flatten();
        let theta = given.next();
        if let (Some(theta), Some(other)) = (theta, given.find(|other| Some(*other) != theta)) {
            let problem = format!("is given twice, as {theta} and as {other}");
            return Err(config.problem("rope_theta", problem));
        }
        let scaling = new.or(old).map_or(RopeScaling::None, |(_, scaling)| scaling);
        Ok(Self { theta: theta.unwrap_or(DEFAULT_THETA), scaling })
    }
}

/// What one of the two objects says: its own base, if any, and the scaling.
fn spelled(fields: &Fields<'_>) -> Result<(Option<f64>, RopeScaling), CheckpointError> {
    if let Some((layer_type, value)) = fields.values().find(|(_, value)| value.is_object()) {
        return Err(fields.unsupported(layer_type, value, "one RoPE for all layers is"));
    }
    refuse_partial(fields)?;
    Ok((theta(fields)?, scaling(fields)?))
}

fn theta(fields: &Fields<'_>) -> Result<Option<f64>, CheckpointError> {
    fields.number("rope_theta", 0.0, MAX_ROPE_THETA)
}

fn refuse_partial(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    match fields.get("partial_rotary_factor") {
        Some(value) if value.as_f64() != Some(1.0) => {
            Err(fields.unsupported("partial_rotary_factor", value, "1 is"))
        }
        _ => Ok(()),
    }
}

fn scaling(fields: &Fields<'_>) -> Result<RopeScaling, CheckpointError> {
    // `type` is the key of configurations older than transformers 4.43.
    let key = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    match fields.text(key)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor(fields)? }),
        Some("llama3") => llama3(fields),
        Some(other) => Err(fields.unsupported(key, &Value::from(other), SUPPORTED_TYPES)),
    }
}

fn llama3(fields: &Fields<'_>) -> Result<RopeScaling, CheckpointError> {
    let frequency = |field| -> Result<f64, CheckpointError> {
        fields.number(field, 0.0, MAX_ROPE_FACTOR)?.ok_or_else(|| fields.missing(field))
    };
    let low_freq_factor = frequency("low_freq_factor")?;
    let high_freq_factor = frequency("high_freq_factor")?;
    if high_freq_factor <= low_freq_factor {
        let problem =
            format!("found {high_freq_factor}, expected more than low_freq_factor {low_freq_factor}");
        return Err(fields.problem("high_freq_factor", problem));
    }
    Ok(RopeScaling::Llama3 {
        factor: factor(fields)?,
        low_freq_factor,
        high_freq_factor,
        original_max_positions: fields
            .required_count("original_max_position_embeddings", 1..=MAX_POSITIONS)?,
    })
}

fn factor(fields: &Fields<'_>) -> Result<f64, CheckpointError> {
    fields.number_from("factor", 1.0, MAX_ROPE_FACTOR)?.ok_or_else(|| fields.missing("factor"))
}
