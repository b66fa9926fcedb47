//! A model with local tokenizer assets whose weights are at a vLLM server. This gateway renders, counts, and handles
//! stop strings and tool calls. Its answers equal those of a local engine for the same tokens.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::{PATIENCE, Server, question, run, said};
use headrace_checkpoint::Wording;
use headrace_fault_server::{FaultServer, Request, event_stream};
use headrace_tokenizer::Tokenizer;
use serde_json::{Value, json};

/// The generated token ids for each prompt.
type Continuations = Arc<Mutex<HashMap<Vec<u32>, Vec<u32>>>>;

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

fn whole(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn ids_of(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// A vLLM server that answers known prompts in the events of vLLM 0.32, and all others with `else_ids`.
async fn vllm(known: &Continuations, else_ids: Vec<u32>) -> FaultServer {
    let known = Arc::clone(known);
    let answer = move |request: &Request| {
        if request.method == "GET" {
            let card = json!({"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 700});
            return Some(whole(&json!({"object": "list", "data": [card]})));
        }
        if request.path != "/v1/completions" {
            let body = r#"{"detail":"Not Found"}"#;
            let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length:";
            return Some(format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes());
        }
        let body = request.json();
        let (prompt, most) = (ids_of(&body["prompt"]), body["max_tokens"].as_u64().unwrap() as usize);
        let mut ids = known.lock().unwrap().get(&prompt).unwrap_or(&else_ids).clone();
        let length = ids.len() > most;
        ids.truncate(most);
        let last = ids.len() - 1;
        let event = |(at, id): (usize, &u32)| {
            let finish = (at == last).then_some(if length { "length" } else { "stop" });
            json!({"id": "cmpl-1", "object": "text_completion", "model": "m", "usage": null,
                "choices": [{"index": 0, "text": "?", "token_ids": [id], "finish_reason": finish}]})
        };
        let mut events: Vec<String> = ids.iter().enumerate().map(|id| event(id).to_string()).collect();
        let usage = json!({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}});
        events.extend([json!({"choices": [], "usage": usage}).to_string(), "[DONE]".to_owned()]);
        Some(event_stream(events.iter().map(String::as_str)))
    };
    FaultServer::start_with(answer).await.unwrap()
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint")
}

/// Copies the files of the demo model without its weights.
fn words(root: &Path) -> String {
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(demo().join(name), root.join(name)).unwrap();
    }
    root.to_str().unwrap().to_owned()
}

fn encode(text: &str) -> Vec<u32> {
    let wording = Wording::open(&demo()).unwrap();
    Tokenizer::new(wording.tokenizer_json(), wording.tokenizer_config())
        .unwrap()
        .encode_plain(text, false)
        .unwrap()
}

async fn post(server: &Server, path: &str, body: &Value) -> String {
    let call = reqwest::Client::new().post(format!("{}{path}", server.url)).bearer_auth(&server.key);
    let call = call.header("content-type", "application/json").header("anthropic-version", "2023-06-01");
    call.timeout(PATIENCE).body(body.to_string()).send().await.unwrap().text().await.unwrap()
}

/// An answer without the parts that differ from call to call.
fn bare(text: &str) -> Vec<String> {
    let events =
        text.lines().filter_map(|line| line.strip_prefix("data: ").or(line.starts_with('{').then_some(line)));
    let bare = events.map(|event| {
        let Ok(mut event) = serde_json::from_str::<Value>(event) else { return event.to_owned() };
        let objects = [&["message"][..], &[]];
        for path in objects {
            let at = path.iter().try_fold(&mut event, |at, key| at.get_mut(*key));
            let Some(Value::Object(fields)) = at else { continue };
            for name in ["id", "created", "model", "system_fingerprint"] {
                fields.remove(name);
            }
            if let Some(Value::Object(usage)) = fields.get_mut("usage") {
                // Cached tokens differ between engines.
                usage.retain(|name, _| {
                    ["prompt_tokens", "completion_tokens", "output_tokens"].contains(&name.as_str())
                });
            }
        }
        event.to_string()
    });
    bare.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_ids_are_those_of_an_engine_here() {
    let root = tempfile::tempdir().unwrap();
    let words = words(root.path());
    let known = Continuations::default();
    let far = vllm(&known, encode(CALL)).await;
    let upstream = format!("far=vllm:{}", far.url());
    let model = format!("far-demo=far/m@{words}");
    let flags = ["--upstream", &upstream, "--model", &model, "--set", "engine.max_positions=700"];
    let server = Server::up(&root.path().join("data"), &flags);

    let long = question(json!({"max_tokens": 60, "temperature": 0, "return_token_ids": true}));
    let (status, answer) = server.chat(&server.key, long.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let ids = ids_of(&answer["choices"][0]["token_ids"]);
    known.lock().unwrap().insert(ids_of(&answer["prompt_token_ids"]), ids.clone());
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    // A part of the answer, from the middle of a word to the middle of the next.
    let stop: String = text.chars().skip(20).take(8).collect();

    for more in [
        json!({"max_tokens": 60}),
        json!({"max_tokens": 7}),
        json!({"max_tokens": 60, "stop": ["no such words", stop]}),
        json!({"max_tokens": 60, "stop": [stop], "min_tokens": 3, "stream": true, "stream_options": {"include_usage": true}}),
        json!({"max_tokens": 33, "stream": true, "return_token_ids": true}),
    ] {
        let mut body = question(json!({"temperature": 0}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let here = post(&server, "/v1/chat/completions", &body).await;
        body["model"] = "far-demo".into();
        let there = post(&server, "/v1/chat/completions", &body).await;
        let (here, there) = (bare(&here), bare(&there));
        let joined = |events: &[String]| events.concat().len();
        assert!(joined(&here) > 50, "{here:?}");
        match body.get("stream") {
            // Several steps of an engine may arrive in one event.
            Some(_) => assert_eq!(text_of(&here), text_of(&there), "{more}"),
            None => assert_eq!(here, there, "{more}"),
        }
    }
    let body = json!({"model": "headrace-demo", "max_tokens": 20, "temperature": 0,
        "messages": [{"role": "user", "content": "What happens when I call an LLM API?"}]});
    let here = post(&server, "/v1/messages", &body).await;
    let mut asked = body.clone();
    asked["model"] = "far-demo".into();
    assert_eq!(bare(&post(&server, "/v1/messages", &asked).await), bare(&here));

    let seen = far.seen().requests;
    let asked: Vec<&Request> = seen.iter().filter(|request| request.method == "POST").collect();
    let paths: Vec<&str> = asked.iter().map(|request| request.path.as_str()).collect();
    let by_ids = |path: &&&str| ["/inference/v1/generate", "/v1/completions"].contains(*path);
    assert_eq!(paths.iter().filter(by_ids).count(), paths.len(), "nothing went in messages: {paths:?}");
    assert_eq!(
        paths.len(),
        7,
        "one for each question, and one for the place that it does not have: {paths:?}"
    );
}

/// Text, ids, finish reasons and usage of a stream.
fn text_of(events: &[String]) -> (String, Vec<Value>, Vec<Value>) {
    let (mut text, mut ids, mut rest) = (String::new(), Vec::new(), Vec::new());
    for event in events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok()) {
        let choice = &event["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        rest.extend(
            [&choice["finish_reason"], &event["usage"]].into_iter().filter(|v| !v.is_null()).cloned(),
        );
    }
    (text, ids, rest)
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_are_read_here_and_what_cannot_fit_is_refused_here() {
    let root = tempfile::tempdir().unwrap();
    let far = vllm(&Continuations::default(), encode(CALL)).await;
    let (upstream, model) = (format!("far=vllm:{}", far.url()), "tools=far/m@builtin:demo");
    let server = Server::up(&root.path().join("data"), &["--upstream", &upstream, "--model", model]);
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
    let ask = json!({"model": "tools", "tools": tools, "max_tokens": 100});
    let (status, answer) = server.chat(&server.key, question(ask)).await;
    assert_eq!(status, 200, "{answer}");
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "weather", "{answer}");
    assert_eq!(
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(),
        json!({"city": "Rome"})
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(answer["usage"]["completion_tokens"], encode(CALL).len());

    // The server allows 700 tokens, and the demo model's files allow more.
    let long = json!({"model": "tools", "messages": [{"role": "user", "content": "word ".repeat(900)}]});
    let (status, refusal) = server.chat(&server.key, question(long)).await;
    assert_eq!(status, 400, "{refusal}");
    assert!(refusal["error"]["message"].as_str().unwrap().contains("700"), "{refusal}");
}

#[test]
fn a_target_that_takes_no_ids_is_refused_by_name() {
    for (kind, path, told) in [
        ("openai", "builtin:demo", "upstream `far` is of kind `openai`, which is not asked by token ids"),
        ("anthropic", "builtin:demo", "upstream `far` is of kind `anthropic`"),
        ("sglang", "builtin:demo", "no faults"),
        ("llamacpp", "builtin:demo", "no faults"),
        ("vllm", "/no/such/place", "models[0].path: /no/such/place: there is no such file or directory"),
        ("vllm", "builtin:demo", "no faults"),
    ] {
        let (upstream, model) = (format!("far={kind}:http://127.0.0.1:9/v1"), format!("m=far/x@{path}"));
        let output = run(&["config", "check", "--upstream", &upstream, "--model", &model]);
        let said = said(&output);
        assert!(said.contains(told), "{kind}: {said}");
        assert_eq!(output.status.success(), told == "no faults", "{said}");
    }
}
