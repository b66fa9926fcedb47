//! Frames as bytes: a little-endian length of four bytes, followed by the content. Must not know the meaning of frames.

use std::fmt;

use crate::frame::WorkerFrame;
use crate::limits::MAX_FRAME_BYTES;

const LENGTH_BYTES: usize = 4;

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameFault {
    /// The stated length exceeds the maximum.
    TooLong {
        /// The stated length, in bytes.
        bytes: u64,
    },
    /// The content cannot be parsed, or has trailing bytes.
    Malformed,
}

impl fmt::Display for FrameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "a frame of {bytes} bytes; one has {MAX_FRAME_BYTES} at most")
            }
            Self::Malformed => f.write_str("a frame that means nothing"),
        }
    }
}

impl std::error::Error for FrameFault {}

/// Appends a frame to `out`.
///
/// # Errors
/// The frame exceeds the maximum length. `out` is then unchanged.
pub fn put_frame(out: &mut Vec<u8>, frame: &WorkerFrame) -> Result<(), FrameFault> {
    let at = out.len();
    let mut whole = std::mem::take(out);
    whole.extend_from_slice(&[0; LENGTH_BYTES]);
    *out = postcard::to_extend(frame, whole).map_err(|_| FrameFault::Malformed)?;
    let bytes = out.len().saturating_sub(at + LENGTH_BYTES);
    if bytes > MAX_FRAME_BYTES {
        out.truncate(at);
        return Err(FrameFault::TooLong { bytes: bytes as u64 });
    }
    let length = u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    if let Some(slot) = out.get_mut(at..at + LENGTH_BYTES) {
        slot.copy_from_slice(&length);
    }
    Ok(())
}

/// Extracts frames from bytes that arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Number of bytes already parsed.
    at: usize,
}

impl FrameReader {
    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        } else if self.at > MAX_FRAME_BYTES {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete frame.
    ///
    /// # Errors
    /// The next bytes are not a valid frame. Nothing after them can be parsed.
    pub fn next_frame(&mut self) -> Result<Option<WorkerFrame>, FrameFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > MAX_FRAME_BYTES {
            return Err(FrameFault::TooLong { bytes: bytes as u64 });
        }
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let read = postcard::take_from_bytes(body);
        let (frame, after): (WorkerFrame, &[u8]) = read.map_err(|_| FrameFault::Malformed)?;
        if !after.is_empty() {
            return Err(FrameFault::Malformed);
        }
        self.at += LENGTH_BYTES + bytes;
        Ok(Some(frame))
    }

    /// Returns whether a frame has begun and is incomplete.
    pub fn is_mid_frame(&self) -> bool {
        self.at < self.bytes.len()
    }
}
