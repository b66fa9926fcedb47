//! The telemetry configuration: targets, queue sizes and time limits. Plain data; must not know how it is read.

use std::fmt;
use std::time::Duration;

/// The target of one signal.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The complete URL, such as `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Headers of each request: names and values. The values may be secrets.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Target").field("url", &self.url).field("headers", &names).finish()
    }
}

/// The telemetry configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Target of the spans. `None` sends no spans.
    pub traces: Option<Target>,
    /// Target of the metrics. `None` sends no metrics.
    pub metrics: Option<Target>,
    /// Target of the log records. `None` sends no log records.
    pub logs: Option<Target>,
    /// Resource attributes of this process, including `service.name`.
    pub resource: Vec<(String, String)>,
    /// PEM certificates of authorities to trust in addition to the system's.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// Time limit of one export request.
    pub timeout: Duration,
    /// Interval between metrics exports.
    pub metrics_every: Duration,
    /// Maximum calls that may wait to be sent, per signal. Further calls are dropped and counted.
    pub queue_records: usize,
    /// Maximum calls in one export.
    pub batch_records: usize,
    /// How long the first call of an export waits for more calls.
    pub linger: Duration,
    /// How long a failed export is retried.
    pub retry_for: Duration,
    /// Percentage of traces whose spans are sent. Traces are sampled as a whole, by their ids.
    pub sample_percent: u64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            traces: None,
            metrics: None,
            logs: None,
            resource: Vec::new(),
            extra_roots_pem: None,
            timeout: Duration::from_secs(10),
            metrics_every: Duration::from_secs(60),
            queue_records: 2048,
            batch_records: 512,
            linger: Duration::from_secs(1),
            retry_for: Duration::from_secs(60),
            sample_percent: 100,
        }
    }
}

impl TelemetryConfig {
    /// Returns `true` if any signal has a target.
    pub const fn is_on(&self) -> bool {
        self.traces.is_some() || self.metrics.is_some() || self.logs.is_some()
    }
}

/// Why telemetry cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TelemetryError {
    /// A target's URL is invalid.
    Address {
        /// The URL as configured, without any credentials.
        url: String,
        /// What is wrong with the URL.
        why: String,
    },
    /// A header is invalid.
    Header {
        /// The header's name.
        name: String,
    },
    /// The HTTP client cannot be built, for example because of its certificates.
    Client {
        /// The reason.
        why: String,
    },
}

impl fmt::Display for TelemetryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { url, why } => write!(f, "`{url}` is no address for telemetry: {why}"),
            Self::Header { name } => write!(
                f,
                "the header `{name}` for telemetry cannot be sent: its name or value has characters that no header has"
            ),
            Self::Client { why } => write!(f, "telemetry cannot be sent: {why}"),
        }
    }
}

impl std::error::Error for TelemetryError {}
