//! Tables of the rotary angles, as `transformers.modeling_rope_utils` defines the frequencies.
//! Must not know: how heads are rotated.

use headrace_checkpoint::{ModelConfig, RopeScaling};
use headrace_kernels::{RopeTable, math};

/// cos and sin for positions `0..positions`. Frequencies and angles are rounded to f32, as the models were trained; cos
/// and sin are of our own, so that no bit depends on the system's library.
pub(crate) fn table(config: &ModelConfig, positions: usize) -> RopeTable {
    let frequencies = frequencies(config);
    let mut table = RopeTable {
        half: frequencies.len(),
        cos: Vec::with_capacity(frequencies.len().saturating_mul(positions)),
        sin: Vec::with_capacity(frequencies.len().saturating_mul(positions)),
    };
    for position in 0..positions {
        for &frequency in &frequencies {
            let (sin, cos) = math::sin_cos(f64::from(position as f32 * frequency));
            table.cos.push(cos as f32);
            table.sin.push(sin as f32);
        }
    }
    table
}

/// Radians a position for each pair of a head: `theta^(−2i / head_dim)`, scaled.
fn frequencies(config: &ModelConfig) -> Vec<f32> {
    let head_dim = config.head_dim as f64;
    (0..config.head_dim / 2)
        .map(|pair| {
            let plain = f64::from(math::pow(config.rope.theta, -2.0 * pair as f64 / head_dim) as f32);
            scaled(plain, config.rope.scaling) as f32
        })
        .collect()
}

fn scaled(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let original = original_max_positions as f64;
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_follows_the_published_definitions() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        };
        // Wavelengths 6.3 (kept), 628 (scaled in full) and 32 (between: a third of the way).
        let between = 2.0 * std::f64::consts::PI / 32.0;
        for (frequency, scaling, expected) in [
            (0.25, RopeScaling::None, 0.25),
            (0.25, RopeScaling::Linear { factor: 4.0 }, 0.0625),
            (1.0, llama3, 1.0),
            (0.01, llama3, 0.00125),
            (between, llama3, between * (2.0 / 3.0 / 8.0 + 1.0 / 3.0)),
        ] {
            let got = scaled(frequency, scaling);
            assert!((got - expected).abs() < 1e-12, "{frequency} {scaling:?}: {got}");
        }
    }
}
