//! Random, normally distributed weights. A weight depends only on the seed, the tensor and its position. So it is the
//! same on every machine and for any number of threads. Must not know formats.

/// Golden ratio, 64 bits: the step of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The weights of one tensor.
#[derive(Clone, Copy)]
pub(super) struct NoiseWeights {
    state: u64,
    mean: f32,
    sigma: f32,
}

impl NoiseWeights {
    /// Makes the weights of the tensor `name` in the model with `seed`.
    pub(super) fn new(seed: u64, name: &str, mean: f32, sigma: f32) -> Self {
        let state = name.bytes().fold(mix(seed ^ STEP), |state, byte| mix(state ^ u64::from(byte)));
        Self { state, mean, sigma }
    }

    /// Returns one weight of row `row`.
    pub(super) fn element(&self, row: usize, column: usize) -> f32 {
        let start = mix(self.state ^ mix(row as u64 ^ STEP));
        let steps = (column / 2) as u64 + 1;
        let bits = mix(start.wrapping_add(STEP.wrapping_mul(steps)));
        let half = if column.is_multiple_of(2) { bits as u32 } else { (bits >> 32) as u32 };
        self.mean + self.sigma * normal(half)
    }

    /// Writes the weights of row `row`.
    pub(super) fn fill(&self, row: usize, out: &mut [f32]) {
        let mut state = mix(self.state ^ mix(row as u64 ^ STEP));
        for pair in out.chunks_mut(2) {
            state = state.wrapping_add(STEP);
            let bits = mix(state);
            for (weight, half) in pair.iter_mut().zip([bits as u32, (bits >> 32) as u32]) {
                *weight = self.mean + self.sigma * normal(half);
            }
        }
    }
}

/// The final mixing step of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Turns 32 uniform bits into a standard normal number, by Acklam's rational approximation of the inverse distribution
/// (relative error 1.2e-9), in double precision.
fn normal(bits: u32) -> f32 {
    const LOW: f64 = 0.02425;
    let p = (f64::from(bits) + 0.5) / 4_294_967_296.0;
    let tail = |p: f64| {
        const C: [f64; 6] = [
            -7.784894002430293e-3,
            -3.223964580411365e-1,
            -2.400758277161838,
            -2.549732539343734,
            4.374664141464968,
            2.938163982698783,
        ];
        const D: [f64; 4] =
            [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416];
        let q = (-2.0 * headrace_kernels::math::ln(p)).sqrt();
        polynomial(&C, q) / (polynomial(&D, q) * q + 1.0)
    };
    let x = if p < LOW {
        tail(p)
    } else if p > 1.0 - LOW {
        -tail(1.0 - p)
    } else {
        const A: [f64; 6] = [
            -3.969683028665376e1,
            2.209460984245205e2,
            -2.759285104469687e2,
            1.38357751867269e2,
            -3.066479806614716e1,
            2.506628277459239,
        ];
        const B: [f64; 5] = [
            -5.447609879822406e1,
            1.615858368580409e2,
            -1.556989798598866e2,
            6.680131188771972e1,
            -1.328068155288572e1,
        ];
        let q = p - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
    };
    x as f32
}

fn polynomial<const N: usize>(coefficients: &[f64; N], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_normal_and_belong_to_their_place() {
        let noise = NoiseWeights::new(7, "a", 1.0, 2.0);
        let mut row = vec![0.0; 200_001];
        noise.fill(3, &mut row);
        let moment = |power: i32| {
            let terms = row.iter().map(|w| ((f64::from(*w) - 1.0) / 2.0).powi(power));
            terms.sum::<f64>() / row.len() as f64
        };
        for (power, expected, tolerance) in [(1, 0.0, 0.01), (2, 1.0, 0.02), (3, 0.0, 0.05), (4, 3.0, 0.15)] {
            assert!((moment(power) - expected).abs() < tolerance, "moment {power}: {}", moment(power));
        }
        let mut again = vec![0.0; 10];
        noise.fill(3, &mut again);
        assert_eq!(again, row[..10]);
        assert_eq!(again, std::array::from_fn::<f32, 10, _>(|column| noise.element(3, column)));
        for other in [NoiseWeights::new(8, "a", 1.0, 2.0), NoiseWeights::new(7, "b", 1.0, 2.0)] {
            let mut different = vec![0.0; 10];
            other.fill(3, &mut different);
            assert_ne!(different, again);
        }
        noise.fill(4, &mut again);
        assert_ne!(again, row[..10]);
        for (bits, expected) in [(u32::MAX / 2, 0.0), (0, -6.338), (u32::MAX, 6.338), (0xd6fe_9b58, 0.9945)] {
            assert!((normal(bits) - expected).abs() < 1e-3, "{bits}: {}", normal(bits));
        }
    }
}
