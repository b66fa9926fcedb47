//! Widens quantized weights to f32, one panel at a time, for products in compute mode `exact`, for those with 8-bit
//! floats in both modes, and for token embeddings.
//! Must not know: threads. The values equal ggml's, bit for bit.

use crate::gemm::{BLOCK_K, Product};
use crate::packed::Format;
use crate::section::Section;
use crate::shapes::{GROUP, LANES, MAX_PANELS, group, group_count};
use crate::simd::Simd;
use crate::simd_int::Ints;
use crate::tile::{self, Ahead, Tile};
use crate::tiles::{IntTiles, Tiles};

/// Inputs in the widest span of any format.
const LONGEST_SPAN: usize = 256;

/// Widens `spans` spans into `[inputs][16]` f32.
///
/// # Safety
/// As for [`Ints`]. `panel` points to `spans` spans of `F`, and `out` has room for their values.
#[inline(always)]
unsafe fn widen<N: Ints, F: Format>(panel: *const u8, spans: usize, out: *mut f32) {
    macro_rules! line {
        ($half:literal, $step:literal, $span:ident, $group:ident, $scale:ident, $offset:ident, $to:ident) => {
            let codes = F::line::<N, $half, $step>($span, $group);
            line!(@ $half, $step, codes, $scale, $offset, $to, [0 1 2 3]);
        };
        (@ $half:literal, $step:literal, $codes:ident, $scale:ident, $offset:ident, $to:ident, [$($byte:literal)*]) => {$(
            let zero = N::splat(F::ZERO.map_or(0, |bits| -(1 << bits)));
            let code = N::byte::<$byte>($codes);
            let value = if F::FLOATS { N::e4m3(code) } else { N::to_f32(N::add(code, zero)) };
            let weight = N::F::mul(value, $scale);
            let weight = if F::OFFSET { N::F::add(weight, $offset) } else { weight };
            N::F::store($to.add((16 * $half + 4 * $step + $byte) * LANES), weight);
        )*};
    }
    // SAFETY: the caller's contract; group < SPAN / 32, and each line writes its own 4 × 16 outputs.
    unsafe {
        for index in 0..spans {
            let span = panel.add(index * F::BYTES);
            for group in 0..F::SPAN / GROUP {
                let to = out.add((index * F::SPAN + group * GROUP) * LANES);
                let offset = F::offset::<N, 0>(span, group);
                let scale = F::scale::<N, 0>(span, group);
                line!(0, 0, span, group, scale, offset, to);
                line!(0, 1, span, group, scale, offset, to);
                line!(0, 2, span, group, scale, offset, to);
                line!(0, 3, span, group, scale, offset, to);
                let scale = if F::HALVES { F::scale::<N, 1>(span, group) } else { scale };
                let offset = if F::HALVES { F::offset::<N, 1>(span, group) } else { offset };
                line!(1, 0, span, group, scale, offset, to);
                line!(1, 1, span, group, scale, offset, to);
                line!(1, 2, span, group, scale, offset, to);
                line!(1, 3, span, group, scale, offset, to);
            }
        }
    }
}

/// Computes `count` panels of columns of every row, starting at panel `first`, as `gemm::columns` does for dense
/// weights.
///
/// # Safety
/// As for `gemm::columns`. The section holds `F`.
#[inline(always)]
pub(crate) unsafe fn columns<N: IntTiles, F: Format>(product: &Product<'_>, first: usize, count: usize) {
    let mut widened = [std::mem::MaybeUninit::<f32>::uninit(); BLOCK_K * LANES];
    let section = product.section;
    let (m, k) = (product.m, section.k());
    let groups = group_count(m, N::F::ROWS);
    for panel in first..first + count {
        for from in (0..k).step_by(BLOCK_K) {
            let depth = BLOCK_K.min(k - from);
            // SAFETY: whole spans cover the inputs up to `k`. They are at most BLOCK_K inputs here, because spans
            // divide BLOCK_K. Columns `panel·16 ..` of rows `row ..` lie inside `out`. `x` holds a group at
            // `row · k`. The bias is padded.
            unsafe {
                let at = section.panel(panel).add(from / F::SPAN * F::BYTES);
                widen::<N, F>(at, depth.div_ceil(F::SPAN), widened.as_mut_ptr().cast());
                let mut panels = [std::ptr::null(); MAX_PANELS];
                panels[0] = widened.as_ptr().cast();
                let bias = section.bias().filter(|_| from == 0);
                for index in 0..groups {
                    let (row, rows) = group(m, groups, index);
                    let work = Tile {
                        k: depth,
                        x: product.x.add(row * k + from * rows),
                        panels,
                        out: product.out.add(row * product.out_stride + panel * LANES),
                        out_stride: product.out_stride,
                        bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(panel * LANES)),
                        accumulate: product.accumulate || from > 0,
                        valid: (section.n() - panel * LANES).min(LANES),
                        ahead: Ahead::always(0),
                    };
                    N::F::tile::<tile::F32>(rows, 1, &work);
                }
            }
        }
    }
}

/// Writes row `row` of a section of `F` to `out`, widened.
///
/// # Safety
/// As for [`Ints`]. The section holds `F` and has the row. `out` is as long as the section's inputs.
#[inline(always)]
pub(crate) unsafe fn row<N: Ints, F: Format>(section: &Section, row: usize, out: &mut [f32]) {
    let mut widened = [0.0_f32; LONGEST_SPAN * LANES];
    for (index, part) in out.chunks_mut(F::SPAN).enumerate() {
        // SAFETY: the section has a span for every started piece of `out`, and `LONGEST_SPAN` bounds every span.
        unsafe { widen::<N, F>(section.panel(row / LANES).add(index * F::BYTES), 1, widened.as_mut_ptr()) };
        for (value, &weight) in part.iter_mut().zip(widened.iter().skip(row % LANES).step_by(LANES)) {
            *value = weight;
        }
    }
}
