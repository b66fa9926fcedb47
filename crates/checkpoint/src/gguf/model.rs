//! Loads a checkpoint from GGUF files. Opens the parts of a split file, maps tensor names to those of a Hugging Face
//! directory, and reads configuration and tokenizer from the metadata. Must not know how bytes are laid out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::config_file::CONFIG_FILE;
use crate::decoder::Architecture;
use crate::error::{CheckpointError, shown};
use crate::identity::Identity;
use crate::inventory;
use crate::limits;
use crate::parts::{Format, Parts};
use crate::source::Source;
use crate::tensor::DType;
use crate::weights::{Stored, WeightFile, Weights, tensor_error};

use super::architecture::GgufArchitecture;
use super::config;
use super::found::FoundTensors;
use super::gemma4::STILL;
use super::layout::{ClaimedTensor, TensorLayout};
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
    let row = config::architecture(meta)?;
    let head_dim = config::head_dim(meta, row)?;
    let mut files = vec![first];
    let parts = parts(source, name, &header, &mut files)?;
    let mut tensors = merged(parts, &files)?;
    let rope_factors = match tensors.remove(names::ROPE_FACTORS) {
        Some((index, entry)) => factors((files.get(index), name), &entry, (row, head_dim))?,
        None => None,
    };
    let long_factors = long_factors(&mut tensors, &files, name, row)?;
    let shape_of = |tensor: &str| tensors.get(tensor).map(|(_, entry)| entry.shape.as_slice());
    let embedding = match shape_of("token_embd.weight") {
        Some([rows, _]) => Some(*rows),
        _ => None,
    };
    let Some(vocab_size) = embedding.filter(|rows| *rows <= limits::MAX_VOCAB_SIZE) else {
        let problem = format!("is missing, or no matrix of 1 to {} rows", limits::MAX_VOCAB_SIZE);
        return Err(tensor_error(name, "token_embd.weight", "presence", problem));
    };
    let input_words = shape_of("per_layer_token_embd.weight").and_then(|shape| shape.first().copied());
    let found = FoundTensors {
        vocab_size,
        has: &|tensor| shape_of(tensor).is_some(),
        rope_factors,
        long_factors,
        input_words,
    };
    let words = tokenizer::read(meta, vocab_size)?;
    let generation = config::generation(meta, vocab_size, &words.eos)?;
    let mut config = config::read(meta, row, &found, (words.bos, words.eos))?;
    let type_of = |tensor: &str| tensors.get(tensor).and_then(|(_, entry)| entry.kind.dtype());
    let claims = TensorLayout::apply(&mut config, row, &shape_of, &type_of);
    let weights = weights(files, tensors, claims, (row, config::drafts(meta, row)?))?;
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

/// The tensors of all parts by their names, each with the index of its file.
fn merged(
    parts: Vec<Tensors>,
    files: &[WeightFile],
) -> Result<BTreeMap<String, (usize, Entry)>, CheckpointError> {
    let mut all = BTreeMap::new();
    for (index, part) in parts.into_iter().enumerate() {
        for (alias, entry) in part {
            if all.contains_key(&alias) {
                let file = files.get(index).map_or("", |file| &file.name);
                let problem = "is in two parts of the file".to_owned();
                return Err(tensor_error(file, &alias, "presence", problem));
            }
            all.insert(alias, (index, entry));
        }
    }
    Ok(all)
}

/// The location of each tensor that the configuration calls for. Refuses all others.
fn weights(
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, (usize, Entry)>,
    claims: BTreeMap<String, ClaimedTensor>,
    (row, drafts): (&GgufArchitecture, Range<usize>),
) -> Result<Weights, CheckpointError> {
    let listed_in = files.first().map_or(String::new(), |file| file.name.clone());
    let mut weights = Weights {
        files,
        tensors: BTreeMap::new(),
        listed_in,
        called_for_by: "the metadata",
        aliases: claims.iter().map(|(alias, claim)| (claim.name.clone(), alias.clone())).collect(),
        supported: tensor_type::SUPPORTED,
        scheme: None,
        recipes: BTreeMap::new(),
    };
    for (alias, (file, entry)) in tensors {
        let Some(ClaimedTensor { name, shape, stored_shape, order }) = claims.get(&alias) else {
            // Old converters left these tensors behind. All implementations compute them from the configuration.
            if alias.ends_with(".attn_rot_embd") || alias.ends_with(".rotary_emb.inv_freq") {
                continue;
            }
            // Some files have the projection from the latents twice: whole, and as its two parts, which are read.
            if row.is_latent && alias.ends_with(".attn_kv_b.weight") {
                continue;
            }
            // Layers that only draft tokens follow the others. They change no output.
            if is_draft(&alias, &drafts) {
                continue;
            }
            let file_name = weights.files.get(file).map_or("", |file| &file.name);
            return Err(tensor_error(file_name, &alias, "presence", stray(&alias, row, drafts.start)));
        };
        // Dimensions of 1 may be left out.
        let expected = stored_shape.as_ref().unwrap_or(shape);
        let is_same = entry.shape.iter().filter(|n| **n != 1).eq(expected.iter().filter(|n| **n != 1));
        let stored = Stored {
            file,
            alias: Some(alias),
            element: (entry.kind.name, entry.kind.dtype()),
            shape: if is_same { shape.clone() } else { entry.shape },
            range: entry.range,
            order: *order,
        };
        weights.tensors.insert(name.clone(), stored);
    }
    Ok(weights)
}

/// Whether a tensor belongs to one of the layers `drafts`.
fn is_draft(alias: &str, drafts: &Range<usize>) -> bool {
    let layer = alias.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    layer.and_then(|(layer, _)| layer.parse().ok()).is_some_and(|layer| drafts.contains(&layer))
}

/// Says why a tensor that nothing calls for is refused.
fn stray(alias: &str, row: &GgufArchitecture, layers: usize) -> String {
    let known = names::to_hugging_face(alias);
    let part = known.as_ref().and_then(|name| {
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        layer.parse::<usize>().is_ok_and(|layer| layer < layers).then_some(part)
    });
    if let Some(why) = part.and_then(inventory::contradiction) {
        return format!("is there, but the metadata contradicts it: {why}");
    }
    if alias.starts_with("rope_factors_") {
        return "has the factors of LongRoPE, which is computed for phi3; take a model with a shorter context, or serve \
                this one with another server as an upstream"
            .to_owned();
    }
    let name = row.name;
    format!(
        "is not a tensor of a {name} model of {layers} layers; without it the model would answer nonsense"
    )
}

/// Reads the two lists of factors of LongRoPE. `None` if the class has none.
fn long_factors(
    tensors: &mut BTreeMap<String, (usize, Entry)>,
    files: &[WeightFile],
    name: &str,
    row: &GgufArchitecture,
) -> Result<Option<[Arc<[f32]>; 2]>, CheckpointError> {
    if row.architecture != Architecture::Phi3 {
        return Ok(None);
    }
    let [short, long] = names::LONG_FACTORS;
    let mut read = |tensor: &str| {
        let found = tensors.remove(tensor);
        found.map(|(index, entry)| listed((files.get(index), name), (tensor, &entry), None)).transpose()
    };
    let missing = |tensor: &str, other: &str| {
        Err(tensor_error(name, tensor, "presence", format!("is missing; \"{other}\" needs it")))
    };
    match (read(short)?, read(long)?) {
        (Some(of_short), Some(of_long)) => Ok(Some([of_short, of_long])),
        (None, None) => Ok(None),
        (Some(_), None) => missing(long, short),
        (None, Some(_)) => missing(short, long),
    }
}

/// Reads the factors of the rotary frequencies. `None` if all are 1.
fn factors(
    (file, name): (Option<&WeightFile>, &str),
    entry: &Entry,
    (row, head_dim): (&GgufArchitecture, usize),
) -> Result<Option<Arc<[f32]>>, CheckpointError> {
    let is_still = row.architecture == Architecture::Gemma4;
    let most = if is_still { f64::from(STILL) } else { limits::MAX_ROPE_FACTOR };
    let expected = Some((head_dim / 2, most));
    let factors = listed((file, name), (names::ROPE_FACTORS, entry), expected)?;
    // In Gemma 4, the first pairs turn as usual, and the others stay.
    if is_still
        && let Some(bad) =
            factors.iter().skip_while(|factor| **factor == 1.0).find(|factor| **factor != STILL)
    {
        let file_name = file.map_or(name, |file| &file.name);
        let problem = format!("has a factor of {bad}, expected 1 and then {STILL:e}");
        return Err(tensor_error(file_name, names::ROPE_FACTORS, "values", problem));
    }
    Ok(factors.iter().any(|factor| *factor != 1.0).then_some(factors))
}

/// Reads a list of factors. `expected` are their number, and the largest one if it is not the usual.
fn listed(
    (file, name): (Option<&WeightFile>, &str),
    (tensor, entry): (&str, &Entry),
    expected: Option<(usize, f64)>,
) -> Result<Arc<[f32]>, CheckpointError> {
    let file_name = file.map_or(name, |file| &file.name);
    let refuse = |field, problem| Err(tensor_error(file_name, tensor, field, problem));
    let length = expected.map(|(length, _)| length).or(entry.shape.first().copied()).unwrap_or(0);
    if entry.kind.dtype() != Some(DType::F32) || entry.shape != [length] {
        let problem = format!("is {:?} of {}, expected [{length}] of F32", entry.shape, entry.kind.name);
        return refuse("shape", problem);
    }
    let bytes = file.and_then(|file| file.contents.get(entry.range.clone())).unwrap_or_default();
    let factors: Arc<[f32]> =
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let most = expected.map_or(limits::MAX_ROPE_FACTOR, |(_, most)| most);
    let usable = 1.0 / limits::MAX_ROPE_FACTOR..=most;
    match factors.iter().find(|factor| !usable.contains(&f64::from(**factor))) {
        None => Ok(factors),
        Some(bad) => {
            let problem = format!("has a factor of {bad}, expected {} to {}", usable.start(), usable.end());
            refuse("values", problem)
        }
    }
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
