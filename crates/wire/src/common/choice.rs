//! Reads `tool_choice` in both dialects, and checks that it names offered tools.
//! Does not know how a model is constrained to it.

use std::borrow::Cow;

use headrace_domain::{Code, Tool, ToolChoice};

use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// Reads OpenAI's `tool_choice`.
pub(crate) fn openai(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ToolChoice> {
    let words = "it must be `auto`, `none`, `required` or an object that names a tool or allows some";
    match r.kind()? {
        ValueKind::String => match r.string()?.as_ref() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            _ => Err(FieldFault::new(Code::InvalidValue, words)),
        },
        ValueKind::Object => openai_object(r, limits),
        _ => Err(FieldFault::new(Code::InvalidType, words)),
    }
}

fn openai_object(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ToolChoice> {
    let (mut kind, mut function, mut custom, mut allowed) = (None, None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "function" => function = Some(named(r)?),
            "custom" => custom = Some(named(r)?),
            "allowed_tools" => allowed = Some(allowed_tools(r, limits)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    match kind.ok_or_else(|| FieldFault::missing("type"))?.as_ref() {
        "function" => function.map(ToolChoice::Named).ok_or_else(|| FieldFault::missing("function")),
        "custom" => custom.map(ToolChoice::Named).ok_or_else(|| FieldFault::missing("custom")),
        "allowed_tools" => allowed.ok_or_else(|| FieldFault::missing("allowed_tools")),
        _ => {
            let message = "it must be `function`, `custom` or `allowed_tools`";
            Err(FieldFault::at("type", Code::InvalidValue, message))
        }
    }
}

/// Reads the `name` of an object that has no other field.
fn named(r: &mut JsonReader<'_>) -> Read<String> {
    let mut name = None;
    r.object(|r, key| match key.as_ref() {
        "name" => {
            name = Some(r.string()?.into_owned());
            Ok(())
        }
        _ => Err(FieldFault::unknown()),
    })?;
    name.ok_or_else(|| FieldFault::missing("name"))
}

/// Reads OpenAI's `allowed_tools`: a mode and a list of tools.
pub(crate) fn allowed_tools(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ToolChoice> {
    let (mut required, mut names) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "mode" => {
                required = Some(match r.string()?.as_ref() {
                    "auto" => false,
                    "required" => true,
                    _ => return Err(FieldFault::new(Code::InvalidValue, "it must be `auto` or `required`")),
                });
            }
            "tools" => names = Some(tool_names(r, limits)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let required = required.ok_or_else(|| FieldFault::missing("mode"))?;
    Ok(ToolChoice::Allowed { names: names.ok_or_else(|| FieldFault::missing("tools"))?, required })
}

/// Reads a list of tools by name: `{"type": "function", "function": {"name": …}}`, or with the name beside the type.
pub(crate) fn tool_names(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<String>> {
    let mut names = Vec::new();
    r.array(limits.max_tools, |r, _| {
        let mut name = None;
        r.object(|r, key| {
            match key.as_ref() {
                "type" => {
                    if !matches!(r.string()?.as_ref(), "function" | "custom") {
                        let message = "it must be `function` or `custom`";
                        return Err(FieldFault::new(Code::UnsupportedValue, message));
                    }
                }
                "function" | "custom" => name = Some(named(r)?),
                "name" => name = Some(r.string()?.into_owned()),
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        names.push(name.ok_or_else(|| FieldFault::missing("name"))?);
        Ok(())
    })?;
    if names.is_empty() {
        return Err(FieldFault::new(Code::EmptyArray, "it must have at least one tool"));
    }
    Ok(names)
}

/// Reads Anthropic's `tool_choice`. Also returns whether at most one call is allowed.
pub(crate) fn anthropic(r: &mut JsonReader<'_>) -> Read<(ToolChoice, bool)> {
    let (mut kind, mut name, mut one_call) = (None, None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "name" => name = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "disable_parallel_tool_use" => one_call = r.optional(JsonReader::bool)?.unwrap_or(false),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    if name.is_some() && kind != "tool" {
        let message = "only a choice of type `tool` has it";
        return Err(FieldFault::at("name", Code::InvalidValue, message));
    }
    let choice = match kind.as_ref() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(name.ok_or_else(|| FieldFault::missing("name"))?),
        _ => {
            let message = "it must be `auto`, `any`, `tool` or `none`";
            return Err(FieldFault::at("type", Code::InvalidValue, message));
        }
    };
    Ok((choice, one_call))
}

/// Checks that the tools of a choice are offered.
pub(crate) fn check(choice: &ToolChoice, tools: &[Tool]) -> Read<()> {
    let fault = |message: &str| Err(FieldFault::at("tool_choice", Code::InvalidValue, message));
    let offered = |name: &String| tools.iter().any(|tool| tool.name == *name);
    match choice {
        ToolChoice::Auto | ToolChoice::None => Ok(()),
        ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { .. } if tools.is_empty() => {
            fault("it needs `tools`, and none are offered")
        }
        ToolChoice::Named(name) if !offered(name) => fault("it names a tool that `tools` do not offer"),
        ToolChoice::Allowed { names, .. } if !names.iter().all(offered) => {
            fault("it allows a tool that `tools` do not offer")
        }
        ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { .. } => Ok(()),
    }
}
