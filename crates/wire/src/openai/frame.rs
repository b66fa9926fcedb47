//! The parts that all OpenAI answers share: a chunk's constant start and end, usage, finish reasons, the end of a
//! stream.
//! Knows nothing about the content of a choice.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{Call, Dialect, Endpoint, FinishReason, ServiceTier, ShownPrompt, TokenLogprob, Usage};

use crate::common::answer_id::{answer_id, write_explain};
use crate::common::encoder::{KEEP_ALIVE, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;
use crate::json::writer::{ids, index, prompt_logprobs, raw, value};

/// The frame of a chunk. Its start is the same for every chunk of an answer, and is built once per request.
pub(super) struct ChunkFrame {
    /// The start, up to the index of a choice.
    head: BytesMut,
    /// The number of bytes in `head` before any choice.
    before_choice: usize,
    tail: &'static str,
    include_usage: bool,
    /// The end or an error was written. Nothing is written after that.
    pub(super) over: bool,
}

impl ChunkFrame {
    pub(super) fn new(call: &Call, meta: &ReplyMeta, object: &str) -> Self {
        let mut head = BytesMut::with_capacity(256);
        raw(&mut head, "data: ");
        write_head(&mut head, call.endpoint, meta, object);
        raw(&mut head, "[");
        let before_choice = head.len();
        raw(&mut head, "{\"index\":");
        // OpenAI: if usage is requested, every chunk except the last has it as null.
        let tail = if call.include_usage { ",\"usage\":null}\n\n" } else { "}\n\n" };
        Self { head, before_choice, tail, include_usage: call.include_usage, over: false }
    }

    /// Writes the start, including the choice's index.
    pub(super) fn open(&self, out: &mut BytesMut, choice: u32) {
        out.extend_from_slice(&self.head);
        index(out, choice);
    }

    /// Writes the end of the choice and of the chunk.
    pub(super) fn close(&self, out: &mut BytesMut) {
        self.close_with(out, |_| {});
    }

    /// Writes the same end, with fields of the chunk itself in between.
    pub(super) fn close_with(&self, out: &mut BytesMut, fields: impl FnOnce(&mut BytesMut)) {
        raw(out, "}]");
        fields(out);
        raw(out, self.tail);
    }

    pub(super) fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if self.include_usage || explain.is_some() {
            out.extend_from_slice(self.head.get(..self.before_choice).unwrap_or_default());
            raw(out, "]");
            if self.include_usage {
                write_usage(out, usage);
            }
            write_explain(out, explain);
            raw(out, "}\n\n");
        }
        raw(out, "data: [DONE]\n\n");
    }

    pub(super) fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        raw(out, "data: ");
        write_error(Dialect::OpenAi, facts, out);
        raw(out, "\n\n");
    }

    pub(super) fn keep_alive(&self, out: &mut BytesMut) {
        if !self.over {
            raw(out, KEEP_ALIVE);
        }
    }
}

/// Writes `{"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…,"choices":`.
pub(super) fn write_head(out: &mut BytesMut, endpoint: Endpoint, meta: &ReplyMeta, object: &str) {
    raw(out, "{\"id\":");
    value(out, &answer_id(endpoint, meta.request_id));
    raw(out, ",\"object\":");
    value(out, object);
    raw(out, ",\"created\":");
    value(out, &meta.created_unix_s);
    raw(out, ",\"model\":");
    value(out, &meta.model);
    raw(out, ",\"system_fingerprint\":");
    value(out, &meta.system_fingerprint);
    if meta.tier == ServiceTier::Flex {
        raw(out, ",\"service_tier\":\"flex\"");
    }
    raw(out, ",\"choices\":");
}

/// Writes `,"usage":{…}`.
pub(super) fn write_usage(out: &mut BytesMut, usage: &Usage) {
    raw(out, ",\"usage\":{\"prompt_tokens\":");
    value(out, &usage.prompt_tokens());
    raw(out, ",\"completion_tokens\":");
    value(out, &usage.completion_tokens());
    raw(out, ",\"total_tokens\":");
    value(out, &usage.total());
    raw(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    value(out, &usage.cached_input);
    if usage.cache_writes() > 0 {
        raw(out, ",\"cache_write_tokens\":");
        value(out, &usage.cache_writes());
    }
    raw(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
    value(out, &usage.reasoning);
    raw(out, "}}");
}

/// Writes `,"finish_reason":…`, with vLLM's `stop_reason` if a stop string matched.
pub(super) fn write_finish_reason(out: &mut BytesMut, reason: Option<&FinishReason>) {
    raw(out, ",\"finish_reason\":");
    value(out, &reason.map(FinishReason::name));
    if let Some(FinishReason::StopString { matched }) = reason {
        raw(out, ",\"stop_reason\":");
        value(out, matched);
    }
}

/// Writes vLLM's `,"prompt_token_ids":[…]` and `,"prompt_logprobs":[…]`, if requested.
pub(super) fn write_prompt(
    out: &mut BytesMut,
    wanted: WantedFields,
    prompt: &[u32],
    logprobs: &[TokenLogprob],
) {
    if wanted.token_ids {
        raw(out, ",\"prompt_token_ids\":");
        ids(out, prompt);
    }
    if wanted.prompt_logprobs {
        raw(out, ",\"prompt_logprobs\":");
        prompt_logprobs(out, logprobs);
    }
}

/// The fields of a prompt. They are built once for consecutive choices with the same prompt.
#[derive(Default)]
pub(super) struct PromptFields {
    of: Option<Arc<ShownPrompt>>,
    json: BytesMut,
}

impl PromptFields {
    /// Writes the fields like [`write_prompt`].
    pub(super) fn write(&mut self, out: &mut BytesMut, wanted: WantedFields, prompt: &Arc<ShownPrompt>) {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, prompt)) {
            self.json.clear();
            write_prompt(&mut self.json, wanted, &prompt.ids, &prompt.logprobs);
            self.of = Some(Arc::clone(prompt));
        }
        out.extend_from_slice(&self.json);
    }
}

/// Writes vLLM's `,"token_ids":[…]`, if requested.
pub(super) fn write_token_ids(out: &mut BytesMut, wanted: WantedFields, tokens: &[u32]) {
    if wanted.token_ids {
        raw(out, ",\"token_ids\":");
        ids(out, tokens);
    }
}

/// The parameters of a call that decide which fields its OpenAI answer has.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantedFields {
    pub(super) logprobs: bool,
    /// vLLM's `prompt_logprobs`. With `echo`, the prompt's log-probabilities are in `logprobs` instead.
    pub(super) prompt_logprobs: bool,
    pub(super) token_ids: bool,
    pub(super) echo: bool,
    /// Reasoning is left out.
    pub(super) no_reasoning: bool,
}

impl WantedFields {
    pub(super) fn of(call: &Call) -> Self {
        let (logprobs, echo) = (call.sampling.logprobs.is_some(), call.dialect.echo());
        Self {
            logprobs,
            prompt_logprobs: call.sampling.prompt_logprobs.is_some() && !(echo && logprobs),
            token_ids: call.return_token_ids,
            echo,
            no_reasoning: call.reasoning.hidden,
        }
    }

    /// Returns the ids and log-probabilities that are shown beside a text.
    pub(super) fn of_text<'a>(
        self,
        ids: &'a [u32],
        logprobs: &'a [TokenLogprob],
    ) -> (&'a [u32], &'a [TokenLogprob]) {
        (if self.token_ids { ids } else { &[] }, if self.logprobs { logprobs } else { &[] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_writes_are_shown_where_there_are_some() {
        let usage = Usage {
            input: 5,
            cached_input: 16,
            cache_write: 30,
            cache_write_1h: 4,
            output: 2,
            reasoning: 1,
            web_searches: 0,
        };
        let mut out = BytesMut::new();
        write_usage(&mut out, &usage);
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            r#","usage":{"prompt_tokens":55,"completion_tokens":3,"total_tokens":58,"prompt_tokens_details":{"cached_tokens":16,"cache_write_tokens":34},"completion_tokens_details":{"reasoning_tokens":1}}"#
        );
    }
}
