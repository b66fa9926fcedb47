//! Recent duration of something: a mean that jumps up to a peak and decays slowly. Time is an argument.

/// Time in which the weight of the past falls by a factor of e.
const DECAY_NS: f64 = 10e9;

/// Peak-EWMA (Finagle's `PeakEwma` load metric): a slow sample counts at once, a fast one little by little.
#[derive(Debug)]
pub(crate) struct PeakEwma {
    value_ns: f64,
    at_ns: u64,
    any: bool,
}

impl PeakEwma {
    /// No samples yet.
    pub(crate) const NONE: Self = Self { value_ns: 0.0, at_ns: 0, any: false };

    /// Adds a sample.
    pub(crate) fn add(&mut self, now_ns: u64, took_ns: u64) {
        let took_ns = took_ns as f64;
        if !self.any || took_ns > self.value_ns {
            self.value_ns = took_ns;
        } else {
            let weight = self.weight(now_ns);
            self.value_ns = self.value_ns * weight + took_ns * (1.0 - weight);
        }
        (self.at_ns, self.any) = (now_ns, true);
    }

    /// The expected duration in nanoseconds. `None` before the first sample. It decays without samples, so that a
    /// worker that was slow once is tried again.
    pub(crate) fn expected_ns(&self, now_ns: u64) -> Option<f64> {
        self.any.then(|| self.value_ns * self.weight(now_ns))
    }

    /// The mean at the last sample, in nanoseconds.
    pub(crate) fn last_ns(&self) -> Option<f64> {
        self.any.then_some(self.value_ns)
    }

    fn weight(&self, now_ns: u64) -> f64 {
        (-(now_ns.saturating_sub(self.at_ns) as f64) / DECAY_NS).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaps_up_and_comes_down_slowly() {
        let mut latency = PeakEwma::NONE;
        assert_eq!((latency.expected_ns(0), latency.last_ns()), (None, None));
        latency.add(0, 100);
        latency.add(1, 1000);
        assert_eq!(latency.expected_ns(1), Some(1000.0));
        latency.add(1 + 10_000_000_000, 100);
        let after = latency.last_ns().unwrap();
        assert!(
            (after - (1000.0 / std::f64::consts::E + 100.0 * (1.0 - 1.0 / std::f64::consts::E))).abs() < 1.0
        );
        let idle = latency.expected_ns(1 + 30_000_000_000).unwrap();
        assert!(idle < after * 0.14 && idle > after * 0.13, "{idle}");
    }
}
