//! The lenient reading of a call that is sent on: what limits, money and rules need is read as `parse` reads it, the rest is
//! for its receiver to judge.
//! Must not know what a receiver understands.

use bytes::Bytes;
use headrace_domain::{Call, Code, EndUser, Endpoint, Prompt, Relayed, ServiceTier};

use super::edit::OWN;
use super::look::{self, Look};
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::params::{Knobs, integer};
use crate::refused::Accept::{self, Empty, Nothing, Number};
use crate::refused::neutral;
use crate::{BadRequest, WireLimits};

/// Bytes that a token id of a prompt counts for in [`Relayed::text_bytes`]: about what a token has as text.
const BYTES_PER_ID: usize = 4;

/// Parameters of some servers by which a call would decide what is decided here: which model answers at which price, how much it
/// may write, before whom it comes, whose cached prefixes it reads. Refused unless they say nothing.
pub(crate) const DECIDED_HERE: &[(&str, Accept, &str)] = &[
    ("fallbacks", Empty, ONE_MODEL),
    ("models", Empty, ONE_MODEL),
    ("max_new_tokens", Nothing, ONE_BOUND),
    ("n_predict", Nothing, ONE_BOUND),
    ("n_cmpl", Nothing, "use `n`"),
    ("priority", Number(0.0), "a call's priority comes from its key; leave it out"),
    ("kv_transfer_params", Nothing, INSIDE),
    ("ec_transfer_params", Nothing, INSIDE),
    ("bootstrap_host", Nothing, INSIDE),
    ("bootstrap_port", Nothing, INSIDE),
    ("bootstrap_room", Nothing, INSIDE),
    ("logits_processors", Nothing, "code is not taken from a request; use `logit_bias`"),
];

const ONE_MODEL: &str =
    "a call asks for one model; which others may answer in its place is up to the operator";
const ONE_BOUND: &str = "use `max_tokens`: a second bound would undo it";
const INSIDE: &str = "where a server's cached prefixes come from is up to the operator; leave it out";

/// The call that `body`, sent to `endpoint`, stands for, to be sent on to somebody who speaks the endpoint's dialect or another.
///
/// Read are: the model, whether it streams and reports usage, how many answers of which length may come, and Headrace's own
/// additions; and what would decide what is decided here is refused. All else, fields that nobody knows included, stays in the body. What the whole body is bound by
/// is what [`crate::parse`] is bound by: one JSON object in UTF-8, no key twice in an object, depth, lengths of lists.
///
/// # Errors
/// [`BadRequest`] names the first parameter at fault, as [`crate::parse`] does.
pub fn skim(endpoint: Endpoint, body: Bytes, limits: &WireLimits) -> Result<Call, BadRequest> {
    let call = skim_question(endpoint, body, limits)?;
    if endpoint == Endpoint::Messages && call.sampling.max_tokens.is_none() {
        return Err(Fault::missing("max_tokens").into());
    }
    Ok(call)
}

/// As [`skim`], of a body that asks for no answer, and so does not say how long that may be.
///
/// # Errors
/// As [`skim`].
pub fn skim_question(endpoint: Endpoint, body: Bytes, limits: &WireLimits) -> Result<Call, BadRequest> {
    let mut reader = Reader::new(&body, limits.max_json_depth, limits.max_free_form_values)?;
    let mut call = read(endpoint, &mut reader, limits)?;
    if let Prompt::Relayed(relayed) = &mut call.prompt {
        relayed.body = body;
    }
    Ok(call)
}

fn read(endpoint: Endpoint, r: &mut Reader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut knobs = Knobs::new(endpoint, limits);
    // Anthropic's way to have a prompt read ahead of its call.
    knobs.none_may_come = endpoint == Endpoint::Messages;
    let mut size = Size::default();
    let (mut prompts, mut has_own_fields) = (1, false);
    r.object(|r, key| {
        let key = key.as_ref();
        has_own_fields |= OWN.contains(&key);
        match key {
            "messages" => look::messages(&mut size, r, limits),
            "system" => look::content(&mut size, r, limits),
            "tools" | "functions" => look::described(&mut size, r, limits.max_tools),
            "input" | "text" | "max_output_tokens" if endpoint == Endpoint::Responses => {
                of_response(key, &mut size, &mut knobs, r)
            }
            "prompt" if endpoint == Endpoint::Completions => {
                let most = limits.max_prompts;
                prompts = r.optional(|r| self::prompts(&mut size, r, limits, most))?.unwrap_or(1);
                Ok(())
            }
            "input" if endpoint == Endpoint::Embeddings => {
                let most = limits.max_encode_texts;
                r.optional(|r| self::prompts(&mut size, r, limits, most)).map(drop)
            }
            "stream_options" if !matches!(endpoint, Endpoint::Messages | Endpoint::Responses) => {
                knobs.include_usage = r.optional(include_usage)?.unwrap_or(false);
                Ok(())
            }
            "service_tier" if endpoint != Endpoint::Messages => {
                let flex = r.optional(|r| Ok(r.string()? == "flex"))?;
                knobs.tier = if flex == Some(true) { ServiceTier::Flex } else { ServiceTier::Standard };
                Ok(())
            }
            "safety_identifier" if endpoint != Endpoint::Messages => {
                knobs.user.0 = user(&mut size, r)?;
                Ok(())
            }
            "user" if endpoint != Endpoint::Messages => {
                knobs.user.1 = user(&mut size, r)?;
                Ok(())
            }
            "metadata" if endpoint == Endpoint::Messages => metadata(&mut size, &mut knobs, r),
            _ if is_read(endpoint, key) => knobs.take_openai(key, r).map(drop),
            _ => match DECIDED_HERE.iter().find(|(name, ..)| *name == key) {
                Some((_, accept, why)) => decided_here(accept, why, r, limits),
                None => look::free(&mut size, r),
            },
        }
    })?;
    r.end()?;
    let mut settled = knobs.settle(prompts)?;
    if matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score) {
        // Nothing is generated.
        settled.sampling.max_tokens = Some(0);
    }
    let user = knobs.end_user();
    let prompt =
        Relayed { body: Bytes::new(), text_bytes: size.text_bytes, media: size.media, has_own_fields };
    Ok(Call {
        sampling: settled.sampling,
        stream: knobs.stream,
        include_usage: knobs.include_usage || matches!(endpoint, Endpoint::Messages | Endpoint::Responses),
        echo: knobs.echo,
        explain: knobs.explain,
        cache_salt: knobs.cache_salt,
        timeout: knobs.timeout,
        user,
        tier: knobs.tier,
        ..Call::of_prompt(endpoint, settled.model, Prompt::Relayed(prompt))
    })
}

/// What only a response has.
fn of_response(key: &str, size: &mut Size, knobs: &mut Knobs<'_>, r: &mut Reader<'_>) -> Read<()> {
    let limits = knobs.limits;
    match key {
        "input" => look::input(size, r, limits),
        "text" => look::described(size, r, limits.max_tools),
        _ => {
            let cap = limits.max_output_tokens_per_request;
            knobs.sampling.max_tokens = r.optional(|r| integer(r, 1, cap))?;
            Ok(())
        }
    }
}

/// Whom the call is for, where that is a text.
fn user(size: &mut Size, r: &mut Reader<'_>) -> Read<Option<EndUser>> {
    if r.kind()? != Kind::String {
        return look::free(size, r).map(|()| None);
    }
    r.count_value()?;
    let text = r.string()?;
    size.text_bytes += text.len();
    Ok(EndUser::named(&text))
}

/// Anthropic's, where the end user stands among labels.
fn metadata(size: &mut Size, knobs: &mut Knobs<'_>, r: &mut Reader<'_>) -> Read<()> {
    if r.kind()? != Kind::Object {
        return look::free(size, r);
    }
    r.count_value()?;
    r.object(|r, key| {
        if key != "user_id" {
            return look::free(size, r);
        }
        knobs.user.0 = user(size, r)?;
        Ok(())
    })
}

/// What is read just as `parse` reads it.
fn is_read(endpoint: Endpoint, key: &str) -> bool {
    match key {
        "model" | "stream" | "headrace" | "timeout" | "cache_salt" => true,
        "max_tokens" => endpoint != Endpoint::Responses,
        "n" => !matches!(endpoint, Endpoint::Messages | Endpoint::Responses),
        "max_completion_tokens" => endpoint == Endpoint::ChatCompletions,
        "echo" | "best_of" => endpoint == Endpoint::Completions,
        _ => false,
    }
}

fn decided_here(accept: &Accept, why: &str, r: &mut Reader<'_>, limits: &WireLimits) -> Read<()> {
    match r.optional(|r| neutral(accept, r, limits))? {
        None | Some(true) => Ok(()),
        Some(false) => Err(Fault::new(Code::UnsupportedParameter, why)),
    }
}

fn include_usage(r: &mut Reader<'_>) -> Read<bool> {
    let mut include = false;
    r.object(|r, key| {
        if key != "include_usage" {
            return r.skip();
        }
        include = r.optional(Reader::bool)?.unwrap_or(false);
        Ok(())
    })?;
    Ok(include)
}

/// How many prompts a completions call has.
fn prompts(size: &mut Size, r: &mut Reader<'_>, limits: &WireLimits, most: usize) -> Read<usize> {
    match r.kind()? {
        Kind::String => return size.text(r).map(|()| 1),
        Kind::Array => {}
        _ => return look::free(size, r).map(|()| 1),
    }
    let (mut prompts, mut flat) = (0, 0);
    r.array(limits.max_prompt_ids, |r, index| {
        if r.kind()? == Kind::Number {
            flat = 1;
            return size.id(r);
        }
        if index >= most {
            let message = format!("there may be at most {most}; send several requests");
            return Err(Fault::new(Code::ArrayAboveMaxLength, message).of_parent());
        }
        prompts += 1;
        match r.kind()? {
            Kind::String => size.text(r),
            Kind::Array => r.array(limits.max_prompt_ids, |r, _| match r.kind()? {
                Kind::Number => size.id(r),
                _ => look::free(size, r),
            }),
            _ => look::free(size, r),
        }
    })?;
    Ok(prompts + flat)
}

/// How large a body is for a model.
#[derive(Debug, Default)]
struct Size {
    text_bytes: usize,
    media: u32,
}

impl Size {
    fn id(&mut self, r: &mut Reader<'_>) -> Read<()> {
        self.text_bytes += BYTES_PER_ID;
        r.skip_scalar().map(drop)
    }
}

impl Look for Size {
    fn text(&mut self, r: &mut Reader<'_>) -> Read<()> {
        self.text_bytes += r.skip_string()?;
        Ok(())
    }

    // Signatures and encrypted reasoning are read by the model that wrote them.
    fn opaque(&mut self, r: &mut Reader<'_>) -> Read<()> {
        self.text(r)
    }

    fn found(&mut self, text: &str) {
        self.text_bytes += text.len();
    }

    fn key(&mut self, _key: &str) {}

    fn media(&mut self) {
        self.media = self.media.saturating_add(1);
    }
}
