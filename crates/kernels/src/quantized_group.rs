//! Quantizes 32 activations to integers. Plain Rust: the reference for every instruction set.
//! Must not know: lanes, weights, or the group's position in its row.

use crate::shapes::GROUP;

/// A group with a smaller largest magnitude counts as zero, because its reciprocal would overflow f32.
const SMALLEST: f32 = 1e-30;

/// A group of 32 activations as integers: `x ≈ scale · code`, with codes in −127..=127.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedGroup {
    pub(crate) codes: [i8; GROUP],
    /// NaN if an activation is not finite, so that the products are NaN too.
    pub(crate) scale: f32,
    /// The sums of the first 16 codes and of the last 16.
    pub(crate) sums: [i32; 2],
}

/// Returns the scale of a group with this largest magnitude, and the scale's reciprocal. Both are zero if the group
/// counts as zero.
#[inline(always)]
pub(crate) fn scale_of(greatest: f32) -> (f32, f32) {
    if greatest < SMALLEST { (0.0, 0.0) } else { (greatest / 127.0, 127.0 / greatest) }
}

/// Quantizes a group, rounding to nearest with ties to even.
#[inline(always)]
pub(crate) fn quantize_group(x: &[f32; GROUP]) -> QuantizedGroup {
    let mut greatest = 0.0_f32;
    let mut finite = true;
    for &value in x {
        finite &= value.is_finite();
        greatest = if value.abs() > greatest { value.abs() } else { greatest };
    }
    if !finite {
        return QuantizedGroup { codes: [0; GROUP], scale: f32::NAN, sums: [0; 2] };
    }
    let (scale, inverse) = scale_of(greatest);
    let codes = x.map(|value| (value * inverse).round_ties_even() as i8);
    let sum = |half: &[i8]| half.iter().map(|&code| i32::from(code)).sum();
    QuantizedGroup { codes, scale, sums: [sum(&codes[..GROUP / 2]), sum(&codes[GROUP / 2..])] }
}
