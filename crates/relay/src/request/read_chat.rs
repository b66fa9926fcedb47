//! Reads the parameters and tools of a chat completions body into a [`NeutralRequest`]. `read_chat_messages` reads the messages.
//! Must not know how another dialect spells what it reads.

use std::borrow::Cow;

use headrace_domain::{Call, Code, Dialect};

use super::neutral_request::{
    EFFORTS, NeutralRequest, NeutralTool, NeutralToolChoice, ReasoningAmount, RequestedTier, SchemaFormat,
    lacks, no_such, unknown,
};
use super::read_chat_messages::turns;
use headrace_wire::WireLimits;
use headrace_wire::common::refused::AcceptedValue;
use headrace_wire::common::refused::AcceptedValue::{Bool, Empty, Nothing, Number, Only, Words};
use headrace_wire::common::refused::neutral;
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// Fields that no other dialect has, each with the values that request nothing.
pub(super) const ONLY_HERE: &[(&str, AcceptedValue)] = &[
    ("audio", Nothing),
    ("best_of", Number(1.0)),
    ("cache_salt", Nothing),
    ("echo", Bool(false)),
    ("frequency_penalty", Number(0.0)),
    ("function_call", Nothing),
    ("functions", Empty),
    ("ignore_eos", Bool(false)),
    ("logit_bias", Empty),
    ("logprobs", Bool(false)),
    ("min_p", Number(0.0)),
    ("min_tokens", Number(0.0)),
    ("modalities", Only("text")),
    ("moderation", Nothing),
    ("n", Number(1.0)),
    ("prediction", Nothing),
    ("presence_penalty", Number(0.0)),
    ("prompt_logprobs", Nothing),
    ("repetition_penalty", Number(1.0)),
    ("return_token_ids", Bool(false)),
    ("seed", Nothing),
    ("stop_token_ids", Empty),
    ("store", Bool(false)),
    ("top_logprobs", Number(0.0)),
    ("verbosity", Words(&["medium"])),
    ("web_search_options", Nothing),
];

/// Fields that are not translated. Either the call holds them already, or they change no answer: cache hints and labels
/// of the call.
pub(super) const NOT_PUT: &[&str] = &[
    "headrace",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "model",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "stream",
    "timeout",
];

/// Reads the whole body.
pub(super) fn read<'a>(
    call: &Call,
    body: &'a [u8],
    to: Dialect,
    limits: &WireLimits,
) -> Read<NeutralRequest<'a>> {
    let mut r = JsonReader::new(body, usize::MAX, usize::MAX)?;
    let mut request = NeutralRequest::default();
    let mut allowed = None;
    r.object(|r, key| {
        match key.as_ref() {
            "messages" => request.turns = turns(r, to)?,
            "tools" => request.tools = r.optional(|r| tools(r, to))?.unwrap_or_default(),
            "tool_choice" => {
                if let Some((choice, names)) = r.optional(|r| choice(r, to))? {
                    (request.choice, allowed) = (Some(choice), names);
                }
            }
            "parallel_tool_calls" => request.parallel = r.optional(JsonReader::bool)?,
            "temperature" => request.temperature = r.optional(JsonReader::number)?,
            "top_p" => request.top_p = r.optional(JsonReader::number)?,
            "top_k" => {
                request.top_k = r.optional(JsonReader::number)?.filter(|k| !k.starts_with('-') && *k != "0")
            }
            "stop" => request.stop = r.optional(stop)?.unwrap_or_default(),
            "reasoning_effort" => request.reasoning = r.optional(|r| effort(r, to))?,
            "response_format" => request.format = r.optional(|r| format(r, to))?.flatten(),
            "user" | "safety_identifier" => user(r, &mut request)?,
            "service_tier" => request.tier = r.optional(|r| tier(r, to))?,
            "stream_options" => {
                r.optional(|r| stream_options(r, to))?;
            }
            key if NOT_PUT.contains(&key) => r.skip()?,
            key => only_here(ONLY_HERE, key, r, to, limits)?,
        }
        Ok(())
    })?;
    r.end()?;
    if let Some(allowed) = allowed {
        offer_alone(&mut request, &allowed)?;
    }
    if call.sampling.n > 1 {
        return Err(
            lacks(to, Code::UnsupportedValue, "gives one answer; send several requests").under_key("n")
        );
    }
    Ok(request)
}

/// Reads a field that only one dialect has. Accepts it if its value requests nothing.
pub(super) fn only_here(
    rows: &[(&str, AcceptedValue)],
    key: &str,
    r: &mut JsonReader<'_>,
    to: Dialect,
    limits: &WireLimits,
) -> Read<()> {
    let Some((_, accept)) = rows.iter().find(|(name, _)| *name == key) else { return Err(unknown(to)) };
    match r.optional(|r| neutral(accept, r, limits))? {
        None | Some(true) => Ok(()),
        Some(false) => Err(no_such(to)),
    }
}

fn stop<'a>(r: &mut JsonReader<'a>) -> Read<Vec<Cow<'a, str>>> {
    if r.kind()? == ValueKind::String {
        return Ok(vec![r.string()?]);
    }
    let mut strings = Vec::new();
    r.array(usize::MAX, |r, _| {
        strings.push(r.string()?);
        Ok(())
    })?;
    Ok(strings)
}

fn effort(r: &mut JsonReader<'_>, to: Dialect) -> Read<ReasoningAmount> {
    let word = r.string()?;
    if word == "none" {
        return Ok(ReasoningAmount::Off);
    }
    let known = EFFORTS.iter().find(|known| **known == word);
    known.map(|word| ReasoningAmount::Effort(word)).ok_or_else(|| {
        lacks(
            to,
            Code::UnsupportedValue,
            "has no such effort; there are `none`, `low`, `medium`, `high`, `xhigh` and `max`",
        )
    })
}

fn format<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Option<SchemaFormat<'a>>> {
    let (mut kind, mut schema) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let word = r.string()?;
                if !matches!(word.as_ref(), "text" | "json_schema") {
                    let why = "has no such format; there are `text` and `json_schema`";
                    return Err(lacks(to, Code::UnsupportedValue, why));
                }
                kind = Some(word);
            }
            "json_schema" => schema = r.optional(|r| json_schema(r, to))?.flatten(),
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    match kind.ok_or_else(|| FieldFault::missing("type"))?.as_ref() {
        "text" => Ok(None),
        _ => {
            let schema = schema.ok_or_else(|| FieldFault::missing("schema").under_key("json_schema"))?;
            Ok(Some(SchemaFormat { schema }))
        }
    }
}

fn json_schema<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Option<&'a str>> {
    let mut schema = None;
    r.object(|r, key| {
        match key.as_ref() {
            // The schema's label, and whether the answer must follow the schema. In a dialect without labels, it always
            // must.
            "name" => r.string().map(drop)?,
            "strict" => r.optional(JsonReader::bool).map(drop)?,
            "schema" => schema = r.optional(raw_object)?,
            "description" => {
                let why = "has no description beside a schema; write it into the schema";
                r.optional(|_| Err::<(), _>(lacks(to, Code::UnsupportedParameter, why)))?;
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    Ok(schema)
}

/// Reads an object as raw JSON.
pub(super) fn raw_object<'a>(r: &mut JsonReader<'a>) -> Read<&'a str> {
    r.require(ValueKind::Object)?;
    r.raw()
}

/// Reads the end user. `safety_identifier` is the newer name of `user`.
fn user<'a>(r: &mut JsonReader<'a>, request: &mut NeutralRequest<'a>) -> Read<()> {
    let Some(user) = r.optional(JsonReader::string)? else { return Ok(()) };
    if request.user.as_ref().is_some_and(|other| *other != user) {
        let message = "`user` and `safety_identifier` name different users; send one of them";
        return Err(FieldFault::new(Code::InvalidValue, message));
    }
    request.user = Some(user);
    Ok(())
}

fn tier(r: &mut JsonReader<'_>, to: Dialect) -> Read<RequestedTier> {
    match r.string()?.as_ref() {
        "auto" => Ok(RequestedTier::Auto),
        "default" => Ok(RequestedTier::Standard),
        _ => Err(lacks(to, Code::UnsupportedValue, "has no such tier; there are `auto` and `default`")),
    }
}

fn stream_options(r: &mut JsonReader<'_>, to: Dialect) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        // The writer of the answer decides whether usage is reported.
        "include_usage" => r.skip(),
        "include_obfuscation" | "continuous_usage_stats" => match r.optional(JsonReader::bool)? {
            Some(true) => Err(no_such(to)),
            _ => Ok(()),
        },
        _ => Err(unknown(to)),
    })
}

fn tools<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Vec<NeutralTool<'a>>> {
    let mut tools = Vec::new();
    r.array(usize::MAX, |r, _| {
        let mut tool = None;
        r.object(|r, key| {
            match key.as_ref() {
                "type" => {
                    if r.string()? != "function" {
                        let why = "has no such tool; there is `function`";
                        return Err(lacks(to, Code::UnsupportedValue, why));
                    }
                }
                "function" => tool = Some(function(r, to)?),
                _ => return Err(unknown(to)),
            }
            Ok(())
        })?;
        tools.push(tool.ok_or_else(|| FieldFault::missing("function"))?);
        Ok(())
    })?;
    Ok(tools)
}

fn function<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<NeutralTool<'a>> {
    let mut tool = NeutralTool::default();
    r.object(|r, key| {
        match key.as_ref() {
            "name" => tool.name = r.string()?,
            "description" => tool.description = r.optional(JsonReader::string)?,
            "parameters" => tool.schema = r.optional(raw_object)?,
            "strict" => tool.strict = r.optional(JsonReader::bool)?,
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    if tool.name.is_empty() {
        return Err(FieldFault::missing("name"));
    }
    Ok(tool)
}

/// Removes all offered tools that are not allowed, because the other dialect has no separate list of allowed tools.
fn offer_alone(request: &mut NeutralRequest<'_>, allowed: &[Cow<'_, str>]) -> Read<()> {
    let place =
        |fault: FieldFault| fault.under_key("tools").under_key("allowed_tools").under_key("tool_choice");
    let is_offered = |name: &Cow<'_, str>| request.tools.iter().any(|tool| tool.name == *name);
    if let Some(index) = allowed.iter().position(|name| !is_offered(name)) {
        let message = "`tools` does not offer this function: offer it, or leave it out here";
        return Err(place(FieldFault::new(Code::InvalidValue, message).under_index(index)));
    }
    request.tools.retain(|tool| allowed.contains(&tool.name));
    Ok(())
}

/// A tool choice, and the allowed names if it allows only some tools.
type Chosen<'a> = (NeutralToolChoice<'a>, Option<Vec<Cow<'a, str>>>);

fn choice<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Chosen<'a>> {
    if r.kind()? == ValueKind::String {
        let choice = match r.string()?.as_ref() {
            "auto" => NeutralToolChoice::Auto,
            "none" => NeutralToolChoice::None,
            "required" => NeutralToolChoice::Required,
            _ => {
                let message = "it must be `auto`, `none`, `required`, a function or `allowed_tools`";
                return Err(FieldFault::new(Code::InvalidValue, message));
            }
        };
        return Ok((choice, None));
    }
    let (mut name, mut allowed) = (None, None);
    let mut allows = false;
    r.object(|r, key| {
        match key.as_ref() {
            "type" => match r.string()?.as_ref() {
                "function" => {}
                "allowed_tools" => allows = true,
                _ => {
                    let why = "has no such choice; there are `auto`, `none`, `required`, a function and `allowed_tools`";
                    return Err(lacks(to, Code::UnsupportedValue, why));
                }
            },
            "allowed_tools" => allowed = Some(allowed_tools(r, to)?),
            "function" => r.object(|r, key| match key.as_ref() {
                "name" => {
                    name = Some(r.string()?);
                    Ok(())
                }
                _ => Err(unknown(to)),
            })?,
            _ => return Err(no_such(to)),
        }
        Ok(())
    })?;
    if allows {
        let (choice, names) = allowed.ok_or_else(|| FieldFault::missing("allowed_tools"))?;
        return Ok((choice, Some(names)));
    }
    let name = name.ok_or_else(|| FieldFault::missing("name").under_key("function"))?;
    Ok((NeutralToolChoice::Named(name), None))
}

/// Reads the mode and the names of `allowed_tools`.
fn allowed_tools<'a>(
    r: &mut JsonReader<'a>,
    to: Dialect,
) -> Read<(NeutralToolChoice<'a>, Vec<Cow<'a, str>>)> {
    let (mut choice, mut names) = (None, Vec::new());
    r.object(|r, key| {
        match key.as_ref() {
            "mode" => {
                choice = Some(match r.string()?.as_ref() {
                    "auto" => NeutralToolChoice::Auto,
                    "required" => NeutralToolChoice::Required,
                    _ => return Err(FieldFault::new(Code::InvalidValue, "it must be `auto` or `required`")),
                });
            }
            "tools" => r.array(usize::MAX, |r, _| {
                names.push(allowed_tool(r, to)?);
                Ok(())
            })?,
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    if names.is_empty() {
        return Err(FieldFault::at("tools", Code::EmptyArray, "it must name at least one function"));
    }
    Ok((choice.ok_or_else(|| FieldFault::missing("mode"))?, names))
}

fn allowed_tool<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<Cow<'a, str>> {
    let mut name = None;
    r.object(|r, key| {
        match key.as_ref() {
            "type" if r.string()? == "function" => {}
            "type" => {
                return Err(lacks(to, Code::UnsupportedValue, "has no such tool; there is `function`"));
            }
            "function" => r.object(|r, key| match key.as_ref() {
                "name" => {
                    name = Some(r.string()?);
                    Ok(())
                }
                _ => Err(unknown(to)),
            })?,
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    name.ok_or_else(|| FieldFault::missing("name").under_key("function"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_one_dialect_is_read_within_the_operators_limits() {
        const ROWS: &[(&str, AcceptedValue)] = &[("label", AcceptedValue::Label)];
        let usual = WireLimits::default().max_label_bytes;
        for (max_label_bytes, bytes, is_read) in [
            (usual * 2, usual + 1, true),
            (usual * 2, usual * 2 + 1, false),
            (usual, usual + 1, false),
            (8, 8, true),
            (8, 9, false),
        ] {
            let limits = WireLimits { max_label_bytes, ..WireLimits::default() };
            let json = format!("\"{}\"", "x".repeat(bytes));
            let mut r = JsonReader::new(json.as_bytes(), usize::MAX, usize::MAX).unwrap();
            let read = only_here(ROWS, "label", &mut r, Dialect::Anthropic, &limits);
            assert_eq!(read.is_ok(), is_read, "{bytes} of {max_label_bytes} bytes");
        }
    }
}
