//! The tokenizer of GGUF's metadata → the bytes of a `tokenizer.json` that gives the same ids, and what a
//! `tokenizer_config.json` would say. Must not know how text becomes ids.

mod bpe;
mod pre;
mod scored;

use serde_json::{Map, Value as Json, json};

use crate::error::{CheckpointError, shown};
use crate::limits::{MAX_CHAT_TEMPLATE_BYTES, MAX_CHAT_TEMPLATES, MAX_EOS_IDS, MAX_TOKEN_BYTES};
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};

use super::meta::Meta;
use super::value::{Texts, Value};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Control tokens that end a reply in the families that have them, whatever the metadata names; llama.cpp's list.
const ENDS: [&str; 12] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
];

/// Everything about text.
pub(super) struct Words {
    pub(super) json: Vec<u8>,
    pub(super) config: TokenizerConfig,
    pub(super) templates: ChatTemplates,
    pub(super) bos: Option<u32>,
    pub(super) eos: Vec<u32>,
}

/// What a token is, as SentencePiece numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The vocabulary, checked: every token that is not unused has a text of its own.
struct Vocabulary<'a> {
    meta: Meta<'a>,
    tokens: &'a Texts,
    kinds: Vec<Kind>,
}

/// What the two kinds of tokenizer differ in.
struct Parts {
    model: Json,
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    /// What the metadata means by saying nothing.
    adds_bos: bool,
    class: &'static str,
}

/// Reads the tokenizer of a model whose embedding has `vocab_size` rows.
pub(super) fn read(meta: Meta<'_>, vocab_size: usize) -> Result<Words, CheckpointError> {
    let vocabulary = Vocabulary::read(meta, vocab_size)?;
    let parts = match meta.text(MODEL)? {
        Some("gpt2") => bpe::parts(&vocabulary)?,
        Some("llama") => scored::parts(&vocabulary)?,
        Some(other) => {
            let found = Value::Text(other.to_owned());
            return Err(meta.unsupported(MODEL, &found, "supported are \"gpt2\" and \"llama\""));
        }
        None => return Err(meta.missing(MODEL)),
    };
    let id = |name: &str| vocabulary.id(&format!("tokenizer.ggml.{name}_token_id"));
    let (bos, eos, pad, unknown) = (id("bos")?, id("eos")?, id("padding")?, id("unknown")?);
    let text = |id: Option<u32>| id.and_then(|id| vocabulary.text(id)).map(str::to_owned);
    let flag = |name: &str| meta.flag(&format!("tokenizer.ggml.add_{name}_token"));
    let config = TokenizerConfig {
        bos_token: text(bos),
        eos_token: text(eos),
        pad_token: text(pad),
        unk_token: text(unknown),
        additional_special_tokens: Vec::new(),
        add_bos_token: Some(flag("bos")?.unwrap_or(parts.adds_bos)),
        add_eos_token: Some(flag("eos")?.unwrap_or(false)),
        model_max_length: None,
        clean_up_tokenization_spaces: None,
        tokenizer_class: Some(parts.class.to_owned()),
    };
    let ends = vocabulary.ends([eos, id("eot")?, id("eom")?]);
    let json = vocabulary.json(parts, [bos, eos])?;
    Ok(Words { json, config, templates: templates(meta)?, bos, eos: ends })
}

impl<'a> Vocabulary<'a> {
    fn read(meta: Meta<'a>, vocab_size: usize) -> Result<Self, CheckpointError> {
        let tokens = meta.texts(TOKENS)?.ok_or_else(|| meta.missing(TOKENS))?;
        if tokens.is_empty() || tokens.len() > vocab_size {
            let problem = format!("has {} tokens, but the embedding has {vocab_size} rows", tokens.len());
            return Err(meta.problem(TOKENS, problem));
        }
        let kinds = match meta.numbers(TYPES, tokens.len())? {
            None => vec![Kind::Normal; tokens.len()],
            Some(numbers) => numbers.into_iter().map(Kind::of).collect(),
        };
        let mut texts: Vec<(&str, usize)> = Vec::with_capacity(tokens.len());
        for (index, (text, kind)) in tokens.iter().zip(&kinds).enumerate() {
            if text.len() > MAX_TOKEN_BYTES {
                let problem =
                    format!("[{index}] is {} bytes long, the most is {MAX_TOKEN_BYTES}", text.len());
                return Err(meta.problem(TOKENS, problem));
            }
            if *kind != Kind::Unused && !text.is_empty() {
                texts.push((text, index));
            }
        }
        texts.sort_unstable();
        for pair in texts.windows(2) {
            if let [(text, first), (other, second)] = pair
                && text == other
            {
                let problem = format!("[{first}] and [{second}] are both \"{}\"", shown(text));
                return Err(meta.problem(TOKENS, problem));
            }
        }
        Ok(Self { meta, tokens, kinds })
    }

    /// Ids, texts and kinds of all tokens that can occur.
    fn used(&self) -> impl Iterator<Item = (u32, &'a str, Kind)> {
        let all = (0u32..).zip(self.tokens.iter().zip(&self.kinds));
        all.filter(|(_, (text, kind))| **kind != Kind::Unused && !text.is_empty())
            .map(|(id, (text, kind))| (id, text, *kind))
    }

    fn text(&self, id: u32) -> Option<&'a str> {
        self.tokens.get(usize::try_from(id).ok()?)
    }

    /// The id under `key`, if it is one of a token.
    fn id(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        let Some(value) = self.meta.get(key) else { return Ok(None) };
        let number = value.integer().ok_or_else(|| self.meta.wrong(key, value, "the id of a token"))?;
        // Some converters write -1 or 2^32-1 for "none"; llama.cpp passes over any id that is none of a token.
        Ok(u32::try_from(number).ok().filter(|id| self.text(*id).is_some_and(|text| !text.is_empty())))
    }

    /// Ids that end a reply.
    fn ends(&self, named: [Option<u32>; 3]) -> Vec<u32> {
        let mut ends: Vec<u32> = named.into_iter().flatten().collect();
        let ending = |(_, text, kind): &(u32, &str, Kind)| *kind == Kind::Control && ENDS.contains(text);
        let found: Vec<(u32, &str)> = self.used().filter(ending).map(|(id, text, _)| (id, text)).collect();
        let has = |text: &str| found.iter().any(|(_, other)| *other == text);
        // Where these two are there, a reply goes on after `<|end|>` in another channel.
        let goes_on = has("<|return|>") && has("<|call|>");
        ends.extend(found.iter().filter(|(_, text)| !(goes_on && *text == "<|end|>")).map(|(id, _)| *id));
        let mut seen = std::collections::BTreeSet::new();
        ends.retain(|id| seen.insert(*id));
        ends.truncate(MAX_EOS_IDS);
        ends
    }

    /// The `tokenizer.json`.
    fn json(&self, parts: Parts, special: [Option<u32>; 2]) -> Result<Vec<u8>, CheckpointError> {
        let added: Vec<Json> = self
            .used()
            .filter_map(|(id, text, kind)| {
                let special = special.contains(&Some(id)) || matches!(kind, Kind::Control | Kind::Unknown);
                (special || kind == Kind::UserDefined).then(|| {
                    json!({
                        "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": special,
                    })
                })
            })
            .collect();
        let mut document = Map::new();
        for (key, value) in [
            ("version", json!("1.0")),
            ("truncation", Json::Null),
            ("padding", Json::Null),
            ("added_tokens", Json::Array(added)),
            ("normalizer", parts.normalizer),
            ("pre_tokenizer", parts.pre_tokenizer),
            ("post_processor", Json::Null),
            ("decoder", parts.decoder),
            ("model", parts.model),
        ] {
            document.insert(key.to_owned(), value);
        }
        serde_json::to_vec(&document).map_err(|error| self.meta.problem(TOKENS, error.to_string()))
    }

    /// The ids of texts, as a `tokenizer.json` has them.
    fn vocab(&self) -> Map<String, Json> {
        self.used().map(|(id, text, _)| (text.to_owned(), json!(id))).collect()
    }
}

impl Kind {
    fn of(number: f64) -> Self {
        match number as i64 {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

fn templates(meta: Meta<'_>) -> Result<ChatTemplates, CheckpointError> {
    let bounded = |key: &str| -> Result<Option<String>, CheckpointError> {
        let Some(text) = meta.text(key)? else { return Ok(None) };
        match u64::try_from(text.len()).is_ok_and(|bytes| bytes <= MAX_CHAT_TEMPLATE_BYTES) {
            true => Ok(Some(text.to_owned())),
            false => {
                let problem = format!("is {} bytes long, the most is {MAX_CHAT_TEMPLATE_BYTES}", text.len());
                Err(meta.problem(key, problem))
            }
        }
    };
    let mut templates = ChatTemplates { default: bounded(TEMPLATE)?, ..ChatTemplates::default() };
    for key in meta.keys() {
        let Some(name) = key.strip_prefix(TEMPLATE).and_then(|rest| rest.strip_prefix('.')) else { continue };
        if templates.named.len() == MAX_CHAT_TEMPLATES {
            let problem = format!("there are more than {MAX_CHAT_TEMPLATES} chat templates");
            return Err(meta.problem(key, problem));
        }
        if let Some(text) = bounded(key)? {
            templates.named.insert(name.to_owned(), text);
        }
    }
    Ok(templates)
}
