//! Content rules that redact calls and put the values back into answers: models, their servers, judges, traces and records
//! see placeholders alone, and the client gets its values, over all backends, endpoints, streams and whole answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_call_api::{ObjectMethod, ObjectOperation, RequestTarget};
use headrace_catalog::EncoderOutput;
use headrace_domain::{Dialect, Endpoint, RecordLevel, SystemClock};
use headrace_moderation::{JudgeFuture, JudgesByName, PassageJudge, RuleConfig, WithoutVerdict};
use headrace_store::{Storage, StorageUrl};
use serde_json::{Value, json};

use crate::counts::count;
use crate::idempotency::send;
use crate::recorded::{FLUSH, records, start};
use crate::screened::{LANES, Lane, end_of, judged_world, rules, script_of, seen, values};
use crate::scripted_server::{
    Script as ServerScript, ScriptedServer, chunk, data_event, finish, head, judged_servers, server, whole,
};
use crate::world::{MODEL, Script, Setup, World, read};

const SAID: &str = "To <EMAIL_1>, cc <EMAIL_2>, not <EMAIL_9>.";
const PUT_BACK: &str = "To ann@example.com, cc bob@example.com, not <EMAIL_9>.";
const ASKED: &str = "Mail ann@example.com and bob@example.com, then ann@example.com.";
const MODEL_SEES: &str = "Mail <EMAIL_1> and <EMAIL_2>, then <EMAIL_1>.";

fn restore() -> Vec<RuleConfig> {
    rules(
        &json!([{"name": "pii", "kind": "pii", "entities": ["email", "card"], "action": "redact", "restore": true},
        {"name": "ticket", "kind": "regex", "pattern": "T-[\"0-9]{3}", "action": "redact", "restore": true}]),
    )
}

fn body_of(endpoint: Endpoint, model: &str, stream: bool, text: &str) -> Value {
    match endpoint {
        Endpoint::Completions => json!({"model": model, "prompt": text, "stream": stream, "max_tokens": 90}),
        Endpoint::Responses => {
            json!({"model": model, "input": text, "stream": stream, "max_output_tokens": 90,
            "instructions": "You serve bob@example.com.", "store": false})
        }
        _ => json!({"model": model, "stream": stream, "max_tokens": 90,
            "messages": [{"role": "user", "content": text}]}),
    }
}

/// The text that the model of a world got last: the prompt of its engine, or the body of its server.
fn last_prompt(world: &World, lane: Lane, server: &ScriptedServer) -> String {
    match lane {
        Lane::Engine => {
            let ids = world.engine.jobs.lock().unwrap().last().unwrap().prompt.clone();
            world.tokenizer().decode(&ids, false)
        }
        _ => {
            let asked = server.asked.lock().unwrap();
            String::from_utf8(asked.last().unwrap().body.to_vec()).unwrap()
        }
    }
}

#[tokio::test]
async fn values_come_back_in_any_backend_and_dialect() {
    let splits: [&[&str]; 3] = [
        &[SAID],
        &["To <EM", "AIL_", "1>, cc <", "EMAIL_2", ">, not <EMAIL", "_9>."],
        &["To ", "<", "E", "MAIL_1", ">", ", cc <EMAIL_2>, not", " <EMAIL_9", ">", "."],
    ];
    for (lane, endpoints) in LANES {
        for &endpoint in endpoints {
            for stream in [true, false] {
                for pieces in splits {
                    let script = script_of(lane, endpoint, stream, pieces);
                    let ruled = (restore(), JudgesByName::new());
                    let (world, model, server) = judged_world(lane, ruled, script, SAID);
                    let what = format!("{lane:?} {endpoint:?} stream={stream} {pieces:?}");
                    let answer = world.call(endpoint, body_of(endpoint, model, stream, ASKED)).await;
                    assert_eq!(answer.status, 200, "{what}");
                    let body = read(answer).await;
                    let end = end_of(endpoint, false);
                    let mut expected = PUT_BACK.to_owned();
                    let mut prompt = MODEL_SEES.to_owned();
                    if endpoint == Endpoint::Responses {
                        // The instructions come first in the prompt.
                        expected = "To bob@example.com, cc ann@example.com, not <EMAIL_9>.".to_owned();
                        prompt = "Mail <EMAIL_2> and <EMAIL_1>, then <EMAIL_2>.".to_owned();
                        if lane != Lane::Responses {
                            assert!(body.contains("You serve bob@example.com."), "{what}: {body}");
                        }
                    }
                    assert_eq!(seen(endpoint, stream, &body), (expected, end.to_owned()), "{what}: {body}");
                    let model_sees = last_prompt(&world, lane, &server);
                    assert!(model_sees.contains(&prompt), "{what}: {model_sees}");
                    assert!(!model_sees.contains("example.com"), "{what}: {model_sees}");
                    world.balance_when_idle().await;
                    let trace = serde_json::to_string(&*world.last_trace()).unwrap();
                    assert!(!trace.contains("example.com") && trace.contains("\"pii\""), "{what}: {trace}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_call_without_a_value_is_passed_on_as_it_came() {
    let text = "hello";
    let script = script_of(Lane::OpenAi, Endpoint::ChatCompletions, false, &[SAID]);
    let (world, model, _) = judged_world(Lane::OpenAi, (restore(), JudgesByName::new()), script, SAID);
    let body = body_of(Endpoint::ChatCompletions, model, false, text);
    let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
    // A field of the server that no rewritten answer has.
    assert!(body.contains("strange") && body.contains("<EMAIL_1>"), "{body}");
    world.balance_when_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_have_placeholders_alone() {
    for (lane, endpoints) in LANES {
        let dir = tempfile::tempdir().unwrap();
        let store = Storage::open(StorageUrl::of_folder(dir.path()), None).contents(1 << 30, None);
        let recorder = start(store.clone(), Arc::new(SystemClock::new()));
        for &endpoint in endpoints {
            for stream in [true, false] {
                let script = script_of(
                    lane,
                    endpoint,
                    stream,
                    &["To <EM", "AIL_1>", ", cc <EMAIL_2>, not <EMAIL_9>."],
                );
                let (world, model, _) = judged_world(lane, (restore(), JudgesByName::new()), script, SAID);
                world.gateway.keep_contents(recorder.clone());
                records(&world, RecordLevel::Full);
                let body = body_of(endpoint, model, stream, ASKED);
                let body = read(world.call(endpoint, body).await).await;
                assert!(body.contains("ann@example.com"), "{body}");
                world.balance_when_idle().await;
                assert!(recorder.flush(FLUSH));
                let what = format!("{lane:?} {endpoint:?} stream={stream}");
                let found = store.get(world.last_trace().request_id).unwrap().unwrap();
                let texts: String = found.answer.iter().map(|part| part.text.as_str()).collect();
                assert!(texts.contains(SAID) && !found.answer_cut, "{what}: {found:?}");
                assert!(found.request.contains("Mail <EMAIL_"), "{what}: {}", found.request);
                let all = format!("{found:?}");
                assert!(!all.contains("example.com"), "{what}: {all}");
            }
        }
    }
}

#[tokio::test]
async fn values_in_tool_calls_are_written_as_json() {
    const CALL: &str = "so: <tool_call>\n{\"name\": \"t\", \"arguments\": {\"a\": \"by <TICKET_1>\", \"b\": \"<EMAIL_1>\"}}\n</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]);
    let fragments = ["{\"a\": \"by <TICK", "ET_1>\", \"b\": \"\\u00", "3cEMAIL_1\\u003e\"}"];
    let call = |more: Value| {
        chunk(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": {"tool_calls": [more]}, "finish_reason": null}]}))
    };
    for lane in [Lane::Engine, Lane::OpenAi] {
        for stream in [true, false] {
            let mut script = vec![head()];
            script.push(call(json!({"index": 0, "id": "call_1", "type": "function",
                "function": {"name": "t", "arguments": ""}})));
            script.extend(
                fragments.iter().map(|more| call(json!({"index": 0, "function": {"arguments": more}}))),
            );
            script.extend([chunk(&finish("tool_calls")), data_event("", "[DONE]")]);
            if !stream {
                script = whole(&json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant",
                        "content": null, "tool_calls": [{"id": "call_1", "type": "function",
                            "function": {"name": "t", "arguments": fragments.concat()}}]}}]}));
            }
            let (world, model, server) = judged_world(lane, (restore(), JudgesByName::new()), script, CALL);
            let text = "Ticket T-1\"2 of ann@example.com";
            let mut body = body_of(Endpoint::ChatCompletions, model, stream, text);
            body["tools"] = tools.clone();
            let sent_back = json!({"role": "assistant", "tool_calls": [{"id": "call_0", "type": "function",
                "function": {"name": "t", "arguments": "{\"b\": \"ann\\u0040example.com\"}"}}]});
            let result =
                json!({"role": "tool", "tool_call_id": "call_0", "content": "sent to ann@example.com"});
            body["messages"].as_array_mut().unwrap().extend([sent_back, result]);
            let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
            let mut arguments = String::new();
            for value in values(&body, stream) {
                let part = if stream { "delta" } else { "message" };
                let more = value["choices"][0][part]["tool_calls"][0]["function"]["arguments"].as_str();
                arguments.push_str(more.unwrap_or_default());
            }
            let what = format!("{lane:?} {stream}: {body}");
            let arguments: Value = serde_json::from_str(&arguments).expect(&what);
            assert_eq!(arguments, json!({"a": "by T-1\"2", "b": "ann@example.com"}), "{what}");
            let sees = last_prompt(&world, lane, &server);
            assert!(!sees.contains("example.com") && !sees.contains("T-1"), "{what}: {sees}");
            assert_eq!(sees.matches("<EMAIL_1>").count(), 3, "{what}: {sees}");
            world.balance_when_idle().await;
        }
    }
}

#[tokio::test]
async fn reasoning_gets_its_values_and_keeps_its_signature() {
    for stream in [true, false] {
        let script: ServerScript = if stream {
            let event = |data: Value| crate::scripted_server::named(&data);
            let mut script = vec![
                head(),
                event(
                    json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
                    "model": "claude-x", "content": [], "stop_reason": null, "stop_sequence": null,
                    "usage": {"input_tokens": 20, "output_tokens": 1}}}),
                ),
                event(json!({"type": "content_block_start", "index": 0,
                    "content_block": {"type": "thinking", "thinking": "", "signature": ""}})),
            ];
            script.extend(["hm <EMA", "IL_1> <"].map(|piece| {
                event(json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "thinking_delta", "thinking": piece}}))
            }));
            script.extend([
                event(json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "signature_delta", "signature": "c2ln"}})),
                event(json!({"type": "content_block_stop", "index": 0})),
                event(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                    "usage": {"output_tokens": 20}})),
                event(json!({"type": "message_stop"})),
            ]);
            script
        } else {
            whole(&json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-x",
                "content": [{"type": "thinking", "thinking": "hm <EMAIL_1> <", "signature": "c2ln"}],
                "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 20, "output_tokens": 20}}))
        };
        let (world, model, _) = judged_world(Lane::Anthropic, (restore(), JudgesByName::new()), script, SAID);
        let body = body_of(Endpoint::Messages, model, stream, ASKED);
        let body = read(world.call(Endpoint::Messages, body).await).await;
        let thought: String = values(&body, stream)
            .iter()
            .filter_map(|value| {
                let whole = value["content"][0]["thinking"].as_str();
                whole.or(value["delta"]["thinking"].as_str()).map(str::to_owned)
            })
            .collect();
        assert_eq!(thought, "hm ann@example.com <", "{body}");
        assert!(body.contains("c2ln"), "{body}");
        world.balance_when_idle().await;
    }
}

#[tokio::test]
async fn ids_of_placeholders_do_not_leave_and_usage_stays() {
    const TOKENS: &[(u32, &str)] = &[(70, "to "), (71, "<EMA"), (72, "IL_1>"), (73, " now"), (75, "")];
    for stream in [false, true] {
        let world = World::new(Setup { rules: restore(), ..Setup::default() });
        world.script(Script::Spell(TOKENS));
        for (text, expected) in [(ASKED, &[][..]), ("hello", &[70, 71, 72, 73, 75][..])] {
            let mut body = body_of(Endpoint::ChatCompletions, MODEL, stream, text);
            body["return_token_ids"] = json!(true);
            let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
            let ids: Vec<Value> = values(&body, stream)
                .iter()
                .filter_map(|value| value["choices"][0]["token_ids"].as_array().cloned())
                .flatten()
                .collect();
            assert_eq!(
                ids,
                expected.iter().map(|id| json!(id)).collect::<Vec<_>>(),
                "{text} {stream}: {body}"
            );
            world.balance_when_idle().await;
            let record = world.last_trace();
            assert_eq!((record.usage.output, record.loss.get()), (5, 0), "{text} {stream}");
        }
    }
}

#[tokio::test]
async fn a_repeat_gets_the_same_bytes() {
    for stream in [false, true] {
        let world = World::new(Setup { rules: restore(), ..Setup::default() });
        world.script(Script::Say(SAID));
        let body = body_of(Endpoint::ChatCompletions, MODEL, stream, ASKED);
        let first = read(send(&world, "k", Endpoint::ChatCompletions, &body).await).await;
        world.balance_when_idle().await;
        let again = read(send(&world, "k", Endpoint::ChatCompletions, &body).await).await;
        assert_eq!(first, again);
        assert!(first.contains("example.com"));
        assert_eq!(world.engine.jobs.lock().unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_response_is_what_the_client_saw_and_goes_on_with_the_same_numbers() {
    let world = World::new(Setup { rules: restore(), ..Setup::default() });
    world.script(Script::Say(SAID));
    let mut body = body_of(Endpoint::Responses, MODEL, false, ASKED);
    body["store"] = json!(true);
    body["instructions"] = Value::Null;
    let sent: Value = serde_json::from_str(&read(world.call(Endpoint::Responses, body).await).await).unwrap();
    let id = sent["id"].as_str().unwrap().to_owned();
    let operation =
        ObjectOperation { method: ObjectMethod::Get, path: format!("responses/{id}"), query: Vec::new() };
    let kept = read(world.request(RequestTarget::Object(operation), "").await).await;
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap()["output"], sent["output"]);
    assert!(kept.contains(PUT_BACK), "{kept}");
    let more = json!({"model": MODEL, "previous_response_id": id, "store": false, "max_output_tokens": 90,
        "input": "Also eve@example.com and bob@example.com."});
    let further = read(world.call(Endpoint::Responses, more).await).await;
    assert!(further.contains(PUT_BACK), "{further}");
    let jobs = world.engine.jobs.lock().unwrap().clone();
    let texts: Vec<String> = jobs.iter().map(|job| world.tokenizer().decode(&job.prompt, false)).collect();
    let [first, second] = &texts[..] else { panic!("two prompts") };
    assert!(second.contains("Also <EMAIL_3> and <EMAIL_2>.") && second.contains(SAID), "{second}");
    let shared = first.len() - first.rfind(MODEL_SEES).unwrap();
    assert!(
        second.starts_with(&first[..first.len() - shared + MODEL_SEES.len()]),
        "a prefix stays: {second}"
    );
    world.balance_when_idle().await;
}

#[tokio::test]
async fn text_of_the_call_is_never_taken_for_a_placeholder() {
    let world = World::new(Setup { rules: restore(), ..Setup::default() });
    world.script(Script::Say("<EMAIL_1> <EMAIL_2>"));
    let text = "What is <EMAIL_1>? Ask ann@example.com.";
    let body = body_of(Endpoint::ChatCompletions, MODEL, true, text);
    let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
    assert_eq!(seen(Endpoint::ChatCompletions, true, &body).0, "<EMAIL_1> ann@example.com");
    world.balance_when_idle().await;
}

#[tokio::test]
async fn what_cannot_be_changed_is_refused() {
    let world = World::new(Setup { rules: restore(), ..Setup::default() });
    let ids = world.tokenizer().encode("Mail ann@example.com now", false).unwrap();
    let body = json!({"model": MODEL, "prompt": ids, "max_tokens": 4});
    let answer = world.call(Endpoint::Completions, body).await;
    assert_eq!(answer.status, 400);
    let body = read(answer).await;
    assert!(body.contains("token ids cannot be changed") && !body.contains("example.com"), "{body}");
    // The placeholders of a response that its server keeps are not known.
    let (world, model, server) =
        judged_world(Lane::Responses, (restore(), JudgesByName::new()), Vec::new(), SAID);
    let body =
        json!({"model": model, "input": "Mail ann@example.com.", "previous_response_id": "resp_theirs"});
    let answer = world.call(Endpoint::Responses, body).await;
    assert_eq!(answer.status, 400);
    assert!(server.asked.lock().unwrap().is_empty());
    world.balance_when_idle().await;
}

#[derive(Debug, Default)]
struct CuriousJudge(Mutex<Vec<String>>);

impl PassageJudge for CuriousJudge {
    fn ask(&self, text: String) -> JudgeFuture {
        self.0.lock().unwrap().push(text);
        Box::pin(std::future::ready(Ok(false.into())))
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn without_verdict(&self) -> WithoutVerdict {
        WithoutVerdict::Block
    }
}

#[tokio::test]
async fn judges_and_rules_on_answers_see_placeholders() {
    let judge = Arc::new(CuriousJudge::default());
    let judges = JudgesByName::from([("guard".to_owned(), Arc::clone(&judge) as Arc<dyn PassageJudge>)]);
    let mut list = restore();
    list.extend(rules(&json!([
        {"name": "guarded", "kind": "judge", "judge": "guard", "action": "block", "applies_to": ["input", "output"]},
        {"name": "out", "kind": "pii", "action": "redact", "applies_to": "output"}])));
    let world = World::new(Setup { rules: list, judges, ..Setup::default() });
    world.script(Script::Say("To <EMAIL_1>, not eve@example.com."));
    let body = body_of(Endpoint::ChatCompletions, MODEL, true, ASKED);
    let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
    assert_eq!(seen(Endpoint::ChatCompletions, true, &body).0, "To ann@example.com, not <EMAIL>.");
    let asked = judge.0.lock().unwrap().concat();
    assert!(asked.contains(MODEL_SEES) && asked.contains("To <EMAIL_1>"), "{asked}");
    assert!(!asked.contains("ann@") && !asked.contains("bob@"), "{asked}");
    world.balance_when_idle().await;
    // A rule that blocks sees the call as it was sent.
    let mut list = restore();
    list.extend(rules(
        &json!([{"name": "no", "kind": "words", "words": ["bob@example.com"], "action": "block"}]),
    ));
    let world = World::new(Setup { rules: list, ..Setup::default() });
    let answer =
        world.call(Endpoint::ChatCompletions, body_of(Endpoint::ChatCompletions, MODEL, false, ASKED)).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_at_a_server_sees_placeholders() {
    let server = server("claude", Dialect::Anthropic, vec![whole(&json!({"input_tokens": 7}))]);
    let world = judged_servers(&[Arc::clone(&server)], restore(), JudgesByName::new());
    let body = json!({"model": "far", "messages": [{"role": "user", "content": ASKED}]});
    assert_eq!(count(&world, &body).await.status, 200);
    let asked = server.asked.lock().unwrap();
    let body = String::from_utf8(asked[0].body.to_vec()).unwrap();
    assert!(body.contains(MODEL_SEES), "{body}");
}

#[tokio::test]
async fn texts_that_an_answer_repeats_are_the_clients_own() {
    let world = World::new(Setup { rules: restore(), ..Setup::default() });
    world.script(Script::Say("-"));
    for stream in [false, true] {
        let mut body = body_of(Endpoint::Completions, MODEL, stream, ASKED);
        body["echo"] = json!(true);
        let body = read(world.call(Endpoint::Completions, body).await).await;
        assert_eq!(seen(Endpoint::Completions, stream, &body).0, format!("{ASKED}-"), "{body}");
        world.balance_when_idle().await;
    }
    let world =
        World::new(Setup { rules: restore(), makes: Some(EncoderOutput::Scores), ..Setup::default() });
    world.script(Script::Encode(1));
    let body = json!({"model": MODEL, "query": "who is ann@example.com", "documents": ["bob@example.com", "ann@example.com"],
        "return_documents": true});
    let answer: Value = serde_json::from_str(&read(world.call(Endpoint::Rerank, body).await).await).unwrap();
    let documents: Vec<&Value> =
        answer["results"].as_array().unwrap().iter().map(|found| &found["document"]["text"]).collect();
    assert_eq!(documents, [&json!("bob@example.com"), &json!("ann@example.com")], "{answer}");
    world.balance_when_idle().await;
}

#[tokio::test]
async fn other_fields_of_a_relayed_call_have_no_value() {
    let script = script_of(Lane::OpenAi, Endpoint::ChatCompletions, false, &[SAID]);
    let (world, model, server) = judged_world(Lane::OpenAi, (restore(), JudgesByName::new()), script, SAID);
    let body = json!({"model": model, "user": "ann@example.com", "stop": ["bob@example.com"], "max_tokens": 9,
        "messages": [{"role": "user", "name": "a", "content": [{"type": "text", "text": "Mail ann@exam"},
            {"type": "text", "text": "ple.com now"}]}]});
    assert_eq!(world.call(Endpoint::ChatCompletions, body).await.status, 200);
    let sees = last_prompt(&world, Lane::OpenAi, &server);
    assert!(!sees.contains("exam") && !sees.contains("ple.com"), "{sees}");
    assert!(sees.contains("Mail <EMAIL_1>") && sees.contains(" now"), "{sees}");
    world.balance_when_idle().await;
}

#[tokio::test]
async fn an_answer_of_a_json_form_stays_json() {
    for stream in [true, false] {
        let pieces = ["{\"t\": \"<TICK", "ET_1>\", \"u\": \"\\u003c", "EMAIL_1>\"}"];
        let script = script_of(Lane::OpenAi, Endpoint::ChatCompletions, stream, &pieces);
        let (world, model, _) = judged_world(Lane::OpenAi, (restore(), JudgesByName::new()), script, SAID);
        let text = "Ticket T-1\"2 of ann@example.com";
        let mut body = body_of(Endpoint::ChatCompletions, model, stream, text);
        body["response_format"] = json!({"type": "json_object"});
        let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
        let said = seen(Endpoint::ChatCompletions, stream, &body).0;
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said, json!({"t": "T-1\"2", "u": "ann@example.com"}), "{body}");
        world.balance_when_idle().await;
    }
}
