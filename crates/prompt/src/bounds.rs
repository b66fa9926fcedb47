//! How much one rendering may do: its limits, what counts against them, and the error of what outgrew them.
//! Must not know templates or conversations.

use std::cell::Cell;
use std::fmt;
use std::io;

use minijinja::{Error, ErrorKind};

/// How much a template may do for one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Most instructions of the template engine.
    pub fuel: u64,
    /// Most bytes of output, and of any one string on the way.
    pub max_output_bytes: usize,
}

impl Default for TemplateLimits {
    /// Ten million instructions (about a second), 16 MiB.
    fn default() -> Self {
        Self { fuel: 10_000_000, max_output_bytes: 16 << 20 }
    }
}

/// The filter that [`crate::source::Source::rewritten`] puts on whatever a template keeps.
pub(crate) const CAP: &str = "__headrace_cap";

/// Writing counts wherever it goes, also into blocks that are kept in a variable and written again.
const WRITTEN_PER_OUTPUT_BYTE: usize = 8;

thread_local! {
    /// Bytes that the rendering on this thread has written. One rendering runs at a time and on one thread, and the
    /// engine's formatter is given nothing else that lasts from call to call, macros included.
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
}

/// Starts counting for a new rendering.
pub(crate) fn start_counting() {
    WRITTEN.set(0);
}

/// Counts `bytes` written; an error once there are too many for an output of `max_bytes`.
pub(crate) fn count(bytes: usize, max_bytes: usize) -> Result<(), Error> {
    let written = WRITTEN.get().saturating_add(bytes);
    WRITTEN.set(written);
    if written > max_bytes.saturating_mul(WRITTEN_PER_OUTPUT_BYTE) { Err(TooLong::error()) } else { Ok(()) }
}

/// A string outgrew the limit, as the source of an engine error.
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

/// Takes output up to a limit.
pub(crate) struct Capped {
    pub(crate) bytes: Vec<u8>,
    limit: usize,
    /// Whether there was more.
    pub(crate) hit: bool,
}

impl Capped {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, hit: false }
    }
}

impl io::Write for Capped {
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
