//! A request in no dialect: the common part of all dialects that are translated into each other. It borrows from the
//! body that it was read from.
//! Knows no spelling. A new dialect needs one reader into this form and one writer out of it.

use std::borrow::Cow;

use headrace_domain::{Code, Dialect};

use crate::fault::Fault;

/// A request. Numbers and free-form JSON keep their spelling.
#[derive(Debug, Default)]
pub(super) struct Talk<'a> {
    /// System texts before the conversation.
    pub(super) system: Vec<Cow<'a, str>>,
    pub(super) turns: Vec<Turn<'a>>,
    pub(super) tools: Vec<Tool<'a>>,
    pub(super) choice: Option<Choice<'a>>,
    /// Whether the model may call several tools at once. `None` if the request did not say.
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
    /// vLLM's salt for cached prefixes.
    pub(super) cache_salt: Option<Cow<'a, str>>,
}

/// The role that speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    System,
    /// The user, and the tools that ran on the user's side.
    User,
    Assistant,
}

/// One turn of a conversation.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) who: Who,
    /// Index of the caller's first message in this turn.
    pub(super) at: usize,
    pub(super) parts: Vec<Part<'a>>,
}

impl Turn<'_> {
    /// Whether this is an answer without tool calls and without a character.
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
    /// A plain text document.
    Paper {
        title: Option<Cow<'a, str>>,
        context: Option<Cow<'a, str>>,
        text: Cow<'a, str>,
    },
    /// Reasoning of an earlier answer, with its writer's signature.
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

/// The location or the data of an image or a document.
#[derive(Debug)]
pub(super) enum Media<'a> {
    Url(Cow<'a, str>),
    Base64 { media_type: Cow<'a, str>, data: Cow<'a, str> },
}

#[derive(Debug, Default)]
pub(super) struct Tool<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) description: Option<Cow<'a, str>>,
    /// The JSON Schema of the arguments. `None` if the tool takes none.
    pub(super) schema: Option<&'a str>,
    pub(super) strict: Option<bool>,
}

#[derive(Debug)]
pub(super) enum Choice<'a> {
    Auto,
    None,
    /// Any tool, but at least one.
    Required,
    Named(Cow<'a, str>),
}

/// The amount of reasoning before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reasoning {
    Off,
    /// The model decides.
    Auto,
    /// `low` to `max`.
    Effort(&'static str),
}

/// The values of [`Reasoning::Effort`], which both dialects share.
pub(super) const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// The answer's JSON Schema.
#[derive(Debug)]
pub(super) struct Format<'a> {
    pub(super) schema: &'a str,
}

/// The service tier that may serve the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    Auto,
    Standard,
}

/// The fault for a feature that the dialect `to` lacks. `why` completes a sentence that ends in "which".
pub(super) fn lacks(to: Dialect, code: Code, why: &str) -> Fault {
    let name = match to {
        Dialect::OpenAi => "OpenAI's",
        Dialect::Anthropic => "Anthropic's",
    };
    Fault::new(code, format!("the model's upstream speaks {name} dialect, which {why}"))
}

/// The fault for a parameter or field that the dialect `to` does not have.
pub(super) fn no_such(to: Dialect) -> Fault {
    lacks(to, Code::UnsupportedParameter, "has nothing for it; leave it out")
}

/// The fault for a field that neither dialect has, so that it cannot be translated.
pub(super) fn unknown(to: Dialect) -> Fault {
    lacks(
        to,
        Code::UnknownParameter,
        "is not this path's: a field that is not known cannot be put into it; leave it out, or call a model whose \
         upstream speaks this path's dialect",
    )
}
