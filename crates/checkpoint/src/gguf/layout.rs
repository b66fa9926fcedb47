//! Where the weights of each part are in a GGUF file. llama.cpp names tensors by the part of a layer that they are, alike
//! for all architectures, and fuses, splits or stacks them. Rewrites the sources of a [`ModelConfig`], which follow Hugging
//! Face's names, to the tensors of the file. Must not know how metadata is read.

mod mixers;

use std::collections::BTreeMap;

use crate::decoder::{
    AttentionConfig, DenseAndExperts, ExpertConfig, ExpertMixture, FeedForward, GatedFeed, HeadNorm,
    LatentProjection, LayerConfig, LinearConfig, MixerConfig, ModelConfig, NormConfig, PlainFeed,
    RotaryPairs, RowPick, RowSource, SharedExpert, SizeField, TensorSpec,
};
use crate::order::StoredOrder;
use crate::tensor::DType;

use super::architecture::GgufArchitecture;

/// What a tensor of the file is.
pub(super) struct ClaimedTensor {
    /// Its name in a Hugging Face checkpoint. Its own name if such checkpoints store its rows otherwise.
    pub(super) name: String,
    /// Its dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// Its dimensions in the file, if they are others. Dimensions of 1 may be left out.
    pub(super) stored_shape: Option<Vec<usize>>,
    /// How the file orders it, if not as Hugging Face's checkpoints do.
    pub(super) order: Option<StoredOrder>,
}

/// Finds the tensor of each part.
pub(super) struct TensorLayout<'f> {
    row: &'static GgufArchitecture,
    /// Dimensions of a tensor of the file, outermost first.
    shape_of: &'f dyn Fn(&str) -> Option<&'f [usize]>,
    /// Type of a tensor of the file. `None` if it is not there, or of a type that is not computed.
    type_of: &'f dyn Fn(&str) -> Option<DType>,
    /// By the names in the file.
    claims: BTreeMap<String, ClaimedTensor>,
}

impl<'f> TensorLayout<'f> {
    /// Rewrites the sources of `config`, and returns the tensors that it calls for by their names in the file.
    pub(super) fn apply(
        config: &mut ModelConfig,
        row: &'static GgufArchitecture,
        shape_of: &'f dyn Fn(&str) -> Option<&'f [usize]>,
        type_of: &'f dyn Fn(&str) -> Option<DType>,
    ) -> BTreeMap<String, ClaimedTensor> {
        let mut layout = Self { row, shape_of, type_of, claims: BTreeMap::new() };
        layout.keep(&config.embedding.words, "token_embd.weight");
        if let Some(positions) = &config.embedding.positions {
            layout.keep(positions, "position_embd.weight");
        }
        // The first files of LFM2 had another name, which all have since.
        let is_usual = layout.has("output_norm.weight") || !layout.has("token_embd_norm.weight");
        layout.norm(&mut config.final_norm, if is_usual { "output_norm" } else { "token_embd_norm" });
        if let Some(linear) = &mut config.head.linear {
            layout.linear(linear, "output", None);
        }
        if let Some(inputs) = &mut config.layer_inputs {
            layout.keep(&inputs.words, "per_layer_token_embd.weight");
            layout.linear(&mut inputs.projection, "per_layer_model_proj", None);
            layout.norm(&mut inputs.norm, "per_layer_proj_norm");
        }
        for (index, layer) in config.layers.iter_mut().enumerate() {
            layout.layer(layer, &format!("blk.{index}"));
        }
        layout.claims
    }

    fn has(&self, tensor: &str) -> bool {
        (self.shape_of)(tensor).is_some()
    }

    fn layer(&mut self, layer: &mut LayerConfig, block: &str) {
        let norms = [
            (&mut layer.mixer_norm, "attn_norm"),
            (&mut layer.mixer_out_norm, "post_attention_norm"),
            (&mut layer.feed_norm, self.row.feed_norm),
            (&mut layer.feed_out_norm, "post_ffw_norm"),
        ];
        for (norm, part) in norms {
            if let Some(norm) = norm {
                self.norm(norm, &format!("{block}.{part}"));
            }
        }
        match &mut layer.mixer {
            MixerConfig::Attention(attention) => self.attention(attention, block),
            MixerConfig::Latent(latent) => self.latent(latent, block),
            MixerConfig::ShortConv(mixer) => self.short_conv(mixer, block),
            MixerConfig::Delta(mixer) => self.delta(mixer, block),
            MixerConfig::Mamba(mixer) => self.mamba(mixer, block),
            MixerConfig::None => {}
        }
        self.feed(&mut layer.feed, block);
        if let Some(tail) = &mut layer.tail {
            self.keep(&tail.scale, &format!("{block}.layer_output_scale.weight"));
            if let Some(input) = &mut tail.input {
                self.linear(&mut input.gate, &format!("{block}.inp_gate"), None);
                self.linear(&mut input.projection, &format!("{block}.proj"), None);
                self.norm(&mut input.norm, &format!("{block}.post_norm"));
            }
        }
    }

    fn attention(&mut self, attention: &mut AttentionConfig, block: &str) {
        let part = |name: &str| format!("{block}.{name}");
        let head = attention.head_dim;
        let AttentionConfig { query, key, value, gate, output, .. } = attention;
        let fused = part("attn_qkv");
        if self.has(&format!("{fused}.weight")) {
            let all = query.outputs + key.outputs + value.outputs;
            let mut first = 0;
            for (linear, is_rotated) in [(query, true), (key, true), (value, false)] {
                let rows = linear.outputs;
                if self.row.is_permuted && is_rotated {
                    let pairs = Some(RotaryPairs { head, rotated: head });
                    let sources = linear.bias.iter_mut().chain([&mut linear.weight]);
                    sources.for_each(|source| source.pairs = pairs);
                }
                self.slice(linear, &fused, all, first);
                first += rows;
            }
        } else {
            let rotated = self.row.is_permuted.then_some(head);
            match gate {
                None => self.linear(query, &part("attn_q"), rotated),
                // For each head, its query and its gate.
                Some(gate) => self.same_rows(&[query, gate], &part("attn_q")),
            }
            self.linear(key, &part("attn_k"), rotated);
            // Values may be the keys before their norm.
            if value.weight.tensor != key.weight.tensor {
                self.linear(value, &part("attn_v"), None);
            }
        }
        self.linear(output, &part("attn_output"), None);
        for (norm, name) in
            [(&mut attention.query_norm, "attn_q_norm"), (&mut attention.key_norm, "attn_k_norm")]
        {
            if let Some(HeadNorm::Head(norm) | HeadNorm::EachHead(norm) | HeadNorm::Whole(norm)) = norm {
                self.norm(norm, &part(name));
            }
        }
        if let Some(sinks) = &attention.sinks {
            self.keep(sinks, &part("attn_sinks.weight"));
        }
    }

    fn feed(&mut self, feed: &mut FeedForward, block: &str) {
        match feed {
            FeedForward::Gated(feed) => self.gated(feed, block, ""),
            FeedForward::Plain(feed) => self.plain(feed, block, ""),
            FeedForward::Experts(experts) => self.experts(experts, block),
            FeedForward::None => {}
            FeedForward::Both(both) => self.both(both, block),
        }
    }

    fn both(&mut self, both: &mut DenseAndExperts, block: &str) {
        let part = |name: &str| format!("{block}.{name}");
        self.feed(&mut both.dense, block);
        self.experts(&mut both.experts, block);
        self.norm(&mut both.dense_out_norm, &part("post_ffw_norm_1"));
        self.norm(&mut both.expert_norm, &part("pre_ffw_norm_2"));
        self.norm(&mut both.expert_out_norm, &part("post_ffw_norm_2"));
        if let Some(scale) = &both.router_norm.weight {
            self.keep(scale, &part("ffn_gate_inp.scale"));
        }
        self.keep(&both.expert_scales, &part("ffn_down_exps.scale"));
    }

    fn gated(&mut self, feed: &mut GatedFeed, block: &str, suffix: &str) {
        let part = |name: &str| format!("{block}.ffn_{name}{suffix}");
        let (gate, up) = (part("gate"), part("up"));
        let all = 2 * feed.inner;
        let rows = (self.shape_of)(&format!("{up}.weight")).and_then(|shape| shape.first());
        if !self.has(&format!("{gate}.weight")) && rows == Some(&all) {
            self.slice(&mut feed.gate, &up, all, 0);
            self.slice(&mut feed.up, &up, all, feed.inner);
        } else {
            self.linear(&mut feed.gate, &gate, None);
            self.linear(&mut feed.up, &up, None);
        }
        self.linear(&mut feed.down, &part("down"), None);
    }

    fn plain(&mut self, feed: &mut PlainFeed, block: &str, suffix: &str) {
        self.linear(&mut feed.up, &format!("{block}.ffn_up{suffix}"), None);
        self.linear(&mut feed.down, &format!("{block}.ffn_down{suffix}"), None);
    }

    fn experts(&mut self, experts: &mut ExpertMixture, block: &str) {
        let part = |name: &str| format!("{block}.ffn_{name}");
        self.linear(&mut experts.router, &part("gate_inp"), None);
        if let Some(bias) = &experts.routing.bias {
            self.keep(bias, &format!("{block}.exp_probs_b.bias"));
        }
        let fused = part("gate_up_exps");
        let (is_fused, inner) = (self.has(&format!("{fused}.weight")), experts.inner);
        let count = experts.experts.len();
        for (index, ExpertConfig { gate, up, down }) in experts.experts.iter_mut().enumerate() {
            let mut each = vec![(up, "up", inner), (down, "down", 0)];
            each.extend(gate.as_mut().map(|gate| (gate, "gate", 0)));
            for (linear, name, first) in each {
                let own = part(&format!("{name}.{index}"));
                if self.has(&format!("{own}.weight")) {
                    // Files from before experts were stacked.
                    self.linear(linear, &own, None);
                } else if is_fused && name != "down" {
                    let pick = RowPick::Grouped { group: 2 * inner, first, count: inner };
                    self.stacked(linear, &fused, (index, count), (2 * inner, pick));
                } else {
                    let rows = (linear.outputs, RowPick::All);
                    self.stacked(linear, &part(&format!("{name}_exps")), (index, count), rows);
                }
            }
        }
        if let Some(LatentProjection { input, output }) = &mut experts.latent {
            self.linear(input, &part("latent_down"), None);
            self.linear(output, &part("latent_up"), None);
        }
        if let Some(SharedExpert { feed, gate }) = &mut experts.shared {
            match feed {
                FeedForward::Gated(feed) => self.gated(feed, block, "_shexp"),
                FeedForward::Plain(feed) => self.plain(feed, block, "_shexp"),
                FeedForward::Experts(_) | FeedForward::None | FeedForward::Both(_) => {}
            }
            if let Some(gate) = gate {
                self.linear(gate, &part("gate_inp_shexp"), None);
            }
        }
    }

    /// A norm. The converter has added 1 to the weights where Hugging Face's checkpoints store them without it.
    fn norm(&mut self, norm: &mut NormConfig, part: &str) {
        norm.plus_one = false;
        for (source, kind) in [(&norm.weight, "weight"), (&norm.bias, "bias")] {
            if let Some(source) = source {
                self.keep(source, &format!("{part}.{kind}"));
            }
        }
    }

    /// A dense layer with tensors of its own. `rotated` are the rows of a head, if their pairs are neighbours.
    fn linear(&mut self, linear: &mut LinearConfig, part: &str, rotated: Option<usize>) {
        let dimensions = [SizeField::new(linear.outputs, "outputs"), SizeField::new(linear.inputs, "inputs")];
        let bias = linear.bias.as_mut().map(|bias| (bias, "bias", 1));
        for (source, kind, rank) in [(&mut linear.weight, "weight", 2)].into_iter().chain(bias) {
            let tensor = format!("{part}.{kind}");
            let is_same = source.pick == RowPick::All && source.expert.is_none();
            source.otherwise = None;
            if !is_same {
                let whole = RowSource::whole(tensor.clone(), dimensions.get(..rank).unwrap_or_default());
                *source = RowSource { pairs: source.pairs, ..whole };
            }
            self.claim(tensor, &source.tensor, rotated.map(|head| StoredOrder::Pairs { head }));
        }
    }

    /// A dense layer whose rows are those from `first` on of a fused tensor of `all` rows.
    fn slice(&mut self, linear: &mut LinearConfig, part: &str, all: usize, first: usize) {
        let dimensions = [SizeField::new(all, "outputs"), SizeField::new(linear.inputs, "inputs")];
        let pick = RowPick::Grouped { group: all, first, count: linear.outputs };
        let bias = linear.bias.as_mut().map(|bias| (bias, "bias", 1));
        for (source, kind, rank) in [(&mut linear.weight, "weight", 2)].into_iter().chain(bias) {
            let tensor = format!("{part}.{kind}");
            let whole = RowSource::whole(tensor.clone(), dimensions.get(..rank).unwrap_or_default());
            *source = RowSource { pick, pairs: source.pairs, ..whole };
            self.claim(tensor, &source.tensor, None);
        }
    }

    /// A dense layer of one of `count` experts, within a tensor that stacks `all` rows of each.
    fn stacked(
        &mut self,
        linear: &mut LinearConfig,
        part: &str,
        (index, count): (usize, usize),
        (all, pick): (usize, RowPick),
    ) {
        let dimensions = [
            SizeField::new(count, "experts"),
            SizeField::new(all, "outputs"),
            SizeField::new(linear.inputs, "inputs"),
        ];
        let bias = linear.bias.as_mut().map(|bias| (bias, "bias", 2));
        for (source, kind, rank) in [(&mut linear.weight, "weight", 3)].into_iter().chain(bias) {
            let tensor = format!("{part}.{kind}");
            let whole = RowSource::whole(tensor.clone(), dimensions.get(..rank).unwrap_or_default());
            *source = RowSource { expert: Some(index), pick, pairs: source.pairs, ..whole };
            self.claim(tensor, &source.tensor, None);
        }
    }

    /// A tensor that is stored alike in both formats.
    fn keep(&mut self, source: &RowSource, tensor: &str) {
        self.claim(tensor.to_owned(), &source.tensor, None);
    }

    fn claim(&mut self, tensor: String, spec: &TensorSpec, order: Option<StoredOrder>) {
        let (name, shape) = (&spec.name, &spec.shape);
        let claim = || ClaimedTensor { name: name.clone(), shape: shape.clone(), stored_shape: None, order };
        self.claims.entry(tensor).or_insert_with(claim);
    }
}
