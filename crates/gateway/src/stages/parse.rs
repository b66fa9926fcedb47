//! Stage `parse`: gives the body its one meaning. `wire` and the catalogue hold all rules; this file only calls them and
//! updates the trace.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_state::Rejection;
use headrace_catalog::{Catalog, ServedModel};
use headrace_domain::{Call, Code, Endpoint, ModelName, Stage};
use headrace_rollout::RouteAsker;
use headrace_wire::{BadRequest, WireLimits};

use crate::request_context::RequestContext;
use crate::state::{NamedModel, ParsedCall, PreparedRequest};
use crate::{Gateway, features};

use super::prepare::name_model;

impl PreparedRequest {
    pub(crate) async fn parse(
        self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<ParsedCall, Rejection> {
        let Self { principal, endpoint, body, may_pass, asker, named, catalog, taken } = self;
        let config = gateway.config();
        let kept = (features::need_body(context, &catalog) || catalog.looks()).then(|| body.clone());
        let (read, mut taken) = if taken.turn.is_some() {
            // A long body takes milliseconds: the threads of the event loop must stay free for health checks. `taken`
            // stays reserved while the body is read, even if the client goes away.
            let (limits, catalog) = (config.wire.clone(), Arc::clone(&catalog));
            let reading = tokio::task::spawn_blocking(move || {
                let mut taken = taken;
                taken.reserve_trees(&body)?;
                let named = named.unwrap_or_else(|| name_model(&catalog, &asker, &body));
                let read = read(&catalog, &asker, named, (endpoint, may_pass), body, &limits);
                Ok::<_, Rejection>((read, taken))
            });
            reading.await.map_err(|_| stopped())??
        } else {
            let named = named.unwrap_or_else(|| name_model(&catalog, &asker, &body));
            (read(&catalog, &asker, named, (endpoint, may_pass), body, &config.wire), taken)
        };
        let ReadBody { call, asked, model } = match read {
            Ok(read) => read,
            Err(bad) => {
                features::on_unread(context, kept.as_ref());
                return Err(bad.into());
            }
        };
        let names = asked.as_ref().zip(model.as_deref());
        let falls_back = names.is_some_and(|(asked, model)| catalog.may_fall_back_on_messages(asked, model));
        taken.body = if falls_back { kept.clone() } else { None };
        let parsed = ParsedCall { principal, call, taken, catalog, asked, model };
        let mut parsed = features::on_parsed(gateway, context, parsed, kept).await?;
        context.record.stream = parsed.call.stream;
        let user = parsed.call.user.take();
        let labels = parsed.call.labels.take();
        if context.records.level.has_labels() {
            (context.record.user, context.record.labels) = (user, labels);
        }
        context.end_stage(Stage::Parse);
        Ok(parsed)
    }
}

/// A body that was read.
struct ReadBody {
    /// Boxed, so that later stages pass it on without a copy.
    call: Box<Call>,
    /// The requested model. `None` if the text cannot be the name of a model.
    asked: Option<ModelName>,
    /// The model that takes the call. `None` if the name leads to no model.
    model: Option<Arc<ServedModel>>,
}

/// Reads a body for the model that takes it. A body that is sent on means what its receiver makes of it, so only what
/// limits, money and rules need is read.
fn read(
    catalog: &Catalog,
    asker: &RouteAsker,
    named: NamedModel,
    (endpoint, may_pass): (Endpoint, bool),
    body: Bytes,
    limits: &WireLimits,
) -> Result<ReadBody, BadRequest> {
    let NamedModel { asked, model } = named;
    let sent_on = model.as_ref().is_some_and(|model| match endpoint {
        // A response is parsed if it is sent on as a chat, or if it continues from something stored here.
        Endpoint::Responses => may_pass && model.backend.passes_responses(),
        _ => model.backend.is_messages(),
    });
    if sent_on {
        let call = Box::new(headrace_relay::skim(endpoint, body, limits)?);
        return Ok(ReadBody { call, asked, model });
    }
    let call = Box::new(headrace_wire::parse(endpoint, &body, limits)?);
    let asked = asked.or_else(|| ModelName::new(&call.model).ok());
    let model = model.or_else(|| catalog.choose(asked.as_ref()?, asker, &body));
    Ok(ReadBody { call, asked, model })
}

fn stopped() -> Rejection {
    let message = "The request could not be read: its reading was stopped. Nothing was charged.";
    Rejection::new(Code::InternalError, message).at(Stage::Parse)
}
