//! Answers: events of `domain` to a dialect's stream or whole body, written straight into the bytes that go out.
//! Knows no HTTP and never decides how an answer ends.

mod anthropic_stream;
mod anthropic_whole;
mod chat_stream;
mod completion_logprobs;
mod completions_stream;
mod frame;
mod openai_stream;
mod openai_whole;

#[cfg(test)]
mod equality_tests;
#[cfg(test)]
mod golden_tests;

pub use frame::named_request;

use bytes::BytesMut;
use headrace_domain::{Call, Endpoint, ReplyEvent, RequestId, ServiceTier, TokenLogprob, Usage};

use crate::ErrorFacts;

/// What an answer says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyMeta {
    /// Which request; the answer's id is made of it.
    pub request_id: RequestId,
    /// When it was answered: OpenAI's `created`.
    pub created_unix_s: u64,
    /// The model's name to show.
    pub model: String,
    /// What stands for model, mode and numerics: OpenAI's `system_fingerprint`.
    pub system_fingerprint: String,
    /// OpenAI's `service_tier`; said where it is not the usual one.
    pub tier: ServiceTier,
}

/// Writes one answer. The order of calls is `begin`, any number of `event` and `keep_alive`, then either `finish` or
/// `fail`; what is called after those writes nothing.
///
/// A producer sends, for each choice, [`ReplyEvent::Prompt`] first (only where the call has `echo`, `prompt_logprobs`
/// or `return_token_ids`), then text, reasoning and tool calls (one call's pieces together), then
/// [`ReplyEvent::Finish`].
pub trait ReplyEncoder: Send {
    /// Opening of the answer. The prompt's tokens, cached ones too, are known by then.
    fn begin(&mut self, prompt_usage: &Usage, out: &mut BytesMut);
    /// The next piece.
    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut);
    /// Everything ended well; `explain` is the `headrace` block where asked for. A whole answer is written here.
    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut);
    /// An error after the answer began: an error event in the dialect's shape, and never what ends a good stream.
    /// Of a whole answer nothing was written yet: there it is the error's body.
    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut);
    /// Something without meaning that keeps the connection alive; nothing for a whole answer.
    fn keep_alive(&mut self, out: &mut BytesMut);
    /// `text/event-stream` or `application/json`.
    fn content_type(&self) -> &'static str;
}

/// The encoder of `call`'s dialect, endpoint and way of delivery.
pub fn encoder(call: &Call, meta: ReplyMeta) -> Box<dyn ReplyEncoder> {
    match (call.endpoint, call.stream) {
        (Endpoint::ChatCompletions, true) => Box::new(chat_stream::ChatStream::encoder(call, &meta)),
        (Endpoint::Completions, true) => {
            Box::new(completions_stream::CompletionsStream::encoder(call, &meta))
        }
        (Endpoint::ChatCompletions | Endpoint::Completions, false) => {
            Box::new(openai_whole::OpenAiWhole::new(call, meta))
        }
        (Endpoint::Messages, true) => Box::new(anthropic_stream::AnthropicStream::new(meta)),
        (Endpoint::Messages, false) => Box::new(anthropic_whole::AnthropicWhole::new(meta)),
    }
}

const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";

/// An SSE comment, which every reader skips.
const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// What of a call decides which fields its OpenAI answer has.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    logprobs: bool,
    /// vLLM's `prompt_logprobs`. With `echo` the prompt's stand in `logprobs` instead.
    prompt_logprobs: bool,
    token_ids: bool,
    echo: bool,
}

impl Wanted {
    const fn of(call: &Call) -> Self {
        let logprobs = call.sampling.logprobs.is_some();
        Self {
            logprobs,
            prompt_logprobs: call.sampling.prompt_logprobs.is_some() && !(call.echo && logprobs),
            token_ids: call.return_token_ids,
            echo: call.echo,
        }
    }

    /// What of a text's ids and log-probabilities is shown beside it.
    fn of_text<'a>(self, ids: &'a [u32], logprobs: &'a [TokenLogprob]) -> (&'a [u32], &'a [TokenLogprob]) {
        (if self.token_ids { ids } else { &[] }, if self.logprobs { logprobs } else { &[] })
    }
}
