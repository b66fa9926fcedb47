//! Writes when keys were last used, off the path of calls, and reads it from other gateways. Must not know requests.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Clock, UnixNanos};
use headrace_identity::Directory;

/// Interval of the writes. A key is written at most once a minute.
const SYNC_EVERY: Duration = Duration::from_secs(15);
/// Uses that were written before this time were loaded with the keys.
const LOADED_BEFORE: Duration = Duration::from_secs(300);

/// Writes and reads uses of keys until the future is dropped. A store that fails is logged by the health checks.
pub(super) async fn sync(directory: Arc<Directory>, clock: Arc<dyn Clock>) {
    let back = u64::try_from(LOADED_BEFORE.as_nanos()).unwrap_or(u64::MAX);
    let mut since = UnixNanos::new(clock.now().get().saturating_sub(back));
    loop {
        tokio::time::sleep(SYNC_EVERY).await;
        let directory = Arc::clone(&directory);
        let synced = tokio::task::spawn_blocking(move || directory.sync_key_uses(since)).await;
        if let Ok(Ok(newer)) = synced {
            since = newer;
        }
    }
}
