//! An answer in progress. Its reader polls it, so it has no task of its own. Must not know a dialect beyond the two
//! markers that end streams.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use headrace_engine_api::{RelayAnswer, RelayError, RelayEvent, RelayWait, RelayedEvent};
use reqwest::Body;
use serde::de::IgnoredAny;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::ask::{AnswerHead, BodyForm, PostRequest, ask, beginning};
use crate::body::{BoundedWait, poll_bytes};
use crate::budget::AnswerBudget;
use crate::fault;
use crate::gate::ConcurrencySlot;
use crate::server::UpstreamServer;
use headrace_relay::{EventSplitter, SplitEvent};
use headrace_wire::sse::SseError;

/// After a stream's last event, the time and the bytes within which the end of the transfer may follow. A connection
/// that is dropped before that end cannot be reused.
const TAIL_WAIT: Duration = Duration::from_millis(250);
const TAIL_BYTES: usize = 4096;
/// Number of bytes of a stream that are collected before its events are handed out. Collecting continues only while
/// every turn of the runtime brings more bytes.
const TOGETHER: usize = 16 * 1024;

/// An answer in progress. Dropping it cancels the call: the connection is closed, or the HTTP/2 stream reset.
pub(crate) struct UpstreamAnswer {
    server: Arc<UpstreamServer>,
    budget: AnswerBudget,
    at: AnswerState,
}

enum AnswerState {
    Asking(Pin<Box<dyn Future<Output = Result<AnswerHead, RelayError>> + Send>>),
    Events(Box<EventStream>),
    Whole(Box<WholeAnswer>),
    Over,
}

/// A streamed answer.
struct EventStream {
    body: Body,
    splitter: EventSplitter,
    coming: ChunkOutlook,
    idle: BoundedWait,
    /// Timeout for the next event of the answer. Comments and pings do not count.
    event: BoundedWait,
    /// The first byte was checked: the body is neither a JSON object nor an HTML page.
    judged: bool,
    /// At least one event has arrived.
    any: bool,
    /// The event that ends a stream of either dialect has arrived.
    ended: bool,
    /// Deadline of the answer, if it turns out to be a whole one.
    deadline: Instant,
    place: ConcurrencySlot,
}

/// Decides whether more bytes are likely to arrive at once. A connection hands over one chunk of a transfer at a time
/// and needs a turn of the runtime between two chunks. If the reader grants that turn, bytes that were sent together
/// arrive together, and all of them are processed and written at once.
#[derive(Default)]
struct ChunkOutlook {
    /// Bytes since the last event that was handed out.
    together: usize,
    /// The connection was given a turn.
    has_turn: bool,
    /// The turn brought no more bytes.
    over: bool,
    /// How the body ended. Reported after the events that are still to be handed out.
    end: Option<Result<(), RelayError>>,
}

/// A whole answer.
struct WholeAnswer {
    body: Body,
    wait: BoundedWait,
    /// Its length in bytes, if the head states it, or 0.
    length: usize,
    /// The first piece. Most answers have only one.
    first: Bytes,
    /// All pieces, if there are several. Memory was reserved for its capacity.
    all: Vec<u8>,
    _place: ConcurrencySlot,
}

/// The result of reading a stream.
enum StreamStep {
    Event(RelayedEvent),
    /// The body is a whole answer instead of a stream. Holds its first bytes.
    Whole(Bytes),
    End,
}

impl UpstreamAnswer {
    pub(crate) fn new(server: Arc<UpstreamServer>, post: PostRequest) -> Self {
        server.counters.begin(post.body.len());
        let budget = AnswerBudget::new(post.bounds.clone());
        let asking = Box::pin(ask(Arc::clone(&server), post, Instant::now()));
        Self { server, budget, at: AnswerState::Asking(asking) }
    }

    fn failed(&mut self, error: RelayError) -> Option<RelayEvent> {
        self.server.counters.failed(&error);
        self.at = AnswerState::Over;
        Some(RelayEvent::Failed(error))
    }

    fn begin(&mut self, begun: AnswerHead) -> Option<RelayEvent> {
        let spec = &self.server.spec;
        let AnswerHead { head, body, form, length, deadline, place } = begun;
        if let Some(length) = length.filter(|_| form == BodyForm::Whole) {
            let fits = within(length, spec.bounds.body_bytes).and_then(|()| self.budget.expect(length));
            if let Err(error) = fits {
                return self.failed(error);
            }
        }
        self.at = match form {
            BodyForm::Whole => AnswerState::Whole(Box::new(WholeAnswer::new(body, length, deadline, place))),
            BodyForm::EventsOrWhole => AnswerState::Events(Box::new(EventStream {
                body,
                splitter: EventSplitter::with_limit(self.budget.event_bytes(spec.bounds.event_bytes)),
                coming: ChunkOutlook::default(),
                idle: BoundedWait::new(spec.timeouts.idle),
                event: BoundedWait::new(spec.timeouts.whole),
                judged: false,
                any: false,
                ended: false,
                deadline,
                place,
            })),
        };
        Some(RelayEvent::Head(head))
    }

    /// Switches from a stream to a whole answer.
    fn turn_whole(&mut self, first: Bytes) -> Result<(), RelayError> {
        if let AnswerState::Events(events) = std::mem::replace(&mut self.at, AnswerState::Over) {
            let mut whole = WholeAnswer::new(events.body, None, events.deadline, events.place);
            whole.take(first, self.server.spec.bounds.body_bytes, &mut self.budget)?;
            self.at = AnswerState::Whole(Box::new(whole));
        }
        Ok(())
    }
}

impl RelayAnswer for UpstreamAnswer {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayEvent>> {
        loop {
            let result = match &mut self.at {
                AnswerState::Over => return Poll::Ready(None),
                AnswerState::Asking(asking) => match ready!(asking.as_mut().poll(cx)) {
                    Ok(begun) => return Poll::Ready(self.begin(begun)),
                    Err(error) => Err(error),
                },
                AnswerState::Events(events) => {
                    match ready!(events.poll(cx, &self.server, &mut self.budget)) {
                        Ok(StreamStep::Event(event)) => return Poll::Ready(Some(RelayEvent::Event(event))),
                        Ok(StreamStep::End) => {
                            self.at = AnswerState::Over;
                            return Poll::Ready(None);
                        }
                        Ok(StreamStep::Whole(first)) => self.turn_whole(first),
                        Err(error) => Err(error),
                    }
                }
                AnswerState::Whole(whole) => match ready!(whole.poll(cx, &self.server, &mut self.budget)) {
                    Ok(body) => {
                        self.at = AnswerState::Over;
                        return Poll::Ready(Some(RelayEvent::Whole(body)));
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = result {
                return Poll::Ready(self.failed(error));
            }
        }
    }
}

impl Drop for UpstreamAnswer {
    fn drop(&mut self) {
        let at = std::mem::replace(&mut self.at, AnswerState::Over);
        let ended = match &at {
            AnswerState::Over => true,
            AnswerState::Events(events) => events.ended,
            AnswerState::Asking(_) | AnswerState::Whole(_) => false,
        };
        self.server.counters.end(!ended);
        if let (AnswerState::Events(events), true) = (at, ended) {
            read_tail(events.body);
        }
    }
}

impl EventStream {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        server: &UpstreamServer,
        budget: &mut AnswerBudget,
    ) -> Poll<Result<StreamStep, RelayError>> {
        loop {
            if self.coming.is_over() {
                match self.splitter.next_event() {
                    Ok(Some(event)) => return Poll::Ready(Ok(self.event(event))),
                    Ok(None) => {
                        self.coming = ChunkOutlook { end: self.coming.end.take(), ..ChunkOutlook::default() }
                    }
                    Err(error) => return Poll::Ready(Err(unreadable(error))),
                }
            }
            if let Some(end) = self.coming.end.take() {
                return Poll::Ready(self.end(end));
            }
            let bytes = match poll_bytes(&mut self.body, cx) {
                Poll::Ready(Some(Ok(bytes))) => bytes,
                Poll::Ready(Some(Err(error))) => {
                    self.coming.end = Some(Err(fault::within_the_body(&error)));
                    continue;
                }
                Poll::Ready(None) => {
                    self.coming.end = Some(Ok(()));
                    continue;
                }
                Poll::Pending if self.coming.has_turn => {
                    self.coming.over = true;
                    continue;
                }
                Poll::Pending if self.coming.together > 0 => {
                    self.coming.has_turn = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => {
                    let (what, after) = match self.idle.poll(cx) {
                        Poll::Ready(after) => (RelayWait::Idle, after),
                        Poll::Pending => (RelayWait::Event, ready!(self.event.poll(cx))),
                    };
                    return Poll::Ready(Err(RelayError::Timeout { what, after }));
                }
            };
            self.idle.over();
            server.counters.received(bytes.len());
            // A buffer that grows by doubling has a capacity of up to twice its length.
            let counted = budget.count(bytes.len());
            let kept = self.splitter.buffered().saturating_add(bytes.len()).saturating_mul(2);
            if let Err(error) = counted.and_then(|()| budget.keep(kept)) {
                return Poll::Ready(Err(error));
            }
            match first_byte(&bytes).filter(|_| !self.judged) {
                Some(b'{') => return Poll::Ready(Ok(StreamStep::Whole(bytes))),
                Some(b'<') => {
                    let what = "a page of HTML".to_owned();
                    let beginning = beginning(server, &bytes);
                    return Poll::Ready(Err(RelayError::NotTheDialect { what, beginning }));
                }
                Some(_) => self.judged = true,
                None => {}
            }
            self.coming.more(bytes.len());
            self.splitter.push(bytes);
        }
    }

    fn event(&mut self, event: SplitEvent) -> StreamStep {
        let SplitEvent { raw, name, data } = event;
        self.any = true;
        if !is_ping(&name, &data) {
            self.event.over();
        }
        self.ended |= data == "[DONE]" || name == "message_stop";
        StreamStep::Event(RelayedEvent { raw, name, data })
    }

    /// Handles the end of the connection, clean or with a fault. A last event without its blank line is returned first.
    fn end(&mut self, end: Result<(), RelayError>) -> Result<StreamStep, RelayError> {
        if let Some(event) = self.splitter.finish() {
            self.coming.end = Some(end);
            return Ok(self.event(event));
        }
        let within = self.splitter.is_mid_event();
        if let Some(event) = self.splitter.unfinished().filter(|event| is_readable(&event.data)) {
            self.coming.end = Some(end);
            return Ok(self.event(event));
        }
        end?;
        if within {
            return Err(RelayError::Cut { why: "it ended within an event".to_owned() });
        }
        if self.any {
            return Ok(StreamStep::End);
        }
        let what = if self.judged { "a stream without an event" } else { "an empty body" };
        Err(RelayError::NotTheDialect { what: what.to_owned(), beginning: String::new() })
    }
}

impl ChunkOutlook {
    fn more(&mut self, bytes: usize) {
        (self.together, self.has_turn) = (self.together + bytes, false);
    }

    /// Returns whether the bytes received so far are to be handed out.
    fn is_over(&self) -> bool {
        self.over || self.end.is_some() || self.together == 0 || self.together >= TOGETHER
    }
}

impl WholeAnswer {
    fn new(body: Body, length: Option<u64>, deadline: Instant, place: ConcurrencySlot) -> Self {
        let wait = BoundedWait::new(deadline.saturating_duration_since(Instant::now()));
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        Self { body, wait, length, first: Bytes::new(), all: Vec::new(), _place: place }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        server: &UpstreamServer,
        budget: &mut AnswerBudget,
    ) -> Poll<Result<Bytes, RelayError>> {
        loop {
            match poll_bytes(&mut self.body, cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    server.counters.received(bytes.len());
                    let counted = budget.count(bytes.len());
                    let taken =
                        counted.and_then(|()| self.take(bytes, server.spec.bounds.body_bytes, budget));
                    if let Err(error) = taken {
                        return Poll::Ready(Err(error));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(fault::within_the_body(&error))),
                Poll::Ready(None) => return Poll::Ready(self.end(server)),
                Poll::Pending => {
                    ready!(self.wait.poll(cx));
                    let after = server.spec.timeouts.whole;
                    return Poll::Ready(Err(RelayError::Timeout { what: RelayWait::Whole, after }));
                }
            }
        }
    }

    /// Adds the next piece. Memory is reserved before the buffer grows.
    fn take(&mut self, bytes: Bytes, limit: usize, budget: &mut AnswerBudget) -> Result<(), RelayError> {
        let needed = self.first.len().max(self.all.len()) + bytes.len();
        within(needed as u64, limit)?;
        if self.first.is_empty() && self.all.is_empty() {
            budget.keep(bytes.len())?;
            self.first = bytes;
            return Ok(());
        }
        if needed > self.all.capacity() {
            let grown = self.all.capacity().saturating_mul(3) / 2;
            let room = self.length.max(grown.min(limit)).max(needed);
            budget.keep(room)?;
            self.all.reserve_exact(room - self.all.len());
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&bytes);
        Ok(())
    }

    fn end(&mut self, server: &UpstreamServer) -> Result<Bytes, RelayError> {
        let first = std::mem::take(&mut self.first);
        let body = if first.is_empty() { Bytes::from(std::mem::take(&mut self.all)) } else { first };
        let what = match first_byte(&body) {
            Some(b'{') => return Ok(body),
            Some(b'<') => "a page of HTML",
            Some(_) => "no JSON object",
            None => "an empty body",
        };
        Err(RelayError::NotTheDialect { what: what.to_owned(), beginning: beginning(server, &body) })
    }
}

fn within(bytes: u64, limit: usize) -> Result<(), RelayError> {
    if bytes > limit as u64 { Err(RelayError::TooLarge { what: "body", limit }) } else { Ok(()) }
}

/// Returns whether an event only keeps the connection alive: Anthropic's `ping`, or an event without data.
fn is_ping(name: &[u8], data: &[u8]) -> bool {
    name == b"ping" || data.trim_ascii().is_empty()
}

/// Returns whether the data of an unterminated event is complete.
fn is_readable(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(data).is_ok()
}

fn unreadable(error: SseError) -> RelayError {
    match error {
        SseError::TooLong { max_bytes } => RelayError::TooLarge { what: "event", limit: max_bytes },
        SseError::NotUtf8 => {
            let what = "a line that is not UTF-8".to_owned();
            RelayError::NotTheDialect { what, beginning: String::new() }
        }
    }
}

fn first_byte(bytes: &[u8]) -> Option<u8> {
    bytes.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

/// Reads the rest of a transfer whose events have ended, so that its connection can serve the next call.
fn read_tail(mut body: Body) {
    let Ok(runtime) = Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut left = TAIL_BYTES;
        let tail = async {
            while let Some(Ok(bytes)) = poll_fn(|cx| poll_bytes(&mut body, cx)).await {
                match left.checked_sub(bytes.len()) {
                    Some(rest) => left = rest,
                    None => break,
                }
            }
        };
        drop(tokio::time::timeout(TAIL_WAIT, tail).await);
    });
}
