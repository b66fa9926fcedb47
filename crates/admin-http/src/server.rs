//! The room from outside: made of its parts, served at a listener.

use axum::Router;

use crate::app::{App, Parts};
use crate::listener::{Listener, Secure};
use crate::router;

/// An admin listener, ready to serve.
pub struct AdminHttp {
    pub(crate) router: Router,
}

impl AdminHttp {
    /// Of these parts.
    pub fn new(parts: Parts) -> Self {
        Self { router: router::router(App::new(parts)) }
    }

    /// Answers until the future is dropped, behind what secures each connection, if anything does. Within a Tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub async fn serve(self, listener: Listener, secure: Option<Secure>) -> std::io::Result<()> {
        listener.serve(self.router, secure).await
    }
}
