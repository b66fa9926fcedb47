//! The room from outside: made of its parts, served at a listener.

use axum::Router;

use crate::app::{App, Parts};
use crate::listener::{Listener, Secure};
use crate::router;

/// An admin listener, ready to serve.
pub struct AdminHttp {
    parts: Parts,
}

impl AdminHttp {
    /// Of these parts.
    pub const fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// Makes the routes for a listener that takes `most_connections`.
    pub(crate) fn router(self, most_connections: usize) -> Router {
        router::router(App::new(self.parts, most_connections))
    }

    /// Answers until the future is dropped, behind what secures each connection, if anything does. Within a Tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub async fn serve(self, listener: Listener, secure: Option<Secure>) -> std::io::Result<()> {
        let router = self.router(listener.most_connections());
        listener.serve(router, secure).await
    }
}
