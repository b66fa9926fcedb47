//! A short way through tokenizers of the most common kind (regex split, byte alphabet, BPE). It does not copy the text
//! with the origin of every character, and it uses one buffer for all words. It gives the same ids as the long way.
//! Must not know added tokens.

use serde_json::Value;
use tokenizers::Tokenizer as Inner;
use tokenizers::tokenizer::pattern::Pattern;
use tokenizers::utils::SysRegex;

use crate::vocabulary::byte_of;

type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// The regular expression of `ByteLevel` if it splits by itself (GPT-2).
const GPT2_SPLIT: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The first character that composition can change. Texts of lower characters are already in form C.
const FIRST_COMBINING: char = '\u{300}';

/// A pre-tokenizer of regular expressions and the byte alphabet.
#[derive(Debug)]
pub(crate) struct Direct {
    splits: Vec<SysRegex>,
    /// The character of the byte alphabet for each byte.
    alphabet: Vec<char>,
    /// Whether the text must be in normal form C first.
    composes: bool,
}

impl Direct {
    /// Returns the short way for this tokenizer. `None` if one of its parts does not fit.
    pub(crate) fn new(inner: &Inner) -> Option<Self> {
        let json = |part: Option<serde_json::Result<Value>>| part.transpose().ok();
        let normalizer = json(inner.get_normalizer().map(serde_json::to_value))?;
        let composes = match normalizer.as_ref().map(kind) {
            None => false,
            Some("NFC") => true,
            Some(_) => return None,
        };
        let pre_tokenizer = json(inner.get_pre_tokenizer().map(serde_json::to_value))??;
        let steps = match kind(&pre_tokenizer) {
            "Sequence" => pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice(),
            _ => std::slice::from_ref(&pre_tokenizer),
        };
        let (last, before) = steps.split_last()?;
        let mut splits = Vec::with_capacity(steps.len());
        for step in before {
            let isolates = step.get("behavior")?.as_str()? == "Isolated" && step.get("invert")? == false;
            if kind(step) != "Split" || !isolates {
                return None;
            }
            splits.push(SysRegex::new(step.get("pattern")?.get("Regex")?.as_str()?).ok()?);
        }
        if kind(last) != "ByteLevel" || last.get("add_prefix_space")? != false {
            return None;
        }
        if last.get("use_regex").and_then(Value::as_bool).unwrap_or(true) {
            splits.push(SysRegex::new(GPT2_SPLIT).ok()?);
        }
        let mut alphabet = vec!['\0'; 256];
        for c in ('\u{21}'..='\u{143}').filter_map(|c| byte_of(c).map(|byte| (byte, c))) {
            *alphabet.get_mut(usize::from(c.0))? = c.1;
        }
        Some(Self { splits, alphabet, composes })
    }

    /// Whether `text` can go the short way: nothing in it needs normalizing.
    pub(crate) fn takes(&self, text: &str) -> bool {
        !self.composes || text.is_ascii() || text.chars().all(|c| c < FIRST_COMBINING)
    }

    /// Passes each word of `text` to `word`, written in the byte alphabet.
    pub(crate) fn words(
        &self,
        text: &str,
        buffer: &mut String,
        word: &mut dyn FnMut(&str) -> Result<(), Boxed>,
    ) -> Result<(), Boxed> {
        self.split(&self.splits, text, buffer, word)
    }

    fn split(
        &self,
        splits: &[SysRegex],
        text: &str,
        buffer: &mut String,
        word: &mut dyn FnMut(&str) -> Result<(), Boxed>,
    ) -> Result<(), Boxed> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((first, rest)) = splits.split_first() else {
            buffer.clear();
            buffer.extend(text.bytes().map(|b| self.alphabet.get(usize::from(b)).copied().unwrap_or('\0')));
            return word(buffer);
        };
        for ((start, end), _) in first.find_matches(text)? {
            self.split(rest, text.get(start..end).unwrap_or(""), buffer, word)?;
        }
        Ok(())
    }
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("")
}
