//! The table of JSON Schema's keywords: the kind of value of each, and how it is handled.

use serde_json::{Map, Value};

/// The kind of a keyword's value.
pub(super) enum Keyword {
    /// Not a keyword of JSON Schema. It is ignored.
    Unknown,
    /// A keyword that does not affect which values fit.
    Annotation,
    /// A keyword that cannot be enforced, with an alternative for the caller.
    Unsupported(&'static str),
    /// A value or a list of values.
    Value,
    Schema,
    SchemaOrList,
    List,
    /// Schemas by names, or by patterns of names.
    Map,
    Reference,
    Pattern,
    Format,
    /// A non-negative whole number.
    Count,
    Number,
}

pub(super) fn keyword(name: &str) -> Keyword {
    match name {
        "type" | "enum" | "const" | "required" => Keyword::Value,
        "additionalProperties" | "additionalItems" => Keyword::Schema,
        "items" => Keyword::SchemaOrList,
        "anyOf" | "oneOf" | "allOf" | "prefixItems" => Keyword::List,
        "properties" | "patternProperties" => Keyword::Map,
        "$ref" => Keyword::Reference,
        "pattern" => Keyword::Pattern,
        "format" => Keyword::Format,
        "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
            Keyword::Count
        }
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => Keyword::Number,
        "not" => Keyword::Unsupported("say what may be, with `anyOf`, `enum` or `type`"),
        "if" => Keyword::Unsupported("write the cases as `anyOf`"),
        "then" | "else" => Keyword::Unsupported("it needs `if`"),
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            Keyword::Unsupported("write the cases as `anyOf`")
        }
        "contains" | "minContains" | "maxContains" => {
            Keyword::Unsupported("say with `prefixItems` or `items` which value is where")
        }
        "uniqueItems" => Keyword::Unsupported("items are generated one after the other and not compared"),
        "propertyNames" => Keyword::Unsupported("use `patternProperties` with `additionalProperties: false`"),
        "unevaluatedItems" | "unevaluatedProperties" => {
            Keyword::Unsupported("use `items` or `additionalProperties` in each part")
        }
        "$dynamicRef" | "$recursiveRef" => Keyword::Unsupported("use `$ref`"),
        "$defs" | "definitions" | "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor"
        | "$recursiveAnchor" | "$comment" | "$vocabulary" | "title" | "description" | "default"
        | "examples" | "deprecated" | "readOnly" | "writeOnly" | "contentEncoding" | "contentMediaType"
        | "contentSchema" => Keyword::Annotation,
        _ => Keyword::Unknown,
    }
}

/// The names of JSON Schema's types.
const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];

/// Checks the value of `type`, `enum` and `required`.
///
/// # Errors
/// What the keyword takes, and what it has instead.
pub(super) fn check_value(key: &str, value: &Value) -> Result<(), String> {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let some = |fits: &dyn Fn(&Value) -> bool| {
        value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(fits))
    };
    let (fits, takes) = match key {
        "type" => (
            is_type(value) || some(&is_type),
            "one of the types `string`, `number`, `integer`, `boolean`, `object`, `array`, `null`, or a list of them",
        ),
        "enum" => (some(&|_| true), "a list with at least one value"),
        "required" => {
            let names = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
            (names, "a list of names of properties")
        }
        _ => (true, ""),
    };
    if fits { Ok(()) } else { Err(format!("it must be {takes}, and it is {}", shortened(value))) }
}

/// A value as JSON, truncated if it is long.
fn shortened(value: &Value) -> String {
    const MOST_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("`{}…`", text.get(..end).unwrap_or("")),
        None => format!("`{text}`"),
    }
}

/// Whether an unsupported keyword has no effect here, so that it can be dropped.
pub(super) fn changes_nothing(name: &str, value: &Value, beside: &Map<String, Value>) -> bool {
    let is_empty = value.as_object().is_some_and(Map::is_empty);
    match name {
        "uniqueItems" => *value == Value::Bool(false),
        "not" => *value == Value::Bool(false),
        "dependencies" | "dependentRequired" | "dependentSchemas" => is_empty,
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => {
            is_empty || *value == Value::Bool(true)
        }
        "then" | "else" => !beside.contains_key("if"),
        "if" => !beside.contains_key("then") && !beside.contains_key("else"),
        "minContains" | "maxContains" => !beside.contains_key("contains"),
        _ => false,
    }
}

pub(super) fn is_known_draft(said: &str) -> bool {
    is_old_draft(said)
        || matches!(
            said.trim_end_matches('#'),
            "https://json-schema.org/draft/2020-12/schema" | "https://json-schema.org/draft/2019-09/schema"
        )
}

/// Whether this draft ignores keywords beside `$ref`.
pub(super) fn is_old_draft(said: &str) -> bool {
    matches!(
        said.trim_end_matches('#'),
        "http://json-schema.org/draft-07/schema"
            | "http://json-schema.org/draft-06/schema"
            | "http://json-schema.org/draft-04/schema"
    )
}

/// A calendar date, with leap years.
macro_rules! date {
    () => {
        concat!(
            "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
            "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|",
            "(?:[02468][048]|[13579][26])00)-02-29)"
        )
    };
}

/// A time of RFC 3339 without leap seconds, because few parsers accept them.
macro_rules! time {
    () => {
        concat!(
            "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?",
            "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
        )
    };
}

/// The pattern of a format, if it must be narrower than llguidance's own.
pub(super) fn format_pattern(format: &str) -> Option<&'static str> {
    match format {
        // At most four labels, so that the whole name stays within 253 characters (RFC 1123).
        "hostname" => Some(
            "^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,59}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,59}[a-zA-Z0-9])?){0,3}$",
        ),
        // At most 64 characters before the `@` (RFC 5321, 4.5.3.1.1), in one to three parts. After it comes a host name
        // as above.
        "email" => Some(
            "^(?:[a-zA-Z0-9!#$%&'*+\\-/=?\\^_`{|}~]{1,64}|[a-zA-Z0-9!#$%&'*+\\-/=?\\^_`{|}~]{1,20}(?:\\.[a-zA-Z0-9!#$%&'*+\\-/=?\\^_`{|}~]{1,20}){1,2})@[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,59}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,59}[a-zA-Z0-9])?){0,3}$",
        ),
        "date" => Some(concat!("^", date!(), "$")),
        "time" => Some(concat!("^", time!(), "$")),
        "date-time" => Some(concat!("^", date!(), "T", time!(), "$")),
        _ => None,
    }
}
