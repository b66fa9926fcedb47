//! A model's lane: in what terms its calls are put to those who answer, and what the house needs for that. Knows no call,
//! and nobody who answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{MediaKind, SamplingDefaults};
use headrace_engine_api::Capabilities;
use headrace_grammar::Compiler;
use headrace_prompt::{ChatTemplate, ReplyStyle};
use headrace_tokenizer::Tokenizer;

/// In what terms a model is spoken to.
#[derive(Clone)]
pub enum Lane {
    /// In tokens: ids go to an engine and ids come back. Templates, counts, stop strings and the parsing of replies are the
    /// house's.
    Tokens(TokenLane),
    /// In texts to be encoded: ids go to an engine, and of each text a vector or a score comes back.
    Vectors(VectorLane),
    /// In messages: a body in a dialect goes to somebody else's server, and an answer in that dialect comes back.
    Messages(MessageLane),
}

/// Words to ids and back, and what the model's engines can do.
#[derive(Clone)]
pub struct TokenLane {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text; `None`: only completions.
    pub template: Option<Arc<ChatTemplate>>,
    /// How its replies are read.
    pub replies: ReplyStyle,
    /// What its makers recommend.
    pub defaults: SamplingDefaults,
    /// What its engines can do.
    pub capabilities: Capabilities,
    /// Compiles what answers are held to.
    pub grammars: Arc<Compiler>,
}

/// Words to ids, and what the model's engines make of them.
#[derive(Clone)]
pub struct VectorLane {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// What its engines can do.
    pub capabilities: Capabilities,
    /// What is made of a text.
    pub makes: Makes,
    /// Texts are lower-cased before the tokenizer sees them.
    pub lower_case: bool,
    /// What is put before a text for a purpose, by the purpose's name.
    pub prompts: BTreeMap<String, String>,
    /// What is put before a text where no purpose is named.
    pub default_prompt: Option<String>,
}

/// What an encoder makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Makes {
    /// A vector of each text.
    Vectors {
        /// Its numbers.
        width: u32,
    },
    /// A score of each pair of texts.
    Scores,
}

/// What is known of a model that somebody else's server has.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageLane {
    /// The most tokens, prompt and answer together; `None`: nobody has said.
    pub context_window: Option<u32>,
    /// What it takes beside text; `None`: nobody has said, and its servers decide.
    pub inputs: Option<Inputs>,
    /// All of its servers speak the Responses API, and are asked in it.
    pub passes_responses: bool,
}

/// What a model takes beside text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inputs {
    kinds: [bool; 4],
}

impl Inputs {
    /// Every kind.
    pub const ALL: [MediaKind; 4] =
        [MediaKind::Image, MediaKind::Document, MediaKind::Audio, MediaKind::Video];

    /// Those of these kinds.
    pub fn of(kinds: impl IntoIterator<Item = MediaKind>) -> Self {
        let mut inputs = Self::default();
        for kind in kinds {
            for (known, taken) in Self::ALL.into_iter().zip(&mut inputs.kinds) {
                *taken |= known == kind;
            }
        }
        inputs
    }

    /// Whether a kind is among them.
    pub fn takes(self, kind: MediaKind) -> bool {
        Self::ALL.into_iter().zip(self.kinds).any(|(known, taken)| taken && known == kind)
    }
}

impl Lane {
    /// The most tokens, prompt and answer together, of one sequence, as far as it is known.
    pub fn context_window(&self) -> Option<u32> {
        match self {
            Self::Tokens(lane) => Some(lane.capabilities.context_window),
            Self::Vectors(lane) => Some(lane.capabilities.context_window),
            Self::Messages(lane) => lane.context_window,
        }
    }

    /// Which endpoints it answers at, by their paths behind `/v1/`. Empty: somebody else's server knows.
    pub const fn endpoints(&self) -> &'static [&'static str] {
        match self {
            Self::Tokens(TokenLane { template: Some(_), .. }) => {
                &["chat/completions", "responses", "messages", "completions"]
            }
            Self::Tokens(_) => &["completions"],
            Self::Vectors(VectorLane { makes: Makes::Vectors { .. }, .. }) => &["embeddings"],
            Self::Vectors(_) => &["rerank", "score"],
            Self::Messages(_) => &[],
        }
    }

    /// Numbers of a vector that it makes of a text, where it makes some.
    pub const fn vector_width(&self) -> Option<u32> {
        match self {
            Self::Vectors(VectorLane { makes: Makes::Vectors { width }, .. }) => Some(*width),
            Self::Tokens(_) | Self::Vectors(_) | Self::Messages(_) => None,
        }
    }

    /// What decides the bits of an answer, as far as it is known before anybody answers. Empty: nothing is.
    pub(crate) fn numerics(&self) -> &str {
        match self {
            Self::Tokens(lane) => &lane.capabilities.numerics,
            Self::Vectors(lane) => &lane.capabilities.numerics,
            Self::Messages(_) => "",
        }
    }

    /// Whether calls go in messages.
    pub(crate) const fn is_messages(&self) -> bool {
        matches!(self, Self::Messages(_))
    }

    /// Whether a response goes out as it came.
    pub(crate) const fn passes_responses(&self) -> bool {
        matches!(self, Self::Messages(MessageLane { passes_responses: true, .. }))
    }

    /// The token lane, where it is that.
    pub(crate) const fn tokens(&self) -> Option<&TokenLane> {
        match self {
            Self::Tokens(lane) => Some(lane),
            Self::Vectors(_) | Self::Messages(_) => None,
        }
    }

    /// Text to ids, where that is done here.
    pub(crate) const fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        match self {
            Self::Tokens(lane) => Some(&lane.tokenizer),
            Self::Vectors(lane) => Some(&lane.tokenizer),
            Self::Messages(_) => None,
        }
    }
}
