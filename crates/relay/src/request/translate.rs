//! Translates a body for a receiver that speaks another dialect than the caller.
//! Must not know the answer.

use bytes::{Bytes, BytesMut};
use headrace_domain::{Call, Code, Dialect, Endpoint};

use super::edit::{BodyEdits, body_of, edited};
use super::neutral_request::lacks;
use super::{read_chat, read_messages, write_chat, write_messages};
use headrace_wire::fault::Read;
use headrace_wire::{BadRequest, WireLimits};

/// Returns the body of a call that [`super::skim`] read, as a receiver that speaks `to` needs it, with the edits. If
/// that is the caller's own dialect, this is [`edited`]. `limits` are those that the call was read within.
///
/// # Errors
/// [`BadRequest`] names the first field that has no counterpart in the other dialect. No field is dropped silently.
#[doc = include_str!("translation.md")]
pub fn translated(
    call: &Call,
    to: Dialect,
    edits: &BodyEdits<'_>,
    limits: &WireLimits,
) -> Result<Bytes, BadRequest> {
    if call.endpoint.dialect() == to {
        return edited(call, edits);
    }
    Ok(put(call, body_of(call)?, to, edits, limits)?.freeze())
}

fn put(call: &Call, body: &[u8], to: Dialect, edits: &BodyEdits<'_>, limits: &WireLimits) -> Read<BytesMut> {
    let request = match call.endpoint {
        Endpoint::ChatCompletions => read_chat::read(call, body, to, limits),
        Endpoint::Messages => read_messages::read(call, body, to, limits),
        Endpoint::Responses => {
            // Responses are translated into chat before this point, in `as_chat`.
            let why = "has no responses; use `POST /v1/chat/completions`";
            Err(lacks(to, Code::UnsupportedValue, why))
        }
        Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => {
            Err(lacks(to, Code::UnsupportedValue, "has only conversations"))
        }
        Endpoint::Completions => {
            let why = "has only conversations; use `POST /v1/chat/completions`";
            Err(lacks(to, Code::UnsupportedValue, why))
        }
    }?;
    let mut out = BytesMut::with_capacity(body.len() + body.len() / 8);
    match to {
        Dialect::OpenAi => write_chat::write(&request, call, edits, &mut out),
        Dialect::Anthropic => write_messages::write(&request, call, edits, &mut out),
    }?;
    Ok(out)
}
