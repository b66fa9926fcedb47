//! exp, ln, sin and cos implemented from additions and multiplications alone, so that no bit depends on the system's
//! math library.
//! Must not know: which code uses them.

use crate::simd::{EXP_HIGH, EXP_LOW, EXP_POLY, LN2_HIGH, LN2_LOW, ROUND, scale_by_power};

/// Returns eˣ for one f32, with the same bits on every instruction set. The error is below 2 units in the last place.
/// The result is zero below −87.33654 (where it would be denormal) and infinite above 88.72283.
pub fn exp_f32(x: f32) -> f32 {
    let bounded = if x.is_nan() { 0.0 } else { x.clamp(EXP_LOW, EXP_HIGH) };
    let t = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    let r = (bounded - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = EXP_POLY[0];
    for &coefficient in &EXP_POLY[1..] {
        p = p * r + coefficient;
    }
    scale_by_power(r * r * p + r + 1.0, t, x)
}

/// Returns `1 / (1 + e^−x)` for one f32, with the same bits on every instruction set.
pub fn sigmoid_f32(x: f32) -> f32 {
    1.0 / (1.0 + exp_f32(-x))
}

/// Returns `ln(1 + eˣ)` for one f32, with the same bits on every instruction set. The error is below 4 units in the last
/// place.
pub fn softplus_f32(x: f32) -> f32 {
    let e = f64::from(exp_f32(-x.abs()));
    // ln(1 + e) = 2·artanh(s), s = e/(2 + e) ≤ 1/3: the term in s¹⁹ is below 1e-10 of the sum.
    let s = e / (2.0 + e);
    let square = s * s;
    let mut sum = 0.0;
    for i in (1..=17).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(i);
    }
    // This order of operands preserves a NaN.
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + (2.0 * s * sum) as f32
}

/// ln 2 in two parts (fdlibm). The first part has 33 bits.
const LN2_HIGH_F64: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW_F64: f64 = 1.908_214_929_270_587_7e-10;

/// Returns eˣ for one f64. The relative error is below 1e-15 for |x| ≤ 700. Saturates to zero and infinity beyond the
/// range.
pub fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    if x < -708.0 {
        return 0.0;
    }
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - n * LN2_HIGH_F64) - n * LN2_LOW_F64;
    // Taylor to the 14th power: |r| ≤ 0.347, so the next term is below 1e-19.
    let mut sum = 1.0;
    for i in (1..=14).rev() {
        sum = 1.0 + sum * r / f64::from(i);
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// Returns the natural logarithm of one f64. The relative error is below 1e-15. Denormals count as zero.
pub fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x < f64::MIN_POSITIVE {
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return x;
    }
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2·artanh(s), s = (m−1)/(m+1), |s| ≤ 0.172: the term in s²³ is below 1e-18.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for i in (1..=21).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(i);
    }
    let exponent = exponent as f64;
    exponent * LN2_HIGH_F64 + (2.0 * s * sum + exponent * LN2_LOW_F64)
}

/// Returns `base` to the power of `exponent`, for a positive base.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

/// π/2 in three parts (fdlibm). The first two have 33 bits, so that their products with n < 2²⁰ are exact.
const HALF_PI: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];

/// Returns (sin x, cos x). The absolute error is below 1e-15 for |x| ≤ 1.6 million radians.
pub fn sin_cos(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2];
    let square = r * r;
    // Taylor: |r| ≤ π/4, so the first omitted terms are below 1e-18.
    let mut sin = 1.0;
    let mut cos = 1.0;
    for i in (1..=9).rev() {
        let i = f64::from(i);
        sin = 1.0 - sin * square / (2.0 * i * (2.0 * i + 1.0));
        cos = 1.0 - cos * square / ((2.0 * i - 1.0) * 2.0 * i);
    }
    let sin = sin * r;
    match (n as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_of_f32_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        let mut x = -88.0_f32;
        while x < 88.7 {
            let (got, want) = (f64::from(exp_f32(x)), f64::from(x).exp());
            if x >= EXP_LOW {
                let unit = f64::from(f32::EPSILON) * 2.0_f64.powf(want.log2().floor());
                worst = worst.max((got - want).abs() / unit);
            } else {
                assert_eq!(got, 0.0);
            }
            x += 0.001_37;
        }
        assert!(worst < 2.0, "{worst} units in the last place");
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(100.0), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
    }

    #[test]
    fn softplus_and_sigmoid_are_within_a_few_units_in_the_last_place() {
        let mut x = -87.0_f32;
        while x < 87.0 {
            let wide = f64::from(x);
            for (got, want) in
                [(softplus_f32(x), wide.exp().ln_1p()), (sigmoid_f32(x), 1.0 / (1.0 + (-wide).exp()))]
            {
                let error = (f64::from(got) - want).abs() / want;
                assert!(error < 4.0 * f64::from(f32::EPSILON), "{x}: {got}, expected {want}");
            }
            x += 0.001_37;
        }
        assert_eq!((softplus_f32(200.0), softplus_f32(-200.0)), (200.0, 0.0));
        assert_eq!((sigmoid_f32(200.0), sigmoid_f32(-200.0)), (1.0, 0.0));
        assert!(softplus_f32(f32::NAN).is_nan() && sigmoid_f32(f32::NAN).is_nan());
    }

    #[test]
    fn the_f64_functions_agree_with_the_systems() {
        for i in 0..200_000 {
            let x = f64::from(i) * 0.007 - 700.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-14 || x > 700.0, "exp {x}");
            let y = (f64::from(i) + 0.5) * 0.37;
            assert!((ln(y) - y.ln()).abs() < 1e-15 * y.ln().abs().max(1.0) * 4.0, "ln {y}");
            let z = f64::from(i) * 7.31 - 1000.0;
            let (sin, cos) = sin_cos(z);
            assert!((sin - z.sin()).abs() < 2e-15 && (cos - z.cos()).abs() < 2e-15, "sin {z}");
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert_eq!((ln(1.0), ln(0.0), exp(0.0)), (0.0, f64::NEG_INFINITY, 1.0));
        assert!((pow(10_000.0, -0.25) - 0.1).abs() < 1e-16);
    }
}
