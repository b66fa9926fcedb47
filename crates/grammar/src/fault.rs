//! Why a form is not compiled. Each says what, where in the form, and the bound that it meets. Knows no wire.

use std::fmt;

/// Why a form is not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrammarFault {
    /// Something in it that no grammar here can hold an answer to.
    Unsupported {
        /// The keyword.
        keyword: String,
        /// Where it stands: a JSON pointer into the schema, empty for its root.
        path: String,
        /// What can be done instead, or why not.
        why: String,
    },
    /// It is none of its kind.
    Invalid {
        /// Where: a JSON pointer, or a place in the text; empty where it is the whole.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Nothing fits it.
    Unsatisfiable {
        /// What cannot be.
        why: String,
    },
    /// It is larger than what is taken.
    TooLarge {
        /// Of what: `bytes`, `levels of nesting`.
        what: &'static str,
        /// What it has.
        has: u64,
        /// The bound.
        limit: u64,
        /// Where, as far as it is a place.
        path: String,
    },
    /// Compiling it takes more than what may be spent on it.
    TooCostly {
        /// Of what: `ms`, `bytes of memory`, `units of work`.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// So many others are being compiled, or so much else is computed, that this one cannot be now.
    Busy,
    /// The memory that compiling it may take is not free.
    NoMemory {
        /// Bytes.
        needed: u64,
    },
    /// This model's tokens cannot be held to anything.
    Vocabulary {
        /// Why.
        why: String,
    },
    /// It broke inside.
    Broke {
        /// How, for the log.
        detail: String,
    },
}

impl GrammarFault {
    /// The keyword at fault, where one is.
    pub fn keyword(&self) -> Option<&str> {
        match self {
            Self::Unsupported { keyword, .. } => Some(keyword),
            _ => None,
        }
    }

    /// Where in the form, where that is known.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Unsupported { path, .. } | Self::Invalid { path, .. } | Self::TooLarge { path, .. } => {
                Some(path)
            }
            _ => None,
        }
    }

    /// The same of a form within another one.
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

/// ` at /properties/a`, or nothing.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " at `{}`", self.0) }
    }
}

impl fmt::Display for GrammarFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { keyword, path, why } => {
                write!(f, "`{keyword}`{} is not supported: {why}", At(path))
            }
            Self::Invalid { path, why } => write!(f, "it is not valid{}: {why}", At(path)),
            Self::Unsatisfiable { why } => write!(f, "nothing fits it: {why}"),
            Self::TooLarge { what, has, limit, path } => {
                write!(f, "it has {has} {what}{}, and at most {limit} are taken", At(path))
            }
            Self::TooCostly { what, limit } => write!(f, "compiling it takes more than {limit} {what}"),
            Self::Busy => f.write_str("the processors are too busy to compile it now"),
            Self::NoMemory { needed } => write!(
                f,
                "compiling it may take {needed} bytes of memory, which your calls in flight leave no room for"
            ),
            Self::Vocabulary { why } => write!(f, "this model's tokens cannot be held to a form: {why}"),
            Self::Broke { .. } => f.write_str("compiling it failed inside"),
        }
    }
}

impl std::error::Error for GrammarFault {}
