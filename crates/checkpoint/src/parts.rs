//! What a reader of model files finds, whichever kind of files it reads.
//! Must not know how files are read, or whether what was found fits together.

use std::borrow::Cow;

use crate::config::ModelConfig;
use crate::generation::GenerationDefaults;
use crate::identity::Identity;
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};
use crate::weights::Weights;

/// What a checkpoint was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A Hugging Face directory with safetensors files.
    Safetensors,
    /// A GGUF file, or several that it was split into.
    Gguf,
}

/// What has to do with words.
pub(crate) struct Texts {
    pub(crate) generation: GenerationDefaults,
    pub(crate) tokenizer_json: Cow<'static, [u8]>,
    pub(crate) tokenizer_config: TokenizerConfig,
    pub(crate) templates: ChatTemplates,
}

/// What a reader found.
pub(crate) struct Parts {
    pub(crate) format: Format,
    pub(crate) config: ModelConfig,
    pub(crate) generation: GenerationDefaults,
    pub(crate) tokenizer_json: Cow<'static, [u8]>,
    pub(crate) tokenizer_config: TokenizerConfig,
    pub(crate) templates: ChatTemplates,
    pub(crate) identity: Identity,
    pub(crate) weights: Weights,
    /// What the files leave open, in words.
    pub(crate) warnings: Vec<String>,
}
