//! What an encoder is: what it is told, what it is asked for, and what an answer says of itself.
//! Must not know dialects.

use bytes::{Bytes, BytesMut};
use headrace_domain::{Call, ReplyEvent, RequestId, ServiceTier, TokenLogprob, Usage};

use super::diagnosis::CacheDiagnosis;

use crate::ErrorFacts;
use crate::json_out::raw;

/// What an answer says of itself.
#[derive(Debug, Clone, PartialEq)]
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
    /// How tokens are chosen where the caller said nothing.
    pub chosen: Chosen,
    /// What there is to say of a cache miss; `None`: it was not asked for.
    pub diagnosis: Option<CacheDiagnosis>,
}

/// How tokens are chosen, as far as answers say it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 keeps all.
    pub top_p: f32,
}

impl Default for Chosen {
    /// Nothing is changed.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0 }
    }
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
    /// A word on what follows, as a comment, which every reader of a stream skips; nothing for a whole answer.
    fn remark(&mut self, text: &str, out: &mut BytesMut) {
        if self.content_type() == EVENT_STREAM {
            raw(out, ": ");
            raw(out, text);
            raw(out, "\n\n");
        }
    }
    /// When all of it was there, in seconds since 1970: said before `finish`, for answers that show it.
    fn ended_at(&mut self, _unix_s: u64) {}
    /// What somebody else wrote of the answer goes out: of this encoder comes at most how it failed.
    fn passed(&mut self) {}
    /// Has the answer kept even if it is not to be stored: somebody goes on from it.
    fn keep(&mut self) {}
    /// What is to be kept of the answer, once it has finished: it as an object.
    fn kept(&mut self) -> Option<Bytes> {
        None
    }
    /// `text/event-stream` or `application/json`.
    fn content_type(&self) -> &'static str;
}

/// The content type of a stream.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// The content type of a whole answer.
pub(crate) const JSON: &str = "application/json";

/// An SSE comment, which every reader skips.
pub(crate) const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// What of a call decides which fields its OpenAI answer has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) logprobs: bool,
    /// vLLM's `prompt_logprobs`. With `echo` the prompt's stand in `logprobs` instead.
    pub(super) prompt_logprobs: bool,
    pub(super) token_ids: bool,
    pub(super) echo: bool,
    /// Reasoning is left out.
    pub(super) no_reasoning: bool,
}

impl Wanted {
    pub(super) const fn of(call: &Call) -> Self {
        let logprobs = call.sampling.logprobs.is_some();
        Self {
            logprobs,
            prompt_logprobs: call.sampling.prompt_logprobs.is_some() && !(call.echo && logprobs),
            token_ids: call.return_token_ids,
            echo: call.echo,
            no_reasoning: call.reasoning.hidden,
        }
    }

    /// What of a text's ids and log-probabilities is shown beside it.
    pub(super) fn of_text<'a>(
        self,
        ids: &'a [u32],
        logprobs: &'a [TokenLogprob],
    ) -> (&'a [u32], &'a [TokenLogprob]) {
        (if self.token_ids { ids } else { &[] }, if self.logprobs { logprobs } else { &[] })
    }
}
