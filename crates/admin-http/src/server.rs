//! The public face of this crate: built from its parts, served at a listener.

use axum::Router;

use crate::app::{AdminApp, AdminParts};
use crate::listener::{AdminSocket, Secure};
use crate::router;

/// An admin listener, ready to serve.
pub struct AdminHttp {
    parts: AdminParts,
}

impl AdminHttp {
    /// Builds the admin API from its parts.
    pub const fn new(parts: AdminParts) -> Self {
        Self { parts }
    }

    /// Builds the routes for a listener with `most_connections` connections.
    pub(crate) fn router(self, most_connections: usize) -> Router {
        router::router(AdminApp::new(self.parts, most_connections))
    }

    /// Serves until the future is dropped, with each connection wrapped by `secure` if set. Needs a Tokio runtime.
    ///
    /// # Errors
    /// If the socket cannot be used.
    pub async fn serve(self, listener: AdminSocket, secure: Option<Secure>) -> std::io::Result<()> {
        let router = self.router(listener.most_connections());
        listener.serve(router, secure).await
    }
}
