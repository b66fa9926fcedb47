//! The parts that all OpenAI answers share: a chunk's constant start and end, usage, finish reasons, the end of a
//! stream.
//! Knows nothing about the content of a choice.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Call, Dialect, Endpoint, FinishReason, RequestId, ServiceTier, ShownPrompt, TokenLogprob, Usage,
};

use super::encoder::{KEEP_ALIVE, ReplyMeta, WantedFields};
use crate::ErrorFacts;
use crate::error::write_error;
use crate::json_out::{ids, index, prompt_logprobs, raw, value};

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

/// Returns the answer's id: the endpoint's prefix, then the digits of the request's id.
pub(crate) fn answer_id(endpoint: Endpoint, request_id: RequestId) -> String {
    format!("{}{:032x}", answer_prefix(endpoint), request_id.bits())
}

const fn answer_prefix(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::ChatCompletions => "chatcmpl-",
        Endpoint::Completions => "cmpl-",
        Endpoint::Messages => "msg_",
        Endpoint::Responses => "resp_",
        Endpoint::Embeddings => "embd-",
        Endpoint::Rerank => "rerank-",
        Endpoint::Score => "score-",
    }
}

/// Returns the request that an id names. `id` is the request's own id from the `x-request-id` header, or its answer's
/// id, which callers of an SDK have.
pub fn named_request(id: &str) -> Option<RequestId> {
    const ANSWERS: [Endpoint; 6] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Messages,
        Endpoint::Responses,
        Endpoint::Rerank,
        Endpoint::Score,
    ];
    let id = id.trim();
    let digits = ANSWERS.into_iter().find_map(|endpoint| id.strip_prefix(answer_prefix(endpoint)));
    match digits {
        Some(digits) => format!("req_{digits}").parse().ok(),
        // A call without a trace id from its caller uses its request id as its trace id.
        None => id.parse().ok().or_else(|| format!("req_{}", named_trace(id)?).parse().ok()),
    }
}

/// Returns the trace id in `text` as W3C Trace Context writes it: 32 hexadecimal digits in lower case. `text` may also
/// be a whole `traceparent` header or a UUID with hyphens, in upper or lower case. `None` if `text` is none of these.
pub fn named_trace(text: &str) -> Option<String> {
    let text = text.trim();
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let digits = match (lengths.as_slice(), parts.as_slice()) {
        ([32], [trace]) | ([2, 32, 16, 2], [_, trace, _, _]) => (*trace).to_owned(),
        ([8, 4, 4, 4, 12], parts) => parts.concat(),
        _ => return None,
    };
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| digits.to_ascii_lowercase())
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

/// Writes `,"headrace":…`, if requested.
pub(crate) fn write_explain(out: &mut BytesMut, explain: Option<&serde_json::Value>) {
    if let Some(explain) = explain {
        raw(out, ",\"headrace\":");
        value(out, explain);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_by_its_own_id_and_by_its_answers() {
        let id = RequestId::from_bits(0x0019_aa3b_1c2d);
        for endpoint in
            [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses]
        {
            assert_eq!(named_request(&answer_id(endpoint, id)), Some(id), "{endpoint:?}");
        }
        assert_eq!(named_request(&format!(" {id}\n")), Some(id));
        let digits = id.to_string().replace("req_", "");
        let parent = format!("00-{}-00f067aa0ba902b7-01", digits.to_uppercase());
        assert_eq!((named_request(&parent), named_trace(&parent)), (Some(id), Some(digits)));
        for wrong in ["", "chatcmpl-", "chatcmpl-req_", "call_0", "msg_zz", "chatcmpl-é"] {
            assert_eq!(named_request(wrong), None, "{wrong}");
        }
    }
}
