//! The recurrence of one head over the rows of a span: the gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv
//! 2412.06464) and Mamba2 (Dao and Gu 2024, arXiv 2405.21060). Must not know: threads, or architectures.
//!
//! With S the state at the block's start, and a_t the sum of the logarithms of the decays from there to token t:
//! - delta rule: `u_t = β_t (v_t − e^(a_t) Sᵀk_t − Σ_{i<t} e^(a_t − a_i) (k_i·k_t) u_i)`
//! - Mamba2: `u_t = Δ_t v_t`
//! - both: `o_t = e^(a_t) Sᵀq_t + Σ_{i≤t} e^(a_t − a_i) (k_i·q_t) u_i`, to which Mamba2 adds `D v_t`
//! - after the 16 tokens of a block: `S' = e^(a_15) S + Σ_i e^(a_15 − a_i) k_i u_iᵀ`
//!
//! The decays are at most 1, so no exponent is positive.

use headrace_kv_layout::BLOCK_TOKENS;

use crate::math::{sigmoid_f32, softplus_f32};
use crate::rows;
use crate::shapes::LANES;
use crate::simd::{self, Simd};
use crate::states::plan::PlannedSpan;
use crate::states::product::{StateProduct, multiply};
use crate::states::sharing::HeadSharing;
use crate::states::store::{HeadRows, StateShape, StateStore};
use crate::tiles::Tiles;

// The tokens of a block are the lanes of one vector.
const _: () = assert!(BLOCK_TOKENS == LANES);

/// Added to the sum of squares of a query or key before it is normalized.
const UNIT_EPS: f32 = 1e-6;

/// What a token adds to the state, and what becomes of an output.
#[derive(Clone, Copy)]
pub(crate) enum HeadRule<'a> {
    /// The gated delta rule. Queries and keys are normalized to length 1, and queries divided by the root of their width.
    /// Outputs are normalized by head, then multiplied by `z·σ(z)`.
    Delta {
        /// First of the logits of β in a row of projections, one for each head.
        beta: usize,
        /// First element of z in a row of projections.
        gate: usize,
        /// Factors of the norm, as many as a value has elements.
        norm: &'a [f32],
        eps: f32,
    },
    /// Mamba2.
    Sum {
        /// For each head, D.
        skips: &'a [f32],
        /// Bounds of Δ.
        steps: (f32, f32),
    },
}

/// A recurrence over the rows of a step.
pub(crate) struct RecurrenceJob<'a> {
    pub(crate) store: &'a StateStore,
    pub(crate) layer: usize,
    pub(crate) shape: StateShape,
    pub(crate) rule: HeadRule<'a>,
    /// Rows of queries, keys and values, `mixed_stride` elements apart.
    pub(crate) mixed: *const f32,
    pub(crate) mixed_stride: usize,
    /// First element of the queries, keys and values in such a row.
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) value: usize,
    /// The heads that share a query and a key.
    pub(crate) sharing: HeadSharing,
    /// Rows of projections, `raw_stride` elements apart.
    pub(crate) raw: *const f32,
    pub(crate) raw_stride: usize,
    /// First of the step sizes in such a row, one for each head, before the addend and softplus.
    pub(crate) step: usize,
    /// For each head, the addend of the step size.
    pub(crate) step_bias: &'a [f32],
    /// For each head, the logarithm of the decay for each unit of the step size. Negative.
    pub(crate) rates: &'a [f32],
    /// `[rows][heads·value_dim]`.
    pub(crate) out: *mut f32,
}

/// Returns the f32 elements of scratch that one worker needs.
pub(crate) fn scratch_floats(shape: StateShape) -> usize {
    let rows = 2 * BLOCK_TOKENS * (shape.key_dim + shape.value_stride() + BLOCK_TOKENS);
    rows + BLOCK_TOKENS * shape.key_dim + 2 * shape.value_stride()
}

/// The scratch memory of one head.
struct HeadScratch {
    /// `[32][key_dim]`: the keys of the rows, then their queries. Mamba2 has no keys here.
    inputs: *mut f32,
    /// `[32][value_stride]`: their products with the state.
    products: *mut f32,
    /// `[32][16]`: their products with the keys of the block.
    scores: *mut f32,
    /// `[key_dim][16]`: the keys of the block, decayed to its end.
    decayed: *mut f32,
    /// `[value_stride]`: an output, and the same normalized.
    output: *mut f32,
    normed: *mut f32,
}

impl HeadScratch {
    fn cut(memory: &mut [f32], shape: StateShape) -> HeadScratch {
        let inputs = memory.as_mut_ptr();
        let products = inputs.wrapping_add(2 * BLOCK_TOKENS * shape.key_dim);
        let scores = products.wrapping_add(2 * BLOCK_TOKENS * shape.value_stride());
        let decayed = scores.wrapping_add(2 * BLOCK_TOKENS * BLOCK_TOKENS);
        let output = decayed.wrapping_add(BLOCK_TOKENS * shape.key_dim);
        let normed = output.wrapping_add(shape.value_stride());
        HeadScratch { inputs, products, scores, decayed, output, normed }
    }
}

/// The state of a head while a span is computed.
struct HeadState {
    /// The matrix at the start of the current block, `[key_dim][value_stride]`.
    matrix: *const f32,
    rows: HeadRows,
}

/// Rows of a span that belong to one block.
#[derive(Clone, Copy)]
struct BlockPart {
    /// First row in the step.
    row: usize,
    /// The first row's token in the block.
    at: usize,
    count: usize,
}

/// Computes the outputs of a span for one head, and advances the head's state.
///
/// # Safety
/// As for [`Tiles`]. The job's pointers are valid for the span, whose slots exist and are used by no other span. No other
/// task computes this head of the span. `scratch` has the length [`scratch_floats`].
#[inline(always)]
pub(crate) unsafe fn advance<S: Tiles>(
    job: &RecurrenceJob<'_>,
    planned: &PlannedSpan,
    head: usize,
    scratch: &mut [f32],
) {
    let (span, slots, shape) = (planned.span, planned.span.slots, job.shape);
    let scratch = HeadScratch::cut(scratch, shape);
    let own = job.store.matrix(job.layer, slots.own, head);
    let mut state = HeadState { matrix: own, rows: job.store.head_rows(job.layer, slots.own, head) };
    // SAFETY: the caller's contract. Slots that differ do not overlap.
    unsafe {
        if span.start == 0 {
            std::ptr::write_bytes(own, 0, shape.matrix_floats());
        } else if slots.from != slots.own {
            state.matrix = job.store.matrix(job.layer, slots.from, head);
            if !span.start.is_multiple_of(BLOCK_TOKENS) {
                copy_head_rows(job.store.head_rows(job.layer, slots.from, head), state.rows, shape);
            }
        }
        let mut done = 0;
        while done < span.count {
            let at = (span.start + done) % BLOCK_TOKENS;
            let count = (BLOCK_TOKENS - at).min(span.count - done);
            compute_part::<S>(
                job,
                &state,
                BlockPart { row: planned.first_row + done, at, count },
                head,
                &scratch,
            );
            done += count;
            if at + count < BLOCK_TOKENS {
                break;
            }
            fold::<S>(&state, shape, own, &scratch);
            state.matrix = own;
            if let Some(copy) = slots.copy.filter(|copy| copy.position == span.start + done) {
                let to = job.store.matrix(job.layer, copy.slot, head);
                std::ptr::copy_nonoverlapping(own, to, shape.matrix_floats());
            }
        }
        if !std::ptr::eq(state.matrix, own) {
            std::ptr::copy_nonoverlapping(state.matrix, own, shape.matrix_floats());
        }
    }
}

/// Copies the rows of a head to another slot.
///
/// # Safety
/// Both exist and do not overlap.
#[inline(always)]
unsafe fn copy_head_rows(from: HeadRows, to: HeadRows, shape: StateShape) {
    // SAFETY: the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(from.keys, to.keys, BLOCK_TOKENS * shape.key_dim);
        std::ptr::copy_nonoverlapping(from.values, to.values, BLOCK_TOKENS * shape.value_stride());
        std::ptr::copy_nonoverlapping(from.sums, to.sums, BLOCK_TOKENS);
    }
}

/// Computes the outputs of rows of one block, and keeps the rows.
///
/// # Safety
/// As for [`advance`].
#[inline(always)]
unsafe fn compute_part<S: Tiles>(
    job: &RecurrenceJob<'_>,
    state: &HeadState,
    part: BlockPart,
    head: usize,
    scratch: &HeadScratch,
) {
    let (key_dim, value_stride) = (job.shape.key_dim, job.shape.value_stride());
    let is_delta = matches!(job.rule, HeadRule::Delta { .. });
    // SAFETY: the caller's contract. The scratch has room for 32 inputs.
    unsafe {
        // The delta rule multiplies keys with the state too.
        let first_query = if is_delta { part.count } else { 0 };
        let shared = job.sharing.key_of(head) * key_dim;
        for index in 0..part.count {
            let row = job.mixed.add((part.row + index) * job.mixed_stride);
            let key = std::slice::from_raw_parts(row.add(job.key + shared), key_dim);
            let query = std::slice::from_raw_parts(row.add(job.query + shared), key_dim);
            let (key_factor, query_factor) = match is_delta {
                true => (inverse_length::<S>(key), inverse_length::<S>(query) / (key_dim as f32).sqrt()),
                false => (1.0, 1.0),
            };
            let kept_query = scratch.inputs.add((first_query + index) * key_dim);
            for (element, (&k, &q)) in key.iter().zip(query).enumerate() {
                let k = k * key_factor;
                *kept_query.add(element) = q * query_factor;
                *state.rows.keys.add(element * BLOCK_TOKENS + part.at + index) = k;
                if is_delta {
                    *scratch.inputs.add(index * key_dim + element) = k;
                }
            }
        }
        let product = StateProduct {
            x: scratch.inputs,
            x_stride: key_dim,
            rows: first_query + part.count,
            inner: key_dim,
            w: state.matrix,
            w_stride: value_stride,
            columns: value_stride,
            before: None,
            out: scratch.products,
            out_stride: value_stride,
        };
        multiply::<S>(&product);
        let (w, out) = (state.rows.keys.cast_const(), scratch.scores);
        let sizes = (BLOCK_TOKENS, BLOCK_TOKENS, BLOCK_TOKENS);
        let (w_stride, columns, out_stride) = sizes;
        multiply::<S>(&StateProduct { w, w_stride, columns, out, out_stride, ..product });
        for index in 0..part.count {
            compute_row::<S>(job, state, part, (index, head), scratch);
        }
    }
}

/// One over the length of a vector.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn inverse_length<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller's contract.
    1.0 / (unsafe { rows::sum_of_squares::<S>(x) } + UNIT_EPS).sqrt()
}

/// Computes the output of one row, and keeps what it adds to the state.
///
/// # Safety
/// As for [`advance`]. The products of the part are computed, and so are the rows before this one.
#[inline(always)]
unsafe fn compute_row<S: Tiles>(
    job: &RecurrenceJob<'_>,
    state: &HeadState,
    part: BlockPart,
    (index, head): (usize, usize),
    scratch: &HeadScratch,
) {
    let (value_dim, value_stride) = (job.shape.value_dim, job.shape.value_stride());
    let (row, at) = (part.row + index, part.at + index);
    // SAFETY: the caller's contract.
    unsafe {
        let raw = job.raw.add(row * job.raw_stride);
        let step = softplus_f32(*raw.add(job.step + head) + job.step_bias[head]);
        let step = match job.rule {
            HeadRule::Delta { .. } => step,
            HeadRule::Sum { steps: (least, most), .. } => step.clamp(least, most),
        };
        let before = if at == 0 { 0.0 } else { *state.rows.sums.add(at - 1) };
        let sum = before + job.rates[head] * step;
        *state.rows.sums.add(at) = sum;
        // The decays from each token of the block to this one. The lanes after it hold other values.
        let decays = simd::exp::<S>(S::sub(S::splat(sum), S::load(state.rows.sums)));
        let from_start = S::splat(simd::lanes::<S>(simd::exp::<S>(S::splat(sum)))[0]);
        let value = std::slice::from_raw_parts(
            job.mixed.add(row * job.mixed_stride + job.value + head * value_dim),
            value_dim,
        );
        let kept = state.rows.values.add(at * value_stride);
        let first_query = match job.rule {
            HeadRule::Delta { beta, .. } => {
                let beta = S::splat(sigmoid_f32(*raw.add(beta + head)));
                let weights = weights::<S>(scratch.scores.add(index * BLOCK_TOKENS), decays);
                let products = scratch.products.add(index * value_stride);
                for column in (0..value_stride).step_by(LANES) {
                    let seen = S::mul(from_start, S::load(products.add(column)));
                    let seen = sum_values::<S>(state, (&weights, at), (column, value_stride), seen);
                    let wanted = columns::<S>(value, column);
                    S::store(kept.add(column), S::mul(beta, S::sub(wanted, seen)));
                }
                part.count
            }
            HeadRule::Sum { .. } => {
                for column in (0..value_stride).step_by(LANES) {
                    let value = columns::<S>(value, column);
                    S::store(kept.add(column), S::mul(S::splat(step), value));
                }
                0
            }
        };
        let weights = weights::<S>(scratch.scores.add((first_query + index) * BLOCK_TOKENS), decays);
        let products = scratch.products.add((first_query + index) * value_stride);
        for column in (0..value_stride).step_by(LANES) {
            let output = S::mul(from_start, S::load(products.add(column)));
            let mut output = sum_values::<S>(state, (&weights, at + 1), (column, value_stride), output);
            if let HeadRule::Sum { skips, .. } = job.rule {
                output = S::fma(S::splat(skips[head]), columns::<S>(value, column), output);
            }
            S::store(scratch.output.add(column), output);
        }
        let width = job.shape.heads * value_dim;
        let out = std::slice::from_raw_parts_mut(job.out.add(row * width + head * value_dim), value_dim);
        let output = std::slice::from_raw_parts(scratch.output, value_dim);
        match job.rule {
            HeadRule::Delta { gate, norm, eps, .. } => {
                let normed = std::slice::from_raw_parts_mut(scratch.normed, value_dim);
                rows::rms_norm::<S>(output, norm, eps, normed);
                let gate = std::slice::from_raw_parts(raw.add(gate + head * value_dim), value_dim);
                rows::silu_mul::<S>(gate, normed, out);
            }
            HeadRule::Sum { .. } => out.copy_from_slice(output),
        }
    }
}

/// Loads 16 elements from `first` on. Those after the end are zero.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn columns<S: Simd>(value: &[f32], first: usize) -> S::V {
    let rest = value.get(first..).unwrap_or_default();
    // SAFETY: the caller's contract. 16 elements exist in the first case.
    unsafe {
        match rest.len() {
            0..LANES => simd::load_part::<S>(rest, 0.0),
            _ => S::load(rest.as_ptr()),
        }
    }
}

/// The scores of the tokens of a block, each times its decay.
///
/// # Safety
/// As for [`Simd`]. There are 16 scores.
#[inline(always)]
unsafe fn weights<S: Simd>(scores: *const f32, decays: S::V) -> [f32; BLOCK_TOKENS] {
    // SAFETY: the caller's contract.
    unsafe { simd::lanes::<S>(S::mul(decays, S::load(scores))) }
}

/// Adds the weighted values of the first `count` tokens of the block to `sum`, in ascending order.
///
/// # Safety
/// As for [`Simd`]. The rows have these values.
#[inline(always)]
unsafe fn sum_values<S: Simd>(
    state: &HeadState,
    (weights, count): (&[f32; BLOCK_TOKENS], usize),
    (column, value_stride): (usize, usize),
    mut sum: S::V,
) -> S::V {
    for (token, &weight) in weights.iter().enumerate().take(count) {
        // SAFETY: the caller's contract.
        unsafe {
            let value = S::load(state.rows.values.add(token * value_stride + column));
            sum = S::fma(S::splat(weight), value, sum);
        }
    }
    sum
}

/// Moves the state from the start of a block to its end, into `out`.
///
/// # Safety
/// As for [`advance`]. All 16 rows of the block are kept.
#[inline(always)]
unsafe fn fold<S: Tiles>(state: &HeadState, shape: StateShape, out: *mut f32, scratch: &HeadScratch) {
    // SAFETY: the caller's contract.
    unsafe {
        let last = *state.rows.sums.add(BLOCK_TOKENS - 1);
        let decays = simd::exp::<S>(S::sub(S::splat(last), S::load(state.rows.sums)));
        for element in 0..shape.key_dim {
            let at = element * BLOCK_TOKENS;
            S::store(scratch.decayed.add(at), S::mul(decays, S::load(state.rows.keys.add(at))));
        }
        let from_start = simd::lanes::<S>(simd::exp::<S>(S::splat(last)))[0];
        multiply::<S>(&StateProduct {
            x: scratch.decayed,
            x_stride: BLOCK_TOKENS,
            rows: shape.key_dim,
            inner: BLOCK_TOKENS,
            w: state.rows.values,
            w_stride: shape.value_stride(),
            columns: shape.value_stride(),
            before: Some((state.matrix, from_start)),
            out,
            out_stride: shape.value_stride(),
        });
    }
}
