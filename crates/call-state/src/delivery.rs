//! Stage `deliver`: the bounded buffer between the task that owns a request and the transport that reads it. The task
//! never waits for the client. Knows no clock: the task checks how much was taken, and when.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use headrace_call_api::{AbortReason, AnswerFrames, BrokenBody, MemoryReservation, TransportOutlet};
use headrace_domain::SentAnswer;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::recorded_copy::RecordedCopy;
use crate::sent_hash::SentHash;

/// Frames are joined up to this size, so that a slow reader takes few large frames.
const JOIN_BYTES: usize = 16 * 1024;
/// The largest frame. Bytes that the transport has taken count as written, and a stalled transport keeps them.
const MAX_FRAME_BYTES: usize = 64 * 1024;

/// The transport's end. Dropping it means that the client went away, unless [`AnswerFrames::abort`] gave another reason.
pub struct Delivery {
    shared: Arc<DeliveryShared>,
}

/// The task's end. Dropping it breaks the body off, unless [`DeliverySender::finish`] ended it.
pub struct DeliverySender {
    shared: Arc<DeliveryShared>,
    limit_bytes: usize,
}

/// A copy of everything that is pushed, up to a bound.
pub struct DeliveredCopy {
    bytes: BytesMut,
    most_bytes: usize,
    memory: Arc<MemoryReservation>,
    /// The copy became too long, or there was no memory for it.
    given_up: bool,
}

impl DeliveredCopy {
    /// An empty copy. Its bytes are reserved from `memory`.
    pub fn new(memory: Arc<MemoryReservation>, most_bytes: usize) -> Self {
        Self { bytes: BytesMut::new(), most_bytes, memory, given_up: false }
    }

    fn put(&mut self, bytes: &[u8]) {
        let fits = !self.given_up && self.bytes.len() + bytes.len() <= self.most_bytes;
        if fits && self.memory.add(bytes.len() as u64).is_ok() {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.given_up = true;
            self.bytes = BytesMut::new();
        }
    }
}

struct DeliveryShared {
    state: Mutex<DeliveryState>,
    /// Notified when the reader takes something or goes away.
    reader: Notify,
    /// Hashes what the reader takes, while `is_hashed` says so. Locked after the state, and not while bytes are put in.
    sent: Mutex<SentHash>,
    /// The call's memory reservation, held until both ends are gone.
    _memory: Arc<MemoryReservation>,
}

#[derive(Default)]
struct DeliveryState {
    frames: VecDeque<QueuedFrame>,
    buffered: usize,
    /// Answer tokens up to the end of what was pushed.
    put_tokens: u64,
    /// Answer tokens up to the end of what was taken.
    taken_tokens: u64,
    taken_frames: u64,
    /// The last frame taken ended inside something that was pushed as a whole.
    within: bool,
    end: DeliveryEnd,
    abort_reason: Option<AbortReason>,
    waker: Option<Waker>,
    outlet: Option<Arc<dyn TransportOutlet>>,
    kept: Option<Box<DeliveredCopy>>,
    recorded: Option<Box<RecordedCopy>>,
    is_hashed: bool,
    /// What is pushed is not what is recorded.
    records_apart: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum DeliveryEnd {
    #[default]
    Open,
    /// Everything was pushed.
    Whole,
    Broken,
}

struct QueuedFrame {
    bytes: BytesMut,
    /// Answer tokens up to the end of this frame.
    tokens: u64,
    /// More of what was pushed together follows.
    continues: bool,
    /// A piece of a larger allocation.
    is_piece: bool,
}

/// What had been taken when the rest was discarded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveryCut {
    /// Answer tokens that the transport has taken.
    pub tokens: u64,
    /// The transport is inside something that was pushed as a whole, so nothing meaningful can follow.
    pub within: bool,
}

/// Creates a body. The sender reports that it is full once `limit_bytes` are unread.
pub fn channel(limit_bytes: usize, memory: Arc<MemoryReservation>) -> (DeliverySender, Delivery) {
    let (state, reader) = (Mutex::new(DeliveryState::default()), Notify::new());
    let sent = Mutex::default();
    let shared = Arc::new(DeliveryShared { state, reader, sent, _memory: memory });
    (DeliverySender { shared: Arc::clone(&shared), limit_bytes }, Delivery { shared })
}

impl DeliverySender {
    /// Pushes bytes. `tokens` is the number of answer tokens that are complete with them, counted from the start.
    pub fn push(&self, bytes: &mut BytesMut, tokens: u64) {
        if bytes.is_empty() {
            return;
        }
        let waker = {
            let mut state = self.shared.state.lock();
            if let Some(kept) = &mut state.kept {
                kept.put(bytes);
            }
            let is_recorded = !state.records_apart;
            if let Some(recorded) = state.recorded.as_mut().filter(|_| is_recorded) {
                recorded.put(bytes);
            }
            if state.abort_reason.is_some() || state.end != DeliveryEnd::Open {
                bytes.clear();
                return;
            }
            state.put(bytes, tokens);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the unread part has reached its limit.
    pub fn is_full(&self) -> bool {
        self.shared.state.lock().buffered >= self.limit_bytes
    }

    /// Whether nothing waits for the transport.
    pub fn is_empty(&self) -> bool {
        self.shared.state.lock().frames.is_empty()
    }

    /// Why the transport gave up, if it did.
    pub fn abort_reason(&self) -> Option<AbortReason> {
        self.shared.state.lock().abort_reason
    }

    /// How many frames the transport has taken. `None` if nothing waits for it.
    pub fn waits_after(&self) -> Option<u64> {
        let state = self.shared.state.lock();
        (!state.frames.is_empty()).then_some(state.taken_frames)
    }

    /// How long the transport has been unable to pass on what it took.
    pub fn blocked_for(&self) -> Duration {
        self.shared.state.lock().outlet.as_ref().map_or(Duration::ZERO, |outlet| outlet.blocked_for())
    }

    /// Keeps a copy of what is pushed from now on.
    pub fn keep(&self, kept: DeliveredCopy) {
        self.shared.state.lock().kept = Some(Box::new(kept));
    }

    /// Records what is pushed from now on.
    pub fn record(&self, recorded: RecordedCopy) {
        self.shared.state.lock().recorded = Some(Box::new(recorded));
    }

    /// Records what [`Self::put_recorded`] gets from now on, in place of what is pushed.
    pub fn record_apart(&self, recorded: RecordedCopy) {
        let mut state = self.shared.state.lock();
        state.recorded = Some(Box::new(recorded));
        state.records_apart = true;
    }

    /// Adds to the record, if it is apart from what is pushed.
    pub fn put_recorded(&self, bytes: &[u8]) {
        let mut state = self.shared.state.lock();
        let is_apart = state.records_apart;
        if let Some(recorded) = state.recorded.as_mut().filter(|_| is_apart) {
            recorded.put(bytes);
        }
    }

    /// Takes what was recorded, and whether its end is missing. `None` if nothing is recorded.
    pub fn recorded(&self) -> Option<(Bytes, bool)> {
        let recorded = self.shared.state.lock().recorded.take()?;
        Some(recorded.into_parts())
    }

    /// Hashes what the reader takes. Must be called before it takes anything.
    pub fn hash(&self) {
        self.shared.state.lock().is_hashed = true;
    }

    /// Returns hash and length of what the reader has taken and of what still waits for it, and hashes no more. `None` if
    /// nothing is hashed.
    pub fn sent(&self) -> Option<SentAnswer> {
        let mut state = self.shared.state.lock();
        if !std::mem::take(&mut state.is_hashed) {
            return None;
        }
        let mut sent = self.shared.sent.lock();
        state.frames.iter().for_each(|frame| sent.add(&frame.bytes));
        Some(std::mem::take(&mut *sent).finish())
    }

    /// Takes the copy of everything that was pushed. `None` if none was kept or it was given up.
    pub fn kept(&self) -> Option<Bytes> {
        let kept = self.shared.state.lock().kept.take()?;
        (!kept.given_up).then(|| kept.bytes.freeze())
    }

    /// Returns what the copy will be once `end` is pushed, too. `None` if no copy is kept, it was given up, or it would have
    /// more than `most_bytes` bytes. Reserves memory for the result.
    pub fn copied_with(&self, end: &[u8], most_bytes: usize) -> Option<Arc<[u8]>> {
        let state = self.shared.state.lock();
        let kept = state.kept.as_ref().filter(|kept| !kept.given_up)?;
        let bytes = kept.bytes.len().checked_add(end.len()).filter(|bytes| *bytes <= most_bytes)?;
        kept.memory.add(bytes as u64).ok()?;
        let mut all = Vec::with_capacity(bytes);
        all.extend_from_slice(&kept.bytes);
        all.extend_from_slice(end);
        Some(all.into())
    }

    /// Discards what was not taken.
    pub fn cut(&self) -> DeliveryCut {
        let mut state = self.shared.state.lock();
        if let Some(kept) = &mut state.kept {
            kept.bytes.clear();
        }
        state.clear();
        DeliveryCut { tokens: state.taken_tokens, within: state.within }
    }

    /// Marks the body as complete. It ends well once everything is taken.
    pub fn finish(&self) {
        self.end(DeliveryEnd::Whole);
    }

    /// Discards what was not taken and ends the body with an error.
    pub fn break_off(&self) {
        self.end(DeliveryEnd::Broken);
    }

    /// Returns when the reader has taken something or gone away.
    pub async fn reader_moved(&self) {
        self.shared.reader.notified().await;
    }

    fn end(&self, end: DeliveryEnd) {
        let waker = {
            let mut state = self.shared.state.lock();
            if end == DeliveryEnd::Broken {
                state.clear();
            } else if state.end != DeliveryEnd::Open {
                return;
            }
            state.end = end;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for DeliverySender {
    fn drop(&mut self) {
        if self.shared.state.lock().end == DeliveryEnd::Open {
            self.break_off();
        }
    }
}

impl DeliveryState {
    fn put(&mut self, bytes: &mut BytesMut, tokens: u64) {
        self.buffered += bytes.len();
        let before = self.put_tokens;
        self.put_tokens = tokens;
        match self.frames.back_mut() {
            Some(last) if !last.is_piece && last.bytes.len() + bytes.len() <= JOIN_BYTES => {
                last.bytes.extend_from_slice(bytes);
                last.tokens = tokens;
                bytes.clear();
                return;
            }
            _ => {}
        }
        let is_piece = bytes.len() > MAX_FRAME_BYTES;
        while bytes.len() > MAX_FRAME_BYTES {
            let bytes = bytes.split_to(MAX_FRAME_BYTES);
            self.frames.push_back(QueuedFrame { bytes, tokens: before, continues: true, is_piece });
        }
        self.frames.push_back(QueuedFrame { bytes: bytes.split(), tokens, continues: false, is_piece });
    }

    fn clear(&mut self) {
        self.frames = VecDeque::new();
        self.buffered = 0;
    }
}

impl AnswerFrames for Delivery {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        let mut state = self.shared.state.lock();
        if let Some(frame) = state.frames.pop_front() {
            state.buffered = state.buffered.saturating_sub(frame.bytes.len());
            state.taken_tokens = frame.tokens;
            state.taken_frames += 1;
            state.within = frame.continues;
            let sent = state.is_hashed.then(|| self.shared.sent.lock());
            drop(state);
            if let Some(mut sent) = sent {
                sent.add(&frame.bytes);
            }
            self.shared.reader.notify_one();
            return Poll::Ready(Some(Ok(frame.into_bytes())));
        }
        match state.end {
            DeliveryEnd::Whole => Poll::Ready(None),
            DeliveryEnd::Broken => Poll::Ready(Some(Err(BrokenBody))),
            DeliveryEnd::Open => {
                if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    state.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn set_outlet(&mut self, outlet: Arc<dyn TransportOutlet>) {
        self.shared.state.lock().outlet = Some(outlet);
    }

    fn abort(&mut self, why: AbortReason) {
        {
            let mut state = self.shared.state.lock();
            state.abort_reason.get_or_insert(why);
            state.clear();
        }
        self.shared.reader.notify_one();
    }
}

impl QueuedFrame {
    /// Copies a piece: a transport that keeps the frame must not keep the whole allocation that it was cut from.
    fn into_bytes(self) -> Bytes {
        if self.is_piece { Bytes::copy_from_slice(&self.bytes) } else { self.bytes.freeze() }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.abort(AbortReason::ClientGone);
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delivery(..)")
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::KeyId;

    use super::*;
    use crate::memory::{CallMemory, MemoryBounds};

    fn pair(limit_bytes: usize) -> (DeliverySender, Delivery) {
        let memory = CallMemory::new(MemoryBounds::default()).reserve(&KeyId::new("k").unwrap(), 1).unwrap();
        channel(limit_bytes, Arc::new(memory))
    }

    fn take(delivery: &mut Delivery) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        delivery.poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    fn taken(delivery: &mut Delivery) -> usize {
        match take(delivery) {
            Poll::Ready(Some(Ok(bytes))) => bytes.len(),
            other => panic!("no frame: {other:?}"),
        }
    }

    fn put(sender: &DeliverySender, bytes: usize, tokens: u64) {
        sender.push(&mut BytesMut::from(&vec![b'a'; bytes][..]), tokens);
    }

    #[test]
    fn what_the_transport_took_is_counted_in_tokens() {
        let (sender, mut delivery) = pair(1 << 20);
        put(&sender, JOIN_BYTES, 3);
        put(&sender, 2, 5);
        assert_eq!(sender.waits_after(), Some(0));
        assert_eq!(taken(&mut delivery), JOIN_BYTES);
        assert_eq!(sender.waits_after(), Some(1));
        assert_eq!(taken(&mut delivery), 2);
        assert!(take(&mut delivery).is_pending() && sender.is_empty());
        assert_eq!(sender.cut(), DeliveryCut { tokens: 5, within: false });
        sender.finish();
        drop(sender);
        assert_eq!(take(&mut delivery), Poll::Ready(None));
    }

    #[test]
    fn nothing_that_was_cut_is_handed_out_and_a_body_that_nobody_finished_is_broken() {
        let (sender, mut delivery) = pair(4);
        put(&sender, 4, 1);
        assert!(sender.is_full());
        assert_eq!(sender.cut(), DeliveryCut { tokens: 0, within: false });
        assert!(!sender.is_full() && take(&mut delivery).is_pending());
        put(&sender, 3, 2);
        assert_eq!(taken(&mut delivery), 3);
        put(&sender, 3, 4);
        drop(sender);
        assert_eq!(take(&mut delivery), Poll::Ready(Some(Err(BrokenBody))));
    }

    #[test]
    fn a_large_body_goes_out_in_frames_that_keep_nothing_else_alive() {
        let (sender, mut delivery) = pair(1 << 30);
        put(&sender, 10, 1);
        put(&sender, 2 * MAX_FRAME_BYTES + 10, 9);
        assert_eq!((taken(&mut delivery), taken(&mut delivery)), (10, MAX_FRAME_BYTES));
        // Its tokens count once all of it is taken. In its middle nothing else can be sent.
        assert_eq!(sender.shared.state.lock().taken_tokens, 1);
        assert!(sender.shared.state.lock().within);
        put(&sender, 5, 10);
        assert_eq!(
            (taken(&mut delivery), taken(&mut delivery), taken(&mut delivery)),
            (MAX_FRAME_BYTES, 10, 5)
        );
        assert_eq!(sender.cut(), DeliveryCut { tokens: 10, within: false });
    }

    #[test]
    fn a_transport_says_why_it_lets_go_and_what_nobody_reads_is_not_kept() {
        for why in [None, Some(AbortReason::ReaderStalled)] {
            let (sender, mut delivery) = pair(1);
            put(&sender, 4, 1);
            why.into_iter().for_each(|why| delivery.abort(why));
            drop(delivery);
            assert_eq!(sender.abort_reason(), why.or(Some(AbortReason::ClientGone)));
            let mut late = BytesMut::from(&b"late"[..]);
            sender.push(&mut late, 2);
            assert!(late.is_empty() && !sender.is_full());
        }
    }
}
