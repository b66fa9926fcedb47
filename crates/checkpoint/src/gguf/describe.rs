//! [`ModelConfig`] → the metadata and the tensors of a GGUF file: the inverse of reading one. What is written is read back,
//! and refused if it would be another model. Must not know files, or the values of weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config_file::CONFIG_FILE;
use crate::decoder::{Architecture, AttentionConfig, FeedForward, MixerConfig, ModelConfig, RotaryConfig};
use crate::error::CheckpointError;
use crate::rope::{Rope, RopeScaling};

use super::architecture::GgufArchitecture;
use super::config;
use super::found::FoundTensors;
use super::gemma4::STILL;
use super::layout::TensorLayout;
use super::meta::Meta;
use super::names::{LONG_FACTORS, ROPE_FACTORS};
use super::origin::{self, FileTensor};
use super::rotary::{LongScale, long_scale};
use super::settings::{FileSettings, main_rotary};
use super::value::Value;
use super::writer::Setting;

/// What a GGUF file of a model consists of, without general keys and the tokenizer.
#[derive(Debug, Clone)]
pub struct FileDescription {
    /// The keys of the architecture, in the order in which they are written.
    pub settings: Vec<(String, Setting)>,
    /// The tensors, in the order in which they are written.
    pub tensors: Vec<FileTensor>,
    /// The names and the elements of the tensors of rotary factors, in f32. Most models have none.
    pub rope_factors: Vec<(&'static str, Arc<[f32]>)>,
}

/// The factors of rotary frequencies that a file has as tensors.
#[derive(Default)]
struct RotaryFactors {
    /// One list for all contexts.
    all: Option<Arc<[f32]>>,
    /// LongRoPE's lists: for contexts as long as in the pretraining, and for longer ones.
    long: Option<[Arc<[f32]>; 2]>,
}

impl RotaryFactors {
    /// The factors of a model. Files of other classes than Phi-3 have no lists of LongRoPE.
    fn of(row: &GgufArchitecture, config: &ModelConfig) -> Self {
        let Some(RotaryConfig { rope, width }) = main_rotary(config) else { return Self::default() };
        match &rope.scaling {
            RopeScaling::Long { short, long, .. } if row.architecture == Architecture::Phi3 => {
                Self { all: None, long: Some([short, long].map(Arc::clone)) }
            }
            RopeScaling::Divided { factors } if row.architecture == Architecture::Gemma4 => {
                let stored = |factor: &f32| if factor.is_infinite() { STILL } else { *factor };
                Self { all: Some(factors.iter().map(stored).collect()), long: None }
            }
            _ => Self { all: factors(rope, *width), long: None },
        }
    }

    fn tensors(self) -> Vec<(&'static str, Arc<[f32]>)> {
        let long = self.long.into_iter().flat_map(|lists| LONG_FACTORS.into_iter().zip(lists));
        self.all.map(|list| (ROPE_FACTORS, list)).into_iter().chain(long).collect()
    }
}

/// Describes the file of a model.
///
/// # Errors
/// [`CheckpointError::UnsupportedFeature`] if no GGUF files are read of the architecture, or if the metadata cannot say
/// what the model computes.
pub fn describe(config: &ModelConfig) -> Result<FileDescription, CheckpointError> {
    let architecture = config.architecture;
    // llama.cpp takes the number of words for both embeddings from the vocabulary.
    let input_words = config.layer_inputs.as_ref().and_then(|inputs| inputs.words.tensor.shape.first());
    if let Some(words) = input_words.filter(|words| **words != config.vocab_size) {
        let supported = format!("a model whose layers' inputs have words for {} tokens", config.vocab_size);
        return Err(refused("vocab_size_per_layer_input", &words.to_string(), &supported));
    }
    let has_experts = config.layers.iter().any(|layer| matches!(layer.feed, FeedForward::Experts(_)));
    let mut rows = architecture.gguf_names().filter_map(GgufArchitecture::named);
    let first = rows.next().filter(|_| architecture.is_read_from_gguf());
    let fitting = first.filter(|row| !has_experts || row.experts.is_some());
    let Some(row) = fitting.or_else(|| rows.find(|row| row.experts.is_some())).or(first) else {
        return Err(refused("architectures", architecture.hf_name(), "a class that is read from GGUF"));
    };
    let rope_factors = RotaryFactors::of(row, config);
    let settings = FileSettings::of(row, config)
        .ok_or_else(|| refused("architectures", architecture.hf_name(), "a model with attention"))?;
    let fused = stored_shapes(config);
    let shape_of = |tensor: &str| fused.get(tensor).map(Vec::as_slice);
    let mut written = config.clone();
    let claims = TensorLayout::apply(&mut written, row, &shape_of, &|_| None);
    let tensors = origin::tensors(config, &written, &claims)
        .map_err(|tensor| refused("architectures", architecture.hf_name(), &format!("a whole {tensor}")))?;
    check(row, &written, (&settings, &tensors), &rope_factors)?;
    Ok(FileDescription { settings, tensors, rope_factors: rope_factors.tensors() })
}

fn refused(field: &str, found: &str, supported: &str) -> CheckpointError {
    CheckpointError::UnsupportedFeature {
        file: CONFIG_FILE.to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        supported: format!(
            "a GGUF file can be written of {supported}; the safetensors format has no such limit"
        ),
    }
}

/// The factors that a file has instead of the parameters of Llama 3.1's scaling.
fn factors(rope: &Rope, width: usize) -> Option<Arc<[f32]>> {
    let (factor, low, high, original) = match &rope.scaling {
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            (*factor, *low_freq_factor, *high_freq_factor, *original_max_positions as f64)
        }
        RopeScaling::Divided { factors } => return Some(Arc::clone(factors)),
        _ => return None,
    };
    let of_pair = |pair: usize| {
        let frequency = f64::from(rope.theta.powf(-2.0 * pair as f64 / width as f64) as f32);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength > original / low {
            factor
        } else if wavelength < original / high {
            1.0
        } else {
            let kept = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - kept) / factor + kept)
        }
    };
    Some((0..width / 2).map(|pair| of_pair(pair) as f32).collect())
}

/// The shapes of the tensors that a file may have in two ways, in the way of the converter. It fuses only what the
/// checkpoint has fused, and splits the projections from latents. The experts of Gemma 4 are fused always.
fn stored_shapes(config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    // llama.cpp looks for the final norm of these classes under the name that their first files had.
    if matches!(config.architecture, Architecture::Lfm2 | Architecture::Lfm2Moe) {
        shapes.insert("token_embd_norm.weight".to_owned(), vec![config.hidden_size]);
    }
    for (index, layer) in config.layers.iter().enumerate() {
        if let Some(AttentionConfig { query, key, value, .. }) = layer.mixer.attention()
            && query.weight.tensor.name == key.weight.tensor.name
        {
            let rows = query.outputs + key.outputs + value.outputs;
            shapes.insert(format!("blk.{index}.attn_qkv.weight"), vec![rows, query.inputs]);
        }
        if let MixerConfig::Latent(latent) = &layer.mixer {
            let shape = vec![latent.heads, latent.latent_dim, latent.plain_dim];
            shapes.insert(format!("blk.{index}.attn_k_b.weight"), shape);
        }
        if let FeedForward::Both(both) = &layer.feed
            && let Some(first) = both.experts.experts.first()
        {
            let shape = vec![both.experts.experts.len(), 2 * both.experts.inner, first.up.inputs];
            shapes.insert(format!("blk.{index}.ffn_gate_up_exps.weight"), shape);
        }
        if let FeedForward::Gated(feed) = &layer.feed
            && config.architecture != Architecture::GraniteHybrid
            && feed.gate.weight.tensor.name == feed.up.weight.tensor.name
        {
            shapes.insert(format!("blk.{index}.ffn_up.weight"), vec![2 * feed.inner, feed.up.inputs]);
        }
    }
    shapes
}

/// Reads the description as a file is read, and refuses it if it is not that of `written`.
fn check(
    row: &'static GgufArchitecture,
    written: &ModelConfig,
    (settings, tensors): (&[(String, Setting)], &[FileTensor]),
    rope_factors: &RotaryFactors,
) -> Result<(), CheckpointError> {
    let metadata: BTreeMap<String, Value> =
        settings.iter().map(|(key, setting)| (key.clone(), setting.value())).collect();
    let shapes: BTreeMap<&str, &[usize]> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
    let shape_of = |tensor: &str| shapes.get(tensor).copied();
    let of_all = rope_factors.all.as_ref().filter(|factors| factors.iter().any(|factor| *factor != 1.0));
    let found = FoundTensors {
        vocab_size: written.vocab_size,
        has: &|tensor| shape_of(tensor).is_some(),
        rope_factors: of_all.cloned(),
        long_factors: rope_factors.long.clone(),
        input_words: shape_of("per_layer_token_embd.weight").and_then(|shape| shape.first().copied()),
    };
    let ids = (written.bos, written.eos.clone());
    let mut read = config::read(Meta::new("model.gguf", &metadata), row, &found, ids)?;
    TensorLayout::apply(&mut read, row, &shape_of, &|_| None);
    let class = written.architecture.hf_name();
    let differs =
        |field: &str| Err(refused(field, class, "what its metadata can say, and it cannot say this"));
    let layers = written.layers.iter().zip(&read.layers);
    match layers.enumerate().find(|(_, (written, read))| written != read) {
        Some((index, (written, read))) if written.mixer != read.mixer => {
            differs(&format!("the attention of layer {index}"))
        }
        Some((index, (written, read))) if written.feed != read.feed => {
            differs(&format!("the feed-forward network of layer {index}"))
        }
        Some((index, _)) => differs(&format!("layer {index}")),
        None if written.layers.len() != read.layers.len() => differs("num_hidden_layers"),
        None if written.max_positions != read.max_positions => differs("max_position_embeddings"),
        None if written.embedding != read.embedding => differs("the embedding"),
        None if written.head != read.head => differs("the output projection"),
        None if written.layer_inputs != read.layer_inputs => differs("hidden_size_per_layer_input"),
        None if written.final_norm != read.final_norm => differs("the final norm"),
        None if stored(written, of_all) != read.rotary => differs("rope_parameters"),
        None => Ok(()),
    }
}

/// Rotary embeddings with the precision and the form that a file has.
fn stored(written: &ModelConfig, rope_factors: Option<&Arc<[f32]>>) -> Vec<RotaryConfig> {
    let each = written.rotary.iter().map(|RotaryConfig { rope, width }| {
        let scaling = match (&rope.scaling, rope_factors) {
            (RopeScaling::Llama3 { .. }, Some(factors)) => {
                RopeScaling::Divided { factors: Arc::clone(factors) }
            }
            (RopeScaling::Llama3 { .. }, None) => RopeScaling::None,
            (RopeScaling::Long { short, long, original_max_positions, .. }, _) => {
                let given = long_scale(&rope.scaling).map_or(1.0, |scale| scale.attention_factor as f32);
                let usual = LongScale::usual(written.max_positions, *original_max_positions);
                RopeScaling::Long {
                    short: Arc::clone(short),
                    long: Arc::clone(long),
                    original_max_positions: *original_max_positions,
                    factor: usual.factor,
                    attention_factor: (given != usual.attention_factor as f32).then_some(f64::from(given)),
                }
            }
            (scaling, _) => scaling.clone(),
        };
        RotaryConfig { rope: Rope { theta: f64::from(rope.theta as f32), scaling }, width: *width }
    });
    each.collect()
}
