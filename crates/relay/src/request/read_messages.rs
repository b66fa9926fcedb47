//! Reads the parameters and tools of an Anthropic messages body into a [`NeutralRequest`]. `read_messages_turns` reads the turns.
//! Must not know how another dialect spells what it reads.

use std::borrow::Cow;

use headrace_domain::{Call, Code, Dialect};

use super::neutral_request::{
    EFFORTS, NeutralRequest, NeutralTool, NeutralToolChoice, ReasoningAmount, RequestedTier, SchemaFormat,
    lacks, no_such, unknown,
};
use super::read_chat::{only_here, raw_object};
use super::read_messages_turns::{texts, turns};
use headrace_wire::WireLimits;
use headrace_wire::common::refused::AcceptedValue;
use headrace_wire::common::refused::AcceptedValue::{Empty, Nothing, Words};
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};

/// Fields that no other dialect has, each with the values that request nothing.
pub(super) const ONLY_HERE: &[(&str, AcceptedValue)] = &[
    ("betas", Empty),
    ("container", Nothing),
    ("fallbacks", Empty),
    ("inference_geo", Nothing),
    ("mcp_servers", Empty),
    ("speed", Words(&["standard"])),
    ("thread", Nothing),
    ("user_profile_id", Nothing),
    ("workspace_id", Nothing),
];

/// Fields that are not translated. Either the call holds them already, or they change no answer: cache hints, and the
/// request for a diagnosis of cache misses.
pub(super) const NOT_PUT: &[&str] =
    &["cache_control", "diagnostics", "headrace", "max_tokens", "model", "stream", "timeout"];

/// Upper bounds in thinking tokens for the efforts `low` and `medium`. A budget is a bound and an effort is a hint, but
/// other dialects have only hints.
const BUDGETS: [u64; 2] = [4_096, 16_384];

/// The value of `thinking`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThinkingParam {
    Off,
    Auto,
    Budget(&'static str),
}

/// Reads the whole body.
pub(super) fn read<'a>(
    call: &Call,
    body: &'a [u8],
    to: Dialect,
    limits: &WireLimits,
) -> Read<NeutralRequest<'a>> {
    let mut r = JsonReader::new(body, usize::MAX, usize::MAX)?;
    let mut request = NeutralRequest::default();
    let (mut thinking, mut effort) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "messages" => request.turns = turns(r, to)?,
            "system" => request.system = r.optional(|r| texts(r, to))?.unwrap_or_default(),
            "tools" => request.tools = r.optional(|r| tools(r, to, limits))?.unwrap_or_default(),
            "tool_choice" => {
                r.optional(|r| choice(r, &mut request, to))?;
            }
            "temperature" => request.temperature = r.optional(JsonReader::number)?,
            "top_p" => request.top_p = r.optional(JsonReader::number)?,
            "top_k" => request.top_k = r.optional(JsonReader::number)?,
            "stop_sequences" => request.stop = r.optional(strings)?.unwrap_or_default(),
            "thinking" => thinking = r.optional(|r| self::thinking(r, to))?,
            "output_config" => {
                let config = |r: &mut JsonReader<'a>| output_config(r, &mut effort, &mut request.format, to);
                r.optional(config)?;
            }
            "output_format" => request.format = r.optional(|r| format(r, to))?,
            "metadata" => {
                r.optional(|r| metadata(r, &mut request, to))?;
            }
            "service_tier" => request.tier = r.optional(|r| tier(r, to))?,
            "context_management" => {
                r.optional(|r| context_management(r, to))?;
            }
            "cache_salt" => request.cache_salt = r.optional(JsonReader::string)?,
            key if NOT_PUT.contains(&key) => r.skip()?,
            key => only_here(ONLY_HERE, key, r, to, limits)?,
        }
        Ok(())
    })?;
    r.end()?;
    if call.sampling.max_tokens == Some(0) {
        let why = "has no way to read a prompt ahead; send at least 1";
        return Err(lacks(to, Code::UnsupportedValue, why).under_key("max_tokens"));
    }
    request.reasoning = reasoning(thinking, effort, to)?;
    Ok(request)
}

/// Combines `thinking` and `output_config.effort` into one value.
fn reasoning(
    thinking: Option<ThinkingParam>,
    effort: Option<&'static str>,
    to: Dialect,
) -> Read<Option<ReasoningAmount>> {
    Ok(match (thinking, effort) {
        (Some(ThinkingParam::Off), Some(_)) => {
            let why = "has one switch for thinking and effort; leave out one of them";
            return Err(lacks(to, Code::UnsupportedValue, why)
                .under_key("effort")
                .under_key("output_config"));
        }
        (_, Some(word)) | (Some(ThinkingParam::Budget(word)), None) => Some(ReasoningAmount::Effort(word)),
        (Some(ThinkingParam::Off), None) => Some(ReasoningAmount::Off),
        (Some(ThinkingParam::Auto), None) => Some(ReasoningAmount::Auto),
        (None, None) => None,
    })
}

fn thinking(r: &mut JsonReader<'_>, to: Dialect) -> Read<ThinkingParam> {
    let (mut kind, mut budget) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                kind = Some(match r.string()?.as_ref() {
                    "disabled" => ThinkingParam::Off,
                    "adaptive" | "enabled" => ThinkingParam::Auto,
                    _ => {
                        let why = "has no such thinking; there are `adaptive`, `enabled` and `disabled`";
                        return Err(lacks(to, Code::UnsupportedValue, why));
                    }
                });
            }
            "budget_tokens" => {
                let tokens = r.number()?.parse::<u64>();
                let tokens =
                    tokens.map_err(|_| FieldFault::new(Code::InvalidType, "it must be a whole number"))?;
                let [low, medium] = BUDGETS;
                budget = Some(match tokens {
                    tokens if tokens <= low => "low",
                    tokens if tokens <= medium => "medium",
                    _ => "high",
                });
            }
            // The server decides how much of its reasoning it shows.
            "display" => r.skip()?,
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    Ok(match (kind, budget) {
        (ThinkingParam::Auto, Some(word)) => ThinkingParam::Budget(word),
        (kind, _) => kind,
    })
}

fn output_config<'a>(
    r: &mut JsonReader<'a>,
    effort: &mut Option<&'static str>,
    request: &mut Option<SchemaFormat<'a>>,
    to: Dialect,
) -> Read<()> {
    r.object(|r, key| {
        match key.as_ref() {
            "effort" => {
                let Some(word) = r.optional(JsonReader::string)? else { return Ok(()) };
                let known = EFFORTS.iter().find(|known| **known == word);
                let message = "it must be `low`, `medium`, `high`, `xhigh` or `max`";
                *effort = Some(known.ok_or_else(|| FieldFault::new(Code::InvalidValue, message))?);
            }
            "format" => *request = r.optional(|r| format(r, to))?,
            "task_budget" => {
                r.optional(|_| Err::<(), _>(no_such(to)))?;
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })
}

fn format<'a>(r: &mut JsonReader<'a>, to: Dialect) -> Read<SchemaFormat<'a>> {
    let mut schema = None;
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                if r.string()? != "json_schema" {
                    return Err(lacks(
                        to,
                        Code::UnsupportedValue,
                        "has no such format; there is `json_schema`",
                    ));
                }
            }
            "schema" => schema = Some(raw_object(r)?),
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    Ok(SchemaFormat { schema: schema.ok_or_else(|| FieldFault::missing("schema"))? })
}

fn metadata<'a>(r: &mut JsonReader<'a>, request: &mut NeutralRequest<'a>, to: Dialect) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "user_id" => {
            request.user = r.optional(JsonReader::string)?;
            Ok(())
        }
        _ => Err(unknown(to)),
    })
}

fn tier(r: &mut JsonReader<'_>, to: Dialect) -> Read<RequestedTier> {
    match r.string()?.as_ref() {
        "auto" => Ok(RequestedTier::Auto),
        "standard_only" => Ok(RequestedTier::Standard),
        _ => Err(lacks(to, Code::UnsupportedValue, "has no such tier; there are `auto` and `standard_only`")),
    }
}

/// Checks the edits that the server should make to the conversation. Other dialects have none, so only edits that keep
/// everything are accepted.
fn context_management(r: &mut JsonReader<'_>, to: Dialect) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "edits" => r.array(usize::MAX, |r, _| {
            let mut keeps = false;
            r.object(|r, key| {
                if key == "keep" && r.kind()? == ValueKind::String {
                    keeps = r.string()? == "all";
                    return Ok(());
                }
                r.skip()
            })?;
            if keeps {
                Ok(())
            } else {
                Err(lacks(to, Code::UnsupportedValue, "edits no conversation; shorten it yourself"))
            }
        }),
        _ => Err(unknown(to)),
    })
}

fn strings<'a>(r: &mut JsonReader<'a>) -> Read<Vec<Cow<'a, str>>> {
    let mut strings = Vec::new();
    r.array(usize::MAX, |r, _| {
        strings.push(r.string()?);
        Ok(())
    })?;
    Ok(strings)
}

fn tools<'a>(r: &mut JsonReader<'a>, to: Dialect, limits: &WireLimits) -> Read<Vec<NeutralTool<'a>>> {
    let mut tools = Vec::new();
    r.array(usize::MAX, |r, _| {
        let mut tool = NeutralTool::default();
        r.object(|r, key| {
            match key.as_ref() {
                "type" => {
                    if r.optional(JsonReader::string)?.is_some_and(|kind| kind != "custom") {
                        let why = "has no such tool; there is `custom`: tools that you run yourself";
                        return Err(lacks(to, Code::UnsupportedValue, why));
                    }
                }
                "name" => tool.name = r.string()?,
                "description" => tool.description = r.optional(JsonReader::string)?,
                "input_schema" => tool.schema = Some(raw_object(r)?),
                "strict" => tool.strict = r.optional(JsonReader::bool)?,
                // Hints: about caches, and about streaming arguments early, which happens anyway.
                "cache_control" | "eager_input_streaming" => r.skip()?,
                key => only_here(TOOL_ONLY_HERE, key, r, to, limits)?,
            }
            Ok(())
        })?;
        if tool.name.is_empty() {
            return Err(FieldFault::missing("name"));
        }
        tool.schema.ok_or_else(|| FieldFault::missing("input_schema"))?;
        tools.push(tool);
        Ok(())
    })?;
    Ok(tools)
}

/// Like [`ONLY_HERE`], for a tool.
pub(super) const TOOL_ONLY_HERE: &[(&str, AcceptedValue)] = &[
    ("allowed_callers", AcceptedValue::Only("direct")),
    ("defer_loading", AcceptedValue::Bool(false)),
    ("input_examples", Empty),
];

fn choice<'a>(r: &mut JsonReader<'a>, request: &mut NeutralRequest<'a>, to: Dialect) -> Read<()> {
    let (mut kind, mut name) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "name" => name = r.optional(JsonReader::string)?,
            "disable_parallel_tool_use" => {
                request.parallel = r.optional(JsonReader::bool)?.map(|disabled| !disabled);
            }
            _ => return Err(unknown(to)),
        }
        Ok(())
    })?;
    request.choice = Some(match kind.ok_or_else(|| FieldFault::missing("type"))?.as_ref() {
        "auto" => NeutralToolChoice::Auto,
        "none" => NeutralToolChoice::None,
        "any" => NeutralToolChoice::Required,
        "tool" => NeutralToolChoice::Named(name.ok_or_else(|| FieldFault::missing("name"))?),
        _ => {
            let message = "it must be `auto`, `any`, `tool` or `none`";
            return Err(FieldFault::at("type", Code::InvalidValue, message));
        }
    });
    Ok(())
}
