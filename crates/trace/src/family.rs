//! Metrics as data: families of labelled samples, exact for whole numbers. Must not know how they are written or who
//! reads them.

use headrace_domain::{RequestId, UnixNanos};

use crate::context::TraceContext;

/// The type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// A value that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts of values by size.
    Histogram,
}

impl FamilyKind {
    /// The name in both of Prometheus' formats.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// All samples with one metric name.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricFamily {
    /// The Prometheus name, such as `headrace_requests_total`.
    pub name: String,
    /// The help text, one sentence.
    pub help: String,
    /// The type of the family.
    pub kind: FamilyKind,
    /// One sample per set of labels.
    pub samples: Vec<MetricSample>,
}

impl MetricFamily {
    pub(crate) fn new(name: &str, help: &str, kind: FamilyKind) -> Self {
        Self { name: name.to_owned(), help: help.to_owned(), kind, samples: Vec::new() }
    }

    pub(crate) fn push(&mut self, labels: &[(&str, &str)], value: SampleValue) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.push(MetricSample { labels, value });
    }
}

/// One number, or the buckets of one histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSample {
    /// Label names and values.
    pub labels: Vec<(String, String)>,
    /// The sample's value.
    pub value: SampleValue,
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// The number of values in each bucket.
    Histogram(HistogramBuckets),
}

/// A snapshot of a histogram. Values are integers in units of 10⁻`digits` of the unit in the metric's name.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramBuckets {
    /// The upper bound of each bucket except the last, inclusive and ascending.
    pub bounds: &'static [u64],
    /// Decimal places of bounds and sum.
    pub digits: u32,
    /// Number of values in each bucket. The last bucket counts the values above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
    /// One optional exemplar per bucket, in the order of `counts`.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl HistogramBuckets {
    /// Converts a bound or a sum to the unit in the metric's name.
    #[allow(clippy::cast_precision_loss, reason = "what is lost is less than the last of 15 digits")]
    pub fn scaled(&self, value: u64) -> f64 {
        let unit = 10_u64.checked_pow(self.digits).unwrap_or(u64::MAX);
        value as f64 / unit as f64
    }
}

/// A call that a bucket counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// The counted value, in the histogram's integers.
    pub value: u64,
    /// When the call ended.
    pub at: UnixNanos,
    /// The call's request id.
    pub request: RequestId,
    /// The call's span.
    pub context: TraceContext,
}

impl Exemplar {
    /// The same call with another value.
    pub(crate) fn with(self, value: u64) -> Self {
        Self { value, ..self }
    }
}
