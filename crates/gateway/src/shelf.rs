//! The store of what clients store, asked off the event loop, and what is worked on for it. Knows no SQL and no path.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Code, UnixNanos};
use headrace_objects::{BatchStore, ItemRecord, ObjectError, ObjectStore, ResponseRecord};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use crate::batches::places::Batches;
use crate::objects::running::Running;
use crate::refused::Why;

/// Questions to the store that are answered at once. Memory for what they read is reserved before they are asked.
const SEATS: usize = 32;
/// Responses that are on their way to the store at once: who stopped waiting for one leaves it there, also where a disk hangs.
const PUTS: usize = 256;

/// How long a client waits that met a full disk.
const FULL_WAIT: Duration = Duration::from_secs(30);

/// The store, and what is worked on for it.
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    /// Files and batches; `None`: they are not kept here.
    files: Option<Arc<dyn BatchStore>>,
    seats: Arc<Semaphore>,
    puts: Arc<Semaphore>,
    /// Responses in the background, by their ids.
    pub(crate) running: Mutex<HashMap<String, Arc<Running>>>,
    batches: Batches,
    retention: Duration,
}

impl Objects {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        files: Option<Arc<dyn BatchStore>>,
        retention: Duration,
    ) -> Self {
        Self {
            store,
            files,
            seats: Arc::new(Semaphore::new(SEATS)),
            puts: Arc::new(Semaphore::new(PUTS)),
            running: Mutex::default(),
            batches: Batches::default(),
            retention,
        }
    }

    /// Asks the store, off the event loop.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn ObjectStore) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Why> {
        let store = Arc::clone(&self.store);
        self.blocking(move || ask(&*store)).await
    }

    /// Refuses what is to be stored if the last look at the disk found no room. Never waits.
    pub(crate) fn check_room(&self) -> Result<(), Why> {
        if self.store.is_full() {
            let why = "there was none at the last look".to_owned();
            return Err(Why::of_objects(&ObjectError::DiskFull { why }));
        }
        Ok(())
    }

    /// Stores a response, or what it has become; with `items`, adds those to its conversation.
    pub(crate) async fn put(&self, response: ResponseRecord, items: Vec<ItemRecord>) -> Result<(), Why> {
        // It is never closed. Its place is free again when the store has said what became of it, whoever still waits for that.
        let place = Arc::clone(&self.puts).acquire_owned().await;
        let (tell, told) = oneshot::channel();
        let told_to = Box::new(move |done| {
            drop(place);
            // Who asked may be gone by then.
            let _ = tell.send(done);
        });
        self.store.put_response_then(response, items, told_to);
        told.await.map_or_else(|_| Err(stopped()), |done| done.map_err(|error| Why::of_objects(&error)))
    }

    /// Asks the store of files, off the event loop.
    pub(crate) async fn ask_files<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn BatchStore) -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Why> {
        let Some(store) = self.files() else {
            return Err(Why::new(Code::NotFound, "Files and batches are not kept here."));
        };
        self.blocking(move || ask(&*store)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
    ) -> Result<T, Why> {
        self.off_loop(ask).await?.map_err(|error| Why::of_objects(&error))
    }

    /// Does something that takes a while, off the event loop, within the bound of what is done at once.
    pub(crate) async fn off_loop<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Why> {
        // It is never closed. The work keeps it to its end, also if its caller stops waiting.
        let seat = Arc::clone(&self.seats).acquire_owned().await;
        let work = move || {
            let _seat = seat;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| stopped())
    }

    /// What batches share.
    pub(crate) const fn batches(&self) -> &Batches {
        &self.batches
    }

    /// The store of files, if there is one.
    pub(crate) fn files(&self) -> Option<Arc<dyn BatchStore>> {
        self.files.clone()
    }

    /// When what is stored now is gone.
    pub(crate) fn expires(&self, now: UnixNanos) -> UnixNanos {
        now.after(self.retention)
    }
}

fn stopped() -> Why {
    Why::new(Code::ObjectsUnavailable, "The look-up was stopped. Try again.")
}

impl Why {
    /// Nothing was stored or found.
    pub(crate) fn of_objects(error: &ObjectError) -> Self {
        match error {
            ObjectError::Full { rule, limit, observed } => Self::new(Code::ObjectsFull, format!("{error}."))
                .with_limit(rule, "objects", *limit, *observed),
            ObjectError::DiskFull { why } => {
                tracing::warn!(why, "the disk has no room for objects");
                let message = "The server's disk has no room for what clients store. Delete files, send `store: false`, or try again later.";
                Self::new(Code::DiskFull, message).retry_after(FULL_WAIT)
            }
            ObjectError::Grew => {
                let message = "What is read was added to meanwhile. Try again.";
                Self::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
            }
            ObjectError::Unavailable { why } => {
                tracing::error!(why, "objects cannot be stored or read");
                let message =
                    "What clients store cannot be written or read now. Try again, or send `store: false`.";
                Self::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
            }
        }
    }
}
