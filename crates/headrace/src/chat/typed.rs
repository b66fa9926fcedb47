//! What came of waiting for a line, wherever lines come from. Knows not what they mean.

/// What came of waiting for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C, as often as it takes.
    Interrupted,
    /// A line that cannot be taken, and why.
    Unreadable(String),
    End,
}
