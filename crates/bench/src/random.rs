//! Random numbers that never change: a plan is a function of its seed in every version of this program. Each use has
//! its own stream, so that a changed distribution does not shift the arrivals.

use std::f64::consts::TAU;

/// The use of a stream of numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RandomStream {
    Arrivals = 1,
    Lengths = 2,
    Prefixes = 3,
    Pauses = 4,
    OwnText = 5,
    PrefixText = 6,
    BlockText = 7,
    ProbeText = 8,
}

/// xoshiro256++ (Blackman, Vigna, "Scrambled linear pseudorandom number generators", 2019), seeded by SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct RunRandom {
    state: [u64; 4],
}

impl RunRandom {
    /// The numbers of `stream` for the object with this index.
    pub(crate) fn new(seed: u64, stream: RandomStream, index: u64) -> Self {
        let mut mix = seed;
        let mixed = split_mix(&mut mix) ^ (stream as u64).wrapping_mul(0x9e6c_63d0_876a_68ee);
        let mut mix = mixed;
        let mixed = split_mix(&mut mix) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut mix = mixed;
        Self { state: std::array::from_fn(|_| split_mix(&mut mix)) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number in [0, `bound`). 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        // The upper half of a 64 × 64 bit product fits in 64 bits.
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// An exponential number with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// A normal number with mean 0 and deviation 1 (Box, Muller, 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (TAU * self.unit()).cos()
    }

    /// A gamma number with mean `shape` and deviation √`shape` (Marsaglia, Tsang, 2000).
    pub(crate) fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = (1.0 - self.unit()).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's first numbers for the state 1, 2, 3, 4, according to its authors' C code.
    #[test]
    fn it_is_xoshiro() {
        let mut random = RunRandom { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| random.next()).collect();
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    fn moments(mut draw: impl FnMut(&mut RunRandom) -> f64) -> (f64, f64) {
        let mut random = RunRandom::new(7, RandomStream::Lengths, 0);
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / f64::from(n);
        (mean, variance.sqrt())
    }

    #[test]
    fn means_and_deviations() {
        let close = |(mean, sd): (f64, f64), wanted: (f64, f64), what: &str| {
            assert!((mean - wanted.0).abs() < 0.015, "{what}: mean {mean}");
            assert!((sd - wanted.1).abs() < 0.02, "{what}: deviation {sd}");
        };
        close(moments(RunRandom::unit), (0.5, 12.0_f64.sqrt().recip()), "unit");
        close(moments(RunRandom::exponential), (1.0, 1.0), "exponential");
        close(moments(RunRandom::normal), (0.0, 1.0), "normal");
        close(moments(|random| random.gamma(0.25) * 4.0), (1.0, 2.0), "gamma of shape 1/4");
        close(moments(|random| random.gamma(9.0) / 9.0), (1.0, 1.0 / 3.0), "gamma of shape 9");
        close(moments(|random| random.below(4) as f64 / 4.0), (0.375, 1.25_f64.sqrt() / 4.0), "below");
    }

    #[test]
    fn streams_are_apart() {
        let first = |seed, stream, index| RunRandom::new(seed, stream, index).next();
        let all = [
            first(1, RandomStream::Arrivals, 0),
            first(2, RandomStream::Arrivals, 0),
            first(1, RandomStream::Lengths, 0),
            first(1, RandomStream::Arrivals, 1),
        ];
        let mut apart = all.to_vec();
        apart.sort_unstable();
        apart.dedup();
        assert_eq!(apart.len(), all.len());
        assert_eq!(first(1, RandomStream::Arrivals, 0), all[0]);
    }
}
