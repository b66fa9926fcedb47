//! The operations of recurrent layers: shape checks and the split of the work into tasks. Must not know: architectures.

use crate::entry::dispatch;
use crate::error::KernelError;
use crate::kernels::Kernels;
use crate::memory::Shared;
use crate::ops::rows::ProjectedRows;
use crate::shapes::{LANES, SERIAL_ELEMENTS};
use crate::states::convolution::ConvolutionJob;
use crate::states::recurrence::{HeadRule, RecurrenceJob, scratch_floats};
use crate::states::{HeadSharing, StatePlan, StateShape, StateStore};

/// Fewest channels of a task.
const LEAST_CHANNELS: usize = 8 * LANES;

/// A short convolution: depthwise and causal.
#[derive(Clone, Copy)]
pub struct ShortConvolution<'a> {
    /// First element of the inputs in a row of projections.
    pub input: usize,
    /// First element of factors on the inputs.
    pub input_factor: Option<usize>,
    /// `[taps][channels]`, the oldest tap first, each tap padded to a multiple of 16 elements.
    pub weight: &'a [f32],
    /// One addend for each channel, padded to a multiple of 16 elements. Empty if there are none.
    pub bias: &'a [f32],
    /// Whether outputs pass `x·σ(x)`.
    pub silu: bool,
    /// First element of factors on the outputs.
    pub output_factor: Option<usize>,
}

/// A recurrence over matrices, one for each head.
#[derive(Clone, Copy)]
pub struct HeadRecurrence<'a> {
    /// The rule.
    pub rule: RecurrenceRule<'a>,
    /// First element of the queries in a row of convolved inputs. Several heads share a query and a key.
    pub query: usize,
    /// First element of the keys.
    pub key: usize,
    /// First element of the values.
    pub value: usize,
    /// The heads that share a query and a key.
    pub sharing: HeadSharing,
    /// First of the step sizes in a row of projections, one for each head, before the addend and softplus.
    pub step: usize,
    /// For each head, the addend of the step size.
    pub step_bias: &'a [f32],
    /// For each head, the logarithm of the decay for each unit of the step size. Not positive.
    pub rates: &'a [f32],
}

/// What a token adds to the state, and what becomes of an output.
#[derive(Clone, Copy)]
pub enum RecurrenceRule<'a> {
    /// The gated delta rule (arXiv 2412.06464). Queries and keys are normalized to length 1, and queries divided by the
    /// root of their width. Outputs are normalized by head, then multiplied by `z·σ(z)`.
    Delta {
        /// First of the logits of β in a row of projections, one for each head.
        beta: usize,
        /// First element of z in a row of projections.
        gate: usize,
        /// Factors of the norm, as many as a value has elements.
        norm: &'a [f32],
        /// The norm's epsilon.
        eps: f32,
    },
    /// Mamba2 (arXiv 2405.21060). Outputs have `D·value` added, and are not normalized.
    Sum {
        /// For each head, D.
        skips: &'a [f32],
        /// Bounds of the step size, the lower one first.
        steps: (f32, f32),
    },
}

impl Kernels {
    /// Computes a convolution of every row of `projections` into `out`, rows of as many elements as there are channels.
    /// Advances the states of the plan's slots.
    pub fn convolve(
        &mut self,
        store: &mut StateStore,
        (layer, plan): (usize, &StatePlan),
        convolution: &ShortConvolution<'_>,
        projections: ProjectedRows<'_>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let shape = planned_shape(store, layer, plan)?;
        let (channels, stride, rows) = (shape.channels, shape.channel_stride(), plan.rows());
        let firsts = [Some(convolution.input), convolution.input_factor, convolution.output_factor];
        let fits = firsts.into_iter().flatten().all(|first| projections.have(rows, first, channels))
            && rows.checked_mul(channels) == Some(out.len())
            && convolution.weight.len() == shape.taps * stride
            && (convolution.bias.is_empty() || convolution.bias.len() == stride);
        if !fits {
            return Err(KernelError::shape(format!("convolution of {rows} rows of {channels} channels")));
        }
        let (store, isa, spans) = (&*store, self.isa, plan.spans());
        let (rows, out) = (Shared(projections.rows.as_ptr().cast_mut()), Shared(out.as_mut_ptr()));
        let job = || ConvolutionJob {
            store,
            layer,
            shape,
            rows: rows.get(),
            stride: projections.stride,
            input: convolution.input,
            input_factor: convolution.input_factor,
            weight: convolution.weight,
            bias: convolution.bias,
            silu: convolution.silu,
            output_factor: convolution.output_factor,
            out: out.get(),
        };
        let per_task = (SERIAL_ELEMENTS / plan.longest().max(1)).max(LEAST_CHANNELS).next_multiple_of(LANES);
        let pieces = stride.div_ceil(per_task);
        self.pool.run(spans.len() * pieces, |task, _| {
            let first = task % pieces * per_task;
            let count = per_task.min(stride - first);
            // Sound: rows and slots were checked. The plan's slots are disjoint, and each task has its own channels.
            dispatch!(isa, convolve(&job(), &spans[task / pieces], first, count));
        })
    }

    /// Computes a recurrence of every row into `out`, rows of `heads · value_dim` elements. Queries, keys and values come
    /// from `mixed`, and all else from `projections`. Advances the states of the plan's slots.
    pub fn recur(
        &mut self,
        store: &mut StateStore,
        (layer, plan): (usize, &StatePlan),
        recurrence: &HeadRecurrence<'_>,
        (mixed, projections): (ProjectedRows<'_>, ProjectedRows<'_>),
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let shape = planned_shape(store, layer, plan)?;
        check(shape, plan.rows(), recurrence, (mixed, projections), out.len())?;
        let (store, isa, spans) = (&*store, self.isa, plan.spans());
        let rule = match recurrence.rule {
            RecurrenceRule::Delta { beta, gate, norm, eps } => HeadRule::Delta { beta, gate, norm, eps },
            RecurrenceRule::Sum { skips, steps } => HeadRule::Sum { skips, steps },
        };
        let inputs = (Shared(mixed.rows.as_ptr().cast_mut()), Shared(projections.rows.as_ptr().cast_mut()));
        let out = Shared(out.as_mut_ptr());
        let job = || RecurrenceJob {
            store,
            layer,
            shape,
            rule,
            mixed: inputs.0.get(),
            mixed_stride: mixed.stride,
            query: recurrence.query,
            key: recurrence.key,
            value: recurrence.value,
            sharing: recurrence.sharing,
            raw: inputs.1.get(),
            raw_stride: projections.stride,
            step: recurrence.step,
            step_bias: recurrence.step_bias,
            rates: recurrence.rates,
            out: out.get(),
        };
        let per_worker = scratch_floats(shape).next_multiple_of(LANES);
        let scratch = Shared(self.attention.floats(per_worker * self.pool.threads()));
        self.pool.run(spans.len() * shape.heads, |task, worker| {
            // SAFETY: each worker has its own piece of scratch and runs one task at a time.
            let scratch = unsafe {
                std::slice::from_raw_parts_mut(scratch.get().wrapping_add(worker * per_worker), per_worker)
            };
            // Sound: rows and slots were checked. The plan's slots are disjoint, and each task has its own head.
            dispatch!(isa, advance(&job(), &spans[task / shape.heads], task % shape.heads, scratch));
        })
    }
}

/// Returns the shape of a layer whose slots the plan was checked for.
fn planned_shape(store: &StateStore, layer: usize, plan: &StatePlan) -> Result<StateShape, KernelError> {
    store.shape(layer).filter(|_| plan.slots() == store.slots()).ok_or_else(|| {
        KernelError::shape(format!("layer {layer} of {} states, {} slots", store.layers(), store.slots()))
    })
}

fn check(
    shape: StateShape,
    rows: usize,
    recurrence: &HeadRecurrence<'_>,
    (mixed, projections): (ProjectedRows<'_>, ProjectedRows<'_>),
    out: usize,
) -> Result<(), KernelError> {
    let StateShape { heads, key_dim, value_dim, .. } = shape;
    let HeadRecurrence { rule, query, key, value, sharing, step, step_bias, rates } = *recurrence;
    let keys = sharing.keys(heads).map(|keys| keys.saturating_mul(key_dim));
    let values = heads.saturating_mul(value_dim);
    let rule_fits = match rule {
        RecurrenceRule::Delta { beta, gate, norm, .. } => {
            projections.have(rows, beta, heads)
                && projections.have(rows, gate, values)
                && norm.len() == value_dim
        }
        RecurrenceRule::Sum { skips, steps: (least, most) } => skips.len() == heads && least <= most,
    };
    let fits = heads > 0
        && key_dim > 0
        && value_dim > 0
        && keys.is_some_and(|keys| mixed.have(rows, query, keys) && mixed.have(rows, key, keys))
        && mixed.have(rows, value, values)
        && projections.have(rows, step, heads)
        && step_bias.len() == heads
        && rates.len() == heads
        && rows.checked_mul(values) == Some(out)
        && rule_fits;
    match fits {
        true => Ok(()),
        false => Err(KernelError::shape(format!("recurrence of {rows} rows, {heads} heads"))),
    }
}
