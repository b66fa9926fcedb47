//! IQ4_NL blocks from weights. Must not know the other formats.

use half::f16;

use crate::search::{VANISHING, dot, each, keep_better, product, signed_peak, within};
use crate::{IQ4_NL_VALUES, layout};

/// Half-steps from −128 to 127.5: the midpoints between two values are all multiples of one half.
const HALF_STEPS: usize = 512;

/// The nearest code (the upper one at a midpoint) of each half-step.
const CODES: [u8; HALF_STEPS] = nearest_codes();

/// The value of that code.
const VALUES: [f32; HALF_STEPS] = {
    let mut values = [0.0; HALF_STEPS];
    let mut i = 0;
    while i < HALF_STEPS {
        values[i] = IQ4_NL_VALUES[CODES[i] as usize] as f32;
        i += 1;
    }
    values
};

const fn nearest_codes() -> [u8; HALF_STEPS] {
    let mut codes = [0; HALF_STEPS];
    let mut i = 0;
    while i < HALF_STEPS {
        // In half-steps a midpoint of two values is their sum.
        let at = i as i32 - 256;
        let mut code = 0;
        while code < 15 && at >= IQ4_NL_VALUES[code] as i32 + IQ4_NL_VALUES[code + 1] as i32 {
            code += 1;
        }
        codes[i] = code as u8;
        i += 1;
    }
    codes
}

/// Where the tries take the weight of greatest magnitude: near either end of the table.
const TRIES: [f32; 16] = [
    -120.0, -122.0, -124.0, -126.0, -128.0, -130.0, -132.0, -134.0, 106.0, 108.0, 110.0, 112.0, 114.0, 116.0,
    118.0, 120.0,
];

/// An IQ4_NL block; false if the weights are beyond its scale.
///
/// The scale is searched as ggml's quantizer does: the weight of greatest magnitude is taken to somewhere near either end
/// of the table, each try fitted by least squares, larger weights counting more (`rms + |x|`).
pub(crate) fn iq4_nl(x: &[f32; 32], out: &mut [u8; 18]) -> bool {
    let peak = signed_peak(x);
    if peak.abs() < VANISHING {
        *out = [0; 18];
        return true;
    }
    // Weights as shares of the greatest: whatever its size, no sum below leaves f32's normal range.
    let unit = each(x, |x| x / peak);
    let rms = (dot(&unit, &unit) / 32.0).sqrt() as f32;
    let importance = each(&unit, |u| rms + u.abs());
    let mut best = (0.0, 0.0);
    for multiplier in TRIES {
        let values = each(&unit, |u| VALUES[half_step(u * multiplier)]);
        let weighted = product(&importance, &values);
        keep_better(&mut best, dot(&weighted, &unit), dot(&weighted, &values));
    }
    let scale = f16::from_f32(best.0 as f32 * peak);
    let step = scale.to_f32();
    let multiplier = if step == 0.0 { 0.0 } else { 1.0 / step };
    let codes = x.map(|x| CODES[half_step(x * multiplier)]);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    layout::store_nibbles(&codes, &mut out[2..]);
    scale.is_finite()
}

/// The index into the tables of a value in units of the scale: below 512, as the bounds say.
#[inline(always)]
fn half_step(value: f32) -> usize {
    within(value * 2.0 + 256.0, 0.0, 511.0) as usize & (HALF_STEPS - 1)
}
