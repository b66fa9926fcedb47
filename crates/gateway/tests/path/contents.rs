//! The content decides the end of an answer. Once every choice has its finish reason, and the usage has arrived or two
//! seconds have passed, the call is over. What the upstream's transport does then is irrelevant.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{CallOutcome, Dialect, Endpoint, UsageSource};
use headrace_engine_api::{RelayError, RelayEvent, RelayWait};
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, ScriptedServer, body, chat, chunk, data_event, delta, finish, head, named, server, spent, usage,
    world,
};
use crate::world::read;

/// What a transport does once the content is complete.
fn afterwards() -> Vec<(&'static str, Script)> {
    let failed = |error| vec![Some(RelayEvent::Failed(error))];
    vec![
        ("silence", vec![None]),
        ("heartbeats", vec![data_event("", ""), data_event("", ""), None]),
        ("a reset", failed(RelayError::Cut { why: "the connection was reset".to_owned() })),
        ("a timeout", failed(RelayError::Timeout { what: RelayWait::Idle, after: Duration::from_secs(60) })),
        ("a close", vec![]),
        ("what cannot be read", vec![data_event("", "{broken"), None]),
        ("a late error", vec![chunk(&json!({"error": {"message": "late", "code": 500}})), None]),
    ]
}

fn content(dialect: Dialect, with_usage: bool) -> Script {
    match dialect {
        Dialect::OpenAi => {
            let mut script = vec![head(), chunk(&delta("Hi")), chunk(&delta(" you")), chunk(&finish("stop"))];
            if with_usage {
                script.push(chunk(&usage(20, 5, 2)));
            }
            script
        }
        Dialect::Anthropic => {
            let counts = if with_usage {
                json!({"input_tokens": 15, "cache_read_input_tokens": 5, "output_tokens": 2})
            } else {
                Value::Null
            };
            vec![
                head(),
                named(&json!({"type": "message_start", "message": {"id": "m", "type": "message",
                    "role": "assistant", "model": "m", "content": [], "stop_reason": null}})),
                named(&json!({"type": "content_block_start", "index": 0,
                    "content_block": {"type": "text", "text": ""}})),
                named(&json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "text_delta", "text": "Hi you"}})),
                named(&json!({"type": "content_block_stop", "index": 0})),
                named(
                    &json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts}),
                ),
            ]
        }
    }
}

fn ends(text: &str, endpoint: Endpoint) -> bool {
    match endpoint {
        Endpoint::Messages => text.contains("\"end_turn\"") && text.contains("message_stop"),
        Endpoint::Responses => text.contains("response.completed"),
        _ => text.contains("\"stop\"") && text.ends_with("data: [DONE]\n\n"),
    }
}

async fn is_whole(dialect: Dialect, endpoint: Endpoint, with_usage: bool, name: &str, after: Script) {
    let shown = format!("{dialect:?} for {endpoint:?}, usage {with_usage}, then {name}");
    let script = content(dialect, with_usage).into_iter().chain(after).collect();
    let server = server("a", dialect, vec![script]);
    let world = world(&[Arc::clone(&server)]);
    let mut asked = body(true, &json!({}));
    asked.as_object_mut().unwrap().remove("unknown_to_us");
    if endpoint == Endpoint::Responses {
        asked = json!({"model": "far", "input": "hello out there", "stream": true, "max_output_tokens": 10,
            "store": false});
    }
    let answer = world.call(endpoint, asked).await;
    assert_eq!(answer.status, 200, "{shown}");
    let text = read(answer).await;
    assert!(ends(&text, endpoint) && !text.contains("upstream_"), "{shown}: {text}");
    let paid = spent(world.balance_when_idle().await);
    let record = world.last_trace();
    let completed = CallOutcome::Completed { finish: vec!["stop".to_owned()] };
    assert_eq!(record.outcome, completed, "{shown}");
    let source = if with_usage { UsageSource::Reported } else { UsageSource::Estimated };
    assert_eq!(record.usage_source, source, "{shown}");
    if with_usage {
        assert_eq!(paid, 15_000 + 500 + 8_000, "{shown}");
    }
    assert_eq!(dropped_answers(&server), 1, "{shown}");
}

/// The scripts never end by themselves, so an unbounded wait would make this test hang. All rows wait at the same time.
#[tokio::test]
async fn a_whole_content_is_a_whole_answer_whatever_the_transport_does() {
    let mut rows = Vec::new();
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
            for with_usage in [true, false] {
                for (name, after) in afterwards() {
                    rows.push(is_whole(dialect, endpoint, with_usage, name, after));
                }
            }
        }
    }
    futures_util::future::join_all(rows).await;
}

fn dropped_answers(server: &ScriptedServer) -> usize {
    server.dropped_answers.load(std::sync::atomic::Ordering::SeqCst)
}

#[tokio::test]
async fn a_stream_that_says_it_is_over_is_whole_without_a_finish_reason() {
    let counts = || chunk(&usage(20, 5, 2));
    let done = || data_event("", "[DONE]");
    let script = || vec![head(), chunk(&delta("Hi")), chunk(&delta(" you")), counts(), done()];
    let empty_reason =
        || vec![head(), chunk(&delta("Hi")), chunk(&delta(" you")), chunk(&finish("")), counts(), done()];
    let world = world(&[server("a", Dialect::OpenAi, vec![script(), script(), empty_reason()])]);
    let mut asked = body(true, &json!({}));
    asked.as_object_mut().unwrap().remove("unknown_to_us");
    for (at, endpoint) in
        [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::ChatCompletions].into_iter().enumerate()
    {
        let text = read(world.call(endpoint, asked.clone()).await).await;
        assert!(text.contains(" you") && !text.contains("error"), "{text}");
        let paid = spent(world.balance_when_idle().await);
        assert_eq!(paid, (at as i64 + 1) * (15_000 + 500 + 8_000));
        let record = world.last_trace();
        assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
        assert_eq!(record.answer_notes, ["missing_finish_reason: choice 0"]);
    }
}

#[tokio::test]
async fn a_cut_answer_is_told_as_cut_and_a_server_that_gave_up_is_left() {
    let ended_by = |word: &str| {
        vec![
            head(),
            chunk(&delta("Hi")),
            chunk(&finish(word)),
            chunk(&usage(20, 5, 2)),
            data_event("", "[DONE]"),
        ]
    };
    let unknown = "their_own_word";
    let world_of = |word: &str| {
        let other = server("b", Dialect::OpenAi, vec![crate::scripted_server::stream()]);
        world(&[server("a", Dialect::OpenAi, vec![ended_by(word)]), other])
    };
    for word in ["model_length", unknown] {
        let world = world_of(word);
        let mut asked = body(true, &json!({}));
        asked.as_object_mut().unwrap().remove("unknown_to_us");
        let text = read(world.call(Endpoint::Messages, asked).await).await;
        assert!(text.contains("\"max_tokens\"") && !text.contains("end_turn"), "{word}: {text}");
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["length".to_owned()] }, "{word}");
        let noted = record.answer_notes.iter().any(|note| note.contains(unknown));
        assert_eq!(noted, word == unknown, "{:?}", record.answer_notes);
    }
    // Before any output, another upstream answers in place of one that gave up.
    let gave_up = vec![head(), chunk(&finish("network_error")), data_event("", "[DONE]")];
    let other = server("b", Dialect::OpenAi, vec![crate::scripted_server::stream()]);
    let world = world(&[server("a", Dialect::OpenAi, vec![gave_up]), other]);
    let text = read(chat(&world, true, &json!({})).await).await;
    assert!(text.contains(" you"), "{text}");
    world.balance_when_idle().await;
    assert_eq!(world.last_trace().attempts.len(), 2);
}
