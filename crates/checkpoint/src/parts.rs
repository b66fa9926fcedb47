//! The result of reading model files, in either format. Must not know how files are read, or whether the parts match
//! each other.

use std::borrow::Cow;

use crate::decoder::ModelConfig;
use crate::generation::GenerationDefaults;
use crate::identity::Identity;
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};
use crate::weights::Weights;

/// The format of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A Hugging Face directory with safetensors files.
    Safetensors,
    /// A GGUF file, possibly split into several files.
    Gguf,
}

/// The tokenizer assets of a checkpoint.
pub(crate) struct Texts {
    pub(crate) generation: GenerationDefaults,
    pub(crate) tokenizer_json: Cow<'static, [u8]>,
    pub(crate) tokenizer_config: TokenizerConfig,
    pub(crate) templates: ChatTemplates,
}

/// All parts of a checkpoint.
pub(crate) struct Parts {
    pub(crate) format: Format,
    pub(crate) config: ModelConfig,
    pub(crate) generation: GenerationDefaults,
    pub(crate) tokenizer_json: Cow<'static, [u8]>,
    pub(crate) tokenizer_config: TokenizerConfig,
    pub(crate) templates: ChatTemplates,
    pub(crate) identity: Identity,
    pub(crate) weights: Weights,
    /// Warnings about what the files leave open.
    pub(crate) warnings: Vec<String>,
}
