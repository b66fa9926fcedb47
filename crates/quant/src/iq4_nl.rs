//! Quantizes weights to IQ4_NL blocks. Must not know: the other formats.

use half::f16;

use crate::search::{VANISHING, dot, each, keep_better, product, signed_peak, within};
use crate::{IQ4_NL_VALUES, layout};

/// Half-steps from −128 to 127.5. The midpoints between two adjacent values are all multiples of one half.
const HALF_STEPS: usize = 512;

/// The nearest code for each half-step. At a midpoint, the upper code.
const CODES: [u8; HALF_STEPS] = nearest_codes();

/// The value of the nearest code for each half-step.
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
        // In half-steps, the midpoint of two values is their sum.
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

/// The value that each try maps the weight of largest magnitude to: near either end of the table.
const TRIES: [f32; 16] = [
    -120.0, -122.0, -124.0, -126.0, -128.0, -130.0, -132.0, -134.0, 106.0, 108.0, 110.0, 112.0, 114.0, 116.0,
    118.0, 120.0,
];

/// Quantizes an IQ4_NL block. Returns `false` if the weights overflow its scale.
///
/// Searches for the scale as ggml's quantizer does. Each try maps the weight of largest magnitude to a value near
/// either end of the table, then fits the scale by least squares. Larger weights count more (`rms + |x|`).
pub(crate) fn iq4_nl(x: &[f32; 32], out: &mut [u8; 18]) -> bool {
    let peak = signed_peak(x);
    if peak.abs() < VANISHING {
        *out = [0; 18];
        return true;
    }
    // Weights relative to the largest one. No sum below then leaves f32's normal range, however large the weights
    // are.
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

/// Returns the table index of a value in units of the scale. The bounds keep it below 512.
#[inline(always)]
fn half_step(value: f32) -> usize {
    within(value * 2.0 + 256.0, 0.0, 511.0) as usize & (HALF_STEPS - 1)
}
