//! Our own encoder for byte-pair vocabularies of the two usual kinds. Unlike the library, it uses no regular
//! expressions, keeps no copy of the text with the origin of every character, allocates nothing per word and keeps
//! nothing between texts. It gives the library's ids; a tokenizer that it does not support has no such encoder. Must
//! not know added tokens or trust.

mod bytes;
mod chars;
mod marks;
mod merges;
mod recipe;
mod scan;
mod words;

use tokenizers::Tokenizer as Inner;
use unicode_normalization_alignments::UnicodeNormalization;

use bytes::Bytes;
use marks::Marks;
use merges::Scratch;
use recipe::{MARK, Model, Prefix, Recipe};

/// Texts up to this length, in bytes, take little memory even after normalization.
const LONG_TEXT_BYTES: usize = 4 << 10;
/// Texts must be shorter than this, in bytes, because positions are counted in 32 bits.
const MAX_TEXT_BYTES: usize = 1 << 31;

/// The maximum factor by which composing can shorten a text, in bytes of UTF-8. The worst character is `ΐ`, written as
/// an iota adscript and two accents: 3.5 times.
const COMPOSING_SHORTENS_BY: usize = 4;

/// The encoder of one tokenizer.
#[derive(Debug)]
pub(crate) struct Bpe {
    kind: Kind,
    writes_markup: bool,
    most_bytes_per_token: usize,
}

#[derive(Debug)]
enum Kind {
    Bytes { bytes: Box<Bytes>, composes: bool },
    Marks { marks: Box<Marks>, prefix: Prefix },
}

/// Buffers that are reused while encoding one text.
#[derive(Debug)]
pub(crate) struct Workspace {
    scratch: Scratch,
    text: String,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { scratch: Scratch::new(), text: String::new() }
    }
}

impl Bpe {
    /// Returns the encoder for this tokenizer, whose file is `tokenizer_json`. `None` if the tokenizer is not
    /// supported.
    pub(crate) fn new(inner: &Inner, tokenizer_json: &[u8], is_markup: impl Fn(u32) -> bool) -> Option<Self> {
        let recipe = Recipe::of(inner)?;
        let model = Model::of(inner, tokenizer_json)?;
        let made = model.merges.iter().map(|(_, _, made)| *made);
        let longest = |bytes: fn(&str) -> usize| model.vocabulary.keys().map(|word| bytes(word)).max();
        let (kind, writes_markup, most_bytes_per_token) = match recipe {
            Recipe::Bytes { pattern, composes } => {
                let bytes = Box::new(Bytes::new(&model, pattern)?);
                let words = model.vocabulary.values().copied().filter(|_| model.ignores_merges);
                let writes_markup = bytes.symbols().chain(made).chain(words).any(is_markup);
                // A character of the byte alphabet is one byte of the text.
                let most = longest(|word| word.chars().count())?;
                let most = if composes { most.saturating_mul(COMPOSING_SHORTENS_BY) } else { most };
                (Kind::Bytes { bytes, composes }, writes_markup, most)
            }
            Recipe::Marks { prefix, splits } => {
                if model.ignores_merges || !model.falls_back {
                    return None;
                }
                let marks = Box::new(Marks::new(&model, splits)?);
                let writes_markup = marks.symbols(&model).chain(made).any(is_markup);
                // Every character of a token is one of the text. A mark is itself or a space, and the name of a byte is
                // one byte.
                (Kind::Marks { marks, prefix }, writes_markup, longest(str::len)?)
            }
        };
        Some(Self { kind, writes_markup, most_bytes_per_token })
    }

    /// The maximum number of bytes of text per token.
    pub(crate) fn most_bytes_per_token(&self) -> usize {
        self.most_bytes_per_token
    }

    /// Whether `text` is short enough to be encoded here.
    pub(crate) fn takes(&self, text: &str) -> bool {
        text.len() < MAX_TEXT_BYTES
    }

    /// Whether `text` is long and the normalizer may make it longer.
    pub(crate) fn lengthens(&self, text: &str) -> bool {
        let composes = matches!(self.kind, Kind::Bytes { composes: true, .. });
        composes && text.len() > LONG_TEXT_BYTES && !chars::is_composed(text)
    }

    /// Whether the model can write markup. If so, its output for untrusted text must be checked.
    pub(crate) fn writes_markup(&self) -> bool {
        self.writes_markup
    }

    /// Appends the ids of `piece`, the text between two added tokens. `first` is `true` if the piece begins the text.
    pub(crate) fn encode(&self, piece: &str, first: bool, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        if piece.is_empty() {
            return;
        }
        let Workspace { scratch, text } = workspace;
        match &self.kind {
            Kind::Bytes { bytes, composes } => {
                if !composes || chars::is_composed(piece) {
                    return bytes.encode(piece, scratch, ids);
                }
                text.clear();
                text.extend(piece.nfc().map(|(c, _)| c));
                bytes.encode(text, scratch, ids);
            }
            Kind::Marks { marks, prefix } => {
                let marked = || piece.starts_with([' ', MARK]);
                let prefixed = match prefix {
                    Prefix::Never => false,
                    Prefix::Always => true,
                    Prefix::Unmarked => !marked(),
                    Prefix::UnmarkedFirst => first && !marked(),
                };
                if !prefixed {
                    return marks.encode(piece, scratch, ids);
                }
                text.clear();
                text.push(' ');
                text.push_str(piece);
                marks.encode(text, scratch, ids);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use headrace_checkpoint::TokenizerConfig;
    use serde_json::{Value, json};

    use crate::Tokenizer;

    const LLAMA3: &[u8] = include_bytes!("../tests/data/bytebpe-llama3/tokenizer.json");
    const LLAMA2: &[u8] = include_bytes!("../tests/data/spbpe-llama2/tokenizer.json");
    const TEXT: &str = "The 12 quick\n\nfoxes' don't  \tjump… né 你好 <s> ▁x";

    /// Whether our own encoder supports `file` after `change`. The ids must equal the library's in both cases.
    fn stands_in(file: &[u8], change: impl Fn(&mut Value)) -> bool {
        let mut value: Value = serde_json::from_slice(file).unwrap();
        change(&mut value);
        let file = value.to_string();
        let ours = Tokenizer::new(file.as_bytes(), &TokenizerConfig::default()).unwrap();
        assert_eq!(ours.encode(TEXT, false).unwrap(), ours.inner.encode_fast(TEXT, false).unwrap().get_ids());
        ours.bpe.is_some()
    }

    fn set(path: &'static str, to: Value) -> impl Fn(&mut Value) {
        move |file| *file.pointer_mut(path).unwrap() = to.clone()
    }

    #[test]
    fn what_is_not_understood_is_left_to_the_library() {
        let rows: [(&[u8], &'static str, Value, bool); 15] = [
            (LLAMA3, "/normalizer", json!({"type": "NFC"}), true),
            (LLAMA3, "/normalizer", json!({"type": "NFKC"}), false),
            (LLAMA3, "/normalizer", json!({"type": "Lowercase"}), false),
            (LLAMA3, "/model/ignore_merges", json!(false), true),
            (LLAMA3, "/model/end_of_word_suffix", json!("</w>"), false),
            (LLAMA3, "/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(r"\w+|\W+"), false),
            (LLAMA3, "/pre_tokenizer/pretokenizers/0/behavior", json!("MergedWithNext"), false),
            (LLAMA3, "/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true), false),
            (LLAMA3, "/pre_tokenizer/pretokenizers/1/use_regex", json!(true), false),
            (LLAMA2, "/normalizer/normalizers/0/prepend", json!("_"), false),
            (LLAMA2, "/normalizer/normalizers/1/content", json!("_"), false),
            (LLAMA2, "/normalizer/normalizers/1/pattern", json!({"Regex": " "}), false),
            (LLAMA2, "/pre_tokenizer", json!({"type": "Whitespace"}), false),
            (LLAMA2, "/model/byte_fallback", json!(false), false),
            (LLAMA2, "/model/ignore_merges", json!(true), false),
        ];
        assert!(stands_in(LLAMA3, |_| ()) && stands_in(LLAMA2, |_| ()));
        for (file, path, to, expected) in rows {
            assert_eq!(stands_in(file, set(path, to.clone())), expected, "{path} = {to}");
        }
    }

    #[test]
    fn incomplete_vocabularies_are_left_to_the_library() {
        let without = |token: &'static str| {
            move |file: &mut Value| {
                let vocabulary = file["model"]["vocab"].as_object_mut().unwrap();
                vocabulary.remove(token).unwrap();
            }
        };
        // A byte that occurs in no text, so that no merge uses it.
        assert!(!stands_in(LLAMA3, without("ÿ")));
        assert!(!stands_in(LLAMA2, without("<0x7F>")));
        // Merges of byte tokens.
        let merges_bytes = |file: &mut Value| {
            file["model"]["vocab"]["<0x41><0x42>"] = json!(5_000);
            file["model"]["merges"].as_array_mut().unwrap().push(json!(["<0x41>", "<0x42>"]));
        };
        assert!(!stands_in(LLAMA2, merges_bytes));
        // Tokens that are matched after normalization.
        assert!(!stands_in(LLAMA2, set("/added_tokens/4/normalized", json!(true))));
    }

    /// A text and its composition have the same canonical parts, so it is enough to check every character by itself.
    #[test]
    fn composing_shortens_by_no_more_than_is_said() {
        use std::collections::HashMap;

        use unicode_normalization_alignments::UnicodeNormalization;

        let parts = |c: char| std::iter::once(c).nfd().map(|(part, _)| part).collect::<Vec<_>>();
        // The longest way to write each part by itself.
        let mut longest: HashMap<char, usize> = HashMap::new();
        for c in '\0'..=char::MAX {
            if let [part] = parts(c)[..] {
                let bytes = longest.entry(part).or_default();
                *bytes = (*bytes).max(c.len_utf8());
            }
        }
        for c in '\0'..=char::MAX {
            let bytes: usize = parts(c).iter().map(|part| longest[part]).sum();
            assert!(c.len_utf8() <= bytes, "{c:?} is no longer than its parts");
            assert!(bytes <= super::COMPOSING_SHORTENS_BY * c.len_utf8(), "{c:?} is made of {bytes} bytes");
        }
    }

    #[test]
    fn merges_may_be_written_either_way() {
        let rewrite = |file: &mut Value| {
            for merge in file["model"]["merges"].as_array_mut().unwrap() {
                *merge = match &*merge {
                    Value::String(pair) => json!(pair.split(' ').collect::<Vec<_>>()),
                    pair => json!(format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())),
                };
            }
        };
        assert!(stands_in(LLAMA3, rewrite) && stands_in(LLAMA2, rewrite));
    }
}
