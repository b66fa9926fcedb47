//! What 32 activations become as integers. Plain Rust: the reference for every instruction set.
//! Must not know: lanes, weights, or where in a row a group stands.

use crate::shapes::GROUP;

/// Below this a group counts as zero: its reciprocal would leave f32.
const SMALLEST: f32 = 1e-30;

/// A group of 32 activations as integers: `x ≈ scale · code`, codes −127..=127.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedGroup {
    pub(crate) codes: [i8; GROUP],
    /// NaN where an activation is not finite, so that the products are too.
    pub(crate) scale: f32,
    /// Sums of the first and the last 16 codes.
    pub(crate) sums: [i32; 2],
}

/// The scale that codes of a group with this greatest magnitude have, and its reciprocal.
#[inline(always)]
pub(crate) fn scale_of(greatest: f32) -> (f32, f32) {
    if greatest < SMALLEST { (0.0, 0.0) } else { (greatest / 127.0, 127.0 / greatest) }
}

/// A group as integers: round to nearest, ties to even.
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
