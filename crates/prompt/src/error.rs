//! The errors of compiling and rendering a template. Knows no HTTP status.

use std::fmt;

/// An error of a chat template. It contains the template's own words and line numbers. It never contains a message's
/// text, unless the template itself put that text into an exception.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is not valid Jinja, or uses something that does not exist.
    Compile {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: Option<usize>,
        /// What is wrong in that line.
        reason: String,
    },
    /// The template rejected the conversation (`raise_exception`).
    Raised {
        /// The template's name.
        template: String,
        /// The message of the exception.
        message: String,
    },
    /// The template failed on this conversation.
    Render {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: Option<usize>,
        /// What failed in that line.
        reason: String,
    },
    /// The template ran longer than allowed.
    OutOfFuel {
        /// The template's name.
        template: String,
        /// The maximum number of instructions for one rendering.
        limit: u64,
    },
    /// The template wrote more than allowed.
    OutputTooLong {
        /// The template's name.
        template: String,
        /// The maximum size of one rendering, or of one string within it, in bytes.
        limit_bytes: usize,
    },
    /// The conversation has no messages.
    NoMessages,
    /// The messages use all of Unicode's private-use characters. Some must be left to distinguish message text from the
    /// template's text.
    PrivateUseExhausted,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |line: &Option<usize>| line.map(|line| format!(", line {line}")).unwrap_or_default();
        match self {
            Self::Compile { template, line, reason } => {
                write!(f, "template `{template}`{}: not usable: {reason}", at(line))
            }
            Self::Raised { template, message } => {
                write!(f, "template `{template}` refuses the conversation: {message}")
            }
            Self::Render { template, line, reason } => {
                write!(f, "template `{template}`{}: {reason}", at(line))
            }
            Self::OutOfFuel { template, limit } => {
                write!(f, "template `{template}` ran past the limit of {limit} instructions")
            }
            Self::OutputTooLong { template, limit_bytes } => {
                write!(f, "template `{template}` wrote past the limit of {limit_bytes} bytes")
            }
            Self::NoMessages => write!(f, "the conversation has no messages"),
            Self::PrivateUseExhausted => {
                write!(f, "the messages use every private-use character of Unicode; some must be left")
            }
        }
    }
}

impl std::error::Error for TemplateError {}
