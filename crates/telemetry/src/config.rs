//! What is sent where, and how much may wait for it. Plain data; must not know how it is read.

use std::fmt;
use std::time::Duration;

/// Where one signal goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// The whole address, such as `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Headers that go with it: names and values, which may be secrets.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Target").field("url", &self.url).field("headers", &names).finish()
    }
}

/// What is sent, where, and within which bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Where spans go; `None`: nowhere.
    pub traces: Option<Target>,
    /// Where metrics go.
    pub metrics: Option<Target>,
    /// Where log lines go.
    pub logs: Option<Target>,
    /// Attributes of the process that says it all, `service.name` among them.
    pub resource: Vec<(String, String)>,
    /// Authorities to trust beside the machine's, in PEM.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// How long one sending may take.
    pub timeout: Duration,
    /// How often metrics are sent.
    pub metrics_every: Duration,
    /// Calls that may wait to be sent, for each signal; more are dropped and counted.
    pub queue_records: usize,
    /// Most calls in one sending.
    pub batch_records: usize,
    /// How long the first call of a sending waits for company.
    pub linger: Duration,
    /// How long a sending that failed is tried again.
    pub retry_for: Duration,
    /// Of a hundred traces, those whose spans are sent; whole traces, by their ids.
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
    /// Whether anything goes anywhere.
    pub const fn is_on(&self) -> bool {
        self.traces.is_some() || self.metrics.is_some() || self.logs.is_some()
    }
}

/// Why nothing can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TelemetryError {
    /// An address is none.
    Address {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A header cannot be sent.
    Header {
        /// Its name.
        name: String,
    },
    /// The client cannot be built: its authorities, for instance.
    Client {
        /// What keeps it.
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
