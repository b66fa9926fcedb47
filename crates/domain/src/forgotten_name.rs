//! The name of a user that is removed from all stores, and how it is found in texts and in JSON. Must not know the stores.

use std::borrow::Cow;

use memchr::{memchr, memmem};

use crate::call_labels::MAX_VALUE_BYTES;

mod events;

/// Shortest name, in bytes, that is found anywhere in a text. A shorter one is found only as a whole JSON string: it
/// would be a part of too many other words.
const SEARCHED_BYTES: usize = 8;
/// Levels of JSON escapes that are undone. A text within JSON has one, and the arguments of a tool call within JSON two.
const MAX_ESCAPE_LEVELS: usize = 4;
/// Bytes that one byte of a name takes at most in a file: an escape such as `\u0065`, escaped on every further level.
const ESCAPED_BYTES: usize = 16;
/// Bytes before a name that decide how it is read: a run of backslashes.
const BEFORE_NAME_BYTES: usize = 64;

/// What replaces the name.
pub const FORGOTTEN: &str = "(forgotten)";

/// The name of a user that is to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgottenName {
    name: String,
    /// The label under which traces have the name. It differs for very long names.
    label: String,
    /// The unescaped texts that are searched, each with its replacement.
    forms: Vec<(String, String)>,
}

impl ForgottenName {
    /// Creates the search for a name. Returns `None` if the name is empty.
    pub fn new(name: &str) -> Option<Self> {
        let label = crate::EndUser::named(name)?.as_str().to_owned();
        let mut forms = vec![if name.len() >= SEARCHED_BYTES {
            (name.to_owned(), FORGOTTEN.to_owned())
        } else {
            (format!("\"{name}\""), format!("\"{FORGOTTEN}\""))
        }];
        if label != name {
            forms.push((label.clone(), FORGOTTEN.to_owned()));
        }
        // A label has the beginning of a long name alone.
        let kept = name.get(..name.floor_char_boundary(MAX_VALUE_BYTES)).unwrap_or(name);
        if kept != name {
            forms.push((kept.to_owned(), FORGOTTEN.to_owned()));
        }
        Some(Self { name: name.to_owned(), label, forms })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The label of the user in traces and usage.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns whether bytes contain the name: JSON, lines of JSON, or any other text. Escapes of JSON are undone, also
    /// those of JSON within a string of JSON. The JSON need not be whole.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        let mut text = Cow::Borrowed(bytes);
        for _ in 0..=MAX_ESCAPE_LEVELS {
            if self.forms.iter().any(|(form, _)| memmem::find(&text, form.as_bytes()).is_some()) {
                return true;
            }
            match unescaped(&text) {
                Some(plain) => text = Cow::Owned(plain),
                None => return false,
            }
        }
        false
    }

    /// Returns whether a text, such as the name of a file, is the name or contains it.
    pub fn is_in_text(&self, text: &str) -> bool {
        text != FORGOTTEN && (text == self.name || text == self.label || self.is_in(text.as_bytes()))
    }

    /// Returns whether a stream of events contains the name in a text that it carries in pieces. The stream is
    /// server-sent events with JSON as data, or a JSON array of events.
    pub fn is_in_events(&self, bytes: &[u8]) -> bool {
        events::joined_texts(bytes).iter().any(|text| self.is_in_text(text))
    }

    /// Bytes by which successive pieces of a file must overlap, so that the name is whole in one of them.
    pub fn overlap_bytes(&self) -> usize {
        let longest = self.forms.iter().map(|(form, _)| form.len()).max().unwrap_or(0);
        longest.saturating_mul(ESCAPED_BYTES).saturating_add(BEFORE_NAME_BYTES)
    }

    /// Texts to preselect by. Bytes that have the name contain at least one of them: the name itself, its label, or the
    /// beginning of an escape that can hide it. A database selects the rows for [`ForgottenName::is_in`] by them.
    pub fn search_hints(&self) -> Vec<&str> {
        let kept = self.name.get(..self.name.floor_char_boundary(MAX_VALUE_BYTES));
        let mut hints = vec![kept.unwrap_or(&self.name)];
        if self.label != self.name {
            hints.push(&self.label);
        }
        let is_always_escaped = |c: char| c.is_control() || matches!(c, '"' | '\\');
        match self.name.contains(is_always_escaped) {
            true => hints.push("\\"),
            false => hints.push("\\u"),
        }
        if self.name.contains('/') {
            hints.push("\\/");
        }
        hints
    }

    /// A text without the name. `None` if the name is not in it.
    pub fn replaced_in(&self, text: &str) -> Option<String> {
        if text == FORGOTTEN {
            return None;
        }
        if text == self.name || text == self.label {
            return Some(FORGOTTEN.to_owned());
        }
        let mut left = Cow::Borrowed(text);
        for (form, replacement) in &self.forms {
            if left.contains(form.as_str()) {
                left = Cow::Owned(left.replace(form.as_str(), replacement));
            }
        }
        match left {
            // JSON within the text has the name in escapes.
            left if self.is_in(left.as_bytes()) => Some(FORGOTTEN.to_owned()),
            Cow::Owned(left) => Some(left),
            Cow::Borrowed(_) => None,
        }
    }
}

/// Undoes one level of JSON escapes. Other text stays as it is. `None` if there is no escape.
fn unescaped(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(bytes.len());
    let (mut rest, mut is_changed) = (bytes, false);
    while let Some(at) = memchr(b'\\', rest) {
        let (before, from) = rest.split_at_checked(at)?;
        plain.extend_from_slice(before);
        let taken = match escape(from) {
            Some((character, taken)) => {
                plain.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                is_changed = true;
                taken
            }
            None => {
                plain.push(b'\\');
                1
            }
        };
        rest = from.get(taken..).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    is_changed.then_some(plain)
}

/// The character of the escape at the start of `text`, and the escape's bytes. `None` if there is no whole escape.
fn escape(text: &[u8]) -> Option<(char, usize)> {
    let character = match text.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let high = utf16_unit(text)?;
            if let Some(character) = char::from_u32(high.into()) {
                return Some((character, 6));
            }
            let low = utf16_unit(text.get(6..)?)?;
            return Some((char::decode_utf16([high, low]).next()?.ok()?, 12));
        }
        _ => return None,
    };
    Some((character, 2))
}

/// The value of the escape `\uXXXX` at the start of `text`.
fn utf16_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    // The conversion alone would accept a sign.
    let is_number = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ForgottenName {
        ForgottenName::new(name).unwrap()
    }

    #[test]
    fn a_long_name_is_found_anywhere_and_a_short_one_as_a_whole_string() {
        let long = name("eva@example.com");
        assert!(long.is_in(br#"{"a":"mail eva@example.com now"}"#) && !long.is_in(b"evb@example.com"));
        let short = name("u1");
        assert!(short.is_in(br#"{"user":"u1"}"#) && !short.is_in(br#"{"user":"u12"}"#));
        assert!(short.is_in_text("u1") && !short.is_in_text("u12") && !short.is_in_text("u1 is here"));
        assert_eq!(ForgottenName::new(""), None);
        let digest = name(&"x".repeat(200));
        assert!(digest.label().starts_with("blake3:") && digest.is_in(digest.label().as_bytes()));
        assert!(digest.is_in("x".repeat(201).as_bytes()), "and under its own name");
        let long = name(&"x".repeat(300));
        assert!(long.is_in("x".repeat(256).as_bytes()), "a label has the beginning of a long name");
    }

    #[test]
    fn a_name_is_found_in_every_way_that_json_can_write_it() {
        let rows: &[(&str, &str)] = &[
            ("zoë@example.com", r#"{"user":"zoë@example.com"}"#),
            ("zoë@example.com", r#"{"user":"zo\u00eb@example.com"}"#),
            ("zoë@example.com", r#"{"user":"zo\u00EB@example.com"}"#),
            ("eva+1@example.com", r#"{"user":"eva\u002B1@example.com"}"#),
            ("eva+1@example.com", r#"{"user":"\u0065va+1@example.com"}"#),
            ("team/eva-meyer", r#"{"user":"team\/eva-meyer"}"#),
            ("corp\\eva-meyer", r#"{"user":"corp\\eva-meyer"}"#),
            ("eva \"e\" meyer", r#"{"user":"eva \"e\" meyer"}"#),
            ("eva😀meyer", r#"{"user":"eva\ud83d\uDE00meyer"}"#),
            ("u/1", r#"{"user":"u\/1"}"#),
            // Arguments of a tool call: JSON within a string of JSON.
            ("zoë@example.com", r#"{"arguments":"{\"to\":\"zo\\u00eb@example.com\"}"}"#),
            ("u1", r#"{"arguments":"{\"to\":\"u1\"}"}"#),
            // The end is missing.
            ("eva+1@example.com", r#"{"user":"eva\u002b1@example.com"#),
        ];
        for (user, text) in rows {
            let user = name(user);
            assert!(user.is_in(text.as_bytes()), "{user:?} in {text}");
            let hints = user.search_hints();
            assert!(hints.iter().any(|hint| text.contains(hint)), "{hints:?} select {text}");
            assert!(!user.is_in(text.replace("e", "i").replace("u1", "u2").replace("/1", "/2").as_bytes()));
        }
        for broken in [r"\", r"\u", r"\u12", r"\u+123", r"\ud83d", r"\ud83d\u0041", r"\x"] {
            assert!(!name("eva@example.com").is_in(broken.as_bytes()), "{broken}");
        }
    }

    #[test]
    fn a_name_is_whole_in_one_of_the_pieces_that_overlap() {
        let user = name("eva@example.com");
        let whole = format!("{}\\u0065va@example.com", "\\".repeat(40));
        let text = format!("{}{whole}", "x".repeat(500));
        for cut in 1..text.len() {
            let kept = cut.saturating_sub(user.overlap_bytes());
            let pieces = [&text.as_bytes()[..cut], &text.as_bytes()[kept..]];
            assert!(pieces.iter().any(|piece| user.is_in(piece)), "{cut}");
        }
    }

    #[test]
    fn the_name_is_replaced_in_a_text() {
        let rows: &[(&str, &str, Option<&str>)] = &[
            ("eva@example.com", "eva@example.com", Some(FORGOTTEN)),
            ("eva@example.com", "to eva@example.com.", Some("to (forgotten).")),
            ("eva@example.com", "to evb@example.com.", None),
            ("eva@example.com", FORGOTTEN, None),
            ("forgotten", FORGOTTEN, None),
            ("u1", "u1", Some(FORGOTTEN)),
            ("u1", "u1 is here", None),
            ("u1", r#"there is no model "u1""#, Some(r#"there is no model "(forgotten)""#)),
            ("zoë@example.com", r#"{"to":"zo\u00eb@example.com"}"#, Some(FORGOTTEN)),
        ];
        for (user, text, expected) in rows {
            assert_eq!(name(user).replaced_in(text).as_deref(), *expected, "{user} in {text}");
        }
    }
}
