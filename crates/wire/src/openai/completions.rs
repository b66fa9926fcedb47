//! Reads OpenAI's completion request: raw prompts as text or token ids. Knows no tokenizer.

use std::borrow::Cow;

use headrace_domain::{
    Call, Code, CompletionsExtras, DialectExtras, Endpoint, Prompt, PromptItem, ReasoningOptions, is_blank,
};

use crate::common::params::{CommonParams, ids, integer};
use crate::common::refused;
use crate::common::refused::KnownParameters;
use crate::common::{answer_options, blank};
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// Reads the whole body.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Completions, limits);
    let (mut prompts, mut extras, mut is_list) = (None, CompletionsExtras::default(), false);
    r.object(|r, key| {
        match key.as_ref() {
            "prompt" => {
                is_list = r.kind()? == ValueKind::Array;
                prompts = r.optional(|r| read_prompts(r, limits))?;
            }
            "suffix" => {
                extras.suffix =
                    r.optional(JsonReader::string)?.map(Cow::into_owned).filter(|text| !text.is_empty());
            }
            "parse_special" => extras.parse_special = r.optional(JsonReader::bool)?.unwrap_or(false),
            key => {
                if !params.take_openai(key, r)? && !answer_options::take(&mut params, key, r)? {
                    refused::read(KnownParameters::Completions, key, r, limits)?;
                }
            }
        }
        Ok(())
    })?;
    r.end()?;
    let prompts = prompts.ok_or_else(|| FieldFault::missing("prompt"))?;
    // With a suffix, the prompt may be blank: the answer then fills the gap before the suffix.
    if extras.suffix.as_deref().is_none_or(is_blank) {
        check_blank(&prompts, is_list).map_err(|fault| fault.under_key("prompt"))?;
    }
    let ids = prompts.iter().any(|prompt| matches!(prompt, PromptItem::Ids(_)));
    if ids && extras.suffix.is_some() {
        let message = "the gap of a prompt in ids is marked by ids of its own; send the prompt as text";
        return Err(FieldFault::at("suffix", Code::InvalidValue, message));
    }
    extras.echo = params.echo;
    if extras.echo && extras.suffix.is_some() {
        let message = "the answer fills the gap between prompt and suffix, so the prompt cannot be repeated before it; leave `echo` out";
        return Err(FieldFault::at("suffix", Code::InvalidValue, message));
    }
    let settled = params.settle(prompts.len())?;
    let user = params.end_user();
    Ok(Call {
        endpoint: Endpoint::Completions,
        model: settled.model,
        prompt: Prompt::Raw(prompts),
        origins: Vec::new(),
        sampling: settled.sampling,
        stream: params.stream,
        include_usage: params.include_usage,
        return_token_ids: params.return_token_ids,
        explain: params.explain,
        cache_marks: Vec::new(),
        cache_salt: params.cache_salt,
        timeout: params.timeout,
        user,
        labels: params.labels.take(),
        tier: params.tier,
        form: settled.form,
        reasoning: ReasoningOptions::default(),
        dialect: DialectExtras::completions(extras),
    })
}

/// Refuses blank prompts.
fn check_blank(prompts: &[PromptItem], is_list: bool) -> Read<()> {
    let blank = |prompt: &PromptItem| matches!(prompt, PromptItem::Text(text) if is_blank(text));
    match prompts.iter().position(blank) {
        Some(index) if is_list => Err(blank::text().under_index(index)),
        Some(_) => Err(blank::text()),
        None => Ok(()),
    }
}

/// Reads `"text"`, `["text", …]`, `[id, …]` or `[[id, …], …]`. The first item decides which.
fn read_prompts(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<PromptItem>> {
    match r.kind()? {
        ValueKind::String => return Ok(vec![PromptItem::Text(r.string()?.into_owned())]),
        ValueKind::Array => {}
        _ => return Err(wrong_type()),
    }
    let mut first = None;
    let mut prompts = Vec::new();
    let mut flat = Vec::new();
    // One list of ids is one prompt, so the limit on the number of items depends on the first item.
    r.array(limits.max_prompt_ids, |r, index| {
        let kind = r.kind()?;
        if *first.get_or_insert(kind) != kind {
            return Err(FieldFault::new(
                Code::InvalidType,
                "all items must be of one type: strings, ids or lists of ids",
            ));
        }
        if kind != ValueKind::Number && index >= limits.max_prompts {
            let message =
                format!("there may be at most {} prompts; send several requests", limits.max_prompts);
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message).of_parent());
        }
        match kind {
            ValueKind::String => prompts.push(PromptItem::Text(r.string()?.into_owned())),
            ValueKind::Number => flat.push(integer(r, 0, u32::MAX)?),
            ValueKind::Array => prompts.push(PromptItem::Ids(some(ids(r, limits.max_prompt_ids)?)?)),
            _ => return Err(wrong_type()),
        }
        Ok(())
    })?;
    if first == Some(ValueKind::Number) {
        prompts.push(PromptItem::Ids(flat));
    }
    some(prompts)
}

fn some<T>(list: Vec<T>) -> Read<Vec<T>> {
    if list.is_empty() { Err(FieldFault::new(Code::EmptyArray, "it must not be empty")) } else { Ok(list) }
}

fn wrong_type() -> FieldFault {
    FieldFault::new(
        Code::InvalidType,
        "it must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    )
}
