//! Free-form JSON as it was sent: keys keep their order, and numbers their spelling. For schemas, arguments and
//! template variables.
//! Knows nothing about the meaning of the JSON.

use std::borrow::Cow;

use headrace_domain::Code;
use serde_json::{Map, Number, Value};

use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};

/// A JSON value of any kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JsonNode<'a> {
    /// `null`, `true`, `false` or a number, as spelled.
    Scalar(&'a str),
    Text(Cow<'a, str>),
    Array(Vec<Self>),
    Object(Vec<(Cow<'a, str>, Self)>),
}

impl<'a> JsonNode<'a> {
    /// Reads a value of any kind within the reader's budget.
    pub(crate) fn read(reader: &mut JsonReader<'a>) -> Read<Self> {
        reader.count_value()?;
        Ok(match reader.kind()? {
            ValueKind::Null => {
                reader.literal("null")?;
                JsonNode::Scalar("null")
            }
            ValueKind::Bool => JsonNode::Scalar(if reader.bool()? { "true" } else { "false" }),
            ValueKind::Number => JsonNode::Scalar(finite(reader.number()?)?),
            ValueKind::String => JsonNode::Text(reader.string()?),
            ValueKind::Array => {
                let mut items = Vec::new();
                reader.array(usize::MAX, |r, _| {
                    items.push(JsonNode::read(r)?);
                    Ok(())
                })?;
                JsonNode::Array(items)
            }
            ValueKind::Object => {
                let mut entries = Vec::new();
                reader.object(|r, key| {
                    entries.push((key.clone(), JsonNode::read(r)?));
                    Ok(())
                })?;
                JsonNode::Object(entries)
            }
        })
    }

    /// Reads an object.
    pub(crate) fn object(reader: &mut JsonReader<'a>) -> Read<Self> {
        reader.require(ValueKind::Object)?;
        Self::read(reader)
    }

    /// The value under `key`, if this is an object that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let JsonNode::Object(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// Converts to serde_json's type. Fails for a whole number that 64 bits cannot hold, because it would lose digits.
    pub(crate) fn into_value(self) -> Read<Value> {
        Ok(match self {
            JsonNode::Scalar("null") => Value::Null,
            JsonNode::Scalar("true") => Value::Bool(true),
            JsonNode::Scalar("false") => Value::Bool(false),
            JsonNode::Scalar(number) => Value::Number(to_number(number)?),
            JsonNode::Text(text) => Value::String(text.into_owned()),
            JsonNode::Array(items) => {
                Value::Array(items.into_iter().map(JsonNode::into_value).collect::<Read<_>>()?)
            }
            JsonNode::Object(entries) => Value::Object(into_map(entries)?),
        })
    }

    /// Converts an object like [`Self::into_value`]. Any other value becomes an empty map.
    pub(crate) fn into_object(self) -> Read<Map<String, Value>> {
        if let JsonNode::Object(entries) = self { into_map(entries) } else { Ok(Map::new()) }
    }

    /// Returns the value as compact JSON.
    pub(crate) fn to_text(&self) -> String {
        let mut out = Vec::new();
        self.write(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            JsonNode::Scalar(scalar) => out.extend_from_slice(scalar.as_bytes()),
            JsonNode::Text(text) => write_text(text, out),
            JsonNode::Array(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            JsonNode::Object(entries) => {
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

fn into_map(entries: Vec<(Cow<'_, str>, JsonNode<'_>)>) -> Read<Map<String, Value>> {
    entries.into_iter().map(|(key, node)| Ok((key.into_owned(), node.into_value()?))).collect()
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    // Writing a string into memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

fn finite(number: &str) -> Read<&str> {
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(number),
        _ => Err(FieldFault::new(Code::InvalidValue, "the number is too large")),
    }
}

fn to_number(number: &str) -> Read<Number> {
    // `-0` is the only small whole number that an integer cannot hold.
    let whole = number != "-0" && !number.contains(['.', 'e', 'E']);
    if whole {
        let parsed =
            number.parse::<u64>().map(Number::from).or_else(|_| number.parse::<i64>().map(Number::from));
        return parsed
            .map_err(|_| FieldFault::new(Code::InvalidValue, "a whole number here must fit into 64 bits"));
    }
    let parsed = number.parse::<f64>().ok().and_then(Number::from_f64);
    parsed.ok_or_else(|| FieldFault::new(Code::InvalidValue, "the number is too large"))
}
