//! Reads the schemas of a tool's arguments for a grammar. Must not know notations.

use serde_json::{Map, Value};

use crate::coerce;

/// The values that a property may have.
pub(super) struct PropertyTypes {
    /// A text may be among the values.
    pub(super) text: bool,
    pub(super) only_text: bool,
    pub(super) boolean: bool,
    /// All values, if each of them is a text.
    pub(super) texts: Option<Vec<String>>,
    /// The only type, if there is only one.
    pub(super) only: Option<&'static str>,
}

impl PropertyTypes {
    pub(super) fn of(property: &Value, root: &Value) -> Self {
        let types = coerce::types(property, root);
        let is = |name: &str| types.as_ref().is_none_or(|types| types.contains(&name));
        let only = |name: &str| types.as_ref().is_some_and(|types| types.as_slice() == [name]);
        let all: Vec<&Value> = match (property.get("const"), property.get("enum")) {
            (Some(one), _) => vec![one],
            (None, Some(Value::Array(all))) => all.iter().collect(),
            _ => Vec::new(),
        };
        let texts: Vec<String> = all.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect();
        let texts = (!texts.is_empty() && texts.len() == all.len()).then_some(texts);
        Self {
            text: texts.is_some() || is("string"),
            only_text: only("string"),
            boolean: only("boolean"),
            texts,
            only: types
                .as_ref()
                .and_then(|types| if let [only] = types.as_slice() { Some(*only) } else { None }),
        }
    }
}

pub(super) fn is_required(schema: &Value, key: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|keys| keys.iter().any(|one| one.as_str() == Some(key)))
}

/// The parts of a value that a schema declares.
pub(super) enum SchemaParts<'s> {
    /// The schema of an object with properties.
    Properties(&'s Value),
    /// The schema of an array's items.
    Items(&'s Value),
}

/// Returns the parts of an object or array. `None` if the schema does not declare them itself or by reference.
pub(super) fn parts<'s>(schema: &'s Value, root: &'s Value) -> Option<SchemaParts<'s>> {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
    let schema = target.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema);
    let only = coerce::types(schema, root)?;
    match only.as_slice() {
        ["object"] => schema.get("properties").map(|_| SchemaParts::Properties(schema)),
        ["array"] => schema.get("items").filter(|items| items.is_object()).map(SchemaParts::Items),
        _ => None,
    }
}

/// Returns the schema of a property as a document of its own, with the definitions that it may refer to.
pub(super) fn within(property: &Value, root: &Value) -> Value {
    let Value::Object(property) = property else { return property.clone() };
    let mut schema = property.clone();
    for key in ["$defs", "definitions", "x-guidance"] {
        if let Some(value) = root.get(key)
            && !schema.contains_key(key)
        {
            schema.insert(key.to_owned(), value.clone());
        }
    }
    Value::Object(schema)
}

/// Whether a schema of arguments declares no property, and no other keyword indicates that there are any.
pub(super) fn names_nothing(schema: &Value) -> bool {
    const SAY_NOTHING: [&str; 9] = [
        "type",
        "properties",
        "required",
        "title",
        "description",
        "$schema",
        "$id",
        "$comment",
        "x-guidance",
    ];
    let empty = |key: &str| match schema.get(key) {
        Some(Value::Object(named)) => named.is_empty(),
        Some(Value::Array(named)) => named.is_empty(),
        other => other.is_none(),
    };
    let plain = |schema: &Map<String, Value>| {
        let keys = schema.keys().all(|key| SAY_NOTHING.contains(&key.as_str()));
        keys && schema.contains_key("properties")
    };
    schema.as_object().is_some_and(plain) && empty("properties") && empty("required")
}
