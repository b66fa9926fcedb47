//! Frames as bytes: four bytes of length, least first, and what they count. Knows nothing of what frames mean.

use std::fmt;

use crate::frame::Frame;
use crate::limits::MAX_FRAME_BYTES;

const LENGTH_BYTES: usize = 4;

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameFault {
    /// It says that it is longer than one may be.
    TooLong {
        /// What it says, in bytes.
        bytes: u64,
    },
    /// Its bytes mean nothing, or something else follows in it.
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

/// Adds a frame to `out`.
///
/// # Errors
/// It is longer than one may be; nothing of it was added.
pub fn put_frame(out: &mut Vec<u8>, frame: &Frame) -> Result<(), FrameFault> {
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

/// Frames out of bytes that come in any pieces.
#[derive(Debug, Default)]
pub struct Unframer {
    bytes: Vec<u8>,
    /// So many of them were read.
    at: usize,
}

impl Unframer {
    /// Takes the next bytes.
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

    /// The next frame that is whole.
    ///
    /// # Errors
    /// What comes next is none; nothing after it can be read.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameFault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > MAX_FRAME_BYTES {
            return Err(FrameFault::TooLong { bytes: bytes as u64 });
        }
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let read = postcard::take_from_bytes(body);
        let (frame, after): (Frame, &[u8]) = read.map_err(|_| FrameFault::Malformed)?;
        if !after.is_empty() {
            return Err(FrameFault::Malformed);
        }
        self.at += LENGTH_BYTES + bytes;
        Ok(Some(frame))
    }

    /// Whether a frame has begun and is not whole.
    pub fn is_mid_frame(&self) -> bool {
        self.at < self.bytes.len()
    }
}
