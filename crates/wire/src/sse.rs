//! An incremental reader of server-sent events. Takes bytes in chunks of any size and returns events. Does not
//! interpret their content.
//!
//! Source: the WHATWG's HTML standard, 9.2.6 "Interpreting an event stream". Ids and retry times are not kept.

use std::fmt;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// The event name. Empty if the event has none, as in OpenAI's streams.
    pub name: String,
    /// The data. Several lines are joined with line feeds.
    pub data: String,
}

impl SseEvent {
    /// Whether this is the `[DONE]` that ends OpenAI's streams.
    pub fn is_done(&self) -> bool {
        self.data == "[DONE]"
    }
}

/// The reason why a stream cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SseError {
    /// A line or an event exceeds the limit.
    TooLong {
        /// The limit, in bytes.
        max_bytes: usize,
    },
    /// A line is not UTF-8.
    NotUtf8,
}

impl fmt::Display for SseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { max_bytes } => write!(f, "the stream has an event longer than {max_bytes} bytes"),
            Self::NotUtf8 => f.write_str("the stream has a line that is not UTF-8"),
        }
    }
}

impl std::error::Error for SseError {}

/// The default limit for one event, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Reads a stream as it comes. Lines may end in LF, CR or CRLF, and chunks may split the stream anywhere.
#[derive(Debug)]
pub struct SseReader {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    event: SseDraft,
    max_event_bytes: usize,
    /// The last byte was a CR. An LF right after it belongs to the same line end.
    after_cr: bool,
}

/// The event whose lines are being read.
#[derive(Debug, Default)]
struct SseDraft {
    name: String,
    data: String,
    has_data: bool,
    /// No line of any event has come yet.
    at_start: bool,
}

impl SseReader {
    /// Creates a reader for events of at most 16 MiB.
    pub fn new() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }

    /// Creates a reader for events of at most `max_event_bytes` bytes.
    pub fn with_limit(max_event_bytes: usize) -> Self {
        let event = SseDraft { at_start: true, ..SseDraft::default() };
        Self { line: Vec::new(), event, max_event_bytes, after_cr: false }
    }

    /// Takes the next bytes and returns the events that they complete.
    ///
    /// # Errors
    /// Fails if an event exceeds the limit, or if a line is not UTF-8. The reader cannot be used afterwards.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, SseError> {
        let mut events = Vec::new();
        self.read(bytes, |name, data| {
            events.push(SseEvent { name: name.to_owned(), data: data.to_owned() });
        })?;
        Ok(events)
    }

    /// Takes the next bytes and passes the name and the data of each event that they complete to `each`. Events need no
    /// allocation, because the buffers are reused.
    ///
    /// # Errors
    /// Fails if an event exceeds the limit, or if a line is not UTF-8. The reader cannot be used afterwards.
    pub fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(&str, &str)) -> Result<(), SseError> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) {
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let (piece, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.line.len() + piece.len() + self.event.data.len() > self.max_event_bytes {
                return Err(SseError::TooLong { max_bytes: self.max_event_bytes });
            }
            let Some((terminator, after)) = rest.split_first() else {
                self.line.extend_from_slice(piece);
                break;
            };
            self.after_cr = *terminator == b'\r';
            bytes = after;
            if self.line.is_empty() {
                self.event.take_line(piece, &mut each)?;
            } else {
                self.line.extend_from_slice(piece);
                self.event.take_line(&self.line, &mut each)?;
                self.line.clear();
            }
        }
        Ok(())
    }

    /// Whether bytes of an unfinished event are buffered. A stream that ends in this state was cut off.
    pub fn is_mid_event(&self) -> bool {
        !self.line.is_empty() || self.event.has_data
    }
}

impl SseDraft {
    /// Takes one whole line. An empty line ends the event.
    fn take_line(&mut self, line: &[u8], each: &mut impl FnMut(&str, &str)) -> Result<(), SseError> {
        let mut line = std::str::from_utf8(line).map_err(|_| SseError::NotUtf8)?;
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                each(&self.name, &self.data);
            }
            self.name.clear();
            self.data.clear();
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.name),
            // A comment (an empty field), an id, a retry time, or a field that is not in the standard.
            _ => {}
        }
        Ok(())
    }
}

impl Default for SseReader {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.into(), data: data.into() }
    }

    #[test]
    fn lines_of_every_kind() {
        let rows: &[(&str, Vec<SseEvent>)] = &[
            ("data: a\n\n", vec![event("", "a")]),
            ("data:a\r\n\r\n", vec![event("", "a")]),
            ("data:  a\r\rdata: b\n\r\n", vec![event("", " a"), event("", "b")]),
            ("\u{feff}: hello\ndata: a\ndata\ndata: b\n\n", vec![event("", "a\n\nb")]),
            ("event: ping\ndata: {}\nid: 7\nretry: 10\nfoo: x\n\n", vec![event("ping", "{}")]),
            ("event: lost\n\ndata: [DONE]\n\n", vec![event("", "[DONE]")]),
            (": keep-alive\n\n\n\n", vec![]),
            ("data: unfinished\n", vec![]),
        ];
        for (text, events) in rows {
            let mut reader = SseReader::new();
            assert_eq!(&reader.push(text.as_bytes()).unwrap(), events, "{text:?}");
            assert_eq!(reader.is_mid_event(), text.contains("unfinished"));
        }
        assert!(event("", "[DONE]").is_done());
    }

    #[test]
    fn hostile_streams_end() {
        let mut reader = SseReader::with_limit(10);
        assert_eq!(reader.push(&[b'x'; 11]), Err(SseError::TooLong { max_bytes: 10 }));
        let mut reader = SseReader::with_limit(10);
        let lines = b"data: 1234\n".repeat(4);
        assert_eq!(reader.push(&lines), Err(SseError::TooLong { max_bytes: 10 }));
        assert_eq!(SseReader::new().push(b"data: \xff\n"), Err(SseError::NotUtf8));
    }

    proptest! {
        #[test]
        fn cuts_never_matter(
            parts in prop::collection::vec(
                prop::sample::select(vec!["data: é😀\n", "data: b\r\n", "event: x\r", "\n", "\r\n", "\r", ": c\n", "data"]),
                0..20,
            ),
            cuts in prop::collection::vec(1_usize..5, 0..60),
        ) {
            let text = parts.concat();
            let whole = SseReader::new().push(text.as_bytes()).unwrap();
            let mut reader = SseReader::new();
            let mut rest = text.as_bytes();
            let mut events = Vec::new();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                events.extend(reader.push(piece).unwrap());
                rest = after;
            }
            events.extend(reader.push(rest).unwrap());
            prop_assert_eq!(events, whole);
        }
    }
}
