//! Reads tools and tool calls: names, schemas, arguments. These are the basic checks that all dialects share.
//! Compiles no schema and checks no arguments against one.

use std::borrow::Cow;

use headrace_domain::{Code, Tool, ToolCall};
use serde_json::Value;

use crate::common::breakpoints::CacheBreakpoints;
use crate::common::custom;
use crate::common::names::{anthropic_tool_name, tool_name};
use crate::common::params::label;
use crate::common::refused::{AcceptedValue, neutral_or};
use crate::fault::{FieldFault, Read};
use crate::json::canonical;
use crate::json::node::JsonNode;
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// Reads OpenAI's `tools`.
pub(crate) fn openai_tools(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<Tool>> {
    let mut tools = Vec::new();
    r.array(limits.max_tools, |r, _| {
        let (mut kind, mut function, mut custom) = (None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => kind = Some(openai_type(r)?),
                "function" => function = Some(openai_function(r)?),
                "custom" => custom = Some(custom::definition(r, limits)?),
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        let (key, tool) = match kind.ok_or_else(|| FieldFault::missing("type"))? {
            OpenAiKind::Function => ("function", own(function, "function", custom.map(|_| "custom"))?),
            OpenAiKind::Custom => ("custom", own(custom, "custom", function.map(|_| "function"))?),
        };
        push_tool(&mut tools, tool).map_err(|fault| fault.under_key(key))
    })?;
    Ok(tools)
}

/// Returns the field that a tool or call of one type must have. Fails if it has the field of the other type.
fn own<T>(own: Option<T>, key: &'static str, other: Option<&'static str>) -> Read<T> {
    match other {
        Some(other) => {
            Err(FieldFault::at(other, Code::InvalidValue, format!("one of type `{key}` has none")))
        }
        None => own.ok_or_else(|| FieldFault::missing(key)),
    }
}

#[derive(Clone, Copy)]
enum OpenAiKind {
    Function,
    Custom,
}

fn openai_type(r: &mut JsonReader<'_>) -> Read<OpenAiKind> {
    match r.string()?.as_ref() {
        "function" => Ok(OpenAiKind::Function),
        "custom" => Ok(OpenAiKind::Custom),
        _ => Err(FieldFault::new(Code::UnsupportedValue, "only `function` and `custom` are supported")),
    }
}

fn openai_function(r: &mut JsonReader<'_>) -> Read<Tool> {
    let (mut name, mut description, mut parameters, mut strict) = (None, None, None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(tool_name(r)?),
            "description" => description = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "parameters" => parameters = r.optional(schema)?,
            "strict" => strict = r.optional(JsonReader::bool)?.unwrap_or(false),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let name = name.ok_or_else(|| FieldFault::missing("name"))?;
    Ok(Tool { strict, ..Tool::function(name, description, parameters) })
}

/// Reads Anthropic's `tools`. Only tools that the client runs are accepted.
pub(crate) fn anthropic_tools(
    r: &mut JsonReader<'_>,
    limits: &WireLimits,
    breakpoints: &CacheBreakpoints,
) -> Read<Vec<Tool>> {
    let mut tools = Vec::new();
    r.array(limits.max_tools, |r, _| {
        let (mut name, mut description, mut parameters, mut strict) = (None, None, None, false);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => {
                    if r.optional(JsonReader::string)?.is_some_and(|kind| kind != "custom") {
                        let message = "only `custom` tools are supported: those that you run yourself";
                        return Err(FieldFault::new(Code::UnsupportedValue, message));
                    }
                }
                "name" => name = Some(anthropic_tool_name(r)?),
                "description" => description = r.optional(JsonReader::string)?.map(Cow::into_owned),
                "input_schema" => parameters = Some(schema(r)?),
                "cache_control" => breakpoints.read(r)?,
                "strict" => strict = r.optional(JsonReader::bool)?.unwrap_or(false),
                // Neither has an effect: arguments always stream as they are written, and all tools are in the prompt.
                "eager_input_streaming" | "defer_loading" => r.optional(JsonReader::bool).map(drop)?,
                "input_examples" => examples(r)?,
                "allowed_callers" => {
                    neutral_or(&AcceptedValue::Only("direct"), r, limits, "only the model calls tools here")?;
                }
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        let name = name.ok_or_else(|| FieldFault::missing("name"))?;
        let parameters = Some(parameters.ok_or_else(|| FieldFault::missing("input_schema"))?);
        push_tool(&mut tools, Tool { strict, ..Tool::function(name, description, parameters) })
    })?;
    Ok(tools)
}

/// Adds a tool. Its name must be new.
pub(crate) fn push_tool(tools: &mut Vec<Tool>, tool: Tool) -> Read<()> {
    if tools.iter().any(|other| other.name == tool.name) {
        return Err(FieldFault::at("name", Code::InvalidValue, "another tool has the same name"));
    }
    tools.push(tool);
    Ok(())
}

/// Reads OpenAI's `tool_calls` of an assistant message.
pub(crate) fn openai_tool_calls(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<ToolCall>> {
    let mut calls = Vec::new();
    r.array(limits.max_tool_calls, |r, _| {
        let (mut id, mut kind, mut function, mut custom) = (None, None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "id" => id = Some(label(r, limits)?),
                "type" => kind = Some(openai_type(r)?),
                "function" => function = Some(openai_call(r)?),
                "custom" => custom = Some(custom_call(r)?),
                // The index of streamed pieces, which clients send back.
                "index" => r.number().map(drop)?,
                // Another server may have put this field into the answer that the client sends back.
                _ => r.skip()?,
            }
            Ok(())
        })?;
        let id = id.ok_or_else(|| FieldFault::missing("id"))?;
        let (name, arguments) = match kind.ok_or_else(|| FieldFault::missing("type"))? {
            OpenAiKind::Function => own(function, "function", custom.map(|_| "custom"))?,
            OpenAiKind::Custom => own(custom, "custom", function.map(|_| "function"))?,
        };
        calls.push(ToolCall { id, name, arguments });
        Ok(())
    })?;
    Ok(calls)
}

fn openai_call(r: &mut JsonReader<'_>) -> Read<(String, String)> {
    let (mut name, mut arguments) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(tool_name(r)?),
            "arguments" => arguments = Some(arguments_text(r)?),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok((
        name.ok_or_else(|| FieldFault::missing("name"))?,
        arguments.ok_or_else(|| FieldFault::missing("arguments"))?,
    ))
}

fn custom_call(r: &mut JsonReader<'_>) -> Read<(String, String)> {
    let (mut name, mut arguments) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(tool_name(r)?),
            "input" => arguments = Some(custom::arguments(&r.string()?)),
            _ => r.skip()?,
        }
        Ok(())
    })?;
    Ok((
        name.ok_or_else(|| FieldFault::missing("name"))?,
        arguments.ok_or_else(|| FieldFault::missing("input"))?,
    ))
}

/// Reads arguments as a string that holds a JSON object, and keeps its spelling. The empty string means no arguments.
pub(crate) fn arguments_text(r: &mut JsonReader<'_>) -> Read<String> {
    let text = r.string()?;
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    let mut inner = r.inner(&text);
    let read = arguments_object(&mut inner).and_then(|_| inner.end());
    read.map_err(|fault| fault.inside(Code::InvalidValue, "it must be a JSON object as text"))?;
    r.resume(&inner);
    Ok(text.into_owned())
}

/// Reads arguments as an object, and keeps its spelling.
pub(crate) fn arguments_object<'a>(r: &mut JsonReader<'a>) -> Read<&'a str> {
    r.require(ValueKind::Object)?;
    r.raw()
}

/// Reads examples of arguments. Only an empty list is accepted, because no template can show examples to a model.
fn examples(r: &mut JsonReader<'_>) -> Read<()> {
    let message = "the model is shown no examples apart from the description; write them there";
    let refusal = || FieldFault::new(Code::UnsupportedParameter, message).of_parent();
    r.optional(|r| r.array(usize::MAX, |_, _| Err(refusal()))).map(drop)
}

/// Reads the JSON Schema of an object. Keywords get the conventional order, and names stay as they were sent.
pub(crate) fn schema(r: &mut JsonReader<'_>) -> Read<Value> {
    let node = JsonNode::object(r)?;
    match node.get("type") {
        None => {}
        Some(JsonNode::Text(kind)) if kind == "object" => {}
        Some(_) => {
            return Err(FieldFault::at(
                "type",
                Code::InvalidValue,
                "a tool's parameters must be of type `object`",
            ));
        }
    }
    if node.get("properties").is_some_and(|properties| !matches!(properties, JsonNode::Object(_))) {
        return Err(FieldFault::at("properties", Code::InvalidType, "it must be an object"));
    }
    if node.get("required").is_some_and(|required| !matches!(required, JsonNode::Array(_))) {
        return Err(FieldFault::at("required", Code::InvalidType, "it must be an array"));
    }
    node.into_value().map(canonical::schema)
}
