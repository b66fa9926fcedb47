//! Compares the memory that requests on stored objects take with the reserved amount: each endpoint with the input that
//! takes the most.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use headrace_call_api::{ObjectMethod, ObjectOperation, RequestTarget};
use headrace_call_state::{Answer, AnswerBody, MemoryBounds};
use headrace_domain::Endpoint;
use headrace_objects::ObjectLimits;
use headrace_store::{Storage, StorageUrl};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::world::{MODEL, Script, Setup, World, capabilities, read};
use super::{ALONE, NOW, TRIES, of_answer, rich};

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
    world.request(RequestTarget::Object(ObjectOperation { method, path, query }), body).await
}

async fn told(answer: Answer) -> Value {
    assert_eq!(answer.status, 200);
    serde_json::from_str(&read(answer).await).unwrap()
}

fn roomy() -> MemoryBounds {
    MemoryBounds { call: 4 << 30, key: 8 << 30, all: 8 << 30 }
}

/// A world whose model takes long texts, with a long conversation and a long response.
async fn world(dir: &TempDir, bounds: MemoryBounds) -> (World, String, String) {
    let capabilities = headrace_engine_api::Capabilities { context_window: 1 << 20, ..capabilities() };
    let storage = Storage::open(StorageUrl::of_folder(dir.path()), None);
    let stored_in = Some(storage.objects(ObjectLimits::default(), None).unwrap());
    let setup = Setup { memory: bounds, capabilities, credit: rich(), stored_in, ..Setup::default() };
    let world = World::new(setup);
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
async fn no_look_up_takes_more_than_was_reserved_for_it() {
    let _alone = ALONE.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let (world, conversation, response) = world(&dir, roomy()).await;
    let items = told(look(&world, get(&format!("conversations/{conversation}/items"), &[])).await).await;
    let item = items["data"][0]["id"].as_str().unwrap().to_owned();
    let tiny = vec![json!({"role": "user", "content": "."}); 4_000];
    let values = vec![0; 1 << 20];
    let objects = vec![json!({"": []}); 1 << 17];
    let of_tools: Vec<Value> = (0..1_000)
        .map(|at| {
            json!({"type": "function_call", "call_id": format!("c{at}"), "name": "f",
        "arguments": "{\"a\":[[],[],[],[],[],[],[],[]]}"})
        })
        .collect();
    let rows = [
        get(&format!("responses/{response}"), &[]),
        get(&format!("responses/{response}"), &[("include[]", "reasoning.encrypted_content")]),
        get(&format!("responses/{response}/input_items"), &[("limit", "100")]),
        get(&format!("conversations/{conversation}/items"), &[("limit", "100")]),
        get(&format!("conversations/{conversation}/items"), &[("limit", "1")]),
        get(&format!("conversations/{conversation}/items/{item}"), &[]),
        post(&format!("responses/{response}/cancel"), &json!({})),
        post("conversations", &json!({"items": tiny})),
        post("conversations", &json!({"items": of_tools})),
        post(&format!("conversations/{conversation}/items"), &json!({"items": tiny})),
        post("responses/input_tokens", &json!({"model": MODEL, "input": "hi", "conversation": conversation})),
        post(
            "responses/input_tokens",
            &json!({"model": MODEL, "input": "hi", "previous_response_id": response}),
        ),
        post("responses/compact", &json!({"model": MODEL, "input": values})),
        post("responses/compact", &json!({"model": MODEL, "input": objects})),
        post("responses/compact", &json!({"model": MODEL, "conversation": conversation})),
        post("moderations", &json!({"input": vec![""; 1_000]})),
        post("moderations", &json!({"input": vec!["a"; 1 << 20]})),
    ];
    // Things made once per process do not count.
    for row in &rows {
        drop(look(&world, row.clone()).await);
    }
    let mut too_low = Vec::new();
    for row in rows {
        let (mut status, mut peak, mut taken, mut tries) = (0, 1, 0, 0);
        while peak as u64 > taken && tries < TRIES {
            (status, peak, taken) = of_answer(&world, look(&world, row.clone())).await;
            tries += 1;
        }
        let shown = format!("{} {:.60}", row.path, String::from_utf8_lossy(&row.body));
        println!("{status} {peak:>12} of {taken:>12} bytes: {shown}");
        if peak as u64 > taken {
            too_low.push(shown);
        }
    }
    assert!(too_low.is_empty(), "more was allocated than was reserved for {too_low:#?}");
    assert_eq!(world.gateway.memory_taken(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_on_stored_items_takes_more_than_was_reserved_for_it() {
    let _alone = ALONE.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let (world, conversation, response) = world(&dir, roomy()).await;
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
        call(json!({"input": vec![json!({"role": "user", "content": "."}); 4_000], "store": true})),
        call(
            json!({"input": vec![json!({"role": "user", "content": "a b ".repeat(30_000)}); 8], "store": true,
            "background": true}),
        ),
    ];
    super::hold_to_estimates(&world, &rows).await;
}

/// A short request on a conversation that is too large for its key is rejected by the stored size alone.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_is_refused_before_it_is_read() {
    let _alone = ALONE.lock().await;
    let bounds = MemoryBounds { call: 64 << 20, key: 64 << 20, all: 256 << 20 };
    let dir = tempfile::tempdir().unwrap();
    let (world, conversation, response) = world(&dir, bounds).await;
    for _ in 0..4 {
        let items: Vec<Value> =
            (0..18).map(|_| json!({"role": "user", "content": "a b ".repeat(12_000)})).collect();
        let path = format!("conversations/{conversation}/items");
        told(look(&world, post(&path, &json!({"items": items}))).await).await;
    }
    let page = get(&format!("conversations/{conversation}/items"), &[("limit", "100")]);
    let listed: Value = serde_json::from_str(&read(look(&world, page.clone()).await).await).unwrap();
    assert_eq!(listed["data"].as_array().unwrap().len(), 100, "a page of five megabytes fits");
    for round in 0..2 {
        let asked =
            json!({"model": MODEL, "input": "hi", "conversation": conversation, "max_output_tokens": 1});
        let counted = post("responses/input_tokens", &asked);
        let call = world.arrival(Endpoint::Responses, asked.to_string());
        let before = NOW.load(Ordering::Relaxed);
        let (status, peak, _) = of_answer(&world, super::ask(&world.gateway, call)).await;
        // The conversation has more than five megabytes.
        assert!(status == 400 && peak < 1 << 20, "round {round}: {status}, {peak} bytes");
        let (status, peak, _) = of_answer(&world, look(&world, counted)).await;
        assert!(status == 400 && peak < 1 << 20, "round {round}: {status}, {peak} bytes");
        // One item referenced many times is as long as all of them.
        let listed: Value = serde_json::from_str(
            &read(look(&world, get(&format!("conversations/{conversation}/items"), &[])).await).await,
        )
        .unwrap();
        let item = listed["data"][0]["id"].as_str().unwrap().to_owned();
        drop(listed);
        for id in [item, "x".to_owned()] {
            let named = vec![json!({"type": "item_reference", "id": id}); 4_000];
            let call =
                world.arrival(Endpoint::Responses, json!({"model": MODEL, "input": named}).to_string());
            let (status, peak, _) = of_answer(&world, super::ask(&world.gateway, call)).await;
            assert!(status == 400 && peak < 4 << 20, "round {round}: {status}, {peak} bytes");
        }
        let named: Vec<Value> =
            vec![json!({"type": "item_reference", "id": listed_first(&world, &conversation).await}); 256];
        let call = world.arrival(Endpoint::Responses, json!({"model": MODEL, "input": named}).to_string());
        let (status, peak, _) = of_answer(&world, super::ask(&world.gateway, call)).await;
        assert!(status == 400 && peak < 4 << 20, "round {round}: {status}, {peak} bytes");
        assert_eq!(world.gateway.memory_taken(), 0);
        let after = NOW.load(Ordering::Relaxed);
        assert!(after < before + (4 << 20), "round {round}: {before} before, {after} after");
    }
    drop(response);
}

async fn listed_first(world: &World, conversation: &str) -> String {
    let path = format!("conversations/{conversation}/items");
    let listed = told(look(world, get(&path, &[("limit", "1")])).await).await;
    listed["data"][0]["id"].as_str().unwrap().to_owned()
}

/// An answer keeps its memory until it is written.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_read_keeps_its_memory() {
    let _alone = ALONE.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let (world, conversation, response) = world(&dir, roomy()).await;
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
