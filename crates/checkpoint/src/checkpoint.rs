//! [`Checkpoint`]: opens a model directory, holds configuration against tensors, and gives out what it says. Must
//! not know how any of it is computed with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{CONFIG_FILE, ModelConfig};
use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::generation::{GENERATION_FILE, GenerationDefaults};
use crate::inventory::{self, Required, SUPPORTED_DTYPES, supported_dtype};
use crate::json::parse_object;
use crate::limits;
use crate::safetensors::{Entry, Header};
use crate::source::{Contents, Source, check_plain_name};
use crate::tokenizer_config::{CHAT_TEMPLATE_FILE, ChatTemplates, TOKENIZER_CONFIG_FILE, TokenizerConfig};

const INDEX_FILE: &str = "model.safetensors.index.json";
const SINGLE_FILE: &str = "model.safetensors";
const TOKENIZER_FILE: &str = "tokenizer.json";

/// A model directory that was read, checked and found whole: every tensor that the configuration calls for is there
/// with the right shape and a supported type.
///
/// Weight files on disk stay mapped, read-only, for as long as this lives. Replace them by renaming, not by writing
/// into them: a file that another process cuts off while it is being read ends this process (SIGBUS). Copy the
/// weights, call [`Checkpoint::release_pages`], and read no tensor afterwards to be free of that.
pub struct Checkpoint {
    config: ModelConfig,
    generation: GenerationDefaults,
    tokenizer_json: Cow<'static, [u8]>,
    tokenizer_config: TokenizerConfig,
    templates: ChatTemplates,
    fingerprint: String,
    weights: Weights,
}

/// Element type of a tensor that can be computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
}

impl DType {
    /// Size of an element, in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// A tensor as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in elements, outermost first.
    pub shape: &'a [usize],
    /// Row-major, little-endian; product of `shape` times `dtype.bytes()` long. **Not aligned** to the element.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens a Hugging Face model directory: `config.json`, `model.safetensors` or `model.safetensors.index.json`
    /// with its files (or one file of another name), `tokenizer.json`, and, where they are there,
    /// `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`.
    ///
    /// # Errors
    /// Any [`CheckpointError`]: a file missing, unreadable or malformed, an architecture or setting that is not
    /// supported, a tensor that is missing or not what the configuration says.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        Self::load(Source::directory(dir)?)
    }

    /// The same from memory: (file name, contents).
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_files(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        Self::load(Source::memory(files)?)
    }

    /// Sizes and switches of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sampling defaults that the checkpoint recommends.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] when there is none, or when its element type is not a [`DType`] (which no tensor
    /// that the configuration calls for can be).
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        self.weights.tensor(name)
    }

    /// Whether a tensor of this name is there.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(name)
    }

    /// Names of all tensors, sorted, also of those that the configuration does not call for.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.weights.tensors.keys().map(String::as_str)
    }

    /// `tokenizer.json`, unread.
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

    /// Bytes of all tensors together.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.tensors.values().map(|(_, entry)| entry.range.len() as u64).sum()
    }

    /// Lets the operating system have the pages of the mapped weight files back. For after the weights were copied;
    /// tensors stay readable, at the cost of reading the files again.
    pub fn release_pages(&self) {
        for file in &self.weights.files {
            file.contents.release();
        }
    }

    /// Cheap refusals first: the configuration is judged before any weight file is touched.
    fn load(mut source: Source) -> Result<Self, CheckpointError> {
        let config_bytes = needed(&mut source, CONFIG_FILE, limits::MAX_CONFIG_BYTES)?;
        let config = ModelConfig::from_json(&config_bytes)?;
        let mut identity = Identity::new();
        identity.add(CONFIG_FILE, &config_bytes);
        let generation = match source.read(GENERATION_FILE, limits::MAX_GENERATION_CONFIG_BYTES)? {
            Some(bytes) => {
                identity.add(GENERATION_FILE, &bytes);
                GenerationDefaults::read(&parse_object(GENERATION_FILE, &bytes)?, config.vocab_size)?
            }
            None => GenerationDefaults::default(),
        };
        let (tokenizer_config, templates) = tokenizer_config(&mut source, &mut identity)?;
        let tokenizer_json = needed(&mut source, TOKENIZER_FILE, limits::MAX_TOKENIZER_BYTES)?;
        identity.add(TOKENIZER_FILE, &tokenizer_json);
        let weights = Weights::load(&mut source)?;
        weights.check(&config)?;
        weights.identify(&mut identity);
        let fingerprint = identity.finish();
        Ok(Self { config, generation, tokenizer_json, tokenizer_config, templates, fingerprint, weights })
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

fn needed(source: &mut Source, name: &str, limit_bytes: u64) -> Result<Cow<'static, [u8]>, CheckpointError> {
    source.read(name, limit_bytes)?.ok_or_else(|| CheckpointError::MissingFile {
        file: name.to_owned(),
        remedy: "a Hugging Face model directory must have it; download the whole repository".to_owned(),
    })
}

fn tokenizer_config(
    source: &mut Source,
    identity: &mut Identity,
) -> Result<(TokenizerConfig, ChatTemplates), CheckpointError> {
    let members = match source.read(TOKENIZER_CONFIG_FILE, limits::MAX_TOKENIZER_CONFIG_BYTES)? {
        Some(bytes) => {
            identity.add(TOKENIZER_CONFIG_FILE, &bytes);
            parse_object(TOKENIZER_CONFIG_FILE, &bytes)?
        }
        None => Map::new(),
    };
    let mut templates = ChatTemplates::read(&members)?;
    if let Some(bytes) = source.read(CHAT_TEMPLATE_FILE, limits::MAX_CHAT_TEMPLATE_BYTES)? {
        identity.add(CHAT_TEMPLATE_FILE, &bytes);
        let text = std::str::from_utf8(&bytes).map_err(|error| CheckpointError::File {
            file: CHAT_TEMPLATE_FILE.to_owned(),
            problem: format!("is not UTF-8 after {} bytes", error.valid_up_to()),
        })?;
        templates.default = Some(text.to_owned());
    }
    Ok((TokenizerConfig::read(&members)?, templates))
}

/// The weight files and where each tensor is.
struct Weights {
    files: Vec<WeightFile>,
    /// By name: the position in `files`, and the place in that file.
    tensors: BTreeMap<String, (usize, Entry)>,
    /// What lists the tensors: the index, or the only file. Errors about absent tensors name it.
    listed_in: String,
}

struct WeightFile {
    name: String,
    contents: Contents,
    header_bytes: usize,
}

impl Weights {
    fn load(source: &mut Source) -> Result<Self, CheckpointError> {
        // The single file wins over an index, as in transformers.
        if source.has(SINGLE_FILE) {
            return Self::load_single(source, SINGLE_FILE.to_owned());
        }
        if let Some(bytes) = source.read(INDEX_FILE, limits::MAX_INDEX_BYTES)? {
            return Self::load_sharded(source, &parse_object(INDEX_FILE, &bytes)?);
        }
        let mut names = source.names_ending(".safetensors")?;
        match (names.pop(), names.is_empty()) {
            (Some(only), true) => Self::load_single(source, only),
            (None, _) => Err(CheckpointError::MissingFile {
                file: SINGLE_FILE.to_owned(),
                remedy:
                    "weights are read from safetensors files only; convert other formats with save_pretrained"
                        .to_owned(),
            }),
            (Some(_), false) => Err(CheckpointError::MissingFile {
                file: INDEX_FILE.to_owned(),
                remedy: "several safetensors files need this index to say which tensor is where".to_owned(),
            }),
        }
    }

    fn load_single(source: &mut Source, name: String) -> Result<Self, CheckpointError> {
        let (file, header) = open_weights(source, name.clone(), "the model's weights are expected in it")?;
        let tensors = header.tensors.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        Ok(Self { files: vec![file], tensors, listed_in: name })
    }

    fn load_sharded(source: &mut Source, index: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let map = weight_map(index)?;
        let names: BTreeSet<&str> = map.values().copied().collect();
        if names.len() > limits::MAX_WEIGHT_FILES {
            let problem = format!("names {} files, the most is {}", names.len(), limits::MAX_WEIGHT_FILES);
            return Err(Fields::new(INDEX_FILE, index).problem("weight_map", problem));
        }
        let mut files = Vec::with_capacity(names.len());
        let mut headers = BTreeMap::new();
        for name in names {
            let remedy = "model.safetensors.index.json names it; download the whole repository";
            let (file, header) = open_weights(source, name.to_owned(), remedy)?;
            headers.insert(name, (files.len(), header));
            files.push(file);
        }
        let mut tensors = BTreeMap::new();
        for (tensor, file) in map {
            let found = headers
                .get_mut(file)
                .and_then(|(position, header)| Some((*position, header.tensors.remove(tensor)?)));
            let Some(found) = found else {
                let problem = format!("is not in this file, although {INDEX_FILE} says so");
                return Err(tensor_error(file, tensor, "presence", problem));
            };
            tensors.insert(tensor.to_owned(), found);
        }
        Ok(Self { files, tensors, listed_in: INDEX_FILE.to_owned() })
    }

    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let absent = |file: &str| tensor_error(file, name, "presence", "there is no such tensor".to_owned());
        let Some((name, (file, entry))) = self.tensors.get_key_value(name) else {
            return Err(absent(&self.listed_in));
        };
        // Both are there: positions and ranges were made from these very files.
        let file = self.files.get(*file).ok_or_else(|| absent(&self.listed_in))?;
        let bytes = file.contents.get(entry.range.clone()).ok_or_else(|| absent(&file.name))?;
        let dtype = supported_dtype(entry.element.name).ok_or_else(|| {
            let problem =
                format!("{} is not supported; supported are {SUPPORTED_DTYPES}", entry.element.name);
            tensor_error(&file.name, name, "dtype", problem)
        })?;
        Ok(Tensor { name, dtype, shape: &entry.shape, bytes })
    }

    /// Holds every tensor that `config` calls for against what is there.
    fn check(&self, config: &ModelConfig) -> Result<(), CheckpointError> {
        for required in inventory::global(config) {
            self.check_one(&required)?;
        }
        for layer in 0..config.layers {
            for required in inventory::layer(config, layer) {
                self.check_one(&required)?;
            }
            for (name, why) in inventory::contradictions(config, layer) {
                if let Some((file, _)) = self.tensors.get(&name) {
                    let file = self.files.get(*file).map_or(self.listed_in.as_str(), |file| &file.name);
                    let problem = format!("is there, but {CONFIG_FILE} contradicts it: {why}");
                    return Err(tensor_error(file, &name, "presence", problem));
                }
            }
        }
        Ok(())
    }

    fn check_one(&self, required: &Required) -> Result<(), CheckpointError> {
        let Required { name, shape, fields } = required;
        let Some((file, entry)) = self.tensors.get(name) else {
            let hint = match name.as_str() {
                "lm_head.weight" => " (for a model without it, tie_word_embeddings must be true)",
                _ => "",
            };
            let problem = format!("is missing; {CONFIG_FILE} calls for shape {shape:?}, {fields}{hint}");
            return Err(tensor_error(&self.listed_in, name, "presence", problem));
        };
        let file = self.files.get(*file).map_or(self.listed_in.as_str(), |file| &file.name);
        if entry.shape != *shape {
            let problem = format!("is {:?}, but {CONFIG_FILE} says {shape:?}, {fields}", entry.shape);
            return Err(tensor_error(file, name, "shape", problem));
        }
        self.tensor(name).map(drop)
    }

    fn identify(&self, identity: &mut Identity) {
        for file in &self.files {
            let header = file.contents.get(..file.header_bytes).unwrap_or_default();
            identity.add(&file.name, header);
        }
        for (name, (file, entry)) in &self.tensors {
            let bytes = self.files.get(*file).and_then(|file| file.contents.get(entry.range.clone()));
            identity.add_sample(name, bytes.unwrap_or_default());
        }
    }
}

fn open_weights(
    source: &mut Source,
    name: String,
    remedy: &str,
) -> Result<(WeightFile, Header), CheckpointError> {
    let Some(contents) = source.weights(&name)? else {
        return Err(CheckpointError::MissingFile { file: shown(&name), remedy: remedy.to_owned() });
    };
    let header = Header::parse(&name, &contents)?;
    Ok((WeightFile { name, contents, header_bytes: header.data_start }, header))
}

/// Tensor name → file name, each checked to be a plain name of a safetensors file.
fn weight_map(index: &Map<String, Value>) -> Result<BTreeMap<&str, &str>, CheckpointError> {
    let fields = Fields::new(INDEX_FILE, index);
    let map = fields.object("weight_map")?.ok_or_else(|| fields.missing("weight_map"))?;
    let mut names = BTreeMap::new();
    for (tensor, file) in map.values() {
        let Value::String(name) = file else {
            return Err(map.wrong(&shown(tensor), file, "a file name"));
        };
        check_plain_name(name).map_err(|error| map.problem(&shown(tensor), error.to_string()))?;
        if !name.ends_with(".safetensors") {
            return Err(map.wrong(&shown(tensor), file, "the name of a .safetensors file"));
        }
        names.insert(tensor.as_str(), name.as_str());
    }
    if names.is_empty() || names.len() > limits::MAX_TENSORS {
        let problem = format!("names {} tensors, expected 1 to {}", names.len(), limits::MAX_TENSORS);
        return Err(fields.problem("weight_map", problem));
    }
    Ok(names)
}

fn tensor_error(file: &str, tensor: &str, field: &'static str, problem: String) -> CheckpointError {
    CheckpointError::Tensor { file: file.to_owned(), tensor: shown(tensor), field, problem }
}

/// What the fingerprint is computed over. Every part goes in with its lengths, so that no two lists of parts agree.
struct Identity(blake3::Hasher);

impl Identity {
    /// Changes when what goes in changes, so that fingerprints of two versions never meet by accident.
    const CONTEXT: &'static str = "headrace 2026-11 checkpoint fingerprint v1";
    const SAMPLE_BYTES: usize = 64;

    fn new() -> Self {
        Self(blake3::Hasher::new_derive_key(Self::CONTEXT))
    }

    fn add(&mut self, name: &str, part: &[u8]) {
        for bytes in [name.as_bytes(), part] {
            self.0.update(&(bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
    }

    /// Adds the length and three pieces: the start, the middle and the end.
    fn add_sample(&mut self, name: &str, tensor: &[u8]) {
        self.0.update(&(tensor.len() as u64).to_le_bytes());
        let last = tensor.len().saturating_sub(Self::SAMPLE_BYTES);
        for start in [0, last / 2, last] {
            let end = tensor.len().min(start + Self::SAMPLE_BYTES);
            self.add(name, tensor.get(start..end).unwrap_or_default());
        }
    }

    fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
