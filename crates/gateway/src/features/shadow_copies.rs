//! Shadow copies: a share of the calls is copied to another model once they are served. A copy is a call of this server,
//! which pays for it from a budget of its own.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_state::{Rejection, delivery::DeliveredCopy};
use headrace_catalog::Catalog;
use headrace_domain::{Code, NanoDollars, UnixNanos};
use headrace_rollout::{SampledCall, ShadowCopy, ShadowRole, run_copies};

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::ParsedCall;

/// Whether a copy of the call may be made, which needs its body.
pub(super) fn need_body(context: &RequestContext, catalog: &Catalog) -> bool {
    catalog.has_shadows() && context.copy().is_none()
}

/// Decides whether a copy is made of the call.
pub(super) fn on_parsed(
    gateway: &Gateway,
    context: &mut RequestContext,
    parsed: &ParsedCall,
    body: Option<Bytes>,
) {
    let ParsedCall { catalog, asked: Some(asked), model: Some(model), .. } = parsed else { return };
    if !need_body(context, catalog) {
        return;
    }
    if let (Some(body), Some((name, spec))) = (body, catalog.shadow(asked, &model.name)) {
        let call = SampledCall {
            id: context.id,
            endpoint: parsed.call.endpoint,
            body,
            dialect: &context.dialect_headers,
            principal: &parsed.principal.principal,
            now: gateway.parts().clock.now(),
        };
        context.shadow = gateway.shadows().sample(name, spec, call);
    }
}

/// A copy costs its caller nothing, so its hold is zero: the shadow's budget pays. `None` for other calls.
pub(super) async fn on_hold(
    context: &mut RequestContext,
    most: NanoDollars,
    now: UnixNanos,
) -> Result<Option<NanoDollars>, Rejection> {
    let Some(copy) = context.shadow.as_deref_mut().and_then(ShadowRole::copy_mut) else { return Ok(None) };
    match copy.pay(most, now).await {
        true => Ok(Some(NanoDollars::ZERO)),
        false => Err(beyond_budget(most)),
    }
}

/// A copy of the answer, if it is compared.
pub(super) fn on_task(context: &RequestContext) -> Option<DeliveredCopy> {
    context.shadow.as_deref().and_then(ShadowRole::keeps)
}

/// Settles the cost of a copy, or returns the copy that is to be made of the call.
pub(super) async fn on_end(
    gateway: &Gateway,
    context: &mut RequestContext,
    sent: Option<Bytes>,
) -> Option<Box<ShadowCopy>> {
    let shadow = context.shadow.take()?;
    let is_stopping = gateway.is_draining();
    let secret = gateway.parts().cache_secret;
    // Boxed, so that the futures of other calls reserve no space for it.
    Box::pin(shadow.end(is_stopping, secret, sent, &mut context.record)).await
}

/// Makes the copy, or queues it.
pub(super) fn after_end(gateway: Arc<Gateway>, copy: Option<Box<ShadowCopy>>) {
    if let Some((copy, queue)) = copy.and_then(ShadowCopy::enter) {
        tokio::spawn(run_copies(gateway, queue, copy));
    }
}

fn beyond_budget(most: NanoDollars) -> Rejection {
    Rejection::new(
        Code::BudgetExceeded,
        format!("The copy may cost {most}, and less is left of the shadow's budget."),
    )
}
