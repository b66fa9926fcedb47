//! The schema of a tool's arguments, as it stands in a grammar of calls. Knows no family of models, and how it writes calls.

use serde_json::{Map, Value, json};

use crate::bounds::WHITE_SPACE;
use crate::fault::GrammarFault;
use crate::schema::{prepared, prepared_loosely, with_white_space};

/// Beyond this a double no longer tells whole numbers apart.
const LARGEST_NUMBER: i64 = 1_000_000_000_000_000;

/// A schema for llguidance's `%json`. Numbers without bounds get some: within a grammar of calls nothing else bounds their digits.
///
/// # Errors
/// What no answer can be held to.
pub fn tool_schema(schema: &Value) -> Result<Value, GrammarFault> {
    for_calls(prepared(schema)?)
}

/// As [`tool_schema`], for a tool that is not strict: the schema without the keywords that cannot be enforced.
///
/// # Errors
/// [`GrammarFault::Invalid`] if it is no JSON Schema. Others if it is one that no grammar can follow at all.
pub fn loose_tool_schema(schema: &Value) -> Result<Value, GrammarFault> {
    for_calls(prepared_loosely(schema)?)
}

fn for_calls(mut prepared: Value) -> Result<Value, GrammarFault> {
    if prepared == Value::Bool(false) {
        return Err(GrammarFault::Unsatisfiable { why: "the schema is `false`".to_owned() });
    }
    bound_numbers(&mut prepared);
    Ok(with_white_space(prepared, WHITE_SPACE))
}

/// Of a prepared schema, which is nested only so deep.
fn bound_numbers(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    let is_number = match map.get("type") {
        Some(Value::String(kind)) => kind == "number" || kind == "integer",
        _ => false,
    };
    let bounds =
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const", "multipleOf"];
    if is_number && !bounds.iter().any(|bound| map.contains_key(*bound)) {
        map.insert("minimum".to_owned(), json!(-LARGEST_NUMBER));
        map.insert("maximum".to_owned(), json!(LARGEST_NUMBER));
    }
    for key in ["properties", "patternProperties", "$defs"] {
        let below = map.get_mut(key).and_then(Value::as_object_mut);
        below.into_iter().flat_map(Map::values_mut).for_each(bound_numbers);
    }
    for key in ["items", "additionalProperties", "additionalItems"] {
        map.get_mut(key).into_iter().for_each(bound_numbers);
    }
    for key in ["anyOf", "oneOf", "allOf", "prefixItems", "items"] {
        let below = map.get_mut(key).and_then(Value::as_array_mut);
        below.into_iter().flatten().for_each(bound_numbers);
    }
}
