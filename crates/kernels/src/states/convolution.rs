//! The short convolution: depthwise and causal, a few taps wide. Must not know: threads, or what the channels mean.

use headrace_kv_layout::BLOCK_TOKENS;

use crate::activation;
use crate::shapes::LANES;
use crate::simd::{self, Simd};
use crate::states::plan::PlannedSpan;
use crate::states::store::{StateShape, StateStore};

/// A convolution over the rows of a step. ConvolutionInputs are in rows of `stride` elements.
pub(crate) struct ConvolutionJob<'a> {
    pub(crate) store: &'a StateStore,
    pub(crate) layer: usize,
    pub(crate) shape: StateShape,
    pub(crate) rows: *const f32,
    pub(crate) stride: usize,
    /// First element of the inputs in a row.
    pub(crate) input: usize,
    /// First element of factors on the inputs.
    pub(crate) input_factor: Option<usize>,
    /// `[taps][channel_stride]`, the oldest tap first.
    pub(crate) weight: &'a [f32],
    /// `[channel_stride]`. Empty if there is no bias.
    pub(crate) bias: &'a [f32],
    /// Whether outputs pass `x·σ(x)`.
    pub(crate) silu: bool,
    /// First element of factors on the outputs.
    pub(crate) output_factor: Option<usize>,
    /// `[rows][channels]`.
    pub(crate) out: *mut f32,
}

/// The state of a convolution while a span is computed.
struct ConvolutionInputs {
    /// `[taps − 1][channel_stride]`: the inputs before the current block.
    tail: *const f32,
    /// `[16][channel_stride]`: the inputs of the current block.
    block: *mut f32,
}

/// Computes the outputs of a span for channels `first..first + count`, and advances the state of these channels.
///
/// # Safety
/// As for [`Simd`]. The job's pointers are valid for the span, whose slots exist and are used by no other span.
/// `first` and `count` are multiples of 16 within the channel stride, and no other task computes these channels of the
/// span.
#[inline(always)]
pub(crate) unsafe fn convolve<S: Simd>(
    job: &ConvolutionJob<'_>,
    planned: &PlannedSpan,
    first: usize,
    count: usize,
) {
    let (span, slots) = (planned.span, planned.span.slots);
    let (stride, before) = (job.shape.channel_stride(), job.shape.taps - 1);
    let own = job.store.tail(job.layer, slots.own);
    let block = job.store.inputs(job.layer, slots.own);
    // SAFETY: the caller's contract. Slots that differ do not overlap.
    unsafe {
        let mut inputs = ConvolutionInputs { tail: own, block };
        if span.start == 0 {
            for row in 0..before {
                std::ptr::write_bytes(own.add(row * stride + first), 0, count);
            }
        } else if slots.from != slots.own {
            inputs.tail = job.store.tail(job.layer, slots.from);
            let other = job.store.inputs(job.layer, slots.from);
            copy_rows(other, block, span.start % BLOCK_TOKENS, stride, (first, count));
        }
        for row in 0..span.count {
            let position = span.start + row;
            let at = position % BLOCK_TOKENS;
            for channel in (first..first + count).step_by(LANES) {
                output::<S>(job, &inputs, (planned.first_row + row, at), channel);
            }
            if at + 1 < BLOCK_TOKENS {
                continue;
            }
            copy_rows(block.add((BLOCK_TOKENS - before) * stride), own, before, stride, (first, count));
            inputs.tail = own;
            if let Some(copy) = slots.copy.filter(|copy| copy.position == position + 1) {
                copy_rows(own, job.store.tail(job.layer, copy.slot), before, stride, (first, count));
            }
        }
        if !std::ptr::eq(inputs.tail, own) {
            copy_rows(inputs.tail, own, before, stride, (first, count));
        }
    }
}

/// Copies some channels of `rows` rows.
///
/// # Safety
/// Both have `rows` rows of `stride` elements, and do not overlap.
#[inline(always)]
unsafe fn copy_rows(
    from: *const f32,
    to: *mut f32,
    rows: usize,
    stride: usize,
    (first, count): (usize, usize),
) {
    for row in 0..rows {
        let at = row * stride + first;
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), count) };
    }
}

/// Computes 16 channels of one row, and keeps their inputs.
///
/// # Safety
/// As for [`convolve`].
#[inline(always)]
unsafe fn output<S: Simd>(
    job: &ConvolutionJob<'_>,
    inputs: &ConvolutionInputs,
    (row, at): (usize, usize),
    channel: usize,
) {
    let (stride, taps) = (job.shape.channel_stride(), job.shape.taps);
    let lanes = (job.shape.channels - channel.min(job.shape.channels)).min(LANES);
    // SAFETY: the caller's contract. Token `at − back` is in the block, or among the `taps − 1` before it.
    unsafe {
        let from = job.rows.add(row * job.stride + channel);
        let mut input = part::<S>(from.add(job.input), lanes);
        if let Some(factor) = job.input_factor {
            input = S::mul(part::<S>(from.add(factor), lanes), input);
        }
        S::store(inputs.block.add(at * stride + channel), input);
        let mut sum = match job.bias.is_empty() {
            true => S::splat(0.0),
            false => S::load(job.bias.as_ptr().add(channel)),
        };
        for tap in 0..taps {
            let back = taps - 1 - tap;
            let kept = match at >= back {
                true => inputs.block.cast_const().add((at - back) * stride + channel),
                false => inputs.tail.add((taps - 1 + at - back) * stride + channel),
            };
            sum = S::fma(S::load(job.weight.as_ptr().add(tap * stride + channel)), S::load(kept), sum);
        }
        if job.silu {
            sum = activation::sigmoid_times::<S>(sum, sum);
        }
        if let Some(factor) = job.output_factor {
            sum = S::mul(part::<S>(from.add(factor), lanes), sum);
        }
        let out = job.out.add(row * job.shape.channels + channel);
        if lanes == LANES {
            S::store(out, sum);
        } else {
            std::ptr::copy_nonoverlapping(simd::lanes::<S>(sum).as_ptr(), out, lanes);
        }
    }
}

/// Loads the first `lanes` lanes. The others are zero.
///
/// # Safety
/// As for [`Simd`]. `lanes` elements exist.
#[inline(always)]
unsafe fn part<S: Simd>(from: *const f32, lanes: usize) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        match lanes {
            LANES => S::load(from),
            _ => simd::load_part::<S>(std::slice::from_raw_parts(from, lanes), 0.0),
        }
    }
}
