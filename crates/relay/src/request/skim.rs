//! Lenient parsing of a relayed call. Fields that limits, money and rules need are read as `parse` reads them. The
//! receiver judges the rest.
//! Must not know what a receiver understands.

use bytes::Bytes;
use headrace_domain::{
    BodyFields, Call, Code, CompletionsExtras, ConcernKind, DialectExtras, EndUser, Endpoint, FieldConcern,
    Prompt, RelayedBody, ServiceTier, is_blank,
};

use super::body_fields::record;
use super::edit::{OWN, SALTS};
use super::guard::{self, DECIDED_HERE};
use super::look::{self, BodyVisitor, StringsHold};
use headrace_wire::common::answer_options::RESERVED;
use headrace_wire::common::blank::not_empty;
use headrace_wire::common::params::{CommonParams, integer, label};
use headrace_wire::common::refused::{AcceptedValue, neutral};
use headrace_wire::common::{blank, content};
use headrace_wire::fault::{FieldFault, Read};
use headrace_wire::json::{JsonReader, ValueKind};
use headrace_wire::{BadRequest, WireLimits};

/// Bytes that one token id of a prompt adds to [`RelayedBody::text_bytes`]: about the length of a token's text.
const BYTES_PER_ID: usize = 4;
/// The most addresses in one call.
const MOST_ADDRESSES: usize = 64;
/// The most extras and tools that are judged in one call.
const MOST_CONCERNS: usize = 1_024;

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
    let mut size = BodySize::default();
    let (mut prompts, mut has_own_fields, mut extra_key) = (1, false, None);
    let mut spellings = UnknownSpellings::default();
    let mut fields = BodyFields::default();
    r.object(|r, key| {
        let (key, start) = (key.as_ref(), r.position());
        has_own_fields |= OWN.contains(&key) || SALTS.contains(&key);
        let read = match key {
            "messages" => messages(&mut size, r, limits),
            "system" => look::content(&mut size, r, limits),
            "tools" => look::tools(&mut size, r, limits.max_tools),
            "functions" | "tool_choice" => look::described(&mut size, r, limits.max_tools),
            "input" | "text" | "max_output_tokens" if endpoint == Endpoint::Responses => {
                of_response(key, &mut size, &mut params, r)
            }
            "prompt" if endpoint == Endpoint::Completions => {
                let most = limits.max_prompts;
                prompts = r.optional(|r| self::prompts(&mut size, r, limits, most))?.unwrap_or(1);
                Ok(())
            }
            "input" if endpoint == Endpoint::Embeddings => {
                let most = limits.max_encode_texts;
                let texts = r.optional(|r| self::prompts(&mut size, r, limits, most))?;
                texts.map_or(Ok(()), not_empty)
            }
            _ if SCORED.contains(&key) && matches!(endpoint, Endpoint::Rerank | Endpoint::Score) => {
                r.optional(|r| scored(&mut size, r)).map(drop)
            }
            "stream_options" if !matches!(endpoint, Endpoint::Messages | Endpoint::Responses) => {
                params.include_usage = r.optional(include_usage)?.unwrap_or(false);
                Ok(())
            }
            "service_tier" if endpoint != Endpoint::Messages => {
                let (tier, raw) = r.with_raw(|r| r.optional(|r| r.string()))?;
                params.tier = match tier.as_deref() {
                    Some("flex") => ServiceTier::Flex,
                    _ => ServiceTier::Standard,
                };
                extra(&mut size, (endpoint, key), r, raw, limits)
            }
            "extra_key" => {
                extra_key = r.optional(|r| label(r, limits))?;
                Ok(())
            }
            "chat_template_kwargs" => template_switches(&mut size, r),
            "safety_identifier" if endpoint != Endpoint::Messages => {
                params.user.0 = user(&mut size, r)?;
                Ok(())
            }
            "user" if endpoint != Endpoint::Messages => {
                params.user.1 = user(&mut size, r)?;
                Ok(())
            }
            "metadata" if endpoint == Endpoint::Messages => metadata(&mut size, &mut params, r),
            _ if is_read(endpoint, key) => params.take_openai(key, r).map(drop),
            _ => match DECIDED_HERE.iter().find(|(name, ..)| *name == key) {
                Some((_, accept, why)) => decided_here(accept, why, r, limits),
                None if guard::extra(endpoint, key).is_some() => {
                    let ((), raw) = r.with_raw(|r| look::unknown(&mut size, r, StringsHold::Texts))?;
                    extra(&mut size, (endpoint, key), r, raw, limits)
                }
                None if FREE.contains(&key) => look::free(&mut size, r),
                None => {
                    spellings.take(key)?;
                    look::unknown(&mut size, r, StringsHold::by_name(key))
                }
            },
        };
        record(&mut fields, key, start, r.position());
        read
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
    let user = params.end_user();
    let prompt = RelayedBody {
        body: Bytes::new(),
        text_bytes: size.text_bytes,
        media: size.media,
        prompts: u32::try_from(prompts).unwrap_or(u32::MAX),
        has_own_fields,
        concerns: size.concerns,
        fields: Some(fields),
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
        tier: params.tier,
        ..Call::of_prompt(endpoint, settled.model, Prompt::Relayed(prompt))
    })
}

/// Top-level fields with schemas, labels or switches. No server fetches anything in them.
const FREE: &[&str] = &[
    "cache_control",
    "client_metadata",
    "guided_json",
    "include",
    "json_schema",
    "logit_bias",
    "metadata",
    "output_config",
    "output_format",
    "response_format",
    "stop",
    "stop_sequences",
    "structured_outputs",
    "temperature",
    "text",
    "thinking",
    "top_p",
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
    size: &mut BodySize,
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
    size.note(FieldConcern {
        at: r.position().saturating_sub(raw.len()),
        ask: ConcernKind::Extra { name, value },
    })
}

/// Reads the switches of the chat template. Refuses names that the template or its caller sets.
fn template_switches(size: &mut BodySize, r: &mut JsonReader<'_>) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return look::free(size, r);
    }
    r.count_value()?;
    r.object(|r, key| {
        if RESERVED.contains(&key.as_ref()) || OF_TOKENIZERS.contains(&key.as_ref()) {
            let message = "the template has it from the request or from the model; leave it out";
            return Err(FieldFault::new(Code::UnsupportedParameter, message));
        }
        look::free(size, r)
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

/// Reads the fields that are particular to the Responses API.
fn of_response(
    key: &str,
    size: &mut BodySize,
    params: &mut CommonParams<'_>,
    r: &mut JsonReader<'_>,
) -> Read<()> {
    let limits = params.limits;
    match key {
        "input" if r.kind()? == ValueKind::String => {
            if size.read_visible(r)? {
                Ok(())
            } else {
                Err(blank::message())
            }
        }
        "input" => look::input(size, r, limits),
        "text" => look::described(size, r, limits.max_tools),
        _ => {
            let cap = limits.max_output_tokens_per_request;
            params.sampling.max_tokens = r.optional(|r| integer(r, 1, cap))?;
            Ok(())
        }
    }
}

/// Reads the end user. `None` if the value is empty or not a string.
fn user(size: &mut BodySize, r: &mut JsonReader<'_>) -> Read<Option<EndUser>> {
    if r.kind()? != ValueKind::String {
        return look::free(size, r).map(|()| None);
    }
    r.count_value()?;
    let text = r.string()?;
    size.text_bytes += text.len();
    Ok(EndUser::named(&text))
}

/// Reads Anthropic's `metadata`, which holds the end user among labels.
fn metadata(size: &mut BodySize, params: &mut CommonParams<'_>, r: &mut JsonReader<'_>) -> Read<()> {
    if r.kind()? != ValueKind::Object {
        return look::free(size, r);
    }
    r.count_value()?;
    r.object(|r, key| {
        if key != "user_id" {
            guard::spelled_once(key, &["user_id"])?;
            return look::free(size, r);
        }
        params.user.0 = user(size, r)?;
        Ok(())
    })
}

/// Whether a field is read exactly as `parse` reads it.
fn is_read(endpoint: Endpoint, key: &str) -> bool {
    match key {
        "model" | "stream" | "headrace" | "timeout" | "cache_salt" => true,
        "max_tokens" => endpoint != Endpoint::Responses,
        "n" => !matches!(endpoint, Endpoint::Messages | Endpoint::Responses),
        "max_completion_tokens" => endpoint == Endpoint::ChatCompletions,
        "echo" => endpoint == Endpoint::Completions,
        // Each candidate is generated and charged.
        "best_of" => true,
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
fn prompts(size: &mut BodySize, r: &mut JsonReader<'_>, limits: &WireLimits, most: usize) -> Read<usize> {
    match r.kind()? {
        ValueKind::String => return prompt(size, r).map(|()| 1),
        ValueKind::Array => {}
        _ => return look::unknown(size, r, StringsHold::Texts).map(|()| 1),
    }
    let (mut prompts, mut flat) = (0, 0);
    r.array(limits.max_prompt_ids, |r, index| {
        if r.kind()? == ValueKind::Number {
            flat = 1;
            return size.id(r);
        }
        if index >= most {
            let message = format!("there may be at most {most}; send several requests");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message).of_parent());
        }
        prompts += 1;
        match r.kind()? {
            ValueKind::String => prompt(size, r),
            ValueKind::Array => r.array(limits.max_prompt_ids, |r, _| match r.kind()? {
                ValueKind::Number => size.id(r),
                _ => look::unknown(size, r, StringsHold::Texts),
            }),
            _ => look::unknown(size, r, StringsHold::Texts),
        }
    })?;
    Ok(prompts + flat)
}

/// Reads a prompt or a text to encode. It must have a visible character.
fn prompt(size: &mut BodySize, r: &mut JsonReader<'_>) -> Read<()> {
    if size.read_visible(r)? { Ok(()) } else { Err(blank::text()) }
}

/// Fields of rerankings and scorings that hold texts to judge. The last four are vLLM's.
const SCORED: &[&str] = &["query", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2"];

/// Texts to judge: a text, an object with it, or a list of them. Each must say something.
fn scored(size: &mut BodySize, r: &mut JsonReader<'_>) -> Read<()> {
    match r.kind()? {
        ValueKind::Array => {
            let mut texts = 0_usize;
            r.array(usize::MAX, |r, _| {
                texts = texts.saturating_add(1);
                scored_text(size, r)
            })?;
            not_empty(texts)
        }
        _ => scored_text(size, r),
    }
}

fn scored_text(size: &mut BodySize, r: &mut JsonReader<'_>) -> Read<()> {
    match r.kind()? {
        ValueKind::String => prompt(size, r),
        ValueKind::Object => {
            r.count_value()?;
            r.object(|r, key| match key.as_ref() {
                "text" if r.kind()? == ValueKind::String => prompt(size, r),
                key => look::unknown(size, r, StringsHold::by_name(key)),
            })
        }
        _ => look::unknown(size, r, StringsHold::Texts),
    }
}

/// Reads `messages`. At least one message must have content.
fn messages(size: &mut BodySize, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    let is_list = r.kind()? == ValueKind::Array;
    look::messages(size, r, limits)?;
    match size.messages {
        0 if is_list => Err(FieldFault::new(Code::EmptyArray, "it must have at least one message")),
        1.. if !size.any_says_something => Err(blank::conversation()),
        _ => Ok(()),
    }
}

/// The facts that the gateway records of a body: its size for the model, and its concerns.
#[derive(Debug, Default)]
struct BodySize {
    text_bytes: usize,
    media: u32,
    concerns: Vec<FieldConcern>,
    message: SeenMessage,
    messages: usize,
    /// At least one message has visible content, or its role is neither user nor system.
    any_says_something: bool,
}

/// The current message.
#[derive(Debug, Default, Clone, Copy)]
struct SeenMessage {
    is_user: bool,
    is_system: bool,
    has_content: bool,
    says_something: bool,
}

/// Types of parts that carry nothing beside their text.
const TEXT_PARTS: &[&str] = &["input_text", "output_text", "refusal", "text"];

impl BodySize {
    fn note(&mut self, concern: FieldConcern) -> Read<()> {
        if self.concerns.len() >= MOST_CONCERNS {
            let message =
                format!("a call may have at most {MOST_CONCERNS} tools and extras of a provider; send fewer");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message));
        }
        self.concerns.push(concern);
        Ok(())
    }

    /// Skips a text and counts its bytes. Returns whether it has a visible character.
    fn read_visible(&mut self, r: &mut JsonReader<'_>) -> Read<bool> {
        let ((), raw) = r.with_raw(|r| self.text(r))?;
        // Shortcut: nearly every text begins with a letter.
        let first = raw.as_bytes().get(1).copied().unwrap_or(b'"');
        let is_plain = first.is_ascii_graphic() && !matches!(first, b'"' | b'\\');
        Ok(is_plain || !is_blank(&r.inner(raw).string()?))
    }

    fn id(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text_bytes += BYTES_PER_ID;
        r.skip_scalar().map(drop)
    }
}

impl BodyVisitor for BodySize {
    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text_bytes += r.skip_string()?;
        Ok(())
    }

    // Signatures and encrypted reasoning count, because the model that wrote them reads them.
    fn opaque(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.text(r)
    }

    fn found(&mut self, text: &str) {
        self.text_bytes += text.len();
    }

    fn key(&mut self, _key: &str) {}

    fn part_text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let seen = self.read_visible(r)?;
        self.message.has_content = true;
        self.message.says_something |= seen;
        Ok(())
    }

    fn message_begin(&mut self) {
        self.message = SeenMessage::default();
        self.messages += 1;
    }

    fn message_end(&mut self) -> Read<()> {
        let SeenMessage { is_user, is_system, has_content, says_something } = self.message;
        self.any_says_something |= says_something || !(is_user || is_system);
        if is_user && has_content && !says_something {
            return Err(blank::message().under_key("content"));
        }
        Ok(())
    }

    fn role(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        let role = r.string()?;
        self.text_bytes += role.len();
        self.message.is_user = role == "user";
        self.message.is_system = matches!(role.as_ref(), "system" | "developer");
        Ok(())
    }

    fn said(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.part_text(r)
    }

    fn parts_begin(&mut self) {
        self.message.has_content = true;
    }

    fn part_kind(&mut self, kind: &str) {
        self.message.says_something |= !TEXT_PARTS.contains(&kind);
    }

    fn file_id(&mut self, _r: &mut JsonReader<'_>) -> Read<()> {
        Err(content::stored_file())
    }

    fn media(&mut self) {
        self.media = self.media.saturating_add(1);
    }

    fn address(&mut self, at: usize, url: &str) -> Read<()> {
        let addresses =
            self.concerns.iter().filter(|concern| matches!(concern.ask, ConcernKind::Url(_))).count();
        if addresses >= MOST_ADDRESSES {
            let message = format!("a call may name at most {MOST_ADDRESSES} addresses; send the data itself");
            return Err(FieldFault::new(Code::ArrayAboveMaxLength, message));
        }
        self.concerns.push(FieldConcern { at, ask: ConcernKind::Url(url.into()) });
        Ok(())
    }

    fn tool(&mut self, at: usize, kind: &str, most: Option<u32>) -> Read<()> {
        guard::tool(at, kind, most).map_or(Ok(()), |concern| self.note(concern))
    }
}
