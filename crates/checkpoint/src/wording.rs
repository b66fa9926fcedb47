//! [`Wording`]: what a model's files say of its words, for a model that others compute. No weight is read or looked for in a
//! directory. Must not know who computes it.

mod files;

use std::borrow::Cow;
use std::path::Path;

use crate::directory;
use crate::error::CheckpointError;
use crate::generation::GenerationDefaults;
use crate::gguf;
use crate::identity::Identity;
use crate::parts::{Parts, Texts};
use crate::source::Source;
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};

/// Tokenizer, template and sizes of a model. Of a directory any architecture will do, and its weight files need not be there.
pub struct Wording {
    vocab_size: usize,
    max_positions: Option<usize>,
    eos: Vec<u32>,
    generation: GenerationDefaults,
    tokenizer_json: Cow<'static, [u8]>,
    tokenizer_config: TokenizerConfig,
    templates: ChatTemplates,
    fingerprint: String,
    warnings: Vec<String>,
}

impl Wording {
    /// Reads `config.json`, `tokenizer.json` and, where they are there, `tokenizer_config.json`, `chat_template.jinja` and
    /// `generation_config.json` of a Hugging Face directory; or the metadata of a GGUF file, given as
    /// [`crate::Checkpoint::open`] takes it.
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file missing, unreadable or malformed; of a GGUF file, whatever `Checkpoint::open` refuses.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (source, file) = Source::at(path)?;
        Self::load(source, file)
    }

    /// The same from memory: (file name, contents).
    ///
    /// # Errors
    /// As [`Wording::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?, None)
    }

    /// Rows of the embedding; may exceed the tokenizer's ids (padding).
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Longest context, in positions, as far as the files say.
    pub fn max_positions(&self) -> Option<usize> {
        self.max_positions
    }

    /// Ids that end an answer; empty when the files name none.
    pub fn eos(&self) -> &[u32] {
        self.generation.eos.as_deref().unwrap_or(&self.eos)
    }

    /// Sampling defaults that the model's authors recommend.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
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

    /// Hex BLAKE3 over all that these are made of: where it is the same, so are they.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// As [`crate::Checkpoint::warnings`].
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn load(mut source: Source, file: Option<String>) -> Result<Self, CheckpointError> {
        let file = match file {
            None => gguf::model::only_file(&source)?,
            named => named,
        };
        let Some(name) = file else {
            let (sizes, texts, identity) = directory::wording(&mut source)?;
            let Texts { generation, tokenizer_json, tokenizer_config, templates } = texts;
            return Ok(Self {
                vocab_size: sizes.vocab_size,
                max_positions: sizes.max_positions,
                eos: sizes.eos,
                generation,
                tokenizer_json,
                tokenizer_config,
                templates,
                fingerprint: identity.finish(),
                warnings: Vec::new(),
            });
        };
        let parts = gguf::model::read(&mut source, &name)?;
        let Parts { config, generation, tokenizer_json, tokenizer_config, templates, warnings, .. } = parts;
        let mut identity = Identity::new();
        identity.add("tokenizer.json", &tokenizer_json);
        let told = format!("{config:?} {generation:?} {tokenizer_config:?}");
        identity.add("metadata", told.as_bytes());
        identity.add("template", templates.default.as_deref().unwrap_or_default().as_bytes());
        Ok(Self {
            vocab_size: config.vocab_size,
            max_positions: Some(config.max_positions),
            eos: config.eos,
            generation,
            tokenizer_json,
            tokenizer_config,
            templates,
            fingerprint: identity.finish(),
            warnings,
        })
    }
}
