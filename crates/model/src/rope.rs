//! Tables of the rotary angles, with the frequencies that `transformers.modeling_rope_utils` defines. Must not know:
//! how heads are rotated.

use headrace_checkpoint::{ModelConfig, Rope, RopeScaling};
use headrace_kernels::{RopeTable, math};

/// Computes the tables of a model's rotary embeddings for positions `0..positions`. A model with LongRoPE has
/// [`short_positions`] more rows before those, for sequences that use the first list of factors.
pub fn tables(config: &ModelConfig, positions: usize) -> Vec<RopeTable> {
    let short = short_positions(config, positions);
    let of = |rope: &Rope, width| match short {
        None => table(rope, width, positions),
        Some(short) => {
            let mut both = table(rope, width, short);
            // The second list of factors counts from the first position beyond the short ones.
            let long = table(rope, width, positions);
            both.cos.extend_from_slice(&long.cos);
            both.sin.extend_from_slice(&long.sin);
            both
        }
    };
    config.rotary.iter().map(|rotary| of(&rotary.rope, rotary.width)).collect()
}

/// The most positions of a sequence that uses the first list of factors of LongRoPE. `None` if the model has one list, or
/// if no sequence of up to `positions` positions uses the second one.
pub fn short_positions(config: &ModelConfig, positions: usize) -> Option<usize> {
    let original = |scaling: &RopeScaling| match scaling {
        RopeScaling::Long { original_max_positions, .. } => Some(*original_max_positions),
        _ => None,
    };
    let short = config.rotary.iter().filter_map(|rotary| original(&rotary.rope.scaling)).min();
    short.filter(|&short| positions > short)
}

/// Computes cos and sin for positions `0..positions`. Frequencies and angles are rounded to f32, as in training. Cos
/// and sin are our own implementations, so that no bit depends on the system's library.
pub fn table(rope: &Rope, width: usize, positions: usize) -> RopeTable {
    let frequencies = frequencies(rope, width, positions);
    let factor = attention_factor(&rope.scaling);
    let mut table = RopeTable {
        half: frequencies.len(),
        cos: Vec::with_capacity(frequencies.len().saturating_mul(positions)),
        sin: Vec::with_capacity(frequencies.len().saturating_mul(positions)),
    };
    for position in 0..positions {
        for &frequency in &frequencies {
            let (sin, cos) = math::sin_cos(f64::from(position as f32 * frequency));
            table.cos.push((cos * factor) as f32);
            table.sin.push((sin * factor) as f32);
        }
    }
    table
}

/// Radians per position for each pair of a head: `theta^(−2i / head_dim)`, scaled.
fn frequencies(rope: &Rope, width: usize, positions: usize) -> Vec<f32> {
    let head_dim = width as f64;
    let (theta, scaling) = (rope.theta, &rope.scaling);
    (0..width / 2)
        .map(|pair| {
            let plain = f64::from(math::pow(theta, -2.0 * pair as f64 / head_dim) as f32);
            scaled(plain, pair, Base { theta, head_dim, positions }, scaling) as f32
        })
        .collect()
}

/// Parameters of the unscaled frequencies.
#[derive(Clone, Copy)]
struct Base {
    theta: f64,
    head_dim: f64,
    /// The longest context, in positions.
    positions: usize,
}

fn scaled(frequency: f64, pair: usize, base: Base, scaling: &RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Divided { factors } => {
            factors.get(pair).map_or(frequency, |factor| frequency / f64::from(*factor))
        }
        RopeScaling::Long { short, long, original_max_positions, .. } => {
            let factors = if base.positions > *original_max_positions { long } else { short };
            factors.get(pair).map_or(frequency, |factor| frequency / f64::from(*factor))
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let original = *original_max_positions as f64;
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength > original / low_freq_factor {
                frequency / factor
            } else if wavelength < original / high_freq_factor {
                frequency
            } else {
                let keep = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - keep) * frequency / factor + keep * frequency
            }
        }
        RopeScaling::Yarn { factor, original_max_positions, beta_fast, beta_slow, truncate, .. } => {
            let original = *original_max_positions as f64;
            let low = base.pair_of_turns(*beta_fast, original);
            let high = base.pair_of_turns(*beta_slow, original);
            let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(base.head_dim - 1.0));
            let width = if high == low { 0.001 } else { high - low };
            let scale = ((pair as f64 - low) / width).clamp(0.0, 1.0);
            frequency / factor * scale + frequency * (1.0 - scale)
        }
    }
}

impl Base {
    /// The fractional index of the pair that makes `turns` turns over `positions`.
    fn pair_of_turns(self, turns: f64, positions: f64) -> f64 {
        let wavelength = positions / (turns * 2.0 * std::f64::consts::PI);
        self.head_dim * math::ln(wavelength) / (2.0 * math::ln(self.theta))
    }
}

/// The factor on cos and sin.
fn attention_factor(scaling: &RopeScaling) -> f64 {
    let grown = |factor: f64, scale: f64| 0.1 * scale * math::ln(factor) + 1.0;
    match scaling {
        RopeScaling::Yarn { attention_factor: Some(given), .. }
        | RopeScaling::Long { attention_factor: Some(given), .. } => *given,
        RopeScaling::Yarn { factor, mscales: Some((scale, all)), .. } => {
            grown(*factor, *scale) / grown(*factor, *all)
        }
        RopeScaling::Yarn { factor, .. } => grown(*factor, 1.0),
        RopeScaling::Long { factor, .. } if *factor <= 1.0 => 1.0,
        RopeScaling::Long { factor, original_max_positions, .. } => {
            (1.0 + math::ln(*factor) / math::ln(*original_max_positions as f64)).sqrt()
        }
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Base = Base { theta: 10_000.0, head_dim: 16.0, positions: 64 };

    #[test]
    fn the_longest_context_chooses_the_factors_of_longrope() {
        let long = RopeScaling::Long {
            short: [1.0, 2.0].into(),
            long: [1.0, 8.0].into(),
            original_max_positions: 64,
            factor: 8.0,
            attention_factor: None,
        };
        for (positions, expected) in [(1, 0.5), (64, 0.5), (65, 0.125), (512, 0.125)] {
            assert_eq!(scaled(1.0, 1, Base { positions, ..BASE }, &long), expected, "{positions}");
        }
        assert!((attention_factor(&long) - (1.0 + 8f64.ln() / 64f64.ln()).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn scaling_follows_the_published_definitions() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        };
        // Wavelengths 6.3 (kept), 628 (fully scaled) and 32 (between: a third of the way).
        let between = 2.0 * std::f64::consts::PI / 32.0;
        for (frequency, scaling, expected) in [
            (0.25, RopeScaling::None, 0.25),
            (0.25, RopeScaling::Divided { factors: [8.0, 2.0].into() }, 0.125),
            (0.25, RopeScaling::Linear { factor: 4.0 }, 0.0625),
            (1.0, llama3.clone(), 1.0),
            (0.01, llama3.clone(), 0.00125),
            (between, llama3, between * (2.0 / 3.0 / 8.0 + 1.0 / 3.0)),
        ] {
            let got = scaled(frequency, 1, BASE, &scaling);
            assert!((got - expected).abs() < 1e-12, "{frequency} {scaling:?}: {got}");
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let yarn = |truncate, attention_factor, mscales| RopeScaling::Yarn {
            factor: 4.0,
            original_max_positions: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor,
            mscales,
        };
        // With theta 10000 and 16 dimensions the ramp goes from pair −0.99 (so 0) to 2.016 (so 3, if rounded).
        let base = BASE;
        for (pair, truncate, expected) in [
            (0, true, 1.0),
            (1, true, 2.0 / 3.0 + 1.0 / 3.0 / 4.0),
            (3, true, 0.25),
            (7, true, 0.25),
            (2, false, 1.0 - 0.75 * 2.0 / base.pair_of_turns(1.0, 64.0)),
        ] {
            let got = scaled(1.0, pair, base, &yarn(truncate, None, None));
            assert!((got - expected).abs() < 1e-12, "pair {pair} {truncate}: {got}, expected {expected}");
        }
        let ln4 = 4f64.ln();
        for (given, mscales, expected) in [
            (None, None, 0.1 * ln4 + 1.0),
            (Some(1.5), Some((1.0, 1.0)), 1.5),
            (None, Some((2.0, 1.0)), (0.2 * ln4 + 1.0) / (0.1 * ln4 + 1.0)),
        ] {
            assert!((attention_factor(&yarn(true, given, mscales)) - expected).abs() < 1e-12);
        }
        assert_eq!(attention_factor(&RopeScaling::None), 1.0);
    }
}
