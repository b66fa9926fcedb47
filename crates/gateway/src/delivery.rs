//! Stage `deliver`: the bounded buffer between the task that owns a request and the transport that reads it.
//! The task never waits for the client; a reader that stops is noticed here and cut off by the task.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use headrace_domain::Clock;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Frames are joined up to this size, so that a reader who lags takes few large ones.
const JOIN_BYTES: usize = 16 * 1024;

/// The transport's end. Dropping it says that the client went away.
pub struct Delivery {
    shared: Arc<Shared>,
}

/// The task's end. Dropping it ends the body.
pub(crate) struct DeliverySender {
    shared: Arc<Shared>,
    limit_bytes: usize,
}

struct Shared {
    state: Mutex<State>,
    /// Told when the reader took something or went away.
    reader: Notify,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Frame>,
    buffered: usize,
    delivered_tokens: u64,
    /// When the reader last took something, or the buffer last became non-empty.
    progress_ns: u64,
    closed: bool,
    reader_gone: bool,
    waker: Option<Waker>,
}

struct Frame {
    bytes: BytesMut,
    /// Tokens of the answer up to the end of this frame.
    tokens: u64,
}

/// A body whose unread part the task may let grow to `limit_bytes` before it pauses.
pub(crate) fn channel(clock: Arc<dyn Clock>, limit_bytes: usize) -> (DeliverySender, Delivery) {
    let shared = Arc::new(Shared { state: Mutex::new(State::default()), reader: Notify::new(), clock });
    (DeliverySender { shared: Arc::clone(&shared), limit_bytes }, Delivery { shared })
}

impl DeliverySender {
    /// Adds bytes; `tokens` is how many of the answer's tokens they complete, from its start.
    pub(crate) fn push(&self, bytes: &mut BytesMut, tokens: u64) {
        if bytes.is_empty() {
            return;
        }
        let waker = {
            let mut state = self.shared.state.lock();
            if state.reader_gone {
                bytes.clear();
                return;
            }
            if state.frames.is_empty() {
                state.progress_ns = self.shared.clock.monotonic_nanos();
            }
            state.buffered += bytes.len();
            match state.frames.back_mut() {
                Some(last) if last.bytes.len() + bytes.len() <= JOIN_BYTES => {
                    last.bytes.extend_from_slice(bytes);
                    last.tokens = tokens;
                    bytes.clear();
                }
                _ => state.frames.push_back(Frame { bytes: bytes.split(), tokens }),
            }
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the unread part has reached its bound.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.state.lock().buffered >= self.limit_bytes
    }

    /// Whether the client went away.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.state.lock().reader_gone
    }

    /// Tokens that the transport has taken.
    pub(crate) fn delivered_tokens(&self) -> u64 {
        self.shared.state.lock().delivered_tokens
    }

    /// How long something has waited for a reader that takes nothing.
    pub(crate) fn stalled_ns(&self) -> u64 {
        let state = self.shared.state.lock();
        if state.frames.is_empty() {
            return 0;
        }
        self.shared.clock.monotonic_nanos().saturating_sub(state.progress_ns)
    }

    /// The reader has only now been given its end: what waited for it until here was not its fault.
    pub(crate) fn handed_out(&self) {
        self.shared.state.lock().progress_ns = self.shared.clock.monotonic_nanos();
    }

    /// Returns when the reader has taken something or gone away.
    pub(crate) async fn reader_moved(&self) {
        self.shared.reader.notified().await;
    }
}

impl Drop for DeliverySender {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Delivery {
    /// The next bytes; `None` at the end of the body.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.shared.state.lock();
        if let Some(frame) = state.frames.pop_front() {
            state.buffered = state.buffered.saturating_sub(frame.bytes.len());
            state.delivered_tokens = frame.tokens;
            state.progress_ns = self.shared.clock.monotonic_nanos();
            drop(state);
            self.shared.reader.notify_one();
            return Poll::Ready(Some(frame.bytes.freeze()));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.reader_gone = true;
            state.frames.clear();
            state.buffered = 0;
        }
        self.shared.reader.notify_one();
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delivery(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_domain::{ManualClock, UnixNanos};
    use std::time::Duration;

    fn pair(limit: usize) -> (Arc<ManualClock>, DeliverySender, Delivery) {
        let clock = Arc::new(ManualClock::at(UnixNanos::new(1)));
        let (sender, delivery) = channel(Arc::clone(&clock) as Arc<dyn Clock>, limit);
        (clock, sender, delivery)
    }

    fn take(delivery: &mut Delivery) -> Poll<Option<Bytes>> {
        delivery.poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn what_the_transport_took_is_counted_in_tokens() {
        let (_, sender, mut delivery) = pair(1 << 20);
        sender.push(&mut BytesMut::from(&[b'a'; JOIN_BYTES][..]), 3);
        sender.push(&mut BytesMut::from(&b"bc"[..]), 5);
        assert_eq!(sender.delivered_tokens(), 0);
        assert!(matches!(take(&mut delivery), Poll::Ready(Some(bytes)) if bytes.len() == JOIN_BYTES));
        assert_eq!(sender.delivered_tokens(), 3);
        assert!(matches!(take(&mut delivery), Poll::Ready(Some(bytes)) if bytes == "bc"));
        assert_eq!(sender.delivered_tokens(), 5);
        assert!(take(&mut delivery).is_pending());
        drop(sender);
        assert!(matches!(take(&mut delivery), Poll::Ready(None)));
    }

    #[test]
    fn a_reader_that_takes_nothing_is_stalled_and_one_with_nothing_to_take_is_not() {
        let (clock, sender, mut delivery) = pair(4);
        clock.advance(Duration::from_secs(60));
        assert_eq!(sender.stalled_ns(), 0);
        sender.push(&mut BytesMut::from(&b"abcd"[..]), 1);
        assert!(sender.is_full());
        clock.advance(Duration::from_secs(31));
        assert_eq!(sender.stalled_ns(), 31_000_000_000);
        sender.handed_out();
        assert_eq!(sender.stalled_ns(), 0, "it could not read before");
        clock.advance(Duration::from_secs(2));
        assert_eq!(sender.stalled_ns(), 2_000_000_000);
        assert!(take(&mut delivery).is_ready());
        assert_eq!((sender.stalled_ns(), sender.is_full()), (0, false));
        drop(delivery);
        assert!(sender.is_abandoned());
        let mut late = BytesMut::from(&b"late"[..]);
        sender.push(&mut late, 2);
        assert!(late.is_empty() && !sender.is_full(), "what nobody reads is not kept");
    }
}
