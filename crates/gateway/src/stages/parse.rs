//! Stage `parse`: the body's one meaning. All rules are `wire`'s; here only the trace learns of it.

use bytes::Bytes;
use headrace_domain::{Call, Code, Endpoint, KeyId, Stage};
use headrace_wire::{BadRequest, WireLimits};

use crate::Gateway;
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Parsed, Received, Taken};

use super::render::estimate;

impl Received {
    pub(crate) async fn parse(self, gateway: &Gateway, dossier: &mut Dossier) -> Result<Parsed, Why> {
        let Self { principal, endpoint, body } = self;
        let config = gateway.config();
        let taken = take(gateway, &principal.key, body.len()).await?;
        let catalog = gateway.catalog();
        // What is sent on means what its receiver says: of that only what limits, money and rules need is read.
        let read = if catalog.is_for_messages(&body) { sent_on } else { strictly };
        let (parsed, taken) = if taken.turn.is_some() {
            // A long body takes milliseconds: the event loop's threads must stay free for health checks. What was taken
            // stays there while it is read, also when the client goes away.
            let limits = config.wire.clone();
            let parsing = tokio::task::spawn_blocking(move || {
                let parsed = read(endpoint, body, &limits);
                (parsed, taken)
            });
            parsing.await.map_err(|_| stopped())?
        } else {
            (read(endpoint, body, &config.wire), taken)
        };
        let call = parsed?;
        dossier.record.stream = call.stream;
        dossier.mark(Stage::Parse);
        Ok(Parsed { principal, call, taken, catalog })
    }
}

fn strictly(endpoint: Endpoint, body: Bytes, limits: &WireLimits) -> Result<Call, BadRequest> {
    headrace_wire::parse(endpoint, &body, limits)
}

fn sent_on(endpoint: Endpoint, body: Bytes, limits: &WireLimits) -> Result<Call, BadRequest> {
    headrace_wire::relay::skim(endpoint, body, limits)
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
