//! Reads a Hugging Face model directory: its JSON files, its chat template, and the location of each tensor in its
//! safetensors files. Must not know GGUF.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::config::Sizes;
use crate::config_file::CONFIG_FILE;
use crate::decoder::{Architecture, ModelConfig};
use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::generation::{GENERATION_FILE, GenerationDefaults};
use crate::identity::Identity;
use crate::inventory::{SUPPORTED_DTYPES, supported_dtype};
use crate::json::parse_object;
use crate::limits;
use crate::parts::{Format, Parts, Texts};
use crate::safetensors::{Entry, Header};
use crate::scheme::WeightScheme;
use crate::source::{Source, check_plain_name};
use crate::tokenizer_config::{CHAT_TEMPLATE_FILE, ChatTemplates, TOKENIZER_CONFIG_FILE, TokenizerConfig};
use crate::weights::{Stored, WeightFile, Weights, tensor_error};

const INDEX_FILE: &str = "model.safetensors.index.json";
const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";

/// Reads the whole directory. Validates the configuration before it touches any weight file, so that refusals are
/// cheap.
pub(crate) fn read(source: &mut Source) -> Result<Parts, CheckpointError> {
    let config_bytes = needed(source, CONFIG_FILE, limits::MAX_CONFIG_BYTES)?;
    let members = parse_object(CONFIG_FILE, &config_bytes)?;
    let mut config = ModelConfig::read(&members)?;
    let scheme = WeightScheme::read(&Fields::new(CONFIG_FILE, &members))?;
    let mut identity = Identity::new();
    identity.add(CONFIG_FILE, &config_bytes);
    let Texts { generation, tokenizer_json, tokenizer_config, templates } =
        texts(source, config.vocab_size, &mut identity)?;
    let mut weights = weights(source)?;
    weights.rename(|name| text_model_name(name, config.architecture));
    weights.find_recipes(scheme);
    config.resolve(&|tensor| weights.fit(tensor));
    let format = Format::Safetensors;
    Ok(Parts {
        format,
        config,
        generation,
        tokenizer_json,
        tokenizer_config,
        templates,
        identity,
        weights,
        warnings: Vec::new(),
    })
}

/// Returns the name of a tensor in a checkpoint of the text model alone, if `name` is another: the name within a model
/// that also takes images, or a name without the usual beginning.
fn text_model_name(name: &str, architecture: Architecture) -> Option<String> {
    const WITHIN: [(&str, &str); 4] = [
        ("language_model.model.", "model."),
        ("model.language_model.", "model."),
        ("model.text_model.", "model."),
        ("language_model.", ""),
    ];
    for (within, alone) in WITHIN {
        if let Some(rest) = name.strip_prefix(within) {
            return Some(format!("{alone}{rest}"));
        }
    }
    let is_bare = ["h.", "wte.", "wpe.", "ln_f."].iter().any(|start| name.starts_with(start));
    (architecture == Architecture::Gpt2 && is_bare).then(|| format!("transformer.{name}"))
}

/// Reads the tokenizer assets of a directory of any architecture. Its weights may be elsewhere.
pub(crate) fn wording(source: &mut Source) -> Result<(Sizes, Texts, Identity), CheckpointError> {
    let config_bytes = needed(source, CONFIG_FILE, limits::MAX_CONFIG_BYTES)?;
    let sizes = Sizes::read(&parse_object(CONFIG_FILE, &config_bytes)?)?;
    let mut identity = Identity::new();
    identity.add(CONFIG_FILE, &config_bytes);
    let texts = texts(source, sizes.vocab_size, &mut identity)?;
    Ok((sizes, texts, identity))
}

pub(crate) fn texts(
    source: &mut Source,
    vocab_size: usize,
    identity: &mut Identity,
) -> Result<Texts, CheckpointError> {
    let generation = match source.read(GENERATION_FILE, limits::MAX_GENERATION_CONFIG_BYTES)? {
        Some(bytes) => {
            identity.add(GENERATION_FILE, &bytes);
            GenerationDefaults::read(&parse_object(GENERATION_FILE, &bytes)?, vocab_size)?
        }
        None => GenerationDefaults::default(),
    };
    let (tokenizer_config, templates) = tokenizer_config(source, identity)?;
    let tokenizer_json = needed(source, TOKENIZER_FILE, limits::MAX_TOKENIZER_BYTES)?;
    identity.add(TOKENIZER_FILE, &tokenizer_json);
    Ok(Texts { generation, tokenizer_json, tokenizer_config, templates })
}

pub(crate) fn needed(
    source: &mut Source,
    name: &str,
    limit_bytes: u64,
) -> Result<Cow<'static, [u8]>, CheckpointError> {
    source.read(name, limit_bytes)?.ok_or_else(|| CheckpointError::MissingFile {
        file: name.to_owned(),
        remedy:
            "a Hugging Face model directory must have it; download the whole repository, or give a .gguf file"
                .to_owned(),
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

pub(crate) fn weights(source: &mut Source) -> Result<Weights, CheckpointError> {
    // The single file takes precedence over an index, as in transformers.
    if source.has(SINGLE_FILE) {
        return single(source, SINGLE_FILE.to_owned());
    }
    if let Some(bytes) = source.read(INDEX_FILE, limits::MAX_INDEX_BYTES)? {
        return sharded(source, &parse_object(INDEX_FILE, &bytes)?);
    }
    let mut names = source.names_ending(".safetensors")?;
    match (names.pop(), names.is_empty()) {
        (Some(only), true) => single(source, only),
        (None, _) => Err(CheckpointError::MissingFile {
            file: SINGLE_FILE.to_owned(),
            remedy: "weights are read from safetensors and GGUF files only; give the path of a .gguf file \
                     itself, and convert other formats with save_pretrained"
                .to_owned(),
        }),
        (Some(_), false) => Err(CheckpointError::MissingFile {
            file: INDEX_FILE.to_owned(),
            remedy: "several safetensors files need this index to say which tensor is where".to_owned(),
        }),
    }
}

fn single(source: &mut Source, name: String) -> Result<Weights, CheckpointError> {
    let (file, header) = open_weights(source, name.clone(), "the model's weights are expected in it")?;
    let tensors = header.tensors.into_iter().map(|(name, entry)| (name, stored(0, entry))).collect();
    Ok(Weights {
        files: vec![file],
        tensors,
        listed_in: name,
        called_for_by: CONFIG_FILE,
        aliases: BTreeMap::new(),
        supported: SUPPORTED_DTYPES,
        scheme: None,
        recipes: BTreeMap::new(),
    })
}

fn sharded(source: &mut Source, index: &Map<String, Value>) -> Result<Weights, CheckpointError> {
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
            .and_then(|(position, header)| Some(stored(*position, header.tensors.remove(tensor)?)));
        let Some(found) = found else {
            let problem = format!("is not in this file, although {INDEX_FILE} says so");
            return Err(tensor_error(file, tensor, "presence", problem));
        };
        tensors.insert(tensor.to_owned(), found);
    }
    Ok(Weights {
        files,
        tensors,
        listed_in: INDEX_FILE.to_owned(),
        called_for_by: CONFIG_FILE,
        aliases: BTreeMap::new(),
        supported: SUPPORTED_DTYPES,
        scheme: None,
        recipes: BTreeMap::new(),
    })
}

fn stored(file: usize, entry: Entry) -> Stored {
    let name = entry.element.name;
    let element = (name, supported_dtype(name));
    Stored { file, alias: None, element, shape: entry.shape, range: entry.range, order: None }
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
    let known_as = name.clone();
    Ok((WeightFile { name, contents, header_bytes: header.data_start, known_as }, header))
}

/// Returns a map from tensor name to file name. Each file name is checked to be a plain name of a safetensors file.
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
