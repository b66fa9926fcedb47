//! Lenient parsing of a relayed call. Fields that limits, money and rules need are read as `parse` reads them. The
//! receiver judges the rest.
//! Must not know what a receiver understands.

use bytes::Bytes;
use headrace_domain::{
    Call, CallLabels, Code, CompletionsExtras, ConcernKind, DialectExtras, Endpoint, FieldConcern, Prompt,
    RelayedBody, ServiceTier,
};

use super::body_facts::BodyFacts;
use super::body_fields::BodyField;
use super::guard::{self, DECIDED_HERE, StringsHold};
use super::look;
use super::walk;
use headrace_wire::common::answer_options::RESERVED;
use headrace_wire::common::blank::{self, not_empty};
use headrace_wire::common::params::{CommonParams, integer, label};
use headrace_wire::common::refused::{AcceptedValue, neutral};
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};
use headrace_wire::{BadRequest, WireLimits};

/// Reads `body`, sent to `endpoint`, as a call to relay to a receiver that speaks the endpoint's dialect or another
/// one.
///
/// It reads the model, whether the call streams and reports usage, the number and length of the answers, and Headrace's
/// own additions. It refuses parameters that would override the gateway's decisions. All other fields stay in the body,
/// even unknown ones. The body as a whole must meet the same rules as in [`headrace_wire::parse`]: one JSON object in UTF-8, no
/// duplicate keys, limited depth and list lengths.
///
/// # Errors
/// [`BadRequest`] names the first faulty parameter, as in [`headrace_wire::parse`].
pub fn skim(endpoint: Endpoint, body: Bytes, limits: &WireLimits) -> Result<Call, BadRequest> {
    let call = skim_question(endpoint, body, limits)?;
    if endpoint == Endpoint::Messages && call.sampling.max_tokens.is_none() {
        return Err(FieldFault::missing("max_tokens").into());
    }
    Ok(call)
}

/// Like [`skim`], for a body that requests no answer and therefore has no bound for it.
///
/// # Errors
/// The same as for [`skim`].
pub fn skim_question(endpoint: Endpoint, body: Bytes, limits: &WireLimits) -> Result<Call, BadRequest> {
    let mut reader = JsonReader::new(&body, limits.max_json_depth, limits.max_free_form_values)?;
    let mut call = read(endpoint, &mut reader, limits)?;
    if let Prompt::Relayed(relayed) = &mut call.prompt {
        relayed.body = body;
    }
    Ok(call)
}

fn read(endpoint: Endpoint, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(endpoint, limits);
    // Anthropic accepts `max_tokens: 0`, which only fills the prompt cache ahead of the call.
    params.none_may_come = endpoint == Endpoint::Messages;
    let mut facts = BodyFacts::new();
    let (mut prompts, mut extra_key) = (1, None);
    let mut spellings = UnknownSpellings::default();
    walk::body(&mut facts, r, Some(endpoint), limits, |facts, r, field, key| match field {
        _ if is_read(endpoint, field) => params.take_openai(key, r).map(drop),
        BodyField::Temperature
        | BodyField::TopP
        | BodyField::ResponseFormat
        | BodyField::OutputConfig
        | BodyField::StructuredOutputs
        | BodyField::Text => look::free(facts, r),
        BodyField::Metadata => {
            let ((), raw) = r.with_raw(|r| look::free(facts, r))?;
            params.labels = CallLabels::of_json(raw).map(Box::new);
            Ok(())
        }
        BodyField::Seed | BodyField::TopK | BodyField::MinP | BodyField::PromptCacheKey => {
            look::unknown(facts, r, StringsHold::Texts)
        }
        BodyField::ToolChoice => look::described(facts, r, limits.max_tools),
        BodyField::MaxOutputTokens if endpoint == Endpoint::Responses => {
            let cap = limits.max_output_tokens_per_request;
            params.sampling.max_tokens = r.optional(|r| integer(r, 1, cap))?;
            Ok(())
        }
        BodyField::Prompt if endpoint == Endpoint::Completions => {
            let most = limits.max_prompts;
            prompts = r.optional(|r| self::prompts(facts, r, limits, most))?.unwrap_or(1);
            Ok(())
        }
        BodyField::Input if endpoint == Endpoint::Embeddings => {
            let most = limits.max_encode_texts;
            let texts = r.optional(|r| self::prompts(facts, r, limits, most))?;
            texts.map_or(Ok(()), not_empty)
        }
        BodyField::StreamOptions if !matches!(endpoint, Endpoint::Messages | Endpoint::Responses) => {
            params.include_usage = r.optional(include_usage)?.unwrap_or(false);
            Ok(())
        }
        BodyField::ServiceTier if endpoint != Endpoint::Messages => {
            let (tier, raw) = r.with_raw(|r| r.optional(|r| r.string()))?;
            params.tier = match tier.as_deref() {
                Some("flex") => ServiceTier::Flex,
                _ => ServiceTier::Standard,
            };
            extra(facts, (endpoint, key), r, raw, limits)
        }
        BodyField::ExtraKey => {
            extra_key = r.optional(|r| label(r, limits))?;
            Ok(())
        }
        BodyField::ChatTemplateKwargs => template_switches(facts, r),
        _ if matches!(endpoint, Endpoint::Rerank | Endpoint::Score) && SCORED.contains(&key) => {
            r.optional(|r| scored(facts, r)).map(drop)
        }
        _ => by_name(facts, (endpoint, key), r, &mut spellings, limits),
    })?;
    r.end()?;
    if let Some(extra) = extra_key {
        // The two values together form one salt. No other pair yields the same salt.
        let salt = params.cache_salt.take();
        params.cache_salt =
            Some(salt.map_or(format!(":{extra}"), |salt| format!("{}:{salt}:{extra}", salt.len())));
    }
    let mut settled = params.settle(prompts)?;
    if matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score) {
        // Encoders generate no tokens.
        settled.sampling.max_tokens = Some(0);
    }
    params.user = facts.user;
    let user = params.end_user();
    let prompt = RelayedBody {
        body: Bytes::new(),
        text_bytes: facts.text_bytes,
        media: facts.media,
        prompts: u32::try_from(prompts).unwrap_or(u32::MAX),
        has_own_fields: facts.has_own_fields,
        concerns: facts.concerns,
        fields: Some(facts.fields),
    };
    Ok(Call {
        sampling: settled.sampling,
        stream: params.stream,
        include_usage: params.include_usage || matches!(endpoint, Endpoint::Messages | Endpoint::Responses),
        dialect: DialectExtras::completions(CompletionsExtras {
            echo: params.echo,
            ..CompletionsExtras::default()
        }),
        explain: params.explain,
        cache_salt: params.cache_salt,
        timeout: params.timeout,
        user,
        labels: params.labels,
        tier: params.tier,
        ..Call::of_prompt(endpoint, settled.model, Prompt::Relayed(prompt))
    })
}

/// Reads a field that has no rule of its own: by the tables of its name.
fn by_name(
    facts: &mut BodyFacts,
    (endpoint, key): (Endpoint, &str),
    r: &mut JsonReader<'_>,
    spellings: &mut UnknownSpellings,
    limits: &WireLimits,
) -> Read<()> {
    match DECIDED_HERE.iter().find(|(name, ..)| *name == key) {
        Some((_, accept, why)) => decided_here(accept, why, r, limits),
        None if guard::extra(endpoint, key).is_some() => {
            let ((), raw) = r.with_raw(|r| look::unknown(facts, r, StringsHold::Texts))?;
            extra(facts, (endpoint, key), r, raw, limits)
        }
        None if FREE.contains(&key) => look::free(facts, r),
        None => {
            spellings.take(key)?;
            look::unknown(facts, r, StringsHold::by_name(key))
        }
    }
}

/// Other top-level fields with schemas, labels or switches. No server fetches anything in them.
const FREE: &[&str] = &[
    "cache_control",
    "client_metadata",
    "guided_json",
    "include",
    "json_schema",
    "logit_bias",
    "output_format",
    "stop",
    "stop_sequences",
    "thinking",
];

/// Case-folded names of the unknown top-level fields so far.
#[derive(Default)]
struct UnknownSpellings(Vec<String>);

impl UnknownSpellings {
    /// # Errors
    /// Fails if the field is a second spelling of a known field, or of one that was taken before.
    fn take(&mut self, key: &str) -> Read<()> {
        if guard::TOP.contains(&key) {
            return Ok(());
        }
        guard::spelled_once_at_top(key)?;
        let folded = guard::folded(key).unwrap_or_else(|| key.to_owned());
        if self.0.contains(&folded) {
            let message = "the object names this field twice, in letters of different case; send it once";
            return Err(FieldFault::new(Code::DuplicateKey, message));
        }
        self.0.push(folded);
        Ok(())
    }
}

/// Records a field that may cost extra, unless its value requests nothing. `raw` is the value, which the reader has
/// already passed.
fn extra(
    facts: &mut BodyFacts,
    (endpoint, key): (Endpoint, &str),
    r: &JsonReader<'_>,
    raw: &str,
    limits: &WireLimits,
) -> Read<()> {
    let Some((accept, name)) = guard::extra(endpoint, key) else { return Ok(()) };
    let mut inner = r.inner(raw);
    if inner.optional(|r| neutral(accept, r, limits)).is_ok_and(|asks_nothing| asks_nothing != Some(false)) {
        return Ok(());
    }
    let value = match name {
        guard::GEO | guard::TIER => r.inner(raw).string().ok().map(|text| text.as_ref().into()),
        _ => None,
    };
    facts.note(FieldConcern {
        at: r.position().saturating_sub(raw.len()),
        ask: ConcernKind::Extra { name, value },
    })
}

/// Reads the switches of the chat template. Refuses names that the template or its caller sets.
fn template_switches(facts: &mut BodyFacts, r: &mut JsonReader<'_>) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return look::free(facts, r);
    }
    r.count_value()?;
    r.object(|r, key| {
        if RESERVED.contains(&key.as_ref()) || OF_TOKENIZERS.contains(&key.as_ref()) {
            let message = "the template has it from the request or from the model; leave it out";
            return Err(FieldFault::new(Code::UnsupportedParameter, message));
        }
        look::free(facts, r)
    })
}

/// Arguments of `apply_chat_template` that are not template variables.
const OF_TOKENIZERS: &[&str] = &[
    "conversation",
    "documents",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenizer_kwargs",
    "truncation",
];

/// Whether a field is read exactly as `parse` reads it.
const fn is_read(endpoint: Endpoint, field: BodyField) -> bool {
    match field {
        BodyField::Model
        | BodyField::Stream
        | BodyField::Headrace
        | BodyField::Timeout
        | BodyField::CacheSalt => true,
        BodyField::MaxTokens => !matches!(endpoint, Endpoint::Responses),
        BodyField::N => !matches!(endpoint, Endpoint::Messages | Endpoint::Responses),
        BodyField::MaxCompletionTokens => matches!(endpoint, Endpoint::ChatCompletions),
        BodyField::Echo => matches!(endpoint, Endpoint::Completions),
        // Each candidate is generated and charged.
        BodyField::BestOf => true,
        _ => false,
    }
}

fn decided_here(accept: &AcceptedValue, why: &str, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    match r.optional(|r| neutral(accept, r, limits))? {
        None | Some(true) => Ok(()),
        Some(false) => Err(FieldFault::new(Code::UnsupportedParameter, why)),
    }
}

fn include_usage(r: &mut JsonReader<'_>) -> Read<bool> {
    let mut include = false;
    r.object(|r, key| {
        if key != "include_usage" {
            guard::spelled_once(key, &["include_usage"])?;
            return r.skip();
        }
        include = r.optional(JsonReader::bool)?.unwrap_or(false);
        Ok(())
    })?;
    Ok(include)
}

/// Counts the prompts of a completions call.
fn prompts(facts: &mut BodyFacts, r: &mut JsonReader<'_>, limits: &WireLimits, most: usize) -> Read<usize> {
    match r.kind()? {
        ValueKind::String => return prompt(facts, r).map(|()| 1),
        ValueKind::Array => {}
        _ => return look::unknown(facts, r, StringsHold::Texts).map(|()| 1),
    }
    let (mut prompts, mut flat) = (0, 0);
    r.array(limits.max_prompt_ids, |r, index| {
        if r.kind()? == ValueKind::Number {
            flat = 1;
            return facts.id(r);
        }
        if index >= most {
            let message = format!("there may be at most {most}; send several requests");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message).of_parent());
        }
        prompts += 1;
        match r.kind()? {
            ValueKind::String => prompt(facts, r),
            ValueKind::Array => r.array(limits.max_prompt_ids, |r, _| match r.kind()? {
                ValueKind::Number => facts.id(r),
                _ => look::unknown(facts, r, StringsHold::Texts),
            }),
            _ => look::unknown(facts, r, StringsHold::Texts),
        }
    })?;
    Ok(prompts + flat)
}

/// Reads a prompt or a text to encode. It must have a visible character.
fn prompt(facts: &mut BodyFacts, r: &mut JsonReader<'_>) -> Read<()> {
    if facts.read_visible(r)? { Ok(()) } else { Err(blank::text()) }
}

/// Fields of rerankings and scorings that hold texts to judge. The last four are vLLM's.
const SCORED: &[&str] = &["query", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2"];

/// Texts to judge: a text, an object with it, or a list of them. Each must say something.
fn scored(facts: &mut BodyFacts, r: &mut JsonReader<'_>) -> Read<()> {
    match r.kind()? {
        ValueKind::Array => {
            let mut texts = 0_usize;
            r.array(usize::MAX, |r, _| {
                texts = texts.saturating_add(1);
                scored_text(facts, r)
            })?;
            not_empty(texts)
        }
        _ => scored_text(facts, r),
    }
}

fn scored_text(facts: &mut BodyFacts, r: &mut JsonReader<'_>) -> Read<()> {
    match r.kind()? {
        ValueKind::String => prompt(facts, r),
        ValueKind::Object => {
            r.count_value()?;
            r.object(|r, key| match key.as_ref() {
                "text" if r.kind()? == ValueKind::String => prompt(facts, r),
                key => look::unknown(facts, r, StringsHold::by_name(key)),
            })
        }
        _ => look::unknown(facts, r, StringsHold::Texts),
    }
}
