//! The end user that callers name: recorded in the trace for every dialect and route, without effect on the answer.

use headrace_domain::{Dialect, EndUser, Endpoint};
use serde_json::{Value, json};

use crate::scripted_server::{answer_of, server, whole};
use crate::world::{MODEL, Setup, World, chat_body, read};

/// What a body says of its user, and which user is recorded.
fn chats() -> Vec<(Value, Option<&'static str>)> {
    vec![
        (json!({}), None),
        (json!({"user": ""}), None),
        (json!({"user": null, "safety_identifier": null}), None),
        (json!({"user": "eva@example.com"}), Some("eva@example.com")),
        (json!({"safety_identifier": "s"}), Some("s")),
        (json!({"safety_identifier": "s", "user": "s"}), Some("s")),
        (json!({"user": "\u{1b}[2Jx"}), Some("blake3:")),
        (json!({"user": "u".repeat(129)}), Some("blake3:")),
    ]
}

fn with(mut body: Value, more: &Value) -> Value {
    more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

/// Checks that the trace has this user, or a hash if the name is not fit to be stored.
async fn check(world: &World, endpoint: Endpoint, body: Value, user: Option<&str>) {
    let answer = world.call(endpoint, body.clone()).await;
    let status = answer.status;
    let text = read(answer).await;
    assert_eq!(status, 200, "{text}");
    world.balance_when_idle().await;
    let found = world.last_trace().user.as_ref().map(EndUser::to_string);
    match user {
        Some("blake3:") => {
            assert!(found.as_ref().is_some_and(|found| found.starts_with("blake3:")), "{found:?}")
        }
        user => assert_eq!(found.as_deref(), user, "{body}"),
    }
}

#[tokio::test]
async fn a_user_is_known_by_every_endpoint_of_a_model_of_ours() {
    let world = World::new(Setup::default());
    for (more, user) in chats() {
        check(&world, Endpoint::ChatCompletions, with(chat_body(false), &more), user).await;
    }
    let prompt = json!({"model": MODEL, "prompt": "Hi", "max_tokens": 8, "user": "u"});
    check(&world, Endpoint::Completions, prompt, Some("u")).await;
    let input = json!({"model": MODEL, "input": "Hi", "user": "u", "safety_identifier": "s"});
    check(&world, Endpoint::Responses, input, Some("s")).await;
    let messages = json!({"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]});
    for (metadata, user) in [(json!({"user_id": "u"}), Some("u")), (json!({}), None), (Value::Null, None)] {
        let body = with(messages.clone(), &json!({ "metadata": metadata }));
        check(&world, Endpoint::Messages, body, user).await;
    }
}

#[tokio::test]
async fn a_user_is_known_where_a_call_goes_to_a_server_of_others_which_is_told_as_before() {
    let answers = vec![whole(&answer_of("Hi")); 16];
    let server = server("gpu", Dialect::OpenAi, answers);
    let world = crate::scripted_server::world(std::slice::from_ref(&server));
    let mut sent = Vec::new();
    // An invalid user is for the server to judge.
    let odd = [(json!({"user": 7}), None), (json!({"user": {"name": "u"}}), None)];
    for (more, user) in chats().into_iter().chain(odd) {
        let body = crate::scripted_server::body(false, &more);
        check(&world, Endpoint::ChatCompletions, body, user).await;
        sent.push(more);
    }
    let messages = json!({"model": "their/model", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}],
        "metadata": {"user_id": "u"}});
    let model = crate::scripted_server::body(false, &json!({}))["model"].clone();
    check(&world, Endpoint::Messages, with(messages, &json!({ "model": model })), Some("u")).await;
    sent.push(json!({"user": "u"}));
    let asked = server.asked.lock().unwrap();
    for (ask, more) in asked.iter().zip(&sent) {
        let body: Value = serde_json::from_slice(&ask.body).unwrap();
        for (key, value) in more.as_object().unwrap() {
            assert_eq!(body[key], *value, "{more}");
        }
    }
}
