//! What requests on stored objects take of the memory, held against what was reserved for them: each endpoint with the input that
//! takes the most.

use bytes::Bytes;
use headrace_call_api::{Front, ObjectAsk, ObjectMethod};
use headrace_domain::Endpoint;
use headrace_gateway::{Answer, AnswerBody, MemoryBounds};
use serde_json::{Value, json};

use super::ALONE;
use super::world::{MODEL, Script, Setup, World, capabilities, read};

/// A request for a stored object.
#[derive(Clone)]
struct Look {
    method: ObjectMethod,
    path: String,
    query: Vec<(String, String)>,
    body: Bytes,
}

fn get(path: &str, query: &[(&str, &str)]) -> Look {
    let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Look { method: ObjectMethod::Get, path: path.to_owned(), query, body: Bytes::new() }
}

fn post(path: &str, body: &Value) -> Look {
    Look {
        method: ObjectMethod::Post,
        path: path.to_owned(),
        query: Vec::new(),
        body: Bytes::from(body.to_string()),
    }
}

async fn look(world: &World, look: Look) -> Answer {
    let Look { method, path, query, body } = look;
    match world.gateway.admit_asked(ObjectAsk { method, path, query, credentials: world.credentials() }) {
        Ok(asked) => world.gateway.answer_asked(asked, body).await,
        Err(refusal) => refusal,
    }
}

async fn told(answer: Answer) -> Value {
    assert_eq!(answer.status, 200);
    serde_json::from_str(&read(answer).await).unwrap()
}

fn roomy() -> MemoryBounds {
    MemoryBounds { call: 4 << 30, key: 8 << 30, all: 8 << 30 }
}

/// A world whose model takes long texts, with a conversation and a response that are long.
async fn world(bounds: MemoryBounds) -> (World, String, String) {
    let capabilities = headrace_engine_api::Capabilities { context_window: 1 << 20, ..capabilities() };
    let world = World::new(Setup { memory: bounds, capabilities, ..Setup::default() });
    world.script(Script::Answer);
    let made = told(look(&world, post("conversations", &json!({}))).await).await;
    let conversation = made["id"].as_str().unwrap().to_owned();
    let text = "a b ".repeat(12_000);
    let items: Vec<Value> = (0..18).map(|_| json!({"role": "user", "content": text})).collect();
    for _ in 0..2 {
        let path = format!("conversations/{conversation}/items");
        told(look(&world, post(&path, &json!({"items": items}))).await).await;
    }
    let asked = json!({"model": MODEL, "input": items[..8], "max_output_tokens": 1});
    let answer = world.call(Endpoint::Responses, asked).await;
    let response = told(answer).await["id"].as_str().unwrap().to_owned();
    world.balance_when_idle().await;
    (world, conversation, response)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_on_stored_items_takes_more_than_was_reserved_for_it() {
    let _alone = ALONE.lock().await;
    let (world, conversation, response) = world(roomy()).await;
    let items = told(look(&world, get(&format!("conversations/{conversation}/items"), &[])).await).await;
    let item = items["data"][0]["id"].as_str().unwrap().to_owned();
    let inputs = told(look(&world, get(&format!("responses/{response}/input_items"), &[])).await).await;
    let input = inputs["data"][0]["id"].as_str().unwrap().to_owned();
    let named = |id: &str, times: usize| vec![json!({"type": "item_reference", "id": id}); times];
    let call = |more: Value| {
        let mut body = json!({"model": MODEL, "input": "hi", "max_output_tokens": 1, "store": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (Endpoint::Responses, body)
    };
    let rows = [
        call(json!({"conversation": conversation})),
        call(json!({"conversation": conversation, "stream": true})),
        call(json!({"conversation": conversation, "store": true})),
        call(json!({"previous_response_id": response})),
        call(json!({"previous_response_id": response, "store": true})),
        call(json!({"previous_response_id": response, "truncation": "auto"})),
        call(json!({"input": named(&item, 16)})),
        call(json!({"input": named(&input, 16)})),
        call(json!({"input": named(&item, 16), "store": true})),
        call(
            json!({"input": vec![json!({"role": "user", "content": "a b ".repeat(30_000)}); 8], "store": true}),
        ),
        call(json!({"input": vec![json!({"role": "user", "content": ""}); 4_000], "store": true})),
        call(
            json!({"input": vec![json!({"role": "user", "content": "a b ".repeat(30_000)}); 8], "store": true,
            "background": true}),
        ),
    ];
    super::hold_to_estimates(&world, &rows).await;
}

/// An answer keeps its memory until it is written.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_read_keeps_its_memory() {
    let _alone = ALONE.lock().await;
    let (world, conversation, response) = world(roomy()).await;
    for row in [
        get(&format!("responses/{response}/input_items"), &[]),
        get(&format!("conversations/{conversation}/items"), &[("limit", "100")]),
    ] {
        let answer = look(&world, row).await;
        let AnswerBody::Whole(body) = answer.body else { panic!("a whole answer") };
        assert!(world.gateway.memory_taken() >= body.len() as u64);
        drop(body);
        assert_eq!(world.gateway.memory_taken(), 0);
    }
}
