//! Stores responses for callers that do not wait, on one thread. Responses that arrive during a write are written
//! together. A thread for each caller would cost more than the disk does. Knows no SQL.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use headrace_objects::{ItemRecord, ObjectError, OnStored, ResponseRecord};

use super::kept::ObjectDatabase;
use crate::grouped::MOST_IN_GROUP;

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
    pub(super) fn start(kept: &Arc<ObjectDatabase>) -> Result<Self, ObjectError> {
        let (queue, puts) = channel();
        let kept = Arc::clone(kept);
        let work = move || {
            while let Some(group) = next(&puts) {
                // After a panic, callers notice that their callback is dropped uncalled.
                let _ = catch_unwind(AssertUnwindSafe(|| store(&kept, group)));
            }
        };
        let thread = std::thread::Builder::new().name("headrace-objects".to_owned()).spawn(work);
        let thread = thread.map_err(|error| ObjectError::Unavailable { why: error.to_string() })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn put(&self, put: PendingResponse) {
        if let Some(queue) = &self.queue {
            // If the thread is gone, the caller notices that its callback is dropped uncalled.
            let _ = queue.send(put);
        }
    }
}

impl Drop for ResponseWriter {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for the first response, then takes all that are waiting. `None` once no more will come.
fn next(puts: &Receiver<PendingResponse>) -> Option<Vec<PendingResponse>> {
    let first = puts.recv().ok()?;
    let mut group = vec![first];
    group.extend(puts.try_iter().take(MOST_IN_GROUP as usize - 1));
    Some(group)
}

/// Stores responses in their order of arrival. One that adds to a conversation is a change of its own, so those before
/// and after it are stored separately.
fn store(kept: &ObjectDatabase, group: Vec<PendingResponse>) {
    let mut together = Vec::new();
    for put in group {
        if !put.items.is_empty() {
            store_together(kept, std::mem::take(&mut together));
            (put.on_stored)(kept.put(&put.response, &put.items));
        } else if let Err(error) = kept.fits(&put.response) {
            (put.on_stored)(Err(error));
        } else {
            together.push(put);
        }
    }
    store_together(kept, together);
}

fn store_together(kept: &ObjectDatabase, puts: Vec<PendingResponse>) {
    let responses: Vec<&ResponseRecord> = puts.iter().map(|put| &put.response).collect();
    let done = kept.put_each(&responses);
    for (put, done) in puts.into_iter().zip(done) {
        (put.on_stored)(done);
    }
}
