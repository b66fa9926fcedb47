//! Stage `parse`: the body's one meaning, and with it the model that takes it: how a body is read depends on that. All rules are
//! `wire`'s and the catalogue's; here only the trace learns of it.

use std::sync::Arc;

use bytes::Bytes;
use headrace_domain::{Call, Code, Endpoint, KeyId, ModelName, Stage};
use headrace_wire::{BadRequest, WireLimits};

use crate::Gateway;
use crate::catalog::{Catalog, ServedModel};
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::routes::Asker;
use crate::state::{Parsed, Received, Taken};

use super::render::estimate;

impl Received {
    pub(crate) async fn parse(self, gateway: &Gateway, dossier: &mut Dossier) -> Result<Parsed, Why> {
        let Self { principal, endpoint, body } = self;
        let config = gateway.config();
        let taken = take(gateway, &principal.key, body.len()).await?;
        let catalog = gateway.catalog();
        let asker = Asker {
            secret: gateway.parts().cache_secret,
            principal: Arc::clone(&principal.principal),
            request: dossier.id,
        };
        let (read, taken) = if taken.turn.is_some() {
            // A long body takes milliseconds: the event loop's threads must stay free for health checks. What was taken
            // stays there while it is read, also when the client goes away.
            let (limits, catalog) = (config.wire.clone(), Arc::clone(&catalog));
            let reading = tokio::task::spawn_blocking(move || {
                let read = read(&catalog, &asker, endpoint, body, &limits);
                (read, taken)
            });
            reading.await.map_err(|_| stopped())?
        } else {
            (read(&catalog, &asker, endpoint, body, &config.wire), taken)
        };
        let Read { call, asked, model } = read?;
        dossier.record.stream = call.stream;
        dossier.mark(Stage::Parse);
        Ok(Parsed { principal, call, taken, catalog, asked, model })
    }
}

/// What a body says.
struct Read {
    call: Call,
    /// `None`: what it asks for could be no model's name.
    asked: Option<ModelName>,
    /// Who takes it, if that name leads to anybody.
    model: Option<Arc<ServedModel>>,
}

/// How a body is read depends on who takes it: what is sent on means what its receiver says, and of that only what limits, money
/// and rules need is read.
fn read(
    catalog: &Catalog,
    asker: &Asker,
    endpoint: Endpoint,
    body: Bytes,
    limits: &WireLimits,
) -> Result<Read, BadRequest> {
    let named = if catalog.looks() { headrace_wire::relay::model_named(&body) } else { None };
    let asked = named.and_then(|name| ModelName::new(&name).ok());
    let model = asked.as_ref().and_then(|name| catalog.choose(name, asker, &body));
    if model.as_ref().is_some_and(|model| model.lane.is_messages()) {
        let call = headrace_wire::relay::skim(endpoint, body, limits)?;
        return Ok(Read { call, asked, model });
    }
    let call = headrace_wire::parse(endpoint, &body, limits)?;
    let asked = asked.or_else(|| ModelName::new(&call.model).ok());
    let model = model.or_else(|| catalog.choose(asked.as_ref()?, asker, &body));
    Ok(Read { call, asked, model })
}

/// The memory for reading a body and, for a long one, its turn.
async fn take(gateway: &Gateway, key: &KeyId, body_bytes: usize) -> Result<Taken, Why> {
    let reserved = gateway.memory().reserve(key, estimate::reading(body_bytes));
    let memory = reserved.map_err(|full| full.at(Stage::Parse))?;
    let turn = if body_bytes > gateway.config().render_inline_bytes {
        Some(gateway.turns().enter(key, body_bytes).await?)
    } else {
        None
    };
    Ok(Taken { body_bytes, memory, turn })
}

fn stopped() -> Why {
    let message = "The request could not be read: its reading was stopped. Nothing was charged.";
    Why::new(Code::InternalError, message).at(Stage::Parse)
}
