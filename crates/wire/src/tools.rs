//! Tools and calls of tools: names, schemas, arguments. First-level checks that every dialect shares.
//! Compiles no schema and checks no arguments against one.

use std::borrow::Cow;

use headrace_domain::{Code, Tool, ToolCall};
use serde_json::Value;

use crate::WireLimits;
use crate::canonical::Node;
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::params::label;
use crate::refused::cache_control;

/// Longest name of a tool, in bytes.
const MAX_TOOL_NAME_BYTES: usize = 64;

/// OpenAI's `tools`.
pub(crate) fn openai_tools(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Vec<Tool>> {
    let mut tools = Vec::new();
    r.array(limits.max_tools, |r, _| {
        let (mut kind, mut tool) = (None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => kind = Some(function_type(r)?),
                "function" => tool = Some(openai_function(r)?),
                _ => return Err(Fault::unknown()),
            }
            Ok(())
        })?;
        kind.ok_or_else(|| Fault::missing("type"))?;
        push_tool(&mut tools, tool.ok_or_else(|| Fault::missing("function"))?)
            .map_err(|fault| fault.under_key("function"))
    })?;
    Ok(tools)
}

fn openai_function(r: &mut Reader<'_>) -> Read<Tool> {
    let (mut name, mut description, mut parameters) = (None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(tool_name(r)?),
            "description" => description = r.optional(Reader::string)?.map(Cow::into_owned),
            "parameters" => parameters = r.optional(schema)?,
            "strict" => not_strict(r)?,
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    Ok(Tool::function(name.ok_or_else(|| Fault::missing("name"))?, description, parameters))
}

/// Anthropic's `tools`: those that the client runs.
pub(crate) fn anthropic_tools(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Vec<Tool>> {
    let mut tools = Vec::new();
    r.array(limits.max_tools, |r, _| {
        let (mut name, mut description, mut parameters) = (None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => {
                    if r.optional(Reader::string)?.is_some_and(|kind| kind != "custom") {
                        let message = "only `custom` tools are supported: those that you run yourself";
                        return Err(Fault::new(Code::UnsupportedValue, message));
                    }
                }
                "name" => name = Some(tool_name(r)?),
                "description" => description = r.optional(Reader::string)?.map(Cow::into_owned),
                "input_schema" => parameters = Some(schema(r)?),
                "cache_control" => cache_control(r)?,
                "strict" => not_strict(r)?,
                _ => return Err(Fault::unknown()),
            }
            Ok(())
        })?;
        let name = name.ok_or_else(|| Fault::missing("name"))?;
        let parameters = Some(parameters.ok_or_else(|| Fault::missing("input_schema"))?);
        push_tool(&mut tools, Tool::function(name, description, parameters))
    })?;
    Ok(tools)
}

/// Adds a tool whose name is not taken.
fn push_tool(tools: &mut Vec<Tool>, tool: Tool) -> Read<()> {
    if tools.iter().any(|other| other.name == tool.name) {
        return Err(Fault::at("name", Code::InvalidValue, "another tool has the same name"));
    }
    tools.push(tool);
    Ok(())
}

/// OpenAI's `tool_calls` of an assistant message.
pub(crate) fn openai_tool_calls(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Vec<ToolCall>> {
    let mut calls = Vec::new();
    r.array(limits.max_tool_calls, |r, _| {
        let (mut id, mut kind, mut function) = (None, None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "id" => id = Some(label(r, limits)?),
                "type" => kind = Some(function_type(r)?),
                "function" => function = Some(openai_call(r)?),
                // The place that streamed pieces carry; clients hand it back.
                "index" => r.number().map(drop)?,
                _ => return Err(Fault::unknown()),
            }
            Ok(())
        })?;
        let id = id.ok_or_else(|| Fault::missing("id"))?;
        kind.ok_or_else(|| Fault::missing("type"))?;
        let (name, arguments) = function.ok_or_else(|| Fault::missing("function"))?;
        calls.push(ToolCall { id, name, arguments });
        Ok(())
    })?;
    Ok(calls)
}

fn openai_call(r: &mut Reader<'_>) -> Read<(String, String)> {
    let (mut name, mut arguments) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "name" => name = Some(tool_name(r)?),
            "arguments" => arguments = Some(arguments_text(r)?),
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    Ok((name.ok_or_else(|| Fault::missing("name"))?, arguments.ok_or_else(|| Fault::missing("arguments"))?))
}

/// Arguments as a string that holds a JSON object; canonical. The empty string means no arguments.
fn arguments_text(r: &mut Reader<'_>) -> Read<String> {
    let text = r.string()?;
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    let mut inner = r.inner(&text);
    let read = arguments_object(&mut inner).and_then(|arguments| inner.end().map(|()| arguments));
    let arguments =
        read.map_err(|fault| fault.inside(Code::InvalidValue, "it must be a JSON object as text"))?;
    r.resume(&inner);
    Ok(arguments)
}

/// Arguments as an object; canonical text.
pub(crate) fn arguments_object(r: &mut Reader<'_>) -> Read<String> {
    r.require(Kind::Object)?;
    Node::read(r).map(|node| node.to_text())
}

/// A JSON Schema of an object, in canonical order.
fn schema(r: &mut Reader<'_>) -> Read<Value> {
    r.require(Kind::Object)?;
    let node = Node::read(r)?;
    match node.get("type") {
        None => {}
        Some(Node::Text(kind)) if kind == "object" => {}
        Some(_) => {
            return Err(Fault::at(
                "type",
                Code::InvalidValue,
                "a tool's parameters must be of type `object`",
            ));
        }
    }
    if node.get("properties").is_some_and(|properties| !matches!(properties, Node::Object(_))) {
        return Err(Fault::at("properties", Code::InvalidType, "it must be an object"));
    }
    if node.get("required").is_some_and(|required| !matches!(required, Node::Array(_))) {
        return Err(Fault::at("required", Code::InvalidType, "it must be an array"));
    }
    node.into_value()
}

/// A tool's name: `^[a-zA-Z0-9_-]{1,64}$`.
pub(crate) fn tool_name(r: &mut Reader<'_>) -> Read<String> {
    let name = r.string()?;
    let fits = !name.is_empty()
        && name.len() <= MAX_TOOL_NAME_BYTES
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if !fits {
        return Err(Fault::new(
            Code::InvalidValue,
            "it must be 1 to 64 of the characters a-z, A-Z, 0-9, `_`, `-`",
        ));
    }
    Ok(name.into_owned())
}

fn function_type(r: &mut Reader<'_>) -> Read<()> {
    match r.string()?.as_ref() {
        "function" => Ok(()),
        _ => Err(Fault::new(Code::UnsupportedValue, "only `function` is supported")),
    }
}

fn not_strict(r: &mut Reader<'_>) -> Read<()> {
    match r.optional(Reader::bool)? {
        Some(true) => {
            let message = "arguments are not constrained to the schema yet; leave it out and check them";
            Err(Fault::new(Code::UnsupportedParameter, message))
        }
        _ => Ok(()),
    }
}
