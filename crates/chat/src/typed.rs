//! The outcome of waiting for a line, from any source. Must not know the meaning of lines.

/// The outcome of waiting for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TypedLine {
    Line(String),
    /// Ctrl-C, pressed as often as needed.
    Interrupted,
    /// A line that cannot be read, and why.
    Unreadable(String),
    End,
}
