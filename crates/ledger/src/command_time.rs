//! The time of a command. Knows no clock.

use headrace_domain::UnixNanos;

/// The time of a command: ledger time, and the caller's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandTime {
    pub(crate) ledger: UnixNanos,
    pub(crate) caller: UnixNanos,
}
