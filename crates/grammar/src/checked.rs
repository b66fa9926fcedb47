//! Validates finished answers against their JSON schema, with an independent validator. So no server has to be trusted
//! to have enforced the form. The cost is bounded, because schemas and answers are untrusted. Knows no grammar.

use headrace_domain::ResponseFormat;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions};
use serde_json::Value;

use crate::bounds::MAX_DEPTH_LEVELS;

/// The longest answer that is validated, in bytes.
pub const MAX_JUDGED_BYTES: usize = 512 << 10;
/// Pairs of a value and a schema that one answer may need.
const MAX_VISITS: u32 = 100_000;
/// Levels of nested schemas that are followed, references included.
const MAX_VISIT_LEVELS: u32 = 192;
/// Regular expressions that a schema may have.
const MAX_JUDGED_PATTERNS: usize = 100;
/// Size of one of them, compiled.
const MAX_PATTERN_PROGRAM_BYTES: usize = 256 << 10;

/// The result of validating an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidationResult {
    /// The answer matches its form.
    Fits,
    /// The answer does not match.
    Off {
        /// Place in the answer: a JSON pointer, empty for the whole answer.
        path: String,
        /// The schema keyword that is violated, or `json` if the answer is not JSON.
        keyword: String,
    },
    /// The answer was not validated. The form is not JSON, its schema has unsupported parts, or validation would take
    /// too long.
    Unknown {
        /// The reason.
        why: &'static str,
    },
}

/// Whether answers of this form are validated at all.
pub const fn is_checked(form: &ResponseFormat) -> bool {
    matches!(form, ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_))
}

/// Validates the text of a finished answer. Takes as long as parsing the text, and up to some milliseconds for the
/// schema.
pub fn check(form: &ResponseFormat, text: &str) -> ValidationResult {
    let schema = match form {
        ResponseFormat::JsonObject => None,
        ResponseFormat::JsonSchema(form) => Some(&form.schema),
        ResponseFormat::Regex(_)
        | ResponseFormat::Choice(_)
        | ResponseFormat::Grammar { .. }
        | ResponseFormat::Tags(_) => {
            return ValidationResult::Unknown { why: "it is no form of JSON" };
        }
    };
    if text.len() > MAX_JUDGED_BYTES {
        return ValidationResult::Unknown { why: "the answer is too long" };
    }
    let Ok(answer) = serde_json::from_str::<Value>(text) else { return off("", "json") };
    match schema {
        None if answer.is_object() => ValidationResult::Fits,
        None => off("", "type"),
        Some(schema) => against(schema, &answer),
    }
}

fn off(path: &str, keyword: &str) -> ValidationResult {
    ValidationResult::Off { path: path.to_owned(), keyword: keyword.to_owned() }
}

fn against(schema: &Value, answer: &Value) -> ValidationResult {
    let mut walk = StepCounter { root: schema, left: MAX_VISITS };
    if let Err(why) = patterns(schema, 0).and_then(|_| walk.visit(answer, schema, 0)) {
        return ValidationResult::Unknown { why };
    }
    let options = jsonschema::options()
        .with_draft(draft(schema))
        .should_validate_formats(false)
        .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_PROGRAM_BYTES))
        .offline();
    let Ok(validator) = options.build(schema) else {
        return ValidationResult::Unknown { why: "its schema is none that the validator takes" };
    };
    match validator.validate(answer) {
        Ok(()) => ValidationResult::Fits,
        Err(fault) => match fault.kind() {
            ValidationErrorKind::BacktrackLimitExceeded { .. }
            | ValidationErrorKind::RegexEngineFailure { .. }
            | ValidationErrorKind::Referencing(_) => {
                ValidationResult::Unknown { why: "the validator gave up" }
            }
            kind => off(fault.instance_path().as_str(), kind.keyword()),
        },
    }
}

/// The draft that the schema names, or 2020-12.
fn draft(schema: &Value) -> Draft {
    let said = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let known = [
        ("draft-04", Draft::Draft4),
        ("draft-06", Draft::Draft6),
        ("draft-07", Draft::Draft7),
        ("2019-09", Draft::Draft201909),
    ];
    known.into_iter().find(|(name, _)| said.contains(name)).map_or(Draft::Draft202012, |(_, draft)| draft)
}

/// Number of regular expressions in a schema. Returns the reason if the schema is not validated.
fn patterns(schema: &Value, depth: usize) -> Result<usize, &'static str> {
    if depth > MAX_DEPTH_LEVELS * 2 {
        return Err("its schema is nested too deep");
    }
    let mut count = 0;
    let below: Vec<&Value> = match schema {
        Value::Object(map) => {
            count += usize::from(map.contains_key("pattern"));
            count += map.get("patternProperties").and_then(Value::as_object).map_or(0, serde_json::Map::len);
            map.values().collect()
        }
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    for value in below {
        count += patterns(value, depth + 1)?;
    }
    if count > MAX_JUDGED_PATTERNS { Err("its schema has too many regular expressions") } else { Ok(count) }
}

/// Counts the validator's steps before it runs. A schema may refer to itself in many ways. The validator's work then
/// grows with every level of the answer, or never ends.
struct StepCounter<'s> {
    root: &'s Value,
    left: u32,
}

impl<'s> StepCounter<'s> {
    fn visit(&mut self, value: &Value, schema: &'s Value, depth: u32) -> Result<(), &'static str> {
        let Value::Object(map) = schema else { return Ok(()) };
        self.left = self.left.checked_sub(1).ok_or("judging it would take too long")?;
        if depth > MAX_VISIT_LEVELS {
            return Err("its schema leads back to itself");
        }
        let depth = depth + 1;
        for (key, sub) in map {
            match key.as_str() {
                "$ref" => {
                    let target = self.target(sub).ok_or("its schema refers to what is not looked up")?;
                    self.visit(value, target, depth)?;
                }
                "$dynamicRef" | "$recursiveRef" | "unevaluatedItems" | "unevaluatedProperties" => {
                    return Err("its schema has keywords that are not judged here");
                }
                "$id" | "id" if sub.is_string() && !std::ptr::eq(schema, self.root) => {
                    return Err("its schema has names for parts of itself");
                }
                "allOf" | "anyOf" | "oneOf" => self.each(value, sub.as_array(), depth)?,
                "not" | "if" | "then" | "else" => self.visit(value, sub, depth)?,
                "dependentSchemas" | "dependencies" => {
                    for schema in sub.as_object().into_iter().flat_map(serde_json::Map::values) {
                        self.visit(value, schema, depth)?;
                    }
                }
                _ => self.below(value, key, sub, depth)?,
            }
        }
        Ok(())
    }

    fn each(
        &mut self,
        value: &Value,
        schemas: Option<&'s Vec<Value>>,
        depth: u32,
    ) -> Result<(), &'static str> {
        schemas.into_iter().flatten().try_for_each(|schema| self.visit(value, schema, depth))
    }

    /// Visits the parts of the value that this keyword applies to.
    fn below(&mut self, value: &Value, key: &str, sub: &'s Value, depth: u32) -> Result<(), &'static str> {
        match (value, key) {
            (Value::Object(members), "properties") => {
                let named = sub.as_object().into_iter().flatten();
                for (name, schema) in named {
                    if let Some(value) = members.get(name) {
                        self.visit(value, schema, depth)?;
                    }
                }
            }
            (Value::Object(members), "patternProperties") => {
                for schema in sub.as_object().into_iter().flat_map(serde_json::Map::values) {
                    members.values().try_for_each(|value| self.visit(value, schema, depth))?;
                }
            }
            (Value::Object(members), "additionalProperties") => {
                members.values().try_for_each(|value| self.visit(value, sub, depth))?;
            }
            (Value::Object(members), "propertyNames") => {
                members.keys().try_for_each(|_| self.visit(&Value::Null, sub, depth))?;
            }
            (Value::Array(items), "items" | "prefixItems" | "additionalItems" | "contains") => {
                for (at, item) in items.iter().enumerate() {
                    match sub {
                        Value::Array(schemas) => {
                            schemas.get(at).map_or(Ok(()), |schema| self.visit(item, schema, depth))?;
                        }
                        schema => self.visit(item, schema, depth)?,
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn target(&self, reference: &Value) -> Option<&'s Value> {
        let pointer = reference.as_str()?.strip_prefix('#')?;
        if pointer.contains('%') || !(pointer.is_empty() || pointer.starts_with('/')) {
            return None;
        }
        self.root.pointer(pointer)
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::JsonForm;
    use serde_json::json;

    use super::*;

    fn checked(schema: Value, text: &str) -> ValidationResult {
        check(
            &ResponseFormat::JsonSchema(JsonForm {
                name: None,
                schema,
                strict: false,
                compact: false,
                white_space: None,
            }),
            text,
        )
    }

    #[test]
    fn an_answer_that_does_not_fit_is_told_by_path_and_keyword() {
        let schema = json!({
            "type": "object", "required": ["n", "all"], "additionalProperties": false,
            "properties": {"n": {"type": "integer", "maximum": 9}, "all": {"type": "array", "items": {"$ref": "#/$defs/word"}}},
            "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
        });
        for (text, expected) in [
            (r#" {"n": 1, "all": ["a"]} "#, ValidationResult::Fits),
            (r#"{"n": 1.0, "all": []}"#, ValidationResult::Fits),
            (r#"{"n": 10, "all": []}"#, off("/n", "maximum")),
            (r#"{"n": "1", "all": []}"#, off("/n", "type")),
            (r#"{"n": 1, "all": ["a", "B"]}"#, off("/all/1", "pattern")),
            (r#"{"n": 1}"#, off("", "required")),
            (r#"{"n": 1, "all": [], "x": 1}"#, off("", "additionalProperties")),
            (r#"{"n": 1, "all": []"#, off("", "json")),
            ("Sure! {}", off("", "json")),
            ("", off("", "json")),
        ] {
            assert_eq!(checked(schema.clone(), text), expected, "{text}");
        }
        assert_eq!(check(&ResponseFormat::JsonObject, "{}"), ValidationResult::Fits);
        assert_eq!(check(&ResponseFormat::JsonObject, "[]"), off("", "type"));
    }

    #[test]
    fn what_would_never_end_or_cannot_be_judged_is_known_before() {
        let twice = json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "null"}]});
        let wide = json!({"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}}});
        let mut laughs = json!({"d0": {"type": "null"}});
        for at in 1..30 {
            let below = json!({"$ref": format!("#/$defs/d{}", at - 1)});
            laughs[format!("d{at}")] = json!({"allOf": [below.clone(), below]});
        }
        let laughs = json!({"$defs": laughs, "$ref": "#/$defs/d29"});
        let deep = format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100));
        for (schema, text) in [
            (twice, "1"),
            (wide, deep.as_str()),
            (laughs, "null"),
            (json!({"$ref": "https://example.com/schema"}), "1"),
            (json!({"unevaluatedProperties": false}), "{}"),
            (json!({"pattern": "(?=a)b"}), "\"b\""),
            (json!({"pattern": "((a{100}){100}){100}"}), "\"b\""),
            (
                json!({"anyOf": (0..200).map(|at| json!({"pattern": at.to_string()})).collect::<Vec<_>>()}),
                "\"b\"",
            ),
            (json!({"type": 5}), "1"),
        ] {
            // A busy machine takes longer, and not each time.
            let is_quick = (0..5).any(|_| {
                let began = std::time::Instant::now();
                let told = checked(schema.clone(), text);
                assert!(matches!(told, ValidationResult::Unknown { .. }), "{schema}: {told:?}");
                began.elapsed().as_millis() < 2_000
            });
            assert!(is_quick, "{schema}");
        }
        let long = "1".repeat(MAX_JUDGED_BYTES + 1);
        assert!(matches!(checked(json!({}), &long), ValidationResult::Unknown { .. }));
        assert!(!is_checked(&ResponseFormat::Choice(Vec::new())) && is_checked(&ResponseFormat::JsonObject));
    }
}
