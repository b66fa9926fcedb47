//! Requests about an input that is not answered: how many tokens it has, and a short form of it. Both walk the path as their caller;
//! the first one's walk ends before anything is taken, the second one's is a call like any other.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use headrace_call_api::{BodySource, Credentials, Frames, Front, Head, Peer};
use headrace_domain::{Code, Endpoint};
use headrace_identity::Principal;
use headrace_wire::compaction;
use serde_json::{Value, json};

use crate::refused::Why;
use crate::stages::{self, Entered};
use crate::{Answer, AnswerBody, Gateway};

use super::Told;

/// The most tokens of a short form.
const MOST_COMPACTED_TOKENS: u32 = 1_024;

/// What the model is asked for.
const COMPACT: &str = "Write down in short what was said so far, so that somebody who reads nothing else can go on: what is wanted, \
                       what was decided and found out, names and numbers, what is left to do. Answer with that alone.";

impl Gateway {
    /// `POST /v1/responses/input_tokens`
    pub(super) async fn count_input(
        self: &Arc<Self>,
        principal: &Arc<Principal>,
        body: impl BodySource,
    ) -> Told {
        let entered = match self.enter_as(principal) {
            Ok(entered) => entered,
            Err(refusal) => return Ok(refusal),
        };
        match stages::count(self, entered, body).await {
            Ok(tokens) => {
                let told = json!({"object": "response.input_tokens", "input_tokens": tokens});
                Ok(Answer::json(200, told.to_string()))
            }
            Err(refusal) => Ok(refusal),
        }
    }

    /// `POST /v1/responses/compact`
    pub(super) async fn compact(self: &Arc<Self>, principal: &Arc<Principal>, body: impl BodySource) -> Told {
        let body = body.read().await.map_err(|refusal| Why::of_body(&refusal))?;
        let asked = asked(&body)?;
        let entered = match self.enter_as(principal) {
            Ok(entered) => entered,
            Err(refusal) => return Ok(refusal),
        };
        let answer = self.call(entered, Bytes::from(asked)).await;
        if answer.status != 200 {
            return Ok(answer);
        }
        let Answer { headers, body, .. } = answer;
        let whole = gathered(body).await.ok_or_else(broken)?;
        let told = compaction(&whole).ok_or_else(broken)?;
        Ok(Answer::json(200, told)
            .with_headers(headers.into_iter().filter(|(name, _)| *name != "x-request-id")))
    }

    fn enter_as(self: &Arc<Self>, principal: &Arc<Principal>) -> Result<Entered, Answer> {
        let clock = &self.parts().clock;
        let head = Head {
            endpoint: Endpoint::Responses,
            credentials: Credentials::default(),
            peer: Peer { address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0) },
            traceparent: None,
            dialect: Vec::new(),
            started: clock.now(),
            started_mono_ns: clock.monotonic_nanos(),
            connection: None,
        };
        self.admit_as(Arc::clone(principal), head)
    }
}

/// The call that a request for a short form stands for: the same input, and behind it what is wanted of it.
fn asked(body: &[u8]) -> Result<Vec<u8>, Why> {
    let bad = |message: &str| Err(Why::new(Code::InvalidType, message));
    let Ok(Value::Object(mut asked)) = serde_json::from_slice(body) else {
        return bad("The body must be a JSON object.");
    };
    let wish = json!({"type": "message", "role": "user", "content": COMPACT});
    let input = match asked.remove("input") {
        None | Some(Value::Null) => vec![wish],
        Some(Value::String(text)) => vec![json!({"type": "message", "role": "user", "content": text}), wish],
        Some(Value::Array(mut items)) => {
            items.push(wish);
            items
        }
        Some(_) => return bad("`input`: it must be a string or a list of items."),
    };
    asked.insert("input".to_owned(), Value::Array(input));
    asked.insert("store".to_owned(), json!(false));
    asked.entry("max_output_tokens").or_insert_with(|| json!(MOST_COMPACTED_TOKENS));
    // An answer is read here: what it is held to, and how it comes, is not the caller's to say.
    for given in ["stream", "background", "conversation", "text", "tools", "tool_choice", "metadata"] {
        asked.remove(given);
    }
    Ok(Value::Object(asked).to_string().into_bytes())
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

fn broken() -> Why {
    Why::new(Code::InternalError, "The short form broke off. What was not delivered is not charged.")
}
