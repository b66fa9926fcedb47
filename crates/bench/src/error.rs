//! Why a run did not happen. What goes wrong with single calls is no error but a figure of the report.

use std::fmt;

use headrace_client::ClientError;

use crate::Fault;

/// Why there is no report.
#[derive(Debug)]
pub enum BenchError {
    /// The parameters make no run; every fault at once.
    Config(Vec<Fault>),
    /// The server could not be reached or asked for its models.
    Server(ClientError),
    /// The server lists no model and none was named.
    NoModel,
    /// The calls that measure a word's length in tokens failed: what would come after would fail alike.
    Probe {
        /// What the server answered.
        why: String,
        /// The address asked.
        url: String,
        /// It may have been for want of a right key.
        denied: bool,
    },
    /// A thread could not be started.
    Thread(std::io::Error),
    /// It was cancelled before the first call.
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
