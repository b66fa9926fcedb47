//! The stores of client data: opened with the server, and cleaned while it runs. A full disk does not prevent a start;
//! work that could not be done is retried. Knows no object.

use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_admin::DataDirLock;
use headrace_config::ServerSettings;
use headrace_domain::UnixNanos;
use headrace_gateway::Gateway;
use headrace_objects::{AnswerStore, BatchStore, FileLimits, ObjectError, ObjectLimits, ObjectStore};
use headrace_store::disk::{DiskGuard, DiskSpace};
use headrace_store::{OwnerSource, Storage, StorageUrl};
use headrace_terminal::output;
use tokio::runtime::Handle;

use crate::datadir::{self, DataDir};
use crate::health::WatchedStore;

/// Interval at which expired objects are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Interval of retries to take over what an earlier process left, while the disk prevents it.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Interval at which a gateway looks for batches that it is to run, or to cancel, in stores that others share.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Number of looks between two looks for background responses of gateways that have ended.
const RESPONSES_EVERY: u32 = 5;

/// The stores of client data.
pub(crate) struct ObjectStores {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) files: Arc<dyn BatchStore>,
    /// Answers that repeated requests get again.
    pub(crate) answers: Arc<dyn AnswerStore>,
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
    pub(crate) fn open(
        data_dir: &DataDir,
        config: &ServerSettings,
        owner: OwnerSource,
    ) -> Result<Self, String> {
        if let Some(shared) = Self::open_shared(data_dir, config, owner).map_err(|error| error.to_string())? {
            return Ok(shared);
        }
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
        let answers = storage.answers(config.storage.max_answers_bytes, Some(guard.clone()));
        let answers = answers.map_err(|error| error.to_string())?;
        let limits = FileLimits { max_total_bytes, ..config.files };
        let files = storage.batches(limits, Some(guard)).map_err(|error| error.to_string())?;
        let objects = objects.map_err(|error| error.to_string())?;
        Ok(Self::new(objects, files, answers, lock))
    }

    /// Opens the stores of a database. `None` if this server has its stores for itself.
    fn open_shared(
        data_dir: &DataDir,
        config: &ServerSettings,
        owner: OwnerSource,
    ) -> Result<Option<Self>, ObjectError> {
        let storage = data_dir.storage();
        // The database's disk is not this machine's.
        let max_total_bytes = config.storage.total_on(None);
        let limits = ObjectLimits { max_total_bytes, ..config.objects };
        let Some(objects) = storage.shared_objects(limits, Arc::clone(&owner))? else { return Ok(None) };
        let limits = FileLimits { max_total_bytes, ..config.files };
        let Some(files) = storage.shared_batches(limits, owner)? else { return Ok(None) };
        if config.storage.objects_dir.is_some() {
            output::note("warning: `objects_dir` is not used: the database has the objects of clients");
        }
        let answers = storage.answers(config.storage.max_answers_bytes, None)?;
        Ok(Some(Self::new(objects, files, answers, None)))
    }

    fn new(
        objects: Arc<dyn ObjectStore>,
        files: Arc<dyn BatchStore>,
        answers: Arc<dyn AnswerStore>,
        lock: Option<DataDirLock>,
    ) -> Self {
        let watched = [WatchedStore::objects(&objects), WatchedStore::files(&files)];
        Self { objects, files, answers, watched, _lock: lock }
    }
}

/// Marks unfinished responses of an earlier process as failed, and resumes its batches. A task retries what cannot be
/// done now.
pub(crate) fn take_over(runtime: &Handle, gateway: &Arc<Gateway>, started: UnixNanos, is_shared: bool) {
    // The batches of shared stores may be other gateways' own.
    let mut left = LeftoverWork { responses: true, batches: !is_shared, started };
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

/// Runs the batches that gateways with the same stores left when they ended, and ends those that a client cancelled
/// through another gateway. Marks background responses of ended gateways as failed. Until the gateway is gone.
pub(crate) async fn follow_others(gateway: Weak<Gateway>) {
    let mut is_failing = false;
    for round in 0_u32.. {
        tokio::time::sleep(FOLLOW_EVERY).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let followed = async {
            let count = gateway.follow_batches().await?;
            if count > 0 {
                output::note(&format!("{count} batches of a gateway that has ended continue here"));
            }
            if round.is_multiple_of(RESPONSES_EVERY) {
                let count = gateway.resources().fail_unfinished().await?;
                if count > 0 {
                    output::note(&format!("{count} background responses of a gateway that has ended failed"));
                }
            }
            Ok::<(), String>(())
        };
        match followed.await {
            Ok(()) => is_failing = false,
            Err(why) if !is_failing => {
                is_failing = true;
                tracing::warn!(why, "batches of other gateways cannot be read; trying again");
            }
            Err(_) => {}
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
        if let Err(why) = gateway.sweep_answers().await {
            tracing::warn!(
                why,
                "stored answers that have expired cannot be removed; they are not returned, either"
            );
        }
    }
}
