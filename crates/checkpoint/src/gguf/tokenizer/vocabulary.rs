//! The checked tokens of GGUF metadata, and the parts of a `tokenizer.json` that follow from them alone. Must not know
//! how text is split into tokens.

use serde_json::{Map, Value as Json, json};

use crate::error::{CheckpointError, shown};
use crate::gguf::meta::Meta;
use crate::gguf::value::Texts;
use crate::limits::{MAX_EOS_IDS, MAX_TOKEN_BYTES};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Control tokens that end a reply if they exist, in addition to those that the metadata names. Source: llama.cpp's
/// list.
const ENDS: &[&str] = &[
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
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// The kind of a token, as SentencePiece numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The checked vocabulary. Every token that is used has a unique text.
pub(super) struct Vocabulary<'a> {
    pub(super) meta: Meta<'a>,
    pub(super) tokens: &'a Texts,
    pub(super) kinds: Vec<Kind>,
}

/// The parts of a `tokenizer.json` that differ between the two kinds of tokenizer.
pub(super) struct Parts {
    pub(super) model: Json,
    pub(super) normalizer: Json,
    pub(super) pre_tokenizer: Json,
    pub(super) decoder: Json,
    /// Default if the metadata does not say whether BOS is added.
    pub(super) adds_bos: bool,
    pub(super) class: &'static str,
    /// A warning about what the metadata leaves open.
    pub(super) warning: Option<String>,
    /// Whether a normal token with this text is found in text before the model works, like an added token.
    pub(super) is_added: fn(&str) -> bool,
}

impl<'a> Vocabulary<'a> {
    pub(super) fn read(meta: Meta<'a>, vocab_size: usize) -> Result<Self, CheckpointError> {
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

    /// Makes control tokens of the tokens with these texts, if there are any.
    pub(super) fn make_control(&mut self, marks: &[&str]) {
        for (text, kind) in self.tokens.iter().zip(&mut self.kinds) {
            if *kind != Kind::Unused && marks.contains(&text) {
                *kind = Kind::Control;
            }
        }
    }

    /// Ids, texts and kinds of all tokens that can occur.
    pub(super) fn used(&self) -> impl Iterator<Item = (u32, &'a str, Kind)> {
        let all = (0u32..).zip(self.tokens.iter().zip(&self.kinds));
        all.filter(|(_, (text, kind))| **kind != Kind::Unused && !text.is_empty())
            .map(|(id, (text, kind))| (id, text, *kind))
    }

    pub(super) fn text(&self, id: u32) -> Option<&'a str> {
        self.tokens.get(usize::try_from(id).ok()?)
    }

    /// Reads the token id in `key`. `None` if it is not the id of a token.
    pub(super) fn id(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        let Some(value) = self.meta.get(key) else { return Ok(None) };
        let number = value.integer().ok_or_else(|| self.meta.wrong(key, value, "the id of a token"))?;
        // Some converters write -1 or 2^32-1 for "none". llama.cpp ignores every id that is not a token's.
        Ok(u32::try_from(number).ok().filter(|id| self.text(*id).is_some_and(|text| !text.is_empty())))
    }

    /// Returns the ids that end a reply.
    pub(super) fn ends(&self, named: [Option<u32>; 3]) -> Vec<u32> {
        let mut ends: Vec<u32> = named.into_iter().flatten().collect();
        let ending = |(_, text, kind): &(u32, &str, Kind)| *kind == Kind::Control && ENDS.contains(text);
        let found: Vec<(u32, &str)> = self.used().filter(ending).map(|(id, text, _)| (id, text)).collect();
        let has = |text: &str| found.iter().any(|(_, other)| *other == text);
        // If both of these tokens exist, a reply continues after `<|end|>` in another channel.
        let continues = has("<|return|>") && has("<|call|>");
        ends.extend(found.iter().filter(|(_, text)| !(continues && *text == "<|end|>")).map(|(id, _)| *id));
        let mut seen = std::collections::BTreeSet::new();
        ends.retain(|id| seen.insert(*id));
        ends.truncate(MAX_EOS_IDS);
        ends
    }

    /// Builds the `tokenizer.json`.
    pub(super) fn json(&self, parts: Parts, special: [Option<u32>; 2]) -> Result<Vec<u8>, CheckpointError> {
        let added: Vec<Json> = self
            .used()
            .filter_map(|(id, text, kind)| {
                let special = special.contains(&Some(id)) || matches!(kind, Kind::Control | Kind::Unknown);
                let is_added = kind == Kind::UserDefined || (kind == Kind::Normal && (parts.is_added)(text));
                (special || is_added).then(|| {
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

    /// Returns the map from text to id, as in a `tokenizer.json`.
    pub(super) fn vocab(&self) -> Map<String, Json> {
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
