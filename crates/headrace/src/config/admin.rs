//! Where operators are listened to. Must not know who they are.

use std::net::SocketAddr;

/// Where operators are listened to.
pub(crate) struct AdminSettings {
    pub(crate) listen: AdminListen,
    /// How browsers reach that, where it is not the address itself.
    pub(crate) url: Option<String>,
    /// Whether by TLS, with the server's certificate.
    pub(crate) tls: bool,
    /// Connections at once, at most as many as the listener takes by itself.
    pub(crate) most_connections: usize,
}

/// Whether and where operators are listened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminListen {
    /// As is usual for whoever starts the server: `up` listens, `serve` does not.
    Usual,
    /// Nowhere.
    Off,
    /// There.
    At(SocketAddr),
}
