//! Reads the tools of a Responses call, and which of them may or must be called. Tools that run at OpenAI are not
//! available here. The operator decides whether they are left out or refused.

use std::borrow::Cow;

use bytes::BytesMut;
use headrace_domain::{Code, CustomInput, Tool, ToolChoice};

use crate::common::choice::tool_names;
use crate::common::custom;
use crate::common::names::tool_name;
use crate::common::tools::{push_tool, schema};
use crate::fault::{FieldFault, Read};
use crate::json::writer::{raw, value};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The tools of a call.
#[derive(Debug, Default)]
pub(super) struct ResponsesTools {
    pub(super) tools: Vec<Tool>,
    /// The tools as the answer repeats them: a JSON list, without brackets.
    pub(super) echo: BytesMut,
    /// The types of the tools that were left out.
    pub(super) skipped: Vec<String>,
}

/// The fields of a tool of any type.
#[derive(Default)]
struct ToolDraft<'a> {
    name: Option<String>,
    description: Option<String>,
    /// The schema as it was sent, and as parsed.
    parameters: Option<(&'a str, serde_json::Value)>,
    strict: Option<bool>,
    format: Option<CustomInput>,
}

impl ResponsesTools {
    pub(super) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Self> {
        let mut all = Self::default();
        r.array(limits.max_tools, |r, _| {
            r.require(ValueKind::Object)?;
            let text = r.raw()?;
            all.tool(r.inner(text), text, limits)
        })?;
        Ok(all)
    }

    /// Adds further tools. A name may occur only once, because a tool call must say which tool is meant.
    pub(super) fn add(&mut self, more: Self) -> Read<()> {
        for tool in more.tools {
            push_tool(&mut self.tools, tool)?;
        }
        self.skip(more.skipped);
        Ok(())
    }

    fn skip(&mut self, names: Vec<String>) {
        for name in names {
            if !self.skipped.contains(&name) {
                self.skipped.push(name);
            }
        }
    }

    fn tool(&mut self, r: JsonReader<'_>, text: &str, limits: &WireLimits) -> Read<()> {
        let kind = type_of(&r)?;
        match kind.as_ref() {
            "function" => self.function(r, limits),
            "custom" => self.custom(r, text, limits),
            _ if limits.skip_hosted_tools => {
                // The answer repeats only names of OpenAI's tools, never the caller's own words.
                let known = HOSTED.iter().find(|hosted| **hosted == kind.as_ref());
                let name = (*known.unwrap_or(&"other")).to_owned();
                self.skip(vec![name]);
                Ok(())
            }
            _ => Err(FieldFault::at("type", Code::UnsupportedValue, NOT_HERE)),
        }
    }

    fn function(&mut self, mut r: JsonReader<'_>, limits: &WireLimits) -> Read<()> {
        let draft = ToolDraft::read(&mut r, false, limits)?;
        let name = draft.name.ok_or_else(|| FieldFault::missing("name"))?;
        self.comma();
        let out = &mut self.echo;
        raw(out, "{\"type\":\"function\",\"name\":");
        value(out, &name);
        raw(out, ",\"description\":");
        value(out, &draft.description);
        raw(out, ",\"parameters\":");
        raw(out, draft.parameters.as_ref().map_or("null", |(text, _)| text));
        raw(out, ",\"strict\":");
        value(out, &draft.strict);
        raw(out, "}");
        let mut tool = Tool::function(name, draft.description, draft.parameters.map(|(_, schema)| schema));
        tool.strict = draft.strict == Some(true);
        push_tool(&mut self.tools, tool)
    }

    fn custom(&mut self, mut r: JsonReader<'_>, text: &str, limits: &WireLimits) -> Read<()> {
        let draft = ToolDraft::read(&mut r, true, limits)?;
        let name = draft.name.ok_or_else(|| FieldFault::missing("name"))?;
        self.comma();
        raw(&mut self.echo, text);
        let input = draft.format.unwrap_or(CustomInput::Text);
        push_tool(&mut self.tools, custom::tool(name, draft.description, input))
    }

    fn comma(&mut self) {
        if !self.tools.is_empty() {
            raw(&mut self.echo, ",");
        }
    }
}

/// Types of tools that run at OpenAI, or that only OpenAI's clients know.
const HOSTED: &[&str] = &[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_preview",
];

const NOT_HERE: &str = "only tools of type `function` and `custom` are here: those that you run yourself. Leave it out, or ask the \
                        operator to have others skipped (`responses.skip_hosted_tools`)";

fn type_of<'a>(r: &JsonReader<'a>) -> Read<Cow<'a, str>> {
    let mut r = r.again();
    let mut kind = None;
    r.object(|r, key| {
        if key.as_ref() == "type" {
            kind = Some(r.string()?);
            return Ok(());
        }
        r.skip()
    })?;
    kind.ok_or_else(|| FieldFault::missing("type"))
}

impl<'a> ToolDraft<'a> {
    fn read(r: &mut JsonReader<'a>, is_custom: bool, limits: &WireLimits) -> Read<Self> {
        let mut draft = Self::default();
        r.object(|r, key| {
            match key.as_ref() {
                "type" => r.skip()?,
                "name" => draft.name = Some(tool_name(r)?),
                "description" => draft.description = r.optional(JsonReader::string)?.map(Cow::into_owned),
                "parameters" if !is_custom => {
                    draft.parameters = r.optional(|r| {
                        let text = r.raw()?;
                        Ok((text, schema(&mut r.inner(text))?))
                    })?;
                }
                "strict" if !is_custom => draft.strict = r.optional(JsonReader::bool)?,
                "format" if is_custom => draft.format = r.optional(|r| custom::format(r, limits))?,
                // Neither changes what the model may do with a tool, because all tools are in the prompt anyway.
                "defer_loading" | "allowed_callers" => r.skip()?,
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        Ok(draft)
    }
}

const CHOICES: &str =
    "it must be `auto`, `none`, `required`, a function or custom tool by its name, or `allowed_tools`";

/// Reads which tools may or must be called.
pub(super) fn choice(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ToolChoice> {
    match r.kind()? {
        ValueKind::String => match r.string()?.as_ref() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            _ => Err(FieldFault::new(Code::InvalidValue, CHOICES)),
        },
        ValueKind::Object => object(r, limits),
        _ => Err(FieldFault::new(Code::InvalidType, CHOICES)),
    }
}

fn object(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ToolChoice> {
    let (mut kind, mut name, mut mode, mut names) = (None, None, None, Vec::new());
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "name" => name = Some(tool_name(r)?),
            "mode" => mode = Some(r.string()?),
            "tools" => names = tool_names(r, limits)?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    match kind.as_deref() {
        Some("function" | "custom") => {
            Ok(ToolChoice::Named(name.ok_or_else(|| FieldFault::missing("name"))?))
        }
        Some("allowed_tools") => match mode.as_deref() {
            // As with `auto`, but only the named tools are allowed.
            None | Some("auto") => Ok(ToolChoice::Allowed { names, required: false }),
            Some("required") => Ok(ToolChoice::Allowed { names, required: true }),
            Some("none") => Ok(ToolChoice::None),
            Some(_) => Err(FieldFault::at("mode", Code::InvalidValue, "it must be `auto` or `required`")),
        },
        Some(_) => Err(FieldFault::at("type", Code::UnsupportedValue, CHOICES)),
        None => Err(FieldFault::missing("type")),
    }
}

/// Checks that the tools of a choice are offered.
pub(super) fn check(choice: &ToolChoice, tools: &[Tool]) -> Read<()> {
    let there = |name: &String| tools.iter().any(|tool| tool.name == *name);
    let fits = match choice {
        ToolChoice::Auto | ToolChoice::None => true,
        ToolChoice::Required => !tools.is_empty(),
        ToolChoice::Named(name) => there(name),
        ToolChoice::Allowed { names, .. } => !names.is_empty() && names.iter().all(there),
    };
    if fits {
        return Ok(());
    }
    Err(FieldFault::at("tool_choice", Code::InvalidValue, "it names a tool that is not in `tools`"))
}
