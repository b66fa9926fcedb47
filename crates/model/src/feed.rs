//! The weights of feed-forward networks, packed for the kernels, with their options. Must not know how they are computed, or
//! where weights are stored.

use headrace_kernels::Activation;
use headrace_kernels::matrix::Matrix;

use crate::norm::NormWeights;

/// A feed-forward network.
pub(crate) enum FeedWeights {
    Gated {
        inner: usize,
        activation: Activation,
        /// Gates, then ups: `2·inner × hidden`.
        gate_up: Matrix,
        /// `hidden × inner`.
        down: Matrix,
    },
    Plain {
        inner: usize,
        activation: Activation,
        /// `inner × hidden`.
        up: Matrix,
        /// `hidden × inner`.
        down: Matrix,
    },
    Experts(Box<ExpertMixture>),
    /// No network.
    None,
    Both(Box<DenseAndExperts>),
}

/// A dense network, and experts beside it.
pub(crate) struct DenseAndExperts {
    pub(crate) dense: FeedWeights,
    pub(crate) dense_out_norm: NormWeights,
    /// With the factor on the router's input.
    pub(crate) router_norm: NormWeights,
    pub(crate) expert_norm: NormWeights,
    pub(crate) experts: ExpertMixture,
    pub(crate) expert_out_norm: NormWeights,
}

impl FeedWeights {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            FeedWeights::Gated { gate_up: first, down, .. } | FeedWeights::Plain { up: first, down, .. } => {
                first.bytes() + down.bytes()
            }
            FeedWeights::Experts(experts) => experts.bytes(),
            FeedWeights::None => 0,
            FeedWeights::Both(both) => {
                let DenseAndExperts {
                    dense,
                    dense_out_norm,
                    router_norm,
                    expert_norm,
                    experts,
                    expert_out_norm,
                } = &**both;
                let norms = [dense_out_norm, router_norm, expert_norm, expert_out_norm];
                dense.bytes() + experts.bytes() + norms.into_iter().map(NormWeights::bytes).sum::<usize>()
            }
        }
    }
}

/// A mixture of experts.
pub(crate) struct ExpertMixture {
    pub(crate) chosen: usize,
    pub(crate) inner: usize,
    pub(crate) activation: ExpertActivation,
    /// `experts × hidden`, in f32.
    pub(crate) router: Matrix,
    pub(crate) routing: RoutingRule,
    pub(crate) latent: Option<ProjectedExperts>,
    pub(crate) experts: Vec<ExpertWeights>,
    pub(crate) shared: Option<SharedNetwork>,
}

/// The projections around the experts.
pub(crate) struct ProjectedExperts {
    /// `latent × hidden`.
    pub(crate) input: Matrix,
    /// `hidden × latent`.
    pub(crate) output: Matrix,
}

/// The network of one expert.
pub(crate) struct ExpertWeights {
    /// Gates, then ups: `2·inner × hidden`. Without a gate, the ups alone.
    pub(crate) input: Matrix,
    /// `hidden × inner`.
    pub(crate) down: Matrix,
}

/// A network that every row passes.
pub(crate) struct SharedNetwork {
    pub(crate) feed: FeedWeights,
    /// `1 × hidden`, in f32.
    pub(crate) gate: Option<Matrix>,
}

/// The activation within an expert.
#[derive(Clone, Copy)]
pub(crate) enum ExpertActivation {
    /// Of the gate, times up.
    Gated(Activation),
    /// Of up alone.
    Plain(Activation),
    /// `(up + 1) · gate · σ(slope · gate)` within `limit`.
    Clamped { limit: f32, slope: f32 },
}

/// How scores become choices and weights. See [`headrace_checkpoint::decoder::RoutingConfig`].
pub(crate) struct RoutingRule {
    pub(crate) scores: ScoreRule,
    /// Empty if there is none.
    pub(crate) bias: Vec<f32>,
    /// Groups, those kept, and the best scores of each that count.
    pub(crate) groups: Option<(usize, usize, usize)>,
    pub(crate) renormalise: Option<f32>,
    pub(crate) factor: f32,
    /// Factors on the weights, one for each expert. Empty if there are none.
    pub(crate) expert_scales: Vec<f32>,
}

/// What the scores are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScoreRule {
    Softmax,
    SoftmaxOfChosen,
    Sigmoid,
}

impl ExpertMixture {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        let experts: usize =
            self.experts.iter().map(|expert| expert.input.bytes() + expert.down.bytes()).sum();
        let shared = self
            .shared
            .as_ref()
            .map_or(0, |shared| shared.feed.bytes() + shared.gate.as_ref().map_or(0, Matrix::bytes));
        let latent = self.latent.as_ref().map_or(0, |latent| latent.input.bytes() + latent.output.bytes());
        experts + shared + latent + self.router.bytes() + 4 * self.routing.bias.len()
    }
}
