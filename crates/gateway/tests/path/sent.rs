//! The trace has hash and length of the answer's bytes, as the client got them: of whole answers and streams, however the
//! call ends. Answers that no client gets as they are have none.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{AnswerFrames, IdempotencyHeader, RequestTarget};
use headrace_call_state::{AnswerBody, sent_whole};
use headrace_domain::{CallOutcome, Endpoint, SentAnswer};
use serde_json::{Value, json};

use crate::world::{Arrival, MODEL, Script, Setup, World, ask, chat_body, read, read_to_the_end};

fn hashing(setup: Setup) -> World {
    World::new(Setup { hash_answers: true, ..setup })
}

async fn sent(world: &World) -> Option<SentAnswer> {
    world.balance_when_idle().await;
    world.last_trace().sent.as_deref().copied()
}

/// The endpoints that run calls, each with a body.
fn calls() -> Vec<(Endpoint, Value)> {
    let messages = json!([{"role": "user", "content": "say ha"}]);
    vec![
        (Endpoint::ChatCompletions, json!({"model": MODEL, "max_tokens": 10, "messages": messages})),
        (Endpoint::Completions, json!({"model": MODEL, "max_tokens": 10, "prompt": "say ha"})),
        (Endpoint::Messages, json!({"model": MODEL, "max_tokens": 10, "messages": messages})),
        (Endpoint::Responses, json!({"model": MODEL, "max_output_tokens": 10, "input": "say ha"})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hash_is_of_the_bytes_that_the_client_reads() {
    for buffer_bytes in [64, 256 << 10] {
        let world = hashing(Setup { buffer_bytes, ..Setup::default() });
        for stream in [false, true] {
            for (endpoint, mut body) in calls() {
                body["stream"] = json!(stream);
                let text = read(world.call(endpoint, body).await).await;
                assert_eq!(sent(&world).await, Some(sent_whole(text.as_bytes())), "{endpoint:?} {stream}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_in_several_frames_has_the_hash_of_all() {
    let world = hashing(Setup::default());
    world.script(Script::ThenAnswer(450));
    world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
    for stream in [false, true] {
        let mut body = chat_body(stream);
        body["max_tokens"] = json!(450);
        let text = read(world.call(Endpoint::ChatCompletions, body).await).await;
        let least = if stream { 50 << 10 } else { 1 << 10 };
        assert!(text.len() > least, "{text}");
        assert_eq!(sent(&world).await, Some(sent_whole(text.as_bytes())), "{stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_has_the_hash_of_what_was_sent() {
    for frames in [0, 1] {
        let world = hashing(Setup::default());
        world.script(Script::ThenWait(3));
        let answer = world.chat(true).await;
        let AnswerBody::Stream(mut delivery) = answer.body else { panic!("a stream") };
        let mut taken = Vec::new();
        for _ in 0..frames {
            taken.extend_from_slice(&poll_fn(|cx| delivery.poll_frame(cx)).await.unwrap().unwrap());
        }
        drop(delivery);
        assert_eq!(sent(&world).await, Some(sent_whole(&taken)), "{frames}");
        assert!(matches!(world.last_trace().outcome, CallOutcome::Cancelled { .. }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_has_the_hash_of_its_error() {
    for stream in [false, true] {
        let world = hashing(Setup::default());
        world.script(Script::ThenFail(2));
        world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
        let (text, _) = read_to_the_end(world.chat(stream).await).await;
        assert!(text.contains("error"), "{text}");
        assert_eq!(sent(&world).await, Some(sent_whole(text.as_bytes())), "{stream}");
    }
}

/// A client that left and comes back gets the stored answer. The first call's hash is of that answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gets_the_bytes_of_the_first_hash_and_has_none_of_its_own() {
    for is_left in [false, true] {
        let world = std::sync::Arc::new(hashing(Setup::default()));
        world.script(Script::ThenAnswer(3));
        let send = async |world: &World| {
            let mut head = world.head(RequestTarget::Call(Endpoint::ChatCompletions));
            let target = "POST /v1/chat/completions".to_owned();
            let header = IdempotencyHeader { value: b"k".to_vec(), is_repeated: false, target };
            head.caller.idempotency = Some(Box::new(header));
            ask(&world.gateway, Arrival { head, body: Bytes::from(chat_body(false).to_string()) }).await
        };
        let client = tokio::spawn({
            let world = std::sync::Arc::clone(&world);
            async move { read(send(&world).await).await }
        });
        while world.engine.jobs.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if is_left {
            client.abort();
        }
        world.engine.may_fail.store(true, std::sync::atomic::Ordering::SeqCst);
        let _ = client.await;
        let first = sent(&world).await.unwrap();
        let again = read(send(&world).await).await;
        assert_eq!(first, sent_whole(again.as_bytes()), "{is_left}");
        assert_eq!(sent(&world).await, None, "a repeat is not hashed again");
        assert!(world.last_trace().replay_of.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_hashed_in_the_background_or_if_it_is_off() {
    let off = World::new(Setup::default());
    read(off.chat(false).await).await;
    assert_eq!(sent(&off).await, None);
    let world = hashing(Setup::default());
    let body = json!({"model": MODEL, "max_output_tokens": 10, "input": "say ha", "background": true});
    read(world.call(Endpoint::Responses, body).await).await;
    assert_eq!(sent(&world).await, None);
    assert!(world.last_trace().cost.get() > 0, "it ran");
}
