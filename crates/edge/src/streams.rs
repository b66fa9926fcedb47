//! Follows the frames of an HTTP/2 connection (RFC 9113 §4.1) just far enough to know which streams are unanswered. A
//! peer that has shown no valid key is then read no faster than it is answered. It decides nothing else: the library
//! parses.

/// Maximum number of unanswered streams of a peer without a valid key. The head of a further one waits in front of the
/// library, which keeps buffers for the largest number of streams that were ever open at once.
pub(crate) const MOST_UNANSWERED: usize = 4;

/// Length of the bytes that a client sends before its first frame (RFC 9113 §3.4).
const PREFACE_BYTES: usize = 24;
const FRAME_HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;

/// The streams of a connection.
#[derive(Debug)]
pub(crate) struct Http2Streams {
    from_peer: FrameScanner,
    to_peer: FrameScanner,
    unanswered: Vec<u32>,
    /// The highest stream that the peer has opened. Streams are opened in ascending order.
    opened: u32,
}

/// The current position of one direction in its sequence of frames.
#[derive(Debug, Default)]
struct FrameScanner {
    /// Bytes to skip: the rest of a frame's payload, or of the preface.
    skip: usize,
    head: [u8; FRAME_HEAD_BYTES],
    /// Number of bytes of `head` that have arrived.
    there: usize,
}

#[derive(Debug, Clone, Copy)]
struct Http2Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Http2Streams {
    pub(crate) const fn new() -> Self {
        let (from_peer, to_peer) = (FrameScanner::new(PREFACE_BYTES), FrameScanner::new(0));
        Self { from_peer, to_peer, unanswered: Vec::new(), opened: 0 }
    }

    /// Returns whether too many streams wait for an answer, so that the rest of the connection must wait, too.
    pub(crate) const fn are_too_many(&self) -> bool {
        self.unanswered.len() > MOST_UNANSWERED
    }

    /// Follows bytes from the peer. Returns how many of them may pass now: all, or up to the head of the frame that
    /// opens one stream too many. The payload of that frame then waits.
    pub(crate) fn received(&mut self, bytes: &[u8]) -> usize {
        let mut passed = 0;
        while let Some(rest) = bytes.get(passed..).filter(|rest| !rest.is_empty()) {
            let (read, frame) = self.from_peer.next(rest);
            passed += read;
            let Some(frame) = frame else { continue };
            match frame.kind {
                HEADERS if frame.stream > self.opened => {
                    self.opened = frame.stream;
                    self.unanswered.push(frame.stream);
                    if self.are_too_many() {
                        return passed;
                    }
                }
                RST_STREAM => self.ended(frame.stream),
                _ => {}
            }
        }
        passed
    }

    /// Follows bytes that were sent to the peer.
    pub(crate) fn sent(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (read, frame) = self.to_peer.next(bytes);
            bytes = bytes.get(read..).unwrap_or_default();
            let Some(frame) = frame else { continue };
            let ends = match frame.kind {
                DATA | HEADERS => frame.flags & END_STREAM != 0,
                kind => kind == RST_STREAM,
            };
            if ends {
                self.ended(frame.stream);
            }
        }
    }

    fn ended(&mut self, stream: u32) {
        self.unanswered.retain(|unanswered| *unanswered != stream);
    }
}

impl FrameScanner {
    const fn new(skip: usize) -> Self {
        Self { skip, head: [0; FRAME_HEAD_BYTES], there: 0 }
    }

    /// Moves to the end of the next frame head in `bytes`, or to their end. Returns how many bytes that took.
    fn next(&mut self, bytes: &[u8]) -> (usize, Option<Http2Frame>) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let rest = bytes.get(skipped..).unwrap_or_default();
        let mut read = skipped;
        for (slot, byte) in self.head.iter_mut().skip(self.there).zip(rest) {
            *slot = *byte;
            self.there += 1;
            read += 1;
        }
        if self.there < FRAME_HEAD_BYTES {
            return (read, None);
        }
        self.there = 0;
        let [a, b, c, kind, flags, s0, s1, s2, s3] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        // The highest bit is reserved.
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & (u32::MAX >> 1);
        (read, Some(Http2Frame { kind, flags, stream }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut out = length[1..].to_vec();
        out.extend_from_slice(&[kind, flags]);
        out.extend_from_slice(&stream.to_be_bytes());
        out.extend_from_slice(payload);
        out
    }

    /// Sends `bytes` in steps of `step` bytes, as far as the streams let them pass. Returns what waits.
    fn send<'b>(streams: &mut Http2Streams, bytes: &'b [u8], step: usize) -> &'b [u8] {
        let mut sent = 0;
        while sent < bytes.len() && !streams.are_too_many() {
            let part = bytes.get(sent..(sent + step).min(bytes.len())).unwrap();
            let passed = streams.received(part);
            assert!(passed > 0, "no progress would look like the end of the connection");
            sent += passed;
        }
        &bytes[sent..]
    }

    #[test]
    fn one_stream_too_many_waits_until_another_is_answered() {
        for step in [1, 7, usize::MAX >> 1] {
            let mut streams = Http2Streams::new();
            let mut all = PREFACE.to_vec();
            all.extend(frame(4, 0, 0, &[0; 6]));
            for id in (1..40).step_by(2) {
                all.extend(frame(HEADERS, 4, id, b"head"));
                all.extend(frame(DATA, 0, id, b"half a body"));
            }
            let waits = send(&mut streams, &all, step);
            assert_eq!(streams.unanswered.len(), MOST_UNANSWERED + 1);
            assert!(waits.starts_with(b"head"), "the frame's head has passed, its payload waits");
            // An unfinished answer ends nothing. Its end does, and so does a reset from either side.
            streams.sent(&frame(HEADERS, 4, 1, b"200"));
            assert!(streams.are_too_many());
            for byte in frame(DATA, END_STREAM, 1, b"the answer") {
                streams.sent(&[byte]);
            }
            assert!(!streams.are_too_many());
            let waits = send(&mut streams, waits, step);
            streams.sent(&frame(RST_STREAM, 0, 3, &[0; 4]));
            streams.sent(&frame(RST_STREAM, 0, 3, &[0; 4]));
            let waits = send(&mut streams, waits, step);
            assert!(streams.are_too_many() && waits.starts_with(b"head"));
            assert_eq!(streams.opened, 2 * (MOST_UNANSWERED as u32 + 3) - 1);
        }
    }

    #[test]
    fn trailers_open_nothing_and_a_peer_may_take_back_what_it_asked() {
        let mut streams = Http2Streams::new();
        let mut all = PREFACE.to_vec();
        for id in (1..2_000).step_by(2) {
            all.extend(frame(HEADERS, 4, id, b"head"));
            all.extend(frame(HEADERS, 5, id, b"trailers"));
            all.extend(frame(RST_STREAM, 0, id, &[0; 4]));
        }
        assert!(send(&mut streams, &all, 1_000).is_empty());
        assert!(streams.unanswered.is_empty() && streams.unanswered.capacity() <= 2 * MOST_UNANSWERED);
    }
}
