//! Parses the bytes of a body into one [`Call`], by endpoint. Refuses everything that is not understood, and drops
//! nothing.
//! Knows no templates, no models and no tenants.

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod chat_tests;
#[cfg(test)]
mod completions_tests;
#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod messages_tests;

use headrace_domain::{Call, Endpoint};

use crate::anthropic::messages;
use crate::fault::{BadRequest, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;
use crate::openai::{chat, completions, embeddings, rerank};
use crate::responses;

/// Parses `body`, sent to `endpoint`, into a call.
///
/// # Errors
/// [`BadRequest`] names the first parameter that is malformed, out of range, unknown or not supported. Until then, work
/// and memory are bounded by the limits and the bytes read, not by any number in the body.
pub fn parse(endpoint: Endpoint, body: &[u8], limits: &WireLimits) -> Result<Call, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read(endpoint, &mut reader, limits)?)
}

fn read(endpoint: Endpoint, reader: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    match endpoint {
        Endpoint::ChatCompletions => chat::read(reader, limits),
        Endpoint::Completions => completions::read(reader, limits),
        Endpoint::Messages => messages::read(reader, limits),
        Endpoint::Responses => responses::read(reader, limits),
        Endpoint::Embeddings => embeddings::read(reader, limits),
        Endpoint::Rerank => rerank::read_rerank(reader, limits),
        Endpoint::Score => rerank::read_score(reader, limits),
    }
}

/// [`parse`] for an OpenAI chat completion (<https://platform.openai.com/docs/api-reference/chat/create>).
///
/// # Errors
/// The same as for [`parse`].
pub fn parse_chat(body: &[u8], limits: &WireLimits) -> Result<Call, BadRequest> {
    parse(Endpoint::ChatCompletions, body, limits)
}

/// [`parse`] for an OpenAI completion (<https://platform.openai.com/docs/api-reference/completions/create>).
///
/// # Errors
/// The same as for [`parse`].
pub fn parse_completions(body: &[u8], limits: &WireLimits) -> Result<Call, BadRequest> {
    parse(Endpoint::Completions, body, limits)
}

/// [`parse`] for an Anthropic message (<https://docs.anthropic.com/en/api/messages>).
///
/// # Errors
/// The same as for [`parse`].
pub fn parse_messages(body: &[u8], limits: &WireLimits) -> Result<Call, BadRequest> {
    parse(Endpoint::Messages, body, limits)
}
