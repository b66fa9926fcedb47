//! Feed-forward networks: gated and plain ones, and mixtures of experts. A router chooses a few experts for each row. Must
//! not know architectures.

use super::norm::NormConfig;
use super::source::{LinearConfig, PartSource, RowSource, TensorFit, TensorSpec};

/// A feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) · up(x))`.
    Gated(Box<GatedFeed>),
    /// `down(activation(up(x)))`.
    Plain(Box<PlainFeed>),
    /// A few of many networks, chosen for each row.
    Experts(Box<ExpertMixture>),
    /// No network: the layer is a mixer alone.
    None,
    /// A network that every row passes, and experts beside it that read the stream through norms of their own.
    Both(Box<DenseAndExperts>),
}

impl FeedForward {
    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        match self {
            Self::Gated(feed) => {
                [&feed.gate, &feed.up, &feed.down].into_iter().for_each(|linear| linear.each_source(list));
            }
            Self::Plain(feed) => {
                [&feed.up, &feed.down].into_iter().for_each(|linear| linear.each_source(list));
            }
            Self::Experts(experts) => experts.each_source(list),
            Self::None => {}
            Self::Both(both) => both.each_source(list),
        }
    }

    /// The dense layers, grouped as they are packed.
    pub(crate) fn matrices(&self) -> Vec<Vec<&LinearConfig>> {
        match self {
            Self::Gated(feed) => vec![vec![&feed.gate, &feed.up], vec![&feed.down]],
            Self::Plain(feed) => vec![vec![&feed.up], vec![&feed.down]],
            Self::Experts(experts) => experts.matrices(),
            Self::None => Vec::new(),
            Self::Both(both) => [both.dense.matrices(), both.experts.matrices()].concat(),
        }
    }

    /// Width of the network, or of one expert. 0 without a network.
    pub fn inner(&self) -> usize {
        match self {
            Self::Gated(feed) => feed.inner,
            Self::Plain(feed) => feed.inner,
            Self::Experts(experts) => experts.inner,
            Self::None => 0,
            Self::Both(both) => both.dense.inner(),
        }
    }
}

/// A network that every row passes, with experts beside it. The sum of both normalized outputs is the output.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseAndExperts {
    /// The network. It reads the layer's normalized input.
    pub dense: FeedForward,
    /// Norm of the network's output.
    pub dense_out_norm: NormConfig,
    /// Norm of the router's input, which is the stream.
    pub router_norm: NormConfig,
    /// Factor on the router's input, after the norm.
    pub router_scale: f32,
    /// Norm of the experts' input, which is the stream.
    pub expert_norm: NormConfig,
    /// The experts.
    pub experts: ExpertMixture,
    /// Factors on the weights of the chosen experts, one for each expert.
    pub expert_scales: RowSource,
    /// Norm of the experts' sum.
    pub expert_out_norm: NormConfig,
}

impl DenseAndExperts {
    fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        let Self { dense_out_norm, router_norm, expert_norm, expert_out_norm, .. } = self;
        self.dense.each_source(list);
        self.experts.each_source(list);
        [dense_out_norm, router_norm, expert_norm, expert_out_norm]
            .into_iter()
            .for_each(|norm| norm.each_source(list));
        list.push(PartSource::plain(&self.expert_scales));
    }
}

/// The activation function of a feed-forward network, by its name in `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedActivation {
    /// `silu`, also called swish.
    Silu,
    /// `gelu`, with the error function.
    Gelu,
    /// `gelu_pytorch_tanh`, `gelu_new`, `gelu_fast`: with the hyperbolic tangent.
    GeluTanh,
    /// `relu`.
    Relu,
    /// `relu2`: the square of `relu`.
    ReluSquared,
}

/// A gated feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedFeed {
    /// Width of the network.
    pub inner: usize,
    /// The activation of the gate.
    pub activation: FeedActivation,
    /// `inner × hidden`.
    pub gate: LinearConfig,
    /// `inner × hidden`.
    pub up: LinearConfig,
    /// `hidden × inner`.
    pub down: LinearConfig,
}

/// A feed-forward network without a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct PlainFeed {
    /// Width of the network.
    pub inner: usize,
    /// The activation.
    pub activation: FeedActivation,
    /// `inner × hidden`.
    pub up: LinearConfig,
    /// `hidden × inner`.
    pub down: LinearConfig,
}

/// A mixture of experts, and the networks that every row passes.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertMixture {
    /// Experts that each row passes. At most as many as there are.
    pub chosen: usize,
    /// Width of an expert.
    pub inner: usize,
    /// The activation of an expert.
    pub activation: ExpertActivation,
    /// `experts × hidden`. Computed in f32 from weights that are never quantized.
    pub router: LinearConfig,
    /// How scores become choices and weights.
    pub routing: RoutingConfig,
    /// Projections around the experts, whose width is then another than the stream's. The router and the shared network
    /// read the stream.
    pub latent: Option<LatentProjection>,
    /// The experts, by their number.
    pub experts: Vec<ExpertConfig>,
    /// A network that every row passes.
    pub shared: Option<SharedExpert>,
}

/// The projections of the experts' input and of their sum.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentProjection {
    /// `latent × hidden`.
    pub input: LinearConfig,
    /// `hidden × latent`.
    pub output: LinearConfig,
}

/// The network of one expert.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertConfig {
    /// `inner × hidden`. `None` if the expert has no gate.
    pub gate: Option<LinearConfig>,
    /// `inner × hidden`.
    pub up: LinearConfig,
    /// `hidden × inner`.
    pub down: LinearConfig,
}

/// A network that every row passes beside its experts.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedExpert {
    /// The network.
    pub feed: FeedForward,
    /// `1 × hidden`: its output is multiplied by the sigmoid of this. `None` means by 1.
    pub gate: Option<LinearConfig>,
}

/// The activation within an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// An activation of the gate, times up. Without a gate, of up alone.
    Usual(FeedActivation),
    /// `(up + 1) · gate · σ(slope · gate)`, with gates of at most `limit` and ups within plus and minus `limit`.
    Clamped {
        /// The bound.
        limit: f32,
        /// The factor within the sigmoid.
        slope: f32,
    },
}

/// How a router's scores become choices and weights. Among equal scores, the expert with the lower number comes first.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingConfig {
    /// What the scores are.
    pub scores: ScoreKind,
    /// Added to the scores for the choice, but not to the weights. One element for each expert.
    pub bias: Option<RowSource>,
    /// Experts are in groups of equal size. Only the best groups take part. `None` means one group.
    pub groups: Option<ExpertGroups>,
    /// The weights of the chosen are divided by their sum plus this. `None` means that they are not.
    pub renormalise: Option<f32>,
    /// Factor on the weights, after the division.
    pub factor: f32,
}

/// What the scores of a router are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreKind {
    /// A softmax over all experts.
    Softmax,
    /// The logits choose, and a softmax over the chosen ones gives the weights.
    SoftmaxOfChosen,
    /// A sigmoid of each logit.
    Sigmoid,
}

/// Groups of experts. Only the best take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups. Divides the number of experts.
    pub count: usize,
    /// Groups that take part.
    pub kept: usize,
    /// A group's score is the sum of this many of its best scores: 1 or 2.
    pub best: usize,
}

impl ExpertMixture {
    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        self.router.each_source(list);
        list.extend(self.routing.bias.iter().map(PartSource::plain));
        if let Some(LatentProjection { input, output }) = &self.latent {
            [input, output].into_iter().for_each(|linear| linear.each_source(list));
        }
        for ExpertConfig { gate, up, down } in &self.experts {
            gate.iter().chain([up, down]).for_each(|linear| linear.each_source(list));
        }
        if let Some(SharedExpert { feed, gate }) = &self.shared {
            feed.each_source(list);
            gate.iter().for_each(|linear| linear.each_source(list));
        }
    }

    /// The dense layers, grouped as they are packed, without the router.
    pub(crate) fn matrices(&self) -> Vec<Vec<&LinearConfig>> {
        let experts = self.experts.iter().flat_map(|ExpertConfig { gate, up, down }| {
            [gate.iter().chain([up]).collect::<Vec<_>>(), vec![down]]
        });
        let shared = self.shared.iter().flat_map(|shared| shared.feed.matrices());
        let latent = self.latent.iter().flat_map(|latent| [vec![&latent.input], vec![&latent.output]]);
        experts.chain(shared).chain(latent).collect()
    }

    /// Takes for every expert the tensors that the checkpoint has, where it may be stored in two ways.
    pub(crate) fn resolve(&mut self, fit: &dyn Fn(&TensorSpec) -> TensorFit) {
        for ExpertConfig { gate, up, down } in &mut self.experts {
            for linear in gate.iter_mut().chain([up, down]) {
                linear.weight.resolve(fit);
                if let Some(bias) = &mut linear.bias {
                    bias.resolve(fit);
                }
            }
        }
    }
}
