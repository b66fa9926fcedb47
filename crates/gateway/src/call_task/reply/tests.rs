//! Which tokens count as written.

use bytes::BytesMut;
use headrace_domain::{Endpoint, FinishReason, ServiceTier, TokenLogprob, UnixNanos};
use headrace_wire::{ReplyMeta, ShownSampling, WireLimits};
use serde_json::{Value, json};

use super::*;

/// Text of a choice that came with this many ids.
fn text(choice: u32, text: &str, ids: usize) -> ReplyEvent {
    ReplyEvent::Text { choice, text: text.to_owned(), ids: vec![65; ids], logprobs: Vec::new() }
}

fn scored(ids: usize) -> ReplyEvent {
    let each = TokenLogprob { id: 65, bytes: b"a".to_vec(), logprob: Some(-1.0), top: Vec::new() };
    ReplyEvent::Text { choice: 0, text: String::new(), ids: vec![65; ids], logprobs: vec![each; ids] }
}

fn call_begins() -> ReplyEvent {
    ReplyEvent::ToolCallStart { choice: 0, index: 0, id: "call_1".to_owned(), name: "f".to_owned() }
}

fn arguments() -> ReplyEvent {
    ReplyEvent::ToolCallArguments { choice: 0, index: 0, fragment: "{}".to_owned() }
}

fn finish(choice: u32) -> ReplyEvent {
    ReplyEvent::Finish { choice, reason: FinishReason::Length }
}

/// The number of tokens written after each event, and then after the end.
fn written(endpoint: Endpoint, with: &Value, events: &[ReplyEvent]) -> Vec<u64> {
    let mut body = json!({"model": "m", "max_tokens": 9, "stream": true});
    match endpoint {
        Endpoint::Completions => body["prompt"] = json!("p"),
        _ => body["messages"] = json!([{"role": "user", "content": "u"}]),
    }
    for (key, value) in with.as_object().unwrap() {
        body[key] = value.clone();
    }
    let call = headrace_wire::parse(endpoint, body.to_string().as_bytes(), &WireLimits::default()).unwrap();
    let meta = ReplyMeta {
        request_id: headrace_domain::RequestId::fresh(UnixNanos::new(0)),
        created_unix_s: 0,
        model: "m".to_owned(),
        system_fingerprint: String::new(),
        tier: ServiceTier::Standard,
        chosen: ShownSampling::default(),
        diagnosis: None,
    };
    let (mut encoder, mut written) = (encoder(&call, meta), EncodedFrames::of(&call, 2));
    encoder.begin(&Usage::default(), &mut written.bytes);
    let mut counts = Vec::new();
    for event in events {
        written.event(&mut *encoder, event);
        counts.push(written.tokens);
    }
    encoder.finish(&Usage::default(), None, &mut BytesMut::new());
    written.all();
    counts.push(written.tokens);
    counts
}

#[test]
fn a_token_is_written_when_it_shows_and_not_when_it_was_generated() {
    use Endpoint::{ChatCompletions, Completions, Messages};
    let none = json!({});
    // Half a character, or text that may become a stop string, becomes visible with the next text or with the end
    // of its choice.
    let held = [text(0, "", 1), text(0, "a", 1), text(0, "", 2), finish(0)];
    // The text of a tool call is held back until the call is complete.
    let tool = [text(0, "", 3), text(0, "", 3), call_begins(), arguments(), finish(0)];
    let two = [text(0, "", 1), text(1, "b", 2), text(0, "a", 4), finish(1), finish(0)];
    let logprobs = json!({"logprobs": true});
    let ids = json!({"return_token_ids": true});
    for (endpoint, with, events, expected) in [
        (ChatCompletions, &none, &held[..], &[0, 2, 2, 4, 4][..]),
        (Completions, &none, &held[..], &[0, 2, 2, 4, 4][..]),
        (Messages, &none, &held[..], &[0, 2, 2, 4, 4][..]),
        (ChatCompletions, &none, &tool[..], &[0, 0, 6, 6, 6, 6][..]),
        (Messages, &none, &tool[..], &[0, 0, 6, 6, 6, 6][..]),
        (ChatCompletions, &none, &two[..], &[0, 2, 7, 7, 7, 7][..]),
        // Ids and log-probabilities are visible although their text is held back.
        (ChatCompletions, &ids, &held[..], &[1, 2, 4, 4, 4][..]),
        (ChatCompletions, &logprobs, &[scored(2), text(0, "", 1), finish(0)][..], &[2, 2, 3, 3][..]),
        // A whole answer is not written before its end.
        (ChatCompletions, &json!({"stream": false}), &held[..], &[0, 0, 0, 0, 4][..]),
        (Messages, &json!({"stream": false}), &tool[..], &[0, 0, 0, 0, 0, 6][..]),
        // A choice that no event ends, as in a dialect that has none for it.
        (Messages, &none, &[text(0, "", 2)][..], &[0, 2][..]),
    ] {
        assert_eq!(written(endpoint, with, events), expected, "{endpoint:?} {with} {events:?}");
    }
}
