//! The result of a command: its receipt, or the reason for refusing it. Must not know how commands are decided.

use crate::command::Receipt;
use crate::refusal::LedgerRefusal;

/// The result of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandResult {
    /// The command was carried out in memory. Act on it towards a client only when the batch is durable.
    Done(Receipt),
    /// The command was refused and changed nothing.
    Refused(LedgerRefusal),
}

impl CommandResult {
    /// Whether the command was carried out.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// Returns the receipt, or the reason for the refusal.
    pub fn into_result(self) -> Result<Receipt, LedgerRefusal> {
        match self {
            Self::Done(receipt) => Ok(receipt),
            Self::Refused(refusal) => Err(refusal),
        }
    }
}
