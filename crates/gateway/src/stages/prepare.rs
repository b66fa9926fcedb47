//! Before the stage `parse`: the stored items that a body names, the model that takes it, because the reading depends on
//! the model, and the memory for reading it. Its time counts as that of `parse`.

use std::sync::Arc;

use headrace_call_api::MemoryReservation;
use headrace_call_state::{Rejection, RequestMemory, reading_bytes, scanning_bytes, tree_bytes};
use headrace_catalog::Catalog;
use headrace_domain::{Endpoint, KeyId, ModelName, Stage};
use headrace_resources::ReferencedBody;
use headrace_rollout::RouteAsker;

use crate::request_context::RequestContext;
use crate::state::{NamedModel, PreparedRequest, ReceivedRequest};
use crate::{Gateway, features};

/// How many times longer a body may be if it is only scanned, at a gigabyte per second, instead of rendered.
const SCANNED_TIMES: usize = 16;

impl ReceivedRequest {
    pub(crate) async fn prepare(
        self,
        gateway: &Gateway,
        context: &RequestContext,
    ) -> Result<PreparedRequest, Rejection> {
        let Self { principal, endpoint, body } = self;
        let catalog = gateway.catalog();
        let ReferencedBody { body, may_pass, memory } =
            features::on_body(gateway, &catalog, &principal, (endpoint, body)).await?;
        let asker = RouteAsker {
            secret: gateway.parts().cache_secret,
            principal: Arc::clone(&principal.principal),
            request: context.id,
            now: gateway.parts().clock.now(),
            to: context.copy().map(|copy| copy.model().clone()),
        };
        let inline = gateway.config().render_inline_bytes;
        let is_scanned = body.len() <= inline.saturating_mul(SCANNED_TIMES);
        let named = is_scanned.then(|| name_model(&catalog, &asker, &body));
        let as_it_is = named.as_ref().is_some_and(|named| named.goes_as_it_is(&catalog, endpoint));
        let taken = match memory {
            None => reserve(gateway, &principal.key, &body, as_it_is).await?,
            Some(memory) => reserve_more(gateway, memory, &body, as_it_is).await?,
        };
        Ok(PreparedRequest { principal, endpoint, body, may_pass, asker, named, catalog, taken })
    }
}

impl NamedModel {
    /// Whether a call is sent on unchanged: no stage reads its words, and none translates it into another dialect.
    fn goes_as_it_is(&self, catalog: &Catalog, endpoint: Endpoint) -> bool {
        let Some(model) = self.model.as_ref().filter(|model| model.backend.is_messages()) else {
            return false;
        };
        let own = endpoint.dialect();
        endpoint != Endpoint::Responses
            && catalog.judge().is_none()
            && catalog.fleet().relays(&model.name).all(|relay| relay.facts().dialect == own)
    }
}

/// Finds the model that a body asks for, as far as it is known before the body is read.
pub(super) fn name_model(catalog: &Catalog, asker: &RouteAsker, body: &[u8]) -> NamedModel {
    let find = || headrace_relay::model_named(body).and_then(|name| ModelName::new(&name).ok());
    let asked = asker.to.clone().or_else(|| if catalog.looks() { find() } else { None });
    let model = asked.as_ref().and_then(|name| catalog.choose(name, asker, body));
    NamedModel { asked, model }
}

/// Takes the memory for reading a body, and a place in the render gate if the reading is long. A body with such a place
/// is read off the event loop, where [`RequestMemory::reserve_trees`] reserves the memory of its elements.
pub(crate) async fn reserve(
    gateway: &Gateway,
    key: &KeyId,
    body: &[u8],
    as_it_is: bool,
) -> Result<RequestMemory, Rejection> {
    reserve_more(gateway, gateway.memory().none_yet(key), body, as_it_is).await
}

/// Like [`reserve`], with memory that the call has already reserved.
async fn reserve_more(
    gateway: &Gateway,
    memory: MemoryReservation,
    body: &[u8],
    as_it_is: bool,
) -> Result<RequestMemory, Rejection> {
    let body_bytes = body.len();
    let has_turn = body_bytes > gateway.config().render_inline_bytes && !as_it_is;
    let tree_bytes = if has_turn || as_it_is { 0 } else { tree_bytes(body) };
    let most = match as_it_is {
        true => scanning_bytes(body_bytes),
        false => reading_bytes(body_bytes, tree_bytes),
    };
    gateway.memory().resize(&memory, most).map_err(|full| full.at(Stage::Parse))?;
    let turn = match has_turn {
        true => Some(gateway.turns().enter(memory.key(), body_bytes).await?),
        false => None,
    };
    Ok(RequestMemory { body_bytes, tree_bytes, memory: Arc::new(memory), turn, body: None })
}
