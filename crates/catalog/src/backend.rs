//! A model's backend: how the model is addressed, and what this server needs for that. Knows no call and no worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{MediaKind, SamplingDefaults};
use headrace_engine_api::Capabilities;
use headrace_grammar::FormCompiler;
use headrace_prompt::{ChatTemplate, ReplyStyle};
use headrace_tokenizer::Tokenizer;

/// How a model is addressed.
#[derive(Clone)]
pub enum Backend {
    /// By tokens: ids go to an engine and ids come back. This server applies templates, counts tokens, handles stop
    /// strings and parses replies.
    Tokens(TokenBackend),
    /// By texts to be encoded: ids go to an engine, and a vector or a score comes back for each text.
    Vectors(VectorBackend),
    /// By messages: a body in a dialect goes to another provider's server, and an answer in that dialect comes back.
    Messages(MessageBackend),
}

/// Tokenizer and template of a model, and the capabilities of its engines.
#[derive(Clone)]
pub struct TokenBackend {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template. `None` if the model takes only completions.
    pub template: Option<Arc<ChatTemplate>>,
    /// How replies are parsed.
    pub replies: ReplyStyle,
    /// Sampling defaults that the model's authors recommend.
    pub defaults: SamplingDefaults,
    /// The capabilities of the model's engines.
    pub capabilities: Capabilities,
    /// Compiles the grammars that answers must match.
    pub grammars: Arc<FormCompiler>,
}

/// Tokenizer of an encoder, and what its engines compute.
#[derive(Clone)]
pub struct VectorBackend {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The capabilities of the model's engines.
    pub capabilities: Capabilities,
    /// What is computed for a text.
    pub makes: EncoderOutput,
    /// Texts are converted to lower case before they are tokenized.
    pub lower_case: bool,
    /// Prefixes that are put before a text, by the name of their purpose.
    pub prompts: BTreeMap<String, String>,
    /// The prefix for texts without a named purpose.
    pub default_prompt: Option<String>,
}

/// What an encoder computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncoderOutput {
    /// A vector for each text.
    Vectors {
        /// The number of components.
        width: u32,
    },
    /// A score for each pair of texts.
    Scores,
}

/// What is known of a model at another provider's server.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageBackend {
    /// The most tokens of prompt and answer together. `None` if it is not configured.
    pub context_window: Option<u32>,
    /// Media that the model takes besides text. `None` if it is not configured: then its servers decide.
    pub inputs: Option<InputKinds>,
    /// All of the model's servers speak the Responses API, so responses are forwarded in it.
    pub passes_responses: bool,
}

/// The kinds of media that a model takes besides text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputKinds {
    kinds: [bool; 4],
}

impl InputKinds {
    /// All kinds.
    pub const ALL: [MediaKind; 4] =
        [MediaKind::Image, MediaKind::Document, MediaKind::Audio, MediaKind::Video];

    /// A set of these kinds.
    pub fn of(kinds: impl IntoIterator<Item = MediaKind>) -> Self {
        let mut inputs = Self::default();
        for kind in kinds {
            for (known, taken) in Self::ALL.into_iter().zip(&mut inputs.kinds) {
                *taken |= known == kind;
            }
        }
        inputs
    }

    /// Whether the set contains this kind.
    pub fn takes(self, kind: MediaKind) -> bool {
        Self::ALL.into_iter().zip(self.kinds).any(|(known, taken)| taken && known == kind)
    }
}

impl Backend {
    /// The most tokens of one sequence, prompt and answer together. `None` if it is not known.
    pub fn context_window(&self) -> Option<u32> {
        match self {
            Self::Tokens(backend) => Some(backend.capabilities.context_window),
            Self::Vectors(backend) => Some(backend.capabilities.context_window),
            Self::Messages(backend) => backend.context_window,
        }
    }

    /// The endpoints at which the model answers, by their paths below `/v1/`. Empty if only the upstream knows.
    pub const fn endpoints(&self) -> &'static [&'static str] {
        match self {
            Self::Tokens(TokenBackend { template: Some(_), .. }) => {
                &["chat/completions", "responses", "messages", "completions"]
            }
            Self::Tokens(_) => &["completions"],
            Self::Vectors(VectorBackend { makes: EncoderOutput::Vectors { .. }, .. }) => &["embeddings"],
            Self::Vectors(_) => &["rerank", "score"],
            Self::Messages(_) => &[],
        }
    }

    /// The number of components of the model's vectors. `None` if it makes no vectors.
    pub const fn vector_width(&self) -> Option<u32> {
        match self {
            Self::Vectors(VectorBackend { makes: EncoderOutput::Vectors { width }, .. }) => Some(*width),
            Self::Tokens(_) | Self::Vectors(_) | Self::Messages(_) => None,
        }
    }

    /// Identifies what decides the bits of an answer, as far as it is known before a worker answers. Empty if it is
    /// unknown.
    pub fn numerics(&self) -> &str {
        match self {
            Self::Tokens(backend) => &backend.capabilities.numerics,
            Self::Vectors(backend) => &backend.capabilities.numerics,
            Self::Messages(_) => "",
        }
    }

    /// Whether the model has a message backend.
    pub const fn is_messages(&self) -> bool {
        matches!(self, Self::Messages(_))
    }

    /// Whether responses are forwarded unchanged.
    pub const fn passes_responses(&self) -> bool {
        matches!(self, Self::Messages(MessageBackend { passes_responses: true, .. }))
    }

    /// The token backend, if the model has one.
    pub const fn tokens(&self) -> Option<&TokenBackend> {
        match self {
            Self::Tokens(backend) => Some(backend),
            Self::Vectors(_) | Self::Messages(_) => None,
        }
    }

    /// The tokenizer, if this server tokenizes for the model.
    pub const fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        match self {
            Self::Tokens(backend) => Some(&backend.tokenizer),
            Self::Vectors(backend) => Some(&backend.tokenizer),
            Self::Messages(_) => None,
        }
    }
}
