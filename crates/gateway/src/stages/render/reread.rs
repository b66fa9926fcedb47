//! Reads a call again for a model with another backend: a relayed call is read differently from one that is
//! rendered here. Both are read from the same body. Must not know why another model takes the call.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::MemoryReservation;
use headrace_call_state::{Rejection, reading_bytes, tree_bytes};
use headrace_catalog::ServedModel;
use headrace_domain::{Attempt, AttemptOutcome, Call, Code, Endpoint, Prompt, ServiceTier, Stage};

use crate::Gateway;
use crate::request_context::RequestContext;

/// A call, read as another model needs it.
pub(crate) struct RereadCall {
    pub(crate) call: Box<Call>,
    /// The body that the call was read from.
    pub(crate) body: Bytes,
    /// The memory that the body's JSON elements take as trees, in bytes.
    pub(crate) tree_bytes: u64,
}

/// Reads a call again from its body if `model` needs another reading. `None` if the present reading fits the model.
/// `kept` is the body of a call that was read to be rendered.
///
/// # Errors
/// The model's backend does not understand the body, or the body was not kept.
pub(crate) async fn read_for(
    gateway: &Gateway,
    model: &ServedModel,
    call: &Call,
    kept: Option<&Bytes>,
    memory: &Arc<MemoryReservation>,
) -> Result<Option<RereadCall>, Rejection> {
    let sent_on = match &call.prompt {
        Prompt::Relayed(relayed) => Some(&relayed.body),
        _ => None,
    };
    let wants_body = match call.endpoint {
        Endpoint::Responses => sent_on.is_some() && model.backend.passes_responses(),
        _ => model.backend.is_messages(),
    };
    if wants_body == sent_on.is_some() {
        return Ok(None);
    }
    let body = sent_on.or(kept).ok_or_else(|| not_kept(model))?.clone();
    let tree_bytes = tree_bytes(&body);
    let most = reading_bytes(body.len(), tree_bytes).saturating_add(body.len() as u64);
    gateway.memory().resize(memory, most).map_err(|full| full.at(Stage::Parse))?;
    let (endpoint, limits) = (call.endpoint, &gateway.config().wire);
    let mut read = if body.len() > gateway.config().render_inline_bytes {
        let (limits, body, memory) = (limits.clone(), body.clone(), Arc::clone(memory));
        // The memory stays reserved while the body is read, even if the client goes away.
        let reading =
            tokio::task::spawn_blocking(move || (read(endpoint, wants_body, body, &limits), memory));
        reading.await.map_err(|_| stopped())?.0?
    } else {
        read(endpoint, wants_body, body.clone(), limits)?
    };
    if let Some(ask) = read.dialect.response()
        && (ask.previous.is_some() || ask.conversation.is_some())
    {
        return Err(kept_elsewhere(model));
    }
    read.user = None;
    if call.tier == ServiceTier::Batch {
        read.tier = ServiceTier::Batch;
    }
    Ok(Some(RereadCall { call: Box::new(read), body, tree_bytes }))
}

/// Records an attempt for a model that could not take the call in place of another. The reason repeats no word of the
/// call.
pub(crate) fn passes_over(context: &mut RequestContext, model: &ServedModel, rejection: &Rejection) {
    let reason = match &rejection.param {
        // A limit, a budget or the money refused: the message has its name and numbers.
        None if rejection.stage == Stage::Hold => rejection.message.clone(),
        Some(param) => format!("the model cannot take this call: `{param}`"),
        None => "the model cannot take this call".to_owned(),
    };
    let name: Arc<str> = model.name.as_str().into();
    let outcome = AttemptOutcome::Refused { code: rejection.code.name().to_owned(), why: reason };
    let (start_ns, worker) = (context.elapsed_ns(), Arc::clone(&name));
    let attempt =
        Attempt { prompt: 0, worker, model: Some(name), start_ns, duration_ns: 0, outcome, paid: None };
    context.record.attempts.push(attempt);
}

fn read(
    endpoint: Endpoint,
    wants_body: bool,
    body: Bytes,
    limits: &headrace_wire::WireLimits,
) -> Result<Call, headrace_wire::BadRequest> {
    if wants_body {
        headrace_relay::skim(endpoint, body, limits)
    } else {
        headrace_wire::parse(endpoint, &body, limits)
    }
}

fn not_kept(model: &ServedModel) -> Rejection {
    let message = format!("`{}` is asked in messages, and the call's body was not kept.", model.name);
    Rejection::new(Code::RenderFailed, message)
}

fn kept_elsewhere(model: &ServedModel) -> Rejection {
    let message = format!(
        "The call continues a response that another server keeps, so `{}` cannot answer it.",
        model.name
    );
    Rejection::new(Code::Untranslatable, message).with_param("previous_response_id")
}

fn stopped() -> Rejection {
    let message = "The request could not be read: its reading was stopped. Nothing was charged.";
    Rejection::new(Code::InternalError, message).at(Stage::Parse)
}
