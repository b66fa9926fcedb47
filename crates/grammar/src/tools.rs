//! The schema of a tool's arguments, prepared for use in a grammar of tool calls. Knows no model family, nor its call
//! syntax.

use serde_json::{Map, Value, json};

use crate::bounds::WHITE_SPACE;
use crate::fault::GrammarFault;
use crate::schema::{prepared, prepared_loosely, with_white_space};

/// Bound for numbers that have none. Up to it a double represents every whole number exactly.
const LARGEST_NUMBER: i64 = 1_000_000_000_000_000;

/// Prepares a schema for llguidance's `%json`. Numbers without bounds get some, because nothing else in a grammar of
/// calls limits their digits.
///
/// # Errors
/// The part of the schema that cannot be enforced.
pub fn tool_schema(schema: &Value) -> Result<Value, GrammarFault> {
    for_calls(prepared(schema)?)
}

/// As [`tool_schema`], for a tool that is not strict. Keywords that cannot be enforced are left out.
///
/// # Errors
/// [`GrammarFault::Invalid`] if it is not a JSON Schema. Other faults if no grammar can follow it at all.
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

/// Bounds the numbers of a prepared schema. Recursion is safe, because the nesting of a prepared schema is limited.
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
