//! Phrases that rules of words forbid, split over messages and over parts of messages: of calls that are answered here, and of calls
//! that are sent on.

use std::sync::Arc;

use headrace_domain::{Dialect, Endpoint};
use serde_json::{Value, json};

use crate::scripted_server::{answer_of, ruled_world, server, whole};
use crate::world::{MODEL, Setup, World, read};

fn rules() -> Vec<headrace_moderation::RuleConfig> {
    let rules = json!([{"name": "no-red-heron", "kind": "words", "words": ["red heron"], "action": "block"}]);
    serde_json::from_value(rules).unwrap()
}

/// Contents of the user as parts of a dialect.
fn parts(endpoint: Endpoint, texts: &[&str]) -> Value {
    let kind = if endpoint == Endpoint::Responses { "input_text" } else { "text" };
    texts.iter().map(|text| json!({"type": kind, "text": text})).collect()
}

/// The body of a call with these messages.
fn body(endpoint: Endpoint, model: &str, messages: &Value) -> Value {
    match endpoint {
        Endpoint::Responses => json!({"model": model, "max_output_tokens": 4, "input": messages}),
        _ => json!({"model": model, "max_tokens": 4, "messages": messages}),
    }
}

/// Messages with a phrase in them that is split, and how.
fn split(endpoint: Endpoint) -> Vec<(&'static str, Value)> {
    let user = |content: Value| json!({"role": "user", "content": content});
    let answer = json!({"role": "assistant", "content": "ok"});
    let said = |texts: &[&str]| user(parts(endpoint, texts));
    vec![
        ("whole", json!([user(json!("a red heron"))])),
        ("parts, at the space", json!([said(&["a red", "heron"])])),
        ("parts, with spaces", json!([said(&["a red ", " heron"])])),
        ("parts, within a word", json!([said(&["a re", "d heron"])])),
        ("parts, both ways", json!([said(&["a re", "d", "her", "on"])])),
        ("messages, at the space", json!([user(json!("a red")), user(json!("heron"))])),
        ("messages, within a word", json!([user(json!("a re")), user(json!("d heron"))])),
        ("an answer between", json!([user(json!("a red")), answer, user(json!("heron"))])),
        ("an answer between, within a word", json!([user(json!("a red he")), answer, user(json!("ron"))])),
        ("parts, an answer between", json!([said(&["a", "red"]), answer, said(&["he", "ron flies"])])),
        (
            "from the user to the answer",
            json!([user(json!("a red")), {"role": "assistant", "content": "heron"}, user(json!("go"))]),
        ),
        (
            "keys in another order",
            json!([user(json!("a red")), {"content": "ok", "role": "assistant"}, {"content": "heron", "role": "user"}]),
        ),
    ]
}

/// Messages that have the words, and not the phrase.
fn apart(endpoint: Endpoint) -> Vec<Value> {
    let user = |content: Value| json!({"role": "user", "content": content});
    vec![
        json!([user(parts(endpoint, &["a red", "and a", "heron"]))]),
        json!([user(json!("red")), user(json!("or heron"))]),
        json!([user(json!("heron")), {"role": "assistant", "content": "ok"}, user(json!("red"))]),
        json!([user(json!("a redheron"))]),
    ]
}

async fn judged(world: &World, endpoint: Endpoint, body: Value) -> (u16, bool) {
    let answer = world.call(endpoint, body).await;
    let status = answer.status;
    (status, read(answer).await.contains("no-red-heron"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_phrase_is_found_in_calls_that_are_answered_here() {
    let world = World::new(Setup { rules: rules(), ..Setup::default() });
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
        for (how, messages) in split(endpoint) {
            let judged = judged(&world, endpoint, body(endpoint, MODEL, &messages)).await;
            assert_eq!(judged, (400, true), "{endpoint:?}, {how}");
        }
        for messages in apart(endpoint) {
            let judged = judged(&world, endpoint, body(endpoint, MODEL, &messages)).await;
            assert_eq!(judged, (200, false), "{endpoint:?} {messages}");
        }
    }
    let system = json!({"model": MODEL, "max_tokens": 4, "system": parts(Endpoint::Messages, &["a red", "heron"]),
        "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(judged(&world, Endpoint::Messages, system).await, (400, true));
    let result = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": true,
            "content": parts(Endpoint::Messages, &["a red", "heron"])}]}]);
    assert_eq!(
        judged(&world, Endpoint::Messages, body(Endpoint::Messages, MODEL, &result)).await,
        (400, true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_phrase_is_found_in_calls_that_are_sent_on() {
    for (dialect, endpoint) in [
        (Dialect::OpenAi, Endpoint::ChatCompletions),
        (Dialect::Anthropic, Endpoint::Messages),
        (Dialect::OpenAi, Endpoint::Messages),
    ] {
        let good = apart(endpoint);
        let scripts = good.iter().map(|_| whole(&answer_of("Hi"))).collect();
        let server = server("a", dialect, scripts);
        let world = ruled_world(&[Arc::clone(&server)], rules());
        for (how, messages) in split(endpoint) {
            let judged = judged(&world, endpoint, body(endpoint, "far", &messages)).await;
            assert_eq!(judged, (400, true), "{endpoint:?}, {how}");
        }
        assert!(server.asked.lock().unwrap().is_empty(), "nothing of it was sent on");
        for messages in &good {
            let (_, is_blocked) = judged(&world, endpoint, body(endpoint, "far", messages)).await;
            assert!(!is_blocked, "{endpoint:?} {messages}");
        }
        assert_eq!(server.asked.lock().unwrap().len(), good.len(), "{endpoint:?}");
    }
}
