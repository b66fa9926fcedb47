//! Reads Hugging Face model directories and GGUF files: configuration, tensors, tokenizer and chat template. Trusts
//! none of the input: every number is checked against the bytes and against a named limit before it is used. Must not
//! know kernels, tokenization, template rendering, or the caller.

mod checkpoint;
mod config;
mod config_file;
mod content;
pub mod decoder;
mod directory;
mod encoder;
mod error;
mod fields;
mod generation;
pub mod gguf;
mod identity;
mod inventory;
mod json;
pub mod limits;
mod missing;
mod order;
mod parts;
mod recipe;
mod refusal;
mod rope;
pub mod safetensors;
mod scheme;
mod source;
mod tensor;
mod tokenizer_config;
mod weights;
mod wording;

pub use checkpoint::Checkpoint;
pub use decoder::{Architecture, ModelConfig, UniformConfig};
pub use encoder::checkpoint::EncoderCheckpoint;
pub use encoder::config::{
    BertConfig, EncoderBody, EncoderConfig, HiddenAct, ModernBertConfig, ScoreActivation, ScoreHead,
};
pub use encoder::modules::{Modules, Pooling};
pub use error::CheckpointError;
pub use generation::GenerationDefaults;
pub use parts::Format;
pub use refusal::ModelRefusal;
pub use rope::{Rope, RopeScaling};
pub use source::is_gguf;
pub use tensor::{DType, Tensor};
pub use tokenizer_config::TokenizerConfig;
pub use wording::Wording;
