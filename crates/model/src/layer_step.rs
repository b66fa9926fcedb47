//! The computation of one layer for the rows of a step: norms, mixer, feed-forward network, and their sums with the
//! residual stream. Must not know: architectures, files, or how logits are made.

use headrace_kernels::attention::{Sees, Span};
use headrace_kernels::matrix::Matrix;
use headrace_kernels::{Activation, KernelError, Kernels, RopeTable, Write};

use crate::attention::LayerKv;
use crate::batch::Rows;
use crate::feed::{DenseAndExperts, ExpertMixture, FeedWeights};
use crate::layer::{Layer, LayerTail, MixerWeights};
use crate::norm::NormWeights;
use crate::scratch::{Scratch, room};
use crate::states::LayerState;

/// What the layers of a step compute with.
pub(crate) struct LayerStep<'a> {
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) tables: &'a [RopeTable],
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) rows: &'a Rows,
    pub(crate) hidden: usize,
}

/// What a layer's mixer keeps between steps.
pub(crate) enum LayerMemory<'a> {
    /// Keys and values, and the spans of the queries.
    Keys(LayerKv<'a>, &'a [Span<'a>]),
    /// A state.
    State(LayerState<'a>),
    /// Nothing.
    None,
}

impl LayerStep<'_> {
    /// Computes one layer, from the stream to the stream. With `wanted`, only these rows leave the mixer, one after the
    /// other; the spans of attention are then theirs.
    pub(crate) fn layer(
        &mut self,
        layer: &Layer,
        mut memory: LayerMemory<'_>,
        wanted: Option<&[usize]>,
    ) -> Result<(), KernelError> {
        let all = self.rows.len();
        if let Some(norm) = &layer.mixer_norm {
            self.norm(norm, all)?;
        }
        self.read(layer, &mut memory)?;
        let count = wanted.map_or(all, <[usize]>::len);
        if count == 0 {
            return Ok(());
        }
        match (&layer.mixer, &memory) {
            (MixerWeights::Attention(attention), LayerMemory::Keys(kv, spans)) => {
                attention.attend(self.kernels, kv, all, (spans, wanted), self.scratch)?;
            }
            (MixerWeights::Latent(latent), LayerMemory::Keys(kv, spans)) => {
                latent.attend(self.kernels, kv, (all, count), spans, self.scratch)?;
            }
            _ => {}
        }
        if let Some(wanted) = wanted {
            self.keep_wanted(wanted, layer);
        }
        if layer.parallel {
            self.feed_input(layer, count)?;
        }
        if let Some(output) = layer.mixer.output() {
            let out = (layer.mixer_out_norm.as_ref(), layer.residual_scale);
            self.add_output(output, |scratch| &mut scratch.attended, output.k(), count, out)?;
        }
        if !layer.parallel {
            self.feed_input(layer, count)?;
        }
        self.feed(layer, count)?;
        match &layer.tail {
            Some(tail) => self.tail(tail, count, wanted),
            None => Ok(()),
        }
    }

    /// Computes what follows the feed-forward network.
    fn tail(&mut self, tail: &LayerTail, count: usize, wanted: Option<&[usize]>) -> Result<(), KernelError> {
        let Scratch { stream, layer_inputs, .. } = &mut *self.scratch;
        let stream = room(stream, count * self.hidden);
        if let Some(input) = &tail.input {
            input.add(self.kernels, (stream, self.hidden), wanted, layer_inputs)?;
        }
        self.kernels.scale_and_cap(stream, self.hidden, tail.scale, None)
    }

    /// Computes what the mixer keeps of every row. Recurrent mixers compute their outputs too.
    fn read(&mut self, layer: &Layer, memory: &mut LayerMemory<'_>) -> Result<(), KernelError> {
        let all = self.rows.len();
        let (input, mut scratch) = self.scratch.for_mixer(layer.mixer_norm.is_some());
        let input = &*room(input, all * self.hidden);
        match (&layer.mixer, memory) {
            (MixerWeights::Attention(attention), LayerMemory::Keys(kv, _)) => {
                attention.heads(self.kernels, input, self.rows, self.tables, kv, scratch.projected)
            }
            (MixerWeights::Latent(latent), LayerMemory::Keys(kv, _)) => {
                latent.heads(self.kernels, input, self.rows, self.tables, kv, scratch.latent)
            }
            (MixerWeights::ShortConv(mixer), LayerMemory::State(state)) => {
                mixer.mix(self.kernels, (input, all), state, &mut scratch)
            }
            (MixerWeights::Delta(mixer), LayerMemory::State(state)) => {
                mixer.mix(self.kernels, (input, all), state, &mut scratch)
            }
            (MixerWeights::Mamba(mixer), LayerMemory::State(state)) => {
                mixer.mix(self.kernels, (input, all), state, &mut scratch)
            }
            (MixerWeights::None, LayerMemory::None) => Ok(()),
            _ => Err(KernelError::Shape { message: "a layer has no memory of its kind".to_owned() }),
        }
    }

    /// Moves the wanted rows of the stream to its start, and those of the normalized rows and of a recurrent mixer's
    /// outputs if they are needed again.
    fn keep_wanted(&mut self, wanted: &[usize], layer: &Layer) {
        let hidden = self.hidden;
        let keep = |rows: &mut Vec<f32>, width: usize| {
            for (to, &from) in wanted.iter().enumerate() {
                if rows.len() >= (from + 1) * width {
                    rows.copy_within(from * width..(from + 1) * width, to * width);
                }
            }
        };
        keep(&mut self.scratch.stream, hidden);
        if layer.parallel {
            keep(&mut self.scratch.normed, hidden);
        }
        // Attention computes the wanted rows alone.
        if let (None, Some(output)) = (layer.sees(), layer.mixer.output()) {
            keep(&mut self.scratch.attended, output.k());
        }
    }

    /// Normalizes the stream for the feed-forward network, if it has a norm of its own.
    fn feed_input(&mut self, layer: &Layer, count: usize) -> Result<(), KernelError> {
        match &layer.feed_norm {
            Some(norm) => self.norm(norm, count),
            None => Ok(()),
        }
    }

    /// Computes the feed-forward network and adds its output to the stream.
    fn feed(&mut self, layer: &Layer, count: usize) -> Result<(), KernelError> {
        let is_normed = layer.feed_norm.is_some() || (layer.parallel && layer.mixer_norm.is_some());
        let out = (layer.feed_out_norm.as_ref(), layer.residual_scale);
        if let FeedWeights::Experts(experts) = &layer.feed {
            self.experts(experts, is_normed, count)?;
            return self.add_mixed(count, out);
        }
        if let FeedWeights::Both(both) = &layer.feed {
            self.both(both, is_normed, count)?;
            return self.add_mixed(count, out);
        }
        let Some((width, down)) = self.feed_inner(&layer.feed, is_normed, count)? else { return Ok(()) };
        self.add_output(down, |scratch| &mut scratch.inner, width, count, out)
    }

    /// Computes a network up to its last projection, into `scratch.inner`. Returns the width of the rows there, and the
    /// last projection. `None` for experts, and without a network.
    fn feed_inner<'f>(
        &mut self,
        feed: &'f FeedWeights,
        is_normed: bool,
        count: usize,
    ) -> Result<Option<(usize, &'f Matrix)>, KernelError> {
        let Scratch { stream, normed, gate_up, inner: products, .. } = &mut *self.scratch;
        let input = room(if is_normed { normed } else { stream }, count * self.hidden);
        match feed {
            FeedWeights::Gated { inner, activation, gate_up: matrix, down } => {
                let gate_up = room(gate_up, count * 2 * inner);
                self.kernels.matmul(input, count, matrix, gate_up, Write::Set)?;
                let products = room(products, count * inner);
                match activation {
                    Activation::Silu => self.kernels.silu_mul(gate_up, *inner, products)?,
                    other => self.kernels.activate_gated(*other, gate_up, *inner, products)?,
                }
                Ok(Some((*inner, down)))
            }
            FeedWeights::Plain { inner, activation, up, down } => {
                let products = room(products, count * inner);
                self.kernels.matmul(input, count, up, products, Write::Set)?;
                self.kernels.activate(*activation, products, *inner)?;
                Ok(Some((*inner, down)))
            }
            FeedWeights::Experts(_) | FeedWeights::Both(_) | FeedWeights::None => Ok(None),
        }
    }

    /// Computes a dense network and the experts beside it, and leaves the sum of both normalized outputs in
    /// `scratch.mixed`.
    fn both(&mut self, both: &DenseAndExperts, is_normed: bool, count: usize) -> Result<(), KernelError> {
        let hidden = self.hidden;
        let Some((width, down)) = self.feed_inner(&both.dense, is_normed, count)? else { return Ok(()) };
        let Scratch { stream, inner, output, mixed, experts: memory, both: beside, .. } = &mut *self.scratch;
        let stream = &*room(stream, count * hidden);
        let output = room(output, count * hidden);
        self.kernels.matmul(room(inner, count * width), count, down, output, Write::Set)?;
        let dense = room(&mut beside.dense, count * hidden);
        both.dense_out_norm.apply(self.kernels, output, dense)?;
        let routed = room(&mut beside.routed, count * hidden);
        both.router_norm.apply(self.kernels, stream, routed)?;
        let input = room(&mut beside.input, count * hidden);
        both.expert_norm.apply(self.kernels, stream, input)?;
        both.experts.sum(self.kernels, (input, routed), (count, hidden), memory, output)?;
        let mixed = room(mixed, count * hidden);
        both.expert_out_norm.apply(self.kernels, output, mixed)?;
        self.kernels.add_scaled(dense, hidden, 1.0, mixed)
    }

    /// Computes experts and the shared network into `scratch.mixed`.
    fn experts(&mut self, experts: &ExpertMixture, is_normed: bool, count: usize) -> Result<(), KernelError> {
        let hidden = self.hidden;
        let shared = match &experts.shared {
            None => None,
            Some(shared) => self.feed_inner(&shared.feed, is_normed, count)?,
        };
        let Scratch { stream, normed, inner, output, mixed, experts: memory, .. } = &mut *self.scratch;
        let input = &*room(if is_normed { normed } else { stream }, count * hidden);
        let mixed = room(mixed, count * hidden);
        experts.sum(self.kernels, (input, input), (count, hidden), memory, mixed)?;
        if let Some((width, down)) = shared {
            let output = room(output, count * hidden);
            self.kernels.matmul(room(inner, count * width), count, down, output, Write::Set)?;
            experts.add_shared(self.kernels, (input, count, hidden), output, memory, mixed)?;
        }
        Ok(())
    }

    /// Adds `scratch.mixed` to the stream, normalized and scaled if the layer says so.
    fn add_mixed(
        &mut self,
        count: usize,
        (norm, scale): (Option<&NormWeights>, f32),
    ) -> Result<(), KernelError> {
        let hidden = self.hidden;
        let Scratch { stream, mixed, output_normed, .. } = &mut *self.scratch;
        let (stream, mixed) = (room(stream, count * hidden), room(mixed, count * hidden));
        let Some(norm) = norm else { return self.kernels.add_scaled(mixed, hidden, scale, stream) };
        let normed = room(output_normed, count * hidden);
        norm.apply(self.kernels, mixed, normed)?;
        self.kernels.add_scaled(normed, hidden, scale, stream)
    }

    /// Projects `count` rows of `width` elements and adds the result to the stream, normalized and scaled if the layer
    /// says so.
    fn add_output(
        &mut self,
        matrix: &Matrix,
        from: impl Fn(&mut Scratch) -> &mut Vec<f32>,
        width: usize,
        count: usize,
        (norm, scale): (Option<&NormWeights>, f32),
    ) -> Result<(), KernelError> {
        let hidden = self.hidden;
        // Taken out, because the projection writes to other fields of the scratch.
        let mut rows = std::mem::take(from(self.scratch));
        let input = room(&mut rows, count * width);
        let Scratch { stream, output, output_normed, .. } = &mut *self.scratch;
        let stream = room(stream, count * hidden);
        let result = if norm.is_none() && scale == 1.0 {
            self.kernels.matmul(input, count, matrix, stream, Write::Add)
        } else {
            let output = room(output, count * hidden);
            self.kernels.matmul(input, count, matrix, output, Write::Set).and_then(|()| match norm {
                None => self.kernels.add_scaled(output, hidden, scale, stream),
                Some(norm) => {
                    let normed = room(output_normed, count * hidden);
                    norm.apply(self.kernels, output, normed)?;
                    self.kernels.add_scaled(normed, hidden, scale, stream)
                }
            })
        };
        *from(self.scratch) = rows;
        result
    }

    /// Normalizes `count` rows of the stream into `scratch.normed`.
    fn norm(&mut self, norm: &NormWeights, count: usize) -> Result<(), KernelError> {
        let normed = room(&mut self.scratch.normed, count * self.hidden);
        let stream = room(&mut self.scratch.stream, count * self.hidden);
        norm.apply(self.kernels, stream, normed)
    }
}

impl Layer {
    /// The keys that a query of this layer sees. `None` if the layer has no attention.
    pub(crate) fn sees(&self) -> Option<Sees> {
        match &self.mixer {
            MixerWeights::Attention(attention) => Some(attention.window.map_or(Sees::Before, Sees::Window)),
            MixerWeights::Latent(_) => Some(Sees::Before),
            _ => None,
        }
    }
}
