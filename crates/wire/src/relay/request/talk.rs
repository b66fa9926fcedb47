//! A call in no dialect: what those that are translated into each other have in common, borrowed from the body it was read from.
//! Knows no spelling. A further dialect is one more reader into it and one more writer out of it.

use std::borrow::Cow;

use headrace_domain::{Code, Dialect};

use crate::fault::Fault;

/// A call. Numbers and free-form JSON are kept as they were spelled.
#[derive(Debug, Default)]
pub(super) struct Talk<'a> {
    /// What stands before the conversation.
    pub(super) system: Vec<Cow<'a, str>>,
    pub(super) turns: Vec<Turn<'a>>,
    pub(super) tools: Vec<Tool<'a>>,
    pub(super) choice: Option<Choice<'a>>,
    /// Whether several tools may be called at once; `None`: it was not said.
    pub(super) parallel: Option<bool>,
    pub(super) temperature: Option<&'a str>,
    pub(super) top_p: Option<&'a str>,
    pub(super) top_k: Option<&'a str>,
    pub(super) stop: Vec<Cow<'a, str>>,
    pub(super) reasoning: Option<Reasoning>,
    pub(super) format: Option<Format<'a>>,
    /// The end user.
    pub(super) user: Option<Cow<'a, str>>,
    pub(super) tier: Option<Tier>,
    /// vLLM's salt of cached prefixes.
    pub(super) cache_salt: Option<Cow<'a, str>>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    System,
    /// The user, and the tools that ran on the user's side.
    User,
    Assistant,
}

/// What somebody says.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) who: Who,
    /// Which message of the caller it begins with.
    pub(super) at: usize,
    pub(super) parts: Vec<Part<'a>>,
}

impl Turn<'_> {
    /// Whether it is an answer without a call or a character.
    pub(super) fn is_empty_answer(&self) -> bool {
        let is_empty = |part: &Part<'_>| matches!(part, Part::Text(text) if text.is_empty());
        self.who == Who::Assistant && self.parts.iter().all(is_empty)
    }
}

/// A part of a turn, or of a tool's result.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Text(Cow<'a, str>),
    Image(Media<'a>),
    Document {
        title: Option<Cow<'a, str>>,
        context: Option<Cow<'a, str>>,
        media: Media<'a>,
    },
    /// A document that is plain text.
    Paper {
        title: Option<Cow<'a, str>>,
        context: Option<Cow<'a, str>>,
        text: Cow<'a, str>,
    },
    /// Reasoning of an earlier answer, with what its writer proves it by.
    Thinking {
        text: Cow<'a, str>,
        signature: Option<Cow<'a, str>>,
    },
    /// Reasoning that only its writer can read.
    Sealed(Cow<'a, str>),
    Call {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        /// A JSON object.
        input: Cow<'a, str>,
    },
    Result {
        id: Cow<'a, str>,
        parts: Vec<Part<'a>>,
        is_error: bool,
    },
}

/// Where an image or a document is.
#[derive(Debug)]
pub(super) enum Media<'a> {
    Url(Cow<'a, str>),
    Base64 { media_type: Cow<'a, str>, data: Cow<'a, str> },
}

#[derive(Debug, Default)]
pub(super) struct Tool<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) description: Option<Cow<'a, str>>,
    /// JSON Schema; `None`: it takes nothing.
    pub(super) schema: Option<&'a str>,
    pub(super) strict: Option<bool>,
}

#[derive(Debug)]
pub(super) enum Choice<'a> {
    Auto,
    None,
    /// Any tool, but one.
    Required,
    Named(Cow<'a, str>),
}

/// How much is thought before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasoning {
    Off,
    /// As much as the model finds right.
    Auto,
    /// `low` to `max`.
    Effort(&'static str),
}

/// The words that both dialects have for [`Reasoning::Effort`].
pub(super) const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// The answer's JSON Schema.
#[derive(Debug)]
pub(super) struct Format<'a> {
    pub(super) schema: &'a str,
}

/// Whose capacity may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    Auto,
    Standard,
}

/// What the dialect `to` has no place for. `why` goes on "which …".
pub(super) fn lacks(to: Dialect, code: Code, why: &str) -> Fault {
    let name = match to {
        Dialect::OpenAi => "OpenAI's",
        Dialect::Anthropic => "Anthropic's",
    };
    Fault::new(code, format!("the model's upstream speaks {name} dialect, which {why}"))
}

/// A parameter or field that the dialect `to` does not have.
pub(super) fn no_such(to: Dialect) -> Fault {
    lacks(to, Code::UnsupportedParameter, "has nothing for it; leave it out")
}

/// A field that neither dialect has: it would have to be put into another dialect without a word for it.
pub(super) fn unknown(to: Dialect) -> Fault {
    lacks(
        to,
        Code::UnknownParameter,
        "is not this path's: a field that is not known cannot be put into it; leave it out, or call a model whose \
         upstream speaks this path's dialect",
    )
}
