//! Builds the reasoning budget of a call, in ids: from the call itself, or from the model's configuration for the
//! requested effort. Must not know how reasoning is ended.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::{ServedModel, ThinkingPolicy, TokenBackend};
use headrace_domain::{Call, Code, Endpoint, Prompt, Stage};
use headrace_engine_api::ReasoningBudget;
use headrace_prompt::ThoughtBounds;
use headrace_tokenizer::Segment;

/// The reasoning budget of a call's answers. `None` if reasoning is unlimited. `text` is the call's prompt. With
/// `has_form` the answers must also match a form.
///
/// # Errors
/// The model cannot enforce the budget. Names the parameter.
pub fn reasoning_budget(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    (text, has_form): (&str, bool),
) -> Result<Option<Arc<ReasoningBudget>>, Rejection> {
    let Prompt::Conversation(_) = &call.prompt else { return Ok(None) };
    let (wish, policy) = (&call.reasoning, &model.policy.thinking);
    let by_effort = || policy.budget(wish.effort.as_deref()?);
    let Some(most_tokens) = wish.budget_tokens.or_else(by_effort) else { return Ok(None) };
    match made(backend, policy, most_tokens, (text, has_form)) {
        Ok(cap) => Ok(Some(Arc::new(cap))),
        // Without an explicit budget, the template may interpret the effort itself.
        Err(_) if wish.budget_tokens.is_none() && is_heard(backend, call) => Ok(None),
        Err(what) => {
            let param = param(call);
            let message = format!("`{param}`: the model `{}` {what}. Leave it out.", model.name);
            Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param))
        }
    }
}

/// Whether the effort needs no budget: the template has a switch for it, or the call does not enable reasoning.
fn is_heard(backend: &TokenBackend, call: &Call) -> bool {
    let switches = backend.template.as_ref().map(|template| template.switches()).unwrap_or_default();
    switches.effort || call.reasoning.enabled != Some(true)
}

/// The parameter in which the caller asked for it.
fn param(call: &Call) -> &'static str {
    match (call.reasoning.budget_tokens, call.endpoint) {
        (None, Endpoint::Messages) => "output_config.effort",
        (None, _) => "reasoning_effort",
        (Some(_), Endpoint::Messages) => "thinking.budget_tokens",
        (Some(_), _) => "thinking_token_budget",
    }
}

/// Builds a budget of `most_tokens` tokens, which includes the configured last words if they fit. The reported
/// reasoning, without its marks, never exceeds it.
fn made(
    backend: &TokenBackend,
    policy: &ThinkingPolicy,
    most_tokens: u32,
    (text, has_form): (&str, bool),
) -> Result<ReasoningBudget, &'static str> {
    if !backend.replies.thinks() {
        return Err("does not think before it answers");
    }
    if !backend.capabilities.thought_caps {
        return Err("is computed by a server that cannot end a thought");
    }
    const NO_MARK: &str = "has no token that ends a thought, so none can be limited to a number of tokens";
    let ThoughtBounds { open, close, onward } = backend.replies.bounds().ok_or(NO_MARK)?;
    if has_form && !onward.is_empty() {
        return Err("cannot have both a form and a number of tokens for its thought");
    }
    let ids =
        |segments: &[Segment<'_>]| backend.tokenizer.encode_segments(segments, false).map_err(|_| NO_MARK);
    let close_id = backend.tokenizer.id_of(close).ok_or(NO_MARK)?;
    let open_ids = ids(&[Segment::Trusted(open)])?;
    let is_mark = |id: u32| backend.tokenizer.is_control(id) || backend.tokenizer.is_markup(id);
    if !is_mark(close_id) || !open_ids.first().is_some_and(|id| is_mark(*id)) {
        return Err(NO_MARK);
    }
    let behind = format!("{close}{onward}");
    let bare = ids(&[Segment::Trusted(&behind)])?;
    let words = policy.last_words.as_deref().unwrap_or_default();
    let full = ids(&[Segment::Literal(words), Segment::Trusted(&behind)])?;
    let last_words = u32::try_from(full.len().saturating_sub(bare.len())).unwrap_or(u32::MAX);
    let (most_tokens, ending) = match most_tokens.checked_sub(last_words) {
        Some(left) if left > 0 => (left, full),
        _ => (most_tokens, bare),
    };
    let is_open = backend.replies.thought.is_some_and(|marks| marks.is_open_at_end(text));
    let cap = ReasoningBudget { most_tokens, open: open_ids, close: close_id, ending, is_open };
    cap.check(backend.capabilities.vocab).map_err(|_| NO_MARK)?;
    Ok(cap)
}
