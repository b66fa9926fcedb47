//! Normalises text for the rules, so that texts that look alike compare equal. Removes invisible characters, replaces
//! compatibility forms (full width, ligatures, styled letters) by plain ones, and reduces white space to single spaces.
//! For words, also removes case and accents. A second form replaces look-alike letters by Latin ones. Must not know
//! rules.

use std::borrow::Cow;

use headrace_domain::is_ignorable;
use unicode_normalization_alignments::UnicodeNormalization;

use crate::look_alike;

/// Normalises `text` for word rules, which ignore case and accents. Folds case through upper case, as Unicode's case
/// folding does: the Greek final sigma equals the other sigma, and `ß` equals `ss`.
pub(crate) fn for_words(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        if !text.bytes().any(|b| b.is_ascii_uppercase()) && has_single_spaces(text) {
            return Cow::Borrowed(text);
        }
        return Cow::Owned(spaced(text.chars().map(|c| c.to_ascii_lowercase()), text.len()));
    }
    let plain = seen(text).nfkd().map(|(c, _)| c).filter(|c| !is_ignorable(*c) && !is_accent(*c));
    Cow::Owned(spaced(plain.flat_map(char::to_uppercase).flat_map(char::to_lowercase), text.len()))
}

/// Normalises `text` for word rules and replaces look-alike letters by Latin ones. `None` if it has no such letter.
pub(crate) fn unmasked_for_words(text: &str) -> Option<String> {
    let plain = unmasked(text)?.filter(|c| !is_accent(*c));
    Some(spaced(plain.flat_map(char::to_uppercase).flat_map(char::to_lowercase), text.len()))
}

/// Normalises `text` for regular expressions and replaces look-alike letters by Latin ones. `None` if it has no such
/// letter.
pub(crate) fn unmasked_for_patterns(text: &str) -> Option<String> {
    Some(spaced(unmasked(text)?.nfc().map(|(c, _)| c), text.len()))
}

/// The decomposed characters of a text, with look-alike letters replaced by Latin ones. `None` if it has no such
/// letter.
fn unmasked(text: &str) -> Option<impl Iterator<Item = char>> {
    if text.is_ascii() || !text.chars().any(look_alike::may_look_latin) {
        return None;
    }
    let plain = || seen(text).nfkd().map(|(c, _)| c).filter(|c| !is_ignorable(*c));
    let masked = plain().any(|c| look_alike::latin(c).is_some());
    masked.then(|| plain().map(|c| look_alike::latin(c).unwrap_or(c)))
}

/// Normalises `text` for regular expressions, which see case and accents. `None` if that changes nothing.
pub(crate) fn for_patterns(text: &str) -> Option<String> {
    if text.is_ascii() && has_single_spaces(text) {
        return None;
    }
    let plain = seen(text).nfkc().map(|(c, _)| c).filter(|c| !is_ignorable(*c));
    Some(spaced(plain, text.len())).filter(|plain| plain != text)
}

/// The longest suffix of `text` with at most `most` visible characters. A run of white space counts as one character.
pub(crate) fn tail(text: &str, most: usize) -> &str {
    let mut counter = Counter::default();
    let first = text.char_indices().rev().find(|(_, c)| counter.count(*c) > most);
    text.get(first.map_or(0, |(at, c)| at + c.len_utf8())..).unwrap_or_default()
}

/// The longest prefix of `text` with at most `most` visible characters. A run of white space counts as one character.
pub(crate) fn head(text: &str, most: usize) -> &str {
    let mut counter = Counter::default();
    let end = text.char_indices().find(|(_, c)| counter.count(*c) > most);
    text.get(..end.map_or(text.len(), |(at, _)| at)).unwrap_or_default()
}

/// Whether `text` has no visible character.
pub(crate) fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || is_ignorable(c) || is_accent(c))
}

/// `text` without characters that are in no writing for words, white space as single spaces.
pub(crate) fn visible(text: &str) -> String {
    spaced(text.chars().filter(|c| !is_ignorable(*c) && !is_accent(*c)), text.len())
}

/// The number of visible characters, a run of white space counting as one.
pub(crate) fn visible_chars(text: &str) -> usize {
    let mut counter = Counter::default();
    text.chars().fold(0, |_, c| counter.count(c))
}

/// Counts the characters that [`for_words`] keeps.
#[derive(Default)]
struct Counter {
    seen: usize,
    in_space: bool,
}

impl Counter {
    fn count(&mut self, c: char) -> usize {
        if is_ignorable(c) || is_accent(c) {
            return self.seen;
        }
        let is_space = c.is_whitespace();
        if !(is_space && self.in_space) {
            self.seen += 1;
        }
        self.in_space = is_space;
        self.seen
    }
}

fn seen(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| !is_ignorable(*c))
}

/// Collects characters, with each run of white space as a single space.
fn spaced(chars: impl Iterator<Item = char>, bytes: usize) -> String {
    let mut out = String::with_capacity(bytes);
    for c in chars {
        if !c.is_whitespace() {
            out.push(c);
        } else if !out.ends_with(' ') {
            out.push(' ');
        }
    }
    out
}

fn has_single_spaces(ascii: &str) -> bool {
    let bytes = ascii.as_bytes();
    !bytes.iter().any(|b| matches!(b, b'\t'..=b'\r')) && !bytes.windows(2).any(|pair| pair == b"  ")
}

/// Returns `true` for accents of Latin, Greek and Cyrillic letters. Marks of other scripts act as letters, so they do
/// not count.
pub(crate) fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}
