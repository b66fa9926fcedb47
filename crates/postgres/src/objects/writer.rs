//! Stores responses for callers that do not wait, on one thread. Responses that arrive during a write are written in one
//! transaction. Knows no SQL.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use headrace_objects::{ItemRecord, ObjectError, OnStored, ResponseRecord};

use super::database::ObjectDatabase;

/// Responses of one transaction.
const MAX_GROUP: usize = 64;

/// A response to store.
pub(super) struct PendingResponse {
    pub(super) response: ResponseRecord,
    pub(super) items: Vec<ItemRecord>,
    pub(super) on_stored: OnStored,
}

/// The storing thread. Dropping the handle first stores all waiting responses.
pub(super) struct ResponseWriter {
    /// `None` once no more responses are accepted.
    queue: Option<Sender<PendingResponse>>,
    thread: Option<JoinHandle<()>>,
}

impl ResponseWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the system cannot start a thread.
    pub(super) fn start(database: &Arc<ObjectDatabase>) -> Result<Self, ObjectError> {
        let (queue, waiting) = channel();
        let database = Arc::clone(database);
        let work = move || {
            while let Some(group) = next(&waiting) {
                // After a panic, callers notice that their callback is dropped uncalled.
                let _ = catch_unwind(AssertUnwindSafe(|| store(&database, group)));
            }
        };
        let thread = std::thread::Builder::new().name("headrace-objects".to_owned()).spawn(work);
        let thread = thread.map_err(|error| ObjectError::Unavailable { why: error.to_string() })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn put(&self, pending: PendingResponse) {
        if let Some(queue) = &self.queue {
            // If the thread is gone, the caller notices that its callback is dropped uncalled.
            let _ = queue.send(pending);
        }
    }
}

impl Drop for ResponseWriter {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic was caught by the thread.
            let _ = thread.join();
        }
    }
}

/// Waits for the first response, then takes all that wait. `None` once no more will come.
fn next(waiting: &Receiver<PendingResponse>) -> Option<Vec<PendingResponse>> {
    let mut group = vec![waiting.recv().ok()?];
    group.extend(waiting.try_iter().take(MAX_GROUP - 1));
    Some(group)
}

/// Stores responses in their order of arrival. One that adds to a conversation is a transaction of its own.
fn store(database: &ObjectDatabase, group: Vec<PendingResponse>) {
    let mut together = Vec::new();
    for pending in group {
        if !pending.items.is_empty() {
            store_together(database, std::mem::take(&mut together));
            (pending.on_stored)(database.put(&pending.response, &pending.items));
        } else if let Err(error) = database.check_size(&pending.response) {
            (pending.on_stored)(Err(error));
        } else {
            together.push(pending);
        }
    }
    store_together(database, together);
}

fn store_together(database: &ObjectDatabase, group: Vec<PendingResponse>) {
    if group.is_empty() {
        return;
    }
    let responses: Vec<&ResponseRecord> = group.iter().map(|pending| &pending.response).collect();
    let done = database.put_each(&responses);
    for (pending, done) in group.into_iter().zip(done) {
        (pending.on_stored)(done);
    }
}
