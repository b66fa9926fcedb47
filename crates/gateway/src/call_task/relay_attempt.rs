//! Sends a relayed call to one target: the body in the target's dialect, with its names and bounds. Must not know
//! which target is asked next, or what is answered.

use bytes::Bytes;
use headrace_call_state::Rejection;
use headrace_domain::{CacheLabel, CacheSalt, Call, Code, Dialect, Endpoint};
use headrace_engine_api::{MessageRelay, MessageResume, PrefixCache, RelayAnswer, RelayAsk, RelayFacts};
use headrace_relay::{BodyEdits, ReplyReader, SoFar, concealed_class, edited, resumed};

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::stages::render::screen::not_cleared;
use crate::state::{RelayedMessages, RenderedWork};

use super::restore::placeholders;
use super::screen;
use super::source::allowance::AnswerAllowance;
use super::source::conceal::CacheConcealment;
use super::source::resume::PartialText;

/// A target that was asked.
pub(crate) struct RelayAttempt {
    pub(crate) answer: Box<dyn RelayAnswer>,
    pub(crate) reader: ReplyReader,
    /// Its answer is in the caller's dialect and goes out as it comes.
    pub(crate) as_is: bool,
    /// How much of its answer is accepted.
    pub(crate) allowance: AnswerAllowance,
    /// How the caller sees the cached tokens in the answer.
    pub(crate) conceal: CacheConcealment,
}

/// Sends the call to a target, from its beginning or from the text of an unfinished answer, within the trace of its
/// last attempt. Does not wait for anything.
///
/// # Errors
/// The target's dialect cannot express the call, the target may not receive it, or the target does not continue other
/// servers' answers.
pub(super) fn ask(
    gateway: &Gateway,
    context: &RequestContext,
    work: &RenderedWork,
    messages: &RelayedMessages,
    relay: &dyn MessageRelay,
    partial: Option<&PartialText>,
) -> Result<RelayAttempt, Rejection> {
    let facts = relay.facts();
    if messages.cleared.as_ref().is_some_and(|cleared| !cleared.contains(&facts.upstream)) {
        return Err(not_cleared());
    }
    let asked = messages.chat.as_deref().unwrap_or(&work.call);
    let own = facts.dialect == asked.endpoint.dialect();
    let call = match messages.translated.as_deref() {
        Some(translated) if !own => translated.as_ref().map_err(|bad| Rejection::from(bad.clone()))?,
        _ => asked,
    };
    let edits = BodyEdits {
        model: &facts.model,
        usage: call.stream,
        max_tokens: Some((bound_field(facts, call.endpoint), work.sampling.max_tokens)),
        label: label(facts, call, &work.salt),
    };
    let mut body = edited(call, &edits)?;
    if let Some(partial) = partial {
        let left = u64::from(work.sampling.max_tokens).saturating_sub(partial.generated);
        body = u32::try_from(left)
            .ok()
            .and_then(|left| resumed_at(facts, &body, partial, left))
            .ok_or_else(not_continued)?;
    }
    let hides = facts.cache == PrefixCache::Hidden && !messages.shows_shared_cache;
    let conceal = CacheConcealment(hides.then(|| (facts.dialect, concealed_class(facts.dialect, &body))));
    // What a header switches on in one dialect cannot be expressed in a body of another, and was rejected before.
    let as_asked = own && messages.chat.is_none();
    let mut headers = if as_asked { context.dialect_headers.clone() } else { Vec::new() };
    headers
        .extend(gateway.parts().records.traceparent(&context.record).map(|parent| ("traceparent", parent)));
    // The block of timings fits only into answers that are written here, and so does what content rules replace or put
    // back.
    let is_changed = screen::output_rules(work, context).is_some() || placeholders(work, context).is_some();
    let as_is = as_asked && !call.explain && !messages.may_resume && !is_changed;
    let allowance = AnswerAllowance::new(work, context, as_is);
    let ask = RelayAsk {
        request: context.id,
        tenant: work.terms.tenant,
        weight: work.terms.weight,
        endpoint: call.endpoint,
        body,
        stream: call.stream,
        headers,
        head_within: call.timeout,
        bounds: allowance.bounds(),
    };
    Ok(RelayAttempt {
        answer: relay.send(ask),
        reader: ReplyReader::new(call.endpoint, call.stream, work.choices()),
        as_is,
        allowance,
        conceal,
    })
}

/// The label that separates the tenant's cached prefixes, and its field. If a server has no such field, a caller's salt
/// is still replaced by the label: two tenants could send the same salt.
pub(crate) fn label(facts: &RelayFacts, call: &Call, salt: &CacheSalt) -> Option<(&'static str, CacheLabel)> {
    let field = facts
        .cache
        .label_field(call.endpoint)
        .or_else(|| call.cache_salt.is_some().then_some("cache_salt"))?;
    Some((field, salt.label()))
}

/// The body that makes a target continue an answer. `None` if the target does not, or no tokens are left.
fn resumed_at(facts: &RelayFacts, body: &[u8], partial: &PartialText, max_tokens: u32) -> Option<Bytes> {
    let flagged = match facts.resumes {
        MessageResume::Never => return None,
        MessageResume::LastTurn => false,
        MessageResume::LastTurnFlagged => true,
    };
    (max_tokens > 0).then(|| resumed(body, &SoFar { text: &partial.text, max_tokens, flagged }))?
}

fn not_continued() -> Rejection {
    let message = "The upstream does not continue an answer that another server began.";
    Rejection::new(Code::UpstreamFailed, message)
}

/// The field for the bound on an answer's tokens, if the caller set none.
fn bound_field(facts: &RelayFacts, endpoint: Endpoint) -> &'static str {
    match (facts.dialect, endpoint) {
        (Dialect::OpenAi, Endpoint::ChatCompletions) => facts.max_tokens_field,
        (Dialect::OpenAi, Endpoint::Responses) => "max_output_tokens",
        _ => "max_tokens",
    }
}
