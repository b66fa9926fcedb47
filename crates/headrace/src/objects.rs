//! The store of what clients store: opened with the server, tidied while it runs. Knows no object.

use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_gateway::Gateway;
use headrace_objects::{BatchStore, FileLimits, ObjectLimits, ObjectStore};
use headrace_store::files::SqliteFiles;
use headrace_store::objects::SqliteObjects;

use crate::datadir::{self, DataDir};
use crate::output;

/// How often what has expired is removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Opens the store of a data directory.
///
/// # Errors
/// Why it cannot be.
pub(crate) fn open(data_dir: &DataDir, limits: ObjectLimits) -> Result<Arc<dyn ObjectStore>, String> {
    let store = SqliteObjects::open(&datadir::objects_file(data_dir.path()), limits);
    Ok(Arc::new(store.map_err(|error| error.to_string())?))
}

/// Opens the store of files of a data directory.
///
/// # Errors
/// Why it cannot be.
pub(crate) fn open_files(data_dir: &DataDir, limits: FileLimits) -> Result<Arc<dyn BatchStore>, String> {
    let store = SqliteFiles::open(&datadir::files_file(data_dir.path()), limits);
    Ok(Arc::new(store.map_err(|error| error.to_string())?))
}

/// Says of responses that a process before this one left that they failed, before anybody begins another one.
pub(crate) fn take_over(runtime: &tokio::runtime::Runtime, gateway: &Gateway) {
    match runtime.block_on(gateway.fail_unfinished()) {
        Ok(0) => {}
        Ok(count) => output::note(&format!(
            "{count} responses in the background were cut off by the last stop: they failed"
        )),
        Err(why) => {
            output::note(&format!("warning: responses that the last stop cut off cannot be told so: {why}"))
        }
    }
}

/// Goes on with the batches that a process before this one left.
pub(crate) fn resume(runtime: &tokio::runtime::Runtime, gateway: &Arc<Gateway>) {
    match runtime.block_on(gateway.resume_batches()) {
        Ok(0) => {}
        Ok(count) => output::note(&format!("{count} batches that the last stop cut off go on")),
        Err(why) => output::note(&format!("warning: batches that the last stop cut off do not go on: {why}")),
    }
}

/// Removes what has expired, until the gateway is gone.
pub(crate) async fn tend(gateway: Weak<Gateway>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(gateway) = gateway.upgrade() else { return };
        if let Err(why) = gateway.sweep_objects().await {
            tracing::warn!(why, "what has expired cannot be removed; it is not shown, either");
        }
    }
}
