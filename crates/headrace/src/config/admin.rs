//! Where operators are listened to. Must not know who they are.

use std::net::SocketAddr;

/// Where operators are listened to.
pub(crate) struct AdminSettings {
    pub(crate) listen: AdminListen,
    /// How browsers reach that, where it is not the address itself.
    pub(crate) url: Option<String>,
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
