//! Learns the cost of a step from past steps: a fixed part, a part per prompt token, and a part per generated token.
//! Prefill and decode differ in cost, so a single rate would give wrong waits. Has no clock.

/// Half-life of a measurement, in nanoseconds of computing time.
const HALF_LIFE_NS: f64 = 5e9;
const NS_PER_S: f64 = 1e9;
/// Weight of the guess that every token costs the same, relative to the measurements.
const DOUBT: f64 = 1e-3;

/// Decaying sums over recent steps. The costs are fitted to them by least squares.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    steps: f64,
    nanos: f64,
    /// Sums of `x_i × x_j` and of `x_i × nanos` over steps, with x = (1, prefill tokens, decode tokens).
    products: [[f64; 3]; 3],
    with_nanos: [f64; 3],
    /// Output tokens of ended sequences. `ended_bounds` sums the tokens that they were allowed.
    ended_tokens: f64,
    ended_bounds: f64,
    ended: f64,
    /// Prompt tokens of started sequences. `started_computed` sums those that were not cached.
    started_tokens: f64,
    started_computed: f64,
}

/// The cost of a step, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct StepCost {
    /// Per step, independent of its tokens.
    pub(crate) fixed: f64,
    /// Per prompt token.
    pub(crate) prefill: f64,
    /// Per generated token.
    pub(crate) decode: f64,
}

impl Rate {
    /// Records that a step of `prefill` prompt tokens and `decode` generated tokens took `elapsed_ns`.
    pub(crate) fn observe(&mut self, prefill: usize, decode: usize, elapsed_ns: u64) {
        let elapsed = elapsed_ns as f64;
        let keep = (-elapsed / HALF_LIFE_NS).exp2();
        let x = [1.0, prefill as f64, decode as f64];
        self.steps = self.steps * keep + 1.0;
        self.nanos = self.nanos * keep + elapsed;
        for ((row, with_nanos), a) in self.products.iter_mut().zip(&mut self.with_nanos).zip(x) {
            *with_nanos = *with_nanos * keep + a * elapsed;
            for (sum, b) in row.iter_mut().zip(x) {
                *sum = *sum * keep + a * b;
            }
        }
    }

    /// Records that a sequence ended with `generated` of at most `bound` tokens.
    pub(crate) fn observe_end(&mut self, generated: usize, bound: usize) {
        let keep = 0.98;
        self.ended = self.ended * keep + 1.0;
        self.ended_tokens = self.ended_tokens * keep + generated as f64;
        self.ended_bounds = self.ended_bounds * keep + bound.max(generated) as f64;
    }

    /// Records that a sequence started, and that `computed` of its `prompt` tokens are not cached.
    pub(crate) fn observe_start(&mut self, prompt: usize, computed: usize) {
        let keep = 0.98;
        self.started_tokens = self.started_tokens * keep + prompt as f64;
        self.started_computed = self.started_computed * keep + computed as f64;
    }

    /// Tokens of both kinds computed per second.
    pub(crate) fn per_second(&self) -> f64 {
        let tokens = self.products[0][1] + self.products[0][2];
        if self.nanos > 0.0 { tokens * NS_PER_S / self.nanos } else { 0.0 }
    }

    /// The fraction of its bound that a sequence generates on average.
    pub(crate) fn output_share(&self) -> f64 {
        if self.ended_bounds > 0.0 { (self.ended_tokens / self.ended_bounds).clamp(0.01, 1.0) } else { 1.0 }
    }

    /// Mean number of tokens that a sequence generates. `None` before any sequence has ended.
    pub(crate) fn output_mean(&self) -> Option<f64> {
        (self.ended > 0.0).then(|| self.ended_tokens / self.ended)
    }

    /// The fraction of prompt tokens that are computed, not taken from the cache.
    pub(crate) fn computed_share(&self) -> f64 {
        if self.started_tokens > 0.0 {
            (self.started_computed / self.started_tokens).clamp(0.01, 1.0)
        } else {
            1.0
        }
    }

    /// The costs that fit the measurements best. `None` before anything was measured. A cost that was never measured
    /// separately is guessed from the mean.
    pub(crate) fn cost(&self) -> Option<StepCost> {
        let tokens = self.products[0][1] + self.products[0][2];
        if self.steps <= 0.0 || self.nanos <= 0.0 || tokens <= 0.0 {
            return None;
        }
        let mean = self.nanos / tokens;
        let guess = [0.0, mean, mean];
        // A negative cost makes no sense, so it is set to zero and the others are fitted again.
        let mut used = [true; 3];
        loop {
            let fitted = self.fit(guess, used);
            let negative = fitted.into_iter().enumerate().filter(|(_, cost)| *cost < 0.0);
            let worst = negative.min_by(|(_, a), (_, b)| a.total_cmp(b));
            match worst.and_then(|(at, _)| used.get_mut(at)) {
                Some(used) => *used = false,
                None => {
                    let [fixed, prefill, decode] = fitted;
                    return Some(StepCost { fixed, prefill, decode });
                }
            }
        }
    }

    /// Least squares with a small weight on the guess. Costs that are not `used` are zero.
    fn fit(&self, guess: [f64; 3], used: [bool; 3]) -> [f64; 3] {
        let weight = |i: usize| DOUBT * self.products[i][i] + 1e-9 * self.steps;
        let matrix = std::array::from_fn(|i| {
            std::array::from_fn(|j| match (i == j, used[i] && used[j]) {
                (true, true) => self.products[i][i] + weight(i),
                (false, true) => self.products[i][j],
                (same, false) => f64::from(u8::from(same)),
            })
        });
        let right =
            std::array::from_fn(|i| if used[i] { self.with_nanos[i] + weight(i) * guess[i] } else { 0.0 });
        solve(&matrix, &right)
    }
}

/// Solves three linear equations with a symmetric matrix, by Cramer's rule.
fn solve(matrix: &[[f64; 3]; 3], right: &[f64; 3]) -> [f64; 3] {
    let whole = determinant(matrix);
    std::array::from_fn(|unknown| {
        // The matrix is symmetric, so replacing a row is as good as replacing a column.
        let mut replaced = *matrix;
        replaced[unknown] = *right;
        let value = determinant(&replaced) / whole;
        if value.is_finite() { value } else { 0.0 }
    })
}

fn determinant([a, b, c]: &[[f64; 3]; 3]) -> f64 {
    a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0])
        + a[2] * (b[0] * c[1] - b[1] * c[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_and_decode_costs_are_separated() {
        let cost = |fixed: f64, prefill: f64, decode: f64| StepCost { fixed, prefill, decode };
        let near = |a: f64, b: f64| (a - b).abs() <= 0.03 * b.max(1000.0);
        for (what, truth, steps) in [
            ("mixed", cost(2e6, 1e5, 1e6), vec![(0, 8), (512, 0), (300, 8), (0, 3), (100, 16)]),
            ("no fixed cost", cost(0.0, 2e5, 9e5), vec![(0, 8), (512, 0), (300, 8), (0, 3)]),
        ] {
            let mut rate = Rate::default();
            assert_eq!(rate.cost(), None);
            for &(p, d) in steps.iter().cycle().take(60) {
                let nanos = truth.fixed + truth.prefill * p as f64 + truth.decode * d as f64;
                rate.observe(p, d, nanos as u64);
            }
            let found = rate.cost().unwrap();
            let close = near(found.prefill, truth.prefill) && near(found.decode, truth.decode);
            assert!(close, "{what}: {found:?}");
        }
        // The cost of a prompt token can only be guessed if all measurements are decodes.
        let mut rate = Rate::default();
        (0..20).for_each(|_| rate.observe(0, 4, 4_000_000));
        let found = rate.cost().unwrap();
        assert!(near(found.prefill, 1e6) && near(found.fixed + 4.0 * found.decode, 4e6), "{found:?}");
    }
}
