//! [`EncoderCheckpoint`]: opens an encoder's directory, checks its tensors against its configuration, and gives access
//! to both. Must not know how they are used in computation.

use std::borrow::Cow;
use std::path::Path;

use super::config::{EncoderBody, EncoderConfig};
use super::inventory;
use super::modules::{MODULES_FILE, Modules, Pooling};
use crate::config_file::CONFIG_FILE;
use crate::directory;
use crate::error::CheckpointError;
use crate::identity::Identity;
use crate::json::parse_object;
use crate::limits;
use crate::parts::Texts;
use crate::source::Source;
use crate::tensor::Tensor;
use crate::tokenizer_config::TokenizerConfig;
use crate::weights::Weights;

/// An encoder's directory that was read, checked and found complete. Its weight files stay mapped like those of a
/// [`crate::Checkpoint`].
pub struct EncoderCheckpoint {
    config: EncoderConfig,
    modules: Modules,
    tokenizer_json: Cow<'static, [u8]>,
    tokenizer_config: TokenizerConfig,
    fingerprint: String,
    weights: Weights,
}

impl EncoderCheckpoint {
    /// Returns whether `path` holds an encoder: a directory whose `config.json` names an encoder architecture, or a
    /// decoder with a `modules.json` of sentence-transformers. Reads no other file.
    ///
    /// # Errors
    /// [`CheckpointError`] if `path` cannot be read or `config.json` is malformed.
    pub fn is_one(path: &Path) -> Result<bool, CheckpointError> {
        let (mut source, file) = Source::at(path)?;
        if file.is_some() {
            return Ok(false);
        }
        let Some(bytes) = source.read(CONFIG_FILE, limits::MAX_CONFIG_BYTES)? else { return Ok(false) };
        Ok(EncoderConfig::is_one(&parse_object(CONFIG_FILE, &bytes)?, source.has(MODULES_FILE)))
    }

    /// Opens a Hugging Face directory: the files that [`crate::Checkpoint::open`] reads, and those of
    /// sentence-transformers if they exist.
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file is missing, unreadable or malformed, an architecture or setting is not
    /// supported, or a tensor is missing or contradicts the configuration.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (source, file) = Source::at(path)?;
        if let Some(file) = file {
            let problem = "encoders are read from Hugging Face directories".to_owned();
            return Err(CheckpointError::File { file, problem });
        }
        Self::load(source)
    }

    /// Opens an encoder from memory, given as (file name, contents). Files in subfolders are not read.
    ///
    /// # Errors
    /// Same as [`EncoderCheckpoint::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?)
    }

    /// Sizes and switches of the model.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Pooling, normalization, text length and prompts.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Maximum tokens of a text: the lowest of the limits that the positions, sentence-transformers' files and the
    /// tokenizer's configuration set.
    pub fn max_tokens(&self) -> usize {
        let said = [self.modules.max_tokens, self.tokenizer_config.model_max_length];
        said.into_iter().flatten().fold(self.config.max_tokens, usize::min)
    }

    /// Returns the tensor with the given name. An encoder's names have no prefix, even if the file has one (`bert.`). A
    /// decoder's names begin with `model.`, even if the file has no prefix.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] if there is no such tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.tensor(name)
    }

    /// Returns one of the matrices that the tensor `name` stacks along its outermost dimension, without that dimension.
    ///
    /// # Errors
    /// As for [`EncoderCheckpoint::tensor`], and if there is no such matrix.
    pub fn stacked(&self, name: &str, index: usize) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.stacked(name, index)
    }

    /// Names and shapes of the tensors that the configuration calls for, outermost dimension first.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        inventory::all(&self.config).into_iter().map(|required| (required.name, required.shape)).collect()
    }

    /// The unparsed `tokenizer.json`.
    pub fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer_json
    }

    /// Special tokens and switches of the tokenizer.
    pub fn tokenizer_config(&self) -> &TokenizerConfig {
        &self.tokenizer_config
    }

    /// BLAKE3 hash in hex, computed like [`crate::Checkpoint::fingerprint`].
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Size of all tensors together, in bytes.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// Returns the pages of the mapped weight files to the operating system.
    pub fn release_pages(&self) {
        for file in &self.weights.files {
            file.contents.release();
        }
    }

    fn load(mut source: Source) -> Result<Self, CheckpointError> {
        let config_bytes = directory::needed(&mut source, CONFIG_FILE, limits::MAX_CONFIG_BYTES)?;
        let members = parse_object(CONFIG_FILE, &config_bytes)?;
        let config = EncoderConfig::read(&members, source.has(MODULES_FILE))?;
        let mut identity = Identity::new();
        identity.add(CONFIG_FILE, &config_bytes);
        let default = match config.body {
            EncoderBody::Causal(_) => Pooling::Last,
            EncoderBody::Bert(_) | EncoderBody::Modern(_) => Pooling::Mean,
        };
        let modules = Modules::read(&mut source, &config, &mut identity, default)?;
        let Texts { tokenizer_json, tokenizer_config, .. } =
            directory::texts(&mut source, config.vocab_size, &mut identity)?;
        let mut weights = directory::weights(&mut source)?;
        rename(&mut weights, &config);
        for required in inventory::all(&config) {
            weights.check_one(&required)?;
        }
        weights.identify(&mut identity);
        let fingerprint = identity.finish();
        Ok(Self { config, modules, tokenizer_json, tokenizer_config, fingerprint, weights })
    }
}

impl std::fmt::Debug for EncoderCheckpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderCheckpoint")
            .field("fingerprint", &self.fingerprint)
            .field("config", &self.config)
            .field("modules", &self.modules)
            .finish_non_exhaustive()
    }
}

/// Gives tensors one spelling, for files saved with or without a head, and for files of old versions.
fn rename(weights: &mut Weights, config: &EncoderConfig) {
    let causal = matches!(config.body, EncoderBody::Causal(_));
    let prefixes = config.prefixes();
    weights.rename(|name| {
        if causal {
            return (!name.starts_with("model.") && !name.starts_with("lm_head."))
                .then(|| format!("model.{name}"));
        }
        let bare = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        let modern = |bare: &str, old: &str, new: &str| {
            Some(format!("{}{new}", bare.strip_suffix(old).filter(|rest| rest.ends_with("LayerNorm"))?))
        };
        let renamed = modern(bare, ".gamma", ".weight").or_else(|| modern(bare, ".beta", ".bias"));
        renamed.or_else(|| (bare != name).then(|| bare.to_owned()))
    });
}
