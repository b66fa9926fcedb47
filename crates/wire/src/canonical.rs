//! One order of keys for JSON that is rendered into a prompt, so that key order cannot cost a cache hit.
//! Knows nothing of what the JSON means.
//!
//! The order: first the keys that models saw first in training, as they stand in [`FIRST_KEYS`]; then all others by
//! their bytes. It holds at every level alike. Arrays keep their order; numbers keep their spelling in text.

use std::borrow::Cow;
use std::cmp::Ordering;

use headrace_domain::Code;
use serde_json::{Map, Number, Value};

use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::{BadRequest, WireLimits};

/// The keys that come first, in this order.
pub const FIRST_KEYS: &[&str] = &[
    "type",
    "function",
    "name",
    "title",
    "description",
    "parameters",
    "arguments",
    "properties",
    "required",
    "enum",
    "const",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "default",
    "additionalProperties",
    "$defs",
];

/// The order of two keys.
pub fn compare(left: &str, right: &str) -> Ordering {
    let rank = |key: &str| FIRST_KEYS.iter().position(|first| *first == key).unwrap_or(FIRST_KEYS.len());
    rank(left).cmp(&rank(right)).then_with(|| left.cmp(right))
}

/// The same value with every object's keys in canonical order.
pub fn value(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(self::value).collect()),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(key, item)| (key, self::value(item))).collect();
            entries.sort_by(|(left, _), (right, _)| compare(left, right));
            Value::Object(entries.into_iter().collect())
        }
        scalar => scalar,
    }
}

/// The same JSON as compact text with every object's keys in canonical order; numbers as they were spelled.
///
/// # Errors
/// Text that is not JSON, names a key twice, or breaks the depth or size of the default [`WireLimits`].
pub fn text(json: &str) -> Result<String, BadRequest> {
    let limits = WireLimits::default();
    let mut reader = Reader::new(json.as_bytes(), limits.max_json_depth, limits.max_free_form_values)?;
    let node = Node::read(&mut reader)?;
    reader.end()?;
    Ok(node.to_text())
}

/// Free-form JSON with keys already in canonical order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node<'a> {
    /// `null`, `true`, `false` or a number, as spelled.
    Scalar(&'a str),
    Text(Cow<'a, str>),
    Array(Vec<Self>),
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl<'a> Node<'a> {
    /// Reads a value of any kind within the reader's budget.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Read<Self> {
        reader.count_value()?;
        Ok(match reader.kind()? {
            Kind::Null => {
                reader.literal("null")?;
                Node::Scalar("null")
            }
            Kind::Bool => Node::Scalar(if reader.bool()? { "true" } else { "false" }),
            Kind::Number => Node::Scalar(finite(reader.number()?)?),
            Kind::String => Node::Text(reader.string()?),
            Kind::Array => {
                let mut items = Vec::new();
                reader.array(usize::MAX, |r, _| {
                    items.push(Node::read(r)?);
                    Ok(())
                })?;
                Node::Array(items)
            }
            Kind::Object => {
                let mut entries = Vec::new();
                reader.object(|r, key| {
                    entries.push((key.clone(), Node::read(r)?));
                    Ok(())
                })?;
                entries.sort_by(|(left, _), (right, _)| compare(left, right));
                Node::Object(entries)
            }
        })
    }

    /// The value under `key`, if this is an object that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Node::Object(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// As serde_json has it. A whole number that 64 bits cannot hold is a fault: it would lose digits.
    pub(crate) fn into_value(self) -> Read<Value> {
        Ok(match self {
            Node::Scalar("null") => Value::Null,
            Node::Scalar("true") => Value::Bool(true),
            Node::Scalar("false") => Value::Bool(false),
            Node::Scalar(number) => Value::Number(to_number(number)?),
            Node::Text(text) => Value::String(text.into_owned()),
            Node::Array(items) => Value::Array(items.into_iter().map(Node::into_value).collect::<Read<_>>()?),
            Node::Object(entries) => {
                let pairs = entries.into_iter().map(|(key, node)| Ok((key.into_owned(), node.into_value()?)));
                Value::Object(pairs.collect::<Read<Map<_, _>>>()?)
            }
        })
    }

    /// As compact text.
    pub(crate) fn to_text(&self) -> String {
        let mut out = Vec::new();
        self.write(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Node::Scalar(scalar) => out.extend_from_slice(scalar.as_bytes()),
            Node::Text(text) => write_text(text, out),
            Node::Array(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Node::Object(entries) => {
                out.push(b'{');
                for (index, (key, item)) in entries.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_text(key, out);
                    out.push(b':');
                    item.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    // Writing a string into memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

fn finite(number: &str) -> Read<&str> {
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(number),
        _ => Err(Fault::new(Code::InvalidValue, "the number is too large")),
    }
}

fn to_number(number: &str) -> Read<Number> {
    // `-0` is the one whole number that an integer cannot hold.
    let whole = number != "-0" && !number.contains(['.', 'e', 'E']);
    if whole {
        let parsed =
            number.parse::<u64>().map(Number::from).or_else(|_| number.parse::<i64>().map(Number::from));
        return parsed
            .map_err(|_| Fault::new(Code::InvalidValue, "a whole number here must fit into 64 bits"));
    }
    let parsed = number.parse::<f64>().ok().and_then(Number::from_f64);
    parsed.ok_or_else(|| Fault::new(Code::InvalidValue, "the number is too large"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_stand_in_the_documented_order() {
        let schema = json!({
            "required": ["z", "a"], "properties": {"z": {"description": "d", "type": "string"}, "a": {}},
            "type": "object", "zebra": 1, "additionalProperties": false
        });
        assert_eq!(
            value(schema).to_string(),
            r#"{"type":"object","properties":{"a":{},"z":{"type":"string","description":"d"}},"required":["z","a"],"additionalProperties":false,"zebra":1}"#
        );
        let numbers = r#" { "b" : 1.50 , "a" : [ 1e2, 12345678901234567890123, "é\u000a" ] } "#;
        assert_eq!(text(numbers).unwrap(), r#"{"a":[1e2,12345678901234567890123,"é\n"],"b":1.50}"#);
        assert_eq!(text("{\"a\":1,\"a\":2}").unwrap_err().code, Code::DuplicateKey);
    }

    proptest! {
        #[test]
        fn key_order_never_matters(
            map in prop::collection::btree_map("[a-e]|type|name|items", any::<i32>(), 0..8),
            swap in any::<u64>(),
        ) {
            let mut entries: Vec<_> = map.iter().collect();
            let plain: Map<String, Value> = entries.iter().map(|(k, v)| ((*k).clone(), json!({"b": v, "a": 1}))).collect();
            if !entries.is_empty() {
                let by = usize::try_from(swap % entries.len() as u64).unwrap();
                entries.rotate_left(by);
            }
            entries.reverse();
            let other: Map<String, Value> = entries.iter().map(|(k, v)| ((*k).clone(), json!({"a": 1, "b": v}))).collect();
            let (plain, other) = (Value::Object(plain), Value::Object(other));
            prop_assert_eq!(text(&plain.to_string()).unwrap(), text(&other.to_string()).unwrap());
            prop_assert_eq!(value(plain.clone()).to_string(), value(other).to_string());
            prop_assert_eq!(value(plain.clone()).to_string(), text(&plain.to_string()).unwrap());
        }
    }
}
