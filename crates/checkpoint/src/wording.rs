//! [`Wording`]: the tokenizer assets of a model that an upstream computes. Reads no weights, and needs no weight files
//! in a directory. Must not know which upstream computes the model.

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

/// Tokenizer, template and sizes of a model. A directory may be of any architecture, and needs no weight files.
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
    /// Reads `config.json`, `tokenizer.json` and, if they exist, `tokenizer_config.json`, `chat_template.jinja` and
    /// `generation_config.json` of a Hugging Face directory, or the metadata of a GGUF file. Paths are given as for
    /// [`crate::Checkpoint::open`].
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file is missing, unreadable or malformed. A GGUF file must also pass every check of
    /// `Checkpoint::open` that precedes the tensor check.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (source, file) = Source::at(path)?;
        Self::load(source, file)
    }

    /// Reads the assets from memory, given as (file name, contents).
    ///
    /// # Errors
    /// Same as [`Wording::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?, None)
    }

    /// Rows of the embedding. May exceed the number of token ids, because of padding.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Longest context, in positions. `None` if the files do not say.
    pub fn max_positions(&self) -> Option<usize> {
        self.max_positions
    }

    /// Ids that end an answer. Empty if the files name none.
    pub fn eos(&self) -> &[u32] {
        self.generation.eos.as_deref().unwrap_or(&self.eos)
    }

    /// Sampling defaults that the model's authors recommend.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
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

    /// BLAKE3 hash in hex over the data that these assets are made of. Equal fingerprints mean equal assets.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Same as [`crate::Checkpoint::warnings`].
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
        let text = format!("{config:?} {generation:?} {tokenizer_config:?}");
        identity.add("metadata", text.as_bytes());
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
