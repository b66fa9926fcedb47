//! Content rules on what models write, over the backends, the endpoints, streams and whole answers: no byte of a match
//! leaves, the end says why, and what was withheld is not charged.

use std::sync::Arc;

use headrace_call_api::{ObjectMethod, ObjectOperation, RequestTarget};
use headrace_domain::{CallOutcome, ContentPlace, ContentVerdict, Dialect, Endpoint};
use headrace_moderation::{JudgesByName, RuleConfig};
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, ScriptedServer, answer_of, chunk, data_event, delta, finish, head, judged_servers, named, offer,
    offer_passing, server, spent, usage, whole,
};
use crate::world::{MODEL, Setup, World, read};

const TEXT: &str = "keep this secret now";

pub(crate) fn rules(rules: &Value) -> Vec<RuleConfig> {
    serde_json::from_value(rules.clone()).unwrap()
}

fn secret(action: &str) -> Vec<RuleConfig> {
    rules(
        &json!([{"name": "no-secret", "kind": "words", "words": ["secret"], "action": action, "applies_to": "output"}]),
    )
}

pub(crate) fn body_of(endpoint: Endpoint, model: &str, stream: bool) -> Value {
    match endpoint {
        Endpoint::Completions => json!({"model": model, "prompt": "go", "stream": stream, "max_tokens": 90}),
        Endpoint::Responses => {
            json!({"model": model, "input": "go", "stream": stream, "max_output_tokens": 90})
        }
        _ => json!({"model": model, "stream": stream, "max_tokens": 90,
            "messages": [{"role": "user", "content": "go"}]}),
    }
}

/// The events of a stream, or the one value of a whole answer.
pub(crate) fn values(body: &str, stream: bool) -> Vec<Value> {
    if !stream {
        return vec![serde_json::from_str(body).unwrap()];
    }
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The text that the client has, and why the answer ended.
pub(crate) fn seen(endpoint: Endpoint, stream: bool, body: &str) -> (String, String) {
    let (mut text, mut end) = (String::new(), String::new());
    for value in values(body, stream) {
        let texts: Vec<&Value> = match (endpoint, stream) {
            (Endpoint::ChatCompletions, true) => vec![&value["choices"][0]["delta"]["content"]],
            (Endpoint::ChatCompletions, false) => vec![&value["choices"][0]["message"]["content"]],
            (Endpoint::Completions, _) => vec![&value["choices"][0]["text"]],
            (Endpoint::Messages, true) => vec![&value["delta"]["text"]],
            (Endpoint::Messages, false) => vec![&value["content"][0]["text"]],
            (Endpoint::Responses, true) if value["type"] == "response.output_text.delta" => {
                vec![&value["delta"]]
            }
            (Endpoint::Responses, false) => vec![&value["output"][0]["content"][0]["text"]],
            _ => Vec::new(),
        };
        texts.iter().filter_map(|text| text.as_str()).for_each(|more| text.push_str(more));
        let whole = if stream { &value["response"] } else { &value };
        let ends = match endpoint {
            Endpoint::Messages if stream => [&value["delta"]["stop_reason"], &Value::Null],
            Endpoint::Messages => [&value["stop_reason"], &Value::Null],
            Endpoint::Responses => [&whole["status"], &whole["incomplete_details"]["reason"]],
            _ => [&value["choices"][0]["finish_reason"], &Value::Null],
        };
        let ends: Vec<&str> = ends.iter().filter_map(|end| end.as_str()).collect();
        if !ends.is_empty() {
            end = ends.join(" ");
        }
    }
    (text, end)
}

fn chat_stream(pieces: &[&str]) -> Script {
    let mut script = vec![head()];
    script.extend(pieces.iter().map(|piece| chunk(&delta(piece))));
    script.extend([chunk(&finish("stop")), chunk(&usage(20, 0, 20)), data_event("", "[DONE]")]);
    script
}

fn completion_stream(pieces: &[&str]) -> Script {
    let choice = |text: &str, reason: Value| {
        chunk(&json!({"id": "x", "object": "text_completion", "created": 1, "model": "their-model-2026",
            "choices": [{"index": 0, "text": text, "finish_reason": reason}]}))
    };
    let mut script = vec![head()];
    script.extend(pieces.iter().map(|piece| choice(piece, Value::Null)));
    script.extend([choice("", json!("stop")), data_event("", "[DONE]")]);
    script
}

fn messages_stream(pieces: &[&str]) -> Script {
    let mut script = vec![
        head(),
        named(
            &json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
            "model": "claude-x", "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 20, "output_tokens": 1}}}),
        ),
        named(
            &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ),
    ];
    script.extend(pieces.iter().map(|piece| {
        named(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}))
    }));
    script.extend([
        named(&json!({"type": "content_block_stop", "index": 0})),
        named(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": 20}})),
        named(&json!({"type": "message_stop"})),
    ]);
    script
}

fn responses_stream(pieces: &[&str]) -> Script {
    let response = |status: &str, output: Value| {
        json!({"id": "resp_x", "object": "response", "created_at": 1, "status": status, "model": "their-model-2026",
            "output": output, "usage": {"input_tokens": 20, "output_tokens": 20, "total_tokens": 40}})
    };
    let text = pieces.concat();
    let item = json!({"id": "msg_x", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]});
    let mut script = vec![
        head(),
        named(&json!({"type": "response.created", "response": response("in_progress", json!([]))})),
        named(&json!({"type": "response.output_item.added", "output_index": 0, "item": {"id": "msg_x",
            "type": "message", "role": "assistant", "status": "in_progress", "content": []}})),
    ];
    script.extend(pieces.iter().map(|piece| {
        named(&json!({"type": "response.output_text.delta", "item_id": "msg_x", "output_index": 0,
            "content_index": 0, "delta": piece}))
    }));
    script.extend([
        named(&json!({"type": "response.output_text.done", "item_id": "msg_x", "output_index": 0,
            "content_index": 0, "text": text})),
        named(&json!({"type": "response.output_item.done", "output_index": 0, "item": item})),
        named(&json!({"type": "response.completed", "response": response("completed", json!([item]))})),
    ]);
    script
}

/// What answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// An engine that yields ids and text.
    Engine,
    /// A server in OpenAI's dialect.
    OpenAi,
    /// A server in Anthropic's dialect.
    Anthropic,
    /// A server that answers the Responses API itself.
    Responses,
}

/// A world whose model says `TEXT` in pieces, and the model's name.
fn world_of(
    lane: Lane,
    rules: Vec<RuleConfig>,
    script: Script,
) -> (World, &'static str, Arc<ScriptedServer>) {
    judged_world(lane, (rules, JudgesByName::new()), script, TEXT)
}

/// The same for another text, with judges that the rules ask.
pub(crate) fn judged_world(
    lane: Lane,
    (rules, judges): (Vec<RuleConfig>, JudgesByName),
    script: Script,
    text: &'static str,
) -> (World, &'static str, Arc<ScriptedServer>) {
    let dialect = if lane == Lane::Anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
    let server = server("gpu", dialect, vec![script]);
    let servers = [Arc::clone(&server)];
    match lane {
        Lane::Engine => {
            let world = World::new(Setup { rules, judges, ..Setup::default() });
            world.script(crate::world::Script::Say(text));
            (world, MODEL, server)
        }
        Lane::OpenAi | Lane::Anthropic => (judged_servers(&servers, rules, judges), "far", server),
        Lane::Responses => {
            let world = World::new(Setup { rules, judges, ..Setup::default() });
            offer_passing(&world, "far", &servers);
            (world, "far", server)
        }
    }
}

/// What the server of a lane sends for `TEXT`.
pub(crate) fn script_of(lane: Lane, endpoint: Endpoint, stream: bool, pieces: &[&str]) -> Script {
    let text = pieces.concat();
    match (lane, endpoint, stream) {
        (Lane::Engine, ..) => Vec::new(),
        (Lane::OpenAi, Endpoint::Completions, true) => completion_stream(pieces),
        (Lane::OpenAi, Endpoint::Completions, false) => {
            whole(&json!({"id": "x", "object": "text_completion",
            "created": 1, "model": "their-model-2026",
            "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}))
        }
        (Lane::OpenAi, _, true) => chat_stream(pieces),
        (Lane::OpenAi, _, false) => whole(&answer_of(&text)),
        (Lane::Anthropic, _, true) => messages_stream(pieces),
        (Lane::Anthropic, _, false) => whole(&json!({"id": "m", "type": "message", "role": "assistant",
            "model": "claude-x", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
            "stop_sequence": null, "usage": {"input_tokens": 20, "output_tokens": 20}})),
        (Lane::Responses, _, true) => responses_stream(pieces),
        (Lane::Responses, _, false) => whole(&json!({"id": "resp_x", "object": "response", "created_at": 1,
            "status": "completed", "model": "their-model-2026",
            "output": [{"id": "msg_x", "type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}],
            "usage": {"input_tokens": 20, "output_tokens": 20, "total_tokens": 40}})),
    }
}

pub(crate) const LANES: [(Lane, &[Endpoint]); 4] = [
    (
        Lane::Engine,
        &[Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses],
    ),
    (
        Lane::OpenAi,
        &[Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses],
    ),
    (Lane::Anthropic, &[Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses]),
    (Lane::Responses, &[Endpoint::Responses]),
];

/// The end of an answer in the words of an endpoint.
pub(crate) fn end_of(endpoint: Endpoint, is_blocked: bool) -> &'static str {
    match (endpoint, is_blocked) {
        (Endpoint::Messages, true) => "refusal",
        (Endpoint::Messages, false) => "end_turn",
        (Endpoint::Responses, true) => "incomplete content_filter",
        (Endpoint::Responses, false) => "completed",
        (_, true) => "content_filter",
        (_, false) => "stop",
    }
}

#[tokio::test]
async fn no_byte_of_a_match_leaves_in_any_backend_and_dialect() {
    let splits: [&[&str]; 4] = [
        &["keep this secret now"],
        &["keep this sec", "ret now"],
        &["keep this ", "s", "e", "c", "r", "e", "t", " now"],
        &["keep", " this s", "ecret", " now"],
    ];
    for (lane, endpoints) in LANES {
        for &endpoint in endpoints {
            for (stream, action) in
                [(true, "block"), (true, "redact"), (false, "block"), (false, "redact"), (true, "flag")]
            {
                for pieces in splits {
                    let script = script_of(lane, endpoint, stream, pieces);
                    let (world, model, _) = world_of(lane, secret(action), script);
                    let what = format!("{lane:?} {endpoint:?} stream={stream} {action} {pieces:?}");
                    let answer = world.call(endpoint, body_of(endpoint, model, stream)).await;
                    assert_eq!(answer.status, 200, "{what}");
                    let body = read(answer).await;
                    let expected = match action {
                        "block" => "keep this ",
                        "redact" => "keep this <REDACTED> now",
                        _ => TEXT,
                    };
                    let end = end_of(endpoint, action == "block");
                    assert_eq!(
                        seen(endpoint, stream, &body),
                        (expected.to_owned(), end.to_owned()),
                        "{what}: {body}"
                    );
                    if action != "flag" {
                        assert!(!body.contains("secre") && !body.contains("ecret"), "{what}: {body}");
                    }
                    world.balance_when_idle().await;
                    let record = world.last_trace();
                    let verdict = ContentVerdict {
                        rule: "no-secret".to_owned(),
                        action: action.to_owned(),
                        kind: Some("words".into()),
                        place: Some(ContentPlace::Answer),
                        dry_run: None,
                    };
                    assert_eq!(record.output_verdicts, [verdict], "{what}");
                    let finish = if action == "block" { "content_filter" } else { "stop" };
                    let finish = CallOutcome::Completed { finish: vec![finish.to_owned()] };
                    assert_eq!(record.outcome, finish, "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_engine_is_stopped_at_a_match_and_only_what_left_is_charged() {
    for stream in [true, false] {
        // It sends 40 tokens of 100 bytes, and then waits until it is cancelled.
        let block = rules(&json!([{"name": "long", "kind": "regex", "pattern": "x{1000}", "action": "block",
            "applies_to": "answer"}]));
        let world = World::new(Setup { rules: block, ..Setup::default() });
        world.script(crate::world::Script::ThenWait(40));
        let answer =
            world.call(Endpoint::ChatCompletions, body_of(Endpoint::ChatCompletions, MODEL, stream)).await;
        let body = read(answer).await;
        assert_eq!(
            seen(Endpoint::ChatCompletions, stream, &body),
            (String::new(), "content_filter".to_owned())
        );
        let spent = spent(world.balance_when_idle().await);
        assert_eq!(*world.engine.cancelled.lock().unwrap(), 1);
        let record = world.last_trace();
        assert_eq!(record.usage.output, 40, "{stream}: the trace has all that was made");
        // $1 for a million prompt tokens, and the rest is a loss.
        assert_eq!(spent, i64::try_from(record.usage.input).unwrap() * 1000);
        assert_eq!(record.loss.get(), 40 * 4000);
    }
    // Ten tokens leave before the match, of 20 that were made. What leaves pays, and the usage says so.
    let world = World::new(Setup { rules: secret("block"), ..Setup::default() });
    world.script(crate::world::Script::Say(TEXT));
    let answer =
        world.call(Endpoint::ChatCompletions, body_of(Endpoint::ChatCompletions, MODEL, false)).await;
    let body: Value = serde_json::from_str(&read(answer).await).unwrap();
    assert_eq!(body["usage"]["completion_tokens"], json!(10));
    let spent = spent(world.balance_when_idle().await);
    let record = world.last_trace();
    assert_eq!((record.usage.output, record.loss.get()), (20, 10 * 4000));
    assert_eq!(spent, i64::try_from(record.usage.input).unwrap() * 1000 + 10 * 4000);
}

#[tokio::test]
async fn a_redacted_answer_is_charged_as_it_was_made() {
    let world = World::new(Setup { rules: secret("redact"), ..Setup::default() });
    world.script(crate::world::Script::Say(TEXT));
    let answer = world.call(Endpoint::ChatCompletions, body_of(Endpoint::ChatCompletions, MODEL, true)).await;
    read(answer).await;
    world.balance_when_idle().await;
    let record = world.last_trace();
    assert_eq!((record.usage.output, record.loss.get()), (20, 0));
}

#[tokio::test]
async fn ids_and_log_probabilities_of_a_match_do_not_leave() {
    const TOKENS: &[(u32, &str)] =
        &[(70, "keep "), (71, "this "), (72, "sec"), (73, "ret"), (74, " now"), (75, "")];
    for action in ["redact", "block"] {
        let world = World::new(Setup { rules: secret(action), ..Setup::default() });
        world.script(crate::world::Script::Spell(TOKENS));
        for stream in [false, true] {
            let mut body = body_of(Endpoint::ChatCompletions, MODEL, stream);
            body["return_token_ids"] = json!(true);
            let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
            let ids: Vec<Value> = values(&body, stream)
                .iter()
                .filter_map(|value| value["choices"][0]["token_ids"].as_array().cloned())
                .flatten()
                .collect();
            assert_eq!(ids, Vec::<Value>::new(), "{action} {stream}: {body}");
        }
        world.balance_when_idle().await;
    }
    // Without a match, all of them leave.
    let other = || {
        rules(&json!([{"name": "other", "kind": "words", "words": ["ha hi"], "action": "redact",
        "applies_to": "output"}]))
    };
    for stream in [false, true] {
        let world = World::new(Setup { rules: other(), ..Setup::default() });
        world.script(crate::world::Script::Spell(TOKENS));
        let mut body = body_of(Endpoint::ChatCompletions, MODEL, stream);
        body["return_token_ids"] = json!(true);
        let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
        let ids = values(&body, stream);
        let ids =
            ids.iter().filter_map(|value| value["choices"][0]["token_ids"].as_array().cloned()).flatten();
        assert_eq!(
            ids.collect::<Vec<Value>>(),
            [70, 71, 72, 73, 74, 75].map(Value::from),
            "{stream}: {body}"
        );
        world.script(crate::world::Script::Answer);
        let mut body = body_of(Endpoint::ChatCompletions, MODEL, stream);
        (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(1));
        let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
        let scores = values(&body, stream);
        let scores = scores.iter().filter_map(|value| value["choices"][0]["logprobs"]["content"].as_array());
        assert_eq!(scores.flatten().count(), 4, "{stream}: {body}");
        world.balance_when_idle().await;
    }
}

#[tokio::test]
async fn tool_calls_leave_whole_and_stay_json() {
    const CALL: &str =
        "so: <tool_call>\n{\"name\": \"t\", \"arguments\": {\"a\": \"the \\u0073ecret plan\"}}\n</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]);
    let fragments = ["{\"a\": \"the \\u00", "73ec", "ret plan\"}"];
    let call = |more: Value| {
        chunk(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"tool_calls": [more]}, "finish_reason": null}]}))
    };
    for lane in [Lane::Engine, Lane::OpenAi] {
        for (stream, action) in [(true, "block"), (true, "redact"), (false, "block"), (false, "redact")] {
            let mut script = vec![head(), chunk(&delta("so: "))];
            script.push(call(json!({"index": 0, "id": "call_1", "type": "function",
                "function": {"name": "t", "arguments": ""}})));
            script.extend(
                fragments.iter().map(|more| call(json!({"index": 0, "function": {"arguments": more}}))),
            );
            script.extend([chunk(&finish("tool_calls")), data_event("", "[DONE]")]);
            if !stream {
                script = whole(&json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant",
                        "content": "so: ", "tool_calls": [{"id": "call_1", "type": "function",
                            "function": {"name": "t", "arguments": fragments.concat()}}]}}]}));
            }
            let (world, model, _) = world_of(lane, secret(action), script);
            world.script(crate::world::Script::Say(CALL));
            let mut body = body_of(Endpoint::ChatCompletions, model, stream);
            body["tools"] = tools.clone();
            let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
            let mut arguments = String::new();
            for value in values(&body, stream) {
                let part = if stream { "delta" } else { "message" };
                let more = value["choices"][0][part]["tool_calls"][0]["function"]["arguments"].as_str();
                arguments.push_str(more.unwrap_or_default());
            }
            let what = format!("{lane:?} {stream} {action}: {body}");
            if action == "block" {
                assert!(arguments.is_empty() && !body.contains("call_1") && !body.contains("plan"), "{what}");
                assert!(body.contains("content_filter"), "{what}");
            } else {
                let arguments: Value = serde_json::from_str(&arguments).unwrap();
                assert_eq!(arguments, json!({"a": "the <REDACTED> plan"}), "{what}");
            }
            world.balance_when_idle().await;
        }
    }
}

#[tokio::test]
async fn each_choice_is_screened_by_itself() {
    let block = rules(&json!([{"name": "laughs", "kind": "words", "words": ["ha ha ha"], "action": "block",
        "applies_to": "answer"}]));
    let world = World::new(Setup { rules: block, ..Setup::default() });
    let mut body = body_of(Endpoint::ChatCompletions, MODEL, false);
    body["n"] = json!(3);
    let body: Value =
        serde_json::from_str(&read(world.call(Endpoint::ChatCompletions, body).await).await).unwrap();
    for choice in body["choices"].as_array().unwrap() {
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(""), &json!("content_filter"))
        );
    }
    world.balance_when_idle().await;
}

#[tokio::test]
async fn rules_of_a_project_apply_to_its_calls_alone_and_a_dry_run_changes_nothing() {
    for (more, expected) in [
        (json!({"projects": ["web"]}), "keep this <REDACTED> now"),
        (json!({"projects": ["other"]}), TEXT),
        (json!({"dry_run": true}), TEXT),
        (json!({"applies_to": "reasoning"}), TEXT),
    ] {
        let mut list = json!([{"name": "no-secret", "kind": "words", "words": ["secret"], "action": "redact",
            "applies_to": "output"}]);
        for (key, value) in more.as_object().unwrap() {
            list[0][key] = value.clone();
        }
        let world = World::new(Setup { rules: rules(&list), ..Setup::default() });
        world.script(crate::world::Script::Say(TEXT));
        let answer =
            world.call(Endpoint::ChatCompletions, body_of(Endpoint::ChatCompletions, MODEL, true)).await;
        let body = read(answer).await;
        assert_eq!(seen(Endpoint::ChatCompletions, true, &body).0, expected, "{more}");
        world.balance_when_idle().await;
        let is_noted = more.get("dry_run").is_some() || expected != TEXT;
        let trace = world.last_trace();
        let verdicts = &trace.output_verdicts;
        assert_eq!(verdicts.len(), usize::from(is_noted), "{more}");
        if more.get("dry_run").is_some() {
            assert_eq!(
                (verdicts[0].action.as_str(), verdicts[0].dry_run.as_deref()),
                ("flag", Some("redact"))
            );
        }
    }
}

#[tokio::test]
async fn a_stored_response_is_what_the_client_saw() {
    for action in ["redact", "block"] {
        let world = World::new(Setup { rules: secret(action), ..Setup::default() });
        world.script(crate::world::Script::Say(TEXT));
        let mut body = body_of(Endpoint::Responses, MODEL, false);
        body["store"] = json!(true);
        let sent: Value =
            serde_json::from_str(&read(world.call(Endpoint::Responses, body).await).await).unwrap();
        let id = sent["id"].as_str().unwrap().to_owned();
        let path = format!("responses/{id}");
        let operation = ObjectOperation { method: ObjectMethod::Get, path, query: Vec::new() };
        let kept = world.request(RequestTarget::Object(operation), "").await;
        let kept = read(kept).await;
        assert!(!kept.contains("secret"), "{kept}");
        let kept: Value = serde_json::from_str(&kept).unwrap();
        assert_eq!((&kept["output"], &kept["status"]), (&sent["output"], &sent["status"]), "{action}");
        world.balance_when_idle().await;
    }
}

/// The world keeps both of its models.
#[tokio::test]
async fn a_relayed_answer_is_passed_on_as_it_came_if_no_rule_is_on_answers() {
    let input = rules(&json!([{"name": "in", "kind": "words", "words": ["secret"], "action": "block"}]));
    let world = World::new(Setup { rules: input, ..Setup::default() });
    let server = server("gpu", Dialect::OpenAi, vec![whole(&answer_of(TEXT))]);
    offer(&world, &[("far", &[server])], std::collections::BTreeMap::new());
    let answer =
        world.call(Endpoint::ChatCompletions, body_of(Endpoint::ChatCompletions, "far", false)).await;
    assert_eq!(read(answer).await, answer_of(TEXT).to_string());
    world.balance_when_idle().await;
}
