//! Quantizes f32 weights to blocks. Must not know: files or activations. The importance of a weight depends only on
//! its own size.

use half::f16;

use crate::layout::{self, mxfp4_scale};
use crate::search::{bounds, magnitude, signed_peak};
use crate::{BlockType, MXFP4_VALUES, QuantError, iq4_nl, k_quants};

/// Quantizes a row of weights to blocks.
///
/// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4 have the same bits as ggml's reference quantizer (its C source, without
/// fused multiply-add). Q4_K, Q5_K, Q6_K and IQ4_NL use ggml's search without an importance matrix. Their bits differ
/// from ggml's, and their root mean square error is 0.97 to 1.00 of ggml's. Q6_K and IQ4_NL weight each error by
/// `rms + |x|`. ggml uses `x²`, which favours the largest weights slightly. The bits depend on the weights alone,
/// never on the machine.
///
/// # Errors
/// Fails if `weights` is not a whole number of blocks, or if `out` does not have the length that they need. Also
/// fails for a format outside [`BlockType::QUANTIZED`], if a weight is NaN or infinite, or if a scale overflows f16.
/// `out` then holds some blocks of the row.
pub fn quantize_row(kind: BlockType, weights: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let expected =
        kind.row_bytes(weights.len()).ok_or(QuantError::RaggedRow { kind, weights: weights.len() })?;
    if out.len() != expected {
        return Err(QuantError::Length { kind, expected, found: out.len() });
    }
    match kind {
        BlockType::Q8_0 => blocks(kind, weights, out, q8_0),
        BlockType::Q4_0 => blocks(kind, weights, out, q4_0),
        BlockType::Q4_1 => blocks(kind, weights, out, q4_1),
        BlockType::Q5_0 => blocks(kind, weights, out, q5_0),
        BlockType::Q5_1 => blocks(kind, weights, out, q5_1),
        BlockType::Q4K => blocks(kind, weights, out, k_quants::q4_k),
        BlockType::Q5K => blocks(kind, weights, out, k_quants::q5_k),
        BlockType::Q6K => blocks(kind, weights, out, k_quants::q6_k),
        BlockType::Iq4Nl => blocks(kind, weights, out, iq4_nl::iq4_nl),
        BlockType::Mxfp4 => blocks(kind, weights, out, mxfp4),
        BlockType::Q2K
        | BlockType::Q3K
        | BlockType::Iq4Xs
        | BlockType::F8G32
        | BlockType::F8G128
        | BlockType::W4F16G32
        | BlockType::W4F16G128
        | BlockType::W4Bf16G32
        | BlockType::W4Bf16G128 => Err(QuantError::ReadOnly { kind }),
    }
}

/// Encodes one block after another. `encode` gets finite weights and returns `false` if they overflow its scale.
#[inline(always)]
fn blocks<const W: usize, const B: usize>(
    kind: BlockType,
    weights: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; W], &mut [u8; B]) -> bool,
) -> Result<(), QuantError> {
    for (index, (x, block)) in weights.as_chunks::<W>().0.iter().zip(out.as_chunks_mut::<B>().0).enumerate() {
        if !(all_finite(x) && encode(x, block)) {
            return Err(refusal(kind, index.saturating_mul(W), x));
        }
    }
    Ok(())
}

/// Returns why a block was not quantized. `start` is the index of the block's first weight.
#[cold]
fn refusal(kind: BlockType, start: usize, x: &[f32]) -> QuantError {
    match x.iter().position(|v| !v.is_finite()) {
        Some(at) => QuantError::NotFinite {
            position: start.saturating_add(at),
            value: x.get(at).copied().unwrap_or(f32::NAN),
        },
        None => {
            let value = x.iter().fold(0.0, |peak: f32, v| peak.max(v.abs()));
            QuantError::TooLarge { kind, position: start, value }
        }
    }
}

/// Whether no weight is NaN or infinite. Exactly those weights do not give zero when multiplied by zero.
#[inline(always)]
fn all_finite<const N: usize>(x: &[f32; N]) -> bool {
    let mut lanes = [0.0_f32; 8];
    for x in x.as_chunks::<8>().0 {
        for (lane, x) in lanes.iter_mut().zip(x) {
            *lane += x * 0.0;
        }
    }
    lanes.iter().all(|&lane| lane == 0.0)
}

/// Returns 1/d, or 0 if `d` is 0, as the reference does.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[inline(always)]
fn q8_0(x: &[f32; 32], out: &mut [u8; 34]) -> bool {
    // The largest f32 below one half. Adding it before truncation rounds to nearest with ties away from zero,
    // exactly, for every |x| < 2²². One half itself would round 0.49999997 to 1.
    const HALF: f32 = 0.5_f32.next_down();
    let d = magnitude(x) / 127.0;
    let id = inverse(d);
    let scale = f16::from_f32(d);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    for (byte, x) in out[2..].iter_mut().zip(x) {
        let value = x * id;
        *byte = ((value + HALF.copysign(value)) as i32) as u8;
    }
    scale.is_finite()
}

#[inline(always)]
fn q4_0(x: &[f32; 32], out: &mut [u8; 18]) -> bool {
    let d = signed_peak(x) / -8.0;
    let id = inverse(d);
    let scale = f16::from_f32(d);
    let codes = x.map(|x| code(x * id + 8.5, 15));
    out[..2].copy_from_slice(&scale.to_le_bytes());
    layout::store_nibbles(&codes, &mut out[2..]);
    scale.is_finite()
}

#[inline(always)]
fn q5_0(x: &[f32; 32], out: &mut [u8; 22]) -> bool {
    let d = signed_peak(x) / -16.0;
    let id = inverse(d);
    let scale = f16::from_f32(d);
    let codes = x.map(|x| code(x * id + 16.5, 31));
    out[..2].copy_from_slice(&scale.to_le_bytes());
    layout::store_five_bits(&codes, &mut out[2..]);
    scale.is_finite()
}

#[inline(always)]
fn q4_1(x: &[f32; 32], out: &mut [u8; 20]) -> bool {
    let (head, codes) = from_minimum(x, 15);
    out[..4].copy_from_slice(&head);
    layout::store_nibbles(&codes, &mut out[4..]);
    finite_pair(head)
}

#[inline(always)]
fn q5_1(x: &[f32; 32], out: &mut [u8; 24]) -> bool {
    let (head, codes) = from_minimum(x, 31);
    out[..4].copy_from_slice(&head);
    layout::store_five_bits(&codes, &mut out[4..]);
    finite_pair(head)
}

/// Returns the scale and minimum (two f16) and the codes 0 to `top` of a block that counts up from its smallest
/// weight.
#[inline(always)]
fn from_minimum(x: &[f32; 32], top: u8) -> ([u8; 4], [u8; 32]) {
    let (low, high) = bounds(x);
    // The reference stores −0 or +0, whichever comes first.
    let low = if low == 0.0 { x.iter().copied().find(|&v| v == 0.0).unwrap_or(low) } else { low };
    let d = (high - low) / f32::from(top);
    let id = inverse(d);
    let ([a, b], [c, e]) = (f16::from_f32(d).to_le_bytes(), f16::from_f32(low).to_le_bytes());
    ([a, b, c, e], x.map(|x| code((x - low) * id + 0.5, top)))
}

fn finite_pair([a, b, c, d]: [u8; 4]) -> bool {
    f16::from_le_bytes([a, b]).is_finite() && f16::from_le_bytes([c, d]).is_finite()
}

/// Truncates a value to a code of at most `top`.
#[inline(always)]
fn code(value: f32, top: u8) -> u8 {
    let code = value as i32;
    (if code < i32::from(top) { code } else { i32::from(top) }) as u8
}

fn mxfp4(x: &[f32; 32], out: &mut [u8; 17]) -> bool {
    let peak = magnitude(x);
    // The power of two that maps the largest weight to e2m1's largest exponent (2). The reference rounds the
    // logarithm to f32 first, which moves a weight just below a power of two up to it. Below 2⁻¹²⁵ the reference is
    // undefined, and 0 fits best.
    let e = if peak > 0.0 { ((f64::from(peak).log2() as f32).floor() + 125.0) as u8 } else { 0 };
    let d = mxfp4_scale(e);
    let mut errors = x.map(f32::abs);
    let mut codes = [0_u32; 32];
    for (code, value) in (0_u32..).zip(MXFP4_VALUES).skip(1) {
        let value = f32::from(value) * d;
        for ((best_error, best), x) in errors.iter_mut().zip(&mut codes).zip(x) {
            let error = (value - x).abs();
            *best = if error < *best_error { code } else { *best };
            *best_error = if error < *best_error { error } else { *best_error };
        }
    }
    out[0] = e;
    layout::store_nibbles(&codes.map(|code| code as u8), &mut out[1..]);
    true
}
