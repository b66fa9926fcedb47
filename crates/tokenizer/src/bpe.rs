//! An encoder of our own for byte-pair vocabularies of the two usual kinds, beside the library: no regular
//! expressions, no copy of the text with every character's origin, no allocation for each word, nothing kept from
//! one text to the next. Gives the library's ids, or is not there. Must not know added tokens or trust.

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

/// Shorter texts take little memory, whatever they become.
const LONG_TEXT_BYTES: usize = 4 << 10;
/// Longest text that is taken, in bytes: places in it are counted in 32 bits.
const MAX_TEXT_BYTES: usize = 1 << 31;

/// Composing makes text at most so many times shorter, in bytes of UTF-8 (`ΐ`, of `ι` as an iota adscript and two accents:
/// 3.5 times).
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

/// What encoding one text takes.
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
    /// The encoder for this tokenizer, whose file is `tokenizer_json`, if there is one.
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
                // A character of the byte alphabet is a byte of the text.
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
                // Every character stands for one of the text, a mark for itself or a space, a byte's name for a byte.
                (Kind::Marks { marks, prefix }, writes_markup, longest(str::len)?)
            }
        };
        Some(Self { kind, writes_markup, most_bytes_per_token })
    }

    /// The most bytes of text for which one token stands.
    pub(crate) fn most_bytes_per_token(&self) -> usize {
        self.most_bytes_per_token
    }

    /// Whether `text` may be encoded here.
    pub(crate) fn takes(&self, text: &str) -> bool {
        text.len() < MAX_TEXT_BYTES
    }

    /// Whether the normalizer may write a long `text` as a longer one.
    pub(crate) fn lengthens(&self, text: &str) -> bool {
        let composes = matches!(self.kind, Kind::Bytes { composes: true, .. });
        composes && text.len() > LONG_TEXT_BYTES && !chars::is_composed(text)
    }

    /// Whether the model has a way to write markup, so that what it makes of untrusted text must be looked through.
    pub(crate) fn writes_markup(&self) -> bool {
        self.writes_markup
    }

    /// Appends the ids of `piece`, which stands between added tokens; `first` if it begins the text.
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

    /// Whether there is an encoder of our own for `file` after `change`; the ids must be the library's either way.
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
        // A byte that no text has, so that no merge takes it.
        assert!(!stands_in(LLAMA3, without("ÿ")));
        assert!(!stands_in(LLAMA2, without("<0x7F>")));
        // Merges that take the token of a byte.
        let merges_bytes = |file: &mut Value| {
            file["model"]["vocab"]["<0x41><0x42>"] = json!(5_000);
            file["model"]["merges"].as_array_mut().unwrap().push(json!(["<0x41>", "<0x42>"]));
        };
        assert!(!stands_in(LLAMA2, merges_bytes));
        // Tokens that are matched after normalization.
        assert!(!stands_in(LLAMA2, set("/added_tokens/4/normalized", json!(true))));
    }

    /// What composes to a text has the text's canonical parts: it is enough to look at every character by itself.
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
