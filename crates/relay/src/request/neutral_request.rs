//! A request in no dialect: the common part of all dialects that are translated into each other. It borrows from the
//! body that it was read from.
//! Knows no spelling. A new dialect needs one reader into this form and one writer out of it.

use std::borrow::Cow;

use headrace_domain::{Code, Dialect};

use headrace_wire::fault::FieldFault;

/// A request. Numbers and free-form JSON keep their spelling.
#[derive(Debug, Default)]
pub(super) struct NeutralRequest<'a> {
    /// System texts before the conversation.
    pub(super) system: Vec<Cow<'a, str>>,
    pub(super) turns: Vec<NeutralTurn<'a>>,
    pub(super) tools: Vec<NeutralTool<'a>>,
    pub(super) choice: Option<NeutralToolChoice<'a>>,
    /// Whether the model may call several tools at once. `None` if the request did not say.
    pub(super) parallel: Option<bool>,
    pub(super) temperature: Option<&'a str>,
    pub(super) top_p: Option<&'a str>,
    pub(super) top_k: Option<&'a str>,
    pub(super) stop: Vec<Cow<'a, str>>,
    pub(super) reasoning: Option<ReasoningAmount>,
    pub(super) format: Option<SchemaFormat<'a>>,
    /// The end user.
    pub(super) user: Option<Cow<'a, str>>,
    pub(super) tier: Option<RequestedTier>,
    /// vLLM's salt for cached prefixes.
    pub(super) cache_salt: Option<Cow<'a, str>>,
}

/// The role that speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    System,
    /// The user, and the tools that ran on the user's side.
    User,
    Assistant,
}

/// One turn of a conversation.
#[derive(Debug)]
pub(super) struct NeutralTurn<'a> {
    pub(super) who: Speaker,
    /// Index of the caller's first message in this turn.
    pub(super) at: usize,
    pub(super) parts: Vec<NeutralPart<'a>>,
}

impl NeutralTurn<'_> {
    /// Whether this is an answer without tool calls and without a character.
    pub(super) fn is_empty_answer(&self) -> bool {
        let is_empty = |part: &NeutralPart<'_>| matches!(part, NeutralPart::Text(text) if text.is_empty());
        self.who == Speaker::Assistant && self.parts.iter().all(is_empty)
    }
}

/// A part of a turn, or of a tool's result.
#[derive(Debug)]
pub(super) enum NeutralPart<'a> {
    Text(Cow<'a, str>),
    Image(NeutralMedia<'a>),
    Document {
        title: Option<Cow<'a, str>>,
        context: Option<Cow<'a, str>>,
        media: NeutralMedia<'a>,
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
        parts: Vec<NeutralPart<'a>>,
        is_error: bool,
    },
}

/// The location or the data of an image or a document.
#[derive(Debug)]
pub(super) enum NeutralMedia<'a> {
    Url(Cow<'a, str>),
    Base64 { media_type: Cow<'a, str>, data: Cow<'a, str> },
}

#[derive(Debug, Default)]
pub(super) struct NeutralTool<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) description: Option<Cow<'a, str>>,
    /// The JSON Schema of the arguments. `None` if the tool takes none.
    pub(super) schema: Option<&'a str>,
    pub(super) strict: Option<bool>,
}

#[derive(Debug)]
pub(super) enum NeutralToolChoice<'a> {
    Auto,
    None,
    /// Any tool, but at least one.
    Required,
    Named(Cow<'a, str>),
}

/// The amount of reasoning before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReasoningAmount {
    Off,
    /// The model decides.
    Auto,
    /// `low` to `max`.
    Effort(&'static str),
}

/// The values of [`ReasoningAmount::Effort`], which both dialects share.
pub(super) const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// The answer's JSON Schema.
#[derive(Debug)]
pub(super) struct SchemaFormat<'a> {
    pub(super) schema: &'a str,
}

/// The service tier that may serve the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedTier {
    Auto,
    Standard,
}

/// The fault for a feature that the dialect `to` lacks. `why` completes a sentence that ends in "which".
pub(super) fn lacks(to: Dialect, code: Code, why: &str) -> FieldFault {
    let name = match to {
        Dialect::OpenAi => "OpenAI's",
        Dialect::Anthropic => "Anthropic's",
    };
    FieldFault::new(code, format!("the model's upstream speaks {name} dialect, which {why}"))
}

/// The fault for a parameter or field that the dialect `to` does not have.
pub(super) fn no_such(to: Dialect) -> FieldFault {
    lacks(to, Code::UnsupportedParameter, "has nothing for it; leave it out")
}

/// The fault for a field that neither dialect has, so that it cannot be translated.
pub(super) fn unknown(to: Dialect) -> FieldFault {
    lacks(
        to,
        Code::UnknownParameter,
        "is not this path's: a field that is not known cannot be put into it; leave it out, or call a model whose \
         upstream speaks this path's dialect",
    )
}
