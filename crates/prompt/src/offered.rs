//! The tools that a call offers. Checks whether a model's output is a call of one of them: a known name, and JSON
//! arguments that fit the tool's schema. Must not know how a model writes calls.

use headrace_domain::{Conversation, Tool, ToolChoice};
use serde_json::{Map, Number, Value};

use crate::coerce;

/// The maximum number of comparisons of a value with a schema for one call. Anything beyond is accepted unchecked.
const MOST_LOOKS: u32 = 20_000;
/// The maximum depth of nested schemas, including references. Anything deeper is accepted unchecked.
const MOST_DEPTH: u32 = 64;

/// The tools of a call.
#[derive(Debug, Clone, Default)]
pub struct OfferedTools {
    tools: Vec<OfferedTool>,
}

#[derive(Debug, Clone)]
struct OfferedTool {
    name: String,
    schema: Option<Value>,
    /// Whether a grammar constrains calls of this tool while they are generated.
    held: bool,
}

/// The reason why text that looks like a tool call is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    /// The call names a tool that was not offered.
    NotOffered,
    /// The arguments are not a JSON object.
    NotJson,
    /// The arguments do not fit the tool's schema.
    OffSchema,
    /// The text ends before the arguments do.
    Unfinished,
    /// The text after the opening mark is not a call in the model's own notation.
    Malformed,
}

impl CallFault {
    /// Returns the name that traces and metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOffered => "tool_not_offered",
            Self::NotJson => "tool_arguments_not_json",
            Self::OffSchema => "tool_arguments_off_schema",
            Self::Unfinished => "tool_call_unfinished",
            Self::Malformed => "tool_call_malformed",
        }
    }
}

impl OfferedTools {
    /// Returns the tools of `conversation` that may be called.
    pub fn of(conversation: &Conversation) -> Self {
        let may_be_called = |tool: &&Tool| match &conversation.tool_choice {
            ToolChoice::None => false,
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Named(name) => *name == tool.name,
            ToolChoice::Allowed { names, .. } => names.contains(&tool.name),
        };
        let offered = |tool: &Tool| OfferedTool {
            name: tool.name.clone(),
            schema: tool.parameters.clone(),
            held: false,
        };
        Self { tools: conversation.tools.iter().filter(may_be_called).map(offered).collect() }
    }

    /// Marks the tools that `is_held` selects as constrained by a grammar. Their arguments are emitted as they arrive.
    /// Such arguments can no longer become invalid, unless the answer ends too early.
    #[must_use]
    pub fn held(mut self, is_held: impl Fn(&str) -> bool) -> Self {
        self.tools.iter_mut().for_each(|tool| tool.held = is_held(&tool.name));
        self
    }

    /// Whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tool(name).is_some()
    }

    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.tool(name).is_some_and(|tool| tool.held)
    }

    /// Whether a grammar constrains the calls of all tools. If so, text after the mark of a call is always a call.
    pub(crate) fn are_all_held(&self) -> bool {
        !self.tools.is_empty() && self.tools.iter().all(|tool| tool.held)
    }

    /// Returns the types that an argument may have. `None` if it may have any type, or if its types are unknown.
    pub(crate) fn types(&self, name: &str, argument: &str) -> Option<Vec<&'static str>> {
        let root = self.tool(name)?.schema.as_ref()?;
        let property = root.get("properties").and_then(|properties| properties.get(argument));
        coerce::types(property.or(root.get("additionalProperties"))?, root)
    }

    /// Returns the schema of a tool's arguments.
    pub(crate) fn schema(&self, name: &str) -> Option<&Value> {
        self.tool(name)?.schema.as_ref()
    }

    fn tool(&self, name: &str) -> Option<&OfferedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Checks whether a call of `name` with these arguments can be carried out.
    ///
    /// Checks the keywords of a schema that define the shape of a value: `type`, `enum`, `const`, `properties`,
    /// `required`, `additionalProperties`, `items`, `prefixItems`, the bounds of lengths and numbers, `anyOf`, `oneOf`,
    /// `allOf`, `not` and `$ref` within the schema. Other keywords (`pattern`, `format`, references to other documents)
    /// accept everything.
    ///
    /// # Errors
    /// Returns the fault of the call.
    pub fn judge(&self, name: &str, arguments: &str) -> Result<(), CallFault> {
        let tool = self.tool(name).ok_or(CallFault::NotOffered)?;
        let value: Value = serde_json::from_str(arguments).map_err(|_| CallFault::NotJson)?;
        if !value.is_object() {
            return Err(CallFault::NotJson);
        }
        let Some(schema) = &tool.schema else { return Ok(()) };
        let mut look = SchemaCheck { root: schema, left: MOST_LOOKS };
        if look.fits(&value, schema, 0) { Ok(()) } else { Err(CallFault::OffSchema) }
    }
}

/// The check of one call's arguments.
struct SchemaCheck<'s> {
    root: &'s Value,
    left: u32,
}

impl<'s> SchemaCheck<'s> {
    /// Whether `value` fits `schema`. Returns `true` if this cannot be decided.
    fn fits(&mut self, value: &Value, schema: &'s Value, depth: u32) -> bool {
        let Some(schema) = schema.as_object() else { return schema != &Value::Bool(false) };
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || depth > MOST_DEPTH {
            return true;
        }
        let depth = depth.saturating_add(1);
        if let Some(target) = schema.get("$ref").and_then(Value::as_str)
            && let Some(target) = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer))
            && !self.fits(value, target, depth)
        {
            return false;
        }
        has_type(value, schema)
            && schema
                .get("enum")
                .and_then(Value::as_array)
                .is_none_or(|all| all.iter().any(|one| same(one, value)))
            && schema.get("const").is_none_or(|one| same(one, value))
            && in_bounds(value, schema)
            && self.fits_combined(value, schema, depth)
            && match value {
                Value::Object(members) => self.fits_object(members, schema, depth),
                Value::Array(items) => self.fits_array(items, schema, depth),
                _ => true,
            }
    }

    fn fits_combined(&mut self, value: &Value, schema: &'s Map<String, Value>, depth: u32) -> bool {
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        let count = |look: &mut Self, key| {
            list(key).map(|all| all.iter().filter(|one| look.fits(value, one, depth)).count())
        };
        let all = list("allOf").map_or(0, Vec::len);
        count(self, "anyOf").is_none_or(|fitting| fitting > 0 || list("anyOf").is_some_and(Vec::is_empty))
            // An undecided alternative counts as a match, so several matches do not prove a violation.
            && count(self, "oneOf").is_none_or(|fitting| fitting > 0 || list("oneOf").is_some_and(Vec::is_empty))
            && count(self, "allOf").is_none_or(|fitting| fitting == all)
            && schema.get("not").is_none_or(|not| !matches!(not, Value::Bool(true)))
    }

    fn fits_object(
        &mut self,
        members: &Map<String, Value>,
        schema: &'s Map<String, Value>,
        depth: u32,
    ) -> bool {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        if !required.filter_map(Value::as_str).all(|key| members.contains_key(key)) {
            return false;
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let patterns = schema.contains_key("patternProperties");
        let others = schema.get("additionalProperties").filter(|_| !patterns);
        members.iter().all(|(key, value)| {
            let schema = properties.and_then(|known| known.get(key)).or(others);
            schema.is_none_or(|schema| self.fits(value, schema, depth))
        })
    }

    fn fits_array(&mut self, items: &[Value], schema: &'s Map<String, Value>, depth: u32) -> bool {
        let first =
            schema.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let rest = schema.get("items");
        items
            .iter()
            .enumerate()
            .all(|(at, item)| first.get(at).or(rest).is_none_or(|schema| self.fits(item, schema, depth)))
    }
}

fn has_type(value: &Value, schema: &Map<String, Value>) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        // JSON Schema: a number without a fraction, in any notation.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    };
    match schema.get("type") {
        Some(Value::String(name)) => is(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

fn in_bounds(value: &Value, schema: &Map<String, Value>) -> bool {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let within = |size: f64, least: &str, most: &str| {
        bound(least).is_none_or(|least| size >= least) && bound(most).is_none_or(|most| size <= most)
    };
    #[allow(clippy::cast_precision_loss, reason = "no length comes near 2^53")]
    let length = |count: usize| count as f64;
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|number| {
            within(number, "minimum", "maximum")
                && bound("exclusiveMinimum").is_none_or(|least| number > least)
                && bound("exclusiveMaximum").is_none_or(|most| number < most)
        }),
        Value::String(text) => within(length(text.chars().count()), "minLength", "maxLength"),
        Value::Array(items) => within(length(items.len()), "minItems", "maxItems"),
        Value::Object(members) => within(length(members.len()), "minProperties", "maxProperties"),
        Value::Null | Value::Bool(_) => true,
    }
}

/// Compares as JSON Schema does: 1 and 1.0 are equal.
fn same(left: &Value, right: &Value) -> bool {
    match (left.as_number().and_then(Number::as_f64), right.as_number().and_then(Number::as_f64)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offered(parameters: Option<Value>) -> OfferedTools {
        let tool = Tool::function("look", None, parameters);
        OfferedTools::of(&Conversation { tools: vec![tool], ..Conversation::default() })
    }

    #[test]
    fn only_calls_that_can_be_carried_out_are_calls() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 2, "pattern": "^[A-Z]"},
                "days": {"type": "integer", "minimum": 1, "exclusiveMaximum": 8},
                "unit": {"enum": ["c", "f", 1]},
                "near": {"type": ["array", "null"], "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
                "when": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["at"]}]},
                "pair": {"prefixItems": [{"type": "string"}, {"const": 2}], "items": false},
                "tree": {"$ref": "#"},
            },
            "required": ["city"],
            "additionalProperties": false,
            "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        });
        let tools = offered(Some(schema));
        use CallFault::{NotJson, NotOffered, OffSchema};
        for (name, arguments, expected) in [
            ("look", r#"{"city": "Lisbon"}"#, Ok(())),
            ("look", r#"{"city": "lisbon", "days": 7.0, "unit": 1.0, "near": null}"#, Ok(())),
            (
                "look",
                r#"{"city": "Lisbon", "near": [{"x": 1}], "when": {"at": 1}, "pair": ["a", 2]}"#,
                Ok(()),
            ),
            ("look", r#"{"city": "Lisbon", "tree": {"city": "Porto", "tree": {"city": "Faro"}}}"#, Ok(())),
            ("Look", r#"{"city": "Lisbon"}"#, Err(NotOffered)),
            ("look", r#"{"city"}"#, Err(NotJson)),
            ("look", r#"["Lisbon"]"#, Err(NotJson)),
            ("look", "{}", Err(OffSchema)),
            ("look", r#"{"city": 1}"#, Err(OffSchema)),
            ("look", r#"{"city": "L"}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "days": 0}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "days": 8}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "days": 1.5}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "unit": "k"}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "near": [{}]}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "near": [{"x":1},{"x":1},{"x":1}]}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "when": {}}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "pair": ["a", 2, 3]}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "tree": {"city": "Porto", "tree": {}}}"#, Err(OffSchema)),
            ("look", r#"{"city": "Lisbon", "other": 1}"#, Err(OffSchema)),
        ] {
            assert_eq!(tools.judge(name, arguments), expected, "{name} {arguments}");
        }
        assert_eq!(offered(None).judge("look", r#"{"a": 1}"#), Ok(()));
    }

    #[test]
    fn a_schema_that_never_ends_comes_back() {
        let twice = json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}], "type": "object"});
        assert_eq!(offered(Some(twice)).judge("look", "{}"), Ok(()));
        let deep = "{\"a\":".repeat(100) + "1" + &"}".repeat(100);
        let tree = json!({"type": "object", "properties": {"a": {"$ref": "#"}}});
        assert_eq!(offered(Some(tree)).judge("look", &deep), Ok(()));
    }
}
