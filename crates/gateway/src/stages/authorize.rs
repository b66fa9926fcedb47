//! Stage `authorize`: whether the key may use the endpoint, and the model by the name it asked for.

use headrace_call_state::Rejection;
use headrace_catalog::{Catalog, similar_name};
use headrace_domain::{Call, Code, Endpoint, Prompt, ReasoningOptions, Stage};
use headrace_identity::{EntitlementRefusal, Principal, may_use};
use headrace_relay::reasoning_asked;

use crate::request_context::RequestContext;
use crate::state::{AuthorizedCall, ParsedCall};

impl ParsedCall {
    pub(crate) fn authorize(self, context: &mut RequestContext) -> Result<AuthorizedCall, Rejection> {
        let Self { principal, call, taken, catalog, asked, model } = self;
        let unknown = || unknown_model_of(&call.model, &principal, &catalog);
        let may = may_use(&principal, &call.model, call.endpoint).map_err(|refusal| match refusal {
            EntitlementRefusal::Endpoint(_) => Rejection::new(
                Code::EndpointNotEntitled,
                format!("{refusal} Ask for a key that may, or use another endpoint."),
            ),
            // Gets the same answer as a model that does not exist: a different one would reveal which models exist.
            EntitlementRefusal::Model => unknown(),
        });
        let asked = match (asked, may) {
            (Some(asked), Ok(())) => asked,
            (None, _) => {
                context.record.model_asked = name_kept(&call.model);
                return Err(unknown());
            }
            (_, Err(rejection)) => {
                context.record.model_asked = name_kept(&call.model);
                return Err(rejection);
            }
        };
        may_reason(&principal, &call)?;
        context.end_stage(Stage::Authorize);
        Ok(AuthorizedCall { principal, call, taken, catalog, asked, model })
    }
}

/// Rejects a call that asks for reasoning, if a tier of its caller does not allow it.
fn may_reason(principal: &Principal, call: &Call) -> Result<(), Rejection> {
    let Some(tier) = principal.tier.as_deref().and_then(|tiers| tiers.no_reasoning.as_ref()) else {
        return Ok(());
    };
    let Some(field) = reasoning_field(call) else { return Ok(()) };
    let message = format!(
        "Tier `{tier}` of this key does not allow reasoning. Leave out `{field}`, or ask the operator for another tier."
    );
    Err(Rejection::new(Code::ReasoningNotEntitled, message).with_param(field))
}

/// The field by which a call asks for reasoning. `None` if it does not ask.
fn reasoning_field(call: &Call) -> Option<&'static str> {
    if let Prompt::Relayed(relayed) = &call.prompt {
        return reasoning_asked(&relayed.body);
    }
    let ReasoningOptions { enabled, effort, budget_tokens, hidden: _ } = &call.reasoning;
    let asks_effort = effort.as_deref().is_some_and(|effort| effort != "none");
    if !asks_effort && budget_tokens.is_none() && *enabled != Some(true) {
        return None;
    }
    Some(match (call.endpoint, asks_effort) {
        (Endpoint::Messages, true) if budget_tokens.is_none() => "output_config.effort",
        (Endpoint::Messages, _) => "thinking",
        (Endpoint::Responses, true) => "reasoning.effort",
        (_, true) => "reasoning_effort",
        (_, false) => "chat_template_kwargs",
    })
}

/// Most characters that are recorded of a name that matches no model.
const MOST_CHARS_KEPT: usize = 80;
/// Prefix of API keys at most providers, including this one.
const KEY_PREFIX: &str = "sk-";

/// What the record keeps of the requested name, whether or not the model exists. Control characters are dropped. `None`
/// if the name may contain an API key that was pasted in the wrong place.
pub(crate) fn name_kept(asked: &str) -> Option<String> {
    if asked.split_whitespace().any(|word| word.starts_with(KEY_PREFIX)) {
        return None;
    }
    let kept: String = asked.chars().filter(|c| !c.is_control()).take(MOST_CHARS_KEPT).collect();
    Some(kept).filter(|kept| !kept.is_empty())
}

/// Like [`unknown_model`], with the name that the caller probably meant, if the caller may use one that is similar.
pub(crate) fn unknown_model_of(name: &str, principal: &Principal, catalog: &Catalog) -> Rejection {
    let mut rejection = unknown_model(name);
    if let Some(meant) = similar_name(name, principal, catalog) {
        rejection.message.push_str(&format!(" Did you mean `{meant}`?"));
    }
    // Also said of models that do not exist, so that it does not reveal which do.
    if let Some(tier) = principal.tier.as_deref().and_then(|tiers| tiers.models.as_ref()) {
        rejection.message.push_str(&format!(" Tier `{tier}` of this key allows only some models."));
    }
    rejection
}

/// The rejection of a model that does not exist. Its message repeats the name without control characters, cut to 80
/// characters.
pub(crate) fn unknown_model(name: &str) -> Rejection {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
    Rejection::new(
        Code::ModelNotFound,
        format!("The model `{shown}` does not exist here. `GET /v1/models` lists those that you may use."),
    )
    .with_param("model")
    .keeping("The model asked for does not exist here, or is not this key's to use.")
}
