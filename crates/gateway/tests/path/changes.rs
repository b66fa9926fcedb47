//! What a call changed since the answer that it names, to the character. Only the caller who received that answer can
//! ask.

use headrace_domain::{Endpoint, PromptPlace};
use serde_json::{Value, json};

use crate::world::{Setup, World, read};

const LONG: &str =
    "You are a patient helper who answers in one word, and who never says more than that, whatever is asked.";

fn tool(properties: &str, description: &str) -> Value {
    let schema = format!("{{\"type\":\"object\",\"properties\":{properties}}}");
    json!({"name": "look", "description": description, "input_schema": serde_json::from_str::<Value>(&schema).unwrap()})
}

fn body(system: &str, turns: &[&str], tools: Value, previous: Value) -> Value {
    let turn = |(at, text): (usize, &&str)| json!({"role": if at % 2 == 0 { "user" } else { "assistant" }, "content": text});
    let messages: Vec<Value> = turns.iter().enumerate().map(turn).collect();
    json!({"model": "demo", "max_tokens": 4, "system": system, "messages": messages, "tools": tools,
        "diagnostics": {"previous_message_id": previous}})
}

async fn ask(world: &World, body: &Value) -> Value {
    let answer = world.call(Endpoint::Messages, body.clone()).await;
    let (status, text) = (answer.status, read(answer).await);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The cache-miss reason in the second answer.
async fn told(first: Value, second: impl FnOnce(Value) -> Value) -> Value {
    let world = World::new(Setup::default());
    let before = ask(&world, &first).await;
    assert!(before["diagnostics"]["cache_miss_reason"].is_null(), "{before}");
    let after = ask(&world, &second(before["id"].clone())).await;
    after["diagnostics"]["cache_miss_reason"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_told_what_it_changed_to_the_character() {
    let turns = ["The first question.", "ha ha ha ha ", "The second question."];
    let none = || json!([]);
    let first = || body(LONG, &turns[..1], none(), Value::Null);
    let same = told(first(), |id| body(LONG, &turns, none(), id)).await;
    assert!(
        same["type"] == "unavailable" && same["hint"].as_str().unwrap().contains("nothing was changed"),
        "{same}"
    );

    let system = told(first(), |id| body(&LONG.replace("patient", "pacific"), &turns, none(), id)).await;
    assert_eq!(system["type"], "system_changed");
    assert_eq!(system["place"], json!({"in": "system", "character": 12}));
    assert!(system["cache_missed_input_tokens"].as_u64().unwrap() > 10);

    let other = ["The first question?", "ha ha ha ha ", "The second question."];
    let messages = told(first(), |id| body(LONG, &other, none(), id)).await;
    assert_eq!((&messages["type"], &messages["place"]["index"]), (&json!("messages_changed"), &json!(0)));
    assert_eq!(messages["place"]["character"], 18);

    let (sent, other) = (
        r#"{"a":{"type":"string"},"b":{"type":"integer"}}"#,
        r#"{"b":{"type":"integer"},"a":{"type":"string"}}"#,
    );
    let first = || body(LONG, &turns[..1], json!([tool(sent, "Looks.")]), Value::Null);
    let order = told(first(), |id| body(LONG, &turns, json!([tool(other, "Looks.")]), id)).await;
    assert_eq!(order["type"], "tools_changed");
    assert!(order["hint"].as_str().unwrap().contains("tools.order"), "{order}");
    let words = told(first(), |id| body(LONG, &turns, json!([tool(sent, "Looks on.")]), id)).await;
    assert_eq!((&words["type"], &words["hint"]), (&json!("tools_changed"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_knows_is_said_to_be_none() {
    let world = World::new(Setup::default());
    for id in ["msg_00000000000000000000000000000001", "msg_of_somebody_else"] {
        let answer = ask(&world, &body(LONG, &["Why?"], json!([]), json!(id))).await;
        assert_eq!(answer["diagnostics"]["cache_miss_reason"], json!({"type": "previous_message_not_found"}));
    }
    // If the caller does not ask, the answer says nothing and nothing is stored.
    let mut silent = body(LONG, &["Why?"], json!([]), Value::Null);
    silent.as_object_mut().unwrap().remove("diagnostics");
    let before = ask(&world, &silent).await;
    assert!(before.get("diagnostics").is_none(), "{before}");
    let after = ask(&world, &body(LONG, &["Why?"], json!([]), before["id"].clone())).await;
    assert_eq!(after["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found");
}

/// The same in OpenAI's terms, for responses.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_told_what_it_changed_since_the_one_that_it_names() {
    let world = World::new(Setup::default());
    let body = |instructions: &str, input: Value, options: Value| {
        json!({"model": "demo", "max_output_tokens": 4, "instructions": instructions, "input": input,
            "prompt_cache_options": options})
    };
    let ask = async |body: Value| {
        let answer = world.call(Endpoint::Responses, body).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 200, "{text}");
        world.balance_when_idle().await;
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let before = ask(body(LONG, json!("The first question."), json!({"mode": "explicit"}))).await;
    assert_eq!(
        before["prompt_cache_options"],
        json!({"mode": "explicit", "ttl": "30m", "comparison_response_id": null})
    );
    assert_eq!(before["prompt_cache_diagnostics"], Value::Null);
    let with = |id: &Value| json!({"comparison_response_id": id});
    let other = body(&LONG.replace("patient", "pacific"), json!("The first question."), with(&before["id"]));
    let told = ask(other).await;
    let miss = &told["prompt_cache_diagnostics"];
    assert_eq!((&miss["type"], &miss["reason"]), (&json!("cache_miss"), &json!("input_changed")), "{told}");
    assert_eq!(miss["place"], json!({"in": "system", "character": 12}));
    assert!(miss["cache_missed_tokens"].as_u64().unwrap() > 10);
    let traced = world.last_trace().cache_diagnosis.clone().unwrap();
    assert_eq!(
        (traced.word.as_str(), traced.place),
        ("system_changed", Some(PromptPlace::System { character: 12 }))
    );
    assert_eq!(traced.missed_tokens, miss["cache_missed_tokens"]);
    // The same prompt again. It is no longer cached, according to this engine.
    let same = ask(body(LONG, json!("The first question."), with(&before["id"]))).await;
    assert_eq!(same["prompt_cache_diagnostics"]["type"], "unavailable");
    assert_eq!(world.last_trace().cache_diagnosis.clone().unwrap().word, "same");
    let none = ask(body(LONG, json!("x"), with(&json!("resp_00000000000000000000000000000001")))).await;
    assert_eq!(none["prompt_cache_diagnostics"], json!({"type": "comparison_response_not_found"}));
    let plain = ask(json!({"model": "demo", "max_output_tokens": 4, "input": "x"})).await;
    assert!(plain.get("prompt_cache_diagnostics").is_none() && plain.get("prompt_cache_options").is_none());
}
