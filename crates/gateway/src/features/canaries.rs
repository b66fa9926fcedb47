//! Canaries: a call of a route that has some counts towards their watches.

use headrace_rollout::CallVerdict;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::ParsedCall;

/// Finds the watches that the call counts towards.
pub(super) fn on_parsed(context: &mut RequestContext, parsed: &ParsedCall) {
    if let (Some(asked), Some(model)) = (&parsed.asked, &parsed.model) {
        context.canaries = parsed.catalog.canaries_of(asked, &model.name);
    }
}

/// Counts the end of the call. A verdict of `None` says nothing about the model, and the call is still to be counted.
pub(super) fn on_verdict(gateway: &Gateway, context: &mut RequestContext, verdict: Option<CallVerdict>) {
    let Some(verdict) = verdict else { return };
    if let Some(canaries) = context.canaries.take() {
        canaries.ended(verdict, &context.record, gateway.parts().clock.now());
    }
}
