//! A stream of server-sent events cut into its events, whose bytes stay where they came. Knows nothing of what an event says.
//!
//! Source: the WHATWG's HTML standard, 9.2.6 "Interpreting an event stream". Ids and retry times are not kept.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

use crate::client::SseError;

/// Longest event by default, in bytes.
const MAX_EVENT_BYTES: usize = 8 << 20;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// One event, as it came and as it reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SplitEvent {
    /// Its bytes as they came, with the blank line that ends it; comments and a byte order mark before it left out.
    pub raw: Bytes,
    /// Its name; empty where it has none.
    pub name: Bytes,
    /// Its data in UTF-8; several lines joined with line feeds.
    pub data: Bytes,
}

/// Cuts a stream into its events. Chunks go in as they come and events come out; one that lies within a chunk is not copied.
/// Lines may end in LF, CR or CRLF, in any mixture, and may be cut anywhere. Events without data are left out.
#[derive(Debug)]
pub struct EventSplitter {
    /// Chunks that are not looked at yet.
    coming: VecDeque<Bytes>,
    /// Bytes in `coming`.
    coming_bytes: usize,
    /// What is left of the chunk at hand: from the event's first byte on, or what follows `held`.
    chunk: Bytes,
    /// The beginning of an event that lies in several chunks; everything in it was looked at.
    held: BytesMut,
    /// Where the next line begins, counted from the event's first byte.
    at: usize,
    /// The last line ended in CR: a LF right after it belongs to the same line end.
    after_cr: bool,
    /// The last line ended in CR and LF.
    after_crlf: bool,
    /// No line has come yet, of any event.
    at_start: bool,
    event: Lines,
    max_event_bytes: usize,
    failed: Option<SseError>,
}

/// What the lines of the event so far say; places are counted from the event's first byte.
#[derive(Debug, Default)]
struct Lines {
    /// A line that is no comment has come.
    begun: bool,
    name: Range<usize>,
    data: Option<Range<usize>>,
    /// The data, where it has several lines.
    joined: Option<BytesMut>,
    /// The blank line is here, but for a LF that may follow its CR.
    ended: bool,
}

/// What one step brought.
enum Step {
    Line,
    Event(SplitEvent),
    /// The bytes at hand are used up.
    NeedsMore,
}

impl EventSplitter {
    /// A splitter of events up to 8 MiB.
    pub fn new() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }

    /// A splitter of events up to `max_event_bytes`; a comment may not be longer either.
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
            event: Lines::default(),
            max_event_bytes,
            failed: None,
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, chunk: Bytes) {
        self.coming_bytes += chunk.len();
        self.coming.push_back(chunk);
    }

    /// Bytes that were taken and are in no event yet.
    pub fn buffered(&self) -> usize {
        self.coming_bytes + self.chunk.len() + self.held.len()
    }

    /// The next event that is whole; `None`: it takes more bytes.
    ///
    /// # Errors
    /// An event beyond the limit, or a name or data that is not UTF-8. Every later call says the same.
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
                Ok(Step::Line) => {}
                Ok(Step::Event(event)) => return Ok(Some(event)),
                Ok(Step::NeedsMore) if self.coming.is_empty() => return Ok(None),
                Ok(Step::NeedsMore) => {}
                Err(error) => {
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
    }

    /// The last event, once no more bytes come and [`Self::next_event`] has no more: one whose blank line came cut between
    /// CR and LF.
    pub fn finish(&mut self) -> Option<SplitEvent> {
        (self.failed.is_none() && self.event.ended).then(|| self.take_event())
    }

    /// The event that no blank line ended, once [`Self::finish`] has no more: its last line may lack its line end, too. Its `raw`
    /// has what was missing. The standard drops such an event; servers exist that end a stream so.
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

    /// Whether bytes of an unfinished event are at hand: a stream that ends so was cut off. Asked when [`Self::next_event`]
    /// has no more; at the end of a stream, after [`Self::finish`].
    pub fn is_mid_event(&self) -> bool {
        let partial = self.held.get(self.at..).unwrap_or_default();
        self.event.begun || partial.first().is_some_and(|byte| *byte != b':')
    }

    fn step(&mut self) -> Result<Step, SseError> {
        if self.after_cr {
            let Some(next) = self.peek() else { return self.hold() };
            self.after_cr = false;
            if next == b'\n' {
                self.accept_line_feed();
            }
        }
        if self.event.ended {
            return Ok(Step::Event(self.take_event()));
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

    /// The LF of a CRLF: part of the event where it has begun.
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

    /// Where the line that begins at `at` ends. Its bytes and what ends it lie in one piece then.
    fn line_end(&mut self) -> Option<usize> {
        if self.held.is_empty() {
            let rest = self.chunk.get(self.at..)?;
            return memchr2(b'\n', b'\r', rest).map(|length| self.at + length);
        }
        let length = memchr2(b'\n', b'\r', &self.chunk)?;
        self.held.extend_from_slice(&self.chunk.split_to(length + 1));
        Some(self.held.len() - 1)
    }

    /// Keeps the beginning of an event whose end is not at hand.
    fn hold(&mut self) -> Result<Step, SseError> {
        self.held.extend_from_slice(&std::mem::take(&mut self.chunk));
        // Of whole lines only the content counts, and that was looked at.
        if self.held.len() > self.max_event_bytes && self.held.len() > self.at {
            return Err(SseError::TooLong { max_bytes: self.max_event_bytes });
        }
        Ok(Step::NeedsMore)
    }

    /// One whole line, whose content ends at `end`; an empty one ends the event.
    fn take_line(&mut self, mut end: usize) -> Result<Step, SseError> {
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
            // A LF most likely follows, and belongs to the event.
            None if self.after_cr && crlf_before => self.event.ended = true,
            None => return Ok(Step::Event(self.take_event())),
            Some(b':') if !self.event.begun => self.discard(),
            Some(b':') => {}
            Some(_) => self.take_field(line)?,
        }
        Ok(Step::Line)
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
            // An id, a retry time, or something new.
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

    /// Bytes of the event, counted from its first.
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        let all: &[u8] = if self.held.is_empty() { &self.chunk } else { &self.held };
        all.get(range).unwrap_or_default()
    }

    /// Lines that say nothing.
    fn discard(&mut self) {
        self.drop_front(self.at);
        self.at = 0;
        self.event = Lines::default();
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
