//! Extracts the data of server-sent events from a byte stream. Must not know what the events mean.

use bytes::{Bytes, BytesMut};

/// Maximum length of an event, in bytes.
const MOST_EVENT_BYTES: usize = 64 << 20;

/// Extracts the data of server-sent events.
#[derive(Default)]
pub(super) struct SocketEvents {
    buffer: BytesMut,
    /// Number of bytes at the start of the buffer that contain no event's end.
    searched: usize,
}

/// An event exceeds the maximum length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl SocketEvents {
    /// Adds bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() > MOST_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
    }

    /// Returns the data of the next complete event. Events without data, such as comments, are skipped.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = rest.windows(2).position(|two| two == b"\n\n") else {
                self.searched = self.buffer.len().saturating_sub(1);
                return None;
            };
            let event = self.buffer.split_to(self.searched + at + 2).freeze();
            self.searched = 0;
            let data = data_of(&event);
            if !data.is_empty() && data != b"[DONE]"[..] {
                return Some(data);
            }
        }
    }
}

/// Returns the data lines of an event, joined.
fn data_of(event: &Bytes) -> Bytes {
    let mut all: Option<BytesMut> = None;
    let mut first = Bytes::new();
    for line in event.split(|byte| *byte == b'\n') {
        let Some(data) = line.strip_prefix(b"data:") else { continue };
        let data = data.strip_prefix(b" ").unwrap_or(data);
        match &mut all {
            None if first.is_empty() => first = event.slice_ref(data),
            None => {
                let mut joined = BytesMut::from(&first[..]);
                joined.extend_from_slice(b"\n");
                joined.extend_from_slice(data);
                all = Some(joined);
            }
            Some(joined) => {
                joined.extend_from_slice(b"\n");
                joined.extend_from_slice(data);
            }
        }
    }
    all.map_or(first, BytesMut::freeze)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_wherever_their_bytes_are_cut() {
        let text = "event: a\ndata: {\"x\":1}\n\n: still here\n\ndata:two\ndata: lines\n\ndata: [DONE]\n\nevent: none\n\ndata: é\n\n";
        for at in 0..=text.len() {
            for then in at..=text.len() {
                let mut events = SocketEvents::default();
                let mut found = Vec::new();
                for piece in [&text.as_bytes()[..at], &text.as_bytes()[at..then], &text.as_bytes()[then..]] {
                    events.push(piece).unwrap();
                    found.extend(std::iter::from_fn(|| events.next()));
                }
                assert_eq!(found, ["{\"x\":1}".as_bytes(), b"two\nlines", "é".as_bytes()], "{at} {then}");
            }
        }
        let mut events = SocketEvents::default();
        assert_eq!(events.push(&vec![b'x'; MOST_EVENT_BYTES + 1]), Err(TooLong));
    }
}
