//! Follows the bytes of an HTTP/1 connection just far enough to know where heads begin and end. Detects a head that
//! states the end of its body in two ways (RFC 9112 §6.3, request smuggling). It decides nothing else: hyper parses.
//!
//! hyper itself prefers `transfer-encoding` over `content-length` and silently merges equal lengths, as the standard
//! allows. No client of this API needs to send both, so such requests are refused.

use memchr::memchr;

/// Bytes kept of a line: enough for its name and a length. A longer line that states a body's end is not trusted.
const LINE_BYTES_KEPT: usize = 256;

/// The result of following some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FramingFacts {
    /// Whether the connection is now inside a head.
    pub(crate) in_head: bool,
    /// Whether that head began in these bytes.
    pub(crate) head_began: bool,
    /// Index of the first ambiguous head among these bytes. 0 is the connection's first head.
    pub(crate) ambiguous: Option<u64>,
}

/// The current position in an HTTP/1 connection.
#[derive(Debug, Default)]
pub(crate) struct HttpFraming {
    state: FramingState,
    line: HeadLine,
    head: HeadFacts,
    heads: u64,
    /// The last head asked for another protocol, so the following bytes may not be HTTP.
    upgrade_asked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum FramingState {
    /// Before a request. Empty lines are allowed here.
    #[default]
    Between,
    Head,
    /// Inside a body, with this many bytes left.
    Body(u64),
    ChunkSize,
    /// Inside a chunk, with this many bytes left, including its line end.
    Chunk(u64),
    Trailers,
    /// The bytes cannot be followed as HTTP. hyper will report the error.
    Lost,
}

/// The line being read. Only its first bytes are kept.
#[derive(Debug, Default)]
struct HeadLine {
    kept: Vec<u8>,
    /// The line has more bytes than were kept.
    is_cut: bool,
}

/// What the head being read has stated so far.
#[derive(Debug, Default)]
struct HeadFacts {
    lines: u64,
    http_10: bool,
    lengths: u32,
    length: u64,
    encodings: u32,
    chunked: bool,
    /// A length or an encoding cannot be understood.
    is_unclear: bool,
    upgrade: bool,
}

impl HttpFraming {
    /// Follows `bytes`.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> FramingFacts {
        let mut learnt = FramingFacts::default();
        while let Some(&first) = bytes.first() {
            bytes = match self.state {
                FramingState::Lost => &[],
                FramingState::Body(left) => self.skip(bytes, left, FramingState::Body, FramingState::Between),
                FramingState::Chunk(left) => {
                    self.skip(bytes, left, FramingState::Chunk, FramingState::ChunkSize)
                }
                FramingState::Between => {
                    if matches!(first, b'\r' | b'\n') {
                        bytes.get(1..).unwrap_or_default()
                    } else {
                        if self.upgrade_asked {
                            learnt.ambiguous.get_or_insert(self.heads.saturating_sub(1));
                        }
                        self.state = FramingState::Head;
                        self.head = HeadFacts::default();
                        learnt.head_began = true;
                        bytes
                    }
                }
                FramingState::Head | FramingState::ChunkSize | FramingState::Trailers => {
                    self.line(bytes, &mut learnt)
                }
            };
        }
        learnt.in_head = self.state == FramingState::Head;
        learnt.head_began &= learnt.in_head;
        learnt
    }

    fn skip<'b>(
        &mut self,
        bytes: &'b [u8],
        left: u64,
        on: fn(u64) -> FramingState,
        then: FramingState,
    ) -> &'b [u8] {
        let there = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let after = left.saturating_sub(there);
        self.state = if after == 0 { then } else { on(after) };
        bytes.get(usize::try_from(left).unwrap_or(usize::MAX)..).unwrap_or_default()
    }

    /// Reads a line, or the part of it that has arrived. Returns the bytes after it.
    fn line<'b>(&mut self, bytes: &'b [u8], learnt: &mut FramingFacts) -> &'b [u8] {
        let end = memchr(b'\n', bytes);
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if end.is_some() && part.len() <= LINE_BYTES_KEPT && self.line.is_nothing() {
            // The whole line is in these bytes, as usual, so it need not be kept.
            self.line_ended(part, false, learnt);
        } else {
            self.line.add(part);
            if end.is_some() {
                let HeadLine { mut kept, is_cut } = std::mem::take(&mut self.line);
                self.line_ended(&kept, is_cut, learnt);
                // The allocation is reused for the next line.
                kept.clear();
                self.line.kept = kept;
            }
        }
        rest.get(1..).unwrap_or_default()
    }

    fn line_ended(&mut self, line: &[u8], is_cut: bool, learnt: &mut FramingFacts) {
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        self.state = match self.state {
            FramingState::Head if text.is_empty() => {
                let index = self.heads;
                self.heads = self.heads.saturating_add(1);
                self.upgrade_asked = self.head.upgrade;
                if self.head.is_ambiguous() {
                    learnt.ambiguous.get_or_insert(index);
                }
                self.head.body()
            }
            FramingState::Head => {
                self.head.learn(text, is_cut);
                FramingState::Head
            }
            FramingState::ChunkSize => match chunk_size(text).filter(|_| !is_cut) {
                Some(0) => FramingState::Trailers,
                Some(size) => FramingState::Chunk(size.saturating_add(2)),
                None => {
                    // The start of the next head is unknown from here on.
                    learnt.ambiguous.get_or_insert(self.heads);
                    FramingState::Lost
                }
            },
            FramingState::Trailers if text.is_empty() => FramingState::Between,
            other => other,
        };
    }
}

impl HeadLine {
    fn is_nothing(&self) -> bool {
        self.kept.is_empty() && !self.is_cut
    }

    fn add(&mut self, part: &[u8]) {
        let room = LINE_BYTES_KEPT.saturating_sub(self.kept.len());
        self.is_cut |= part.len() > room;
        self.kept.extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
    }
}

impl HeadFacts {
    fn learn(&mut self, line: &[u8], is_cut: bool) {
        self.lines = self.lines.saturating_add(1);
        if self.lines == 1 {
            self.http_10 = line.ends_with(b" HTTP/1.0");
            return;
        }
        if let Some(value) = value_of(line, b"content-length") {
            let length = decimal(value);
            self.lengths = self.lengths.saturating_add(1);
            self.length = length.unwrap_or(0);
            self.is_unclear |= is_cut || length.is_none();
        } else if let Some(value) = value_of(line, b"transfer-encoding") {
            self.encodings = self.encodings.saturating_add(1);
            self.chunked = value.eq_ignore_ascii_case(b"chunked");
            self.is_unclear |= is_cut || !self.chunked;
        } else if value_of(line, b"upgrade").is_some() {
            self.upgrade = true;
        }
    }

    const fn is_ambiguous(&self) -> bool {
        self.is_unclear
            || self.lengths > 1
            || self.encodings > 1
            || (self.encodings > 0 && (self.lengths > 0 || self.http_10))
    }

    const fn body(&self) -> FramingState {
        match (self.chunked, self.length) {
            (true, _) => FramingState::ChunkSize,
            (false, 0) => FramingState::Between,
            (false, length) => FramingState::Body(length),
        }
    }
}

/// Returns the value in a line of a head, if the line's name is `name`.
fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let (there, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":")?;
    there.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// Parses the hexadecimal size at the start of a chunk, before any extension (RFC 9112 §7.1).
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";

    /// Feeds `text` in one piece and byte by byte. Both must give the same result.
    fn check(text: &str, ambiguous: Option<u64>, in_head: bool) {
        let mut whole = HttpFraming::default();
        let learnt = whole.feed(text.as_bytes());
        assert_eq!((learnt.ambiguous, learnt.in_head), (ambiguous, in_head), "{text:?}");
        let mut dripped = HttpFraming::default();
        let mut first = None;
        let mut last = FramingFacts::default();
        for byte in text.bytes() {
            last = dripped.feed(&[byte]);
            first = first.or(last.ambiguous);
        }
        assert_eq!((first, last.in_head), (ambiguous, in_head), "dripped {text:?}");
        assert_eq!(whole.state, dripped.state);
    }

    #[test]
    fn a_head_that_says_its_length_in_two_ways_is_found() {
        for (fields, ambiguous) in [
            ("Content-Length: 5\r\n\r\nhello", false),
            ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false),
            ("Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", true),
            ("content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", true),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", true),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true),
            ("Transfer-Encoding: gzip\r\n\r\n", true),
            ("Transfer-Encoding: chunked, chunked\r\n\r\n", true),
            ("Transfer-Encoding: gzip, chunked\r\n\r\n", true),
            ("Transfer-Encoding: Chunked \r\n\r\n0\r\n\r\n", false),
            ("Content-Length: 2, 2\r\n\r\n", true),
            ("Upgrade: websocket\r\n\r\n", false),
            ("Upgrade: websocket\r\nContent-Length: 1\r\n\r\nx", false),
        ] {
            check(&format!("{POST}{fields}"), ambiguous.then_some(0), false);
        }
        let long = format!("Content-Length: {}1\r\n\r\n", "0".repeat(300));
        check(&format!("{POST}{long}"), Some(0), false);
        check(&format!("{POST}Transfer-Encoding:{}chunked\r\n\r\n", " ".repeat(300)), Some(0), false);
        check(&format!("{POST}Upgrade: h2c\r\n\r\nGET / HTTP/1.1\r\n"), Some(0), true);
        let size = format!("{}2\r\nab\r\n0\r\n\r\n", "0".repeat(300));
        check(&format!("{POST}Transfer-Encoding: chunked\r\n\r\n{size}"), Some(1), false);
        check(&format!("{POST}X: {}\r\n\r\n", "y".repeat(1_000)), None, false);
        check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Some(0), false);
    }

    #[test]
    fn bodies_are_stepped_over_to_the_next_head() {
        let length =
            format!("{POST}Content-Length: 36\r\n\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n\r\n");
        let chunks = format!(
            "{POST}Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"
        );
        let bad = format!("{POST}Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n");
        check(&format!("{length}{chunks}\r\nGET / HTTP/1.1\r\n"), None, true);
        check(&format!("{chunks}{length}{bad}"), Some(2), false);
        check(&format!("{POST}Content-Length: 10\r\n\r\nabc"), None, false);
        check("GET / HT", None, true);
        check("\r\n\r\n", None, false);
    }

    #[test]
    fn a_long_line_costs_no_memory() {
        let mut framing = HttpFraming::default();
        for _ in 0..1_000 {
            framing.feed(&[b'x'; 1_000]);
        }
        assert!(framing.line.kept.capacity() <= 2 * LINE_BYTES_KEPT);
    }
}
