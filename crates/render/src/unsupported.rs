//! Rejects, by name, what a call asks of its answer that token models do not support yet. No parameter is dropped
//! silently. Must not know how it will be supported.

use headrace_call_state::Rejection;
use headrace_catalog::{ServedModel, TokenBackend};
use headrace_domain::{Call, Code, Conversation, Endpoint, Prompt, Stage};

/// Rejects the first parameter that would be ignored.
///
/// # Errors
/// There is such a parameter. Names it.
pub fn check_supported(model: &ServedModel, backend: &TokenBackend, call: &Call) -> Result<(), Rejection> {
    let wishes = match &call.prompt {
        Prompt::Conversation(conversation) => {
            reasoning(model, backend, call).or_else(|| verbosity(backend, call.endpoint, conversation))
        }
        _ => None,
    };
    match wishes {
        None => Ok(()),
        Some((param, what)) => {
            let message = format!("`{param}`: the model `{}` {what}. Leave it out.", model.name);
            Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param))
        }
    }
}

/// A request for verbosity, if the template has no switch for it.
fn verbosity(
    backend: &TokenBackend,
    endpoint: Endpoint,
    conversation: &Conversation,
) -> Option<(&'static str, &'static str)> {
    let has_switch = backend.template.as_ref().is_some_and(|template| template.switches().verbosity);
    let param = if endpoint == Endpoint::Responses { "text.verbosity" } else { "verbosity" };
    let what =
        "has a template without a switch for that; ask for a shorter or longer answer in the instructions";
    // Template variables that a caller sets directly are the caller's responsibility.
    (conversation.asks_verbosity && !has_switch).then_some((param, what))
}

/// A request about reasoning that the model cannot fulfil. A model without reasoning fulfils a request not to reason.
fn reasoning(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
) -> Option<(&'static str, &'static str)> {
    let wish = &call.reasoning;
    let switches = backend.template.as_ref().map(|template| template.switches()).unwrap_or_default();
    // If the configuration knows the effort, it gives its token budget.
    let has_budget = wish.effort.as_deref().and_then(|effort| model.policy.thinking.budget(effort)).is_some();
    match (wish.enabled, backend.replies.thinks()) {
        (Some(true), false) => Some(("reasoning_effort", "does not think before it answers")),
        (Some(false), true) if !switches.thinking => {
            Some(("reasoning_effort", "thinks before each answer, and its template has no switch for that"))
        }
        (Some(true), true) if wish.effort.is_some() && !switches.effort && !has_budget => {
            Some(("reasoning_effort", "has a template that knows thinking, but not how much of it"))
        }
        _ => None,
    }
}
