//! What one answer may bring: a bound over its bytes, and the memory that its caller pays for what is kept. Knows no transport.

use headrace_engine_api::{AnswerBounds, RelayError};

/// Memory is reserved in steps of this size: a small one would lock the account for each piece.
const STEP_BYTES: usize = 64 << 10;

/// Of one answer.
#[derive(Debug)]
pub(crate) struct Budget {
    bounds: AnswerBounds,
    /// Bytes that came.
    came: u64,
    /// Bytes that may be kept.
    paid: usize,
}

impl Budget {
    pub(crate) fn new(bounds: AnswerBounds) -> Self {
        Self { bounds, came: 0, paid: AnswerBounds::FREE_BYTES }
    }

    /// The bound of one event, where the upstream's own is `own`.
    pub(crate) fn event_bytes(&self, own: usize) -> usize {
        own.min(self.bounds.most_event_bytes)
    }

    /// Counts bytes that came, kept or not.
    ///
    /// # Errors
    /// The answer is far longer than the request allows.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), RelayError> {
        self.came = self.came.saturating_add(bytes as u64);
        self.bounded(self.came)
    }

    /// Pays for a body whose length is known.
    ///
    /// # Errors
    /// As [`Self::count`] and [`Self::keep`].
    pub(crate) fn expect(&mut self, length: u64) -> Result<(), RelayError> {
        self.bounded(length)?;
        self.keep(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Pays for a buffer of `bytes` before it grows to that size.
    ///
    /// # Errors
    /// The memory of the caller is full.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), RelayError> {
        if bytes <= self.paid {
            return Ok(());
        }
        let bytes = bytes.checked_next_multiple_of(STEP_BYTES).unwrap_or(bytes);
        if let Some(memory) = &self.bounds.memory {
            memory.reserve(bytes as u64).map_err(|_| RelayError::NoMemory)?;
        }
        self.paid = bytes;
        Ok(())
    }

    fn bounded(&self, bytes: u64) -> Result<(), RelayError> {
        let most = self.bounds.most_bytes;
        if bytes <= most {
            return Ok(());
        }
        let limit = usize::try_from(most).unwrap_or(usize::MAX);
        Err(RelayError::TooLarge { what: "answer", limit })
    }
}
