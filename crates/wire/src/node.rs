//! Free-form JSON as it was sent: keys keep their order, and numbers their spelling. For schemas, arguments and
//! template variables.
//! Knows nothing about the meaning of the JSON.

use std::borrow::Cow;

use headrace_domain::Code;
use serde_json::{Map, Number, Value};

use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};

/// A JSON value of any kind.
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
                Node::Object(entries)
            }
        })
    }

    /// Reads an object.
    pub(crate) fn object(reader: &mut Reader<'a>) -> Read<Self> {
        reader.require(Kind::Object)?;
        Self::read(reader)
    }

    /// The value under `key`, if this is an object that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Node::Object(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// Converts to serde_json's type. Fails for a whole number that 64 bits cannot hold, because it would lose digits.
    pub(crate) fn into_value(self) -> Read<Value> {
        Ok(match self {
            Node::Scalar("null") => Value::Null,
            Node::Scalar("true") => Value::Bool(true),
            Node::Scalar("false") => Value::Bool(false),
            Node::Scalar(number) => Value::Number(to_number(number)?),
            Node::Text(text) => Value::String(text.into_owned()),
            Node::Array(items) => Value::Array(items.into_iter().map(Node::into_value).collect::<Read<_>>()?),
            Node::Object(entries) => Value::Object(into_map(entries)?),
        })
    }

    /// Converts an object like [`Self::into_value`]. Any other value becomes an empty map.
    pub(crate) fn into_object(self) -> Read<Map<String, Value>> {
        if let Node::Object(entries) = self { into_map(entries) } else { Ok(Map::new()) }
    }

    /// Returns the value as compact JSON.
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

fn into_map(entries: Vec<(Cow<'_, str>, Node<'_>)>) -> Read<Map<String, Value>> {
    entries.into_iter().map(|(key, node)| Ok((key.into_owned(), node.into_value()?))).collect()
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
    // `-0` is the only small whole number that an integer cannot hold.
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
