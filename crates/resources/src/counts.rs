//! Requests about an input that produce no ordinary answer: its token count, and its compaction. Both pass the stages
//! as a call of their caller. The count ends before the hold. The compaction is a call like any other.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use headrace_call_api::{AnswerFrames, BodySource, CallerInfo};
use headrace_call_state::{Answer, AnswerBody, Rejection};
use headrace_domain::{Code, Endpoint};
use headrace_identity::Principal;
use headrace_wire::responses::compaction;
use serde_json::json;
use serde_json::value::RawValue;

use crate::requests::ObjectAnswer;
use crate::resources::StoredResources;
use crate::runner::CallRunner;

/// The most tokens of a compaction, unless the client sets a bound.
const MOST_COMPACTED_TOKENS: u32 = 1_024;

/// Parameters that the caller's body does not control, because the answer is consumed here.
const DECIDED_HERE: [&str; 9] =
    ["input", "store", "stream", "background", "conversation", "text", "tools", "tool_choice", "metadata"];

/// The instruction to the model.
const COMPACT: &str = "Write down in short what was said so far, so that somebody who reads nothing else can go on: what is wanted, \
                       what was decided and found out, names and numbers, what is left to do. Answer with that alone.";

impl StoredResources {
    /// `POST /v1/responses/input_tokens`
    pub(crate) async fn count_input<R: CallRunner>(
        &self,
        runner: &Arc<R>,
        principal: &Arc<Principal>,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let entered = match self.enter_as(runner, principal).await {
            Ok(entered) => entered,
            Err(refusal) => return Ok(refusal),
        };
        match runner.count(entered, body).await {
            Ok(tokens) => {
                let json = json!({"object": "response.input_tokens", "input_tokens": tokens});
                Ok(Answer::json(200, json.to_string()))
            }
            Err(refusal) => Ok(refusal),
        }
    }

    /// `POST /v1/responses/compact`
    pub(crate) async fn compact<R: CallRunner>(
        &self,
        runner: &Arc<R>,
        principal: &Arc<Principal>,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let (body, memory) = self.body_of(principal, body).await?;
        let asked = asked(&body)?;
        // The call that follows reserves its own memory.
        drop((body, memory));
        let entered = match self.enter_as(runner, principal).await {
            Ok(entered) => entered,
            Err(refusal) => return Ok(refusal),
        };
        let answer = runner.run(entered, Bytes::from(asked)).await;
        if answer.status != 200 {
            return Ok(answer);
        }
        let Answer { headers, body, .. } = answer;
        let whole = gathered(body).await.ok_or_else(broken)?;
        let json = compaction(&whole).ok_or_else(broken)?;
        Ok(Answer::json(200, json)
            .with_headers(headers.into_iter().filter(|(name, _)| *name != "x-request-id")))
    }

    async fn enter_as<R: CallRunner>(
        &self,
        runner: &Arc<R>,
        principal: &Arc<Principal>,
    ) -> Result<R::Entered, Answer> {
        let clock = &self.parts().clock;
        let caller = CallerInfo::in_process(clock.now(), clock.monotonic_nanos());
        runner.enter(Arc::clone(principal), Endpoint::Responses, caller, None).await
    }
}

/// Builds the call behind a compaction: the same input, followed by the instruction. Values are copied as raw JSON,
/// because a tree of them would take many times the body's memory.
fn asked(body: &[u8]) -> Result<Vec<u8>, Rejection> {
    let bad = |message: &str| Rejection::new(Code::InvalidType, message);
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_slice(body).map_err(|_| bad("The body must be a JSON object."))?;
    let wish = json!({"type": "message", "role": "user", "content": COMPACT}).to_string();
    let input = fields.get("input").map_or("null", |input| input.get());
    let (before, behind) = match input.as_bytes().first() {
        Some(b'n') => ("", ""),
        Some(b'"') => (r#"{"type":"message","role":"user","content":"#, "},"),
        Some(b'[') => ("", ","),
        _ => return Err(bad("`input`: it must be a string or a list of items.")),
    };
    let items = match input.as_bytes().first() {
        Some(b'[') => input.get(1..input.len().saturating_sub(1)).unwrap_or_default().trim(),
        Some(b'"') => input,
        _ => "",
    };
    let behind = if items.is_empty() { "" } else { behind };
    let mut asked = Vec::with_capacity(body.len().saturating_add(wish.len()).saturating_add(256));
    for part in [r#"{"input":["#, before, items, behind, &wish, r#"],"store":false"#] {
        asked.extend_from_slice(part.as_bytes());
    }
    if !fields.contains_key("max_output_tokens") {
        asked.extend_from_slice(format!(r#","max_output_tokens":{MOST_COMPACTED_TOKENS}"#).as_bytes());
    }
    for (name, value) in &fields {
        if !DECIDED_HERE.contains(&name.as_str()) {
            asked.extend_from_slice(format!(",{}:", json!(name)).as_bytes());
            asked.extend_from_slice(value.get().as_bytes());
        }
    }
    asked.push(b'}');
    Ok(asked)
}

async fn gathered(body: AnswerBody) -> Option<Vec<u8>> {
    match body {
        AnswerBody::Whole(bytes) => Some(bytes.to_vec()),
        AnswerBody::Stream(mut body) | AnswerBody::Long { mut body, .. } => {
            let mut whole = BytesMut::new();
            while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
                whole.extend_from_slice(&frame.ok()?);
            }
            Some(whole.to_vec())
        }
    }
}

fn broken() -> Rejection {
    Rejection::new(Code::InternalError, "The short form broke off. What was not delivered is not charged.")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_short_form_is_asked_for_behind_the_same_input() {
        let wish = json!({"type": "message", "role": "user", "content": COMPACT});
        let said = json!({"type": "message", "role": "user", "content": "a \"b\""});
        for (input, items) in [
            (json!("a \"b\""), json!([said, wish])),
            (json!([]), json!([wish])),
            (json!([{"role": "user", "content": "x"}]), json!([{"role": "user", "content": "x"}, wish])),
            (Value::Null, json!([wish])),
        ] {
            let body =
                json!({"model": "m", "input": input, "stream": true, "store": true, "instructions": "i"});
            let asked: Value = serde_json::from_slice(&asked(body.to_string().as_bytes()).unwrap()).unwrap();
            let expected = json!({"model": "m", "input": items, "store": false, "instructions": "i",
                "max_output_tokens": MOST_COMPACTED_TOKENS});
            assert_eq!(asked, expected);
        }
        let own = asked(br#"{"max_output_tokens":7}"#).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&own).unwrap()["max_output_tokens"], 7);
        for bad in ["", "[]", "{", r#"{"input":7}"#, r#"{"input":{}}"#] {
            assert_eq!(asked(bad.as_bytes()).unwrap_err().code, Code::InvalidType, "{bad}");
        }
    }
}
