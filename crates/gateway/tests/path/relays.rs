//! Calls that are relayed to upstream servers. What is passed on stays as it came, and the rest is written in the
//! caller's dialect. In every case the call ends once, is paid once, and its trace names the server that answered.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use headrace_call_api::{AnswerFrames, CallService, Question, RequestTarget};
use headrace_call_state::AnswerBody;
use headrace_domain::{AttemptOutcome, CallOutcome, Dialect, Endpoint, Stage, UsageSource, is_partition};
use headrace_engine_api::{RelayError, RelayEvent, RelayWait};
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, altered, answer_of, body, chat, chunk, data_event, delta, failed, finish, head, named,
    ruled_world, server, spent, status, stream, usage, whole, world,
};
use crate::world::{ask, header, read, read_to_the_end};

#[tokio::test]
async fn a_stream_in_the_callers_dialect_is_passed_on_byte_for_byte() {
    let server = server("gpu", Dialect::OpenAi, vec![stream(), stream()]);
    let world = world(&[Arc::clone(&server)]);
    let answer = chat(&world, true, &json!({"stream_options": {"include_usage": true}})).await;
    assert_eq!((answer.status, header(&answer, "x-headrace-upstream")), (200, Some("gpu")));
    let raw = |events: Script| -> String {
        let raw = events.into_iter().flatten().filter_map(|event| match event {
            RelayEvent::Event(event) => Some(String::from_utf8(event.raw.to_vec()).unwrap()),
            _ => None,
        });
        raw.collect()
    };
    assert_eq!(read(answer).await, raw(stream()));
    // 15 uncached at $1, 5 cached at $0.10, 2 generated at $4 per million.
    assert_eq!(spent(world.balance_when_idle().await), 15_000 + 500 + 8_000);
    let record = world.last_trace();
    assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
    assert_eq!((record.upstream.as_deref(), record.usage_source), (Some("gpu"), UsageSource::Reported));
    assert_eq!(record.upstream_model.as_deref(), Some("their-model-2026"));
    assert!(is_partition(&record.stages, record.duration_ns) && record.span(Stage::Upstream).is_some());
    assert_eq!(record.attempts.len(), 1);
    assert_eq!(record.attempts[0].outcome, AttemptOutcome::Answered);

    // A caller that did not ask for usage does not get the usage event.
    let answer = chat(&world, true, &json!({})).await;
    let text = read(answer).await;
    assert!(!text.contains("prompt_tokens_details") && text.ends_with("data:  [DONE]\r\n\r\n"), "{text}");
    assert_eq!(spent(world.balance_when_idle().await), 2 * (15_000 + 500 + 8_000));

    // The request goes out as it came, except for the model's name and what the bill needs.
    let asked = server.asked.lock().unwrap();
    let mut expected = body(true, &json!({"stream_options": {"include_usage": true}}));
    expected["model"] = json!("their-model");
    for ask in asked.iter() {
        assert_eq!(serde_json::from_slice::<Value>(&ask.body).unwrap(), expected);
        assert!(ask.stream && ask.endpoint == Endpoint::ChatCompletions);
    }
}

#[tokio::test]
async fn a_whole_answer_in_the_callers_dialect_is_passed_on_byte_for_byte() {
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
    let world = world(&[server]);
    let answer = chat(&world, false, &json!({})).await;
    assert_eq!(read(answer).await, answer_of("Hi you").to_string());
    assert_eq!(spent(world.balance_when_idle().await), 20_000 + 8_000);
    let record = world.last_trace();
    assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
    assert_eq!(record.usage.total(), 22);
}

#[tokio::test]
async fn an_answer_in_the_other_dialect_is_said_in_the_callers() {
    let start = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
        "model": "claude-x", "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 11, "cache_read_input_tokens": 4, "output_tokens": 1}}});
    let script = vec![
        head(),
        named(&start),
        named(
            &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
        named(&json!({"type": "ping"})),
        named(
            &json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}),
        ),
        named(&json!({"type": "content_block_stop", "index": 0})),
        named(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": 3}})),
        named(&json!({"type": "message_stop"})),
    ];
    let server = server("claude", Dialect::Anthropic, vec![script]);
    let world = world(&[Arc::clone(&server)]);
    let mut asked = body(true, &json!({}));
    asked.as_object_mut().unwrap().remove("unknown_to_us");
    let answer = world.call(Endpoint::ChatCompletions, asked).await;
    assert_eq!(answer.status, 200);
    let text = read(answer).await;
    assert!(text.contains("\"content\":\"Hi\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(spent(world.balance_when_idle().await), 11_000 + 400 + 12_000);
    let sent: Value = serde_json::from_slice(&server.asked.lock().unwrap()[0].body).unwrap();
    assert_eq!(sent["max_tokens"], json!(10));
    assert_eq!(sent["model"], json!("their-model"));
    assert_eq!(server.asked.lock().unwrap()[0].endpoint, Endpoint::Messages);
}

#[tokio::test]
async fn what_an_upstream_does_to_a_call_before_anything_shows_is_tried_elsewhere_or_told() {
    let words = json!({"error": {"message": "the temperature is too hot", "type": "invalid_request_error",
        "param": "temperature", "code": null}});
    let busy =
        json!({"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}});
    let connect = || failed(RelayError::Connect { why: "refused".to_owned() });
    let slow = || failed(RelayError::Timeout { what: RelayWait::Head, after: Duration::from_secs(3) });
    let page = || {
        failed(RelayError::NotTheDialect {
            what: "a page of HTML".to_owned(),
            beginning: "<html>".to_owned(),
        })
    };
    // What happens first, whether another server is tried, and what the caller gets if there is none.
    for (script, moves, (code, told)) in [
        (connect(), true, (502, "upstream_unreachable")),
        (slow(), true, (504, "upstream_timeout")),
        (page(), true, (502, "upstream_failed")),
        (
            failed(RelayError::Redirect { status: 302, to: "/login".to_owned() }),
            true,
            (502, "upstream_failed"),
        ),
        (status(500, &json!({"error": {"message": "oops"}})), true, (502, "upstream_failed")),
        (
            status(401, &json!({"error": {"message": "bad key sk-123"}})),
            true,
            (502, "upstream_misconfigured"),
        ),
        (status(429, &busy), true, (503, "upstream_overloaded")),
        (status(400, &words), false, (400, "upstream_refused")),
        // An error inside a 200, and a body without an answer.
        (
            vec![head(), chunk(&json!({"error": {"message": "oops", "type": "server_error"}}))],
            true,
            (502, "upstream_failed"),
        ),
        (vec![head()], true, (502, "upstream_failed")),
        // The opening of an answer shows nothing of it.
        (
            vec![head(), chunk(&json!({"id": "opening", "choices": [{"delta": {"role": "assistant"}}]}))],
            true,
            (502, "upstream_failed"),
        ),
    ] {
        let shown = format!("{script:?}");
        let (first, second) = (
            server("a", Dialect::OpenAi, vec![script.clone()]),
            server("b", Dialect::OpenAi, vec![stream()]),
        );
        let alone = world(&[server("a", Dialect::OpenAi, vec![script])]);
        let answer = chat(&alone, true, &json!({})).await;
        assert_eq!(answer.status, code, "{shown}");
        assert_eq!(header(&answer, "retry-after").is_some(), code == 503, "{shown}");
        let text = read(answer).await;
        assert!(text.contains(told), "{shown}: {text}");
        assert!(!text.contains("sk-123"), "{text}");
        assert_eq!(spent(alone.balance_when_idle().await), 0, "{shown}");

        let both = world(&[first, second]);
        let answer = chat(&both, true, &json!({})).await;
        assert_eq!(answer.status, if moves { 200 } else { code }, "{shown}");
        let upstream = header(&answer, "x-headrace-upstream").map(str::to_owned);
        let text = read(answer).await;
        let paid = spent(both.balance_when_idle().await);
        let record = both.last_trace();
        if moves {
            assert_eq!((upstream.as_deref(), paid), (Some("b"), 23_500), "{shown}: {text}");
            assert!(text.contains("Hi") && !text.contains("opening"), "{text}");
            assert_eq!(record.attempts.len(), 2, "{shown}");
            assert!(matches!(record.attempts[0].outcome, AttemptOutcome::Failed { .. }));
        } else {
            assert!(
                text.contains("the temperature is too hot") && text.contains("\"temperature\""),
                "{text}"
            );
            assert_eq!((paid, record.attempts.len()), (0, 1), "{shown}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_ends_with_an_error_and_is_paid_as_far_as_it_was_delivered() {
    let cut = RelayError::Cut { why: "the connection was reset".to_owned() };
    let idle = RelayError::Timeout { what: RelayWait::Idle, after: Duration::from_secs(60) };
    let error = json!({"error": {"message": "boom", "type": "server_error"}});
    let two = || vec![head(), chunk(&delta("Hi")), chunk(&delta(" you")), None];
    let then = |event: Option<RelayEvent>| two().into_iter().chain([event]).collect::<Script>();
    for (script, told) in [
        (then(Some(RelayEvent::Failed(cut))), "upstream_failed"),
        (then(Some(RelayEvent::Failed(idle))), "upstream_timeout"),
        (then(chunk(&error)), "upstream_failed"),
        (two(), "upstream_failed"),
    ] {
        let shown = format!("{script:?}");
        let first = server("a", Dialect::OpenAi, vec![script]);
        let world = world(&[Arc::clone(&first), server("b", Dialect::OpenAi, vec![stream()])]);
        let mut answer = chat(&world, true, &json!({})).await;
        // It breaks off when the client has both words.
        let AnswerBody::Stream(delivery) = &mut answer.body else { panic!("{shown}") };
        let mut taken = String::new();
        while !taken.contains(" you") {
            let frame = poll_fn(|cx| delivery.poll_frame(cx)).await.unwrap().unwrap();
            taken.push_str(std::str::from_utf8(&frame).unwrap());
        }
        first.gate.open();
        let (text, end) = read_to_the_end(answer).await;
        assert!(end.is_ok() && text.contains(told) && !text.contains("[DONE]"), "{shown}: {text}");
        let paid = spent(world.balance_when_idle().await);
        let record = world.last_trace();
        // No usage was reported: two deltas, and a prompt of a few words.
        assert_eq!(record.usage_source, UsageSource::Estimated, "{shown}");
        assert_eq!(paid, record.cost.get());
        assert!((1..=200_000).contains(&paid), "{shown}: {paid}");
        assert_eq!(record.usage.output, 2, "{shown}");
        assert_eq!(record.attempts.len(), 1, "what was seen moves nowhere");
        assert!(matches!(record.outcome, CallOutcome::Failed { .. }), "{:?}", record.outcome);
    }
}

#[tokio::test]
async fn an_answer_without_the_event_that_ends_it_is_given_one() {
    let opening = json!({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant"}}]});
    let without_end = |script: Script| script.into_iter().filter(|event| !is_done(event)).collect::<Script>();
    let silent = vec![head(), chunk(&opening), chunk(&finish("stop"))];
    let world = world(&[server("a", Dialect::OpenAi, vec![without_end(stream()), silent])]);
    for words in [true, false] {
        let text = read(chat(&world, true, &json!({})).await).await;
        assert_eq!(text.contains(" you"), words, "{text}");
        assert!(text.contains("\"stop\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
        assert_eq!(text.contains("assistant"), !words, "what opened it stands in it: {text}");
        world.balance_when_idle().await;
        let outcome = world.last_trace().outcome.clone();
        assert_eq!(outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
    }
}

fn is_done(event: &Option<RelayEvent>) -> bool {
    matches!(event, Some(RelayEvent::Event(event)) if event.data == "[DONE]")
}

#[tokio::test]
async fn what_comes_behind_the_end_is_no_part_of_the_answer_and_usage_that_is_missing_is_estimated() {
    let after: Script =
        stream().into_iter().chain([chunk(&delta("more")), chunk(&usage(9_000, 0, 9_000))]).collect();
    let without: Script = vec![
        head(),
        chunk(&delta("Hi")),
        chunk(&delta(" you")),
        chunk(&finish("length")),
        data_event("", "[DONE]"),
    ];
    let world = world(&[server("a", Dialect::OpenAi, vec![after, without])]);
    let text = read(chat(&world, true, &json!({})).await).await;
    assert!(!text.contains("more") && text.contains("[DONE]"), "{text}");
    assert_eq!(spent(world.balance_when_idle().await), 23_500);

    let text = read(chat(&world, true, &json!({})).await).await;
    assert!(text.contains("[DONE]"), "{text}");
    world.balance_when_idle().await;
    let record = world.last_trace();
    assert_eq!((record.usage_source, record.usage.output), (UsageSource::Estimated, 2));
    assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["length".to_owned()] });
}

#[tokio::test]
async fn a_client_that_goes_away_pays_for_what_came_and_a_silent_upstream_is_let_go() {
    let server = server("a", Dialect::OpenAi, vec![vec![head(), chunk(&delta("Hi")), None]]);
    let world = world(&[server]);
    let answer = chat(&world, true, &json!({})).await;
    assert_eq!(answer.status, 200);
    drop(answer);
    assert!(spent(world.balance_when_idle().await) > 0);
    let record = world.last_trace();
    assert!(matches!(record.outcome, CallOutcome::Cancelled { .. }), "{:?}", record.outcome);
    assert_eq!((record.usage.output, record.usage_source), (1, UsageSource::Estimated));
}

#[tokio::test]
async fn a_model_is_ready_by_itself_and_an_upstream_that_fails_stops_nobody_else() {
    let connect = || failed(RelayError::Connect { why: "refused".to_owned() });
    let server = server("a", Dialect::OpenAi, std::iter::repeat_with(connect).take(20).collect());
    let world = world(&[server]);
    assert_eq!(world.gateway.not_ready(Some("far")), [""; 0]);
    let mut codes = Vec::new();
    for _ in 0..7 {
        codes.push(chat(&world, true, &json!({})).await.status);
    }
    // After five failures in a row it gets no calls for a while.
    assert_eq!(codes, [502, 502, 502, 502, 502, 503, 503]);
    let answer = chat(&world, true, &json!({})).await;
    assert!(header(&answer, "retry-after").is_some());
    assert!(read(answer).await.contains("upstream_overloaded"));
    let [why] = &world.gateway.not_ready(Some("far"))[..] else { panic!("one model") };
    assert!(why.contains("`far`") && why.contains("worker a"), "{why}");
    assert_eq!(world.gateway.not_ready(Some("none")), ["no model `none` is served"]);
    assert_eq!(world.gateway.not_ready(None), [""; 0]);
    assert_eq!(spent(world.balance_when_idle().await), 0);
}

#[tokio::test]
async fn a_conversation_goes_on_where_it_began() {
    const CONVERSATIONS: usize = 8;
    const TURNS: usize = 6;
    let scripts =
        || std::iter::repeat_with(|| whole(&answer_of("yes"))).take(CONVERSATIONS * TURNS).collect();
    let servers: Vec<_> = ["a", "b", "c"].map(|name| server(name, Dialect::OpenAi, scripts())).into();
    servers.iter().for_each(|server| server.reports_load.store(false, Ordering::SeqCst));
    let world = world(&servers);
    let (mut used, mut stayed) = (std::collections::BTreeSet::new(), 0);
    for conversation in 0..CONVERSATIONS {
        let mut messages = vec![json!({"role": "user", "content": format!("story {conversation}")})];
        let mut before = None;
        for turn in 0..TURNS {
            let answer = chat(&world, false, &json!({"messages": messages})).await;
            let here = header(&answer, "x-headrace-upstream").map(str::to_owned);
            read(answer).await;
            stayed += usize::from(before == here);
            used.extend(here.clone());
            before = here;
            messages.push(json!({"role": "assistant", "content": "yes"}));
            messages.push(json!({"role": "user", "content": format!("and then {turn}")}));
        }
    }
    // A conversation still leaves a server that is much slower than another, and these answer within microseconds.
    let could = CONVERSATIONS * (TURNS - 1);
    assert!(stayed * 3 >= could * 2, "{stayed} of {could} turns stayed where the conversation was");
    assert!(used.len() > 1, "all went to {used:?}");
}

#[tokio::test]
async fn more_than_was_held_is_our_loss_and_never_the_callers() {
    // A hold for a few words, and a bill for a novel.
    let mut script = vec![head(), chunk(&delta("Hi")), chunk(&finish("stop"))];
    script.extend([chunk(&usage(1_000_000, 0, 5)), data_event("", "[DONE]")]);
    let world = world(&[server("a", Dialect::OpenAi, vec![script])]);
    read(chat(&world, true, &json!({})).await).await;
    let paid = spent(world.balance_when_idle().await);
    let record = world.last_trace();
    assert_eq!(paid, record.held.get(), "all of the hold, and no more");
    assert!(record.loss.get() > 900_000_000);
}

#[tokio::test]
async fn rules_see_what_is_sent_on_and_turn_away_what_they_cannot_read() {
    let rules =
        json!([{"name": "no-nightingale", "kind": "words", "words": ["nightingale"], "action": "block"}]);
    let server = server("a", Dialect::OpenAi, vec![whole(&answer_of("Hi"))]);
    let world = ruled_world(&[Arc::clone(&server)], serde_json::from_value(rules).unwrap());
    let tool =
        json!({"type": "function", "function": {"name": "f", "description": "sings as a Nightingale"}});
    for (more, told) in [
        (json!({"messages": [{"role": "user", "content": "n\u{456}ghting\u{430}le"}]}), "no-nightingale"),
        (json!({"messages": [{"role": "user", "content": "of the nightingale"}]}), "no-nightingale"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "nightin\u{67}ale"}]}]}),
            "no-night",
        ),
        (json!({"tools": [tool]}), "no-nightingale"),
        (json!({"unknown_to_us": {"deep": ["nightingale"]}}), "no-nightingale"),
    ] {
        let answer = chat(&world, false, &more).await;
        assert_eq!(answer.status, 400, "{more}");
        let text = read(answer).await;
        assert!(text.contains("content_policy") && text.contains(told), "{more}: {text}");
    }
    // A prompt in ids cannot be read here if the tokenizer is not here.
    let ids = json!({"model": "far", "prompt": [1, 2, 3], "max_tokens": 4});
    let answer = world.call(Endpoint::Completions, ids).await;
    assert_eq!(answer.status, 400);
    assert!(read(answer).await.contains("cannot be read here"));
    assert!(server.asked.lock().unwrap().is_empty(), "nothing of it was sent on");

    assert_eq!(chat(&world, false, &json!({})).await.status, 200);
    assert_eq!(spent(world.balance_when_idle().await), 28_000);
}

#[tokio::test]
async fn a_dialects_headers_go_along_in_that_dialect_and_no_other() {
    for (dialect, sent) in [(Dialect::Anthropic, true), (Dialect::OpenAi, false)] {
        let server = altered(server("a", dialect, vec![]), "https://", |facts| {
            facts.allow_unpriced = if sent { Arc::from(["context_1m"]) } else { Arc::default() };
        });
        let world = world(&[Arc::clone(&server)]);
        let call =
            json!({"model": "far", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]});
        let mut arrival = world.arrival(Endpoint::Messages, call.to_string());
        arrival.head.caller.dialect_headers = vec![("anthropic-beta", "context-1m".to_owned())];
        drop(read_to_the_end(ask(&world.gateway, arrival).await).await);
        let parent = ("traceparent", format!("{} behind 1 attempts", world.last_trace().request_id));
        let beta = sent.then(|| ("anthropic-beta", "context-1m".to_owned()));
        let expected: Vec<_> = beta.into_iter().chain([parent]).collect();
        assert_eq!(server.asked.lock().unwrap()[0].headers, expected, "{dialect:?}");
    }
}

#[tokio::test]
async fn tokens_of_a_model_that_somebody_else_has_are_estimated_or_unknown() {
    let server = server("gpu", Dialect::OpenAi, vec![]);
    let world = world(&[server]);
    let asked = |question, body: Value| world.request(RequestTarget::Question(question), body.to_string());
    let text = "word ".repeat(400);
    let count = json!({"model": "far", "messages": [{"role": "user", "content": text}], "unknown_to_us": 1});
    let answer = asked(Question::CountTokens, count).await;
    assert_eq!(answer.status, 200);
    let json: Value = serde_json::from_str(&read(answer).await).unwrap();
    assert_eq!(json["headrace"], json!({"estimated": true}));
    assert!((400..600).contains(&json["input_tokens"].as_u64().unwrap()), "{json}");
    let answer = asked(Question::Tokenize, json!({"model": "far", "prompt": "x"})).await;
    assert_eq!(answer.status, 400);
}
