//! Simplifies tools so that every chat template can write them. Generators write schemas with references, alternatives
//! and lists of types. Many templates concatenate the `type` and `description` of each property and fail without them.
//! Must not know templates.

use headrace_domain::Tool;
use serde_json::{Map, Value, json};

/// The maximum number of schema levels that are followed, including references. Deeper schemas become plain objects.
const MAX_LEVELS: u32 = 8;
/// The budget for copying the schemas of one tool. A value costs one, and a text costs one more per [`TEXT_BYTES`]
/// bytes. Schemas that exceed the budget become plain objects. Otherwise, every reference to a large schema would copy
/// it again.
const MAX_VALUES: usize = 10_000;
const TEXT_BYTES: usize = 64;

/// Returns the tools with descriptions and simplified schemas: each property has one `type`, a `description` and no
/// reference.
pub(crate) fn tools(tools: &[Tool]) -> Vec<Tool> {
    tools.iter().map(tool).collect()
}

fn tool(tool: &Tool) -> Tool {
    let none = Value::Null;
    let root = tool.parameters.as_ref().unwrap_or(&none);
    let mut schema = SchemaSimplifier { root, left: MAX_VALUES }.schema(root, 0);
    schema.insert("type".to_owned(), "object".into());
    complete_object(&mut schema);
    let description = Some(tool.description.clone().unwrap_or_default());
    Tool { description, parameters: Some(Value::Object(schema)), ..tool.clone() }
}

struct SchemaSimplifier<'s> {
    root: &'s Value,
    /// The remaining budget for copying.
    left: usize,
}

impl SchemaSimplifier<'_> {
    /// Returns the schema with one type and without references.
    fn schema(&mut self, schema: &Value, level: u32) -> Map<String, Value> {
        let mut merged = self.merged(schema, level);
        let kind = kind(&merged);
        for key in ["properties", "patternProperties"] {
            if let Some(Value::Object(named)) = merged.get_mut(key) {
                for below in named.values_mut() {
                    *below = Value::Object(self.property(below, level + 1));
                }
            }
        }
        for key in ["items", "additionalProperties"] {
            if let Some(below) = merged.get_mut(key).filter(|below| below.is_object()) {
                *below = Value::Object(self.property(below, level + 1));
            }
        }
        if let Some(Value::Array(first)) = merged.get_mut("prefixItems") {
            for below in first {
                *below = Value::Object(self.property(below, level + 1));
            }
        }
        if let (Some(constant), None) = (merged.get("const"), merged.get("enum")) {
            let values = json!([constant]);
            merged.insert("enum".to_owned(), values);
        }
        let may_be = |one: &str| kind.split('|').any(|kind| kind == one);
        if may_be("object") {
            complete_object(&mut merged);
        }
        if may_be("array") && !merged.get("items").is_some_and(Value::is_object) {
            let items = Value::Object(self.property(&Value::Null, level + 1));
            merged.insert("items".to_owned(), items);
        }
        merged.insert("type".to_owned(), kind.into());
        merged
    }

    fn property(&mut self, schema: &Value, level: u32) -> Map<String, Value> {
        let mut simple = self.schema(schema, level);
        if !simple.get("description").is_some_and(Value::is_string) {
            simple.insert("description".to_owned(), "".into());
        }
        simple
    }

    /// Returns the keywords of a schema, of the schema that it refers to, and of its alternatives.
    fn merged(&mut self, schema: &Value, level: u32) -> Map<String, Value> {
        let Value::Object(own) = schema else { return Map::new() };
        let is_merged =
            |key: &str| ["$ref", "anyOf", "oneOf", "allOf", "$defs", "definitions"].contains(&key);
        let copied = || own.iter().filter(|(key, _)| !is_merged(key));
        let size =
            copied().fold(1, |size, (key, value)| size_of(value, size + key.len() / TEXT_BYTES, self.left));
        if size > self.left || level > MAX_LEVELS {
            self.left = self.left.saturating_sub(1);
            return Map::from_iter([("type".to_owned(), json!("object"))]);
        }
        self.left -= size;
        let mut merged: Map<String, Value> =
            copied().map(|(key, value)| (key.clone(), value.clone())).collect();
        let pointer = own.get("$ref").and_then(Value::as_str).and_then(|said| said.strip_prefix('#'));
        if let Some(target) = pointer.and_then(|pointer| self.root.pointer(pointer)) {
            let target = self.merged(target, level + 1);
            add(&mut merged, target);
        }
        for part in list(own, "allOf") {
            let part = self.merged(part, level + 1);
            add(&mut merged, part);
        }
        for key in ["anyOf", "oneOf"] {
            let parts: Vec<_> = list(own, key).map(|part| self.merged(part, level + 1)).collect();
            alternatives(&mut merged, parts);
        }
        merged
    }
}

/// Returns `before` plus the cost of copying `value`. Stops counting beyond `most`.
fn size_of(value: &Value, before: usize, most: usize) -> usize {
    if before > most {
        return before;
    }
    let own = before + 1;
    match value {
        Value::String(text) => own + text.len() / TEXT_BYTES,
        Value::Array(values) => values.iter().fold(own, |size, value| size_of(value, size, most)),
        Value::Object(values) => {
            values.iter().fold(own, |size, (key, value)| size_of(value, size + key.len() / TEXT_BYTES, most))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => own,
    }
}

fn list<'v>(schema: &'v Map<String, Value>, key: &str) -> impl Iterator<Item = &'v Value> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Adds the keywords that `into` lacks, and all properties.
fn add(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (None, value) => drop(into.insert(key, value)),
            (Some(Value::Object(has)), Value::Object(more)) if key == "properties" => {
                for (name, schema) in more {
                    has.entry(name).or_insert(schema);
                }
            }
            (Some(Value::Array(has)), Value::Array(more)) if key == "required" => has.extend(more),
            _ => {}
        }
    }
}

/// Adds alternatives: the only one that is not null, or the types and values of all of them.
fn alternatives(into: &mut Map<String, Value>, parts: Vec<Map<String, Value>>) {
    let is_null = |part: &Map<String, Value>| part.get("type").and_then(Value::as_str) == Some("null");
    let mut parts: Vec<_> = parts.into_iter().filter(|part| !is_null(part)).collect();
    if parts.len() <= 1 {
        parts.pop().into_iter().for_each(|part| add(into, part));
        return;
    }
    let kinds: Vec<String> = parts.iter().map(kind).collect();
    let values = |part: &Map<String, Value>| {
        part.get("enum").and_then(Value::as_array).cloned().or(part.get("const").map(|one| vec![one.clone()]))
    };
    let values: Option<Vec<Vec<Value>>> = parts.iter().map(values).collect();
    if let Some(values) = values {
        into.entry("enum").or_insert_with(|| values.concat().into());
    }
    into.entry("type").or_insert_with(|| joined(kinds.iter().map(String::as_str)).into());
    for mut part in parts {
        // An alternative requires its own properties only.
        part.retain(|key, _| key == "properties" || key == "items");
        add(into, part);
    }
}

/// Returns the type of a schema: its own type without null, or the type that its values and keywords imply.
fn kind(schema: &Map<String, Value>) -> String {
    match schema.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Array(kinds)) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            let some = joined(kinds.filter(|kind| *kind != "null"));
            if some.is_empty() { "null".to_owned() } else { some }
        }
        _ => {
            let first = schema.get("const").or_else(|| list(schema, "enum").next());
            let kind = match first {
                Some(Value::String(_)) => "string",
                Some(Value::Bool(_)) => "boolean",
                Some(Value::Number(number)) if number.is_f64() => "number",
                Some(Value::Number(_)) => "integer",
                Some(Value::Array(_)) => "array",
                Some(Value::Object(_)) => "object",
                Some(Value::Null) | None if schema.contains_key("properties") => "object",
                Some(Value::Null) | None if schema.contains_key("items") => "array",
                Some(Value::Null) | None => "any",
            };
            kind.to_owned()
        }
    }
}

/// Joins distinct types with bars.
fn joined<'k>(kinds: impl Iterator<Item = &'k str>) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for kind in kinds.flat_map(|kind| kind.split('|')) {
        if !distinct.contains(&kind) {
            distinct.push(kind);
        }
    }
    distinct.join("|")
}

/// Adds the lists that templates iterate over without checking that they exist.
fn complete_object(schema: &mut Map<String, Value>) {
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    if !schema.get("required").is_some_and(Value::is_array) {
        schema.insert("required".to_owned(), json!([]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_has_one_type() {
        let schema = json!({
            "$defs": {"U": {"enum": ["c", "f"], "type": "string"}, "N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}},
            "properties": {
                "ref": {"$ref": "#/$defs/U", "default": "c"},
                "optional": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null},
                "list": {"type": ["string", "null"]},
                "union": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "consts": {"oneOf": [{"const": "a"}, {"const": "b"}]},
                "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": false},
            "any": {}, "yes": true, "tree": {"$ref": "#/$defs/N"}, "itself": {"$ref": "#"},
                "all": {"allOf": [{"$ref": "#/$defs/U"}], "description": "A unit."},
            },
        });
        let simple = tools(&[Tool::function("t", None, Some(schema))]);
        let schema = simple[0].parameters.as_ref().expect("parameters");
        assert_eq!(simple[0].description.as_deref(), Some(""));
        assert_eq!((&schema["type"], &schema["required"]), (&json!("object"), &json!([])));
        for (name, kind, values) in [
            ("ref", "string", json!(["c", "f"])),
            ("optional", "integer", json!(null)),
            ("list", "string", json!(null)),
            ("union", "string|number", json!(null)),
            ("consts", "string", json!(["a", "b"])),
            ("any", "any", json!(null)),
            ("yes", "any", json!(null)),
            ("tree", "object", json!(null)),
            ("itself", "object", json!(null)),
            ("all", "string", json!(["c", "f"])),
        ] {
            let property = &schema["properties"][name];
            assert_eq!((&property["type"], &property["enum"]), (&json!(kind), &values), "{name}");
            assert!(property["description"].is_string(), "{name}");
        }
        assert_eq!(schema["properties"]["pair"]["items"], json!({"description": "", "type": "any"}));
        assert!(!schema.to_string().contains("$ref"));
    }

    #[test]
    fn a_schema_that_refers_to_itself_often_is_cut() {
        let wide: Map<String, Value> = (0..50).map(|at| (at.to_string(), json!({"$ref": "#"}))).collect();
        let simple = tools(&[Tool::function("t", None, Some(json!({"properties": wide})))]);
        assert!(simple[0].parameters.as_ref().expect("parameters").to_string().len() < 4 << 20);
    }

    #[test]
    fn references_do_not_copy_a_large_schema_again_and_again() {
        let values = vec![json!([]); 9_000];
        let text = "a".repeat(600_000);
        for large in [json!({"enum": values}), json!({"description": text}), json!({"x": {"y": text}})] {
            for key in ["properties", "anyOf"] {
                let refers = json!({"$ref": "#/$defs/L"});
                let many = match key {
                    "properties" => {
                        (0..1_000).map(|at| (at.to_string(), refers.clone())).collect::<Map<_, _>>().into()
                    }
                    _ => Value::Array(vec![refers; 1_000]),
                };
                let schema = json!({"$defs": {"L": large}, key: many});
                let simple = tools(&[Tool::function("t", None, Some(schema))]);
                let size = simple[0].parameters.as_ref().expect("parameters").to_string().len();
                assert!(size < 2 << 20, "{key}: {size} bytes");
            }
        }
    }
}
