//! The budget of one answer: a limit on its bytes, and the memory reserved from its caller for what is kept. Must not
//! know a transport.

use headrace_engine_api::{AnswerBounds, RelayError};

/// Memory is reserved in steps of this size. With smaller steps, each piece would lock the account.
const STEP_BYTES: usize = 64 << 10;

/// The budget of one answer.
#[derive(Debug)]
pub(crate) struct AnswerBudget {
    bounds: AnswerBounds,
    /// Bytes received.
    came: u64,
    /// Bytes of memory reserved.
    paid: usize,
}

impl AnswerBudget {
    pub(crate) fn new(bounds: AnswerBounds) -> Self {
        Self { bounds, came: 0, paid: AnswerBounds::FREE_BYTES }
    }

    /// Returns the limit of one event. `own` is the upstream's own limit.
    pub(crate) fn event_bytes(&self, own: usize) -> usize {
        own.min(self.bounds.most_event_bytes)
    }

    /// Counts received bytes, whether they are kept or not.
    ///
    /// # Errors
    /// [`RelayError::TooLarge`] if the answer is far longer than the request allows.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), RelayError> {
        self.came = self.came.saturating_add(bytes as u64);
        self.bounded(self.came)
    }

    /// Reserves memory for a body of known length.
    ///
    /// # Errors
    /// See [`Self::count`] and [`Self::keep`].
    pub(crate) fn expect(&mut self, length: u64) -> Result<(), RelayError> {
        self.bounded(length)?;
        self.keep(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Reserves memory for a buffer of `bytes` before it grows to that size.
    ///
    /// # Errors
    /// [`RelayError::NoMemory`] if the caller's share of memory is full.
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
