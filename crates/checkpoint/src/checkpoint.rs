//! [`Checkpoint`]: opens a model directory or a GGUF file, holds configuration against tensors, and gives out what it
//! says. Must not know how any of it is computed with.

use std::borrow::Cow;
use std::path::Path;

use crate::config::ModelConfig;
use crate::directory;
use crate::error::CheckpointError;
use crate::generation::GenerationDefaults;
use crate::gguf;
use crate::parts::{Format, Parts};
use crate::source::Source;
use crate::tensor::{DType, Tensor};
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};
use crate::weights::Weights;

/// A model directory or GGUF file that was read, checked and found whole: every tensor that the configuration calls
/// for is there with the right shape and a supported type. Which of the two it was makes no difference to what it gives.
///
/// Weight files on disk stay mapped, read-only, for as long as this lives. Replace them by renaming, not by writing
/// into them: a file that another process cuts off while it is being read ends this process (SIGBUS). Copy the
/// weights, call [`Checkpoint::release_pages`], and read no tensor afterwards to be free of that.
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
    /// Opens a Hugging Face model directory: `config.json`, `model.safetensors` or `model.safetensors.index.json`
    /// with its files (or one file of another name), `tokenizer.json`, and, where they are there,
    /// `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`. Or a GGUF file (the first of a
    /// split one), which may also be given as a directory that holds it and no `config.json`.
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file missing, unreadable or malformed, an architecture or setting that is not
    /// supported, a tensor that is missing or not what the configuration says.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (source, file) = Source::at(path)?;
        Self::load(source, file)
    }

    /// The same from memory: (file name, contents).
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?, None)
    }

    /// What it was read from.
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

    /// The tensor called `name` in Hugging Face's checkpoints.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] when there is none, or when its element type is not a [`crate::DType`] (which no
    /// tensor that the configuration calls for can be).
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.tensor(name)
    }

    /// The element type of the tensor called `name`, if it is there and can be computed with.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.weights.tensors.get(name).and_then(|stored| stored.element.1)
    }

    /// Whether a tensor of this name is there.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(name)
    }

    /// Names of all tensors, sorted, also of those that the configuration does not call for.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.weights.tensors.keys().map(String::as_str)
    }

    /// Every tensor's name, element type as the file spells it, dimensions and bytes; sorted by name.
    pub fn stored_tensors(&self) -> impl Iterator<Item = (&str, &'static str, &[usize], u64)> {
        self.weights.tensors.iter().map(|(name, stored)| {
            (name.as_str(), stored.element.0, stored.shape.as_slice(), stored.range.len() as u64)
        })
    }

    /// Names and sizes of the weight files, in bytes.
    pub fn weight_files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.weights.files.iter().map(|file| (file.name.as_str(), file.contents.len() as u64))
    }

    /// The `tokenizer.json`, unread; for a GGUF file, one that gives the same ids.
    pub fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer_json
    }

    /// Special tokens and switches of the tokenizer.
    pub fn tokenizer_config(&self) -> &TokenizerConfig {
        &self.tokenizer_config
    }

    /// The chat template: `chat_template.jinja`, or else the (default) one of `tokenizer_config.json`.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates.default.as_deref()
    }

    /// The chat template of that name, such as `tool_use`; `default` is [`Checkpoint::chat_template`].
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        self.templates.named(name)
    }

    /// Hex BLAKE3 over the configuration, the tokenizer, the templates, the tensor headers and a sample of every
    /// tensor's bytes: the same files give the same one on every machine; a fine-tune gives another. It identifies,
    /// it does not authenticate: most weight bytes are not read for it.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// What the files leave open, so that the model may answer otherwise than its authors meant: one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Bytes of all tensors together.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// Lets the operating system have the pages of the mapped weight files back. For after the weights were copied;
    /// tensors stay readable, at the cost of reading the files again.
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
