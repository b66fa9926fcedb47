//! Reads the response format in every spelling: OpenAI's `response_format`, Anthropic's `output_config.format`, vLLM's
//! `structured_outputs`. Does not judge whether a schema or a grammar can be enforced.

use std::borrow::Cow;

use headrace_domain::{Code, FormTag, GrammarSyntax, JsonForm, ResponseFormat, TaggedForm};
use serde_json::{Value, json};

use crate::common::names::schema_name;
use crate::fault::{FieldFault, Read};
use crate::json::canonical::with_inner_schemas;
use crate::json::node::JsonNode;
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// JSON that follows a schema, with the usual white space.
pub(crate) const fn json_form(name: Option<String>, schema: Value, strict: bool) -> JsonForm {
    JsonForm { name, schema, strict, compact: false, white_space: None }
}

/// Reads OpenAI's `response_format`, including vLLM's structural tags. `None` if it is plain text.
pub fn response_format(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Option<ResponseFormat>> {
    let (mut kind, mut described, mut schema, mut tags) = (None, None, None, StructuralTags::default());
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "json_schema" => described = r.optional(json_schema)?,
            // Some servers accept a schema beside `json_object`.
            "schema" => schema = r.optional(any_schema)?,
            key => tags.take(key, r, limits)?,
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    let stray = |key: &str| {
        Err(FieldFault::at(key, Code::InvalidValue, format!("a format of type `{kind}` has none")))
    };
    if described.is_some() && kind != "json_schema" {
        return stray("json_schema");
    }
    if schema.is_some() && kind != "json_object" {
        return stray("schema");
    }
    if let Some(key) = tags.some().filter(|_| kind != "structural_tag") {
        return stray(key);
    }
    Ok(Some(match kind.as_ref() {
        "text" => return Ok(None),
        "json_object" => schema.map_or(ResponseFormat::JsonObject, |schema| {
            ResponseFormat::JsonSchema(json_form(None, schema, false))
        }),
        "json_schema" => {
            ResponseFormat::JsonSchema(described.ok_or_else(|| FieldFault::missing("json_schema"))?)
        }
        "structural_tag" => ResponseFormat::Tags(tags.finish()?),
        _ => {
            let message = "it must be `text`, `json_object`, `json_schema` or `structural_tag`";
            return Err(FieldFault::at("type", Code::InvalidValue, message));
        }
    }))
}

/// Reads the `json_schema` of a `response_format`.
fn json_schema(r: &mut JsonReader<'_>) -> Read<JsonForm> {
    let (mut name, mut schema, mut strict) = (None, None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(schema_name(r)?),
            // The purpose of the schema. It is for people, because the model does not see the schema.
            "description" => r.optional(JsonReader::skip_string).map(drop)?,
            "schema" => schema = r.optional(any_schema)?,
            "strict" => strict = r.optional(JsonReader::bool)?.unwrap_or(false),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let name = name.ok_or_else(|| FieldFault::missing("name"))?;
    Ok(json_form(Some(name), schema.ok_or_else(|| FieldFault::missing("schema"))?, strict))
}

/// Reads a JSON Schema: an object whose keys keep the order in which they were sent.
pub(crate) fn any_schema(r: &mut JsonReader<'_>) -> Read<Value> {
    JsonNode::object(r)?.into_value()
}

/// Reads Anthropic's format of an answer.
pub fn anthropic_format(r: &mut JsonReader<'_>) -> Read<ResponseFormat> {
    let (mut typed, mut schema) = (false, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                typed = r.string()? == "json_schema";
                if !typed {
                    return Err(FieldFault::new(Code::InvalidValue, "it must be `json_schema`"));
                }
            }
            "schema" => schema = Some(any_schema(r)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    if !typed {
        return Err(FieldFault::missing("type"));
    }
    Ok(ResponseFormat::JsonSchema(json_form(
        None,
        schema.ok_or_else(|| FieldFault::missing("schema"))?,
        false,
    )))
}

/// vLLM's `structured_outputs` as read so far.
#[derive(Default)]
struct StructuredOutputs {
    forms: Vec<ResponseFormat>,
    compact: bool,
    closed: bool,
    white_space: Option<String>,
}

/// Reads vLLM's `structured_outputs`: exactly one kind of constraint, and its white space.
pub fn structured_outputs(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ResponseFormat> {
    let mut outputs = StructuredOutputs::default();
    r.object(|r, key| {
        let form = match key.as_ref() {
            "json" => r
                .optional(schema_or_text)?
                .map(|schema| ResponseFormat::JsonSchema(json_form(None, schema, false))),
            "regex" => r.optional(|r| form_text(r, limits))?.map(ResponseFormat::Regex),
            "choice" => r.optional(|r| choices(r, limits))?.map(ResponseFormat::Choice),
            "grammar" => {
                let text = r.optional(|r| form_text(r, limits))?;
                text.map(|text| ResponseFormat::Grammar { text, syntax: GrammarSyntax::Either })
            }
            "json_object" => {
                r.optional(JsonReader::bool)?.filter(|on| *on).map(|_| ResponseFormat::JsonObject)
            }
            "structural_tag" => r.optional(|r| tags_or_text(r, limits))?.map(ResponseFormat::Tags),
            "disable_any_whitespace" => return set(r, &mut outputs.compact),
            "disable_additional_properties" => return set(r, &mut outputs.closed),
            "whitespace_pattern" => {
                outputs.white_space = r.optional(|r| form_text(r, limits))?;
                None
            }
            _ => return Err(FieldFault::unknown()),
        };
        outputs.forms.extend(form);
        Ok(())
    })?;
    outputs.finish()
}

fn set(r: &mut JsonReader<'_>, flag: &mut bool) -> Read<()> {
    *flag = r.optional(JsonReader::bool)?.unwrap_or(false);
    Ok(())
}

impl StructuredOutputs {
    fn finish(self) -> Read<ResponseFormat> {
        let one = <[ResponseFormat; 1]>::try_from(self.forms).map_err(|_| {
            let message = "it must hold exactly one of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`";
            FieldFault::new(Code::InvalidValue, message)
        });
        let [form] = one?;
        let spaced = self.compact || self.white_space.is_some();
        let mut form = match form {
            ResponseFormat::JsonObject if spaced || self.closed => {
                json_form(None, json!({"type": "object"}), false)
            }
            ResponseFormat::JsonSchema(form) => form,
            _ if spaced || self.closed => {
                let message =
                    "white space and additional properties can be set for `json` and `json_object` alone";
                return Err(FieldFault::new(Code::InvalidValue, message));
            }
            other => return Ok(other),
        };
        if self.closed {
            form.schema = closed(form.schema);
        }
        Ok(ResponseFormat::JsonSchema(JsonForm {
            compact: self.compact,
            white_space: self.white_space,
            ..form
        }))
    }
}

/// Forbids all properties that an object in the schema does not name, unless the schema says otherwise.
fn closed(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(closed).collect()),
        Value::Object(map) => {
            let open = map.get("properties").is_some_and(Value::is_object)
                && !["additionalProperties", "patternProperties"].iter().any(|key| map.contains_key(*key));
            let mut map: serde_json::Map<_, _> = with_inner_schemas(map, closed).collect();
            if open {
                map.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            Value::Object(map)
        }
        scalar => scalar,
    }
}

/// Reads a text that constrains an answer: a pattern or a grammar.
pub(crate) fn form_text(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    let text = r.string()?;
    if text.is_empty() {
        return Err(FieldFault::new(Code::EmptyString, "it must not be empty"));
    }
    let max = limits.max_form_text_bytes;
    if text.len() > max {
        return Err(FieldFault::new(Code::StringAboveMaxLength, format!("it may have at most {max} bytes")));
    }
    Ok(text.into_owned())
}

fn choices(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<String>> {
    let mut choices = Vec::new();
    r.array(limits.max_form_choices, |r, _| {
        choices.push(form_text(r, limits)?);
        Ok(())
    })?;
    if choices.is_empty() {
        return Err(FieldFault::new(Code::EmptyArray, "it must have at least one text"));
    }
    Ok(choices)
}

/// Reads a JSON Schema, given as an object or as JSON text.
fn schema_or_text(r: &mut JsonReader<'_>) -> Read<Value> {
    if r.kind()? != ValueKind::String {
        return any_schema(r);
    }
    let text = r.string()?;
    within(r, &text, any_schema)
}

/// Reads the JSON inside a string of the request.
fn within<T>(
    r: &mut JsonReader<'_>,
    text: &str,
    read: impl FnOnce(&mut JsonReader<'_>) -> Read<T>,
) -> Read<T> {
    let mut inner = r.inner(text);
    let read = read(&mut inner).and_then(|value| inner.end().map(|()| value));
    let value = read.map_err(|fault| fault.inside(Code::InvalidValue, "it must be a JSON object as text"))?;
    r.resume(&inner);
    Ok(value)
}

/// Reads structural tags, given as an object or as JSON text.
fn tags_or_text(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<TaggedForm> {
    let read = |r: &mut JsonReader<'_>| {
        let mut tags = StructuralTags::default();
        r.object(|r, key| match key.as_ref() {
            "type" if r.string()? == "structural_tag" => Ok(()),
            "type" => Err(FieldFault::new(Code::InvalidValue, "it must be `structural_tag`")),
            key => tags.take(key, r, limits),
        })?;
        tags.finish()
    };
    if r.kind()? != ValueKind::String {
        return read(r);
    }
    let text = r.string()?;
    within(r, &text, read)
}

/// Structural tags as read so far: `structures` and `triggers`, or the newer `format` of triggered tags.
#[derive(Default)]
struct StructuralTags {
    structures: Option<Vec<FormTag>>,
    triggers: Option<Vec<String>>,
    format: Option<TaggedForm>,
}

impl StructuralTags {
    fn take(&mut self, key: &str, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
        match key {
            "structures" => self.structures = r.optional(|r| structures(r, limits))?,
            "triggers" => self.triggers = r.optional(|r| choices(r, limits))?,
            "format" => self.format = r.optional(|r| triggered(r, limits))?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    }

    /// Returns the name of a field that was given.
    const fn some(&self) -> Option<&'static str> {
        match (&self.structures, &self.triggers, &self.format) {
            (Some(_), ..) => Some("structures"),
            (_, Some(_), _) => Some("triggers"),
            (.., Some(_)) => Some("format"),
            _ => None,
        }
    }

    fn finish(self) -> Read<TaggedForm> {
        match self {
            Self { structures: None, triggers: None, format: Some(tagged) } => checked(tagged),
            Self { format: Some(_), .. } => Err(FieldFault::at(
                "format",
                Code::InvalidValue,
                "it says what `structures` say; send one of them",
            )),
            Self { structures, triggers, .. } => checked(TaggedForm {
                tags: structures.ok_or_else(|| FieldFault::missing("structures"))?,
                triggers: triggers.ok_or_else(|| FieldFault::missing("triggers"))?,
            }),
        }
    }
}

/// Checks that a trigger begins each tag. Any other tag would never be recognised.
fn checked(tagged: TaggedForm) -> Read<TaggedForm> {
    let TaggedForm { tags, triggers } = &tagged;
    let lost =
        tags.iter().position(|tag| !triggers.iter().any(|trigger| tag.begin.starts_with(trigger.as_str())));
    match lost {
        None => Ok(tagged),
        Some(index) => {
            let message = "none of the `triggers` begins its `begin`";
            Err(FieldFault::new(Code::InvalidValue, message).under_index(index).under_key("structures"))
        }
    }
}

fn structures(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<FormTag>> {
    let mut tags = Vec::new();
    r.array(limits.max_form_tags, |r, _| {
        let (mut begin, mut schema, mut end) = (None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "begin" => begin = Some(form_text(r, limits)?),
                "schema" => schema = r.optional(any_schema)?,
                "end" => end = Some(form_text(r, limits)?),
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        tags.push(tag(begin, schema, end)?);
        Ok(())
    })?;
    some(tags)
}

fn tag(begin: Option<String>, schema: Option<Value>, end: Option<String>) -> Read<FormTag> {
    Ok(FormTag {
        begin: begin.ok_or_else(|| FieldFault::missing("begin"))?,
        schema: schema.ok_or_else(|| FieldFault::missing("schema"))?,
        end: end.ok_or_else(|| FieldFault::missing("end"))?,
    })
}

fn some(tags: Vec<FormTag>) -> Read<Vec<FormTag>> {
    if tags.is_empty() {
        Err(FieldFault::new(Code::EmptyArray, "it must have at least one tag"))
    } else {
        Ok(tags)
    }
}

/// Reads the `format` of XGrammar's structural tags, as far as `structures` and `triggers` can express it.
fn triggered(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<TaggedForm> {
    let (mut typed, mut tags, mut triggers) = (false, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                typed = r.string()? == "triggered_tags";
                if !typed {
                    let message = "only `triggered_tags` is supported; send a grammar instead";
                    return Err(FieldFault::new(Code::UnsupportedValue, message));
                }
            }
            "tags" => tags = Some(tag_formats(r, limits)?),
            "triggers" => triggers = Some(choices(r, limits)?),
            "at_least_one" | "stop_after_first" => {
                if r.optional(JsonReader::bool)? == Some(true) {
                    return Err(FieldFault::new(
                        Code::UnsupportedParameter,
                        "it is not supported; send a grammar instead",
                    ));
                }
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    if !typed {
        return Err(FieldFault::missing("type"));
    }
    Ok(TaggedForm {
        tags: tags.ok_or_else(|| FieldFault::missing("tags"))?,
        triggers: triggers.ok_or_else(|| FieldFault::missing("triggers"))?,
    })
}

fn tag_formats(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<FormTag>> {
    let mut tags = Vec::new();
    r.array(limits.max_form_tags, |r, _| {
        let (mut begin, mut schema, mut end) = (None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => r.string().map(drop)?,
                "begin" => begin = Some(form_text(r, limits)?),
                "content" => schema = Some(tag_content(r)?),
                "end" => end = Some(form_text(r, limits)?),
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        tags.push(tag(begin, schema, end)?);
        Ok(())
    })?;
    some(tags)
}

fn tag_content(r: &mut JsonReader<'_>) -> Read<Value> {
    let (mut kind, mut schema) = (None::<Cow<'_, str>>, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "json_schema" => schema = Some(any_schema(r)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    if kind.is_some_and(|kind| kind != "json_schema") {
        let message = "only `json_schema` is supported; send a grammar instead";
        return Err(FieldFault::at("type", Code::UnsupportedValue, message));
    }
    schema.ok_or_else(|| FieldFault::missing("json_schema"))
}
