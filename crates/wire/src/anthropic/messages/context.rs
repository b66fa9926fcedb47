//! Reads Anthropic's `context_management`: the parts of a long conversation that the server leaves out. Knows no
//! conversation.
//!
//! Source: <https://platform.claude.com/docs/en/build-with-claude/context-editing>.

use headrace_domain::{ClearTools, ClearTrigger, Code};

use crate::common::params::{integer, label};
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The default number of prompt tokens from which results of tools are cleared.
const USUAL_TRIGGER_TOKENS: u64 = 100_000;
/// The default number of results that stay.
const USUAL_KEPT: u32 = 3;

/// The edits that a request asks for.
#[derive(Debug, Default)]
pub(super) struct ContextEdits {
    /// The number of assistant turns, from the end, that keep their thinking. `None` if all turns keep it.
    pub(super) keep_thinking: Option<u32>,
    pub(super) clears: Option<Box<ClearTools>>,
}

/// Reads the whole field.
pub(super) fn management(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ContextEdits> {
    let mut edits = ContextEdits::default();
    r.object(|r, key| match key.as_ref() {
        "edits" => r.array(limits.max_content_parts, |r, _| {
            r.require(ValueKind::Object)?;
            let text = r.raw()?;
            edit(r.inner(text), &mut edits, limits)
        }),
        _ => Err(FieldFault::unknown()),
    })?;
    Ok(edits)
}

fn edit(mut r: JsonReader<'_>, edits: &mut ContextEdits, limits: &WireLimits) -> Read<()> {
    let (mut kind, mut first) = (None, r.again());
    first.object(|r, key| {
        if key.as_ref() == "type" {
            kind = Some(r.string()?.into_owned());
            return Ok(());
        }
        r.skip()
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    if kind.starts_with("clear_thinking_") {
        edits.keep_thinking = thinking(&mut r)?;
        return Ok(());
    }
    if kind.starts_with("clear_tool_uses_") {
        edits.clears = Some(Box::new(tool_uses(&mut r, limits)?));
        return Ok(());
    }
    let message =
        "there are `clear_thinking_20251015` and `clear_tool_uses_20250919`; shorten the rest on your side";
    Err(FieldFault::at("type", Code::UnsupportedValue, message))
}

fn thinking(r: &mut JsonReader<'_>) -> Read<Option<u32>> {
    let mut keep = None;
    r.object(|r, key| {
        match key.as_ref() {
            "type" => r.skip()?,
            "keep" => keep = kept_turns(r)?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok(keep)
}

fn tool_uses(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<ClearTools> {
    let mut clears = ClearTools {
        trigger: ClearTrigger::InputTokens(USUAL_TRIGGER_TOKENS),
        keep: USUAL_KEPT,
        at_least_tokens: 0,
        exclude: Vec::new(),
        inputs: false,
    };
    r.object(|r, key| {
        match key.as_ref() {
            "type" => r.skip()?,
            "trigger" => {
                if let Some((of_tokens, value)) = r.optional(|r| amount(r, &["tool_uses", "input_tokens"]))? {
                    let tokens = ClearTrigger::InputTokens(u64::from(value));
                    clears.trigger = if of_tokens == 1 { tokens } else { ClearTrigger::ToolUses(value) };
                }
            }
            "keep" => {
                let kept = r.optional(|r| amount(r, &["tool_uses"]))?;
                clears.keep = kept.map_or(USUAL_KEPT, |(_, value)| value);
            }
            "clear_at_least" => {
                let least = r.optional(|r| amount(r, &["input_tokens"]))?;
                clears.at_least_tokens = least.map_or(0, |(_, value)| u64::from(value));
            }
            "exclude_tools" => {
                r.optional(|r| {
                    r.array(limits.max_tools, |r, _| {
                        clears.exclude.push(label(r, limits)?);
                        Ok(())
                    })
                })?;
            }
            "clear_tool_inputs" => clears.inputs = r.optional(JsonReader::bool)?.unwrap_or(false),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok(clears)
}

/// Reads `{"type": …, "value": N}`. Returns the index of the type in `types`, and the value.
fn amount(r: &mut JsonReader<'_>, types: &[&str]) -> Read<(usize, u32)> {
    let (mut kind, mut value) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let word = r.string()?;
                let message = || {
                    FieldFault::new(Code::InvalidValue, format!("it must be one of: {}", types.join(", ")))
                };
                kind = Some(types.iter().position(|known| *known == word).ok_or_else(message)?);
            }
            "value" => value = Some(integer(r, 0, u32::MAX)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok((kind.ok_or_else(|| FieldFault::missing("type"))?, value.ok_or_else(|| FieldFault::missing("value"))?))
}

/// Reads `"all"`, `{"type": "all"}` or `{"type": "thinking_turns", "value": N}`. `None` means all.
fn kept_turns(r: &mut JsonReader<'_>) -> Read<Option<u32>> {
    let message = "it must be `all`, or `thinking_turns` and how many";
    let wrong = |code| FieldFault::new(code, message);
    if r.kind()? == ValueKind::String {
        return if r.string()? == "all" { Ok(None) } else { Err(wrong(Code::InvalidValue)) };
    }
    let (mut all, mut turns) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                all = match r.string()?.as_ref() {
                    "all" => Some(true),
                    "thinking_turns" => Some(false),
                    _ => return Err(wrong(Code::InvalidValue)),
                };
            }
            "value" => turns = Some(integer(r, 1, u32::MAX)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    match all.ok_or_else(|| FieldFault::missing("type"))? {
        true => Ok(None),
        false => turns.map(Some).ok_or_else(|| FieldFault::missing("value")),
    }
}
