//! Responses of servers that speak the Responses API: passed on byte for byte, charged by their usage report, and read
//! here instead if they depend on something stored or done here.

use std::future::poll_fn;
use std::sync::Arc;

use headrace_call_api::AnswerFrames;
use headrace_call_state::AnswerBody;
use headrace_domain::{CallOutcome, Dialect, Endpoint, UsageSource};
use headrace_engine_api::{RelayEvent, RelayedEvent};
use serde_json::{Value, json};

use crate::scripted_server::{Script, altered, answer_of, head, offer_passing, server, spent, whole};
use crate::world::{Setup, World, read};

fn body(more: &Value) -> Value {
    let mut body = json!({"model": "far", "input": "hi", "store": false});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn response(status: &str, more: &Value) -> Value {
    let mut response = json!({"id": "resp_theirs", "object": "response", "model": "their-model-2026", "status": status,
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi you", "annotations": []}]}],
        "usage": {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 5}, "output_tokens": 2, "total_tokens": 22},
        "error": null, "an_extension": {"kept": [1.50]}});
    response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    response
}

fn event(data: &Value) -> Option<RelayEvent> {
    let (name, text) = (data["type"].as_str().unwrap().to_owned(), data.to_string());
    let raw = format!("event:  {name}\r\ndata: {text}\r\n\r\n");
    Some(RelayEvent::Event(RelayedEvent { raw: raw.into(), name: name.into(), data: text.into() }))
}

fn begun() -> Script {
    vec![
        head(),
        event(
            &json!({"type": "response.created", "response": response("in_progress", &json!({"usage": null}))}),
        ),
        event(&json!({"type": "response.output_text.delta", "output_index": 0, "delta": "Hi you"})),
        event(&json!({"type": "response.web_search_call.searching", "output_index": 1, "item_id": "ws_1"})),
    ]
}

fn ended_as(kind: &str, more: &Value) -> Option<RelayEvent> {
    event(&json!({"type": format!("response.{kind}"), "response": response(kind, more)}))
}

/// The beginning of a response, and this end.
fn then(end: Option<RelayEvent>) -> Script {
    let mut script = begun();
    script.push(end);
    script
}

fn raw(script: &Script) -> String {
    let raw = script.iter().flatten().filter_map(|event| match event {
        RelayEvent::Event(event) => Some(String::from_utf8(event.raw.to_vec()).unwrap()),
        _ => None,
    });
    raw.collect()
}

fn world(scripts: Vec<Script>) -> (World, Arc<crate::scripted_server::ScriptedServer>) {
    let server = altered(server("theirs", Dialect::OpenAi, scripts), "https://", |facts| {
        facts.allow_unpriced = Arc::from(["web_search"]);
    });
    let world = World::new(Setup::default());
    offer_passing(&world, "far", &[Arc::clone(&server)]);
    (world, server)
}

/// 15 uncached at $1, 5 cached at $0.10, 2 generated at $4 per million.
const COST: i64 = 15_000 + 500 + 8_000;

#[tokio::test]
async fn a_response_is_passed_on_byte_for_byte_and_paid_by_its_report() {
    let script = || then(ended_as("completed", &json!({})));
    let one = response("completed", &json!({}));
    let (world, server) = world(vec![script(), whole(&one)]);
    let sent = json!({"stream": true, "previous_response_id": "resp_of_theirs", "tools": [{"type": "web_search"}], "new": {"x": 1.50},
        "timeout": 60});
    let answer = world.call(Endpoint::Responses, body(&sent)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(read(answer).await, raw(&script()) + "data: [DONE]\n\n");
    assert_eq!(spent(world.balance_when_idle().await), COST);
    let record = world.last_trace();
    assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
    assert_eq!((record.upstream.as_deref(), record.usage_source), (Some("theirs"), UsageSource::Reported));
    assert_eq!(record.upstream_model.as_deref(), Some("their-model-2026"));

    let answer = world.call(Endpoint::Responses, body(&json!({"max_output_tokens": 7}))).await;
    assert_eq!(read(answer).await, one.to_string());
    assert_eq!(spent(world.balance_when_idle().await), 2 * COST);

    // The request goes out as it came, except for the model's name, a bound if there was none, and our own fields.
    let asked = server.asked.lock().unwrap();
    let mut expected = body(&sent);
    expected.as_object_mut().unwrap().remove("timeout");
    (expected["model"], expected["max_output_tokens"]) = (json!("their-model"), json!(100));
    assert_eq!(serde_json::from_slice::<Value>(&asked[0].body).unwrap(), expected);
    assert_eq!((asked[0].endpoint, asked[0].stream), (Endpoint::Responses, true));
    let bounded: Value = serde_json::from_slice(&asked[1].body).unwrap();
    assert_eq!((&bounded["max_output_tokens"], bounded.get("stream_options")), (&json!(7), None));
}

#[tokio::test]
async fn every_end_is_paid_and_told_as_it_is() {
    let unreported = || then(ended_as("completed", &json!({"usage": null})));
    let bound =
        || then(ended_as("incomplete", &json!({"incomplete_details": {"reason": "max_output_tokens"}})));
    // Nothing more comes until its gate is open.
    let cut = || then(None);
    let failed = || {
        let mut script = cut();
        script.push(ended_as("failed", &json!({"error": {"code": "server_error", "message": "it broke"}})));
        script
    };
    let (world, server) = world(vec![bound(), unreported(), failed(), cut()]);
    let stream = || world.call(Endpoint::Responses, body(&json!({"stream": true})));
    let text = read(stream().await).await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(spent(world.balance_when_idle().await), COST);
    assert_eq!(world.last_trace().outcome, CallOutcome::Completed { finish: vec!["length".to_owned()] });

    read(stream().await).await;
    world.balance_when_idle().await;
    assert_eq!(world.last_trace().usage_source, UsageSource::Estimated, "nothing was reported");

    // A failed response reports its usage, and is charged by it. If one breaks off, its usage is unknown.
    for source in [UsageSource::Reported, UsageSource::Estimated] {
        server.gate.shut();
        let mut answer = stream().await;
        // It fails when the client has the beginning: a client without any output would get a rejection instead.
        let AnswerBody::Stream(delivery) = &mut answer.body else { panic!("{}", answer.status) };
        let mut seen = String::new();
        while seen.len() < raw(&begun()).len() {
            let frame = poll_fn(|cx| delivery.poll_frame(cx)).await.unwrap().unwrap();
            seen.push_str(std::str::from_utf8(&frame).unwrap());
        }
        assert_eq!(seen, raw(&begun()));
        server.gate.open();
        // The error follows, and nothing that ends a good stream.
        let end = read(answer).await;
        assert!(end.starts_with("event: error\ndata: {\"error\":"), "{end}");
        assert!(!end.contains("[DONE]") && !end.contains("response.completed"), "{end}");
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert!(matches!(record.outcome, CallOutcome::Failed { .. }));
        assert_eq!(record.usage_source, source);
        if source == UsageSource::Reported {
            assert_eq!((record.usage.input, record.usage.cached_input, record.usage.output), (15, 5, 2));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_or_done_here_is_read_and_asked_for_as_a_chat() {
    let chat = || whole(&answer_of("Hi you"));
    let (world, server) = world(vec![chat(), chat(), whole(&response("completed", &json!({})))]);
    let told = |more: Value| {
        let world = &world;
        async move {
            serde_json::from_str::<Value>(&read(world.call(Endpoint::Responses, body(&more)).await).await)
                .unwrap()
        }
    };
    // A response that is stored here, because its call asks for its timings and is therefore written here.
    let first = told(json!({"store": true, "headrace": {"explain": true}})).await;
    assert!(first["id"].as_str().unwrap() != "resp_theirs" && first.get("headrace").is_some());
    let next = told(json!({"previous_response_id": first["id"]})).await;
    assert_eq!(next["previous_response_id"], first["id"]);
    // A response that is not stored here: its server knows it, or says that it does not.
    let theirs = told(json!({"previous_response_id": "resp_of_theirs"})).await;
    assert_eq!(theirs["id"], "resp_theirs");
    let endpoints: Vec<Endpoint> = server.asked.lock().unwrap().iter().map(|ask| ask.endpoint).collect();
    assert_eq!(endpoints, [Endpoint::ChatCompletions, Endpoint::ChatCompletions, Endpoint::Responses]);
    let asked: Value = serde_json::from_slice(&server.asked.lock().unwrap()[1].body).unwrap();
    assert_eq!(asked["messages"].as_array().unwrap().len(), 3, "what led to it goes along");
}
