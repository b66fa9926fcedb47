//! Helpers that make calls and read their answers.

use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Endpoint, RequestId};
use headrace_engine_api::{
    AnswerBounds, MessageRelay as _, RelayAnswer, RelayAsk, RelayError, RelayEvent, Tenant,
};
use headrace_upstream::{Upstream, UpstreamKind, UpstreamSpec};

pub(crate) const KEY: &str = "sk-canary-0123456789";

/// A spec with a key, and with timeouts that are short enough for tests.
pub(crate) fn spec(url: &str, kind: UpstreamKind) -> UpstreamSpec {
    let mut spec = UpstreamSpec::new("fault-server", kind, url);
    spec.key = Some(KEY.into());
    spec.timeouts.head = Duration::from_millis(800);
    spec.timeouts.idle = Duration::from_millis(400);
    spec.timeouts.whole = Duration::from_millis(1500);
    spec.bounds.event_bytes = 1 << 20;
    spec.bounds.body_bytes = 1 << 20;
    spec
}

pub(crate) fn ask(endpoint: Endpoint, model: &str, stream: bool) -> RelayAsk {
    RelayAsk {
        request: RequestId::from_bits(7),
        tenant: Tenant(1),
        weight: 1,
        endpoint,
        body: Bytes::from(format!(r#"{{"model":"{model}","stream":{stream},"messages":[]}}"#)),
        stream,
        headers: Vec::new(),
        head_within: None,
        bounds: AnswerBounds::up_to(u64::MAX),
    }
}

pub(crate) fn chat(model: &str, stream: bool) -> RelayAsk {
    ask(Endpoint::ChatCompletions, model, stream)
}

pub(crate) fn send(upstream: &Upstream, ask: RelayAsk) -> Box<dyn RelayAnswer> {
    upstream.model("any", None).send(ask)
}

/// Returns all events of an answer.
pub(crate) async fn all(upstream: &Upstream, ask: RelayAsk) -> Vec<RelayEvent> {
    let mut answer = send(upstream, ask);
    let mut events = Vec::new();
    while let Some(event) = answer.next().await {
        events.push(event);
    }
    assert_eq!(answer.next().await, None, "nothing comes after the end");
    events
}

/// Returns the failure that an answer ends with.
pub(crate) async fn failure(upstream: &Upstream, ask: RelayAsk) -> RelayError {
    match all(upstream, ask).await.pop() {
        Some(RelayEvent::Failed(error)) => error,
        other => panic!("it should fail: {other:?}"),
    }
}
