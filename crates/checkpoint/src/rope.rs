//! Rotary position embedding in `config.json`, in both spellings: `rope_theta` with `rope_scaling`, and
//! `rope_parameters` (transformers 5). If a file has both, they must agree. Must not know how RoPE is computed.

use std::sync::Arc;

use serde_json::Value;

use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits::{MAX_HEAD_DIM, MAX_POSITIONS, MAX_ROPE_FACTOR, MAX_ROPE_THETA};

/// The base that transformers assumes if a configuration gives none.
pub(crate) const DEFAULT_THETA: f64 = 10_000.0;
/// Default ends of YaRN's ramp, in turns over the context of the pretraining.
pub(crate) const YARN_BETA_FAST: f64 = 32.0;
pub(crate) const YARN_BETA_SLOW: f64 = 1.0;
const SUPPORTED_TYPES: &str = "supported are default, linear, llama3, yarn, longrope";

/// Rotary position embedding over the whole `head_dim`, in the halves-rotated layout of transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies: pair `i` turns by `theta^(-2i / head_dim)` radians per position.
    pub theta: f64,
    /// Change of the frequencies for contexts longer than those in training.
    pub scaling: RopeScaling,
}

/// Changes to RoPE's frequencies, as `transformers.modeling_rope_utils` defines them.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Unchanged frequencies.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided by `factor`, high ones are kept, with a smooth transition between them.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are fully scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept. Greater than `low_freq_factor`.
        high_freq_factor: f64,
        /// Context of the pretraining, in positions.
        original_max_positions: usize,
    },
    /// YaRN (<https://arxiv.org/abs/2309.00071>): low frequencies are divided by `factor`, high ones are kept, with a
    /// ramp over the pairs between them. Cos and sin are multiplied by an attention factor.
    Yarn {
        /// At least 1.
        factor: f64,
        /// Context of the pretraining, in positions.
        original_max_positions: usize,
        /// Pairs with more turns than this over the context of the pretraining are kept.
        beta_fast: f64,
        /// Pairs with fewer turns than this are fully scaled. At most `beta_fast`.
        beta_slow: f64,
        /// Whether the ramp's ends are rounded outwards to whole pairs.
        truncate: bool,
        /// The attention factor on cos and sin, if the file gives it.
        attention_factor: Option<f64>,
        /// Parameters `a` and `b` of the attention factor if `attention_factor` is `None`. With them the factor is
        /// `(0.1·a·ln factor + 1) / (0.1·b·ln factor + 1)`, and without them `0.1·ln factor + 1`.
        mscales: Option<(f64, f64)>,
    },
    /// LongRoPE (<https://arxiv.org/abs/2402.13753>): every pair's frequency is divided by its own factor, of one list up
    /// to the context of the pretraining and of another one beyond it. Cos and sin are multiplied by an attention factor.
    Long {
        /// Positive factors of the pairs, for contexts up to `original_max_positions`.
        short: Arc<[f32]>,
        /// Positive factors of the pairs, for longer contexts.
        long: Arc<[f32]>,
        /// Context of the pretraining, in positions.
        original_max_positions: usize,
        /// How much longer the longest context is. At least 1.
        factor: f64,
        /// The attention factor, if the file gives it. Else `√(1 + ln factor / ln original_max_positions)`.
        attention_factor: Option<f64>,
    },
    /// Every pair's frequency is divided by its own factor. GGUF files store Llama 3.1's scaling in this form.
    Divided {
        /// `head_dim / 2` positive factors.
        factors: Arc<[f32]>,
    },
}

impl Rope {
    /// Reads the one rotary embedding of all layers, over whole heads.
    pub(crate) fn read(config: &Fields<'_>) -> Result<Self, CheckpointError> {
        Self::read_with(config, DEFAULT_THETA)
    }

    /// Like [`Rope::read`], with the base that the architecture's class has if the file gives none.
    pub(crate) fn read_with(config: &Fields<'_>, default_theta: f64) -> Result<Self, CheckpointError> {
        refuse_partial(config)?;
        Self::read_any(config, default_theta)
    }

    /// Reads the one rotary embedding of all layers, and the share of a head that it rotates.
    pub(crate) fn read_partial(config: &Fields<'_>, default: f64) -> Result<(Self, f64), CheckpointError> {
        let outer = config.number("partial_rotary_factor", 0.0, 1.0)?;
        let mut inner = None;
        for object in ["rope_parameters", "rope_scaling"] {
            if let Some(fields) = config.object(object)? {
                inner = inner.or(fields.number("partial_rotary_factor", 0.0, 1.0)?);
            }
        }
        Ok((Self::read_any(config, DEFAULT_THETA)?, inner.or(outer).unwrap_or(default)))
    }

    /// Reads the rotary embedding of layers of one type. `None` if the file has one for all layers.
    pub(crate) fn by_layer_type(
        config: &Fields<'_>,
        layer_type: &str,
    ) -> Result<Option<Self>, CheckpointError> {
        let Some(fields) = config.object("rope_parameters")? else { return Ok(None) };
        let Some(fields) = fields.inner_object(layer_type) else { return Ok(None) };
        let theta = theta(&fields)?.unwrap_or(DEFAULT_THETA);
        Ok(Some(Self { theta, scaling: scaling(&fields, ContextLengths::default())? }))
    }

    fn read_any(config: &Fields<'_>, default_theta: f64) -> Result<Self, CheckpointError> {
        let contexts = ContextLengths {
            original: config.count("original_max_position_embeddings", 1..=MAX_POSITIONS)?,
            longest: config.count("max_position_embeddings", 1..=MAX_POSITIONS)?,
        };
        let top = theta(config)?;
        let spelled = |fields: Fields<'_>| spelled(&fields, contexts);
        let old = config.object("rope_scaling")?.map(spelled).transpose()?;
        let new = config.object("rope_parameters")?.map(spelled).transpose()?;
        if let (Some((_, old)), Some((_, new))) = (&old, &new)
            && old != new
        {
            let problem = format!("says {old:?}, but rope_parameters says {new:?}");
            return Err(config.problem("rope_scaling", problem));
        }
        let own = |spelled: &Option<Spelled>| spelled.as_ref().and_then(|(theta, _)| *theta);
        let thetas = [top, own(&new), own(&old)];
        let mut given = thetas.into_iter().flatten();
        let theta = given.next();
        if let (Some(theta), Some(other)) = (theta, given.find(|other| Some(*other) != theta)) {
            let problem = format!("is given twice, as {theta} and as {other}");
            return Err(config.problem("rope_theta", problem));
        }
        let scaling = new.or(old).map_or(RopeScaling::None, |(_, scaling)| scaling);
        Ok(Self { theta: theta.unwrap_or(default_theta), scaling })
    }
}

/// The content of one of the two objects: its base, if it has one, and the scaling.
type Spelled = (Option<f64>, RopeScaling);

/// The contexts that a file gives beside the object.
#[derive(Clone, Copy, Default)]
struct ContextLengths {
    /// That of the pretraining, in positions.
    original: Option<usize>,
    /// The longest, in positions.
    longest: Option<usize>,
}

fn spelled(fields: &Fields<'_>, contexts: ContextLengths) -> Result<Spelled, CheckpointError> {
    if let Some((layer_type, value)) = fields.values().find(|(_, value)| value.is_object()) {
        return Err(fields.unsupported(layer_type, value, "one RoPE for all layers is"));
    }
    Ok((theta(fields)?, scaling(fields, contexts)?))
}

fn theta(fields: &Fields<'_>) -> Result<Option<f64>, CheckpointError> {
    fields.number("rope_theta", 0.0, MAX_ROPE_THETA)
}

/// Refuses a rotation of a part of each head, in any of the places where a file says it.
fn refuse_partial(config: &Fields<'_>) -> Result<(), CheckpointError> {
    let objects = [config.object("rope_scaling")?, config.object("rope_parameters")?];
    for fields in objects.into_iter().flatten().chain([*config]) {
        match fields.get("partial_rotary_factor") {
            Some(value) if value.as_f64() != Some(1.0) => {
                return Err(fields.unsupported("partial_rotary_factor", value, "1 is"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn scaling(fields: &Fields<'_>, contexts: ContextLengths) -> Result<RopeScaling, CheckpointError> {
    // Configurations from before transformers 4.43 use the key `type`.
    let key = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    match fields.text(key)? {
        // Sections for three coordinates. A token of a text has the same position in each, so they change nothing.
        None | Some("default" | "mrope") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor(fields)? }),
        Some("llama3") => llama3(fields),
        Some("yarn") => yarn(fields, contexts.original),
        // Configurations of Phi-3 from before transformers 4.43 call it `su`.
        Some("longrope" | "su") => long(fields, contexts),
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

fn yarn(fields: &Fields<'_>, original: Option<usize>) -> Result<RopeScaling, CheckpointError> {
    let turns = |field, default| -> Result<f64, CheckpointError> {
        Ok(fields.number(field, 0.0, MAX_ROPE_FACTOR)?.unwrap_or(default))
    };
    let (beta_fast, beta_slow) = (turns("beta_fast", YARN_BETA_FAST)?, turns("beta_slow", YARN_BETA_SLOW)?);
    if beta_fast < beta_slow {
        let problem = format!("found {beta_fast}, expected at least beta_slow {beta_slow}");
        return Err(fields.problem("beta_fast", problem));
    }
    let mscale = |field| fields.number(field, 0.0, MAX_ROPE_FACTOR);
    Ok(RopeScaling::Yarn {
        factor: factor(fields)?,
        original_max_positions: match fields.count("original_max_position_embeddings", 1..=MAX_POSITIONS)? {
            Some(positions) => positions,
            None => original.ok_or_else(|| fields.missing("original_max_position_embeddings"))?,
        },
        beta_fast,
        beta_slow,
        truncate: fields.flag("truncate")?.unwrap_or(true),
        attention_factor: fields.number("attention_factor", 0.0, MAX_ROPE_FACTOR)?,
        mscales: mscale("mscale")?.zip(mscale("mscale_all_dim")?),
    })
}

fn long(fields: &Fields<'_>, contexts: ContextLengths) -> Result<RopeScaling, CheckpointError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = fields.count(ORIGINAL, 2..=MAX_POSITIONS)?.or(contexts.original);
    let original = original.ok_or_else(|| fields.missing(ORIGINAL))?;
    let factor = match (fields.number_from("factor", 1.0, MAX_ROPE_FACTOR)?, contexts.longest) {
        (Some(factor), _) => factor,
        (None, Some(longest)) => (longest as f64 / original.max(2) as f64).max(1.0),
        (None, None) => return Err(fields.missing("factor")),
    };
    Ok(RopeScaling::Long {
        short: pair_factors(fields, "short_factor")?,
        long: pair_factors(fields, "long_factor")?,
        original_max_positions: original.max(2),
        factor,
        attention_factor: fields.number("attention_factor", 0.0, MAX_ROPE_FACTOR)?,
    })
}

/// Reads a list of positive factors.
fn pair_factors(fields: &Fields<'_>, field: &str) -> Result<Arc<[f32]>, CheckpointError> {
    let Some(value) = fields.get(field) else { return Err(fields.missing(field)) };
    let expected = format!("a list of at most {} positive numbers", MAX_HEAD_DIM / 2);
    let items = value.as_array().filter(|items| items.len() <= MAX_HEAD_DIM / 2);
    let number =
        |item: &Value| item.as_f64().filter(|n| (*n as f32).is_normal() && *n > 0.0 && *n <= MAX_ROPE_FACTOR);
    let all = items.and_then(|items| items.iter().map(|item| number(item).map(|n| n as f32)).collect());
    all.ok_or_else(|| fields.wrong(field, value, &expected))
}

fn factor(fields: &Fields<'_>) -> Result<f64, CheckpointError> {
    fields.number_from("factor", 1.0, MAX_ROPE_FACTOR)?.ok_or_else(|| fields.missing("factor"))
}
