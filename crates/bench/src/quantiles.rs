//! Collects numbers and computes their percentiles, to three significant digits. Knows no unit.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::units::{micros, ratio};

/// Percentiles of a set of numbers. The name of the field that holds them states the unit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// The minimum.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// Collects numbers. Percentiles have three digits; mean, minimum and maximum are exact.
#[derive(Debug, Clone)]
pub(crate) struct QuantileRecorder {
    histogram: Option<Histogram<u64>>,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for QuantileRecorder {
    fn default() -> Self {
        // Three digits are always valid, so there is always a histogram.
        Self { histogram: Histogram::new(3).ok(), sum: 0, min: u64::MAX, max: 0 }
    }
}

impl QuantileRecorder {
    pub(crate) fn record(&mut self, value: u64) {
        if let Some(histogram) = &mut self.histogram {
            // The histogram grows with its values, so no value is too large.
            let _ = histogram.record(value);
            self.sum = self.sum.saturating_add(u128::from(value));
            self.min = self.min.min(value);
            self.max = self.max.max(value);
        }
    }

    /// Records a time in microseconds.
    pub(crate) fn record_time(&mut self, time: Duration) {
        self.record(micros(time));
    }

    /// Each value divided by `unit`, rounded to a thousandth.
    pub(crate) fn quantiles(&self, unit: f64) -> Quantiles {
        let Some(histogram) = self.histogram.as_ref().filter(|histogram| !histogram.is_empty()) else {
            return Quantiles::default();
        };
        let scaled = |value: f64| (value / unit * 1e3).round() / 1e3;
        // A histogram reports the upper end of a cell, which may exceed the maximum.
        let at = |quantile| scaled(histogram.value_at_quantile(quantile).min(self.max) as f64);
        Quantiles {
            count: histogram.len(),
            mean: scaled(ratio(self.sum as f64, histogram.len() as f64)),
            min: scaled(self.min as f64),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max: scaled(self.max as f64),
        }
    }

    /// Converts values in microseconds to milliseconds.
    pub(crate) fn millis(&self) -> Quantiles {
        self.quantiles(1e3)
    }

    /// Number of values at or below each edge and above the previous edge.
    pub(crate) fn between(&self, edges: &[u64]) -> Vec<u64> {
        let mut counts = vec![0_u64; edges.len()];
        let cells = self.histogram.iter();
        for (histogram, cell) in cells.flat_map(|all| all.iter_recorded().map(move |cell| (all, cell))) {
            // A value on an edge belongs to the bucket below it.
            let value = histogram.lowest_equivalent(cell.value_iterated_to());
            let place = edges.partition_point(|edge| *edge < value);
            if let Some(count) = counts.get_mut(place) {
                *count = count.saturating_add(cell.count_since_last_iteration());
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut spread = QuantileRecorder::default();
        assert_eq!(spread.millis(), Quantiles::default());
        for value in 1..=1_000 {
            spread.record(value * 1_000);
        }
        let found = spread.millis();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.002;
        assert_eq!((found.count, found.min), (1_000, 1.0));
        assert!(near(found.mean, 500.5) && near(found.p50, 500.0) && near(found.p90, 900.0), "{found:?}");
        assert!(near(found.p95, 950.0) && near(found.p99, 990.0) && near(found.max, 1_000.0), "{found:?}");
    }

    #[test]
    fn cells() {
        let mut spread = QuantileRecorder::default();
        for value in [1, 2, 2, 3, 10, 99] {
            spread.record(value);
        }
        assert_eq!(spread.between(&[1, 2, 9, 50]), [1, 2, 1, 1]);
    }
}
