//! OpenAI's rules for strict schemas, with OpenAI's own error messages. Source: "Structured model outputs", *Supported
//! schemas*, of OpenAI's API guide, and the messages of its API. Whether a schema can be enforced at all is checked
//! elsewhere.

use std::fmt;

use serde_json::{Map, Value};

use crate::bounds::MAX_DEPTH_LEVELS;

/// Properties of all objects, in total.
const MAX_PROPERTIES: usize = 5_000;
/// Nesting levels of objects and lists.
const MAX_LEVELS: usize = 10;
/// Characters of all names, enum values and constants, in total.
const MAX_NAME_CHARS: usize = 120_000;
/// Enum values, in total.
const MAX_ENUM_VALUES: usize = 1_000;
/// An enum with more values than this may have at most [`MAX_LARGE_ENUM_CHARS`] characters in all.
const LARGE_ENUM_VALUES: usize = 250;
const MAX_LARGE_ENUM_CHARS: usize = 15_000;
/// Keywords that strict schemas may not use.
const FORBIDDEN: [&str; 9] = [
    "allOf",
    "not",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "then",
    "else",
    "oneOf",
    "patternProperties",
];

/// The rule that a schema breaks, and the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// Keys and indices on the path from the root.
    context: Vec<String>,
    what: String,
}

impl SchemaFault {
    /// The place, as a JSON pointer.
    pub fn path(&self) -> String {
        self.context.iter().map(|part| format!("/{}", crate::schema::escaped(part))).collect()
    }
}

/// In OpenAI's notation: `In context=('properties', 'a'), …`.
impl fmt::Display for SchemaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |part: &String| format!("'{}'", part.replace('\\', "\\\\").replace('\'', "\\'"));
        let parts: Vec<String> = self.context.iter().map(quoted).collect();
        // Python writes a tuple of one element with a comma.
        let comma = if parts.len() == 1 { "," } else { "" };
        write!(f, "In context=({}{comma}), {}", parts.join(", "), self.what)
    }
}

impl std::error::Error for SchemaFault {}

/// Checks a schema by OpenAI's strict rules.
///
/// The first rule that it breaks.
/// The first rule that it breaks.
pub fn check(schema: &Value) -> Result<(), SchemaFault> {
    let mut walk = StrictWalk::default();
    let kind = schema.get("type");
    if kind.and_then(Value::as_str) != Some("object") {
        let got = kind.map_or_else(|| "type: \"None\"".to_owned(), |kind| format!("type: {kind}"));
        return walk.fault(format!("schema must be a JSON Schema of 'type: \"object\"', got '{got}'."));
    }
    if schema.get("anyOf").is_some() {
        return walk.fault("schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.");
    }
    walk.schema(schema, 0)?;
    for key in ["$defs", "definitions"] {
        walk.each(schema, key, 0)?;
    }
    walk.totals()
}

#[derive(Default)]
struct StrictWalk {
    context: Vec<String>,
    properties: usize,
    chars: usize,
    enum_values: usize,
}

type Checked = Result<(), SchemaFault>;

impl StrictWalk {
    fn fault(&self, what: impl Into<String>) -> Checked {
        Err(SchemaFault { context: self.context.clone(), what: what.into() })
    }

    fn within(&mut self, part: &str, check: impl FnOnce(&mut Self) -> Checked) -> Checked {
        self.context.push(part.to_owned());
        check(self)?;
        self.context.pop();
        Ok(())
    }

    fn schema(&mut self, schema: &Value, level: usize) -> Checked {
        let Value::Object(map) = schema else {
            return self.fault("schema must be a JSON object.");
        };
        if self.context.len() > MAX_DEPTH_LEVELS {
            return self.fault(format!("the schema is nested more than {MAX_DEPTH_LEVELS} levels deep."));
        }
        if let Some(key) = map.keys().find(|key| FORBIDDEN.contains(&key.as_str())) {
            return self.fault(format!("'{key}' is not permitted."));
        }
        if map.contains_key("$ref") && map.len() > 1 {
            let allowed = |key: &String| matches!(key.as_str(), "$ref" | "$defs" | "definitions");
            if let Some(key) = map.keys().find(|key| !allowed(key)) {
                return self.fault(format!("$ref cannot have keywords {{'{key}'}}."));
            }
        }
        let has_type = ["type", "$ref", "anyOf", "enum", "const"].iter().any(|key| map.contains_key(*key));
        if !has_type {
            return self.fault("schema must have a 'type' key.");
        }
        let is = |kind: &str| match map.get("type") {
            Some(Value::String(only)) => only == kind,
            Some(Value::Array(kinds)) => kinds.iter().any(|other| other.as_str() == Some(kind)),
            _ => false,
        };
        let deeper = if is("object") || is("array") { level + 1 } else { level };
        if deeper > MAX_LEVELS {
            return self.fault(format!("the schema exceeds {MAX_LEVELS} levels of nesting."));
        }
        if is("object") {
            self.object(map)?;
        }
        self.values(map)?;
        self.each(schema, "properties", deeper)?;
        self.each(schema, "anyOf", deeper)?;
        self.each(schema, "prefixItems", deeper)?;
        if is("array") && !map.contains_key("items") && !map.contains_key("prefixItems") {
            return self.fault("array schema missing items.");
        }
        match map.get("items") {
            Some(items) if items.is_object() => self.within("items", |walk| walk.schema(items, deeper)),
            _ => Ok(()),
        }
    }

    /// Checks the schemas in a list, or in an object by name.
    fn each(&mut self, schema: &Value, key: &str, level: usize) -> Checked {
        match schema.get(key) {
            Some(Value::Object(map)) => self.within(key, |walk| {
                map.iter().try_for_each(|(name, schema)| walk.within(name, |walk| walk.schema(schema, level)))
            }),
            Some(Value::Array(items)) => self.within(key, |walk| {
                let mut each = items.iter().enumerate();
                each.try_for_each(|(at, schema)| {
                    walk.within(&at.to_string(), |walk| walk.schema(schema, level))
                })
            }),
            _ => Ok(()),
        }
    }

    fn object(&mut self, map: &Map<String, Value>) -> Checked {
        if map.get("additionalProperties") != Some(&Value::Bool(false)) {
            return self.fault("'additionalProperties' is required to be supplied and to be false.");
        }
        let empty = Map::new();
        let properties = map.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        self.properties += properties.len();
        self.chars += properties.keys().map(|name| name.chars().count()).sum::<usize>();
        let required: Vec<&str> = map
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let rule =
            "'required' is required to be supplied and to be an array including every key in properties.";
        if let Some(missing) = properties.keys().find(|name| !required.contains(&name.as_str())) {
            return self.fault(format!("{rule} Missing '{missing}'."));
        }
        if let Some(extra) = required.iter().find(|name| !properties.contains_key(**name)) {
            return self.fault(format!("{rule} Extra required key '{extra}' supplied."));
        }
        Ok(())
    }

    fn values(&mut self, map: &Map<String, Value>) -> Checked {
        let chars = |value: &Value| {
            value.as_str().map_or_else(|| value.to_string().len(), |text| text.chars().count())
        };
        if let Some(constant) = map.get("const") {
            self.chars += chars(constant);
        }
        let Some(values) = map.get("enum").and_then(Value::as_array) else { return Ok(()) };
        let own: usize = values.iter().map(chars).sum();
        self.enum_values += values.len();
        self.chars += own;
        if values.len() > LARGE_ENUM_VALUES && own > MAX_LARGE_ENUM_CHARS {
            return self.fault(format!(
                "enum has {} values of {own} characters in all; one of more than {LARGE_ENUM_VALUES} values may have at most \
                 {MAX_LARGE_ENUM_CHARS}.",
                values.len()
            ));
        }
        Ok(())
    }

    fn totals(&self) -> Checked {
        let counts = [
            (self.properties, MAX_PROPERTIES, "object properties"),
            (self.chars, MAX_NAME_CHARS, "characters of names, enum values and constants"),
            (self.enum_values, MAX_ENUM_VALUES, "enum values"),
        ];
        match counts.into_iter().find(|(has, limit, _)| has > limit) {
            Some((has, limit, what)) => {
                self.fault(format!("the schema has {has} {what}; at most {limit} are allowed."))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fault_of(schema: Value) -> String {
        check(&schema).expect_err("a fault").to_string()
    }

    fn object(properties: Value, required: Value) -> Value {
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    /// The messages are those of OpenAI's API.
    #[test]
    fn faults_are_told_as_openai_tells_them() {
        let nested = object(
            json!({"a": {"type": "array", "items": {"type": "object", "properties": {}}}}),
            json!(["a"]),
        );
        let one_of = object(json!({"a": {"oneOf": [{"type": "null"}]}}), json!(["a"]));
        let rows = [
            (
                json!({"type": "object"}),
                "In context=(), 'additionalProperties' is required to be supplied and to be false.",
            ),
            (
                object(json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!(["a"])),
                "In context=(), 'required' is required to be supplied and to be an array including every key in properties. \
                 Missing 'b'.",
            ),
            (
                object(json!({}), json!(["x"])),
                "In context=(), 'required' is required to be supplied and to be an array including every key in properties. \
                 Extra required key 'x' supplied.",
            ),
            (
                nested,
                "In context=('properties', 'a', 'items'), 'additionalProperties' is required to be supplied and to be false.",
            ),
            (one_of, "In context=('properties', 'a'), 'oneOf' is not permitted."),
            (
                json!({"type": "array"}),
                "In context=(), schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'.",
            ),
            (
                json!({}),
                "In context=(), schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'.",
            ),
            (
                object(json!({"a": {}}), json!(["a"])),
                "In context=('properties', 'a'), schema must have a 'type' key.",
            ),
            (
                object(json!({"a": {"type": "array"}}), json!(["a"])),
                "In context=('properties', 'a'), array schema missing items.",
            ),
        ];
        for (schema, expected) in rows {
            assert_eq!(fault_of(schema), expected);
        }
    }

    #[test]
    fn bounds_are_openai_s() {
        let deep = |levels: usize| {
            (1..levels)
                .fold(object(json!({}), json!([])), |inner, _| object(json!({ "a": inner }), json!(["a"])))
        };
        assert_eq!(check(&deep(10)), Ok(()));
        assert!(fault_of(deep(11)).ends_with("the schema exceeds 10 levels of nesting."));
        let values = |count: usize, chars: usize| {
            let values: Vec<String> = (0..count).map(|at| format!("{at:0chars$}")).collect();
            object(json!({"a": {"type": "string", "enum": values}}), json!(["a"]))
        };
        assert_eq!(check(&values(1000, 5)), Ok(()));
        assert!(fault_of(values(1001, 5)).contains("1001 enum values; at most 1000"));
        assert_eq!(check(&values(250, 100)), Ok(()));
        assert!(fault_of(values(251, 100)).contains("at most 15000"));
        let many: Map<String, Value> =
            (0..5001).map(|at| (at.to_string(), json!({"type": "null"}))).collect();
        let names: Vec<&String> = many.keys().collect();
        assert!(fault_of(object(json!(many), json!(names))).contains("5001 object properties"));
    }

    #[test]
    fn what_openai_takes_is_taken() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["next", "n", "s"],
            "properties": {
                "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
                "n": {"type": ["integer", "null"], "minimum": 1, "multipleOf": 2},
                "s": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/s"}},
            },
            "$defs": {"s": {"type": "string", "pattern": "^a", "format": "email"}},
        });
        assert_eq!(check(&schema), Ok(()));
    }
}
