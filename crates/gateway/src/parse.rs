//! Stage `parse`: the body's one meaning. All rules are `wire`'s; here only the trace learns of it.

use headrace_domain::{KeyId, Stage};
use headrace_wire::ErrorKind;

use crate::Gateway;
use crate::memory::estimate;
use crate::refused::{Refused, Why};
use crate::state::{Parsed, Received, Taken};

impl Received {
    pub(crate) async fn parse(self, gateway: &Gateway) -> Result<Parsed, Refused> {
        let Self { mut dossier, principal, endpoint, body } = self;
        let config = gateway.config();
        let taken = match take(gateway, &principal.key, body.len()).await {
            Ok(taken) => taken,
            Err(why) => return Err(dossier.refuse(*why)),
        };
        let (parsed, taken) = if taken.place.is_some() {
            // A long body takes milliseconds: the event loop's threads must stay free for health checks. What was taken
            // stays there while it is read, also when the client goes away.
            let limits = config.wire.clone();
            let parsing = tokio::task::spawn_blocking(move || {
                let parsed = headrace_wire::parse(endpoint, &body, &limits);
                drop(body);
                (parsed, taken)
            });
            match parsing.await {
                Ok(done) => done,
                Err(_) => return Err(dossier.refuse(stopped())),
            }
        } else {
            (headrace_wire::parse(endpoint, &body, &config.wire), taken)
        };
        match parsed {
            Ok(call) => {
                dossier.record.stream = call.stream;
                dossier.mark(Stage::Parse);
                Ok(Parsed { dossier, principal, call, taken })
            }
            Err(bad) => {
                let kept = bad.for_record();
                let why = Why::new(Stage::Parse, 400, ErrorKind::InvalidRequest, bad.code, bad.message);
                let mut why = why.keeping(kept);
                why.param = bad.param;
                Err(dossier.refuse(why))
            }
        }
    }
}

/// The memory for reading a body and, for a long one, its turn.
async fn take(gateway: &Gateway, key: &KeyId, body_bytes: usize) -> Result<Taken, Box<Why>> {
    let reserved = gateway.memory().reserve(key, estimate::reading(body_bytes));
    let memory = reserved.map_err(|full| Box::new(full.at(Stage::Parse)))?;
    let place = if body_bytes > gateway.config().render_inline_bytes {
        Some(gateway.lane().enter(key, body_bytes).await.map_err(|full| Box::new(full.into()))?)
    } else {
        None
    };
    Ok(Taken { body_bytes, memory, place })
}

fn stopped() -> Why {
    let message = "The request could not be read: its reading was stopped. Nothing was charged.";
    Why::new(Stage::Parse, 500, ErrorKind::Internal, "internal_error", message)
}
