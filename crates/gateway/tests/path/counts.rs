//! Token counts of a message for a model of an upstream: asked there if the upstream counts, estimated if it does not,
//! and rejected by name if no upstream answers. Counts are free, and only for keys that may call the model.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{Question, RequestTarget};
use headrace_call_state::Answer;
use headrace_domain::{Dialect, Endpoint};
use headrace_engine_api::RelayError;
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, ScriptedServer, failed, head, ruled_world, server, spent, status, stream, whole, world,
};
use crate::world::{Arrival, World, ask, header, read};

fn body() -> Value {
    json!({"model": "far", "system": "be brief", "headrace": {"explain": true}, "unknown_to_us": {"x": 1},
        "messages": [{"role": "user", "content": "hello out there"}]})
}

pub(crate) async fn count(world: &World, body: &Value) -> Answer {
    let mut head = world.head(RequestTarget::Question(Question::CountTokens));
    head.caller.dialect_headers = vec![("anthropic-beta", "token-counting-x".to_owned())];
    ask(&world.gateway, Arrival { head, body: Bytes::from(body.to_string()) }).await
}

async fn told(world: &World) -> (u16, Value, Option<String>) {
    let answer = count(world, &body()).await;
    let (status, upstream) = (answer.status, header(&answer, "x-headrace-upstream").map(str::to_owned));
    (status, serde_json::from_str(&read(answer).await).unwrap(), upstream)
}

fn servers(scripts: Vec<(&str, Dialect, Script)>) -> Vec<Arc<ScriptedServer>> {
    scripts.into_iter().map(|(name, dialect, script)| server(name, dialect, vec![script])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_is_the_upstreams_own_and_free() {
    let answer = json!({"input_tokens": 4711, "context_management": {"original_input_tokens": 5000}});
    let servers = servers(vec![("claude", Dialect::Anthropic, whole(&answer))]);
    let world = world(&servers);
    let (status, counted, upstream) = told(&world).await;
    assert_eq!((status, counted, upstream.as_deref()), (200, answer, Some("claude")));
    {
        let asked = servers[0].asked.lock().unwrap();
        let [ask] = &asked[..] else { panic!("one question") };
        assert!(!ask.stream && ask.endpoint == Endpoint::Messages);
        assert_eq!(ask.headers, [("anthropic-beta", "token-counting-x".to_owned())]);
        // The request goes out as it came, except for the upstream's model name and our own fields. No bound on an
        // answer is added.
        let mut expected = body();
        expected["model"] = json!("their-model");
        expected.as_object_mut().unwrap().remove("headrace");
        assert_eq!(serde_json::from_slice::<Value>(&ask.body).unwrap(), expected);
    }
    assert_eq!(spent(world.balance_when_idle().await), 0);
    assert_eq!(world.gateway.memory_taken(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_count_is_passed_over_and_estimated_where_nobody_does() {
    let open = || ("open", Dialect::OpenAi, Script::new());
    let only = servers(vec![open()]);
    let (status, counted, upstream) = told(&world(&only)).await;
    assert_eq!((status, upstream, &counted["headrace"]), (200, None, &json!({"estimated": true})));
    assert!(only[0].asked.lock().unwrap().is_empty(), "nothing is sent to who does not count");
    let mixed = servers(vec![open(), ("claude", Dialect::Anthropic, whole(&json!({"input_tokens": 9})))]);
    let (status, counted, upstream) = told(&world(&mixed)).await;
    assert_eq!((status, counted, upstream.as_deref()), (200, json!({"input_tokens": 9}), Some("claude")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_told_and_never_guessed() {
    let words =
        |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}});
    let no_connection = || failed(RelayError::Connect { why: "refused".to_owned() });
    let one = |script| servers(vec![("a", Dialect::Anthropic, script)]);
    for (script, expected, code) in [
        (no_connection(), 502, "upstream_unreachable"),
        (status(400, &words("invalid_request_error", "messages: too few")), 400, "upstream_refused"),
        (status(401, &words("authentication_error", "bad key")), 502, "upstream_misconfigured"),
        (status(429, &words("rate_limit_error", "slow down")), 503, "upstream_overloaded"),
        (status(404, &words("not_found_error", "no such path")), 502, "upstream_misconfigured"),
        (whole(&json!({"tokens": 5})), 502, "upstream_failed"),
        (whole(&json!({"input_tokens": -5})), 502, "upstream_failed"),
        (whole(&json!({"input_tokens": 5, "more": "x".repeat(20_000)})), 502, "upstream_answer_too_large"),
        (stream(), 502, "upstream_failed"),
        (vec![head()], 502, "upstream_failed"),
    ] {
        let (world, shown) = (world(&one(script.clone())), format!("{script:?}"));
        let (status, error, _) = told(&world).await;
        assert_eq!((status, error["type"].as_str()), (expected, Some("error")), "{shown}: {error}");
        assert_eq!(error["error"]["code"], code, "{shown}: {error}");
        assert_eq!(spent(world.balance_when_idle().await), 0);
    }
    // If the first upstream is lost, another one that counts is asked. If the question is wrong, none is.
    let good = ("b", Dialect::Anthropic, whole(&json!({"input_tokens": 3})));
    let both = servers(vec![("a", Dialect::Anthropic, no_connection()), good.clone()]);
    assert_eq!(told(&world(&both)).await.1, json!({"input_tokens": 3}));
    let wrong = status(400, &words("invalid_request_error", "no"));
    let both = servers(vec![("a", Dialect::Anthropic, wrong), good]);
    assert_eq!(told(&world(&both)).await.0, 400);
    assert!(both[1].asked.lock().unwrap().is_empty());
}

/// A server that cannot count is still healthy: calls of its model continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_fails_shuts_nobody_out() {
    let lacks =
        || status(404, &json!({"type": "error", "error": {"type": "not_found_error", "message": "?"}}));
    let scripts: Vec<Script> = (0..20).map(|_| lacks()).chain([whole(&json!({"input_tokens": 1}))]).collect();
    let world = world(&[server("a", Dialect::Anthropic, scripts)]);
    for _ in 0..20 {
        assert_eq!(told(&world).await.0, 502);
    }
    assert_eq!(told(&world).await.1, json!({"input_tokens": 1}), "it is still asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rules_block_is_not_sent_on_to_be_counted() {
    let rules =
        json!([{"name": "no-nightingale", "kind": "words", "words": ["nightingale"], "action": "block"}]);
    let server = server("a", Dialect::Anthropic, vec![whole(&json!({"input_tokens": 1}))]);
    let world = ruled_world(&[Arc::clone(&server)], serde_json::from_value(rules).unwrap());
    let mut asked = body();
    asked["messages"][0]["content"] = json!("a nightingale");
    let answer = count(&world, &asked).await;
    assert_eq!(answer.status, 400);
    assert!(read(answer).await.contains("no-nightingale"));
    assert!(server.asked.lock().unwrap().is_empty());
    assert_eq!(told(&world).await.0, 200);
}
