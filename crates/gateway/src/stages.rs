//! The path of a request: one list of stages in the order in which they decide, with the reason for each position.
//! Stages after the hold belong to the call task: `call_task.rs`.

use std::sync::Arc;

use headrace_call_api::BodySource;
use headrace_call_state::Rejection;
use headrace_identity::Principal;

use crate::request_context::RequestContext;
use crate::state::{AdmittedRequest, ArrivedRequest, KeyedCall};
use crate::{Gateway, features};

pub(crate) mod authenticate;
pub(crate) mod authorize;
pub(crate) mod cache;
mod connect;
mod funds_cap;
pub(crate) mod hold;
pub(crate) mod moderate;
mod parse;
pub(crate) mod prepare;
mod receive;
pub(crate) mod render;
pub(crate) mod route;
pub(crate) mod work_quote;

/// The first part of the list, up to the admission check: no body has been read yet. The first stage that rejects ends
/// it. `known` is the principal that an in-process caller acts for.
pub(crate) fn decide_on_head(
    gateway: &Gateway,
    arrived: ArrivedRequest,
    known: Option<Arc<Principal>>,
    context: &mut RequestContext,
) -> Result<AdmittedRequest, Rejection> {
    // Who the caller is, before anything that costs more than a hash.
    let authenticated = arrived.authenticate(gateway, known, context)?;
    // Whether features can act on the head, before a request is counted that none of them can.
    features::on_head(context)?;
    // The admission check: a request rejected from here on has counted against the caller's limits. Callers at a
    // limit, or without funds, are rejected before their body is read.
    authenticated.admit(gateway, context)
}

/// The second part of the list, from the admission check on.
pub(crate) async fn decide(
    gateway: &Arc<Gateway>,
    admitted: AdmittedRequest,
    body: impl BodySource,
    context: &mut RequestContext,
) -> Result<KeyedCall, Rejection> {
    // The body: only a known caller with funds may fill memory with it.
    let received = admitted.receive(gateway, body, context).await?;
    // Whether the same request ran before. Its answer needs neither a meaning nor a model.
    features::on_received(gateway, &received, context).await?;
    // The stored items that it names, the model that takes it, and the memory for reading it: all before it is read.
    let prepared = received.prepare(gateway, context).await?;
    // One meaning of the bytes, with every parameter honoured or rejected by name. It depends on the model that takes
    // the call.
    let parsed = prepared.parse(gateway, context).await?;
    // Whether the key may use the name that it asked for, wherever the name leads. An alias cannot widen access, and a
    // caller without access does not learn where the name leads.
    let authorized = parsed.authorize(context)?;
    // The model that serves the name, in a region where the call may run. Prices and tokenizers depend on it.
    let routed = authorized.route(gateway, context)?;
    // Everything the caller wrote, checked against the rules before the template adds words of its own.
    let moderated = routed.moderate(context).await?;
    // Text to token ids: holds and placement need counts. From here on the call owns the memory that it may take.
    let rendered = moderated.render(gateway, context).await?;
    // The keys by which cached prefixes are found. They are hashed once, before anything is taken.
    rendered.cache(gateway, context).await
}
