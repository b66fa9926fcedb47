//! Follows the bytes of a WebSocket peer (RFC 6455 §5.2) to charge each message to its key before the message is kept.
//! Disconnects a peer that floods. It decides nothing else: the library parses.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{BodyRefusal, MemoryReservation};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::transport::DuplexStream;
use crate::upload::{BodyLimits, are_too_many_pieces, take};

/// Maximum number of control frames (PING, PONG, CLOSE) that a peer may send in one second. Clients usually send one
/// every few seconds.
pub(super) const MOST_CONTROL_FRAMES_PER_SECOND: u32 = 100;
/// Memory factor of a fragmented message. It is collected in a buffer that doubles as it grows, and its bytes move to
/// the larger one.
const FRAGMENTED_COST: usize = 3;
/// Length of the longest frame head: two bytes, eight of length, four of mask.
const MOST_HEAD_BYTES: usize = 14;

const CONTINUATION: u8 = 0;
const FIRST_CONTROL: u8 = 8;
const SECOND: Duration = Duration::from_secs(1);

/// Why a peer is not read any further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InboundExcess {
    /// The peer sent more than [`MOST_CONTROL_FRAMES_PER_SECOND`].
    ControlFrames,
    /// A message came in far more frames than its bytes need.
    Frames,
    /// There is no memory for the bytes of a message.
    Memory(BodyRefusal),
}

/// A peer's connection, below the WebSocket library. Nothing is read while the peer does not accept the bytes that wait
/// for it.
pub(super) struct InboundFrames<'a> {
    io: &'a mut dyn DuplexStream,
    limits: &'a BodyLimits,
    /// Bytes that were read after the end of a message.
    ahead: Bytes,
    frames: FramePosition,
    message: Option<PartialMessage>,
    /// The memory that the message in progress has reserved for its key.
    charge: MemoryReservation,
    control: ControlFrameRate,
    is_write_full: bool,
    excess: Option<InboundExcess>,
}

/// A message that is not complete.
#[derive(Debug)]
struct PartialMessage {
    began: Instant,
    /// When the last payload byte arrived.
    progress: Instant,
    frames: u64,
    bytes: u64,
}

impl<'a> InboundFrames<'a> {
    /// `charge` is empty and belongs to the peer's key.
    pub(super) fn new(
        io: &'a mut dyn DuplexStream,
        limits: &'a BodyLimits,
        charge: MemoryReservation,
    ) -> Self {
        Self {
            io,
            limits,
            ahead: Bytes::new(),
            frames: FramePosition::default(),
            message: None,
            charge,
            control: ControlFrameRate::default(),
            is_write_full: false,
            excess: None,
        }
    }

    /// Returns the reservation of the last complete message. `fresh` is for the next one.
    pub(super) fn take_charge(&mut self, fresh: MemoryReservation) -> MemoryReservation {
        std::mem::replace(&mut self.charge, fresh)
    }

    /// Returns when the message in progress must have made progress or be complete. `None` between messages.
    pub(super) fn due(&self) -> Option<Instant> {
        let PartialMessage { began, progress, .. } = self.message.as_ref()?;
        Some((*progress + self.limits.pause).min(*began + self.limits.total))
    }

    /// Returns why the peer is not read any further, if so.
    pub(super) const fn excess(&self) -> Option<&InboundExcess> {
        self.excess.as_ref()
    }

    /// Returns the underlying connection.
    pub(super) fn into_io(self) -> &'a mut dyn DuplexStream {
        self.io
    }

    /// Follows `bytes`. Returns how many of them may pass now: all, or up to the end of a message.
    fn follow(&mut self, bytes: &[u8]) -> Result<usize, InboundExcess> {
        let mut passed = 0;
        while let Some(rest) = bytes.get(passed..).filter(|rest| !rest.is_empty()) {
            let (read, step) = self.frames.next(rest);
            passed += read;
            match step {
                FrameStep::Nothing => {}
                FrameStep::Head { is_control: true } => self.control.count()?,
                FrameStep::Head { is_control: false } => self.frame_began()?,
                FrameStep::Payload => self.payload_came(read)?,
                FrameStep::MessageEnd => {
                    self.payload_came(read)?;
                    self.message = None;
                    return Ok(passed);
                }
                FrameStep::EmptyMessageEnd => {
                    self.message = None;
                    return Ok(passed);
                }
            }
        }
        Ok(passed)
    }

    fn frame_began(&mut self) -> Result<(), InboundExcess> {
        let now = Instant::now();
        let message =
            self.message.get_or_insert(PartialMessage { began: now, progress: now, frames: 0, bytes: 0 });
        message.frames += 1;
        if are_too_many_pieces(message.frames, message.bytes) { Err(InboundExcess::Frames) } else { Ok(()) }
    }

    fn payload_came(&mut self, bytes: usize) -> Result<(), InboundExcess> {
        let Some(message) = &mut self.message else { return Ok(()) };
        message.bytes = message.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        message.progress = Instant::now();
        let cost = if self.frames.is_fragment { FRAGMENTED_COST } else { 1 };
        take(&self.charge, bytes.saturating_mul(cost)).map_err(InboundExcess::Memory)
    }

    fn exceeded(&mut self, excess: InboundExcess) -> io::Error {
        self.excess = Some(excess);
        io::Error::other("the peer sends more than it may")
    }

    fn note<T>(&mut self, result: &Poll<io::Result<T>>) {
        self.is_write_full = result.is_pending();
    }
}

impl AsyncRead for InboundFrames<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(excess) = this.excess.clone() {
            return Poll::Ready(Err(this.exceeded(excess)));
        }
        if this.is_write_full {
            // The library tries to write again before it reads, and that write wakes the reader.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        if this.ahead.is_empty() {
            std::task::ready!(Pin::new(&mut *this.io).poll_read(cx, buf))?;
        } else {
            let passes = buf.remaining().min(this.ahead.len());
            buf.put_slice(&this.ahead.split_to(passes));
        }
        let came = buf.filled().get(before..).unwrap_or_default();
        let passes = match this.follow(came) {
            Ok(passes) => passes,
            Err(excess) => return Poll::Ready(Err(this.exceeded(excess))),
        };
        if let Some(waits) = came.get(passes..).filter(|waits| !waits.is_empty()) {
            let mut kept = Vec::with_capacity(waits.len() + this.ahead.len());
            kept.extend_from_slice(waits);
            kept.extend_from_slice(&this.ahead);
            this.ahead = Bytes::from(kept);
            buf.set_filled(before + passes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for InboundFrames<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut *this.io).poll_write(cx, bytes);
        this.note(&result);
        result
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut *this.io).poll_write_vectored(cx, slices);
        this.note(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().io).poll_shutdown(cx)
    }
}

/// Counts the control frames of the last second.
#[derive(Debug, Default)]
struct ControlFrameRate {
    /// Arrival times of the last frames, oldest first.
    came: VecDeque<Instant>,
}

impl ControlFrameRate {
    fn count(&mut self) -> Result<(), InboundExcess> {
        let now = Instant::now();
        while self.came.front().is_some_and(|at| now.duration_since(*at) >= SECOND) {
            self.came.pop_front();
        }
        self.came.push_back(now);
        let most = usize::try_from(MOST_CONTROL_FRAMES_PER_SECOND).unwrap_or(usize::MAX);
        if self.came.len() > most { Err(InboundExcess::ControlFrames) } else { Ok(()) }
    }
}

/// The current position in the frames of a peer.
#[derive(Debug, Default)]
struct FramePosition {
    head: [u8; MOST_HEAD_BYTES],
    /// Number of bytes of `head` that have arrived.
    there: usize,
    /// Payload bytes still to come.
    left: u64,
    is_control: bool,
    /// The frame is only a part of its message.
    is_fragment: bool,
    /// The frame is the last of its message.
    is_final: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameStep {
    /// Part of a head, or payload of a control frame.
    Nothing,
    Head {
        is_control: bool,
    },
    /// Payload of a message.
    Payload,
    /// The last payload of a message.
    MessageEnd,
    /// The end of a message whose last frame has no payload.
    EmptyMessageEnd,
}

impl FramePosition {
    /// Moves over one piece of `bytes`, which must not be empty. Returns its length and its kind.
    fn next(&mut self, bytes: &[u8]) -> (usize, FrameStep) {
        if self.left > 0 {
            let there = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let read = self.left.min(there);
            self.left -= read;
            let read = usize::try_from(read).unwrap_or(bytes.len());
            let step = match (self.is_control, self.left == 0 && self.is_final) {
                (true, _) => FrameStep::Nothing,
                (false, true) => FrameStep::MessageEnd,
                (false, false) => FrameStep::Payload,
            };
            return (read, step);
        }
        let mut read = 0;
        while self.there < self.head_bytes() {
            let Some((byte, slot)) = bytes.get(read).zip(self.head.get_mut(self.there)) else {
                return (read, FrameStep::Nothing);
            };
            *slot = *byte;
            self.there += 1;
            read += 1;
        }
        self.there = 0;
        let [first, second, a, b, c, d, e, f, g, h, ..] = self.head;
        let opcode = first & 0x0f;
        self.left = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes([a, b])),
            127 => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            short => u64::from(short),
        };
        self.is_control = opcode >= FIRST_CONTROL;
        if self.is_control {
            return (read, FrameStep::Head { is_control: true });
        }
        self.is_final = first & 0x80 != 0;
        self.is_fragment = opcode == CONTINUATION || !self.is_final;
        if self.is_final && self.left == 0 {
            return (read, FrameStep::EmptyMessageEnd);
        }
        (read, FrameStep::Head { is_control: false })
    }

    /// Returns the length of the head, as far as its first two bytes tell.
    const fn head_bytes(&self) -> usize {
        if self.there < 2 {
            return 2;
        }
        let [_, second, ..] = self.head;
        let length = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if second & 0x80 != 0 { 4 } else { 0 };
        2 + length + mask
    }
}

#[cfg(test)]
mod tests {
    use headrace_call_api::MemoryAccount;
    use headrace_domain::KeyId;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMITS: BodyLimits =
        BodyLimits { most_bytes: 1 << 20, pause: Duration::from_secs(30), total: Duration::from_secs(300) };

    fn frame(opcode: u8, is_final: bool, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![opcode | if is_final { 0x80 } else { 0 }];
        match payload.len() {
            short @ 0..126 => out.push(0x80 | u8::try_from(short).unwrap()),
            middle @ 126..65_536 => {
                out.push(0x80 | 126);
                out.extend_from_slice(&u16::try_from(middle).unwrap().to_be_bytes());
            }
            long => {
                out.push(0x80 | 127);
                out.extend_from_slice(&u64::try_from(long).unwrap().to_be_bytes());
            }
        }
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(payload);
        out
    }

    fn memory() -> MemoryAccount {
        MemoryAccount::new(100_000, 100_000)
    }

    fn charge(memory: &MemoryAccount) -> MemoryReservation {
        memory.for_call_of(KeyId::new("key").unwrap())
    }

    /// Returns the bytes of one read.
    async fn read(inbound: &mut InboundFrames<'_>) -> io::Result<Vec<u8>> {
        let mut buffer = [0; 4_096];
        let read = inbound.read(&mut buffer).await?;
        Ok(buffer.get(..read).unwrap().to_vec())
    }

    #[tokio::test]
    async fn a_message_is_charged_byte_by_byte_and_its_end_ends_a_read() {
        for step in [1, 3, 1_000] {
            let memory = memory();
            let (mut peer, mut io): (DuplexStream, DuplexStream) = duplex(1 << 20);
            let mut inbound = InboundFrames::new(&mut io, &LIMITS, charge(&memory));
            let first = frame(1, true, &[b'a'; 300]);
            let mut second = frame(1, false, b"bcd");
            second.extend(frame(9, true, b"ping"));
            second.extend(frame(0, false, b""));
            second.extend(frame(0, true, b"e"));
            let third = frame(1, true, b"");
            let all = [first.clone(), second.clone(), third.clone()].concat();
            let mut got = Vec::new();
            let mut charges = Vec::new();
            for piece in all.chunks(step) {
                peer.write_all(piece).await.unwrap();
                let mut there = piece.len();
                while there > 0 {
                    let read = read(&mut inbound).await.unwrap();
                    there -= read.len();
                    got.extend(read);
                    if [first.len(), first.len() + second.len(), all.len()].contains(&got.len()) {
                        assert!(inbound.due().is_none(), "the message is whole");
                        charges.push(memory.taken());
                        drop(inbound.take_charge(charge(&memory)));
                    }
                }
            }
            assert_eq!(got, all, "every byte passes, in order");
            assert_eq!(charges, [300, 12, 0], "fragments cost three times, control frames nothing, {step}");
            assert_eq!(memory.taken(), 0);
        }
    }

    #[tokio::test]
    async fn bytes_beyond_the_keys_share_do_not_pass() {
        let memory = MemoryAccount::new(200, 75);
        let (mut peer, mut io) = duplex(1 << 20);
        let mut inbound = InboundFrames::new(&mut io, &LIMITS, charge(&memory));
        peer.write_all(&frame(1, false, &[b'a'; 25])).await.unwrap();
        read(&mut inbound).await.unwrap();
        assert_eq!(memory.taken(), 75);
        peer.write_all(&frame(0, false, b"b")).await.unwrap();
        assert!(read(&mut inbound).await.is_err());
        assert!(matches!(inbound.excess(), Some(InboundExcess::Memory(BodyRefusal::MemoryOfKey { .. }))));
        assert!(read(&mut inbound).await.is_err(), "nor does anything behind them");
        drop(inbound);
        assert_eq!(memory.taken(), 0);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_not_read() {
        let memory = memory();
        let (mut peer, mut io) = duplex(64);
        let mut inbound = InboundFrames::new(&mut io, &LIMITS, charge(&memory));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let written = Pin::new(&mut inbound).poll_write(&mut cx, &[0; 100]);
        assert!(matches!(written, Poll::Ready(Ok(64))));
        assert!(Pin::new(&mut inbound).poll_write(&mut cx, &[0; 36]).is_pending());
        peer.write_all(&frame(9, true, b"ping")).await.unwrap();
        let mut buffer = [0; 64];
        let mut buf = ReadBuf::new(&mut buffer);
        assert!(Pin::new(&mut inbound).poll_read(&mut cx, &mut buf).is_pending());
        assert!(buf.filled().is_empty());
        peer.read_exact(&mut [0; 64]).await.unwrap();
        assert!(Pin::new(&mut inbound).poll_write(&mut cx, &[0; 36]).is_ready());
        assert!(Pin::new(&mut inbound).poll_read(&mut cx, &mut buf).is_ready());
        assert_eq!(buf.filled(), frame(9, true, b"ping"));
    }

    #[tokio::test(start_paused = true)]
    async fn control_frames_are_bounded_by_the_second_and_are_no_progress_of_a_message() {
        let memory = memory();
        let (mut peer, mut io) = duplex(1 << 20);
        let mut inbound = InboundFrames::new(&mut io, &LIMITS, charge(&memory));
        peer.write_all(&frame(1, false, b"a")).await.unwrap();
        read(&mut inbound).await.unwrap();
        let due = inbound.due().unwrap();
        assert_eq!(due, Instant::now() + LIMITS.pause);
        for _ in 0..3 {
            for _ in 0..MOST_CONTROL_FRAMES_PER_SECOND {
                peer.write_all(&frame(10, true, b"")).await.unwrap();
                read(&mut inbound).await.unwrap();
            }
            tokio::time::advance(SECOND).await;
        }
        assert_eq!(inbound.due(), Some(due), "PONGs are no progress");
        for _ in 0..=MOST_CONTROL_FRAMES_PER_SECOND {
            peer.write_all(&frame(9, true, b"")).await.unwrap();
        }
        assert!(read(&mut inbound).await.is_err());
        assert_eq!(inbound.excess(), Some(&InboundExcess::ControlFrames));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dripping_message_is_due_in_the_end_and_empty_fragments_are_counted() {
        let memory = memory();
        let (mut peer, mut io) = duplex(1 << 20);
        let mut inbound = InboundFrames::new(&mut io, &LIMITS, charge(&memory));
        let began = Instant::now();
        for _ in 0..20 {
            peer.write_all(&frame(u8::from(inbound.due().is_none()), false, b"a")).await.unwrap();
            read(&mut inbound).await.unwrap();
            tokio::time::advance(LIMITS.pause / 2).await;
        }
        assert_eq!(inbound.due(), Some(began + LIMITS.total));
        let mut ended = false;
        for _ in 0..10_000 {
            peer.write_all(&frame(0, false, b"")).await.unwrap();
            ended = read(&mut inbound).await.is_err();
            if ended {
                break;
            }
        }
        assert!(ended);
        assert_eq!(inbound.excess(), Some(&InboundExcess::Frames));
    }
}
