//! Clients: quick, slow, stalled, leaving at some point, or dropped by the transport.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    AbortReason, AnswerFrames, BrokenBody, CallService, CallerInfo, Credentials, PeerAddress, RequestHead,
    RequestTarget,
};
use headrace_call_state::{Answer, AnswerBody, Delivery, sent_whole};
use headrace_domain::{Endpoint, SentAnswer};
use headrace_gateway::Gateway;
use serde_json::json;

use crate::engine::MARK;
use crate::world::{Random, SimClock};

/// How a client reads its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Habit {
    Quick,
    /// Pauses between any two frames, shorter than the stall timeout.
    Slow,
    /// Takes this many frames, then none until long after.
    Stalls(u64),
    /// Leaves after this many frames.
    Leaves(u64),
    /// Leaves while it waits for the head.
    LeavesEarly,
    /// The transport drops it after this many frames, and says why.
    Aborts(u64, AbortReason),
}

/// What a client has seen of its call.
#[derive(Debug)]
pub(crate) struct ClientView {
    pub(crate) habit: Habit,
    pub(crate) streamed: bool,
    /// `None` if it left before the head.
    pub(crate) status: Option<u16>,
    pub(crate) id: Option<String>,
    /// Tokens whose text it has received.
    pub(crate) tokens: u64,
    /// How the body ended. `None` if it did not look.
    pub(crate) end: Option<Result<(), BrokenBody>>,
    pub(crate) text: String,
    /// All bytes that it has received.
    pub(crate) bytes: Vec<u8>,
}

/// Longer than every timeout.
const LONG_AFTER: Duration = Duration::from_secs(600);

pub(crate) fn habit(random: &mut Random) -> Habit {
    let after = random.below(6);
    match random.below(12) {
        0..=4 => Habit::Quick,
        5 => Habit::Slow,
        6 | 7 => Habit::Stalls(after),
        8 => Habit::Leaves(after),
        9 => Habit::LeavesEarly,
        10 => Habit::Aborts(after, AbortReason::ReaderStalled),
        _ => Habit::Aborts(after, AbortReason::ShuttingDown),
    }
}

/// Makes a call and reads its answer.
pub(crate) async fn call(
    gateway: Arc<Gateway>,
    clock: SimClock,
    key: String,
    habit: Habit,
    mut random: Random,
) -> ClientView {
    let streamed = random.one_in(2);
    let prompts = if random.one_in(4) { json!([[1, 2, 3], [4, 5]]) } else { json!([[1, 2, 3]]) };
    let body = json!({
        "model": "demo", "prompt": prompts, "stream": streamed,
        "max_tokens": 1 + random.below(30), "n": 1 + random.below(2),
        "headrace": {"explain": random.one_in(6)},
    });
    let caller = CallerInfo {
        credentials: Credentials {
            authorization: Some(format!("Bearer {key}").into_bytes()),
            ..Credentials::default()
        },
        peer: PeerAddress { address: ([127, 0, 0, 1], 1).into() },
        traceparent: None,
        started: clock.wall(),
        dialect_headers: Vec::new(),
        idempotency: None,
        started_mono_ns: clock.mono(),
        connection: None,
    };
    let mut view = ClientView {
        habit,
        streamed,
        status: None,
        id: None,
        tokens: 0,
        end: None,
        text: String::new(),
        bytes: Vec::new(),
    };
    let call = async {
        match gateway.admit(RequestHead { target: RequestTarget::Call(Endpoint::Completions), caller }) {
            Ok(admission) => gateway.serve(admission, Bytes::from(body.to_string())).await,
            Err(refusal) => refusal,
        }
    };
    let answer = if habit == Habit::LeavesEarly {
        match tokio::time::timeout(Duration::from_millis(random.below(2_000)), call).await {
            Ok(answer) => answer,
            Err(_) => return view,
        }
    } else {
        call.await
    };
    view.see(&answer);
    match answer.body {
        AnswerBody::Whole(bytes) => {
            view.text = String::from_utf8(bytes.to_vec()).unwrap();
            view.bytes = bytes.to_vec();
        }
        AnswerBody::Stream(body) | AnswerBody::Long { body, .. } => view.read(body, random).await,
    }
    view
}

impl ClientView {
    fn see(&mut self, answer: &Answer) {
        self.status = Some(answer.status);
        let id = answer.headers.iter().find(|(name, _)| *name == "x-request-id");
        self.id = Some(id.expect("every answer names its request").1.clone());
    }

    /// Checks the hash in the trace of its call. A client that stops to read may have got less.
    pub(crate) fn check_sent(&self, sent: Option<&SentAnswer>) {
        let Some(sent) = sent else { return };
        let got = sent_whole(&self.bytes);
        let is_whole = self.end == Some(Ok(())) || self.status.is_some_and(|status| status != 200);
        assert!(
            if is_whole { got == *sent } else { got.bytes <= sent.bytes },
            "{sent:?} and {got:?}: {self:?}"
        );
    }

    async fn read(&mut self, mut body: Delivery, mut random: Random) {
        let mut frames = 0;
        loop {
            match self.habit {
                Habit::Stalls(after) if frames == after => tokio::time::sleep(LONG_AFTER).await,
                Habit::Leaves(after) if frames == after => return,
                Habit::Aborts(after, why) if frames == after => return body.abort(why),
                Habit::Slow => tokio::time::sleep(Duration::from_millis(random.below(9_000))).await,
                _ => {}
            }
            frames += 1;
            match poll_fn(|cx| body.poll_frame(cx)).await {
                Some(Ok(bytes)) => {
                    assert!(bytes.len() <= 64 * 1024, "no frame is larger than a transport needs");
                    let text = String::from_utf8(bytes.to_vec()).unwrap();
                    self.bytes.extend_from_slice(&bytes);
                    self.tokens += text.chars().filter(|c| *c == MARK).count() as u64;
                    self.text = text;
                }
                Some(Err(broken)) => return self.end = Some(Err(broken)),
                None => return self.end = Some(Ok(())),
            }
        }
    }
}
