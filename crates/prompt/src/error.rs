//! Why a template could not be compiled or rendered. Knows no HTTP status.

use std::fmt;

/// What went wrong with a chat template. Carries the template's own words and lines, never a message's text save
/// what the template itself put into an exception.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is not valid Jinja, or uses what does not exist.
    Compile {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: Option<usize>,
        /// What is wrong there.
        reason: String,
    },
    /// The template turned the conversation down (`raise_exception`).
    Raised {
        /// The template's name.
        template: String,
        /// Its words.
        message: String,
    },
    /// The template failed on this conversation.
    Render {
        /// The template's name.
        template: String,
        /// Line in the template, from 1.
        line: Option<usize>,
        /// What failed there.
        reason: String,
    },
    /// The template ran for longer than it may.
    OutOfFuel {
        /// The template's name.
        template: String,
        /// Most instructions that one rendering may take.
        limit: u64,
    },
    /// The template wrote more than it may.
    OutputTooLong {
        /// The template's name.
        template: String,
        /// Most bytes that one rendering, or one string within it, may have.
        limit_bytes: usize,
    },
    /// There is nothing to render.
    NoMessages,
    /// The messages use up Unicode's private-use characters, of which some must be left to tell message text from
    /// the template's.
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
