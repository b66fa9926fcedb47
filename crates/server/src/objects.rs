//! The stores of client data: opened with the server, and cleaned while it runs. A full disk does not prevent a start;
//! work that could not be done is retried. Knows no object.

use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_admin::DataDirLock;
use headrace_config::ServerSettings;
use headrace_domain::UnixNanos;
use headrace_gateway::Gateway;
use headrace_objects::{BatchStore, FileLimits, ObjectLimits, ObjectStore};
use headrace_store::disk::{DiskGuard, DiskSpace};
use headrace_store::{Storage, StorageUrl};
use headrace_terminal::output;
use tokio::runtime::Handle;

use crate::datadir::{self, DataDir};
use crate::health::WatchedStore;

/// Interval at which expired objects are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Interval of retries to take over what an earlier process left, while the disk prevents it.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// The stores of client data.
pub(crate) struct ObjectStores {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) files: Arc<dyn BatchStore>,
    /// Whether the stores can be written.
    pub(crate) watched: [WatchedStore; 2],
    /// Keeps other processes out of an object directory that is not the data directory.
    _lock: Option<DataDirLock>,
}

impl ObjectStores {
    /// Opens the stores, in `objects_dir` or in the data directory.
    ///
    /// # Errors
    /// Returns an error if another process has the directory, or a file in it holds something else.
    pub(crate) fn open(data_dir: &DataDir, config: &ServerSettings) -> Result<Self, String> {
        let own = config.storage.objects_dir.as_deref();
        let lock = own.map(datadir::lock_objects).transpose().map_err(|error| error.to_string())?;
        let dir = lock.as_ref().map_or(data_dir.path(), |lock| lock.dir());
        let guard = DiskGuard::of(dir, config.storage.min_free_bytes);
        let max_total_bytes = config.storage.total_on(DiskSpace::of(dir).ok());
        let limits = ObjectLimits { max_total_bytes, ..config.objects };
        // The ballast is on the data directory's disk.
        let ballast = own.is_none().then(|| Arc::clone(data_dir.ballast()));
        let storage = Storage::open(StorageUrl::of_folder(dir), ballast);
        let objects = storage.objects(limits, Some(guard.clone()));
        let limits = FileLimits { max_total_bytes, ..config.files };
        let files = storage.batches(limits, Some(guard)).map_err(|error| error.to_string())?;
        let objects = objects.map_err(|error| error.to_string())?;
        let watched = [WatchedStore::objects(&objects), WatchedStore::files(&files)];
        Ok(Self { objects, files, watched, _lock: lock })
    }
}

/// Marks unfinished responses of an earlier process as failed, and resumes its batches. A task retries what cannot be
/// done now.
pub(crate) fn take_over(runtime: &Handle, gateway: &Arc<Gateway>, started: UnixNanos) {
    let mut left = LeftoverWork { responses: true, batches: true, started };
    runtime.block_on(left.take_over(gateway, true));
    if left.is_some() {
        let gateway = Arc::downgrade(gateway);
        runtime.spawn(async move {
            while left.is_some() {
                tokio::time::sleep(TRY_EVERY).await;
                let Some(gateway) = gateway.upgrade() else { return };
                left.take_over(&gateway, false).await;
            }
        });
    }
}

/// What an earlier process left and has not been taken over yet.
struct LeftoverWork {
    responses: bool,
    batches: bool,
    /// Objects created after this time belong to this process.
    started: UnixNanos,
}

impl LeftoverWork {
    const fn is_some(&self) -> bool {
        self.responses || self.batches
    }

    /// Tries to take over the rest. Only the first attempt reports why it fails.
    async fn take_over(&mut self, gateway: &Arc<Gateway>, is_first: bool) {
        if self.responses {
            match gateway.resources().fail_unfinished_before(self.started).await {
                Ok(count) => {
                    self.responses = false;
                    if count > 0 {
                        output::note(&format!(
                            "{count} responses in the background were cut off by the last stop: they failed"
                        ));
                    }
                }
                Err(why) if is_first => output::note(&format!(
                    "warning: responses that the last stop cut off cannot be marked as failed now: {why}; trying again"
                )),
                Err(_) => {}
            }
        }
        if self.batches {
            match gateway.resume_batches_before(self.started).await {
                Ok(count) => {
                    self.batches = false;
                    if count > 0 {
                        output::note(&format!("{count} batches that the last stop cut off continue"));
                    }
                }
                Err(why) if is_first => output::note(&format!(
                    "warning: batches that the last stop cut off do not continue now: {why}; trying again"
                )),
                Err(_) => {}
            }
        }
    }
}

/// Removes expired objects, until the gateway is gone.
pub(crate) async fn tend(gateway: Weak<Gateway>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(gateway) = gateway.upgrade() else { return };
        if let Err(why) = gateway.resources().sweep_objects().await {
            tracing::warn!(why, "what has expired cannot be removed; it is not shown, either");
        }
    }
}
