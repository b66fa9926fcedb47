//! Prepares a relayed call: an estimate of its tokens, and the body in the other dialect if some target speaks it.
//! Must not know who will answer.

use headrace_call_state::Rejection;
use headrace_catalog::{Backend, MessageBackend, OnBreak, ServedModel};
use headrace_domain::{
    CacheSalt, Call, Code, Dialect, Endpoint, Prompt, RelayedBody, Sampling, SamplingDefaults, Stage,
};
use headrace_fleet::Fleet;
use headrace_relay::{BodyEdits, as_chat, beginning, can_resume, first_media, translated};
use headrace_wire::{BadRequest, WireLimits};

use crate::Gateway;
use crate::state::RelayedMessages;

/// Bytes of text per token in dense text: code, and scripts whose characters take several bytes.
const FEW_BYTES_PER_TOKEN: u64 = 2;
/// Bytes of text per token in usual text.
const USUAL_BYTES_PER_TOKEN: u64 = 4;
/// The most tokens that known providers count for an image or a page.
const MOST_TOKENS_OF_MEDIA: u64 = 3_000;
/// Tokens that an image or a page usually counts for.
const USUAL_TOKENS_OF_MEDIA: u64 = 1_000;
/// The most tokens that a conversation takes besides its texts.
const MOST_TOKENS_AROUND: u64 = 64;
/// Tokens that a conversation usually takes besides its texts.
const USUAL_TOKENS_AROUND: u64 = 8;

/// Prepares the body in every dialect that the model's targets speak, as far as the dialect can express it.
///
/// # Errors
/// No target speaks a dialect that can express the call, or the model takes no such parts. Or the call was read for
/// another kind of model.
pub(super) fn prepare(
    model: &ServedModel,
    fleet: &Fleet,
    call: &Call,
    salt: &CacheSalt,
    max_tokens: u32,
    limits: &WireLimits,
) -> Result<RelayedMessages, Rejection> {
    let passes = call.endpoint == Endpoint::Responses && matches!(call.prompt, Prompt::Relayed(_));
    if passes && !model.backend.passes_responses() {
        let message = format!(
            "The call goes to servers that speak the Responses API as it came, and those of `{}` do not.",
            model.name
        );
        return Err(Rejection::new(Code::Untranslatable, message).with_param("model"));
    }
    let chat = (call.endpoint == Endpoint::Responses && !passes).then(|| as_chat(call, limits)).transpose();
    let chat = chat.map_err(|bad| Rejection::from(bad).at(Stage::Render))?;
    let is_chat = chat.is_some();
    let asked = chat.as_ref().unwrap_or(call);
    let Prompt::Relayed(relayed) = &asked.prompt else {
        let message = "The call was read for a model that takes tokens, and this one takes messages. Nothing was charged.";
        return Err(Rejection::new(Code::RenderFailed, message));
    };
    can_be_seen(model, call, relayed)?;
    let own = call.endpoint.dialect();
    let (mut same, mut other, mut targets) = (false, None, 0);
    for relay in fleet.relays(&model.name) {
        targets += 1;
        let dialect = relay.facts().dialect;
        if dialect == own { same = true } else { other = Some(dialect) }
    }
    let encodes = matches!(call.endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score);
    if !same && encodes {
        let message = format!(
            "The upstreams of `{}` speak no dialect that has embeddings or scores. Ask another model.",
            model.name
        );
        return Err(Rejection::new(Code::Untranslatable, message).with_param("model"));
    }
    if !same && call.endpoint == Endpoint::Completions {
        let message = format!(
            "The upstreams of `{}` have no completions of raw prompts. Use /v1/chat/completions or /v1/messages.",
            model.name
        );
        return Err(Rejection::new(Code::Untranslatable, message).with_param("prompt"));
    }
    let other = other.filter(|_| call.endpoint != Endpoint::Completions && !encodes && !passes);
    let translated = other.map(|dialect| {
        // The other dialect has its own name for the length limit.
        let mut asked = asked.clone();
        asked.sampling.max_tokens = call.sampling.max_tokens;
        Box::new(in_dialect(relayed, &asked, dialect, max_tokens, limits))
    });
    match translated.as_deref() {
        Some(Err(bad)) if !same => Err(Rejection::from(bad.clone()).at(Stage::Render)),
        _ => {
            let trail = if targets > 1 { salt.marks(beginning(relayed)) } else { Vec::new() };
            let may_resume = model.policy.on_break == OnBreak::Continue
                && call.stream
                && !is_chat
                && !passes
                && can_resume(call);
            let messages = RelayedMessages { trail, may_resume, ..estimated(relayed, translated) };
            Ok(RelayedMessages { chat: chat.map(Box::new), ..messages })
        }
    }
}

/// Rejects the first part that, according to the operator, the model cannot see or hear. Names its place.
fn can_be_seen(model: &ServedModel, call: &Call, relayed: &RelayedBody) -> Result<(), Rejection> {
    let Backend::Messages(MessageBackend { inputs: Some(inputs), .. }) = &model.backend else {
        return Ok(());
    };
    let found = match &call.prompt {
        _ if relayed.media == 0 => None,
        Prompt::Conversation(conversation) => {
            let messages = conversation.messages.iter().enumerate();
            let mut parts =
                messages.flat_map(|(at, message)| message.media.iter().map(move |part| (at, part)));
            let part = parts.find(|(_, part)| !inputs.takes(part.kind));
            part.map(|(at, part)| (call.place(at, part), part.kind))
        }
        _ => first_media(&relayed.body, |kind| inputs.takes(kind)),
    };
    let Some((place, kind)) = found else { return Ok(()) };
    let name = kind.name();
    let message = format!(
        "`{place}`: {name}. The model `{}` takes no such parts (`input` in `[[models]]`). Say what it shows as text, or ask \
         another model.",
        model.name
    );
    Err(Rejection::new(Code::UnsupportedContent, message).at(Stage::Render).with_param(&place))
}

fn in_dialect(
    relayed: &RelayedBody,
    call: &Call,
    dialect: Dialect,
    max_tokens: u32,
    limits: &WireLimits,
) -> Result<Call, BadRequest> {
    let edits = BodyEdits {
        model: &call.model,
        usage: call.stream,
        max_tokens: call.sampling.max_tokens.is_none().then_some(("max_tokens", max_tokens)),
        label: None,
    };
    let body = translated(call, dialect, &edits, limits)?;
    let endpoint = match dialect {
        Dialect::OpenAi => Endpoint::ChatCompletions,
        Dialect::Anthropic => Endpoint::Messages,
    };
    let (prompt, include_usage) = (Prompt::Relayed(relayed.with_body(body)), true);
    let mut in_dialect = Call { endpoint, prompt, include_usage, ..call.clone() };
    in_dialect.sampling.max_tokens.get_or_insert(max_tokens);
    Ok(in_dialect)
}

fn estimated(relayed: &RelayedBody, translated: Option<Box<Result<Call, BadRequest>>>) -> RelayedMessages {
    let (text, media) = (relayed.text_bytes as u64, u64::from(relayed.media));
    let tokens = |bytes_per_token: u64, of_media: u64, around: u64| {
        (text / bytes_per_token).saturating_add(media.saturating_mul(of_media)).saturating_add(around)
    };
    RelayedMessages {
        most_prompt_tokens: tokens(FEW_BYTES_PER_TOKEN, MOST_TOKENS_OF_MEDIA, MOST_TOKENS_AROUND),
        likely_prompt_tokens: tokens(USUAL_BYTES_PER_TOKEN, USUAL_TOKENS_OF_MEDIA, USUAL_TOKENS_AROUND),
        trail: Vec::new(),
        may_resume: false,
        chat: None,
        translated,
        cleared: None,
        most_searches: 0,
        shows_shared_cache: true,
    }
}

/// The usual number of tokens in a relayed body of this size.
pub(crate) fn likely_tokens(relayed: &RelayedBody) -> u64 {
    estimated(relayed, None).likely_prompt_tokens
}

/// The sampling parameters that limits and money use: the caller's own bound on the answer, or the default one, of at most
/// `most` tokens.
pub(super) fn resolve(gateway: &Gateway, model: &ServedModel, call: &Call, most: u32) -> Sampling {
    let max_tokens = call.sampling.max_tokens.unwrap_or(bound(gateway, model).min(most));
    call.sampling.resolve(&SamplingDefaults::default(), max_tokens, 0)
}

/// The longest answer in tokens if the caller names no bound.
pub(super) fn bound(gateway: &Gateway, model: &ServedModel) -> u32 {
    model.default_max_tokens.unwrap_or(gateway.config().default_max_tokens)
}
