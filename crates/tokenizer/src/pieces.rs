//! Finds the positions at which a text may be cut so that the ids of its pieces are the ids of the whole. The library
//! needs several hundred bytes of memory per byte of text that it works on. Pieces bound that memory, and encoding
//! stops early for a text with too many tokens. Knows no model.

use serde_json::Value;
use tokenizers::Tokenizer as Inner;
use unicode_normalization_alignments::char::is_combining_mark;

use crate::added::AddedTokens;

/// The maximum size of a piece, in bytes. A piece is longer only if the text cannot be cut.
pub(crate) const PIECE_BYTES: usize = 4 << 10;

/// The positions at which a tokenizer's texts may be cut: between two characters that neither its normalizer nor its
/// pre-tokenizer joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cuts {
    /// Every punctuation character is a word of its own.
    punctuation: bool,
    /// Every Chinese ideograph is a word of its own.
    ideographs: bool,
}

impl Cuts {
    /// Returns the cuts of a tokenizer. `None` if one of its parts is unknown, or if an added token could lie across a
    /// cut.
    pub(crate) fn of(inner: &Inner, added: &AddedTokens) -> Option<Self> {
        // Untrusted text can become an added token that is not markup. Such a token could lie across a cut.
        if !added.raw.all_markup() || !added.normalized.is_empty() {
            return None;
        }
        let json = |part: Option<serde_json::Result<Value>>| part.transpose().ok();
        let normalizer = json(inner.get_normalizer().map(serde_json::to_value))?.unwrap_or_default();
        let pre_tokenizer = json(inner.get_pre_tokenizer().map(serde_json::to_value))??;
        let steps = steps(&pre_tokenizer, "pretokenizers");
        let kinds: Vec<&str> = steps.iter().copied().map(kind).collect();
        let splits = steps.last().is_none_or(|last| kind(last) != "Metaspace" || last["split"] == true);
        let is_bert = match kinds.as_slice() {
            ["BertPreTokenizer"] => true,
            ["WhitespaceSplit"] | ["Metaspace"] | ["WhitespaceSplit", "Metaspace"] if splits => false,
            _ => return None,
        };
        let normalizers = self::steps(&normalizer, "normalizers");
        let ideographs = normalizers.iter().any(|step| step["handle_chinese_chars"] == true);
        normalizers
            .iter()
            .all(|step| works_by_character(step))
            .then_some(Self { punctuation: is_bert, ideographs: is_bert && ideographs })
    }

    /// The length in bytes of the first piece of a text: at most `most` if the text can be cut.
    fn first_piece(self, text: &str, most: usize) -> usize {
        if text.len() <= most {
            return text.len();
        }
        let (mut last, mut before) = (None, None);
        let mut characters = text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            let behind = characters.peek().map(|(_, behind)| *behind);
            let is_cut = before.is_some_and(|before| self.cuts(before, character, behind));
            if at > most && (is_cut || last.is_some()) {
                return last.unwrap_or(at);
            }
            if is_cut {
                last = Some(at);
            }
            before = Some(character);
        }
        text.len()
    }

    /// The pieces of a text, in order. Each has at most `most` bytes if the text can be cut.
    pub(crate) fn pieces(self, mut text: &str, most: usize) -> impl Iterator<Item = &str> {
        std::iter::from_fn(move || {
            let (piece, rest) = text.split_at_checked(self.first_piece(text, most))?;
            text = rest;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// The length in bytes of the longest of these pieces.
    pub(crate) fn longest_piece(self, text: &str, most: usize) -> usize {
        self.pieces(text, most).map(str::len).max().unwrap_or(0)
    }

    /// Whether a piece may end before `character`.
    fn cuts(self, before: char, character: char, behind: Option<char>) -> bool {
        if character == ' ' {
            // A cut comes before a single blank. A run of blanks stays whole, and the blank stays with the text after
            // it.
            return ends_a_word(before) && behind != Some(' ');
        }
        let stands_alone = |c: char| c.is_ascii_graphic() || (self.ideographs && is_ideograph(c));
        let is_word =
            |c: char| (self.punctuation && c.is_ascii_punctuation()) || (self.ideographs && is_ideograph(c));
        stands_alone(before) && stands_alone(character) && (is_word(before) || is_word(character))
    }
}

/// Whether no normalizer joins `character` with a blank after it. The character must not be a mark or a blank. It must
/// not be a letter that Unicode puts into one grapheme with the next character (`Prepend`, UAX #29).
fn ends_a_word(character: char) -> bool {
    const PREPENDED_LETTER: char = '\u{d4e}';
    const FIRST_RARE: char = '\u{10000}';
    let is_letter = character.is_alphanumeric() && character < FIRST_RARE && character != PREPENDED_LETTER;
    character.is_ascii_graphic() || (is_letter && !is_combining_mark(character))
}

/// The two blocks of common ideographs. The library knows others too, but they are rare.
fn is_ideograph(character: char) -> bool {
    matches!(character, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}')
}

/// Returns the steps of a tokenizer part: none, one, or the flattened steps of a sequence.
fn steps<'v>(part: &'v Value, field: &str) -> Vec<&'v Value> {
    match (kind(part), part.get(field).and_then(Value::as_array)) {
        ("Sequence", Some(steps)) => steps.iter().flat_map(|step| self::steps(step, field)).collect(),
        ("", _) => Vec::new(),
        _ => vec![part],
    }
}

/// Whether a normalizer changes nothing across a cut. At a cut, it must not join the characters on the two sides.
fn works_by_character(normalizer: &Value) -> bool {
    match kind(normalizer) {
        "BertNormalizer" | "Lowercase" | "StripAccents" | "NFC" | "NFD" | "NFKC" | "NFKD" | "Precompiled" => {
            true
        }
        // This replacement makes one blank of a run of blanks. A cut comes only before a single blank.
        "Replace" => normalizer["pattern"]["Regex"] == " {2,}" && normalizer["content"] == " ",
        _ => false,
    }
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("")
}
