//! No call, and not all calls of a key together, take more memory than is configured, for any request.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::MemoryBounds;
use headrace_domain::Endpoint;
use serde_json::{Value, json};

use crate::world::{Script, Setup, World, chat_body, header, read};

fn world(call: u64, key: u64) -> World {
    World::new(Setup { memory: MemoryBounds { call, key, all: 1 << 30 }, ..Setup::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_could_take_too_much_is_refused_with_the_parameter_and_the_number() {
    let world = world(1 << 20, 64 << 20);
    let ids = vec![70; 400];
    let stops: Vec<String> = (0..4).map(|n| format!("{n:01024}")).collect();
    let raw = |more: Value| (Endpoint::Completions, more);
    let chat = |more: Value| (Endpoint::ChatCompletions, more);
    for ((endpoint, more), param) in [
        (raw(json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": 20})), "prompt_logprobs"),
        (raw(json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": 20, "n": 128, "logprobs": 5})), "n"),
        (raw(json!({"prompt": ids, "max_tokens": 1, "echo": true, "logprobs": 20})), "logprobs"),
        (
            raw(json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": 20, "stream": true})),
            "prompt_logprobs",
        ),
        (chat(json!({"max_tokens": 400, "logprobs": true, "top_logprobs": 20})), "top_logprobs"),
        (chat(json!({"max_tokens": 100, "n": 128})), "n"),
        (chat(json!({"max_tokens": 1, "n": 128, "stop": stops})), "n"),
    ] {
        let mut body = chat_body(false);
        if endpoint == Endpoint::Completions {
            body.as_object_mut().unwrap().remove("messages");
        }
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = world.call(endpoint, body).await;
        let status = answer.status;
        let error: Value = serde_json::from_str(&read(answer).await).unwrap();
        let error = &error["error"];
        assert_eq!((status, error["stage"].as_str()), (400, Some("render")), "{error}");
        let (code, named) = (error["code"].as_str(), error["param"].as_str());
        assert_eq!((code, named), (Some("call_too_large"), Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains("one call may take 1.0 MiB"), "{error}");
    }
    assert_eq!((world.engine.jobs.lock().unwrap().len(), world.gateway.memory_taken()), (0, 0));
    assert_eq!(world.chat(false).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_key_share_a_bound_and_are_told_to_wait() {
    let world = Arc::new(world(4 << 20, 6 << 20));
    world.script(Script::ThenWait(1));
    let mut body = chat_body(false);
    body["max_tokens"] = json!(390);
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(20));
    let started = [(); 2].map(|()| {
        let (world, body) = (Arc::clone(&world), body.clone());
        tokio::spawn(async move { world.call(Endpoint::ChatCompletions, body).await })
    });
    while world.engine.jobs.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let taken = world.gateway.memory_taken();
    assert!((4 << 20..6 << 20).contains(&taken), "{taken}");
    let third = world.call(Endpoint::ChatCompletions, body.clone()).await;
    assert_eq!((third.status, header(&third, "retry-after")), (429, Some("1")));
    let text = read(third).await;
    assert!(text.contains("key_memory_full") && text.contains("of the 6.0 MiB"), "{text}");
    for call in started {
        call.abort();
        assert!(call.await.is_err());
    }
    world.balance_when_idle().await;
    assert_eq!(world.gateway.memory_taken(), 0);
    world.script(Script::Answer);
    assert_eq!(world.call(Endpoint::ChatCompletions, body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_counts_until_it_is_read() {
    let world = world(64 << 20, 256 << 20);
    let answer = world.chat(true).await;
    assert!(world.gateway.memory_taken() > 0, "it waits for its reader");
    assert!(read(answer).await.contains("[DONE]"));
    world.balance_when_idle().await;
    assert_eq!(world.gateway.memory_taken(), 0);
    drop(world.chat(true).await);
    world.balance_when_idle().await;
    assert_eq!(world.gateway.memory_taken(), 0);
}

/// Large answers are written off the event loop, and once for all choices that repeat a prompt. The result is the same.
#[tokio::test(flavor = "multi_thread")]
async fn large_answers_come_whole() {
    let world = world(256 << 20, 512 << 20);
    world.script(Script::AnswerFully);
    for stream in [false, true] {
        let body = json!({"model": "demo", "prompt": [vec![70; 400], vec![71; 300]], "max_tokens": 100, "n": 2,
            "prompt_logprobs": 20, "logprobs": 20, "return_token_ids": true, "stream": stream});
        let answer = world.call(Endpoint::Completions, body).await;
        assert_eq!(answer.status, 200);
        let text = read(answer).await;
        let parts: Vec<Value> = if stream {
            let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
            events
                .filter(|event| *event != "[DONE]")
                .map(|event| serde_json::from_str(event).unwrap())
                .collect()
        } else {
            vec![serde_json::from_str(&text).unwrap()]
        };
        let choices = || parts.iter().flat_map(|part| part["choices"].as_array().unwrap());
        for (choice, tokens) in [(0, 400), (1, 400), (2, 300), (3, 300)] {
            let own = || choices().filter(move |part| part["index"] == choice);
            let prompts: Vec<_> = own().filter_map(|part| part["prompt_logprobs"].as_array()).collect();
            assert_eq!(prompts.iter().map(|prompt| prompt.len()).collect::<Vec<_>>(), [tokens]);
            assert_eq!(
                prompts[0][tokens - 1].as_object().unwrap().len(),
                21,
                "one of them is the token itself"
            );
            let generated = own().filter_map(|part| part["logprobs"]["tokens"].as_array()).map(Vec::len);
            assert_eq!(generated.sum::<usize>(), 100);
        }
    }
    world.balance_when_idle().await;
    assert_eq!(world.gateway.memory_taken(), 0);
}
