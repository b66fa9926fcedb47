//! Selects the encoder of an answer, which turns `domain` events into a dialect's stream or whole body.
//! Knows no HTTP and never decides how an answer ends.

#[cfg(test)]
mod equality_tests;
#[cfg(test)]
mod golden_tests;

use headrace_domain::{Call, Endpoint};

use crate::anthropic::{AnthropicStream, AnthropicWhole};
use crate::common::encoder::{EVENT_STREAM, JSON, ReplyEncoder, ReplyMeta};
use crate::openai;
use crate::responses::{ResponseStream, ResponseWhole};

/// Creates the encoder for `call`'s dialect, endpoint and delivery.
pub fn encoder(call: &Call, meta: ReplyMeta) -> Box<dyn ReplyEncoder> {
    match (call.endpoint, call.stream) {
        (Endpoint::Responses, true) => Box::new(ResponseStream::new(call, meta)),
        (Endpoint::Responses, false) => Box::new(ResponseWhole::new(call, meta)),
        (Endpoint::Messages, true) => Box::new(AnthropicStream::new(call, meta)),
        (Endpoint::Messages, false) => Box::new(AnthropicWhole::new(call, meta)),
        (
            Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Embeddings
            | Endpoint::Rerank
            | Endpoint::Score,
            _,
        ) => openai::encoder(call, meta),
    }
}

/// The [`ReplyEncoder::content_type`] of a call's encoder, without the need to create the encoder.
pub const fn content_type(call: &Call) -> &'static str {
    match call.endpoint {
        Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => JSON,
        _ if call.stream => EVENT_STREAM,
        _ => JSON,
    }
}
