//! A running background response: its events so far, for followers that may start at any event. Knows no store.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use headrace_call_api::MemoryReservation;
use headrace_call_state::{
    KeptCallHandle,
    delivery::{self, Delivery},
    unauthenticated,
};
use headrace_domain::{Code, OrgId, ProjectId};
use headrace_identity::AuthRefusal;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes that may wait for a follower before it gets no more.
const FOLLOWER_BYTES: usize = 64 * 1024;

/// Copies of a response's events that its storing makes, besides the one that followers read.
const STORED_COPIES: u64 = 4;

/// The state of a running response.
pub(crate) struct RunningResponse {
    pub(crate) project: ProjectId,
    /// The organisation whose slots the response uses.
    pub(crate) org: OrgId,
    /// Cancelled when the response is to end.
    pub(crate) cancel: CancellationToken,
    log: Mutex<EventLog>,
    progress: watch::Sender<LogProgress>,
    most_bytes: usize,
    memory: MemoryReservation,
}

#[derive(Default)]
struct EventLog {
    events: Vec<Bytes>,
    bytes: usize,
    /// Events are not kept: they became too many, or none were to be kept. The response cannot be followed.
    given_up: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LogProgress {
    events: usize,
    done: bool,
}

/// The next step of a follower.
enum NextEvent {
    Event(Bytes),
    Wait,
    /// No more events come. `whole` means that the answer ended well, so the stream ends with `[DONE]`.
    Over {
        whole: bool,
    },
    Lost,
}

impl RunningResponse {
    /// A response without events. Keeps up to `most_bytes` of events, reserved from `memory`. With 0, it keeps none.
    pub(crate) fn new(
        (project, org): (ProjectId, OrgId),
        most_bytes: usize,
        memory: MemoryReservation,
    ) -> Self {
        let cancel = CancellationToken::new();
        let log = Mutex::new(EventLog { given_up: most_bytes == 0, ..EventLog::default() });
        Self { project, org, cancel, log, progress: watch::Sender::default(), most_bytes, memory }
    }

    /// Adds an event: its data as JSON.
    pub(crate) fn push(&self, event: Bytes) {
        {
            let mut log = self.log.lock();
            let bytes = log.bytes + event.len();
            if log.given_up || bytes > self.most_bytes || self.memory.add(event.len() as u64).is_err() {
                *log = EventLog { given_up: true, ..EventLog::default() };
            } else {
                log.bytes = bytes;
                log.events.push(event);
            }
        }
        self.progress.send_modify(|progress| progress.events += 1);
    }

    /// Marks the end: no more events come, and the result can be looked up.
    pub(crate) fn is_over(&self) {
        self.progress.send_modify(|progress| progress.done = true);
    }

    /// Waits for the end, at most for `within`.
    pub(crate) async fn ended(&self, within: Duration) {
        let mut progress = self.progress.subscribe();
        let _ = tokio::time::timeout(within, progress.wait_for(|progress| progress.done)).await;
    }

    /// All events as a JSON list. `None` if some are missing or there is no memory to store them.
    pub(crate) fn events(&self) -> Option<String> {
        let log = self.log.lock();
        // The list, and the store's copies of it.
        if log.given_up || self.memory.add((log.bytes as u64).saturating_mul(STORED_COPIES)).is_err() {
            return None;
        }
        let events: Vec<&str> =
            log.events.iter().filter_map(|event| std::str::from_utf8(event).ok()).collect();
        Some(format!("[{}]", events.join(",")))
    }

    /// Whether all events so far are available.
    pub(crate) fn has_events(&self) -> bool {
        !self.log.lock().given_up
    }

    fn next(&self, at: usize) -> NextEvent {
        let done = self.progress.borrow().done;
        let log = self.log.lock();
        match log.events.get(at) {
            _ if log.given_up => NextEvent::Lost,
            Some(event) => NextEvent::Event(event.clone()),
            None if done => {
                NextEvent::Over { whole: log.events.last().is_some_and(|event| ends_well(event)) }
            }
            None => NextEvent::Wait,
        }
    }

    /// A stream of the events from number `from` on. A follower that stops reading delays no other. `kept_call` belongs to
    /// the follower: the stream ends when the follower's key is no longer valid.
    pub(crate) fn follow(
        self: &Arc<Self>,
        from: usize,
        keep_alive: Duration,
        memory: MemoryReservation,
        mut kept_call: KeptCallHandle,
    ) -> Delivery {
        let (sender, delivery) = delivery::channel(FOLLOWER_BYTES, Arc::new(memory));
        let running = Arc::clone(self);
        tokio::spawn(async move {
            let (mut at, mut progress) = (from, running.progress.subscribe());
            let mut quiet_until = Instant::now() + keep_alive;
            loop {
                if sender.abort_reason().is_some() {
                    return;
                }
                if let Some(refusal) = kept_call.key_refusal() {
                    // The follower may no longer get what waits for it.
                    if sender.cut().within {
                        return sender.break_off();
                    }
                    sender.push(&mut as_sse(&key_over(&refusal)), 0);
                    return sender.finish();
                }
                if sender.is_full() {
                    tokio::select! {
                        () = sender.reader_moved() => {}
                        () = kept_call.next() => {}
                    }
                    continue;
                }
                match running.next(at) {
                    NextEvent::Event(event) => {
                        sender.push(&mut as_sse(&event), 0);
                        at += 1;
                        quiet_until = Instant::now() + keep_alive;
                    }
                    NextEvent::Over { whole } => {
                        if whole {
                            sender.push(&mut BytesMut::from(END), 0);
                        }
                        return sender.finish();
                    }
                    NextEvent::Lost => return sender.break_off(),
                    NextEvent::Wait => tokio::select! {
                        _ = progress.changed() => {}
                        () = sender.reader_moved() => {}
                        () = kept_call.next() => {}
                        () = tokio::time::sleep_until(quiet_until) => {
                            sender.push(&mut BytesMut::from(": keep-alive\n\n"), 0);
                            quiet_until = Instant::now() + keep_alive;
                        }
                    },
                }
            }
        });
        delivery
    }
}

/// The end of a successful stream.
pub(crate) const END: &str = "data: [DONE]\n\n";

/// Whether an answer with this last event ended well.
pub(crate) fn ends_well(event: &[u8]) -> bool {
    let kind = serde_json::from_slice::<BackgroundEventKind<'_>>(event);
    kind.is_ok_and(|kind| matches!(kind.kind, "response.completed" | "response.incomplete"))
}

/// The last event for a follower whose key is no longer valid.
fn key_over(refusal: &AuthRefusal) -> Vec<u8> {
    let (code, message) = match refusal {
        AuthRefusal::OwnerInactive => (
            Code::UserInactive,
            "The caller's user or service account was deactivated while the events were followed.",
        ),
        refusal => (
            unauthenticated(refusal).code,
            "The API key was revoked or has expired while the events were followed.",
        ),
    };
    let code = code.name();
    serde_json::json!({"type": "error", "code": code, "message": message, "param": null})
        .to_string()
        .into_bytes()
}

/// Formats an event for a stream, named by its own type.
pub(crate) fn as_sse(event: &[u8]) -> BytesMut {
    let mut out = BytesMut::with_capacity(event.len() + 64);
    let kind = serde_json::from_slice::<BackgroundEventKind<'_>>(event);
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(kind.as_ref().map_or("message", |kind| kind.kind).as_bytes());
    out.extend_from_slice(b"\ndata: ");
    out.extend_from_slice(event);
    out.extend_from_slice(b"\n\n");
    out
}

#[derive(serde::Deserialize)]
struct BackgroundEventKind<'a> {
    #[serde(rename = "type", borrow)]
    kind: &'a str,
}

/// Splits a stream into the data of its events.
#[derive(Default)]
pub(crate) struct ReplaySplitter {
    held: BytesMut,
}

impl ReplaySplitter {
    /// Adds bytes of the stream. Calls `each` with the data of every complete event, except comments and the end
    /// marker.
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Bytes)) {
        self.held.extend_from_slice(bytes);
        while let Some(end) = self.held.windows(2).position(|pair| pair == b"\n\n") {
            let block = self.held.split_to(end + 2).freeze();
            let mut at = 0;
            for line in block.split(|byte| *byte == b'\n') {
                if let Some(data) = line.strip_prefix(b"data: ".as_slice())
                    && data != b"[DONE]"
                {
                    each(block.slice(at + b"data: ".len()..at + line.len()));
                }
                at += line.len() + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_at_its_events_however_it_comes() {
        let stream = ": hi\n\nevent: a\ndata: {\"type\":\"a\",\"n\":0}\n\nevent: b\ndata: {\"type\":\"b\"}\n\ndata: [DONE]\n\n";
        for width in [1, 3, 7, stream.len()] {
            let (mut splitter, mut events) = (ReplaySplitter::default(), Vec::new());
            stream
                .as_bytes()
                .chunks(width)
                .for_each(|chunk| splitter.push(chunk, |event| events.push(event)));
            assert_eq!(events, [&b"{\"type\":\"a\",\"n\":0}"[..], b"{\"type\":\"b\"}"], "{width}");
            assert_eq!(&as_sse(&events[1])[..], b"event: b\ndata: {\"type\":\"b\"}\n\n");
        }
    }
}
