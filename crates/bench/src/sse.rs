//! Bytes to the data of server-sent events, without an allocation per event: the buffers are kept.
//! Knows nothing of what an event says. Source: WHATWG HTML, section 9.2, for lines that end in LF or CR LF.

/// Longest event that is read, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// An event is longer than any answer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

#[derive(Debug, Default)]
pub(crate) struct EventReader {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    /// The data lines of the event so far.
    data: Vec<u8>,
    has_data: bool,
}

impl EventReader {
    /// Takes what the connection gave and hands on the data of each event that is whole with it.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLong> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            if self.line.is_empty() {
                self.take(line, &mut each)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.take(&whole, &mut each)?;
                whole.clear();
                self.line = whole;
            }
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > MAX_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
    }

    fn take(&mut self, line: &[u8], each: &mut impl FnMut(&[u8])) -> Result<(), TooLong> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                each(&self.data);
            }
            self.data.clear();
            return Ok(());
        }
        let Some(value) = line.strip_prefix(b"data:") else { return Ok(()) };
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        if self.data.len() > MAX_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"a\":1}\n\n: alive\n\nevent: x\r\ndata: two\r\ndata:lines\r\n\r\nid: 3\n\ndata\n\n\
                          data: [DONE]\n\ndata: never ended\n";

    /// However the bytes are split, the events are the same.
    #[test]
    fn events_do_not_depend_on_how_bytes_come() {
        for piece in 1..STREAM.len() {
            let mut reader = EventReader::default();
            let mut events = Vec::new();
            for bytes in STREAM.as_bytes().chunks(piece) {
                reader.push(bytes, |data| events.push(String::from_utf8_lossy(data).into_owned())).unwrap();
            }
            assert_eq!(events, ["{\"a\":1}", "two\nlines", "[DONE]"], "pieces of {piece}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut reader = EventReader::default();
        let line = vec![b'x'; 1 << 20];
        let pushed: Result<(), TooLong> = (0..20).try_for_each(|_| reader.push(&line, |_| ()));
        assert_eq!(pushed, Err(TooLong));
    }
}
