//! [`Checkpoint`]: opens a model directory or a GGUF file, checks its tensors against its configuration, and gives
//! access to both. Must not know how they are used in computation.

use std::borrow::Cow;
use std::path::Path;

use crate::decoder::ModelConfig;
use crate::directory;
use crate::error::CheckpointError;
use crate::generation::GenerationDefaults;
use crate::gguf;
use crate::parts::{Format, Parts};
use crate::source::Source;
use crate::tensor::{DType, Tensor};
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};
use crate::weights::Weights;

/// A model directory or GGUF file that was read, checked and found complete. Every tensor that the configuration calls
/// for exists, with the right shape and a supported type. Both formats give the same results.
///
/// Weight files on disk stay mapped, read-only, while this value lives. Replace them by renaming, not by writing into
/// them: if another process truncates a file while it is being read, this process ends with SIGBUS. To be free of that
/// risk, copy the weights, call [`Checkpoint::release_pages`], and read no tensor afterwards.
pub struct Checkpoint {
    format: Format,
    config: ModelConfig,
    generation: GenerationDefaults,
    tokenizer_json: Cow<'static, [u8]>,
    tokenizer_config: TokenizerConfig,
    templates: ChatTemplates,
    fingerprint: String,
    warnings: Vec<String>,
    weights: Weights,
}

impl Checkpoint {
    /// Opens a Hugging Face model directory or a GGUF file. A directory has `config.json`, `tokenizer.json`, and
    /// `model.safetensors`, or `model.safetensors.index.json` with its files, or one weight file of another name.
    /// Optional files are `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`. A GGUF file is
    /// given by its path (of the first part, if it is split), or as a directory that holds the file and no
    /// `config.json`.
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file is missing, unreadable or malformed, an architecture or setting is not
    /// supported, or a tensor is missing or contradicts the configuration.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (source, file) = Source::at(path)?;
        Self::load(source, file)
    }

    /// Opens a checkpoint from memory, given as (file name, contents).
    ///
    /// # Errors
    /// Same as [`Checkpoint::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?, None)
    }

    /// The format that the checkpoint was read from.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Sizes and switches of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sampling defaults that the checkpoint recommends.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// Returns the tensor with the given name, as Hugging Face's checkpoints name it. A quantized matrix whose codes and
    /// scales are tensors of their own is made from them, under the name that it has without quantization. Stacked
    /// matrices of MXFP4 have the name of their codes, `…_blocks`, and their rows are outputs. Tensors whose rows a GGUF file
    /// stores otherwise, such as those of all experts in one, have their names of that file.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] if there is no such tensor, or if its element type is not a [`crate::DType`]. The
    /// latter cannot happen to a tensor that the configuration calls for. Also if a quantized matrix has a scale or a
    /// weight that is NaN or infinite.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.tensor(name)
    }

    /// Returns one of the matrices that the tensor `name` stacks along its outermost dimension, without that dimension.
    /// Makes no other matrix of the stack.
    ///
    /// # Errors
    /// As for [`Checkpoint::tensor`], and [`CheckpointError::Tensor`] if there is no such matrix.
    pub fn stacked(&self, name: &str, index: usize) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.stacked(name, index)
    }

    /// The element type of the tensor `name`. `None` if the tensor does not exist or its type is not supported.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.weights.dtype(name)
    }

    /// Whether a tensor with this name exists.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(name) || self.weights.recipes.contains_key(name)
    }

    /// Names of all stored tensors, sorted. Includes tensors that the configuration does not call for.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.weights.tensors.keys().map(String::as_str)
    }

    /// Name, element type as the file spells it, dimensions and size in bytes of every tensor, sorted by name. A
    /// quantized matrix whose codes and scales are tensors of their own is one entry.
    pub fn stored_tensors(&self) -> impl Iterator<Item = (&str, &'static str, &[usize], u64)> {
        self.weights.listed().into_iter()
    }

    /// Names and sizes of the weight files, in bytes.
    pub fn weight_files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.weights.files.iter().map(|file| (file.name.as_str(), file.contents.len() as u64))
    }

    /// The unparsed `tokenizer.json`. For a GGUF file, a generated one that gives the same ids.
    pub fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer_json
    }

    /// Special tokens and switches of the tokenizer.
    pub fn tokenizer_config(&self) -> &TokenizerConfig {
        &self.tokenizer_config
    }

    /// The default chat template: `chat_template.jinja`, or else the default template of `tokenizer_config.json`.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates.default.as_deref()
    }

    /// The chat template with the given name, such as `tool_use`. `default` returns [`Checkpoint::chat_template`].
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        self.templates.named(name)
    }

    /// BLAKE3 hash in hex over the configuration, the tokenizer, the templates, the tensor headers and a sample of
    /// every tensor's bytes. The same files have the same fingerprint on every machine, and a fine-tune has another.
    /// The fingerprint identifies a checkpoint and does not authenticate it, because most weight bytes are not hashed.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// What the files leave open, so that the model may answer differently than its authors intended. One sentence
    /// each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Size of all tensors together as [`Checkpoint::tensor`] returns them, in bytes. More than
    /// [`Checkpoint::weight_bytes`] if quantized matrices become blocks or f32.
    pub fn tensor_bytes(&self) -> u64 {
        self.weights.made_bytes()
    }

    /// Size of all stored tensors together, in bytes.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// Returns the pages of the mapped weight files to the operating system. Call this after the weights were copied.
    /// Tensors stay readable, but reading one reads the file again.
    pub fn release_pages(&self) {
        for file in &self.weights.files {
            file.contents.release();
        }
    }

    fn load(mut source: Source, file: Option<String>) -> Result<Self, CheckpointError> {
        let file = match file {
            None => gguf::model::only_file(&source)?,
            named => named,
        };
        let parts = match file {
            Some(name) => gguf::model::read(&mut source, &name)?,
            None => directory::read(&mut source)?,
        };
        let Parts {
            format, config, generation, tokenizer_json, tokenizer_config, templates, warnings, ..
        } = parts;
        let (mut identity, weights) = (parts.identity, parts.weights);
        weights.check(&config)?;
        weights.identify(&mut identity);
        let fingerprint = identity.finish();
        Ok(Self {
            format,
            config,
            generation,
            tokenizer_json,
            tokenizer_config,
            templates,
            fingerprint,
            warnings,
            weights,
        })
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpoint")
            .field("fingerprint", &self.fingerprint)
            .field("config", &self.config)
            .field("tensors", &self.weights.tensors.len())
            .finish_non_exhaustive()
    }
}
