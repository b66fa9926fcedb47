//! A load generator: one spinning thread that keeps many connections busy. It is precise to microseconds and occupies
//! one core.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The key that the benchmark's servers accept.
pub(crate) const KEY: &str = "sk-benchmark-only-0123456789";

pub(crate) struct Load {
    pub(crate) port: u16,
    pub(crate) connections: usize,
    /// The request that every connection repeats.
    pub(crate) request: Vec<u8>,
}

/// Work that the thread does between its own steps. It must not block.
pub(crate) type Beside<'a> = &'a mut dyn FnMut() -> std::io::Result<()>;

/// No other work.
#[allow(dead_code, reason = "not every benchmark does something beside")]
pub(crate) fn alone() -> std::io::Result<()> {
    Ok(())
}

pub(crate) struct Measured {
    pub(crate) answers: u64,
    pub(crate) elapsed: Duration,
    latency_ns: Histogram<u64>,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.answers as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn percentile_us(&self, percentile: f64) -> f64 {
        self.latency_ns.value_at_percentile(percentile) as f64 / 1000.0
    }
}

struct Connection {
    stream: TcpStream,
    /// The time at which its request was due.
    since: Option<Instant>,
    answer: Vec<u8>,
}

impl Load {
    /// Closed loop: every connection sends its next request as soon as it has its answer.
    pub(crate) fn closed(
        &self,
        length: Duration,
        beside: Beside<'_>,
    ) -> Result<Measured, Box<dyn std::error::Error>> {
        self.drive(length, None, beside)
    }

    /// Open loop: requests are due at a fixed rate, regardless of the answers. A request without a free connection
    /// waits for one, and its wait counts.
    pub(crate) fn paced(
        &self,
        length: Duration,
        per_second: f64,
        beside: Beside<'_>,
    ) -> Result<Measured, Box<dyn std::error::Error>> {
        self.drive(length, Some(Duration::from_secs_f64(1.0 / per_second)), beside)
    }

    fn drive(
        &self,
        length: Duration,
        pace: Option<Duration>,
        beside: Beside<'_>,
    ) -> Result<Measured, Box<dyn std::error::Error>> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            let stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            connections.push(Connection { stream, since: None, answer: Vec::with_capacity(8192) });
        }
        let mut measured = Measured {
            answers: 0,
            elapsed: Duration::ZERO,
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
        };
        let start = Instant::now();
        let (mut next_due, mut due) = (start, VecDeque::new());
        while start.elapsed() < length {
            beside()?;
            let now = Instant::now();
            if let Some(pace) = pace {
                while next_due <= now {
                    due.push_back(next_due);
                    next_due += pace;
                }
            }
            for connection in &mut connections {
                if connection.since.is_none() {
                    let since = if pace.is_some() { due.pop_front() } else { Some(Instant::now()) };
                    let Some(since) = since else { continue };
                    write_all(&mut connection.stream, &self.request, beside)?;
                    connection.since = Some(since);
                } else if connection.poll()? {
                    let since = connection.since.take().unwrap_or(now);
                    let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    measured.latency_ns.saturating_record(waited);
                    measured.answers += 1;
                }
            }
        }
        measured.elapsed = start.elapsed();
        Ok(measured)
    }
}

impl Connection {
    /// Reads available bytes. Returns `true` once the answer is complete. Any status but 200 ends the benchmark.
    fn poll(&mut self) -> Result<bool, Box<dyn std::error::Error>> {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(read) => self.answer.extend_from_slice(piece.get(..read).unwrap_or(&[])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let Some(end) = self.answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(false);
        };
        let head = String::from_utf8_lossy(self.answer.get(..end).unwrap_or(&[])).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err(String::from_utf8_lossy(&self.answer).into_owned().into());
        }
        let whole = match head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
            Some(length) => self.answer.len() >= end + 4 + length.trim().parse::<usize>()?,
            None => self.answer.ends_with(b"0\r\n\r\n"),
        };
        if whole {
            self.answer.clear();
        }
        Ok(whole)
    }
}

/// Writes all bytes. Does the other work while the peer accepts none.
fn write_all(stream: &mut TcpStream, mut bytes: &[u8], beside: Beside<'_>) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or(&[]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => beside()?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The body of a chat request of this many characters.
pub(crate) fn chat(characters: usize, stream: bool) -> String {
    let text = "The quick brown fox jumps over the lazy dog, and then again. ".repeat(characters / 60 + 1);
    format!(
        "{{\"model\":\"headrace-demo\",\"stream\":{stream},\"max_tokens\":16,\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
        text.get(..characters).unwrap_or(&text)
    )
}

/// A request with that body.
pub(crate) fn request(body: &str) -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
