//! Calls without content, and calls for models that do not exist. They are rejected before anything is held, sent on or
//! charged.

use std::sync::Arc;

use headrace_call_api::{Question, RequestTarget};
use headrace_domain::{CallOutcome, Dialect, Endpoint};
use serde_json::{Value, json};

use crate::scripted_server::{answer_of, server, spent, whole, world as relaying};
use crate::world::{Setup, World, read};

const BLANK: &[&str] = &["", " \n\t", "\u{200b}\u{feff}", "\u{3164}"];

/// Calls without content in every dialect, with the code and parameter of the rejection.
fn calls(model: &str, blank: &str) -> Vec<(Endpoint, Value, &'static str, &'static str)> {
    let hi = json!({"role": "user", "content": "hi"});
    let user = json!({"role": "user", "content": blank});
    let answer = json!({"role": "assistant", "content": "yes"});
    let with = |more: Value| {
        let mut body = json!({"model": model});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let messages = |messages: Value| with(json!({"max_tokens": 4, "messages": messages}));
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": blank}]}]);
    let (chat, anthropic) = (Endpoint::ChatCompletions, Endpoint::Messages);
    vec![
        (chat, messages(json!([])), "empty_array", "messages"),
        (chat, messages(json!([hi, answer, user])), "empty_string", "messages[2].content"),
        (chat, messages(parts.clone()), "empty_string", "messages[0].content"),
        (chat, messages(json!([{"role": "system", "content": blank}])), "empty_string", "messages"),
        (anthropic, messages(json!([])), "empty_array", "messages"),
        (anthropic, messages(json!([hi, answer, user])), "empty_string", "messages[2].content"),
        (anthropic, messages(parts), "empty_string", "messages[0].content"),
        (Endpoint::Responses, with(json!({"input": blank, "store": false})), "empty_string", "input"),
        (Endpoint::Responses, with(json!({"input": [hi, user]})), "empty_string", "input[1].content"),
        (Endpoint::Completions, with(json!({"prompt": blank})), "empty_prompt", "prompt"),
        (Endpoint::Completions, with(json!({"prompt": ["a", blank]})), "empty_prompt", "prompt[1]"),
        (Endpoint::Embeddings, with(json!({"input": ["a", blank]})), "empty_prompt", "input[1]"),
        (
            Endpoint::Rerank,
            with(json!({"query": "q", "documents": ["a", blank]})),
            "empty_prompt",
            "documents[1]",
        ),
        (Endpoint::Score, with(json!({"text_1": blank, "text_2": "a"})), "empty_prompt", "text_1"),
    ]
}

async fn refused(world: &World, (endpoint, body, code, param): (Endpoint, Value, &str, &str)) {
    let answer = world.call(endpoint, body.clone()).await;
    let status = answer.status;
    let json: Value = serde_json::from_str(&read(answer).await).unwrap();
    let error = &json["error"];
    assert_eq!(status, 400, "{endpoint:?} {body}: {json}");
    assert_eq!(
        (&error["code"], &error["param"], &error["stage"]),
        (&json!(code), &json!(param), &json!("parse"))
    );
    assert!(matches!(&world.last_trace().outcome, CallOutcome::Refused(refusal) if refusal.code == code));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_says_nothing_is_refused_in_every_dialect_before_a_hold() {
    let world = World::new(Setup::default());
    for call in BLANK.iter().flat_map(|blank| calls("demo", blank)) {
        refused(&world, call).await;
    }
    assert_eq!(world.engine.jobs.lock().unwrap().len(), 0);
    assert_eq!((world.ledger.totals().open_holds, spent(world.balance_when_idle().await)), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_says_nothing_is_not_sent_on() {
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
    let world = relaying(&[Arc::clone(&server)]);
    let sent_on = |endpoint| !matches!(endpoint, Endpoint::Rerank | Endpoint::Score);
    for call in BLANK.iter().flat_map(|blank| calls("far", blank)).filter(|call| sent_on(call.0)) {
        refused(&world, call).await;
    }
    assert!(server.asked.lock().unwrap().is_empty());
    assert_eq!((world.ledger.totals().open_holds, spent(world.balance_when_idle().await)), (0, 0));
    // An earlier empty answer, or empty instructions beside other messages, are acceptable.
    let history = json!([{"role": "system", "content": ""}, {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""}, {"role": "user", "content": "b"}]);
    let body = json!({"model": "far", "max_tokens": 10, "messages": history});
    assert_eq!(world.call(Endpoint::ChatCompletions, body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_stored_file_is_not_sent_on() {
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
    let world = relaying(&[Arc::clone(&server)]);
    let see = json!({"type": "text", "text": "see"});
    let chat = |part: Value| json!({"model": "far", "max_tokens": 4, "messages": [{"role": "user", "content": [see, part]}]});
    let response = |part: Value| json!({"model": "far", "input": [{"role": "user", "content": [part]}]});
    for (endpoint, body, param) in [
        (
            Endpoint::ChatCompletions,
            chat(json!({"type": "file", "file": {"file_id": "file-1"}})),
            "messages[0].content[1].file.file_id",
        ),
        (
            Endpoint::Messages,
            chat(json!({"type": "document", "source": {"type": "file", "file_id": "file-1"}})),
            "messages[0].content[1].source.file_id",
        ),
        (
            Endpoint::Responses,
            response(json!({"type": "input_file", "file_id": "file-1"})),
            "input[0].content[0].file_id",
        ),
        (
            Endpoint::Responses,
            response(json!({"type": "input_image", "file_id": "file-1"})),
            "input[0].content[0].file_id",
        ),
    ] {
        let answer = world.call(endpoint, body.clone()).await;
        let status = answer.status;
        let json: Value = serde_json::from_str(&read(answer).await).unwrap();
        let error = &json["error"];
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{body}: {json}");
        assert_eq!(error["code"], "unsupported_content", "{json}");
        assert!(error["message"].as_str().unwrap().contains("send the content itself"), "{json}");
    }
    assert!(server.asked.lock().unwrap().is_empty());
    assert_eq!((world.ledger.totals().open_holds, spent(world.balance_when_idle().await)), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_keeps_the_name_of_a_model_that_does_not_exist() {
    let world = World::new(Setup::default());
    let long = "m".repeat(120);
    for (asked, kept) in [
        ("gpt-4o", Some("gpt-4o")),
        ("../../etc/passwd", Some("../../etc/passwd")),
        (&long, Some(&long[..80])),
        ("task-model", Some("task-model")),
        ("sk-0123", None),
        ("Bearer sk-0123", None),
    ] {
        let mut body = crate::world::chat_body(false);
        body["model"] = json!(asked);
        let answer = world.call(Endpoint::ChatCompletions, body).await;
        assert_eq!(answer.status, 404, "{asked}");
        read(answer).await;
        let record = world.last_trace();
        assert_eq!((record.model_asked.as_deref(), record.model_served.as_deref()), (kept, None), "{asked}");
        assert!(
            matches!(&record.outcome, CallOutcome::Refused(refusal) if refusal.code == "model_not_found")
        );
        for (question, key, value) in [
            (Question::Tokenize, "prompt", json!("hi")),
            (Question::Detokenize, "tokens", json!([1])),
            (Question::CountTokens, "messages", json!([{"role": "user", "content": "hi"}])),
        ] {
            let body = json!({"model": asked, key: value}).to_string();
            let answer = world.request(RequestTarget::Question(question), body).await;
            assert_eq!(answer.status, 404, "{question:?} {asked}");
            let record = world.last_trace();
            assert_eq!((record.model_asked.as_deref(), record.model_served.as_deref()), (kept, None));
            assert!(
                matches!(&record.outcome, CallOutcome::Refused(refusal) if refusal.code == "model_not_found")
            );
        }
    }
}
