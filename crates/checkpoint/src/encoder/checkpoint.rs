//! [`EncoderCheckpoint`]: opens the directory of an encoder, holds configuration against tensors, and gives out what it says.
//! Must not know how any of it is computed with.

use std::borrow::Cow;
use std::path::Path;

use super::config::{EncoderBody, EncoderConfig};
use super::inventory;
use super::modules::{MODULES_FILE, Modules, Pooling};
use crate::config::CONFIG_FILE;
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

/// The directory of an encoder that was read, checked and found whole. Its weight files stay mapped as those of a
/// [`crate::Checkpoint`] do.
pub struct EncoderCheckpoint {
    config: EncoderConfig,
    modules: Modules,
    tokenizer_json: Cow<'static, [u8]>,
    tokenizer_config: TokenizerConfig,
    fingerprint: String,
    weights: Weights,
}

impl EncoderCheckpoint {
    /// Whether what stands at `path` is an encoder's: a directory whose `config.json` names one, or a decoder beside whose files
    /// sentence-transformers' `modules.json` says how to make vectors. Nothing else of it is read.
    ///
    /// # Errors
    /// [`CheckpointError`] where there is nothing to be read, or `config.json` is malformed.
    pub fn is_one(path: &Path) -> Result<bool, CheckpointError> {
        let (mut source, file) = Source::at(path)?;
        if file.is_some() {
            return Ok(false);
        }
        let Some(bytes) = source.read(CONFIG_FILE, limits::MAX_CONFIG_BYTES)? else { return Ok(false) };
        Ok(EncoderConfig::is_one(&parse_object(CONFIG_FILE, &bytes)?, source.has(MODULES_FILE)))
    }

    /// Opens a Hugging Face directory: what [`crate::Checkpoint::open`] reads of one, and sentence-transformers' files where
    /// they are there.
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file missing, unreadable or malformed, an architecture or setting that is not supported, a
    /// tensor that is missing or not what the configuration says.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (source, file) = Source::at(path)?;
        if let Some(file) = file {
            let problem = "encoders are read from Hugging Face directories".to_owned();
            return Err(CheckpointError::File { file, problem });
        }
        Self::load(source)
    }

    /// The same from memory: (file name, contents). Files within folders are left out.
    ///
    /// # Errors
    /// As [`EncoderCheckpoint::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?)
    }

    /// Sizes and switches of the model.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// What becomes of hidden states and texts.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Tokens of the longest text: what positions, sentence-transformers' files and the tokenizer's configuration allow together.
    pub fn max_tokens(&self) -> usize {
        let said = [self.modules.max_tokens, self.tokenizer_config.model_max_length];
        said.into_iter().flatten().fold(self.config.max_tokens, usize::min)
    }

    /// The tensor of that name, without the prefix (`bert.`) that some files have; a decoder's begin with `model.` in any case.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] when there is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.tensor(name)
    }

    /// Names and shapes of the tensors that the configuration calls for, outermost dimension first.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        inventory::all(&self.config).into_iter().map(|required| (required.name, required.shape)).collect()
    }

    /// The `tokenizer.json`, unread.
    pub fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer_json
    }

    /// Special tokens and switches of the tokenizer.
    pub fn tokenizer_config(&self) -> &TokenizerConfig {
        &self.tokenizer_config
    }

    /// Hex BLAKE3, as [`crate::Checkpoint::fingerprint`].
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Bytes of all tensors together.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// Lets the operating system have the pages of the mapped weight files back.
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

/// One spelling for files saved with a head and without, and for those of old versions.
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
