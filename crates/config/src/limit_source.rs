//! Settings of rate limits that several gateways keep in a Valkey or Redis server. Knows no connection.

use std::path::PathBuf;

use super::field::{SettingField, field};
use super::value::SettingKind;

pub(crate) const URL: &str = "limits.valkey.url";
pub(crate) const PREFIX: &str = "limits.valkey.prefix";

/// The settings of a server of rate limits.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        URL,
        SettingKind::Url,
        "",
        "A Valkey or Redis server, version 7 or later, that counts requests and tokens per minute for all gateways with the same URL: `redis://USER:PASSWORD@HOST:6379/0`, or `rediss://` for TLS. A call waits at most 50 ms for it. Needs a program that was built with the feature `valkey`. Without a URL, gateways that share a database divide the limits per minute among themselves. Concurrency and daily limits do not use the server.",
    ),
    field(
        "limits.valkey.ca_file",
        SettingKind::Path,
        "",
        "File with the certificate authorities of the server, in PEM, for `rediss://`. Default: those of the system.",
    ),
    field(
        PREFIX,
        SettingKind::Text,
        "\"headrace\"",
        "First part of each key in the server, in braces. Deployments that share a server need different ones.",
    ),
    field(
        "limits.valkey.when_unreachable",
        SettingKind::Choice(&["share", "refuse"]),
        "\"share\"",
        "What happens to limited calls while the server cannot be reached. With `\"share\"`, each gateway lets its part of each limit pass, starting from empty: the limit divided by the number of gateways. With `\"refuse\"`, limited calls are refused with status 429.",
    ),
];

/// A server that keeps the rate limits of several gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitServerSettings {
    /// The URL, which may contain a password.
    pub url: String,
    /// The certificate authorities of the server. `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// The first part of each key.
    pub prefix: String,
    /// Whether limited calls are refused while the server cannot be reached.
    pub refuses: bool,
}
