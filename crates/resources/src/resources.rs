//! The stored resources of all clients, and what work on them shares.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::{CallMemory, HoldKeeper, Rejection, RenderGate};
use headrace_domain::{Clock, Code, UnixNanos};
use headrace_identity::Directory;
use headrace_ledger::{LedgerClient, Owner};
use headrace_objects::{BatchStore, FileLimits, ObjectStore};
use headrace_wire::WireLimits;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::stored_objects::StoredObjects;

/// The services that stored resources use, most of them shared with calls.
pub struct ResourceParts {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Organisations, projects and keys.
    pub directory: Arc<Directory>,
    /// The ledger.
    pub ledger: Arc<dyn LedgerClient>,
    /// The ledger owner id of this process.
    pub owner: Owner,
    /// Stores responses and conversations.
    pub objects: Arc<dyn ObjectStore>,
    /// Stores files and batches. `None` if they are not supported.
    pub files: Option<Arc<dyn BatchStore>>,
    /// The memory that requests take.
    pub memory: Arc<CallMemory>,
    /// The gate where long bodies wait.
    pub gate: Arc<RenderGate>,
    /// Watches the keys of followers.
    pub keeper: Arc<HoldKeeper>,
    /// Cancelled when the server stops accepting calls.
    pub draining: CancellationToken,
    /// The tasks that a drain waits for.
    pub tasks: TaskTracker,
}

/// The bounds of stored resources.
#[derive(Debug, Clone)]
pub struct ResourceConfig {
    /// How long objects are kept.
    pub retention: Duration,
    /// Lifetime of a hold that is not settled.
    pub hold_lifetime: Duration,
    /// How often a silent stream gets a keep-alive.
    pub keep_alive: Duration,
    /// Texts longer than this many bytes are read off the event loop.
    pub inline_bytes: usize,
    /// Bounds on what a request may contain.
    pub wire: WireLimits,
}

/// The stored resources of all clients.
pub struct StoredResources {
    stores: StoredObjects,
    parts: ResourceParts,
    config: ResourceConfig,
}

impl StoredResources {
    /// Creates the resources in the stores of `parts`.
    pub fn new(parts: ResourceParts, config: ResourceConfig) -> Self {
        let stores = StoredObjects::new(Arc::clone(&parts.objects), parts.files.clone(), config.retention);
        Self { stores, parts, config }
    }

    /// Refuses to store anything if the disk was full at the last check. Never waits.
    ///
    /// # Errors
    /// The disk has no room.
    pub fn check_room(&self) -> Result<(), Rejection> {
        self.stores.check_room()
    }

    /// The stores.
    pub(crate) const fn objects(&self) -> &StoredObjects {
        &self.stores
    }

    pub(crate) const fn parts(&self) -> &ResourceParts {
        &self.parts
    }

    pub(crate) const fn config(&self) -> &ResourceConfig {
        &self.config
    }

    pub(crate) fn memory(&self) -> &CallMemory {
        &self.parts.memory
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.parts.draining.is_cancelled()
    }

    pub(crate) fn now(&self) -> UnixNanos {
        self.parts.clock.now()
    }

    /// The bounds on files.
    pub(crate) fn file_limits(&self) -> Result<FileLimits, Rejection> {
        let files = self.objects().files();
        let none = || Rejection::new(Code::NotFound, "Files and batches are not kept here.");
        files.map(|files| files.limits()).ok_or_else(none)
    }
}
