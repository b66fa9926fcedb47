//! Activations of a step, reused between steps. Must not know what is computed.

/// Activations, reused between steps.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The residual stream, `rows × hidden`.
    pub(crate) stream: Vec<f32>,
    /// Normalized rows, `rows × hidden`.
    pub(crate) normed: Vec<f32>,
    /// Query, key and value heads, `rows × (heads + 2·kv_heads)·head_dim`, or other projections of a mixer's input.
    pub(crate) qkv: Vec<f32>,
    /// Outputs of a mixer's convolution, `rows × channels`.
    pub(crate) convolved: Vec<f32>,
    /// Outputs of a recurrence before its norm.
    pub(crate) unnormed: Vec<f32>,
    /// The mixer's output before its projection, `rows × heads·head_dim` for attention.
    pub(crate) attended: Vec<f32>,
    /// Outputs of the gate and up projections, `rows × 2·inner`, or of the up projection alone.
    pub(crate) gate_up: Vec<f32>,
    /// Products of gate and up, `rows × inner`.
    pub(crate) inner: Vec<f32>,
    /// A part's output before its norm, `rows × hidden`.
    pub(crate) output: Vec<f32>,
    /// The same, normalized.
    pub(crate) output_normed: Vec<f32>,
    /// A weighted sum of experts, `rows × hidden`.
    pub(crate) mixed: Vec<f32>,
    /// Memory of the experts' computation.
    pub(crate) experts: ExpertScratch,
    /// Memory of latent attention.
    pub(crate) latent: LatentScratch,
    /// Memory of the inputs that layers have of their own.
    pub(crate) layer_inputs: LayerInputScratch,
    /// Memory of experts beside a dense network.
    pub(crate) both: BothScratch,
}

/// Memory of the inputs that layers have of their own, reused between steps.
#[derive(Default)]
pub(crate) struct LayerInputScratch {
    /// Words of the tokens, `rows × layers·width`.
    pub(crate) words: Vec<f32>,
    /// Inputs of all layers, `rows × layers·width`.
    pub(crate) inputs: Vec<f32>,
    /// Gates of one layer, `rows × width`.
    pub(crate) gates: Vec<f32>,
    /// Output of one layer, `rows × hidden`, and the same normalized.
    pub(crate) output: Vec<f32>,
    pub(crate) output_normed: Vec<f32>,
}

/// Memory of experts beside a dense network, reused between steps. Each has `rows × hidden` elements.
#[derive(Default)]
pub(crate) struct BothScratch {
    /// Output of the dense network, normalized.
    pub(crate) dense: Vec<f32>,
    /// The router's input.
    pub(crate) routed: Vec<f32>,
    /// The experts' input.
    pub(crate) input: Vec<f32>,
}

/// Memory of latent attention, reused between steps.
#[derive(Default)]
pub(crate) struct LatentScratch {
    /// Rows to store, `rows × (latent + rotary)`.
    pub(crate) rows: Vec<f32>,
    /// Compressed queries, `rows × rank`, and the same normalized.
    pub(crate) low: Vec<f32>,
    pub(crate) low_normed: Vec<f32>,
    /// Projected queries: plain elements of all heads, then rotated ones, `rows × heads·(plain + rotary)`.
    pub(crate) projected: Vec<f32>,
    /// Queries in the space of the stored rows, `rows × heads·(latent + rotary)`.
    pub(crate) queries: Vec<f32>,
    /// Weighted sums of latents, `rows × heads·latent`.
    pub(crate) summed: Vec<f32>,
}

/// Memory of the computation, reused between steps.
#[derive(Default)]
pub(crate) struct ExpertScratch {
    /// Router logits, `rows × experts`.
    pub(crate) logits: Vec<f32>,
    /// Scores of one row, and the scores that choose.
    pub(crate) scores: Vec<f32>,
    pub(crate) choice: Vec<f32>,
    /// For each row and rank: expert and weight.
    pub(crate) ranked: Vec<(usize, f32)>,
    /// For each expert, the indices of its entries in `ranked`.
    pub(crate) members: Vec<Vec<usize>>,
    /// The rows of one expert.
    pub(crate) gathered: Vec<f32>,
    pub(crate) wide: Vec<f32>,
    pub(crate) narrow: Vec<f32>,
    /// The outputs of one expert.
    pub(crate) outputs: Vec<f32>,
    /// The inputs of the experts, if they are projected.
    pub(crate) latent: Vec<f32>,
    /// The sums of the experts, if they are projected.
    pub(crate) latent_sums: Vec<f32>,
    /// The outputs of every row and rank.
    pub(crate) by_rank: Vec<f32>,
    /// The gate of the shared network.
    pub(crate) gate: Vec<f32>,
}

/// Returns the first `length` elements, and grows the vector if it is too short. The elements hold arbitrary old
/// values.
pub(crate) fn room(memory: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if memory.len() < length {
        memory.resize(length, 0.0);
    }
    memory.get_mut(..length).unwrap_or_default()
}
