//! A call in messages put to one target: its body with the names and bounds that are the target's, in its dialect. Must not know
//! which target is asked next, or what is answered.

use headrace_domain::{Dialect, Endpoint};
use headrace_engine_api::{Relay, RelayAnswer, RelayAsk, RelayFacts};
use headrace_wire::relay::{Edits, ReplyReader, edited};

use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Messages, Work};

/// A target that was asked.
pub(crate) struct Asking {
    pub(crate) answer: Box<dyn RelayAnswer>,
    pub(crate) reader: ReplyReader,
    /// Its answer is in the caller's dialect and goes out as it comes.
    pub(crate) as_is: bool,
}

/// Puts the call to a target. Nothing is waited for.
///
/// # Errors
/// The call cannot be said in the target's dialect.
pub(super) fn ask(
    dossier: &Dossier,
    work: &Work,
    messages: &Messages,
    relay: &dyn Relay,
) -> Result<Asking, Why> {
    let facts = relay.facts();
    let own = facts.dialect == work.call.endpoint.dialect();
    let call = match &messages.translated {
        Some(translated) if !own => translated.as_ref().map_err(|bad| Why::from(bad.clone()))?,
        _ => &work.call,
    };
    let edits = Edits {
        model: &facts.model,
        usage: call.stream,
        max_tokens: Some((bound_field(facts, call.endpoint), work.sampling.max_tokens)),
    };
    let ask = RelayAsk {
        request: dossier.id,
        endpoint: call.endpoint,
        body: edited(call, &edits)?,
        stream: call.stream,
        // What a dialect's headers switch on in a body of another one cannot be said in it, and was refused.
        headers: if own { dossier.dialect_headers.clone() } else { Vec::new() },
        head_within: call.timeout,
    };
    Ok(Asking {
        answer: relay.send(ask),
        reader: ReplyReader::new(call.endpoint, call.stream, work.choices()),
        // The block of timings has its place in answers that are written here.
        as_is: own && !call.explain,
    })
}

/// In which field the bound on an answer's tokens is put, where the caller set none.
fn bound_field(facts: &RelayFacts, endpoint: Endpoint) -> &'static str {
    match (facts.dialect, endpoint) {
        (Dialect::OpenAi, Endpoint::ChatCompletions) => facts.max_tokens_field,
        _ => "max_tokens",
    }
}
