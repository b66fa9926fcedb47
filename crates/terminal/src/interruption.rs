//! Waits for Ctrl-C. Must not know what it ends.

/// Resolves at the next Ctrl-C. Never resolves if signals cannot be caught.
pub async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
