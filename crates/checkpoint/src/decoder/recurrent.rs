//! Mixers that keep a state of fixed size instead of keys and values: short convolutions, the gated delta rule and Mamba2.
//! Must not know architectures.

use super::norm::NormConfig;
use super::source::{ElementForm, LinearConfig, PartSource, RowSource};

/// A depthwise causal convolution over the tokens of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvolutionConfig {
    /// Number of channels.
    pub channels: usize,
    /// Inputs that an output depends on, its own among them.
    pub taps: usize,
    /// `channels × 1 × taps`, the oldest tap first.
    pub weight: RowSource,
    /// One addend for each channel.
    pub bias: Option<RowSource>,
}

/// A short convolution with gates before and after it: `output(c · conv(b · x))`, with `[b | c | x]` projected from the
/// input.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConvConfig {
    /// `3·channels × hidden`: b, c and x.
    pub input: LinearConfig,
    /// The convolution.
    pub convolution: ConvolutionConfig,
    /// `hidden × channels`.
    pub output: LinearConfig,
}

/// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464).
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaConfig {
    /// Number of query and key heads. Divides `value_heads`.
    pub key_heads: usize,
    /// Number of value heads.
    pub value_heads: usize,
    /// The order of the value heads in every tensor.
    pub head_order: ValueHeadOrder,
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// `key_heads·key_dim × hidden`.
    pub query: LinearConfig,
    /// `key_heads·key_dim × hidden`.
    pub key: LinearConfig,
    /// `value_heads·value_dim × hidden`.
    pub value: LinearConfig,
    /// z, `value_heads·value_dim × hidden`: outputs are multiplied by `z·σ(z)`.
    pub gate: LinearConfig,
    /// `value_heads × hidden`: the logits of β.
    pub beta: LinearConfig,
    /// `value_heads × hidden`: the step sizes of the decays, before the addend and softplus.
    pub step: LinearConfig,
    /// The convolution of queries, keys and values, before `x·σ(x)`.
    pub convolution: ConvolutionConfig,
    /// One addend for the step size of each value head.
    pub step_bias: RowSource,
    /// For each value head, the decay's rate.
    pub rates: RowSource,
    /// How the rates are stored.
    pub rate_form: RateForm,
    /// Norm of each head's output, before the gate.
    pub norm: NormConfig,
    /// `hidden × value_heads·value_dim`.
    pub output: LinearConfig,
}

/// Mamba2 (Dao and Gu 2024, arXiv 2405.21060).
#[derive(Debug, Clone, PartialEq)]
pub struct MambaConfig {
    /// Number of heads.
    pub heads: usize,
    /// Elements of a head's value.
    pub head_dim: usize,
    /// Groups of heads that share B and C. Divides `heads`.
    pub groups: usize,
    /// Elements of B and of C.
    pub state_dim: usize,
    /// `2·heads·head_dim + 2·groups·state_dim + heads × hidden`: gate, x, B, C and step sizes.
    pub input: LinearConfig,
    /// The convolution of x, B and C, before `x·σ(x)`.
    pub convolution: ConvolutionConfig,
    /// One addend for the step size of each head.
    pub step_bias: RowSource,
    /// Bounds of the step sizes after softplus, the lower one first.
    pub steps: (f32, f32),
    /// For each head, the decay's rate.
    pub rates: RowSource,
    /// How the rates are stored.
    pub rate_form: RateForm,
    /// For each head, D: the share of x in the output.
    pub skips: RowSource,
    /// Norm of each group of heads, after the gate. `width` is that of all heads together.
    pub norm: NormConfig,
    /// `hidden × heads·head_dim`.
    pub output: LinearConfig,
}

/// The order of value heads. Several of them share a query and a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueHeadOrder {
    /// The heads of each key are neighbours.
    Grouped,
    /// The first head of each key, then the second of each, and so on, as in GGUF files.
    Tiled,
}

/// How a checkpoint stores the rates of decays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateForm {
    /// The logarithm of each rate.
    Logarithm,
    /// Each rate with a minus sign, as in GGUF files.
    Negative,
}

impl RateForm {
    fn part(self, source: &RowSource) -> PartSource<'_> {
        let form = match self {
            Self::Logarithm => ElementForm::Logarithm,
            Self::Negative => ElementForm::Negative,
        };
        PartSource { source, form, is_norm: false }
    }
}

impl ConvolutionConfig {
    fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        list.extend([&self.weight].into_iter().chain(&self.bias).map(PartSource::plain));
    }
}

impl ShortConvConfig {
    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        [&self.input, &self.output].into_iter().for_each(|linear| linear.each_source(list));
        self.convolution.each_source(list);
    }
}

impl DeltaConfig {
    /// The projections of the layer's input, in the order in which their outputs follow each other.
    pub fn inputs(&self) -> Vec<&LinearConfig> {
        vec![&self.query, &self.key, &self.value, &self.gate, &self.beta, &self.step]
    }

    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        self.inputs().into_iter().chain([&self.output]).for_each(|linear| linear.each_source(list));
        self.convolution.each_source(list);
        self.norm.each_source(list);
        list.extend([PartSource::plain(&self.step_bias), self.rate_form.part(&self.rates)]);
    }
}

impl MambaConfig {
    /// Elements of the values of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        [&self.input, &self.output].into_iter().for_each(|linear| linear.each_source(list));
        self.convolution.each_source(list);
        self.norm.each_source(list);
        let [bias, skips] = [&self.step_bias, &self.skips].map(PartSource::plain);
        list.extend([bias, self.rate_form.part(&self.rates), skips]);
    }
}
