//! The settings of a source, and what operators see of it.

use std::path::PathBuf;

use crate::connection::ServerAddress;

/// What happens to limited calls while the server cannot be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnreachablePolicy {
    /// The gateway lets its own share of each limit pass: the limit divided by the number of gateways.
    #[default]
    Share,
    /// Limited calls are refused.
    Refuse,
}

/// The settings of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValkeySettings {
    /// The server.
    pub address: ServerAddress,
    /// The file of the certificate authority, in PEM. `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// The first part of each key, in braces.
    pub prefix: String,
    /// What happens while the server cannot be reached.
    pub policy: UnreachablePolicy,
    /// A name of this gateway that no other one has.
    pub gateway: String,
}

/// The state of a source, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValkeyStatus {
    /// The server answers.
    pub is_reachable: bool,
    /// The number of live gateways when the server last answered. Zero before that.
    pub gateways: u32,
    /// Calls so far that the server did not answer within 50 ms, or at all.
    pub failures: u64,
}
