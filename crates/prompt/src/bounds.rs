//! The limits of one rendering, the counters for them, and the error for exceeding them. Must not know templates or
//! conversations.

use std::cell::Cell;
use std::fmt;
use std::io;

use minijinja::{Error, ErrorKind};

/// The limits of a template for one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateLimits {
    /// The maximum number of instructions of the template engine.
    pub fuel: u64,
    /// The maximum size of the output, and of any intermediate string, in bytes.
    pub max_output_bytes: usize,
}

impl Default for TemplateLimits {
    /// Ten million instructions (about a second), 16 MiB.
    fn default() -> Self {
        Self { fuel: 10_000_000, max_output_bytes: 16 << 20 }
    }
}

/// The filter that [`crate::source::Source::rewritten`] applies to every value that a template stores.
pub(crate) const CAP: &str = "__headrace_cap";

/// Every write is counted, including writes into blocks that are kept in a variable and written again. The total may
/// therefore exceed the output limit by this factor.
const WRITTEN_PER_OUTPUT_BYTE: usize = 8;

thread_local! {
    /// Bytes that the current rendering on this thread has written. A rendering runs on one thread, and one rendering
    /// runs at a time. The engine offers its formatter no other state that outlives a call, not even for macros.
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
}

/// Resets the counter for a new rendering.
pub(crate) fn start_counting() {
    WRITTEN.set(0);
}

/// Counts `bytes` written. Returns an error if the total is too large for an output of `max_bytes`.
pub(crate) fn count(bytes: usize, max_bytes: usize) -> Result<(), Error> {
    let written = WRITTEN.get().saturating_add(bytes);
    WRITTEN.set(written);
    if written > max_bytes.saturating_mul(WRITTEN_PER_OUTPUT_BYTE) { Err(TooLong::error()) } else { Ok(()) }
}

/// The source of an engine error for a string that exceeded the limit.
#[derive(Debug)]
pub(crate) struct TooLong;

impl TooLong {
    pub(crate) fn error() -> Error {
        Error::new(ErrorKind::InvalidOperation, "a string outgrew the limit").with_source(Self)
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too long")
    }
}

impl std::error::Error for TooLong {}

/// A writer that accepts output up to a limit.
pub(crate) struct CappedWriter {
    pub(crate) bytes: Vec<u8>,
    limit: usize,
    /// Whether output was refused because of the limit.
    pub(crate) hit: bool,
}

impl CappedWriter {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, hit: false }
    }
}

impl io::Write for CappedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit.saturating_sub(self.bytes.len()) {
            self.hit = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
