//! What a trace keeps of an upstream: the id of its answer, and its message about a failed call without the words of
//! the call.

use headrace_domain::{AttemptOutcome, Dialect, TracedFailure};
use serde_json::json;

use crate::scripted_server::{answer_of, chat, server, status, whole, world};
use crate::world::trace_of;

#[tokio::test]
async fn the_id_of_an_upstreams_answer_is_kept() {
    let world = world(&[server("gpu", Dialect::OpenAi, vec![whole(&answer_of("Hi"))])]);
    let answer = chat(&world, false, &json!({})).await;
    let record = trace_of(&world, answer).await;
    assert_eq!((record.upstream_id.as_deref(), record.failed_with.clone()), (Some("x"), None));
}

#[tokio::test]
async fn an_upstreams_sentence_is_kept_without_the_words_of_the_call() {
    let said = |words: &str| json!({"error": {"message": words, "type": "invalid_request_error"}});
    let own = json!({
        "messages": [{"role": "user", "content": "CANARY-7f3a 4111111111111111 of Nightingale"}],
        "user": "eva@example.com",
        "tools": [{"type": "function", "function": {"name": "launch", "parameters": {"properties": {"Zurich": {}}}}}],
    });
    for (code, words, kept) in [
        (
            400,
            "temperature 9 is too hot for this kettle",
            "status 400: temperature 9 is too hot for this kettle",
        ),
        (400, "bad value 'CANARY-7f3a' in messages", "status 400: bad value … in messages"),
        (422, "no card 4111111111111111: NIGHTINGALE is blocked", "status 422: no card … is blocked"),
        (400, "eva@example.com may not call launch in Zurich", "status 400: … may not call … in …"),
        (413, "too large", "status 413: too large"),
    ] {
        let world = world(&[server("gpu", Dialect::OpenAi, vec![status(code, &said(words))])]);
        let answer = chat(&world, false, &own).await;
        let told = answer.status;
        let record = trace_of(&world, answer).await;
        let AttemptOutcome::Failed { why, code, .. } = &record.attempts[0].outcome else {
            panic!("{:?}", record.attempts)
        };
        assert_eq!(why, kept);
        assert_eq!(record.failed_with, Some(TracedFailure { code: code.clone(), status: told }));
        assert_eq!(record.failure(), record.failed_with);
        let text = headrace_trace::encode_record(&record).unwrap();
        for secret in ["CANARY-7f3a", "4111111111111111", "ightingale"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
