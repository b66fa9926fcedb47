//! The metadata of a GGUF file of a model: the inverse of reading it. Must not know tensors, general keys, or the tokenizer.

use crate::decoder::{
    Architecture, AttentionConfig, ExpertMixture, FeedForward, LatentConfig, LayerConfig, MixerConfig,
    ModelConfig, RotaryConfig, RoutingConfig, ScoreKind,
};
use crate::rope::RopeScaling;

use super::architecture::{GgufArchitecture, INPUT_KEY, RotationRule, WindowRule};
use super::config::ARCHITECTURE_KEY;
use super::mixers::{HEADS as HEADS_KEY, INNER as INNER_KEY, TRAINED_KEY};
use super::rotary::{ATTENTION_FACTOR, GROWTH_KEYS, LOG_KEY, ORIGINAL, long_scale};
use super::value::Numbers;
use super::writer::Setting;

/// The keys of a file, while they are collected.
pub(super) struct FileSettings<'c> {
    row: &'static GgufArchitecture,
    config: &'c ModelConfig,
    list: Vec<(String, Setting)>,
}

impl FileSettings<'_> {
    fn set(&mut self, name: &str, value: Setting) {
        self.list.push((format!("{}.{name}", self.row.name), value));
    }

    fn size(&mut self, name: &str, size: usize) {
        // Cannot overflow: the limits of configurations are far below 2^32.
        self.set(name, Setting::U32(u32::try_from(size).unwrap_or(u32::MAX)));
    }

    fn number(&mut self, name: &str, number: f32) {
        self.set(name, Setting::F32(number));
    }

    /// Collects the keys of a model. `None` if it has no attention.
    pub(super) fn of(row: &'static GgufArchitecture, config: &ModelConfig) -> Option<Vec<(String, Setting)>> {
        FileSettings { row, config, list: Vec::new() }.of_model()
    }

    fn of_model(mut self) -> Option<Vec<(String, Setting)>> {
        let (row, config) = (self.row, self.config);
        self.list.push((ARCHITECTURE_KEY.to_owned(), Setting::Text(row.name.to_owned())));
        self.size("context_length", config.max_positions);
        self.size("embedding_length", config.hidden_size);
        self.size("block_count", config.layers.len());
        self.feed_widths();
        if row.is_latent {
            self.latent(config.layers.iter().find_map(latent_of)?);
        } else if row.architecture == Architecture::Gemma4 {
            self.gemma4(config.layers.iter().find_map(|layer| layer.mixer.attention())?);
        } else {
            self.heads(config.layers.iter().find_map(|layer| layer.mixer.attention())?);
        }
        self.size("vocab_size", config.vocab_size);
        self.number(row.eps.0, config.final_norm.eps);
        for (name, member) in row.keys {
            if let Some(value) = key_value(name, member, config) {
                self.set(name, value);
            }
        }
        self.window();
        self.recurrent();
        self.experts();
        self.rotary();
        Some(self.list)
    }

    /// The width of the feed-forward network, or of each layer's if some have none or another one.
    fn feed_widths(&mut self) {
        let config = self.config;
        let inners = || config.layers.iter().map(|layer| layer.feed.inner());
        let lacks = self.row.recurrent.is_some() && inners().any(|inner| inner == 0);
        let is_gemma = self.row.architecture == Architecture::Gemma4;
        if lacks || is_gemma && inners().any(|inner| Some(inner) != inners().next()) {
            let each: Vec<i32> = inners().map(|inner| i32::try_from(inner).unwrap_or(i32::MAX)).collect();
            self.set("feed_forward_length", Setting::Numbers(Numbers::of_i32(&each)));
        } else {
            self.size("feed_forward_length", feed_width(config));
        }
    }

    fn heads(&mut self, attention: &AttentionConfig) {
        self.size("attention.head_count", attention.heads);
        let is_delta = |layer: &LayerConfig| matches!(layer.mixer, MixerConfig::Delta(_));
        if self.row.recurrent.is_some() && !self.config.layers.iter().any(is_delta) {
            let of_layer = |layer: &LayerConfig| layer.mixer.attention().map_or(0, |own| own.kv_heads);
            let each =
                self.config.layers.iter().map(|layer| i32::try_from(of_layer(layer)).unwrap_or(i32::MAX));
            self.set("attention.head_count_kv", Setting::Numbers(Numbers::of_i32(&each.collect::<Vec<_>>())));
        } else {
            self.size("attention.head_count_kv", attention.kv_heads);
        }
        self.size("attention.key_length", attention.head_dim);
        self.size("attention.value_length", attention.head_dim);
        if self.row.query_scalar.is_some() {
            self.number("attention.scale", attention.scale);
        }
    }

    /// The two kinds of heads of Gemma 4, the layers that read the keys of others, and the layers' own inputs.
    fn gemma4(&mut self, attention: &AttentionConfig) {
        let config = self.config;
        self.size("attention.head_count", attention.heads);
        let attentions = || config.layers.iter().filter_map(|layer| layer.mixer.attention());
        let heads: Vec<i32> =
            attentions().map(|own| i32::try_from(own.kv_heads).unwrap_or(i32::MAX)).collect();
        match heads.iter().all(|count| Some(count) == heads.first()) {
            true => self.size("attention.head_count_kv", attention.kv_heads),
            false => self.set("attention.head_count_kv", Setting::Numbers(Numbers::of_i32(&heads))),
        }
        for (rotary, end) in config.rotary.iter().zip(["", "_swa"]) {
            for name in ["attention.key_length", "attention.value_length"] {
                self.size(&format!("{name}{end}"), rotary.width);
            }
        }
        self.size("attention.shared_kv_layers", attentions().filter(|own| own.kv_of.is_some()).count());
        self.size(INPUT_KEY, config.layer_inputs.as_ref().map_or(0, |inputs| inputs.width));
    }

    /// The cached row counts as the key and the value of one head.
    fn latent(&mut self, latent: &LatentConfig) {
        self.size("attention.head_count", latent.heads);
        self.size("attention.head_count_kv", 1);
        self.size("attention.key_length", latent.row_width());
        self.size("attention.value_length", latent.latent_dim);
        self.size("attention.key_length_mla", latent.plain_dim + latent.rotary_dim);
        self.size("attention.value_length_mla", latent.value_dim);
    }

    fn recurrent(&mut self) {
        let Some(_) = &self.row.recurrent else { return };
        let sizes = self.config.layers.iter().find_map(|layer| match &layer.mixer {
            MixerConfig::Delta(mixer) => Some((mixer.value_heads, mixer.value_heads * mixer.value_dim)),
            MixerConfig::Mamba(mixer) => Some((mixer.heads, mixer.inner())),
            _ => None,
        });
        if let Some((heads, inner)) = sizes {
            self.size(HEADS_KEY, heads);
            self.size(INNER_KEY, inner);
        }
        let attends = |layer: &LayerConfig| layer.mixer.attention().is_some();
        let interval = self.config.layers.iter().position(attends).map(|index| index + 1);
        let layers = || self.config.layers.iter().enumerate();
        let is_regular = |interval: &usize| {
            layers().all(|(index, layer)| attends(layer) == (index + 1).is_multiple_of(*interval))
        };
        let is_delta = layers().any(|(_, layer)| matches!(layer.mixer, MixerConfig::Delta(_)));
        if let Some(interval) = interval.filter(|interval| is_delta && is_regular(interval)) {
            self.size("full_attention_interval", interval);
        }
        if matches!(self.row.rotation, RotationRule::IfTrained | RotationRule::Nothing) {
            let rotates = main_rotary(self.config).is_some();
            self.set(TRAINED_KEY, Setting::Bool(rotates));
        }
    }

    fn window(&mut self) {
        let attentions = || self.config.layers.iter().filter_map(|layer| layer.mixer.attention());
        let window = attentions().find_map(|attention| attention.window);
        // The layers of Gemma 4 with a window differ from others also if it is never reached.
        let is_gemma = self.row.architecture == Architecture::Gemma4;
        let windowed: Vec<bool> = match is_gemma {
            true => attentions().map(|own| own.rotary.is_some_and(|rotary| rotary.table == 1)).collect(),
            false => attentions().map(|own| own.window.is_some()).collect(),
        };
        match self.row.window {
            WindowRule::Refused => {}
            WindowRule::AllLayers => {
                window.into_iter().for_each(|window| self.size("attention.sliding_window", window));
            }
            WindowRule::SomeLayers | WindowRule::SomeLayersOrClass => {
                self.size("attention.sliding_window", window.unwrap_or(0));
                if window.is_some() || is_gemma {
                    let list = Setting::Numbers(Numbers::of_bools(&windowed));
                    self.set("attention.sliding_window_pattern", list);
                }
            }
        }
    }

    fn experts(&mut self) {
        let Some(members) = &self.row.experts else { return };
        let config = self.config;
        let Some(experts) = config.layers.iter().find_map(mixture) else {
            if members.shared.is_some() {
                self.size("expert_shared_feed_forward_length", feed_width(config));
            }
            return;
        };
        self.size("expert_count", experts.experts.len());
        self.size("expert_used_count", experts.chosen);
        if members.width.is_some() {
            self.size("expert_feed_forward_length", experts.inner);
        }
        let shared = experts.shared.as_ref().map_or(0, |shared| shared.feed.inner());
        if members.shared.is_some() {
            self.size("expert_shared_feed_forward_length", shared);
        }
        if members.shared_count.is_some() {
            let each = if members.shared.is_some() { shared } else { experts.inner };
            self.size("expert_shared_count", shared / each.max(1));
        }
        if members.dense_layers.is_some() {
            let dense = config.layers.iter().position(|layer| mixture(layer).is_some());
            self.size("leading_dense_block_count", dense.unwrap_or(0));
        }
        let RoutingConfig { scores, groups, renormalise, factor, bias: _ } = &experts.routing;
        if members.factor.is_some() {
            self.number("expert_weights_scale", *factor);
        }
        if members.has_groups {
            self.size("expert_group_count", groups.map_or(1, |groups| groups.count));
            self.size("expert_group_used_count", groups.map_or(1, |groups| groups.kept));
        }
        if members.renormalises.is_some() {
            self.set("expert_weights_norm", Setting::Bool(renormalise.is_some()));
        }
        let gating = match scores {
            ScoreKind::Softmax => 1,
            ScoreKind::Sigmoid => 2,
            ScoreKind::SoftmaxOfChosen => 3,
        };
        if self.row.gating.contains(&gating) && gating != 1 || self.row.gating.len() > 1 {
            self.size("expert_gating_func", gating);
        }
    }

    fn rotary(&mut self) {
        let Some(main) = main_rotary(self.config) else { return };
        self.size("rope.dimension_count", main.width);
        self.number("rope.freq_base", main.rope.theta as f32);
        if self.row.architecture == Architecture::Gemma3
            && let Some(local) = rotary_of(self.config, true)
        {
            self.number("rope.freq_base_swa", local.rope.theta as f32);
        }
        if self.row.architecture == Architecture::Gemma4
            && let Some(in_window) = self.config.rotary.get(1)
        {
            self.size("rope.dimension_count_swa", in_window.width);
            self.number("rope.freq_base_swa", in_window.rope.theta as f32);
        }
        // Coordinates of images. A token of a text has the same position in each.
        if matches!(self.row.architecture, Architecture::Qwen35 | Architecture::Qwen35Moe) {
            let pairs = i32::try_from(main.width / 2).unwrap_or(i32::MAX);
            let third = pairs / 3;
            let first = pairs - third - (pairs - third) / 2;
            let sections = [first, pairs - third - first, third, 0];
            self.set("rope.dimension_sections", Setting::Numbers(Numbers::of_i32(&sections)));
        }
        match &main.rope.scaling {
            RopeScaling::Linear { factor } => {
                self.set("rope.scaling.type", Setting::Text("linear".to_owned()));
                self.number("rope.scaling.factor", *factor as f32);
            }
            RopeScaling::Yarn { factor, original_max_positions, beta_fast, beta_slow, mscales, .. } => {
                self.set("rope.scaling.type", Setting::Text("yarn".to_owned()));
                self.number("rope.scaling.factor", *factor as f32);
                self.size("rope.scaling.original_context_length", *original_max_positions);
                self.number("rope.scaling.yarn_beta_fast", *beta_fast as f32);
                self.number("rope.scaling.yarn_beta_slow", *beta_slow as f32);
                if self.row.is_latent {
                    mscales.iter().for_each(|(_, scale)| self.number(LOG_KEY, (0.1 * scale) as f32));
                }
                if self.row.architecture == Architecture::Ministral3 {
                    let [growth, log] = GROWTH_KEYS;
                    let mut attentions =
                        self.config.layers.iter().filter_map(|layer| layer.mixer.attention());
                    let beta = attentions.find_map(|own| own.rotary?.growth).map(|growth| growth.beta);
                    beta.into_iter().for_each(|beta| self.number(growth, beta));
                    mscales.iter().for_each(|(_, scale)| self.number(log, *scale as f32));
                }
            }
            RopeScaling::Long { original_max_positions, .. } => {
                self.size(ORIGINAL, *original_max_positions);
                if let Some(scale) = long_scale(&main.rope.scaling) {
                    self.number(ATTENTION_FACTOR, scale.attention_factor as f32);
                }
            }
            // They have no key: their factors are a tensor.
            RopeScaling::Llama3 { .. } | RopeScaling::Divided { .. } => {}
            RopeScaling::None => {}
        }
    }
}

/// The value of a key that only some architectures have.
fn key_value(name: &str, member: &str, config: &ModelConfig) -> Option<Setting> {
    if let Some(size) = mixer_size(name, config) {
        return Some(Setting::U32(u32::try_from(size).unwrap_or(u32::MAX)));
    }
    let attention = config.layers.iter().find_map(|layer| layer.mixer.attention())?;
    let layer = config.layers.first()?;
    let number = match name {
        "attn_logit_softcapping" => attention.cap.unwrap_or(0.0),
        "final_logit_softcapping" => config.head.cap.unwrap_or(0.0),
        "attention.clamp_kqv" => attention.clip.unwrap_or(0.0),
        "attention.scale" => attention.scale,
        "embedding_scale" => config.embedding.scale,
        "residual_scale" => layer.residual_scale,
        // The member of some classes is a divisor.
        "logit_scale" if member == "logits_scaling" => inverse(config.head.scale),
        "logit_scale" => config.head.scale,
        "use_parallel_residual" => return Some(Setting::Bool(layer.parallel)),
        _ => return None,
    };
    Some(Setting::F32(number))
}

/// A size of the layers that are not grouped-query attention, or of a projection around experts.
fn mixer_size(name: &str, config: &ModelConfig) -> Option<usize> {
    if name == "moe_latent_size" {
        let latent = config.layers.iter().find_map(mixture)?.latent.as_ref()?;
        return Some(latent.input.outputs);
    }
    config.layers.iter().find_map(|layer| match (&layer.mixer, name) {
        (MixerConfig::Delta(mixer), "ssm.conv_kernel") => Some(mixer.convolution.taps),
        (MixerConfig::Delta(mixer), "ssm.state_size") => Some(mixer.key_dim),
        (MixerConfig::Delta(mixer), "ssm.group_count") => Some(mixer.key_heads),
        (MixerConfig::Mamba(mixer), "ssm.conv_kernel") => Some(mixer.convolution.taps),
        (MixerConfig::Mamba(mixer), "ssm.state_size") => Some(mixer.state_dim),
        (MixerConfig::Mamba(mixer), "ssm.group_count") => Some(mixer.groups),
        (MixerConfig::ShortConv(mixer), "shortconv.l_cache") => Some(mixer.convolution.taps),
        (MixerConfig::Latent(latent), "attention.kv_lora_rank") => Some(latent.latent_dim),
        (MixerConfig::Latent(latent), "attention.q_lora_rank") => {
            latent.query.compressed.as_ref().map(|(linear, _)| linear.outputs)
        }
        _ => None,
    })
}

fn latent_of(layer: &LayerConfig) -> Option<&LatentConfig> {
    match &layer.mixer {
        MixerConfig::Latent(latent) => Some(latent),
        _ => None,
    }
}

/// The number whose inverse is `number`, after rounding.
fn inverse(number: f32) -> f32 {
    let near = 1.0 / number;
    [near, near.next_up(), near.next_down()].into_iter().find(|n| 1.0 / n == number).unwrap_or(near)
}

fn mixture(layer: &LayerConfig) -> Option<&ExpertMixture> {
    match &layer.feed {
        FeedForward::Experts(experts) => Some(experts),
        FeedForward::Both(both) => Some(&both.experts),
        FeedForward::Gated(_) | FeedForward::Plain(_) | FeedForward::None => None,
    }
}

/// Width of the dense layers. That of an expert if there are none.
fn feed_width(config: &ModelConfig) -> usize {
    let dense = config.layers.iter().filter(|layer| mixture(layer).is_none()).map(|layer| layer.feed.inner());
    let all = config.layers.iter().map(|layer| layer.feed.inner());
    dense.chain(all).find(|inner| *inner > 0).unwrap_or(0)
}

/// The rotary embedding of the layers with a window, or of the others.
fn rotary_of(config: &ModelConfig, has_window: bool) -> Option<&RotaryConfig> {
    let attentions = config.layers.iter().filter_map(|layer| layer.mixer.attention());
    let mut rotaries = attentions.filter(|attention| attention.window.is_some() == has_window);
    let rotary = rotaries.find_map(|attention| attention.rotary)?;
    config.rotary.get(rotary.table)
}

/// The rotary embedding whose keys have no suffix.
pub(super) fn main_rotary(config: &ModelConfig) -> Option<&RotaryConfig> {
    // The first one of Gemma 4 is that of layers without a window.
    if config.architecture == Architecture::Gemma4 {
        return config.rotary.first();
    }
    let latent = || config.rotary.get(config.layers.iter().find_map(latent_of)?.table);
    rotary_of(config, false).or_else(|| rotary_of(config, true)).or_else(latent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_gives_the_number_back() {
        for divisor in [1.0_f32, 3.0, 6.0, 7.0, 8.0, 13.3, 16.0, 0.07] {
            let scale = 1.0 / divisor;
            assert_eq!(1.0 / inverse(scale), scale, "{divisor}");
        }
    }
}
