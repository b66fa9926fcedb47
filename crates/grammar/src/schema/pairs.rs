//! Counts the pairs of properties in a schema. Compiling an object compares each property with those after it, so the
//! work grows with the square of their number. It is limited before compilation, because that work cannot be stopped.

use serde_json::{Map, Value};

use crate::bounds::MAX_PROPERTY_PAIRS;
use crate::fault::GrammarFault;

/// If an object limits its number of properties, a list of all properties is built for each one. This multiplies work
/// and memory.
const BOUNDED_TIMES: u64 = 100;
/// Objects without optional properties cost this fraction of the work.
const REQUIRED_PART: u64 = 3;

/// The pairs of properties of the objects seen so far.
#[derive(Debug, Default)]
pub(super) struct PropertyPairs {
    pairs: u64,
    /// Properties of all objects, in total.
    properties: u64,
    /// Whether some objects may be merged into one, with the properties of all of them.
    merges: bool,
    /// Whether some object limits its number of properties.
    bounds: bool,
}

impl PropertyPairs {
    /// Adds a prepared schema.
    ///
    /// # Errors
    /// [`GrammarFault::TooLarge`] if the schema now has too many pairs.
    pub(super) fn add(&mut self, schema: &Map<String, Value>, path: &str) -> Result<(), GrammarFault> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        let named = |name: &&Value| {
            name.as_str().is_some_and(|name| properties.is_some_and(|map| map.contains_key(name)))
        };
        let listed = properties.map_or(0, Map::len);
        let required_listed = required.map_or(0, |names| names.iter().filter(named).count());
        let unlisted = required.map_or(0, Vec::len) - required_listed;
        let count = (listed + unlisted) as u64;
        let bounds = schema.get("minProperties").and_then(Value::as_u64).is_some_and(|least| least > 0)
            || schema.contains_key("maxProperties");
        self.merges |= schema.contains_key("allOf") || (schema.contains_key("$ref") && schema.len() > 1);
        self.bounds |= bounds;
        self.properties += count;
        let square = count.saturating_mul(count);
        let own = match (bounds, listed > required_listed) {
            (true, _) => square.saturating_mul(BOUNDED_TIMES),
            (false, true) => square,
            (false, false) => square / REQUIRED_PART,
        };
        self.pairs = self.pairs.saturating_add(own);
        let merged = if self.merges { self.properties.saturating_mul(self.properties) } else { 0 };
        let merged = if self.bounds { merged.saturating_mul(BOUNDED_TIMES) } else { merged };
        let (has, limit) = (self.pairs.max(merged), MAX_PROPERTY_PAIRS);
        if has <= limit {
            return Ok(());
        }
        Err(GrammarFault::TooLarge { what: "pairs of properties", has, limit, path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::prepared;

    fn object(properties: usize, required: usize) -> Value {
        let names = || (0..properties).map(|at| format!("p{at}"));
        let map: Map<String, Value> = names().map(|name| (name, json!({"type": "string"}))).collect();
        let required: Vec<String> = names().take(required).collect();
        json!({"type": "object", "properties": map, "required": required, "additionalProperties": false})
    }

    fn with(mut schema: Value, key: &str, value: Value) -> Value {
        schema[key] = value;
        schema
    }

    #[test]
    fn the_pairs_of_properties_are_bounded_before_anything_is_compiled() {
        let unnamed: Vec<String> = (0..5_000).map(|at| at.to_string()).collect();
        let listed = |each: usize| (0..40).map(|_| object(each, 0)).collect::<Vec<_>>();
        for (what, schema, fits) in [
            ("1,000 optional", object(1_000, 0), true),
            ("5,000 optional", object(4_999, 0), false),
            ("1,700 required", object(1_700, 1_700), true),
            ("5,000 required", object(4_999, 4_999), false),
            ("5,000 required and not listed", json!({"type": "object", "required": unnamed}), false),
            ("90 of which one", with(object(90, 0), "maxProperties", json!(1)), true),
            ("1,000 of which one", with(object(1_000, 0), "maxProperties", json!(1)), false),
            ("1,000 of which at least one", with(object(1_000, 0), "minProperties", json!(1)), false),
            ("40 apart", json!({"anyOf": listed(150)}), true),
            ("40 merged into one", json!({"allOf": listed(150)}), false),
        ] {
            match prepared(&schema) {
                Ok(_) => assert!(fits, "{what}"),
                Err(GrammarFault::TooLarge { what: "pairs of properties", .. }) => assert!(!fits, "{what}"),
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
}
