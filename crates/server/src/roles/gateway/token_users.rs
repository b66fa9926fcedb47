//! Makes the records of users whose tokens were accepted for the first time, off the path of calls. Must not know tokens.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_identity::Directory;

/// Interval at which records are made.
const MAKE_EVERY: Duration = Duration::from_secs(1);

/// Makes records until the future is dropped. A store that fails is logged by the health checks.
pub(super) async fn make(directory: Arc<Directory>, clock: Arc<dyn Clock>) {
    loop {
        tokio::time::sleep(MAKE_EVERY).await;
        if !directory.has_first_tokens() {
            continue;
        }
        let (directory, now) = (Arc::clone(&directory), clock.now());
        let made = tokio::task::spawn_blocking(move || directory.make_token_users(now)).await;
        if let Ok(Ok(count @ 1..)) = made {
            tracing::debug!(count, "records of users were made by their first tokens");
        }
    }
}
