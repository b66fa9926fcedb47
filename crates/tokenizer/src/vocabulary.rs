//! The bytes of each token id, and the rule for joining tokens. Both are read once from the tokenizer's decoder, so
//! that decoding a token is a table look-up. Must not know streams.

use serde_json::Value;
use tokenizers::Tokenizer as Inner;

use crate::error::TokenizerError;

/// The maximum number of ids of a vocabulary: four times the largest published one.
const MAX_VOCABULARY_IDS: usize = 4_000_000;

/// The rule for turning tokens into text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joining {
    /// Every token is bytes. The text is their UTF-8, with broken sequences replaced (GPT-2's scheme).
    Bytes,
    /// Tokens are text, except `<0x0A>` and the like, which are bytes. A run of byte tokens is text if it is valid
    /// UTF-8 as a whole; otherwise each byte becomes a replacement character. Up to `strip` spaces are cut from the
    /// very beginning.
    ByteFallback { strip: usize },
    /// Tokens are text. The first token of a text differs: it has no leading space.
    FirstDiffers,
    /// Any other rule: ids are decoded through a window of recent ids.
    Window,
}

/// The properties of each id.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pub(crate) joining: Joining,
    bytes: Vec<u8>,
    /// `ends[id]` is the end of the bytes of `id`. They begin at the end of the previous id's bytes.
    ends: Vec<usize>,
    flags: Vec<u8>,
    /// The bytes of each short token as a number, and their count. Both are zero for other tokens.
    words: Vec<u64>,
    lengths: Vec<u8>,
}

const HAS_TEXT: u8 = 1;
/// One byte of a character, which is not text by itself.
const BYTE: u8 = 2;
const SPECIAL: u8 = 4;
const MARKUP: u8 = 8;
/// A special token that decoded text shows.
const SHOWN: u8 = 16;

impl Vocabulary {
    pub(crate) fn new(inner: &Inner) -> Result<Self, TokenizerError> {
        let decoder = match inner.get_decoder() {
            Some(decoder) => serde_json::to_value(decoder).map_err(TokenizerError::load)?,
            None => Value::Null,
        };
        let ids = inner.get_vocab(true);
        let count = ids.values().max().map_or(0, |id| *id as usize + 1);
        if count > MAX_VOCABULARY_IDS {
            return Err(TokenizerError::load(format_args!(
                "its largest id is {}, the limit is {}",
                count - 1,
                MAX_VOCABULARY_IDS - 1
            )));
        }
        let writer = Writer::new(inner, &decoder);
        let added = inner.get_added_tokens_decoder();
        let mut vocabulary = Self {
            joining: writer.joining,
            bytes: Vec::with_capacity(count.saturating_mul(6)),
            ends: Vec::with_capacity(count),
            flags: vec![0; count],
            words: Vec::new(),
            lengths: Vec::new(),
        };
        for (id, flags) in (0u32..).zip(vocabulary.flags.iter_mut()) {
            if let Some(token) = inner.id_to_token(id) {
                *flags |= HAS_TEXT | writer.write(inner, id, &token, &mut vocabulary.bytes);
                // `tokenizers` decides by the text: a token that is spelt like a special one is skipped like that one.
                if inner.get_added_vocabulary().is_special_token(&token) {
                    *flags |= SPECIAL;
                }
            }
            if added.get(&id).is_some_and(crate::added::is_markup) {
                *flags |= MARKUP;
            }
            vocabulary.ends.push(vocabulary.bytes.len());
        }
        vocabulary.note_short_texts();
        Ok(vocabulary)
    }

    /// One past the largest id.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of `id`, or `None` for an id without text.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        if !self.has(id, HAS_TEXT) {
            return None;
        }
        let id = id as usize;
        let start = id.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(start..*self.ends.get(id)?)
    }

    /// Returns the bytes of a token as a number, with the first byte lowest, and their count. `None` if the token is
    /// markup, has no bytes, or has more than eight.
    pub(crate) fn short_text(&self, id: u32) -> Option<(u64, usize)> {
        let length = self.lengths.get(id as usize).copied().filter(|length| *length > 0)?;
        Some((self.words.get(id as usize).copied()?, usize::from(length)))
    }

    /// The number of bytes that [`Self::short_text`] returns, or 0 if it returns `None`.
    pub(crate) fn short_length(&self, id: u32) -> usize {
        self.lengths.get(id as usize).copied().map_or(0, usize::from)
    }

    /// Fills the tables of [`Self::short_text`], which is called for every token of a prompt.
    fn note_short_texts(&mut self) {
        let count = u32::try_from(self.flags.len()).unwrap_or(u32::MAX);
        let short = |id| match self.bytes(id) {
            Some(bytes) if !self.is_markup(id) && bytes.len() <= 8 => {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                (u64::from_le_bytes(word), u8::try_from(bytes.len()).unwrap_or(0))
            }
            _ => (0, 0),
        };
        (self.words, self.lengths) = (0..count).map(short).unzip();
    }

    pub(crate) fn is_byte(&self, id: u32) -> bool {
        self.has(id, BYTE)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.has(id, SPECIAL)
    }

    /// Whether the token is left out of text without special tokens.
    pub(crate) fn is_skipped(&self, id: u32) -> bool {
        self.is_special(id) && !self.has(id, SHOWN)
    }

    /// Makes decoded text show the token although it is special.
    pub(crate) fn show(&mut self, id: u32) {
        if let Some(flags) = self.flags.get_mut(id as usize) {
            *flags |= SHOWN;
        }
    }

    pub(crate) fn is_markup(&self, id: u32) -> bool {
        self.has(id, MARKUP)
    }

    fn has(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & flag != 0)
    }
}

/// Computes the bytes of each token.
struct Writer {
    joining: Joining,
    /// Replacements that apply to every token, such as `▁` by a space.
    replace: Vec<(String, String)>,
    /// An id and its text. Other ids are decoded after this id, which gives their bytes in the middle of a text.
    anchor: Option<(u32, String)>,
}

impl Writer {
    fn new(inner: &Inner, decoder: &Value) -> Self {
        let mut replace = Vec::new();
        let joining = joining(decoder, &mut replace);
        let anchor = (joining == Joining::FirstDiffers)
            .then(|| {
                (0..u32::MAX).map_while(|id| inner.id_to_token(id).map(|_| id)).find_map(|id| {
                    Some((id, inner.decode(&[id], false).ok()?)).filter(|(_, t)| !t.is_empty())
                })
            })
            .flatten();
        Self { joining, replace, anchor }
    }

    /// Appends the bytes of `token` in the middle of a text. Returns the flags of the token.
    fn write(&self, inner: &Inner, id: u32, token: &str, out: &mut Vec<u8>) -> u8 {
        match self.joining {
            Joining::Bytes => {
                let start = out.len();
                for c in token.chars() {
                    match byte_of(c) {
                        Some(byte) => out.push(byte),
                        None => {
                            // Not written in the byte alphabet, so it is an added token, which is meant literally.
                            out.truncate(start);
                            out.extend_from_slice(token.as_bytes());
                            return 0;
                        }
                    }
                }
                0
            }
            Joining::ByteFallback { .. } => {
                let token = self.replace.iter().fold(token.to_owned(), |t, (from, to)| t.replace(from, to));
                if let Some(byte) = fallback_byte(&token) {
                    out.push(byte);
                    return BYTE;
                }
                out.extend_from_slice(token.as_bytes());
                0
            }
            Joining::FirstDiffers => {
                let text = self.anchor.as_ref().and_then(|(anchor, before)| {
                    inner.decode(&[*anchor, id], false).ok()?.strip_prefix(before).map(str::to_owned)
                });
                out.extend_from_slice(text.as_deref().unwrap_or(token).as_bytes());
                0
            }
            Joining::Window => {
                out.extend_from_slice(token.as_bytes());
                0
            }
        }
    }
}

/// Recognises the decoders whose tokens can be written one by one.
fn joining(decoder: &Value, replace: &mut Vec<(String, String)>) -> Joining {
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).unwrap_or("").to_owned();
    match kind(decoder).as_str() {
        "ByteLevel" => return Joining::Bytes,
        "Metaspace" | "WordPiece" => return Joining::FirstDiffers,
        "Sequence" => {}
        _ => return Joining::Window,
    }
    let steps: Vec<&Value> = decoder
        .get("decoders")
        .and_then(Value::as_array)
        .map(|steps| steps.iter().collect())
        .unwrap_or_default();
    let kinds: Vec<String> = steps.iter().map(|step| kind(step)).collect();
    match kinds.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["ByteLevel"] => return Joining::Bytes,
        ["Replace", "ByteFallback", "Fuse"] | ["Replace", "ByteFallback", "Fuse", "Strip"] => {}
        _ => return Joining::Window,
    }
    let text = |step: Option<&&Value>, field: &str| {
        step.and_then(|step| step.get(field)).and_then(Value::as_str).map(str::to_owned)
    };
    let pattern = steps
        .first()
        .and_then(|step| step.get("pattern")?.get("String")?.as_str())
        .filter(|pattern| !pattern.is_empty());
    let (Some(pattern), Some(content)) = (pattern, text(steps.first(), "content")) else {
        return Joining::Window;
    };
    replace.push((pattern.to_owned(), content));
    let Some(strip) = steps.get(3) else { return Joining::ByteFallback { strip: 0 } };
    let number = |field: &str| strip.get(field).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    match (strip.get("content").and_then(Value::as_str), number("start"), number("stop")) {
        (Some(" "), Some(start), Some(0)) => Joining::ByteFallback { strip: start },
        _ => Joining::Window,
    }
}

/// Returns the byte of `<0x0A>` and the like, by the rule of `tokenizers`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns the byte for a character of GPT-2's byte alphabet. Printable Latin-1 characters are their own bytes. The 68
/// other bytes are the characters from U+0100 on, in ascending order.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}
