//! The encoder trait, and the metadata of an answer.
//! Must not know dialects.

use bytes::{Bytes, BytesMut};
use headrace_domain::{ReplyEvent, RequestId, ServiceTier, Usage};

use crate::common::diagnosis::CacheDiagnosis;

use crate::common::error::ErrorFacts;
use crate::json::writer::raw;

/// The metadata of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyMeta {
    /// The id of the request. The answer's id is made of it.
    pub request_id: RequestId,
    /// The time of the answer in Unix seconds: OpenAI's `created`.
    pub created_unix_s: u64,
    /// The model's name to show.
    pub model: String,
    /// A fingerprint of model, mode and numerics: OpenAI's `system_fingerprint`.
    pub system_fingerprint: String,
    /// OpenAI's `service_tier`. Shown only if it is not the standard tier.
    pub tier: ServiceTier,
    /// The sampling parameters for calls that set none.
    pub chosen: ShownSampling,
    /// The diagnosis of a cache miss. `None` if the call did not ask for one.
    pub diagnosis: Option<CacheDiagnosis>,
}

/// Sampling parameters, as far as answers show them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShownSampling {
    /// The temperature. 0 is greedy.
    pub temperature: f32,
    /// The nucleus. 1 keeps all tokens.
    pub top_p: f32,
}

impl Default for ShownSampling {
    /// Sampling without any change.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0 }
    }
}

/// Writes one answer. The order of calls is `begin`, any number of `event` and `keep_alive`, then either `finish` or
/// `fail`. Calls after those write nothing.
///
/// For each choice, a producer sends [`ReplyEvent::Prompt`] first, but only if the call has `echo`, `prompt_logprobs`
/// or `return_token_ids`. Text, reasoning and tool calls follow, with the pieces of one call together.
/// [`ReplyEvent::Finish`] comes last.
pub trait ReplyEncoder: Send {
    /// Writes the start of the answer. The prompt's token counts are known by then, including cached tokens.
    fn begin(&mut self, prompt_usage: &Usage, out: &mut BytesMut);
    /// Writes the next piece.
    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut);
    /// Ends the answer successfully. `explain` is the `headrace` block, if requested. A whole answer is written here.
    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut);
    /// Ends a stream with an error event in the dialect's shape, and without the end of a good stream. For a whole
    /// answer, nothing was written before, so this writes the error's body.
    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut);
    /// Writes bytes without meaning that keep the connection alive. Writes nothing for a whole answer.
    fn keep_alive(&mut self, out: &mut BytesMut);
    /// Writes a comment about the following events, which every reader of a stream skips. Writes nothing for a whole
    /// answer.
    fn remark(&mut self, text: &str, out: &mut BytesMut) {
        if self.content_type() == EVENT_STREAM {
            raw(out, ": ");
            raw(out, text);
            raw(out, "\n\n");
        }
    }
    /// Sets the time at which the answer was complete, in seconds since 1970. Called before `finish`, for answers that
    /// show it.
    fn ended_at(&mut self, _unix_s: u64) {}
    /// Says that an upstream's own bytes are passed on instead. This encoder then writes at most a failure.
    fn passed(&mut self) {}
    /// Keeps the answer even if it is not to be stored, because a later request continues from it.
    fn keep(&mut self) {}
    /// Takes the answer to keep, as a JSON object, once the answer has finished.
    fn kept(&mut self) -> Option<Bytes> {
        None
    }
    /// The content type: `text/event-stream` or `application/json`.
    fn content_type(&self) -> &'static str;
}

/// The content type of a stream.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// The content type of a whole answer.
pub(crate) const JSON: &str = "application/json";

/// An SSE comment, which every reader skips.
pub(crate) const KEEP_ALIVE: &str = ": keep-alive\n\n";
