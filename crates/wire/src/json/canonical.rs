//! A fixed key order for JSON whose key order has no meaning, so that key order cannot cost a cache hit.
//! Knows nothing about the meaning of the JSON, except where a JSON Schema holds names instead of keywords.
//!
//! **Keywords of a schema** have one conventional order: first those that models saw first in training
//! ([`FIRST_KEYWORDS`]), then all others by their bytes. **Names** (of properties and definitions) and data (`default`,
//! `enum`, `examples`) stay in the order in which they were sent. Names carry meaning, and a constrained answer follows
//! their order.
//!
//! **Canonical** order sorts everything, including names: first [`FIRST_KEYS`], then by bytes, the same at every level.
//! It is for comparisons, and for models whose `tools_order` asks for it.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::fault::BadRequest;
use crate::json::JsonReader;
use crate::json::node::JsonNode;
use crate::limits::WireLimits;

/// The keys that come first in canonical order.
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

/// The keywords that come first in a schema.
pub const FIRST_KEYWORDS: &[&str] = &[
    "type",
    "description",
    "properties",
    "required",
    "title",
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

/// Keywords whose value is an object with a schema under each name.
const NAMED_SCHEMAS: &[&str] =
    &["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Keywords whose value is a schema or a list of schemas.
const SCHEMAS: &[&str] = &[
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
];

fn ordered(first: &[&str], left: &str, right: &str) -> Ordering {
    let rank = |key: &str| first.iter().position(|first| *first == key).unwrap_or(first.len());
    rank(left).cmp(&rank(right)).then_with(|| left.cmp(right))
}

/// Compares two keys in canonical order.
pub fn compare(left: &str, right: &str) -> Ordering {
    ordered(FIRST_KEYS, left, right)
}

/// Returns the value with the keys of every object in canonical order.
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

/// Returns a JSON Schema with its keywords in the conventional order. Names and data stay as they were sent.
pub fn schema(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(schema).collect()),
        Value::Object(map) => {
            let mut entries: Vec<_> = with_inner_schemas(map, schema).collect();
            entries.sort_by(|(left, _), (right, _)| ordered(FIRST_KEYWORDS, left, right));
            Value::Object(entries.into_iter().collect())
        }
        scalar => scalar,
    }
}

/// Returns the members of a schema after `each` has changed the schemas in them. A list of schemas goes to `each` as a
/// whole.
pub(crate) fn with_inner_schemas(
    map: Map<String, Value>,
    each: fn(Value) -> Value,
) -> impl Iterator<Item = (String, Value)> {
    map.into_iter().map(move |(key, item)| {
        let item = match item {
            Value::Object(named) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                Value::Object(named.into_iter().map(|(name, item)| (name, each(item))).collect())
            }
            item if SCHEMAS.contains(&key.as_str()) => each(item),
            data => data,
        };
        (key, item)
    })
}

/// Returns JSON as compact text, with the keys of every object in canonical order. Numbers keep their spelling.
///
/// # Errors
/// Fails if the text is not JSON, has a duplicate key, or exceeds the depth or size of the default [`WireLimits`].
pub fn text(json: &str) -> Result<String, BadRequest> {
    let limits = WireLimits::default();
    let mut reader = JsonReader::new(json.as_bytes(), limits.max_json_depth, limits.max_free_form_values)?;
    let mut node = JsonNode::read(&mut reader)?;
    reader.end()?;
    sort(&mut node);
    Ok(node.to_text())
}

fn sort(node: &mut JsonNode<'_>) {
    match node {
        JsonNode::Scalar(_) | JsonNode::Text(_) => {}
        JsonNode::Array(items) => items.iter_mut().for_each(sort),
        JsonNode::Object(entries) => {
            entries.iter_mut().for_each(|(_, item)| sort(item));
            entries.sort_by(|(left, _), (right, _)| compare(left, right));
        }
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::Code;
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

    #[test]
    fn a_schema_keeps_its_names_and_data_in_the_order_sent() {
        let sent = json!({
            "additionalProperties": {"minimum": 1, "type": "integer"}, "required": ["z", "a"],
            "properties": {
                "z": {"enum": [{"y": 1, "type": 2}], "description": "d", "type": "string"},
                // Names that are keywords elsewhere, and an array of schemas.
                "required": {"default": {"b": 1, "a": 2}, "anyOf": [{"pattern": "x", "type": "string"}, {"type": "null"}]},
                "a": {"items": {"format": "date", "type": "string"}, "type": "array"},
                "description": {}
            },
            "$defs": {"q": {"title": "t", "type": "object"}, "b": true}, "x-own": {"type": 1, "a": 2}, "type": "object",
            "description": "D"
        });
        assert_eq!(
            schema(sent.clone()).to_string(),
            concat!(
                r#"{"type":"object","description":"D","properties":{"z":{"type":"string","description":"d","#,
                r#""enum":[{"y":1,"type":2}]},"required":{"anyOf":[{"type":"string","pattern":"x"},{"type":"null"}],"#,
                r#""default":{"b":1,"a":2}},"a":{"type":"array","items":{"type":"string","format":"date"}},"description":{}},"#,
                r#""required":["z","a"],"additionalProperties":{"type":"integer","minimum":1},"#,
                r#""$defs":{"q":{"type":"object","title":"t"},"b":true},"x-own":{"type":1,"a":2}}"#
            )
        );
        assert_eq!(schema(schema(sent.clone())).to_string(), schema(sent).to_string());
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

        #[test]
        fn the_order_of_keywords_never_matters(order in Just(vec![0_usize, 1, 2, 3, 4]).prop_shuffle()) {
            let keywords = [
                ("type", json!("object")), ("properties", json!({"z": {"type": "string"}, "a": {}})),
                ("required", json!(["z"])), ("minProperties", json!(1)), ("description", json!("d")),
            ];
            let shuffled: Map<String, Value> =
                order.iter().map(|at| (keywords[*at].0.to_owned(), keywords[*at].1.clone())).collect();
            let plain: Map<String, Value> = keywords.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            prop_assert_eq!(schema(Value::Object(shuffled)).to_string(), schema(Value::Object(plain)).to_string());
        }
    }
}
