//! Splits a stream of server-sent events into single events without copying their bytes. Does not interpret their
//! content.
//!
//! Source: the WHATWG's HTML standard, 9.2.6 "Interpreting an event stream". Ids and retry times are not kept.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

use headrace_wire::sse::SseError;

/// The default limit for one event, in bytes.
const MAX_EVENT_BYTES: usize = 8 << 20;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// One event, both raw and parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitEvent {
    /// The bytes as received, with the blank line that ends the event. Comments and a byte order mark before it are
    /// left out.
    pub raw: Bytes,
    /// The event name. Empty if the event has none.
    pub name: Bytes,
    /// The data in UTF-8. Several data lines are joined with line feeds.
    pub data: Bytes,
}

/// Splits a stream into events. The caller pushes chunks as they arrive and takes events out. An event that lies within
/// one chunk is not copied.
/// Lines may end in LF, CR or CRLF, in any mixture, and chunks may split the stream anywhere. Events without data are
/// left out.
#[derive(Debug)]
pub struct EventSplitter {
    /// Chunks that have not been scanned yet.
    coming: VecDeque<Bytes>,
    /// Bytes in `coming`.
    coming_bytes: usize,
    /// The rest of the current chunk. It starts at the first byte of the event, or follows the bytes in `held`.
    chunk: Bytes,
    /// The start of an event that spans several chunks. All of its bytes have been scanned.
    held: BytesMut,
    /// Offset of the next line, counted from the first byte of the event.
    at: usize,
    /// The last line ended in CR. If LF is the next byte, it belongs to the same line end.
    after_cr: bool,
    /// The last line ended in CRLF.
    after_crlf: bool,
    /// No line of any event has come yet.
    at_start: bool,
    event: EventLines,
    max_event_bytes: usize,
    failed: Option<SseError>,
}

/// The parsed lines of the current event. Ranges are counted from the first byte of the event.
#[derive(Debug, Default)]
struct EventLines {
    /// A line other than a comment has come.
    begun: bool,
    name: Range<usize>,
    data: Option<Range<usize>>,
    /// The joined data, if the event has several data lines.
    joined: Option<BytesMut>,
    /// The blank line has come. Only an LF after its CR may still be missing.
    ended: bool,
}

/// The result of one step.
enum SplitStep {
    Line,
    Event(SplitEvent),
    /// All available bytes are used up.
    NeedsMore,
}

impl EventSplitter {
    /// Creates a splitter for events of at most 8 MiB.
    pub fn new() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }

    /// Creates a splitter for events of at most `max_event_bytes` bytes. The limit applies to comments, too.
    pub fn with_limit(max_event_bytes: usize) -> Self {
        Self {
            coming: VecDeque::new(),
            coming_bytes: 0,
            chunk: Bytes::new(),
            held: BytesMut::new(),
            at: 0,
            after_cr: false,
            after_crlf: false,
            at_start: true,
            event: EventLines::default(),
            max_event_bytes,
            failed: None,
        }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, chunk: Bytes) {
        self.coming_bytes += chunk.len();
        self.coming.push_back(chunk);
    }

    /// Number of bytes that were pushed and are not part of a returned event yet.
    pub fn buffered(&self) -> usize {
        self.coming_bytes + self.chunk.len() + self.held.len()
    }

    /// Returns the next whole event. Returns `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails if an event exceeds the limit, or if a name or data is not UTF-8. Every later call returns the same error.
    pub fn next_event(&mut self) -> Result<Option<SplitEvent>, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        loop {
            if self.chunk.is_empty()
                && let Some(chunk) = self.coming.pop_front()
            {
                self.coming_bytes -= chunk.len();
                self.chunk = chunk;
            }
            match self.step() {
                Ok(SplitStep::Line) => {}
                Ok(SplitStep::Event(event)) => return Ok(Some(event)),
                Ok(SplitStep::NeedsMore) if self.coming.is_empty() => return Ok(None),
                Ok(SplitStep::NeedsMore) => {}
                Err(error) => {
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
    }

    /// Returns the last event at the end of the stream, once [`Self::next_event`] returns `None`. There is one if the
    /// stream ended after the CR of its blank line, where an LF could still have followed.
    pub fn finish(&mut self) -> Option<SplitEvent> {
        (self.failed.is_none() && self.event.ended).then(|| self.take_event())
    }

    /// Returns an event that has no blank line at its end, once [`Self::finish`] returns `None`. Its last line may lack
    /// a line end, too. The missing line ends are added to `raw`. The standard drops such an event, but some servers
    /// end a stream like this.
    pub fn unfinished(&mut self) -> Option<SplitEvent> {
        if self.failed.is_some() {
            return None;
        }
        if self.held.len() > self.at {
            self.held.extend_from_slice(b"\n");
            self.take_line(self.held.len() - 1).ok()?;
        }
        self.event.data.as_ref()?;
        self.held.extend_from_slice(b"\n");
        self.at = self.held.len();
        Some(self.take_event())
    }

    /// Whether bytes of an unfinished event are buffered. A stream that ends in this state was cut off. Call this once
    /// [`Self::next_event`] returns `None`. At the end of the stream, call [`Self::finish`] first.
    pub fn is_mid_event(&self) -> bool {
        let partial = self.held.get(self.at..).unwrap_or_default();
        self.event.begun || partial.first().is_some_and(|byte| *byte != b':')
    }

    fn step(&mut self) -> Result<SplitStep, SseError> {
        if self.after_cr {
            let Some(next) = self.peek() else { return self.hold() };
            self.after_cr = false;
            if next == b'\n' {
                self.accept_line_feed();
            }
        }
        if self.event.ended {
            return Ok(SplitStep::Event(self.take_event()));
        }
        let Some(end) = self.line_end() else { return self.hold() };
        if end > self.max_event_bytes && end > self.at {
            return Err(SseError::TooLong { max_bytes: self.max_event_bytes });
        }
        self.take_line(end)
    }

    /// The byte after the last whole line.
    fn peek(&self) -> Option<u8> {
        let at = if self.held.is_empty() { self.at } else { 0 };
        self.chunk.get(at).copied()
    }

    /// Consumes the LF of a CRLF. It belongs to the event if the event has started.
    fn accept_line_feed(&mut self) {
        self.after_crlf = true;
        if self.at == 0 {
            self.chunk.advance(1);
        } else {
            if !self.held.is_empty() {
                self.held.extend_from_slice(b"\n");
                self.chunk.advance(1);
            }
            self.at += 1;
        }
    }

    /// Returns the offset of the byte that ends the line that starts at `at`. The line and this byte are then
    /// contiguous. Returns `None` if the line end has not come yet.
    fn line_end(&mut self) -> Option<usize> {
        if self.held.is_empty() {
            let rest = self.chunk.get(self.at..)?;
            return memchr2(b'\n', b'\r', rest).map(|length| self.at + length);
        }
        let length = memchr2(b'\n', b'\r', &self.chunk)?;
        self.held.extend_from_slice(&self.chunk.split_to(length + 1));
        Some(self.held.len() - 1)
    }

    /// Moves the start of an unfinished event to `held`.
    fn hold(&mut self) -> Result<SplitStep, SseError> {
        self.held.extend_from_slice(&std::mem::take(&mut self.chunk));
        // The limit for whole lines was checked when they were scanned, so only an unfinished line can exceed it here.
        if self.held.len() > self.max_event_bytes && self.held.len() > self.at {
            return Err(SseError::TooLong { max_bytes: self.max_event_bytes });
        }
        Ok(SplitStep::NeedsMore)
    }

    /// Takes one whole line, whose content ends at `end`. An empty line ends the event.
    fn take_line(&mut self, mut end: usize) -> Result<SplitStep, SseError> {
        if std::mem::take(&mut self.at_start) && self.bytes(0..end).starts_with(BYTE_ORDER_MARK) {
            self.drop_front(BYTE_ORDER_MARK.len());
            end -= BYTE_ORDER_MARK.len();
        }
        let line = self.at..end;
        self.at = end + 1;
        self.after_cr = self.bytes(end..end + 1) == b"\r";
        let crlf_before = std::mem::take(&mut self.after_crlf);
        match self.bytes(line.clone()).first() {
            None if self.event.data.is_none() => self.discard(),
            // An LF most likely follows. It belongs to the event.
            None if self.after_cr && crlf_before => self.event.ended = true,
            None => return Ok(SplitStep::Event(self.take_event())),
            Some(b':') if !self.event.begun => self.discard(),
            Some(b':') => {}
            Some(_) => self.take_field(line)?,
        }
        Ok(SplitStep::Line)
    }

    fn take_field(&mut self, line: Range<usize>) -> Result<(), SseError> {
        self.event.begun = true;
        let bytes = self.bytes(line.clone());
        let name = memchr(b':', bytes).unwrap_or(bytes.len());
        let (field, value) = bytes.split_at(name);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let (is_data, place) = match field {
            b"data" => (true, line.end - value.len()..line.end),
            b"event" => (false, line.end - value.len()..line.end),
            // An id, a retry time, or a field that is not in the standard.
            _ => return Ok(()),
        };
        if std::str::from_utf8(value).is_err() {
            return Err(SseError::NotUtf8);
        }
        if !is_data {
            self.event.name = place;
        } else if let Some(first) = self.event.data.clone() {
            let mut joined = self.event.joined.take().unwrap_or_else(|| BytesMut::from(self.bytes(first)));
            joined.extend_from_slice(b"\n");
            joined.extend_from_slice(self.bytes(place));
            self.event.joined = Some(joined);
        } else {
            self.event.data = Some(place);
        }
        Ok(())
    }

    /// Bytes of the event. The range is counted from its first byte.
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        let all: &[u8] = if self.held.is_empty() { &self.chunk } else { &self.held };
        all.get(range).unwrap_or_default()
    }

    /// Drops lines that carry no content.
    fn discard(&mut self) {
        self.drop_front(self.at);
        self.at = 0;
        self.event = EventLines::default();
    }

    fn drop_front(&mut self, count: usize) {
        if self.held.is_empty() {
            self.chunk.advance(count);
        } else if count < self.held.len() {
            self.held.advance(count);
        } else {
            self.held = BytesMut::new();
        }
    }

    fn take_event(&mut self) -> SplitEvent {
        let at = std::mem::take(&mut self.at);
        let raw = match std::mem::take(&mut self.held) {
            held if held.is_empty() => self.chunk.split_to(at),
            held => held.freeze(),
        };
        let lines = std::mem::take(&mut self.event);
        let data = match lines.joined {
            Some(joined) => joined.freeze(),
            None => raw.slice(lines.data.unwrap_or_default()),
        };
        SplitEvent { name: raw.slice(lines.name), data, raw }
    }
}

impl Default for EventSplitter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
