//! A relayed answer that breaks off midway is continued by another server, if the model's policy allows it and the
//! server can: from the text so far, in one stream, paid for once, and recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_catalog::{ModelPolicy, OnBreak};
use headrace_domain::{CallOutcome, Dialect, Endpoint, UsageSource, is_partition};
use headrace_engine_api::{MessageResume, RelayError, RelayEvent};
use serde_json::{Value, json};

use crate::races::by_policy;
use crate::scripted_server::{
    Script, ScriptedServer, body, chunk, data_event, delta, finish, head, named, offer, server, spent,
    status, usage,
};
use crate::world::{Setup, World, header, read_to_the_end};

use Dialect::{Anthropic, OpenAi};

fn cut() -> Option<RelayEvent> {
    Some(RelayEvent::Failed(RelayError::Cut { why: "reset".to_owned() }))
}

/// Sends these words in a dialect. Once its gate is open, it breaks off, or ends with a usage of 30 input, 4 cached and
/// 3 output tokens.
fn says(dialect: Dialect, words: &[&str], ends: bool) -> Script {
    let mut script = vec![head()];
    match dialect {
        OpenAi => {
            let role = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]});
            script.push(chunk(&role));
            script.extend(words.iter().map(|words| chunk(&delta(words))));
        }
        Anthropic => {
            let start = json!({"type": "message_start", "message": {"id": "msg_1", "type": "message",
                "role": "assistant", "model": "their-model-2026", "content": [], "stop_reason": null,
                "usage": {"input_tokens": 30, "cache_read_input_tokens": 4, "output_tokens": 1}}});
            let block = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
            let text = |text: &&str| {
                named(&json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "text_delta", "text": text}}))
            };
            script.extend([named(&start), named(&block)]);
            script.extend(words.iter().map(text));
        }
    }
    match (ends, dialect) {
        (false, _) => script.extend([None, cut()]),
        (true, OpenAi) => {
            script.extend([chunk(&finish("stop")), chunk(&usage(34, 4, 3)), data_event("", "[DONE]")]);
        }
        (true, Anthropic) => script.extend([
            named(&json!({"type": "content_block_stop", "index": 0})),
            named(
                &json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": 3}}),
            ),
            named(&json!({"type": "message_stop"})),
        ]),
    }
    script
}

fn resuming(name: &str, dialect: Dialect, resumes: MessageResume, script: Script) -> Arc<ScriptedServer> {
    let mut told = server(name, dialect, vec![script]);
    Arc::get_mut(&mut told).unwrap().facts.resumes = resumes;
    told
}

fn world(servers: &[Arc<ScriptedServer>], on_break: OnBreak) -> World {
    let world = World::new(Setup { stall: Duration::from_secs(20), ..Setup::default() });
    offer(&world, &[("far", servers)], BTreeMap::new());
    let fleet = Arc::clone(world.gateway.catalog().fleet());
    by_policy(&world, fleet, ModelPolicy { on_break, ..ModelPolicy::default() }, &[]);
    world
}

fn asks(more: &Value) -> Value {
    let mut body = body(true, more);
    body.as_object_mut().unwrap().remove("unknown_to_us");
    body
}

/// The whole text of a stream whose servers break once its head has arrived.
async fn heard(world: &World, servers: &[Arc<ScriptedServer>], endpoint: Endpoint, body: Value) -> String {
    let answer = world.call(endpoint, body).await;
    assert_eq!((answer.status, header(&answer, "x-headrace-continued")), (200, None));
    servers.iter().for_each(|server| server.gate.open());
    let (text, _) = read_to_the_end(answer).await;
    world.balance_when_idle().await;
    text
}

/// The text of a stream of either dialect.
fn text_of(stream: &str) -> String {
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: {"));
    let text = |event: &str| {
        let event: Value = serde_json::from_str(&format!("{{{event}")).unwrap();
        let text = event["choices"][0]["delta"]["content"].as_str().or(event["delta"]["text"].as_str());
        text.unwrap_or_default().to_owned()
    };
    events.map(text).collect()
}

#[tokio::test]
async fn another_server_goes_on_from_the_text_in_one_stream_that_is_paid_for_once() {
    use MessageResume::{LastTurn, LastTurnFlagged};
    for (endpoint, first, second, resumes) in [
        (Endpoint::ChatCompletions, OpenAi, OpenAi, LastTurnFlagged),
        (Endpoint::Messages, OpenAi, Anthropic, LastTurn),
        (Endpoint::Messages, Anthropic, Anthropic, LastTurn),
        (Endpoint::ChatCompletions, Anthropic, OpenAi, LastTurnFlagged),
    ] {
        let one = resuming("one", first, MessageResume::Never, says(first, &["Hi", " you "], false));
        let two = resuming("two", second, resumes, says(second, &[" and", " me"], true));
        let servers = [Arc::clone(&one), Arc::clone(&two)];
        let world = world(&servers, OnBreak::Continue);
        let more = json!({"stream_options": {"include_usage": true}});
        let more = if endpoint == Endpoint::Messages { json!({}) } else { more };
        let text = heard(&world, &servers, endpoint, asks(&more)).await;
        assert_eq!(text_of(&text), "Hi you and me", "{text}");
        let record = world.last_trace();
        assert!(matches!(record.outcome, CallOutcome::Completed { .. }), "{:?} {text}", record.outcome);
        assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
        // It is one answer, with a remark at the place where it broke.
        let generated = record.continued[0].after_tokens;
        assert_eq!((record.continued.len(), &*record.continued[0].worker), (1, "two"));
        assert_eq!(
            text.matches(&format!(": headrace: continued choice=0 after_tokens={generated}\n\n")).count(),
            1
        );
        let (starts, ends) = match endpoint {
            Endpoint::Messages => ("event: content_block_start", "event: message_stop"),
            _ => ("\"role\":\"assistant\"", "data: [DONE]"),
        };
        assert_eq!((text.matches(starts).count(), text.matches(ends).count()), (1, 1), "{text}");
        let tries: Vec<_> =
            record.attempts.iter().map(|attempt| (&*attempt.worker, attempt.outcome.name())).collect();
        assert_eq!(tries, [("one", "failed"), ("two", "answered")]);
        assert_eq!(record.upstream.as_deref(), Some("two"));
        // The request to the second server continues after the text, with the rest of the bound.
        let sent: Value = serde_json::from_slice(&two.asked.lock().unwrap()[0].body).unwrap();
        let last = sent["messages"].as_array().unwrap().last().unwrap();
        assert_eq!(last, &json!({"role": "assistant", "content": "Hi you"}));
        let bound = sent.get("max_completion_tokens").unwrap_or(&sent["max_tokens"]);
        assert_eq!(bound, &json!(10 - generated), "{sent}");
        let flagged = (resumes == LastTurnFlagged).then_some(true);
        assert_eq!(sent["continue_final_message"].as_bool(), flagged);
        assert_eq!(sent["add_generation_prompt"].as_bool(), flagged.map(|flag| !flag));
        // Each token is paid for once: the words of the first server are in the prompt of the second.
        let input = if first == Anthropic { 30 } else { 30 - generated };
        assert_eq!((record.usage.input, record.usage.cached_input), (input, 4));
        assert_eq!((record.usage.output, record.usage_source), (generated + 3, UsageSource::Estimated));
        assert!(record.cost <= record.held && record.loss.get() == 0, "{} {}", record.cost, record.held);
        assert_eq!(spent(world.balance_when_idle().await), record.cost.get());
    }
}

#[tokio::test]
async fn it_goes_on_more_than_once() {
    let flagged = MessageResume::LastTurnFlagged;
    let servers = [
        resuming("one", OpenAi, flagged, says(OpenAi, &["a", "b"], false)),
        resuming("two", OpenAi, flagged, status(400, &json!({"error": {"message": "no", "code": null}}))),
        resuming("three", OpenAi, flagged, says(OpenAi, &["c"], false)),
        resuming("four", OpenAi, flagged, says(OpenAi, &["d"], true)),
    ];
    let world = world(&servers, OnBreak::Continue);
    let text = heard(&world, &servers, Endpoint::ChatCompletions, asks(&json!({}))).await;
    assert_eq!(text_of(&text), "abcd", "{text}");
    let record = world.last_trace();
    assert!(record.continued.iter().any(|continued| &*continued.worker == "four"), "{:?}", record.continued);
    let asked = servers[3].asked.lock().unwrap();
    let sent: Value = serde_json::from_slice(&asked[0].body).unwrap();
    assert_eq!(sent["messages"].as_array().unwrap().last().unwrap()["content"], "abc");
    assert!(record.usage.output > 3 && record.cost <= record.held);
}

#[tokio::test]
async fn where_nobody_can_go_on_the_error_is_that_of_the_break() {
    let refusal =
        json!({"error": {"message": "no prefill here", "type": "invalid_request_error", "code": null}});
    let continuation = || says(OpenAi, &["me"], true);
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]);
    for (resumes, second, more, policy, was_asked) in [
        (MessageResume::Never, continuation(), json!({}), OnBreak::Continue, 0),
        (MessageResume::LastTurnFlagged, status(400, &refusal), json!({}), OnBreak::Continue, 1),
        (MessageResume::LastTurnFlagged, continuation(), json!({}), OnBreak::Error, 0),
        (MessageResume::LastTurnFlagged, continuation(), json!({"tools": tools}), OnBreak::Continue, 0),
        (MessageResume::LastTurnFlagged, continuation(), json!({"max_tokens": 1}), OnBreak::Continue, 0),
    ] {
        let one = resuming("one", OpenAi, resumes, says(OpenAi, &["Hi", " you "], false));
        let two = resuming("two", OpenAi, resumes, second);
        let servers = [one, Arc::clone(&two)];
        let world = world(&servers, policy);
        let text = heard(&world, &servers, Endpoint::ChatCompletions, asks(&more)).await;
        assert!(text.contains("upstream_failed") && text.contains("broke off"), "{text}");
        assert!(!text.contains("[DONE]") && !text.contains("prefill"), "{text}");
        assert_eq!(two.asked.lock().unwrap().len(), was_asked, "{more}");
        let record = world.last_trace();
        assert!(matches!(record.outcome, CallOutcome::Failed { .. }), "{:?}", record.outcome);
        // What was delivered is paid for.
        assert!(record.cost.get() > 0 && record.cost <= record.held, "{}", record.cost);
    }
}

#[tokio::test]
async fn what_nobody_has_heard_is_not_gone_on_with() {
    let flagged = MessageResume::LastTurnFlagged;
    let mut breaks = says(OpenAi, &["Hi", " you "], false);
    breaks.retain(Option::is_some);
    let servers = [
        resuming("one", OpenAi, flagged, breaks),
        resuming("two", OpenAi, flagged, says(OpenAi, &[" and", " me"], true)),
    ];
    let world = world(&servers, OnBreak::Continue);
    let (text, _) = read_to_the_end(world.call(Endpoint::ChatCompletions, asks(&json!({}))).await).await;
    world.balance_when_idle().await;
    let record = world.last_trace();
    let sent: Value = serde_json::from_slice(&servers[1].asked.lock().unwrap()[0].body).unwrap();
    let last = sent["messages"].as_array().unwrap().last().unwrap()["role"].clone();
    // Usually the answer's head has not been sent by then.
    match record.continued.len() {
        0 => {
            assert_eq!((text_of(&text).as_str(), last, record.usage.output), (" and me", json!("user"), 3));
            assert_eq!((record.usage.input, record.usage_source), (30, UsageSource::Reported));
        }
        _ => assert_eq!((text_of(&text).as_str(), last), ("Hi you and me", json!("assistant"))),
    }
}
