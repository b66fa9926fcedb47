//! Reads a tokenizer's parts, and decides whether and how this encoder can replace the library. A tokenizer that is not
//! understood in every detail is left to the library. Must not know how a word is merged.

use std::collections::HashMap;
use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{ModelWrapper, Tokenizer as Inner};

use super::scan::Pattern;

/// SentencePiece's mark for a space.
pub(super) const MARK: char = '\u{2581}';

/// The steps before the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recipe {
    /// The byte alphabet. Text may be composed, is split by a pattern, and every byte is a symbol.
    Bytes { pattern: Pattern, composes: bool },
    /// SentencePiece's way. Spaces become marks, every character is a symbol, and unknown characters become their
    /// bytes.
    Marks {
        prefix: Prefix,
        /// Whether every mark begins a word.
        splits: bool,
    },
}

/// The rule for adding a mark before a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    /// Adds no mark.
    Never,
    /// Adds a mark before every piece between added tokens.
    Always,
    /// Adds a mark before every piece that does not begin with a space or a mark.
    Unmarked,
    /// Like [`Prefix::Unmarked`], but only before the piece that begins the text.
    UnmarkedFirst,
}

/// A model that is byte-pair encoding and nothing else.
#[derive(Debug)]
pub(super) struct Model {
    /// Maps spelling to id. No two spellings share an id.
    pub(super) vocabulary: HashMap<String, u32>,
    /// Left id, right id and product, in the order of ranks.
    pub(super) merges: Vec<(u32, u32, u32)>,
    /// Whether a word that is in the vocabulary is always that token, regardless of its merges.
    pub(super) ignores_merges: bool,
    /// Whether unknown characters become the tokens `<0x00>` … `<0xFF>`.
    pub(super) falls_back: bool,
}

impl Recipe {
    /// Returns the recipe of this tokenizer, or `None` if it is not a known one.
    pub(super) fn of(inner: &Inner) -> Option<Self> {
        let normalizer = json(inner.get_normalizer())?;
        let pre_tokenizer = json(inner.get_pre_tokenizer())?;
        bytes(&normalizer, &pre_tokenizer).or_else(|| marks(&normalizer, &pre_tokenizer))
    }
}

/// Converts a tokenizer part to JSON; a missing part becomes null.
fn json<T: Serialize>(part: Option<&T>) -> Option<Value> {
    part.map_or(Some(Value::Null), |part| serde_json::to_value(part).ok())
}

fn bytes(normalizer: &Value, pre_tokenizer: &Value) -> Option<Recipe> {
    let composes = match kind(normalizer) {
        "" if normalizer.is_null() => false,
        "NFC" => true,
        _ => return None,
    };
    let is_alphabet = |step: &Value, splits: bool| {
        kind(step) == "ByteLevel"
            && step.get("add_prefix_space") == Some(&Value::Bool(false))
            && step.get("use_regex").and_then(Value::as_bool).unwrap_or(true) == splits
    };
    let pattern = match steps(pre_tokenizer, "pretokenizers") {
        [alphabet] if is_alphabet(alphabet, true) => Pattern::Gpt2,
        [split, alphabet] if is_alphabet(alphabet, false) => {
            if kind(split) != "Split"
                || text(split, "behavior") != "Isolated"
                || split.get("invert")? != false
            {
                return None;
            }
            Pattern::of(split.get("pattern")?.get("Regex")?.as_str()?)?
        }
        _ => return None,
    };
    Some(Recipe::Bytes { pattern, composes })
}

fn marks(normalizer: &Value, pre_tokenizer: &Value) -> Option<Recipe> {
    let mark = MARK.to_string();
    let replaces = |step: &Value| {
        kind(step) == "Replace"
            && step.get("pattern").is_some_and(|pattern| text(pattern, "String") == " ")
            && text(step, "content") == mark
    };
    if normalizer.is_null() {
        if kind(pre_tokenizer) != "Metaspace" || text(pre_tokenizer, "replacement") != mark {
            return None;
        }
        let prefix = match text(pre_tokenizer, "prepend_scheme") {
            "always" => Prefix::Unmarked,
            "first" => Prefix::UnmarkedFirst,
            "never" => Prefix::Never,
            _ => return None,
        };
        return Some(Recipe::Marks { prefix, splits: pre_tokenizer.get("split")?.as_bool()? });
    }
    let prefix = match steps(normalizer, "normalizers") {
        [replace] if replaces(replace) => Prefix::Never,
        [prepend, replace]
            if kind(prepend) == "Prepend" && text(prepend, "prepend") == mark && replaces(replace) =>
        {
            Prefix::Always
        }
        _ => return None,
    };
    // Gemma's pre-tokenizer splits at spaces, but its normalizer has already replaced them all.
    let idle = pre_tokenizer.is_null()
        || (kind(pre_tokenizer) == "Split"
            && pre_tokenizer.get("pattern").is_some_and(|pattern| text(pattern, "String") == " ")
            && pre_tokenizer.get("invert") == Some(&Value::Bool(false)));
    idle.then_some(Recipe::Marks { prefix, splits: false })
}

/// Returns the steps of a sequence. A part that is not a sequence is its own only step.
fn steps<'a>(part: &'a Value, field: &str) -> &'a [Value] {
    match part.get(field).and_then(Value::as_array) {
        Some(steps) if kind(part) == "Sequence" => steps,
        _ => std::slice::from_ref(part),
    }
}

fn kind(part: &Value) -> &str {
    text(part, "type")
}

fn text<'a>(part: &'a Value, field: &str) -> &'a str {
    part.get(field).and_then(Value::as_str).unwrap_or("")
}

impl Model {
    /// Returns the model of this tokenizer, whose file is `tokenizer_json`. `None` if it is not plain byte-pair
    /// encoding.
    pub(super) fn of(inner: &Inner, tokenizer_json: &[u8]) -> Option<Self> {
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        if !is_plain(model) {
            return None;
        }
        let file: File = serde_json::from_slice(tokenizer_json).ok()?;
        let vocabulary = inner.get_vocab(false);
        let mut ids: Vec<u32> = vocabulary.values().copied().collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair.first() == pair.last()) {
            return None;
        }
        let mut product = String::new();
        let merge = |Merge(left, right)| {
            product.clear();
            product.push_str(&left);
            product.push_str(&right);
            Some((*vocabulary.get(&left)?, *vocabulary.get(&right)?, *vocabulary.get(&product)?))
        };
        let merges = file.model.merges.into_iter().map(merge).collect::<Option<Vec<_>>>()?;
        Some(Self {
            vocabulary,
            merges,
            ignores_merges: model.ignore_merges,
            falls_back: model.byte_fallback,
        })
    }
}

fn is_plain(model: &BPE) -> bool {
    let none = |affix: &Option<String>| affix.as_deref().unwrap_or("").is_empty();
    model.dropout.unwrap_or(0.0) == 0.0
        && none(&model.continuing_subword_prefix)
        && none(&model.end_of_word_suffix)
}

/// The part of `tokenizer.json` that lists the merges.
#[derive(Deserialize)]
struct File {
    model: FileModel,
}

#[derive(Deserialize)]
struct FileModel {
    merges: Vec<Merge>,
}

/// A pair, written as `"left right"` or as `["left", "right"]`.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pair of tokens")
            }

            fn visit_str<E: de::Error>(self, pair: &str) -> Result<Merge, E> {
                match pair.split_once(' ') {
                    // The library takes such a line for a comment.
                    _ if pair.starts_with("#version") => Err(E::custom("a line of a merges file")),
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(left.to_owned(), right.to_owned()))
                    }
                    _ => Err(E::custom("not a pair")),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                let mut side =
                    || pair.next_element::<String>()?.ok_or_else(|| de::Error::custom("not a pair"));
                let merge = Merge(side()?, side()?);
                match pair.next_element::<de::IgnoredAny>()? {
                    None => Ok(merge),
                    Some(_) => Err(de::Error::custom("not a pair")),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}
