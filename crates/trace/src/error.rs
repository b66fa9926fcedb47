//! Errors of stored traces. None of them ends a request, since tracing is out of band.

use std::fmt;

/// Why a trace could not be written, read or decoded.
#[derive(Debug)]
pub enum TraceError {
    /// The store could not be opened, read or written.
    Store {
        /// The operation that failed, with the file's path if there is one.
        doing: String,
        /// The store's error message.
        why: String,
    },
    /// The data was written by a newer program. It is refused, not guessed at.
    NewerFormat {
        /// What carries the version: a file's path or a record's id.
        what: String,
        /// The version found.
        found: u64,
        /// The newest version that this program knows.
        known: u64,
    },
    /// A stored record does not parse.
    Corrupt {
        /// The record's id, as far as it is known.
        what: String,
        /// The parser's error message.
        why: String,
    },
    /// A configured value is invalid.
    Config {
        /// The field's name.
        field: &'static str,
        /// What the value must be.
        why: &'static str,
    },
    /// The query asks for more than one reply may contain.
    TooMuch {
        /// What was asked for, how much of it there is, and how to ask for less.
        what: String,
    },
    /// The recorder's thread could not be started.
    Thread(std::io::Error),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { doing, why } => write!(f, "trace store: {doing}: {why}"),
            Self::NewerFormat { what, found, known } => write!(
                f,
                "{what} has trace format {found}, newer than the {known} that this program knows: use the newer program"
            ),
            Self::Corrupt { what, why } => write!(f, "{what} is not a readable trace record: {why}"),
            Self::Config { field, why } => write!(f, "trace setting `{field}` {why}"),
            Self::TooMuch { what } => f.write_str(what),
            Self::Thread(error) => write!(f, "cannot start the trace recorder's thread: {error}"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            _ => None,
        }
    }
}
