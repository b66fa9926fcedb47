//! Settings of the admin listener. Must not know who the operators are.

use std::net::SocketAddr;

use headrace_jwt::SignInConfig;

/// Settings of the admin listener.
pub struct AdminSettings {
    /// Whether and where it listens.
    pub listen: AdminListen,
    /// The URL that browsers use, if it differs from the listening address.
    pub url: Option<String>,
    /// Whether the listener uses TLS, with the server's certificate.
    pub tls: bool,
    /// Identity providers at which operators sign in.
    pub sign_in: Vec<SignInConfig>,
    /// Maximum number of simultaneous connections. The listener applies its own maximum as well.
    pub most_connections: usize,
}

/// Whether and where the admin listener listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminListen {
    /// The default for the command: `up` listens, `serve` does not.
    Usual,
    /// The listener is off.
    Off,
    /// Listens on this address.
    At(SocketAddr),
}
