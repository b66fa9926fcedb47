//! A gateway in the status of a server. Contains no decisions.

use headrace_domain::UnixNanos;
use serde::{Deserialize, Serialize};

/// A gateway that shares the ledger with others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayView {
    /// The name that its operator gave it (`gateway.name`).
    pub name: String,
    /// Whether it is the gateway that answers.
    pub is_this: bool,
    /// The version of its program.
    pub version: String,
    /// `live`; `left` if it ended; `dead` if others ended it because it was silent too long.
    pub state: String,
    /// When it joined.
    #[serde(with = "headrace_domain::rfc3339")]
    pub joined: UnixNanos,
    /// How long ago it showed that it lives, in milliseconds.
    pub unseen_ms: u64,
}
