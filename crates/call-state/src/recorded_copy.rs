//! A copy of the beginning of an answer, for the record of the call. Unlike the copy that is sent again to a repeated
//! request, it may be incomplete.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use headrace_call_api::MemoryReservation;

/// A copy of what is pushed to the client, up to a bound.
pub struct RecordedCopy {
    bytes: BytesMut,
    most_bytes: usize,
    memory: Arc<MemoryReservation>,
    is_cut: bool,
}

impl RecordedCopy {
    /// Creates an empty copy. Its bytes are reserved from `memory`.
    pub fn new(memory: Arc<MemoryReservation>, most_bytes: usize) -> Self {
        Self { bytes: BytesMut::new(), most_bytes, memory, is_cut: false }
    }

    /// Appends what fits, unless something was left out before.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if self.is_cut {
            return;
        }
        let room = self.most_bytes.saturating_sub(self.bytes.len());
        let fits = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.is_cut = fits.len() < bytes.len();
        match self.memory.add(fits.len() as u64) {
            Ok(()) => self.bytes.extend_from_slice(fits),
            Err(_) => self.is_cut = true,
        }
    }

    /// Returns the copy, and whether its end is missing.
    pub(crate) fn into_parts(self) -> (Bytes, bool) {
        (self.bytes.freeze(), self.is_cut)
    }
}
