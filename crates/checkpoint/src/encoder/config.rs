//! `config.json` of an encoder → [`EncoderConfig`]. Defaults are those of the architecture's class in transformers.
//! Fields that would change the output and are not supported are refused by name. Must not know pooling, which
//! `modules` reads.

use serde_json::{Map, Value};

use crate::config_file::{CONFIG_FILE, refuse_dtypes};
use crate::decoder::{Architecture, ModelConfig};
use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;
use crate::scheme;

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenAct {
    /// `x·Φ(x)`.
    Gelu,
    /// Approximation of GELU by the hyperbolic tangent.
    GeluTanh,
    /// Approximation of GELU: `x·σ(1.702·x)`.
    QuickGelu,
    /// `x·σ(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
}

/// The layers of an encoder.
#[derive(Debug, Clone, PartialEq)]
pub enum EncoderBody {
    /// BERT, RoBERTa and XLM-RoBERTa.
    Bert(BertConfig),
    /// ModernBERT.
    Modern(ModernBertConfig),
    /// A decoder whose last hidden states are used.
    Causal(Box<ModelConfig>),
}

/// BERT and RoBERTa: learned positions, and norms after each residual sum.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads. Divides the hidden size.
    pub heads: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Rows of the position table.
    pub positions: usize,
    /// The position of a sequence's first token: 0, or in RoBERTa the one after the padding id.
    pub first_position: usize,
    /// RoBERTa's padding id. A padding token does not count as a position. It has the position before the first.
    pub padding: Option<u32>,
    /// Rows of the token-type table.
    pub token_types: usize,
    /// Epsilon of every norm. Positive.
    pub eps: f32,
    /// Activation of the MLP.
    pub act: HiddenAct,
}

/// ModernBERT: rotary positions, gated MLPs, and attention to neighbours only in most layers.
#[derive(Debug, Clone, PartialEq)]
pub struct ModernBertConfig {
    /// Number of attention heads. Divides the hidden size, and the width of a head is even.
    pub heads: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// For each layer, whether it attends to the whole sequence.
    pub global: Vec<bool>,
    /// How many positions a token sees on either side in the other layers.
    pub reach: usize,
    /// Base of the rotary frequencies in global layers.
    pub global_theta: f64,
    /// Base of the rotary frequencies in the other layers.
    pub local_theta: f64,
    /// Epsilon of every norm. Positive.
    pub eps: f32,
    /// Whether norms have biases.
    pub norm_bias: bool,
    /// Whether the attention's projections have biases.
    pub attention_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Activation of the MLP.
    pub act: HiddenAct,
}

/// The head that reduces a sequence to one score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreHead {
    /// BERT's head: the pooler over the first token, then a projection to one value.
    Bert,
    /// RoBERTa's head: a dense layer over the first token, then a projection to one value.
    Roberta,
    /// ModernBERT's head: dense layer, activation, norm, then a projection to one value.
    Modern {
        /// Whether the head reads the mean of all tokens. If not, it reads the first token.
        mean: bool,
        /// Activation after the dense layer.
        act: HiddenAct,
        /// Whether the dense layer has a bias.
        dense_bias: bool,
    },
}

/// The function that is applied to a raw score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreActivation {
    /// `1 / (1 + e^−x)`.
    Sigmoid,
    /// The score is left as it is.
    Identity,
}

/// Sizes and switches of an encoder. All sizes are in elements, and within [`limits`].
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// The architecture's name in `config.json`.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Maximum tokens of a sequence, limited by the number of positions.
    pub max_tokens: usize,
    /// The layers.
    pub body: EncoderBody,
    /// The head and the final activation of a model that scores pairs of texts. `None` for other models.
    pub score: Option<(ScoreHead, ScoreActivation)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Bert,
    Roberta,
    Modern,
    Qwen3,
}

/// Name in `config.json`, family, and whether the model scores pairs.
const ARCHITECTURES: &[(&str, Family, bool)] = &[
    ("BertModel", Family::Bert, false),
    ("BertForMaskedLM", Family::Bert, false),
    ("BertForPreTraining", Family::Bert, false),
    ("BertForSequenceClassification", Family::Bert, true),
    ("RobertaModel", Family::Roberta, false),
    ("RobertaForMaskedLM", Family::Roberta, false),
    ("RobertaForSequenceClassification", Family::Roberta, true),
    ("XLMRobertaModel", Family::Roberta, false),
    ("XLMRobertaForMaskedLM", Family::Roberta, false),
    ("XLMRobertaForSequenceClassification", Family::Roberta, true),
    ("CamembertModel", Family::Roberta, false),
    ("ModernBertModel", Family::Modern, false),
    ("ModernBertForMaskedLM", Family::Modern, false),
    ("ModernBertForSequenceClassification", Family::Modern, true),
    ("Qwen3Model", Family::Qwen3, false),
];

/// A decoder's name that means an encoder if sentence-transformers' files are in the same directory.
const WITH_MODULES: (&str, Family) = ("Qwen3ForCausalLM", Family::Qwen3);

impl EncoderConfig {
    /// Returns whether the configuration is that of an encoder. `with_modules` says whether there is a `modules.json`
    /// beside it.
    pub(crate) fn is_one(members: &Map<String, Value>, with_modules: bool) -> bool {
        name(members).is_some_and(|name| known(name, with_modules).is_some())
    }

    /// Prefixes of tensor names in files that were saved with more than the body, such as `bert.`.
    pub(crate) fn prefixes(&self) -> &'static [&'static str] {
        match self.body {
            EncoderBody::Bert(_) => &["bert.", "roberta."],
            EncoderBody::Modern(_) | EncoderBody::Causal(_) => &["model."],
        }
    }

    pub(crate) fn read(members: &Map<String, Value>, with_modules: bool) -> Result<Self, CheckpointError> {
        let fields = Fields::new(CONFIG_FILE, members);
        let (architecture, family, scores) = match name(members) {
            None => return Err(fields.missing("architectures")),
            Some(found) => known(found, with_modules).ok_or_else(|| {
                CheckpointError::UnsupportedArchitecture { found: shown(found), supported: SUPPORTED }
            })?,
        };
        scheme::refuse(&fields)?;
        refuse_dtypes(&fields)?;
        for field in ["is_decoder", "add_cross_attention"] {
            if fields.flag(field)? == Some(true) {
                return Err(fields.unsupported(field, &Value::Bool(true), "false is, for an encoder"));
            }
        }
        let vocab_size = fields.required_count("vocab_size", 1..=limits::MAX_VOCAB_SIZE)?;
        let hidden_size = fields.required_count("hidden_size", 1..=limits::MAX_HIDDEN_SIZE)?;
        let (body, max_tokens) = match family {
            Family::Bert | Family::Roberta => bert(&fields, family, hidden_size, vocab_size)?,
            Family::Modern => modern(&fields, hidden_size)?,
            Family::Qwen3 => causal(members)?,
        };
        let score = match scores {
            false => None,
            true => Some((score_head(&fields, family)?, score_activation(&fields)?)),
        };
        Ok(Self { architecture, hidden_size, vocab_size, max_tokens, body, score })
    }
}

/// Names from [`ARCHITECTURES`] that error messages show.
const SUPPORTED: &[&str] = &[
    "BertModel",
    "BertForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
    "ModernBertModel",
    "ModernBertForSequenceClassification",
    "Qwen3Model",
];

fn name(members: &Map<String, Value>) -> Option<&str> {
    match members.get("architectures")?.as_array()?.as_slice() {
        [Value::String(name)] => Some(name),
        _ => None,
    }
}

fn known(name: &str, with_modules: bool) -> Option<(&'static str, Family, bool)> {
    let listed = ARCHITECTURES.iter().find(|(known, ..)| *known == name).copied();
    let decoder = (with_modules && name == WITH_MODULES.0).then_some((WITH_MODULES.0, WITH_MODULES.1, false));
    listed.or(decoder)
}

fn heads(fields: &Fields<'_>, hidden_size: usize) -> Result<usize, CheckpointError> {
    let heads = fields.required_count("num_attention_heads", 1..=limits::MAX_HEADS)?;
    let width = hidden_size.checked_div(heads).unwrap_or(0);
    if !hidden_size.is_multiple_of(heads) || width > limits::MAX_HEAD_DIM {
        let problem = format!("{heads} heads of hidden_size {hidden_size}");
        return Err(fields.problem("num_attention_heads", problem));
    }
    Ok(heads)
}

fn eps(fields: &Fields<'_>, field: &str, default: f64) -> Result<f32, CheckpointError> {
    let wide = fields.number(field, 0.0, limits::MAX_LAYER_NORM_EPS)?.unwrap_or(default);
    let narrow = wide as f32;
    match narrow.is_normal() {
        true => Ok(narrow),
        false => Err(fields.problem(field, format!("{wide:e} vanishes in 32-bit floating point"))),
    }
}

fn act(fields: &Fields<'_>, field: &str) -> Result<HiddenAct, CheckpointError> {
    let Some(value) = fields.get(field) else { return Ok(HiddenAct::Gelu) };
    match value.as_str() {
        Some("gelu" | "gelu_python") => Ok(HiddenAct::Gelu),
        Some("gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" | "gelu_python_tanh") => {
            Ok(HiddenAct::GeluTanh)
        }
        Some("quick_gelu") => Ok(HiddenAct::QuickGelu),
        Some("silu" | "swish") => Ok(HiddenAct::Silu),
        Some("relu") => Ok(HiddenAct::Relu),
        Some("tanh") => Ok(HiddenAct::Tanh),
        _ => Err(fields.unsupported(
            field,
            value,
            "\"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\", \"quick_gelu\", \"silu\", \"relu\" and \"tanh\" are",
        )),
    }
}

fn bert(
    fields: &Fields<'_>,
    family: Family,
    hidden_size: usize,
    vocab_size: usize,
) -> Result<(EncoderBody, usize), CheckpointError> {
    if let Some(kind) = fields.get("position_embedding_type")
        && kind.as_str() != Some("absolute")
    {
        return Err(fields.unsupported("position_embedding_type", kind, "\"absolute\" is"));
    }
    let positions = fields.count("max_position_embeddings", 1..=limits::MAX_POSITIONS)?.unwrap_or(512);
    let (first_position, padding) = match family {
        Family::Roberta => {
            let id = fields.token_ids("pad_token_id", 1, vocab_size)?.and_then(|ids| ids.first().copied());
            let id = id.unwrap_or(1);
            (id as usize + 1, Some(id))
        }
        _ => (0, None),
    };
    let Some(max_tokens) = positions.checked_sub(first_position).filter(|&tokens| tokens > 0) else {
        let problem = format!("{positions} leave none behind pad_token_id");
        return Err(fields.problem("max_position_embeddings", problem));
    };
    let config = BertConfig {
        layers: fields.required_count("num_hidden_layers", 1..=limits::MAX_LAYERS)?,
        heads: heads(fields, hidden_size)?,
        intermediate_size: fields.required_count("intermediate_size", 1..=limits::MAX_INTERMEDIATE_SIZE)?,
        positions,
        first_position,
        padding,
        token_types: fields.count("type_vocab_size", 1..=limits::MAX_TOKEN_TYPES)?.unwrap_or(2),
        eps: eps(fields, "layer_norm_eps", 1e-12)?,
        act: act(fields, "hidden_act")?,
    };
    Ok((EncoderBody::Bert(config), max_tokens))
}

fn modern(fields: &Fields<'_>, hidden_size: usize) -> Result<(EncoderBody, usize), CheckpointError> {
    let layers = fields.required_count("num_hidden_layers", 1..=limits::MAX_LAYERS)?;
    let heads = heads(fields, hidden_size)?;
    if !(hidden_size / heads).is_multiple_of(2) {
        let problem = format!("{heads} heads of hidden_size {hidden_size} are of odd width");
        return Err(fields.problem("num_attention_heads", problem));
    }
    let window = fields.count("local_attention", 1..=limits::MAX_POSITIONS)?.unwrap_or(128);
    let (global_theta, local_theta) = thetas(fields)?;
    let flag = |field| fields.flag(field).map(|flag| flag.unwrap_or(false));
    let config = ModernBertConfig {
        heads,
        intermediate_size: fields.required_count("intermediate_size", 1..=limits::MAX_INTERMEDIATE_SIZE)?,
        global: global_layers(fields, layers)?,
        reach: window / 2,
        global_theta,
        local_theta,
        eps: eps(fields, "norm_eps", 1e-5)?,
        norm_bias: flag("norm_bias")?,
        attention_bias: flag("attention_bias")?,
        mlp_bias: flag("mlp_bias")?,
        act: act(fields, "hidden_activation")?,
    };
    let positions = fields.count("max_position_embeddings", 1..=limits::MAX_POSITIONS)?.unwrap_or(8_192);
    Ok((EncoderBody::Modern(config), positions))
}

/// Returns for each layer whether it sees the whole sequence: from `layer_types` (transformers 5), or every n-th layer.
fn global_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, CheckpointError> {
    if let Some(value) = fields.get("layer_types") {
        let Some(types) = value.as_array().filter(|types| types.len() == layers) else {
            return Err(fields.wrong("layer_types", value, &format!("a list of num_hidden_layers {layers}")));
        };
        let global = types.iter().map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(true),
            Some("sliding_attention") => Ok(false),
            _ => Err(fields.unsupported(
                "layer_types",
                kind,
                "\"full_attention\" and \"sliding_attention\" are",
            )),
        });
        return global.collect();
    }
    let every = fields.count("global_attn_every_n_layers", 1..=limits::MAX_LAYERS)?.unwrap_or(3);
    Ok((0..layers).map(|layer| layer.is_multiple_of(every)).collect())
}

/// Bases of the rotary frequencies, of global layers and of the other layers, in the spelling of transformers 5 or of
/// earlier versions.
fn thetas(fields: &Fields<'_>) -> Result<(f64, f64), CheckpointError> {
    let old = |field, default: f64| -> Result<f64, CheckpointError> {
        Ok(fields.number(field, 0.0, limits::MAX_ROPE_THETA)?.unwrap_or(default))
    };
    let global = old("global_rope_theta", 160_000.0)?;
    // An explicit null means that the local layers use the base of the global layers.
    let absent = !fields.values().any(|(field, _)| field == "local_rope_theta");
    let local = old("local_rope_theta", if absent { 10_000.0 } else { global })?;
    let Some(new) = fields.object("rope_parameters")? else { return Ok((global, local)) };
    let of = |kind: &str, default: f64| -> Result<f64, CheckpointError> {
        let Some(value) = new.get(kind) else { return Ok(default) };
        let Some(members) = value.as_object() else { return Err(new.wrong(kind, value, "an object")) };
        let own = Fields::new(CONFIG_FILE, members);
        if let Some(kind) = own.get("rope_type")
            && kind.as_str() != Some("default")
        {
            return Err(own.unsupported("rope_type", kind, "\"default\" is, for this architecture"));
        }
        Ok(own.number("rope_theta", 0.0, limits::MAX_ROPE_THETA)?.unwrap_or(default))
    };
    Ok((of("full_attention", global)?, of("sliding_attention", local)?))
}

fn causal(members: &Map<String, Value>) -> Result<(EncoderBody, usize), CheckpointError> {
    // The body is used without its output projection, so its embedding counts as tied.
    let mut config = ModelConfig::read_as(Architecture::Qwen3, members)?;
    config.head.linear = None;
    let max_tokens = config.max_positions;
    Ok((EncoderBody::Causal(Box::new(config)), max_tokens))
}

fn score_head(fields: &Fields<'_>, family: Family) -> Result<ScoreHead, CheckpointError> {
    match family {
        Family::Bert => Ok(ScoreHead::Bert),
        Family::Roberta | Family::Qwen3 => Ok(ScoreHead::Roberta),
        Family::Modern => {
            let mean = match fields.get("classifier_pooling") {
                None => false,
                Some(kind) => match kind.as_str() {
                    Some("cls") => false,
                    Some("mean") => true,
                    _ => {
                        let supported = "\"cls\" and \"mean\" are";
                        return Err(fields.unsupported("classifier_pooling", kind, supported));
                    }
                },
            };
            let act = act(fields, "classifier_activation")?;
            let dense_bias = fields.flag("classifier_bias")?.unwrap_or(false);
            Ok(ScoreHead::Modern { mean, act, dense_bias })
        }
    }
}

/// Reads the activation that sentence-transformers names. Without one, a score of one label passes the sigmoid.
fn score_activation(fields: &Fields<'_>) -> Result<ScoreActivation, CheckpointError> {
    const OLD: &str = "sbert_ce_default_activation_function";
    let new = fields.object("sentence_transformers")?;
    let new = new.and_then(|new| Some((new, "activation_fn", new.get("activation_fn")?)));
    let old = fields.get(OLD).map(|value| (*fields, OLD, value));
    let Some((within, field, value)) = new.or(old) else { return Ok(ScoreActivation::Sigmoid) };
    match value.as_str().and_then(|path| path.rsplit('.').next()) {
        Some("Sigmoid") => Ok(ScoreActivation::Sigmoid),
        Some("Identity") => Ok(ScoreActivation::Identity),
        _ => Err(within.unsupported(field, value, "Sigmoid and Identity are")),
    }
}

/// Rotary positions.
impl ModernBertConfig {
    /// RoPE parameters of a layer, without scaling.
    pub fn rope(&self, global: bool) -> Rope {
        let theta = if global { self.global_theta } else { self.local_theta };
        Rope { theta, scaling: crate::rope::RopeScaling::None }
    }
}
