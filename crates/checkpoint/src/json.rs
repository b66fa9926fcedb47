//! Strict JSON for configuration files: duplicate keys are refused, and depth and number of values are bounded. Errors
//! name the field at which parsing failed. Safetensors headers have their own reader.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{CheckpointError, shown, shown_reason};
use crate::limits::MAX_JSON_VALUES;

/// Parses `bytes` as one JSON object. `serde_json` limits nesting to 128 levels.
///
/// # Errors
/// [`CheckpointError::Json`] with the path of the faulty value.
pub(crate) fn parse_object(file: &str, bytes: &[u8]) -> Result<Map<String, Value>, CheckpointError> {
    match parse(file, bytes)? {
        Value::Object(members) => Ok(members),
        _ => Err(at_the_top(file, "expected an object at the top")),
    }
}

/// Like [`parse_object`], for one JSON array.
pub(crate) fn parse_array(file: &str, bytes: &[u8]) -> Result<Vec<Value>, CheckpointError> {
    match parse(file, bytes)? {
        Value::Array(items) => Ok(items),
        _ => Err(at_the_top(file, "expected an array at the top")),
    }
}

fn at_the_top(file: &str, problem: &str) -> CheckpointError {
    CheckpointError::Json { file: file.to_owned(), field: String::new(), problem: problem.to_owned() }
}

fn parse(file: &str, bytes: &[u8]) -> Result<Value, CheckpointError> {
    let progress = Progress::default();
    let refuse =
        |problem: String| CheckpointError::Json { file: file.to_owned(), field: progress.path(), problem };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| refuse(format!("not UTF-8 after {} bytes", error.valid_up_to())))?;
    let text = with_quoted_infinities(text);
    let mut reader = serde_json::Deserializer::from_str(&text);
    let value = Strict(&progress).deserialize(&mut reader).map_err(|error| refuse(shown_reason(&error)))?;
    reader.end().map_err(|error| refuse(shown_reason(&error)))?;
    Ok(value)
}

/// Puts the bare words `Infinity` and `-Infinity` in lists, with which Python writes infinite numbers, into quotes, so that
/// they are texts for those who read them. Elsewhere they stay errors.
fn with_quoted_infinities(text: &str) -> Cow<'_, str> {
    const WORD: &str = "Infinity";
    if !text.contains(WORD) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let (mut is_quoted, mut is_escaped, mut begins_item) = (false, false, false);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let word = ["-Infinity", WORD].into_iter().find(|word| begins_item && rest.starts_with(word));
        if let Some(word) = word {
            out.extend(["\"", word, "\""]);
            rest = rest.strip_prefix(word).unwrap_or_default();
            begins_item = false;
            continue;
        }
        is_quoted ^= next == '"' && !is_escaped;
        is_escaped = is_quoted && next == '\\' && !is_escaped;
        begins_item = !is_quoted && (matches!(next, '[' | ',') || begins_item && next.is_whitespace());
        out.push(next);
        rest = rest.strip_prefix(next).unwrap_or_default();
    }
    Cow::Owned(out)
}

/// The position of the parser. Steps are popped only on success, so that the path remains after an error.
#[derive(Default)]
struct Progress {
    steps: RefCell<Vec<Step>>,
    values: Cell<usize>,
}

enum Step {
    Key(String),
    Item(usize),
}

impl Progress {
    fn path(&self) -> String {
        let mut path = String::new();
        for step in self.steps.borrow().iter() {
            match step {
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => {
                    path.push('.');
                    path.push_str(key);
                }
                Step::Item(index) => path.push_str(&format!("[{index}]")),
            }
        }
        shown(&path)
    }

    fn enter(&self, step: Step) {
        self.steps.borrow_mut().push(step);
    }

    fn leave(&self) {
        self.steps.borrow_mut().pop();
    }
}

#[derive(Clone, Copy)]
struct Strict<'p>(&'p Progress);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let values = self.0.values.get() + 1;
        if values > MAX_JSON_VALUES {
            return Err(D::Error::custom(format!("more than {MAX_JSON_VALUES} values (MAX_JSON_VALUES)")));
        }
        self.0.values.set(values);
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            self.0.enter(Step::Item(list.len()));
            let item = items.next_element_seed(self)?;
            self.0.leave();
            match item {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            self.0.enter(Step::Key(key.clone()));
            if object.contains_key(&key) {
                return Err(A::Error::custom("the key is given twice"));
            }
            let value = members.next_value_seed(self)?;
            self.0.leave();
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_infinity_in_a_list_is_a_text() {
        let text = br#"{"limits": [0.0, Infinity, -Infinity], "Infinity": "\\\"Infinity", "n": 1}"#;
        let members = parse_object("c.json", text).unwrap();
        assert_eq!(members["limits"], serde_json::json!([0.0, "Infinity", "-Infinity"]));
        assert_eq!(members["Infinity"], "\\\"Infinity");
        for bad in [&br#"{"a": [Infinity5]}"#[..], br#"{"a": Infinity}"#, br#"{"a": [1 Infinity]}"#] {
            assert!(parse_object("c.json", bad).is_err());
        }
    }
}
