//! Why a run did not take place. Failures of single calls are not errors, but figures of the report.

use std::fmt;

use headrace_client::ClientError;

use crate::ConfigFault;

/// Why there is no report.
#[derive(Debug)]
pub enum BenchError {
    /// The configuration is invalid. Contains all faults.
    Config(Vec<ConfigFault>),
    /// The server could not be reached, or did not list its models.
    Server(ClientError),
    /// The server lists no model and the configuration names none.
    NoModel,
    /// The calls that measure the tokens per word failed, so the run's calls would fail in the same way.
    Probe {
        /// The server's answer.
        why: String,
        /// The URL that was called.
        url: String,
        /// Whether the cause may be a missing or wrong key.
        denied: bool,
    },
    /// A thread could not be started.
    Thread(std::io::Error),
    /// The run was cancelled before the first call.
    Cancelled,
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(faults) => {
                for (at, fault) in faults.iter().enumerate() {
                    write!(f, "{}{fault}", if at == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
            Self::Server(error) => error.fmt(f),
            Self::NoModel => f.write_str("the server lists no model for this key; name one by --model"),
            Self::Probe { why, url, .. } => {
                write!(f, "the first call to {url} failed, so no load was sent: {why}")
            }
            Self::Thread(error) => write!(f, "the thread that keeps the time cannot start: {error}"),
            Self::Cancelled => f.write_str("cancelled before the first call"),
        }
    }
}

impl std::error::Error for BenchError {}
