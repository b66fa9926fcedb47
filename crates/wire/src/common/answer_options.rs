//! Options for an answer beside its text: the response format, the amount of reasoning, and additional variables of the
//! chat template. Knows no template and no grammar.

use headrace_domain::{Code, Endpoint, ReasoningOptions};
use serde_json::{Map, Value};

use crate::common::form;
use crate::common::params::{CommonParams, integer};
use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;
use crate::json::node::JsonNode;
use crate::limits::WireLimits;

/// OpenAI's words for the reasoning effort.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Anthropic's words for the reasoning effort.
const ANTHROPIC_EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// The smallest thinking budget, in tokens. Anthropic's bound.
pub(crate) const LEAST_THINKING_TOKENS: u32 = 1_024;

/// Variables that are parts of the conversation, or that the model's own files set.
pub const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "strftime_now",
    "raise_exception",
];

/// Reads an option in OpenAI's or vLLM's form. Returns `false` and reads nothing if the endpoint has no option `key`.
pub(crate) fn take(params: &mut CommonParams<'_>, key: &str, r: &mut JsonReader<'_>) -> Read<bool> {
    let limits = params.limits;
    let (chat, messages) =
        (params.endpoint == Endpoint::ChatCompletions, params.endpoint == Endpoint::Messages);
    match key {
        "chat_template_kwargs" if chat || messages => {
            let variables = r.optional(|r| template(r, &mut params.reasoning))?;
            params.template = variables.unwrap_or_default();
        }
        "response_format" if !messages => {
            let form = r.optional(|r| form::response_format(r, limits))?.flatten();
            params.hold_to(form);
        }
        "structured_outputs" if !messages => {
            let form = r.optional(|r| form::structured_outputs(r, limits))?;
            params.hold_to(form);
        }
        "reasoning_effort" if chat => effort(r, &mut params.reasoning)?,
        "verbosity" if chat => {
            params.verbosity = r.optional(verbosity)?.filter(|word| word != USUAL_VERBOSITY);
        }
        "include_reasoning" if chat => {
            params.reasoning.hidden = r.optional(JsonReader::bool)? == Some(false);
        }
        "enable_thinking" if chat => {
            params.reasoning.enabled = r.optional(JsonReader::bool)?.or(params.reasoning.enabled);
        }
        "thinking_token_budget" if chat => {
            let cap = limits.max_output_tokens_per_request;
            params.reasoning.budget_tokens = r.optional(|r| integer(r, 0, cap))?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Reads a word that must be one of `words`.
fn word(r: &mut JsonReader<'_>, words: &[&str]) -> Read<String> {
    let word = r.string()?;
    if words.contains(&word.as_ref()) {
        return Ok(word.into_owned());
    }
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    Err(FieldFault::new(Code::InvalidValue, format!("it must be one of {}", words.join(", "))))
}

/// The default verbosity.
pub(crate) const USUAL_VERBOSITY: &str = "medium";

/// Reads the verbosity of the answer, in OpenAI's words.
pub(crate) fn verbosity(r: &mut JsonReader<'_>) -> Read<String> {
    word(r, &["low", USUAL_VERBOSITY, "high"])
}

/// Reads OpenAI's `reasoning_effort`.
pub(crate) fn effort(r: &mut JsonReader<'_>, wish: &mut ReasoningOptions) -> Read<()> {
    let Some(word) = r.optional(|r| self::word(r, EFFORTS))? else { return Ok(()) };
    if word == "none" {
        wish.enabled = Some(false);
    } else {
        wish.enabled = Some(true);
        wish.effort = Some(word);
    }
    Ok(())
}

/// Reads Anthropic's `output_config.effort`.
pub(crate) fn anthropic_effort(r: &mut JsonReader<'_>, wish: &mut ReasoningOptions) -> Read<()> {
    wish.effort = r.optional(|r| word(r, ANTHROPIC_EFFORTS))?;
    Ok(())
}

/// Reads Anthropic's `thinking`.
pub(crate) fn thinking(r: &mut JsonReader<'_>, wish: &mut ReasoningOptions, limits: &WireLimits) -> Read<()> {
    let (mut kind, mut budget, mut display) = (None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(word(r, &["enabled", "disabled", "adaptive"])?),
            "budget_tokens" => {
                let cap = limits.max_output_tokens_per_request;
                budget = Some(integer(r, LEAST_THINKING_TOKENS, cap)?);
            }
            "display" => display = r.optional(|r| word(r, &["summarized", "omitted"]))?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| FieldFault::missing("type"))?;
    let stray = |key: &str| {
        Err(FieldFault::at(key, Code::InvalidValue, format!("thinking that is `{kind}` has none")))
    };
    if budget.is_some() && kind != "enabled" {
        return stray("budget_tokens");
    }
    if display.is_some() && kind == "disabled" {
        return stray("display");
    }
    wish.enabled = match kind.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        // The model decides.
        _ => None,
    };
    if kind == "enabled" {
        wish.budget_tokens = Some(budget.ok_or_else(|| FieldFault::missing("budget_tokens"))?);
    }
    wish.hidden = display.as_deref() == Some("omitted");
    Ok(())
}

/// Reads vLLM's `chat_template_kwargs`. A switch for thinking in it also sets `wish`, because the parsing of the reply
/// depends on it.
pub(crate) fn template(r: &mut JsonReader<'_>, wish: &mut ReasoningOptions) -> Read<Map<String, Value>> {
    let variables = JsonNode::object(r)?.into_object()?;
    if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
        let message = "the template has it from the request or from the model; leave it out";
        return Err(FieldFault::at(name, Code::UnsupportedParameter, message));
    }
    let switch = ["enable_thinking", "thinking"].iter().find_map(|name| variables.get(*name)?.as_bool());
    wish.enabled = wish.enabled.or(switch);
    Ok(variables)
}
