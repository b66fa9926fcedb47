//! Repacks row-major weights into panels of 16 outputs at load.
//! Must not know: threads, or how a panel is multiplied. `packed` describes the layout.

use headrace_quant::{BlockScales, BlockType, codes, layout, sub_scales};

use crate::formats::with_format;
use crate::packed::{Codes, Packed};
use crate::shapes::{GROUP, LANES, LINE};
use crate::weight_type::{Part, WeightType};

/// Elements of a row that are transposed at a time. 16 rows of this length stay in the first-level cache.
const PACK_BLOCK: usize = 64;
/// Weights in the longest block.
const LONGEST_BLOCK: usize = 256;

/// Packs panel `panel` of `parts` into zeroed memory. All parts are stored as `weight_type` and have `k` inputs.
pub(crate) fn panel(weight_type: WeightType, parts: &[Part<'_>], k: usize, panel: usize, out: &mut [u8]) {
    match weight_type {
        WeightType::F32 => dense::<4>(parts, k, panel, out, |i, lane| i * LANES + lane),
        WeightType::F16 => dense::<2>(parts, k, panel, out, |i, lane| i * LANES + lane),
        WeightType::Bf16 => dense::<2>(parts, k, panel, out, |i, lane| (i / 2 * LANES + lane) * 2 + i % 2),
        WeightType::Block(kind) => with_format!(kind, F => blocks::<F>(parts, k, panel, out)),
    }
}

/// Packs elements of `B` bytes. `place(i, lane)` returns the panel index of input `i` of a lane.
fn dense<const B: usize>(
    parts: &[Part<'_>],
    k: usize,
    panel: usize,
    out: &mut [u8],
    place: impl Fn(usize, usize) -> usize,
) {
    let (out, _) = out.as_chunks_mut::<B>();
    for block in (0..k).step_by(PACK_BLOCK) {
        let end = (block + PACK_BLOCK).min(k);
        for lane in 0..LANES {
            let Some(row) = row_of(parts, panel * LANES + lane, k * B) else { continue };
            for (i, element) in (block..end).zip(row.as_chunks::<B>().0.iter().skip(block)) {
                if let Some(target) = out.get_mut(place(i, lane)) {
                    *target = *element;
                }
            }
        }
    }
}

fn blocks<F: Packed>(parts: &[Part<'_>], k: usize, panel: usize, out: &mut [u8]) {
    let Some(row_bytes) = F::KIND.row_bytes(k) else { return };
    let per_span = F::SPAN / F::KIND.block_weights();
    let mut unpacked = [0_u8; LONGEST_BLOCK];
    let mut scales = BlockScales::default();
    for lane in 0..LANES {
        let Some(row) = row_of(parts, panel * LANES + lane, row_bytes) else { continue };
        for (index, block) in row.chunks_exact(F::KIND.block_bytes()).enumerate() {
            let Some(span) = out.get_mut(index / per_span * F::BYTES..) else { continue };
            let Some(unpacked) = unpacked.get_mut(..F::KIND.block_weights()) else { continue };
            // Cannot fail: `block` is a whole block, and there is room for its codes.
            let _ = codes(F::KIND, block, unpacked);
            let _ = sub_scales(F::KIND, block, &mut scales);
            put_scales(F::KIND, span, (index % per_span, per_span), lane, &scales);
            let groups = F::KIND.block_weights() / GROUP;
            if F::KIND == BlockType::Q3K {
                // Three bits around 4 become four bits around 8.
                unpacked.iter_mut().for_each(|code| *code += 4);
            }
            for (group, codes) in unpacked.chunks_exact(GROUP).enumerate() {
                let group = index % per_span * groups + group;
                if let Some(at) = span.get_mut(F::HEAD + group * F::CODES.group_bytes()..) {
                    put_codes(F::CODES, at, lane, codes);
                }
            }
        }
    }
}

/// Writes the scales of one block: the first number of `block` is its index in its span, the second the number of blocks
/// in a span.
fn put_scales(
    kind: BlockType,
    span: &mut [u8],
    (block, per_span): (usize, usize),
    lane: usize,
    scales: &BlockScales,
) {
    let mut put_half = |index: usize, bits: u16| {
        if let Some(target) = span.as_chunks_mut::<2>().0.get_mut(index * LANES + lane) {
            *target = bits.to_le_bytes();
        }
    };
    match kind {
        BlockType::Mxfp4 => put_half(block, (layout::mxfp4_scale(scales.e8m0).to_bits() >> 16) as u16),
        BlockType::Q4_1 | BlockType::Q5_1 => {
            put_half(block, scales.d);
            put_half(2 + block, scales.dmin);
        }
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Iq4Nl => put_half(block, scales.d),
        BlockType::F8G32 | BlockType::F8G128 => {
            if let Some(target) = span.as_chunks_mut::<4>().0.get_mut(block * LANES + lane) {
                *target = layout::f8_scale(scales).to_le_bytes();
            }
        }
        BlockType::W4F16G32 | BlockType::W4F16G128 | BlockType::W4Bf16G32 | BlockType::W4Bf16G128 => {
            put_half(block, scales.d);
            if let Some(target) = span.get_mut((2 * per_span + block) * LANES + lane) {
                *target = scales.mins[0];
            }
        }
        BlockType::Q3K | BlockType::Q4K | BlockType::Q5K | BlockType::Q6K | BlockType::Iq4Xs => {
            put_half(0, scales.d);
            put_half(1, scales.dmin);
            let small = scales.scales.iter().map(|scale| scale.cast_unsigned()).take(scales.count);
            let mins = if kind == BlockType::Iq4Xs { 0 } else { 16 - scales.count };
            let all = small.chain(scales.mins.iter().copied().take(mins));
            for (target, value) in span.iter_mut().skip(4 * LANES + lane).step_by(LANES).zip(all) {
                *target = value;
            }
        }
        BlockType::Q2K => {
            put_half(0, scales.d);
            put_half(1, scales.dmin);
            for (piece, (&scale, &min)) in scales.scales.iter().zip(&scales.mins).enumerate() {
                if let Some(target) = span.get_mut(4 * LANES + piece / 4 * LINE + 4 * lane + piece % 4) {
                    *target = scale.cast_unsigned() & 15 | min << 4;
                }
            }
        }
    }
}

/// Writes the codes of one group of one output.
fn put_codes(kind: Codes, at: &mut [u8], lane: usize, codes: &[u8]) {
    for (i, &code) in codes.iter().enumerate() {
        let (half, step, byte) = (i / 16, i % 16 / 4, 4 * lane + i % 4);
        let line = 4 * half + step;
        let mut or = |index: usize, bits: u8| {
            if let Some(target) = at.get_mut(index) {
                *target |= bits;
            }
        };
        if kind == Codes::Bytes {
            or(line * LINE + byte, code);
            continue;
        }
        if kind != Codes::Pairs {
            or(kind.plane_bytes() + step * LINE + byte, (code & 15) << (4 * half));
        }
        match kind {
            Codes::NibblesAndBit => or(line * 8 + byte / 8, (code >> 4 & 1) << (byte % 8)),
            Codes::NibblesAndPair => or(half * LINE + byte, (code >> 4 & 3) << (2 * step)),
            Codes::Pairs => or(half * LINE + byte, (code & 3) << (2 * step)),
            Codes::Bytes | Codes::Nibbles => {}
        }
    }
}

/// Returns the bytes of an output row.
fn row_of<'a>(parts: &[Part<'a>], mut row: usize, row_bytes: usize) -> Option<&'a [u8]> {
    for part in parts {
        if row < part.rows {
            return part.bytes.get(row * row_bytes..(row + 1) * row_bytes);
        }
        row -= part.rows;
    }
    None
}
