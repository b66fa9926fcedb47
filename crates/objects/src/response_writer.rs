//! Stores responses for callers that do not wait, on one thread. Responses that arrive during a write are written
//! together. A thread for each caller would cost more than the store does. Knows no SQL.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::{ItemRecord, ObjectError, OnStored, ResponseRecord};

/// Maximum responses that are stored together.
pub const MAX_RESPONSE_GROUP: usize = 64;

/// A store to which a [`ResponseWriter`] writes.
pub trait ResponseSink: Send + Sync + 'static {
    /// Checks the limit on the size of one response.
    ///
    /// # Errors
    /// [`ObjectError::Full`] if the response exceeds it.
    fn check_size(&self, response: &ResponseRecord) -> Result<(), ObjectError>;

    /// Stores a response, and adds `items` to its conversation.
    ///
    /// # Errors
    /// As [`crate::ObjectStore::put_response`].
    fn put(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError>;

    /// Stores at most [`MAX_RESPONSE_GROUP`] responses that are within the limit on one and add to no conversation, each as
    /// [`ResponseSink::put`] does. Returns the result of each.
    fn put_each(&self, responses: &[&ResponseRecord]) -> Vec<Result<(), ObjectError>>;
}

/// A response to store.
pub struct PendingResponse {
    /// The response.
    pub response: ResponseRecord,
    /// The items that it adds to its conversation.
    pub items: Vec<ItemRecord>,
    /// Receives the result.
    pub on_stored: OnStored,
}

/// The storing thread. Dropping the handle first stores all waiting responses.
pub struct ResponseWriter {
    /// `None` once no more responses are accepted.
    queue: Option<Sender<PendingResponse>>,
    thread: Option<JoinHandle<()>>,
}

impl ResponseWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the system cannot start a thread.
    pub fn start(sink: &Arc<impl ResponseSink>) -> Result<Self, ObjectError> {
        let (queue, waiting) = channel();
        let sink = Arc::clone(sink);
        let work = move || {
            while let Some(group) = next(&waiting) {
                // After a panic, callers notice that their callback is dropped uncalled.
                let _ = catch_unwind(AssertUnwindSafe(|| store(&*sink, group)));
            }
        };
        let thread = std::thread::Builder::new().name("headrace-objects".to_owned()).spawn(work);
        let thread = thread.map_err(|error| ObjectError::Unavailable { why: error.to_string() })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Stores a response later, and calls its `on_stored`. Never blocks.
    pub fn put(&self, pending: PendingResponse) {
        if let Some(queue) = &self.queue {
            // If the thread is gone, the caller notices that its callback is dropped uncalled.
            let _ = queue.send(pending);
        }
    }
}

impl fmt::Debug for ResponseWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseWriter").finish_non_exhaustive()
    }
}

impl fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResponse").field("response", &self.response.id).finish_non_exhaustive()
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
    group.extend(waiting.try_iter().take(MAX_RESPONSE_GROUP - 1));
    Some(group)
}

/// Stores responses in their order of arrival. One that adds to a conversation is a change of its own, so that those
/// before and after it are stored separately.
fn store(sink: &impl ResponseSink, group: Vec<PendingResponse>) {
    let mut together = Vec::new();
    for pending in group {
        if !pending.items.is_empty() {
            store_together(sink, std::mem::take(&mut together));
            (pending.on_stored)(sink.put(&pending.response, &pending.items));
        } else if let Err(error) = sink.check_size(&pending.response) {
            (pending.on_stored)(Err(error));
        } else {
            together.push(pending);
        }
    }
    store_together(sink, together);
}

fn store_together(sink: &impl ResponseSink, group: Vec<PendingResponse>) {
    if group.is_empty() {
        return;
    }
    let responses: Vec<&ResponseRecord> = group.iter().map(|pending| &pending.response).collect();
    let done = sink.put_each(&responses);
    for (pending, done) in group.into_iter().zip(done) {
        (pending.on_stored)(done);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use headrace_domain::{ProjectId, UnixNanos};

    use super::*;
    use crate::ResponseStatus;

    /// Notes what it stores. The first write waits until the test sends something.
    struct NotingSink {
        noted: Mutex<Vec<String>>,
        gate: Mutex<Option<Receiver<()>>>,
    }

    impl NotingSink {
        fn note(&self, stored: String) {
            let gate = self.gate.lock().unwrap().take();
            if let Some(gate) = gate {
                gate.recv().unwrap();
            }
            self.noted.lock().unwrap().push(stored);
        }
    }

    impl ResponseSink for NotingSink {
        fn check_size(&self, response: &ResponseRecord) -> Result<(), ObjectError> {
            let observed = response.body.len() as u64;
            let full = ObjectError::Full { rule: "max_object_bytes", limit: 1, observed };
            if observed > 1 { Err(full) } else { Ok(()) }
        }

        fn put(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
            self.note(format!("{} with {} items", response.id, items.len()));
            Ok(())
        }

        fn put_each(&self, responses: &[&ResponseRecord]) -> Vec<Result<(), ObjectError>> {
            let ids: Vec<&str> = responses.iter().map(|response| response.id.as_str()).collect();
            self.note(ids.join(" "));
            responses.iter().map(|_| Ok(())).collect()
        }
    }

    fn response(id: &str, body: &str) -> ResponseRecord {
        ResponseRecord {
            id: id.to_owned(),
            project: ProjectId::new("p").unwrap(),
            created: UnixNanos::new(0),
            expires: UnixNanos::new(1),
            status: ResponseStatus::Ended,
            previous: None,
            conversation: None,
            input: String::new(),
            output: String::new(),
            body: body.to_owned(),
            events: None,
        }
    }

    #[test]
    fn responses_that_wait_are_stored_together_and_in_their_order() {
        let (open, gate) = channel();
        let sink = Arc::new(NotingSink { noted: Mutex::default(), gate: Mutex::new(Some(gate)) });
        let writer = ResponseWriter::start(&sink).unwrap();
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let item = || ItemRecord { id: "i".to_owned(), json: "{}".to_owned() };
        for (id, body, items) in [
            ("a", "", 0),
            ("b", "", 0),
            ("c", "", 0),
            ("large", "xx", 0),
            ("d", "", 2),
            ("e", "", 0),
            ("f", "", 0),
        ] {
            let outcomes = Arc::clone(&outcomes);
            let name = id.to_owned();
            let on_stored = Box::new(move |done: Result<(), ObjectError>| {
                outcomes.lock().unwrap().push((name, done.is_ok()));
            });
            let items = (0..items).map(|_| item()).collect();
            writer.put(PendingResponse { response: response(id, body), items, on_stored });
            if id == "a" {
                // The others arrive while the first is written.
                while sink.gate.lock().unwrap().is_some() {
                    std::thread::yield_now();
                }
            }
        }
        open.send(()).unwrap();
        drop(writer);
        assert_eq!(*sink.noted.lock().unwrap(), ["a", "b c", "d with 2 items", "e f"]);
        let outcomes: Vec<(String, bool)> = outcomes.lock().unwrap().clone();
        let refused: Vec<&str> = outcomes.iter().filter(|(_, ok)| !ok).map(|(id, _)| id.as_str()).collect();
        assert_eq!((outcomes.len(), refused), (7, vec!["large"]));
    }
}
