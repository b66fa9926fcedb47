//! Checks that a schema has a finite value that fits. A schema that always requires itself has none, and an answer to
//! it could not end.

use serde_json::{Map, Value};

use crate::bounds::MAX_DEPTH_LEVELS;
use crate::fault::GrammarFault;

/// Checks a prepared schema, in which references name `definitions` by number.
pub(super) fn check(root: &Value, definitions: &Map<String, Value>) -> Result<(), GrammarFault> {
    // A definition ends if everything that it requires ends. Each round finds more of them, until a round finds none.
    let mut ends = vec![false; definitions.len()];
    loop {
        let mut found = false;
        for (number, schema) in definitions.values().enumerate() {
            let known = ends.get(number).copied().unwrap_or(true);
            if !known && schema_ends(schema, &ends, 0) {
                if let Some(end) = ends.get_mut(number) {
                    *end = true;
                }
                found = true;
            }
        }
        if !found {
            break;
        }
    }
    if schema_ends(root, &ends, 0) {
        return Ok(());
    }
    let why = "it requires itself within itself, so that no answer could end; make the property optional, or give `anyOf` a \
               case without it";
    Err(GrammarFault::Unsatisfiable { why: why.to_owned() })
}

fn schema_ends(schema: &Value, ends: &[bool], depth: usize) -> bool {
    let Value::Object(map) = schema else { return true };
    if depth > MAX_DEPTH_LEVELS {
        return true;
    }
    let each = |key: &str| map.get(key).and_then(Value::as_array);
    let below = |schema: &Value| schema_ends(schema, ends, depth + 1);
    if let Some(number) = map.get("$ref").and_then(Value::as_str).and_then(number_of)
        && !ends.get(number).copied().unwrap_or(true)
    {
        return false;
    }
    if each("allOf").is_some_and(|all| !all.iter().all(below)) {
        return false;
    }
    for any in ["anyOf", "oneOf"] {
        if each(any).is_some_and(|any| !any.iter().any(below)) {
            return false;
        }
    }
    // A value that is neither an object nor a list ends by itself.
    let may_be = |kind: &str| match map.get("type") {
        None => false,
        Some(Value::String(only)) => only == kind,
        Some(Value::Array(kinds)) => kinds.iter().all(|other| other.as_str() == Some(kind)),
        Some(_) => false,
    };
    if may_be("object") {
        let properties = map.get("properties").and_then(Value::as_object);
        let required = each("required").into_iter().flatten().filter_map(Value::as_str);
        let mut required = required.filter_map(|name| properties?.get(name));
        return required.all(below);
    }
    let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    if may_be("array") && least > 0 {
        let listed = each("prefixItems").or_else(|| each("items")).map(Vec::as_slice).unwrap_or_default();
        let listed_end = listed.iter().take(usize::try_from(least).unwrap_or(usize::MAX)).all(below);
        let rest = map.get("items").filter(|items| items.is_object() && (listed.len() as u64) < least);
        return listed_end && rest.is_none_or(below);
    }
    true
}

fn number_of(reference: &str) -> Option<usize> {
    reference.strip_prefix("#/$defs/")?.parse().ok()
}
