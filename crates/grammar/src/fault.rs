//! The reasons for refusing a form. Each names the problem, its place in the form, and the limit. Knows no wire format.

use std::fmt;

/// Why a form is not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrammarFault {
    /// A part of the form cannot be enforced by any grammar here.
    Unsupported {
        /// The keyword.
        keyword: String,
        /// Place of the keyword: a JSON pointer into the schema, empty for its root.
        path: String,
        /// An alternative for the caller, or the reason.
        why: String,
    },
    /// The form is malformed.
    Invalid {
        /// Place: a JSON pointer, or a position in the text. Empty for the form as a whole.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// No answer can match the form.
    Unsatisfiable {
        /// The contradiction.
        why: String,
    },
    /// The form exceeds a size limit.
    TooLarge {
        /// The unit: `bytes`, `levels of nesting`.
        what: &'static str,
        /// The form's size in this unit.
        has: u64,
        /// The limit.
        limit: u64,
        /// Place of the excess, or empty.
        path: String,
    },
    /// Compiling the form costs more than a limit allows.
    TooCostly {
        /// The unit: `ms`, `bytes of memory`, `units of work`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Too many other forms are being compiled, or the machine is too busy, to compile this one now.
    Busy,
    /// The memory for compiling the form is not free.
    NoMemory {
        /// Bytes needed.
        needed: u64,
    },
    /// This model's tokens cannot be constrained by a form.
    Vocabulary {
        /// Why.
        why: String,
    },
    /// An internal failure.
    Broke {
        /// Details, for the log.
        detail: String,
    },
}

impl GrammarFault {
    /// The unsupported keyword, if the fault names one.
    pub fn keyword(&self) -> Option<&str> {
        match self {
            Self::Unsupported { keyword, .. } => Some(keyword),
            _ => None,
        }
    }

    /// The place in the form, if it is known.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Unsupported { path, .. } | Self::Invalid { path, .. } | Self::TooLarge { path, .. } => {
                Some(path)
            }
            _ => None,
        }
    }

    /// Moves the fault's place below `above`, for a form nested in another one.
    pub(crate) fn below(mut self, above: &str) -> Self {
        if let Self::Unsupported { path, .. } | Self::Invalid { path, .. } | Self::TooLarge { path, .. } =
            &mut self
        {
            path.insert_str(0, above);
        }
        self
    }

    pub(crate) fn invalid(path: &str, why: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_owned(), why: why.into() }
    }

    pub(crate) fn unsupported(keyword: &str, path: &str, why: impl Into<String>) -> Self {
        Self::Unsupported { keyword: keyword.to_owned(), path: path.to_owned(), why: why.into() }
    }
}

/// Displays ` at /properties/a`, or nothing for an empty path.
struct AtPath<'a>(&'a str);

impl fmt::Display for AtPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " at `{}`", self.0) }
    }
}

impl fmt::Display for GrammarFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { keyword, path, why } => {
                write!(f, "`{keyword}`{} is not supported: {why}", AtPath(path))
            }
            Self::Invalid { path, why } => write!(f, "it is not valid{}: {why}", AtPath(path)),
            Self::Unsatisfiable { why } => write!(f, "nothing fits it: {why}"),
            Self::TooLarge { what, has, limit, path } => {
                write!(f, "it has {has} {what}{}, and at most {limit} are taken", AtPath(path))
            }
            Self::TooCostly { what, limit } => write!(f, "compiling it takes more than {limit} {what}"),
            Self::Busy => f.write_str("the processors are too busy to compile it now"),
            Self::NoMemory { needed } => write!(
                f,
                "compiling it may take {needed} bytes of memory, which your calls in flight leave no room for"
            ),
            Self::Vocabulary { why } => {
                write!(f, "this model's tokens cannot be constrained to a form: {why}")
            }
            Self::Broke { .. } => f.write_str("compiling it failed inside"),
        }
    }
}

impl std::error::Error for GrammarFault {}
