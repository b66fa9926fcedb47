//! Stage `parse`: gives the body its one meaning, and finds the model that takes it, because the reading depends on the
//! model. `wire` and the catalogue hold all rules; this file only calls them and updates the trace.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::MemoryReservation;
use headrace_domain::{Call, Code, DialectExtras, Endpoint, KeyId, ModelName, ServiceTier, Stage};
use headrace_wire::{BadRequest, WireLimits};

use crate::Gateway;
use crate::catalog::{Catalog, ServedModel};
use crate::memory::NoMemory;
use crate::objects::references::{self, WithState};
use crate::rejection::Rejection;
use crate::request_context::RequestContext;
use crate::routes::RouteAsker;
use crate::shadows;
use crate::state::{ParsedCall, ReceivedRequest, RequestMemory};

use super::render::estimate;

/// How many times longer a body may be if it is only scanned, at a gigabyte per second, instead of rendered.
const LOOKED_THROUGH: usize = 16;

impl ReceivedRequest {
    pub(crate) async fn parse(
        self,
        gateway: &Gateway,
        dossier: &mut RequestContext,
    ) -> Result<ParsedCall, Rejection> {
        let Self { principal, endpoint, body } = self;
        let config = gateway.config();
        let catalog = gateway.catalog();
        let WithState { body, may_pass, memory } =
            match endpoint == Endpoint::Responses && references::concern(&body, &catalog) {
                // Boxed, so that the futures of other calls reserve no space for it.
                true => Box::pin(gateway.with_state(body, &catalog, &principal)).await?,
                false => WithState { body, may_pass: false, memory: None },
            };
        let asker = RouteAsker {
            secret: gateway.parts().cache_secret,
            principal: Arc::clone(&principal.principal),
            request: dossier.id,
            now: gateway.parts().clock.now(),
            to: dossier.copy().map(|copy| copy.model().clone()),
        };
        let (bytes, inline) = (body.len(), config.render_inline_bytes);
        let named = (bytes <= inline.saturating_mul(LOOKED_THROUGH)).then(|| named(&catalog, &asker, &body));
        let as_it_is = named.as_ref().is_some_and(|named| named.goes_as_it_is(&catalog, endpoint));
        let taken = match memory {
            None => take(gateway, &principal.key, &body, as_it_is).await?,
            Some(memory) => take_with(gateway, memory, &body, as_it_is).await?,
        };
        let turn = dossier.turns.is_some().then(|| body.clone());
        let whole = (asker.to.is_none() && catalog.has_shadows()).then(|| body.clone());
        let whole_body = catalog.looks().then(|| body.clone());
        let (read, mut taken) = if taken.turn.is_some() {
            // A long body takes milliseconds: the threads of the event loop must stay free for health checks. `taken`
            // stays reserved while the body is read, even if the client goes away.
            let (limits, catalog) = (config.wire.clone(), Arc::clone(&catalog));
            let reading = tokio::task::spawn_blocking(move || {
                let mut taken = taken;
                taken.reserve_trees(&body)?;
                let named = named.unwrap_or_else(|| self::named(&catalog, &asker, &body));
                let read = read(&catalog, &asker, named, (endpoint, may_pass), body, &limits);
                Ok::<_, Rejection>((read, taken))
            });
            reading.await.map_err(|_| stopped())??
        } else {
            let named = named.unwrap_or_else(|| self::named(&catalog, &asker, &body));
            (read(&catalog, &asker, named, (endpoint, may_pass), body, &config.wire), taken)
        };
        if let (Err(_), Some(turns), Some(turn)) = (&read, &dossier.turns, &turn) {
            turns.refused(turn);
        }
        let ReadBody { mut call, asked, model } = read?;
        taken.body = whole_body.filter(|_| {
            let names = asked.as_ref().zip(model.as_deref());
            names.is_some_and(|(asked, model)| catalog.may_fall_back_on_messages(asked, model))
        });
        if dossier.batch.is_some() {
            in_batch(&mut call)?;
        }
        if let (Some(asked), Some(model)) = (&asked, &model) {
            dossier.trial = catalog.trial(asked, &model.name);
        }
        if let (Some(body), Some(asked), Some(model)) = (whole, &asked, &model)
            && let Some(named) = catalog.shadow(asked, &model.name)
        {
            let now = gateway.parts().clock.now();
            let what = (endpoint, body, &dossier.dialect_headers[..]);
            dossier.shadow =
                shadows::sample((gateway.shadows(), now), named, dossier.id, what, &principal.principal);
        }
        let goes_on =
            call.dialect.response().is_some_and(|ask| ask.previous.is_some() || ask.conversation.is_some());
        let is_kept = call.dialect.response().is_some_and(|ask| ask.store || ask.conversation.is_some());
        if is_kept && dossier.copy().is_none() {
            gateway.objects().check_room()?;
        }
        let turns = dossier.turns.as_ref();
        forget_input(&mut call, turns.is_some());
        if let Some(turns) = turns {
            turns.begun();
        }
        let (mut call, taken) = match goes_on {
            // Boxed, so that the futures of other calls reserve no space for it.
            true => Box::pin(gateway.with_history(call, taken, &principal, turns)).await?,
            false => (call, taken),
        };
        dossier.record.stream = call.stream;
        dossier.record.user = call.user.take();
        dossier.end_stage(Stage::Parse);
        Ok(ParsedCall { principal, call, taken, catalog, asked, model })
    }
}

impl RequestMemory {
    /// Reserves the memory that the JSON elements of `text` take as trees. Counting takes about a millisecond for 4 MB.
    ///
    /// # Errors
    /// The key has no memory left for it.
    pub(crate) fn reserve_trees(&mut self, text: &[u8]) -> Result<(), Rejection> {
        let bytes = estimate::tree_bytes(text);
        self.memory.add(bytes).map_err(|full| NoMemory::of(&self.memory, full).at(Stage::Parse))?;
        self.tree_bytes = self.tree_bytes.saturating_add(bytes);
        Ok(())
    }
}

/// Drops the input as it was sent if no later call can continue from it.
fn forget_input(call: &mut Call, is_kept: bool) {
    let DialectExtras::Responses(ask) = &mut call.dialect else { return };
    let Some(ask) = Arc::get_mut(ask) else { return };
    if !ask.store && ask.conversation.is_none() && !is_kept {
        ask.input = String::new();
    }
}

/// Requires that a batch request is answered whole and in the foreground, and puts it in the batch tier.
fn in_batch(call: &mut Call) -> Result<(), Rejection> {
    let never = |param: &str| {
        let message = format!("`{param}`: a request of a batch is answered whole, and waited for.");
        Err(Rejection::new(Code::UnsupportedValue, message).with_param(param))
    };
    if call.stream {
        return never("stream");
    }
    if call.dialect.response().is_some_and(|ask| ask.background) {
        return never("background");
    }
    call.tier = ServiceTier::Batch;
    Ok(())
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

/// The model that a body asks for, as far as it is known before the body is read.
struct NamedModel {
    asked: Option<ModelName>,
    model: Option<Arc<ServedModel>>,
}

impl NamedModel {
    /// Whether a call is sent on unchanged: no stage reads its words, and none translates it into another dialect.
    fn goes_as_it_is(&self, catalog: &Catalog, endpoint: Endpoint) -> bool {
        let Some(model) = self.model.as_ref().filter(|model| model.lane.is_messages()) else { return false };
        let own = endpoint.dialect();
        endpoint != Endpoint::Responses
            && catalog.judge().is_none()
            && catalog.fleet().relays(&model.name).all(|relay| relay.facts().dialect == own)
    }
}

fn named(catalog: &Catalog, asker: &RouteAsker, body: &[u8]) -> NamedModel {
    let told = || headrace_relay::model_named(body).and_then(|name| ModelName::new(&name).ok());
    let asked = asker.to.clone().or_else(|| if catalog.looks() { told() } else { None });
    let model = asked.as_ref().and_then(|name| catalog.choose(name, asker, body));
    NamedModel { asked, model }
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
        Endpoint::Responses => may_pass && model.lane.passes_responses(),
        _ => model.lane.is_messages(),
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

/// Takes the memory for reading a body, and a place in the render gate if the reading is long. A body with such a place
/// is read off the event loop, where [`RequestMemory::reserve_trees`] reserves the memory of its elements.
pub(crate) async fn take(
    gateway: &Gateway,
    key: &KeyId,
    body: &[u8],
    as_it_is: bool,
) -> Result<RequestMemory, Rejection> {
    take_with(gateway, gateway.memory().none_yet(key), body, as_it_is).await
}

/// Like [`take`], with memory that the call has already reserved.
async fn take_with(
    gateway: &Gateway,
    memory: MemoryReservation,
    body: &[u8],
    as_it_is: bool,
) -> Result<RequestMemory, Rejection> {
    let body_bytes = body.len();
    let has_turn = body_bytes > gateway.config().render_inline_bytes && !as_it_is;
    let tree_bytes = if has_turn || as_it_is { 0 } else { estimate::tree_bytes(body) };
    let most = match as_it_is {
        true => estimate::looking(body_bytes),
        false => estimate::reading(body_bytes, tree_bytes),
    };
    gateway.memory().resize(&memory, most).map_err(|full| full.at(Stage::Parse))?;
    let turn = match has_turn {
        true => Some(gateway.turns().enter(memory.key(), body_bytes).await?),
        false => None,
    };
    Ok(RequestMemory { body_bytes, tree_bytes, memory: Arc::new(memory), turn, body: None })
}

fn stopped() -> Rejection {
    let message = "The request could not be read: its reading was stopped. Nothing was charged.";
    Rejection::new(Code::InternalError, message).at(Stage::Parse)
}
