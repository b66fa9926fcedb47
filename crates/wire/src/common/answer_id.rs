//! The ids of answers, the ids that callers name, and the `headrace` block of an answer.
//! Must not know the rest of an answer.

use bytes::BytesMut;
use headrace_domain::{Endpoint, RequestId};

use crate::json::writer::{raw, value};

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

/// Writes `,"headrace":…`, if requested.
pub(crate) fn write_explain(out: &mut BytesMut, explain: Option<&serde_json::Value>) {
    if let Some(explain) = explain {
        raw(out, ",\"headrace\":");
        value(out, explain);
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
