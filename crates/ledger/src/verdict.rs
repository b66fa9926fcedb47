//! What became of a command: its receipt, or why it was refused.
//! Must not know how that is decided.

use crate::command::Receipt;
use crate::refusal::LedgerRefusal;

/// What became of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is done in memory; act on it towards a client only once the batch is durable.
    Done(Receipt),
    /// It changed nothing.
    Refused(LedgerRefusal),
}

impl Verdict {
    /// Whether it was done.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// The receipt, or why it was refused.
    pub fn into_result(self) -> Result<Receipt, LedgerRefusal> {
        match self {
            Self::Done(receipt) => Ok(receipt),
            Self::Refused(refusal) => Err(refusal),
        }
    }
}
