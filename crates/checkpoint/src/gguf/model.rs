//! Loads a checkpoint from GGUF files. Opens the parts of a split file, maps tensor names to those of a Hugging Face
//! directory, and reads configuration and tokenizer from the metadata. Must not know how bytes are laid out.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config_file::CONFIG_FILE;
use crate::decoder::Architecture;
use crate::error::{CheckpointError, shown};
use crate::identity::Identity;
use crate::limits;
use crate::parts::{Format, Parts};
use crate::source::Source;
use crate::tensor::DType;
use crate::weights::{Stored, WeightFile, Weights, tensor_error};

use super::config::{self, Found};
use super::meta::Meta;
use super::{Entry, Header, names, tensor_type, tokenizer};

/// The tensors of one part, by their names in the file.
type Tensors = BTreeMap<String, Entry>;

/// Returns the only GGUF file, or the first part of the only split file. `None` if there is no GGUF file, or there is a
/// `config.json`.
pub(crate) fn only_file(source: &Source) -> Result<Option<String>, CheckpointError> {
    if source.has(CONFIG_FILE) {
        return Ok(None);
    }
    let mut names = source.names_ending(".gguf")?;
    if let Some(count) = names.first().and_then(|first| Split::of(first)).map(|split| split.count)
        && count == names.len()
    {
        names.truncate(1);
    }
    match (names.pop(), names.len()) {
        (None, _) => Ok(None),
        (Some(only), 0) => Ok(Some(only)),
        (Some(_), more) => Err(CheckpointError::MissingFile {
            file: CONFIG_FILE.to_owned(),
            remedy: format!("there are {} GGUF files here; give the path of the one that is meant", more + 1),
        }),
    }
}

/// Reads the GGUF file `name`, and its other parts if it is split.
pub(crate) fn read(source: &mut Source, name: &str) -> Result<Parts, CheckpointError> {
    let (first, header) = open(source, name, 0, "give the path of a .gguf file")?;
    let meta = Meta::new(name, &header.metadata);
    let architecture = config::architecture(meta)?;
    let layers = config::layers(meta, architecture)?;
    let head_dim = config::head_dim(meta, architecture)?;
    let mut weights = Weights {
        files: vec![first],
        tensors: BTreeMap::new(),
        listed_in: name.to_owned(),
        called_for_by: "the metadata",
        alias_of: names::from_hugging_face,
        supported: tensor_type::SUPPORTED,
        scheme: None,
        recipes: BTreeMap::new(),
    };
    let mut rope_factors = None;
    for (index, mut part) in parts(source, name, &header, &mut weights.files)?.into_iter().enumerate() {
        if let Some(entry) = part.remove(names::ROPE_FACTORS) {
            let file = weights.files.get(index);
            rope_factors = factors(file, name, architecture, &entry, head_dim)?;
        }
        add(&mut weights, index, part, layers, architecture, head_dim)?;
    }
    let bias = |part: &str| weights.tensors.contains_key(&format!("model.layers.0.{part}.bias"));
    let embedding =
        weights.tensors.get("model.embed_tokens.weight").and_then(|stored| match stored.shape[..] {
            [rows, _] => Some(rows),
            _ => None,
        });
    let Some(vocab_size) = embedding.filter(|rows| *rows <= limits::MAX_VOCAB_SIZE) else {
        let problem = format!("is missing, or no matrix of 1 to {} rows", limits::MAX_VOCAB_SIZE);
        return Err(tensor_error(name, "token_embd.weight", "presence", problem));
    };
    let found = Found {
        vocab_size,
        qkv_bias: bias("self_attn.q_proj"),
        o_bias: bias("self_attn.o_proj"),
        mlp_bias: bias("mlp.gate_proj"),
        tied: !weights.tensors.contains_key("lm_head.weight"),
        rope_factors,
    };
    let words = tokenizer::read(meta, vocab_size)?;
    let generation = config::generation(meta, vocab_size, &words.eos)?;
    let config = config::read(meta, architecture, found, (words.bos, words.eos))?;
    Ok(Parts {
        format: Format::Gguf,
        config,
        generation,
        tokenizer_json: words.json.into(),
        tokenizer_config: words.config,
        templates: words.templates,
        identity: Identity::new(),
        weights,
        warnings: words.warnings.into_iter().map(|warning| format!("{}: {warning}", shown(name))).collect(),
    })
}

fn open(
    source: &mut Source,
    name: &str,
    index: usize,
    remedy: &str,
) -> Result<(WeightFile, Header), CheckpointError> {
    let Some(contents) = source.weights(name)? else {
        return Err(CheckpointError::MissingFile { file: shown(name), remedy: remedy.to_owned() });
    };
    let header = Header::parse(name, &contents)?;
    // Identified by its index, not its name, so that a renamed file has the same fingerprint.
    let known_as = format!("gguf {index}");
    Ok((WeightFile { name: name.to_owned(), contents, header_bytes: header.data_start, known_as }, header))
}

/// Returns the tensors of all parts, the first included, and appends the other parts to `files`.
fn parts(
    source: &mut Source,
    name: &str,
    first: &Header,
    files: &mut Vec<WeightFile>,
) -> Result<Vec<Tensors>, CheckpointError> {
    const COUNT: &str = "split.count";
    const NUMBER: &str = "split.no";
    const TENSORS: &str = "split.tensors.count";
    let meta = Meta::new(name, &first.metadata);
    let count = meta.count(COUNT, 0..=limits::MAX_WEIGHT_FILES)?.unwrap_or(0);
    let mut tensors = vec![first.tensors.clone()];
    if count <= 1 {
        return Ok(tensors);
    }
    let split = Split::of(name).filter(|split| split.count == count).ok_or_else(|| {
        let problem = format!("is {count}, so the file must be called NAME-00001-of-{count:05}.gguf");
        meta.problem(COUNT, problem)
    })?;
    if meta.count(NUMBER, 0..=count)? != Some(0) || split.number != 1 {
        return Err(
            meta.problem(NUMBER, format!("is not the first of {count} parts; give {}", split.part(1)))
        );
    }
    for number in 2..=count {
        let part = split.part(number);
        let remedy = format!("{name} is one of {count} parts; download them all");
        let (file, header) = open(source, &part, number - 1, &remedy)?;
        let meta = Meta::new(&part, &header.metadata);
        if meta.count(NUMBER, 0..=count)? != Some(number - 1)
            || meta.count(COUNT, 0..=usize::MAX)? != Some(count)
        {
            let problem = format!("does not say that this is part {number} of {count}");
            return Err(meta.problem(NUMBER, problem));
        }
        files.push(file);
        tensors.push(header.tensors);
    }
    let found: usize = tensors.iter().map(BTreeMap::len).sum();
    match meta.count(TENSORS, 0..=limits::MAX_TENSORS)? {
        Some(expected) if expected != found => {
            Err(meta.problem(TENSORS, format!("is {expected}, but the parts have {found}")))
        }
        _ => Ok(tensors),
    }
}

/// Adds the tensors of one part to `weights`.
fn add(
    weights: &mut Weights,
    file: usize,
    part: Tensors,
    layers: usize,
    architecture: Architecture,
    head_dim: usize,
) -> Result<(), CheckpointError> {
    let file_name = weights.files.get(file).map_or(String::new(), |file| file.name.clone());
    for (alias, entry) in part {
        let known = names::to_hugging_face(&alias).filter(|name| in_layers(name, layers));
        let Some(name) = known else {
            // Old converters left these tensors behind. All implementations compute them from the configuration.
            if alias.ends_with(".attn_rot_embd") || alias.ends_with(".rotary_emb.inv_freq") {
                continue;
            }
            let problem = format!(
                "is not a tensor of a {} model of {layers} layers; without it the model would answer nonsense",
                architecture.gguf_name()
            );
            return Err(tensor_error(&file_name, &alias, "presence", problem));
        };
        if weights.tensors.contains_key(&name) {
            let problem = "is in two parts of the file".to_owned();
            return Err(tensor_error(&file_name, &alias, "presence", problem));
        }
        let rotated = [".self_attn.q_proj.", ".self_attn.k_proj."].iter().any(|part| name.contains(part));
        // llama.cpp rotates neighbouring pairs in this architecture, so its converter has reordered the rows.
        let interleaved = (architecture == Architecture::Llama && rotated).then_some(head_dim);
        let element = (entry.kind.name, entry.kind.dtype());
        let stored =
            Stored { file, alias: Some(alias), element, shape: entry.shape, range: entry.range, interleaved };
        weights.tensors.insert(name, stored);
    }
    Ok(())
}

fn in_layers(name: &str, layers: usize) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    layer.is_none_or(|(layer, _)| layer.parse::<usize>().is_ok_and(|layer| layer < layers))
}

/// Reads the factors of the rotary frequencies. `None` if all are 1.
fn factors(
    file: Option<&WeightFile>,
    name: &str,
    architecture: Architecture,
    entry: &Entry,
    head_dim: usize,
) -> Result<Option<Arc<[f32]>>, CheckpointError> {
    let file_name = file.map_or(name, |file| &file.name);
    let refuse = |field, problem| Err(tensor_error(file_name, names::ROPE_FACTORS, field, problem));
    if architecture != Architecture::Llama {
        let problem = format!("is supported for llama only, not for {}", architecture.gguf_name());
        return refuse("presence", problem);
    }
    if entry.kind.dtype() != Some(DType::F32) || entry.shape != [head_dim / 2] {
        let problem =
            format!("is {:?} of {}, expected [{}] of F32", entry.shape, entry.kind.name, head_dim / 2);
        return refuse("shape", problem);
    }
    let bytes = file.and_then(|file| file.contents.get(entry.range.clone())).unwrap_or_default();
    let factors: Arc<[f32]> =
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let usable = 1.0 / limits::MAX_ROPE_FACTOR..=limits::MAX_ROPE_FACTOR;
    if let Some(bad) = factors.iter().find(|factor| !usable.contains(&f64::from(**factor))) {
        let problem = format!("has a factor of {bad}, expected {} to {}", usable.start(), usable.end());
        return refuse("values", problem);
    }
    Ok(factors.iter().any(|factor| *factor != 1.0).then_some(factors))
}

/// A file name of the form `NAME-00001-of-00003.gguf`.
struct Split<'n> {
    prefix: &'n str,
    number: usize,
    count: usize,
}

impl<'n> Split<'n> {
    fn of(name: &'n str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let five = |digits: &str| match digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()) {
            true => digits.parse().ok(),
            false => None,
        };
        Some(Self { prefix, number: five(number)?, count: five(count)? })
    }

    fn part(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count)
    }
}
