//! Text as rules see it: one writing for what reads alike. What nobody sees is left out, compatibility forms (full width,
//! ligatures, styled letters) are plain, white space is one space; for words also case and accents are gone.
//! Must not know rules.

use std::borrow::Cow;

use unicode_normalization_alignments::UnicodeNormalization;

/// `text` for rules of words, in which letters are compared without case and accents. By way of upper case, as Unicode's
/// case folding does it: the Greek final sigma equals the other one, and `ß` equals `ss`.
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

/// `text` for regular expressions, which see case and accents: `None` where it is as it was written.
pub(crate) fn for_patterns(text: &str) -> Option<String> {
    if text.is_ascii() && has_single_spaces(text) {
        return None;
    }
    let plain = seen(text).nfkc().map(|(c, _)| c).filter(|c| !is_ignorable(*c));
    Some(spaced(plain, text.len())).filter(|plain| plain != text)
}

fn seen(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|c| !is_ignorable(*c))
}

/// White space as single spaces.
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

/// Accents of Latin, Greek and Cyrillic letters. Marks of other scripts are letters in all but name.
fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// Unicode's property `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt, 16.0): drawn as nothing.
fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}
