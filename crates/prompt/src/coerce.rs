//! Converts values that a model wrote without quotes into JSON for their schema. In some families, only the schema
//! distinguishes `3` from `"3"`. Must not know tools or families.

use serde_json::{Map, Value};

use crate::json::quoted;
use crate::python;

/// The maximum number of references that are followed for one value.
const MOST_REFERENCES: u32 = 16;
/// The maximum number of schemas that are searched for the schema of one value.
const MOST_SEARCHED: u32 = 1_000;
/// The types of JSON, in the order in which they are tried.
const TYPES: [&str; 7] = ["null", "integer", "number", "boolean", "object", "array", "string"];

/// Returns the types that `schema` allows for a value, or `None` for any type. `root` is the document that references
/// point into.
pub(crate) fn types(schema: &Value, root: &Value) -> Option<Vec<&'static str>> {
    types_within(schema, root, MOST_REFERENCES)
}

fn types_within(schema: &Value, root: &Value, left: u32) -> Option<Vec<&'static str>> {
    let left = left.checked_sub(1)?;
    let schema = schema.as_object()?;
    let known = |name: &str| TYPES.into_iter().find(|known| *known == name);
    match schema.get("type") {
        Some(Value::String(name)) => return known(name).map(|name| vec![name]),
        Some(Value::Array(names)) => {
            return names.iter().map(|name| known(name.as_str()?)).collect();
        }
        _ => {}
    }
    if let Some(Value::String(reference)) = schema.get("$ref") {
        return types_within(root.pointer(reference.strip_prefix('#')?)?, root, left);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(all)) = schema.get(key) {
            let each: Option<Vec<_>> = all.iter().map(|one| types_within(one, root, left)).collect();
            return each.map(|each| each.concat());
        }
    }
    if let Some(Value::Array(all)) = schema.get("allOf") {
        return all.iter().find_map(|one| types_within(one, root, left));
    }
    let values: Vec<&Value> = match (schema.get("const"), schema.get("enum")) {
        (Some(one), _) => vec![one],
        (None, Some(Value::Array(all))) => all.iter().collect(),
        _ => return None,
    };
    Some(values.into_iter().map(type_of).collect())
}

/// Returns the schema of the member `key` of an object. `root` is the document that references point into.
pub(crate) fn property<'s>(schema: &'s Value, key: &str, root: &'s Value) -> Option<&'s Value> {
    let other = |schema: &'s Map<String, Value>| {
        schema.get("additionalProperties").filter(|others| others.is_object())
    };
    search(schema, root, &mut { MOST_SEARCHED }, &|schema| {
        schema.get("properties").and_then(|known| known.get(key)).or_else(|| other(schema))
    })
}

/// Returns the schema of the item `at` of an array. `root` is the document that references point into.
pub(crate) fn item<'s>(schema: &'s Value, at: usize, root: &'s Value) -> Option<&'s Value> {
    search(schema, root, &mut { MOST_SEARCHED }, &|schema| {
        schema.get("prefixItems").and_then(|first| first.get(at)).or_else(|| schema.get("items"))
    })
}

/// Returns the first result of `find` in a schema, its reference and its alternatives.
fn search<'s>(
    schema: &'s Value,
    root: &'s Value,
    left: &mut u32,
    find: &dyn Fn(&'s Map<String, Value>) -> Option<&'s Value>,
) -> Option<&'s Value> {
    *left = left.checked_sub(1)?;
    let schema = schema.as_object()?;
    if let Some(found) = find(schema) {
        return Some(found);
    }
    if let Some(Value::String(reference)) = schema.get("$ref") {
        return search(root.pointer(reference.strip_prefix('#')?)?, root, left, find);
    }
    let alternatives = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array());
    alternatives.flatten().find_map(|one| search(one, root, left, find))
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns `text` as JSON. Tries null, integer, number, boolean, object, array and string in this order, and takes the
/// first type that the schema allows and `text` can be read as. If there is none, the result is a string, which then
/// does not fit the schema.
pub(crate) fn value(text: &str, types: Option<&[&'static str]>) -> String {
    let read = |name: &str| match name {
        "null" => matches!(text.trim(), "null" | "None").then(|| "null".to_owned()),
        "integer" => number(text).filter(|digits| is_integer(digits)).map(str::to_owned),
        "number" => number(text).map(str::to_owned),
        "boolean" => match text.trim() {
            "true" | "True" => Some("true".to_owned()),
            "false" | "False" => Some("false".to_owned()),
            _ => None,
        },
        "object" => group(text, '{'),
        "array" => group(text, '['),
        _ => Some(quoted(text)),
    };
    TYPES
        .into_iter()
        .filter(|name| types.is_none_or(|types| types.contains(name)))
        .find_map(read)
        .unwrap_or_else(|| quoted(text))
}

/// Returns the text if it is a number as JSON writes it and other readers can parse it.
fn number(text: &str) -> Option<&str> {
    let text = text.trim();
    serde_json::from_str::<serde_json::Number>(text).ok().map(|_| text)
}

/// Whether the number has no fraction, in any notation: 2.0 is an integer, as in JSON Schema.
fn is_integer(digits: &str) -> bool {
    digits.parse::<f64>().is_ok_and(|number| number.fract() == 0.0)
}

/// Returns an object or an array that is written in JSON or in Python.
fn group(text: &str, open: char) -> Option<String> {
    let text = text.trim();
    if !text.starts_with(open) {
        return None;
    }
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Some(text.to_owned()),
        Err(_) => python::literal(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_says_what_a_value_is() {
        let any = json!({});
        for (text, schema, expected) in [
            ("3", json!({"type": "integer"}), "3"),
            ("3", json!({"type": "string"}), "\"3\""),
            ("3", any.clone(), "3"),
            ("3", json!({"type": ["string", "null"]}), "\"3\""),
            ("3", json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "3"),
            ("3.5", json!({"type": ["integer", "string"]}), "\"3.5\""),
            ("2.0", json!({"type": "integer"}), "2.0"),
            (" 1e3 ", json!({"type": "number"}), "1e3"),
            // Too large to be read as a number.
            ("1e999", json!({"type": ["number", "string"]}), "\"1e999\""),
            ("123456789012345678901234567890", json!({"type": "integer"}), "123456789012345678901234567890"),
            ("007", any.clone(), "\"007\""),
            ("null", any.clone(), "null"),
            ("null", json!({"type": "string"}), "\"null\""),
            ("None", json!({"type": ["null", "string"]}), "null"),
            ("True", json!({"type": "boolean"}), "true"),
            ("true", json!({"enum": ["true", "false"]}), "\"true\""),
            ("yes", json!({"type": "boolean"}), "\"yes\""),
            ("{\"a\": [1]}", json!({"type": "object"}), "{\"a\": [1]}"),
            ("{'a': True, 'b': None}", json!({"type": "object"}), "{\"a\": true, \"b\": null}"),
            ("[1, 2", json!({"type": "array"}), "\"[1, 2\""),
            ("[1]", json!({"type": "string"}), "\"[1]\""),
            ("a \"b\"\n\\é\u{1}", json!({"type": "string"}), "\"a \\\"b\\\"\\n\\\\é\\u0001\""),
            ("5", json!({"$ref": "#/$defs/n"}), "5"),
            ("5", json!({"$ref": "#/$defs/loop"}), "5"),
            ("5", json!({"const": "5"}), "\"5\""),
            ("5", json!({"allOf": [{"minimum": 1}, {"type": "integer"}]}), "5"),
        ] {
            let root = json!({"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}});
            assert_eq!(value(text, types(&schema, &root).as_deref()), expected, "{text} {schema}");
        }
    }

    #[test]
    fn the_schema_of_a_part_is_found() {
        let root = json!({
            "$defs": {
                "place": {"properties": {"city": {"type": "string"}}},
                "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]},
            },
            "properties": {
                "place": {"$ref": "#/$defs/place"},
                "either": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
                "any": {"additionalProperties": {"type": "integer"}},
                "closed": {"additionalProperties": false},
                "loop": {"$ref": "#/$defs/loop"},
                "pair": {"prefixItems": [{"type": "boolean"}], "items": {"type": "null"}},
            },
        });
        let of = |key: &str| property(&root, key, &root).unwrap();
        for (found, expected) in [
            (property(of("place"), "city", &root), Some("string")),
            (property(of("either"), "city", &root), Some("string")),
            (property(of("any"), "city", &root), Some("integer")),
            (property(of("closed"), "city", &root), None),
            (property(of("loop"), "city", &root), None),
            (item(of("pair"), 0, &root), Some("boolean")),
            (item(of("pair"), 1, &root), Some("null")),
            (item(of("place"), 0, &root), None),
        ] {
            assert_eq!(found.map(|schema| schema["type"].as_str().unwrap()), expected);
        }
    }
}
