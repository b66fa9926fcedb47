//! Encodes answers: turns `domain` events into a dialect's stream or whole body, written directly into the output
//! bytes.
//! Knows no HTTP and never decides how an answer ends.

mod anthropic_stream;
mod anthropic_whole;
mod called;
mod chat_stream;
mod completion_logprobs;
mod completions_stream;
mod diagnosis;
mod encoded;
mod encoder;
mod frame;
mod openai_stream;
mod openai_whole;
mod reasoning_details;

#[cfg(test)]
mod equality_tests;
#[cfg(test)]
mod golden_tests;

pub(crate) use diagnosis::write_cache_diagnostics;
pub use diagnosis::{CacheDiagnosis, ChangedPart};
pub(crate) use encoder::{EVENT_STREAM, JSON, KEEP_ALIVE};
pub use encoder::{ReplyEncoder, ReplyMeta, ShownSampling};
pub(crate) use frame::{answer_id, write_explain};
pub use frame::{named_request, named_trace};

use headrace_domain::{Call, Endpoint};

use crate::responses::{ResponseStream, ResponseWhole};

/// Creates the encoder for `call`'s dialect, endpoint and delivery.
pub fn encoder(call: &Call, meta: ReplyMeta) -> Box<dyn ReplyEncoder> {
    match (call.endpoint, call.stream) {
        (Endpoint::ChatCompletions, true) => Box::new(chat_stream::ChatStream::encoder(call, &meta)),
        (Endpoint::Completions, true) => {
            Box::new(completions_stream::CompletionsStream::encoder(call, &meta))
        }
        (Endpoint::ChatCompletions | Endpoint::Completions, false) => {
            Box::new(openai_whole::OpenAiWhole::new(call, meta))
        }
        (Endpoint::Responses, true) => Box::new(ResponseStream::new(call, meta)),
        (Endpoint::Responses, false) => Box::new(ResponseWhole::new(call, meta)),
        (Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score, _) => {
            Box::new(encoded::EncodedVectors::new(call, meta))
        }
        (Endpoint::Messages, true) => Box::new(anthropic_stream::AnthropicStream::new(call, meta)),
        (Endpoint::Messages, false) => Box::new(anthropic_whole::AnthropicWhole::new(call, meta)),
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
