//! Access to the stores of clients' objects, off the event loop, and the work on stored batches and responses. Knows
//! no SQL and no path.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::{Code, UnixNanos};
use headrace_objects::{BatchStore, ItemRecord, ObjectError, ObjectStore, ResponseRecord};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use crate::running_batches::RunningBatches;
use crate::running_response::RunningResponse;

/// Store operations that run concurrently. Memory for what they read is reserved before they start.
const SLOTS: usize = 32;
/// Responses on their way to the store at once. A response stays counted after its caller stops waiting, even if a
/// disk hangs.
const PUTS: usize = 256;

/// How long a client is asked to wait when the disk is full.
const FULL_WAIT: Duration = Duration::from_secs(30);

/// The stores, and the work in progress on what they hold.
pub(crate) struct StoredObjects {
    store: Arc<dyn ObjectStore>,
    /// Stores files and batches. `None` if they are not supported.
    files: Option<Arc<dyn BatchStore>>,
    slots: Arc<Semaphore>,
    puts: Arc<Semaphore>,
    /// Background responses by id.
    pub(crate) running: Mutex<HashMap<String, Arc<RunningResponse>>>,
    batches: RunningBatches,
    retention: Duration,
}

impl StoredObjects {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        files: Option<Arc<dyn BatchStore>>,
        retention: Duration,
    ) -> Self {
        Self {
            store,
            files,
            slots: Arc::new(Semaphore::new(SLOTS)),
            puts: Arc::new(Semaphore::new(PUTS)),
            running: Mutex::default(),
            batches: RunningBatches::default(),
            retention,
        }
    }

    /// Runs an operation on the object store, off the event loop.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn ObjectStore) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Rejection> {
        let store = Arc::clone(&self.store);
        self.blocking(move || ask(&*store)).await
    }

    /// Refuses to store anything if the disk was full at the last check. Never waits.
    pub(crate) fn check_room(&self) -> Result<(), Rejection> {
        if self.store.is_full() {
            let why = "there was none at the last look".to_owned();
            return Err(object_rejection(&ObjectError::DiskFull { why }));
        }
        Ok(())
    }

    /// Stores a response or its new state. Adds `items`, if any, to its conversation.
    pub(crate) async fn put(
        &self,
        response: ResponseRecord,
        items: Vec<ItemRecord>,
    ) -> Result<(), Rejection> {
        // The semaphore is never closed. The permit is free again once the store has reported the result, whether or
        // not a caller still waits for it.
        let place = Arc::clone(&self.puts).acquire_owned().await;
        let (sender, stored) = oneshot::channel();
        let on_stored = Box::new(move |done| {
            drop(place);
            // The caller may be gone by then.
            let _ = sender.send(done);
        });
        self.store.put_response_then(response, items, on_stored);
        stored.await.map_or_else(|_| Err(stopped()), |done| done.map_err(|error| object_rejection(&error)))
    }

    /// Runs an operation on the file store, off the event loop.
    pub(crate) async fn ask_files<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn BatchStore) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Rejection> {
        let Some(store) = self.files() else {
            return Err(Rejection::new(Code::NotFound, "Files and batches are not kept here."));
        };
        self.blocking(move || ask(&*store)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Rejection> {
        self.off_loop(ask).await?.map_err(|error| object_rejection(&error))
    }

    /// Runs blocking work off the event loop, within the bound on concurrent operations.
    pub(crate) async fn off_loop<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        // The semaphore is never closed. The work keeps its permit to the end, even if its caller stops waiting.
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        let work = move || {
            let _slot = slot;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| stopped())
    }

    /// State that all batches share.
    pub(crate) const fn batches(&self) -> &RunningBatches {
        &self.batches
    }

    /// The file store, if there is one.
    pub(crate) fn files(&self) -> Option<Arc<dyn BatchStore>> {
        self.files.clone()
    }

    /// When an object that is stored now expires.
    pub(crate) fn expires(&self, now: UnixNanos) -> UnixNanos {
        now.after(self.retention)
    }
}

fn stopped() -> Rejection {
    Rejection::new(Code::ObjectsUnavailable, "The look-up was stopped. Try again.")
}

/// The rejection for a failed store operation.
fn object_rejection(error: &ObjectError) -> Rejection {
    match error {
        ObjectError::Full { rule, limit, observed } => Rejection::new(Code::ObjectsFull, format!("{error}."))
            .with_limit(rule, "objects", *limit, *observed),
        ObjectError::DiskFull { why } => {
            tracing::warn!(why, "the disk has no room for objects");
            let message = "The server's disk has no room for what clients store. Delete files, send `store: false`, or try again later.";
            Rejection::new(Code::DiskFull, message).retry_after(FULL_WAIT)
        }
        ObjectError::Grew => {
            let message = "What is read was added to meanwhile. Try again.";
            Rejection::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
        }
        ObjectError::Unavailable { why } => {
            tracing::error!(why, "objects cannot be stored or read");
            let message =
                "What clients store cannot be written or read now. Try again, or send `store: false`.";
            Rejection::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
        }
    }
}
