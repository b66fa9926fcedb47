//! What is counted, as data: families of samples with their labels, exact where they are whole. Must not know how they are written,
//! or who reads them.

use headrace_domain::{RequestId, UnixNanos};

use crate::context::TraceContext;

/// What kind of numbers a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
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

/// Everything of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// As Prometheus has it: `headrace_requests_total`.
    pub name: String,
    /// What it is, in a sentence.
    pub help: String,
    /// What kind of numbers.
    pub kind: FamilyKind,
    /// One for each set of labels.
    pub samples: Vec<Sample>,
}

impl Family {
    pub(crate) fn new(name: &str, help: &str, kind: FamilyKind) -> Self {
        Self { name: name.to_owned(), help: help.to_owned(), kind, samples: Vec::new() }
    }

    pub(crate) fn push(&mut self, labels: &[(&str, &str)], value: SampleValue) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.push(Sample { labels, value });
    }
}

/// A number, or several of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(String, String)>,
    /// What was counted.
    pub value: SampleValue,
}

/// What a sample says.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// How many fell into each bucket.
    Histogram(Buckets),
}

/// A histogram as it stands. Values are integers of 10⁻`digits` of the unit that its name says.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// The upper bound of each bucket but the last, inclusive, ascending.
    pub bounds: &'static [u64],
    /// Decimal places of bounds and sum.
    pub digits: u32,
    /// How many fell into each bucket, and into none of the bounded ones.
    pub counts: Vec<u64>,
    /// Their sum.
    pub sum: u64,
    /// An example of each bucket that has one, as many as there are counts.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl Buckets {
    /// A bound or sum in the unit of the name.
    #[allow(clippy::cast_precision_loss, reason = "what is lost is less than the last of 15 digits")]
    pub fn scaled(&self, value: u64) -> f64 {
        let unit = 10_u64.checked_pow(self.digits).unwrap_or(u64::MAX);
        value as f64 / unit as f64
    }
}

/// A call that a bucket counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// What was counted of it, in the histogram's integers.
    pub value: u64,
    /// When it ended.
    pub at: UnixNanos,
    /// Which call.
    pub request: RequestId,
    /// Its span.
    pub context: TraceContext,
}

impl Exemplar {
    /// The same call with another value.
    pub(crate) fn with(self, value: u64) -> Self {
        Self { value, ..self }
    }
}
