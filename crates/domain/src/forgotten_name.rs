//! The name of a user that is removed from all stores, and how it is found in texts. Must not know the stores.

use std::borrow::Cow;

/// Shortest name, in bytes, that is found anywhere in a text. A shorter one is found only as a whole JSON string: it
/// would be a part of too many other words.
const SEARCHED_BYTES: usize = 8;

/// What replaces the name.
pub const FORGOTTEN: &str = "(forgotten)";

/// The name of a user that is to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgottenName {
    name: String,
    /// The label under which traces have the name. It differs for very long names.
    label: String,
    terms: Vec<String>,
}

impl ForgottenName {
    /// Creates the search for a name. Returns `None` if the name is empty.
    pub fn new(name: &str) -> Option<Self> {
        let label = crate::EndUser::named(name)?.as_str().to_owned();
        let quoted = serde_json::to_string(name).ok()?;
        let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned();
        let ascii = ascii_escaped(&inner);
        let mut terms = if name.len() >= SEARCHED_BYTES {
            vec![name.to_owned(), inner, ascii]
        } else {
            vec![quoted, format!("\"{ascii}\"")]
        };
        if label != name {
            terms.push(label.clone());
        }
        terms.sort();
        terms.dedup();
        Some(Self { name: name.to_owned(), label, terms })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The label of the user in traces and usage.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The texts by which the name is found in JSON: as it is, and with its characters escaped.
    pub fn terms(&self) -> &[String] {
        &self.terms
    }

    /// Whether bytes contain the name.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        self.terms.iter().any(|term| find(bytes, term.as_bytes()))
    }

    /// The bytes of the longest term. A search in pieces must overlap by one byte less.
    pub fn longest(&self) -> usize {
        self.terms.iter().map(String::len).max().unwrap_or(0)
    }

    /// A text without the name. `None` if the name is not in it.
    pub fn replaced_in(&self, text: &str) -> Option<String> {
        if text == self.name || text == self.label {
            return Some(FORGOTTEN.to_owned());
        }
        if self.name.len() < SEARCHED_BYTES || !text.contains(&self.name) {
            return None;
        }
        Some(text.replace(&self.name, FORGOTTEN))
    }

    /// Removes the name from every string of a JSON value. Returns whether it was there.
    pub fn remove_from(&self, value: &mut serde_json::Value) -> bool {
        use serde_json::Value;
        match value {
            Value::String(text) => match self.replaced_in(text) {
                Some(replaced) => {
                    *text = replaced;
                    true
                }
                None => false,
            },
            Value::Array(items) => self.remove_from_each(items.iter_mut()),
            Value::Object(fields) => {
                let named: Vec<String> =
                    fields.keys().filter(|name| self.replaced_in(name).is_some()).cloned().collect();
                for name in &named {
                    fields.remove(name);
                }
                self.remove_from_each(fields.values_mut()) || !named.is_empty()
            }
            _ => false,
        }
    }

    fn remove_from_each<'a>(&self, values: impl Iterator<Item = &'a mut serde_json::Value>) -> bool {
        let mut found = false;
        for value in values {
            found |= self.remove_from(value);
        }
        found
    }
}

/// The text with characters beyond ASCII as `\u` escapes, as some clients write JSON.
fn ascii_escaped(text: &str) -> String {
    let escape = |c: char| -> Cow<'static, str> {
        if c.is_ascii() {
            return c.to_string().into();
        }
        let mut units = [0; 2];
        c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>().into()
    };
    text.chars().map(escape).collect()
}

fn find(bytes: &[u8], term: &[u8]) -> bool {
    !term.is_empty() && bytes.windows(term.len()).any(|window| window == term)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_name_is_found_anywhere_and_a_short_one_as_a_whole_string() {
        let long = ForgottenName::new("eva@example.com").unwrap();
        assert!(long.is_in(br#"{"a":"mail eva@example.com now"}"#) && !long.is_in(b"evb@example.com"));
        let short = ForgottenName::new("u1").unwrap();
        assert!(short.is_in(br#"{"user":"u1"}"#) && !short.is_in(br#"{"user":"u12"}"#));
        let accented = ForgottenName::new("zoë@example.com").unwrap();
        assert!(accented.is_in(br#"{"user":"zo\u00eb@example.com"}"#));
        assert!(accented.is_in("{\"user\":\"zoë@example.com\"}".as_bytes()));
        assert_eq!(ForgottenName::new(""), None);
        let digest = ForgottenName::new(&"x".repeat(200)).unwrap();
        assert!(digest.label().starts_with("blake3:") && digest.is_in(digest.label().as_bytes()));
    }

    #[test]
    fn the_name_is_removed_from_every_string() {
        let name = ForgottenName::new("eva@example.com").unwrap();
        let mut value = json!({"user": "eva@example.com", "n": 1, "a": [{"t": "to eva@example.com."}],
            "eva@example.com": 2, "b": "x"});
        assert!(name.remove_from(&mut value));
        assert_eq!(value, json!({"user": FORGOTTEN, "n": 1, "a": [{"t": "to (forgotten)."}], "b": "x"}));
        assert!(!name.remove_from(&mut value));
        let short = ForgottenName::new("u1").unwrap();
        let mut value = json!({"user": "u1", "b": "u1 is here"});
        assert!(short.remove_from(&mut value));
        assert_eq!(value, json!({"user": FORGOTTEN, "b": "u1 is here"}));
    }
}
