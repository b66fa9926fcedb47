//! A gateway whose models are computed by engines of other Headrace servers. Its answers have the same bytes as a local
//! engine's, even if a worker is killed in the middle. A server that is no worker, or rejects the secret, is reported
//! at the start.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

#[path = "common/server.rs"]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, question, said};
use headrace_trace::TraceContext;
use rcgen::{CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

const KEY: &str = "sk-worker-test-0123456789abcdefghijkl";
const SECRET: &str = "0123456789abcdef-0123456789abcdef";

/// Starts a worker with a secret file.
fn worker(root: &Path, name: &str) -> Server {
    worker_with(root, name, &[])
}

/// The same with more variables.
fn worker_with(root: &Path, name: &str, variables: &[(&str, &str)]) -> Server {
    let secret = root.join("secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let dir = root.join(name);
    let mut command = program();
    command.arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY).envs(variables.iter().copied());
    let secret = secret.to_str().unwrap();
    let more = ["--worker-secret-file", secret, "--metrics-listen", "127.0.0.1:0"];
    Server::begin(command, &dir, &more, KEY)
}

/// Starts a gateway in front of these workers, with an engine of its own. The first worker answers for `one`, all of
/// them for `far`.
fn gateway(dir: PathBuf, workers: &[&Server]) -> Server {
    let mut command = program();
    command.arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY);
    let names: Vec<String> = (0..workers.len()).map(|at| format!("w{at}")).collect();
    let mut more = Vec::new();
    for (name, worker) in names.iter().zip(workers) {
        command.env(format!("HEADRACE_UPSTREAM_{}_SECRET", name.to_uppercase()), SECRET);
        more.extend(["--upstream".to_owned(), format!("{name}=headrace:{}", worker.url)]);
    }
    let targets: Vec<String> = names.iter().map(|name| format!("{name}/headrace-demo")).collect();
    more.extend(["--model".to_owned(), format!("far={}", targets.join(","))]);
    more.extend(["--model".to_owned(), "one=w0/headrace-demo".to_owned()]);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    Server::begin(command, &dir, &more, KEY)
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(PATIENCE * 3).build().unwrap()
}

/// A model's answer without the parts that are unique to the call, and its cost.
async fn answer(server: &Server, path: &str, model: &str, body: &Value) -> (String, Value) {
    let mut body = body.clone();
    body["model"] = model.into();
    let call =
        http().post(format!("{}{path}", server.url)).bearer_auth(KEY).json(&body).send().await.unwrap();
    let status = call.status();
    let id = call.headers()["x-request-id"].to_str().unwrap().to_owned();
    let text = call.text().await.unwrap();
    assert_eq!(status, 200, "{model}: {text}");
    let trace = trace(server, &id).await;
    let hex = id.trim_start_matches("req_");
    let mut out = text.replace(hex, "ID").replace(&format!("\"model\":\"{model}\""), "\"model\":\"M\"");
    // The creation time, in seconds.
    while let Some(at) = out.find("\"created\":1") {
        let end = at + out[at..].find([',', '}']).unwrap();
        out.replace_range(at..end, "\"created\":0");
    }
    (out, trace)
}

/// The trace of a call, which is written after its answer.
async fn trace(server: &Server, id: &str) -> Value {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let asked = http().get(format!("{}/v1/requests/{id}", server.url)).bearer_auth(KEY);
        let sent = asked.send().await.unwrap();
        if sent.status() == 200 {
            return sent.json().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is no trace of {id}");
}

fn chat(more: Value) -> Value {
    question(more)
}

#[tokio::test]
async fn answers_by_a_worker_are_those_of_an_engine_here_to_the_byte_and_to_the_cent() {
    let root = tempfile::tempdir().unwrap();
    let mut far = worker(root.path(), "far");
    let mut server = gateway(root.path().join("front"), &[&far]);
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}});
    let (chats, words, messages) = ("/v1/chat/completions", "/v1/completions", "/v1/messages");
    let asked = [
        (chats, chat(json!({"temperature": 0}))),
        (chats, chat(json!({"temperature": 0, "stream": true, "stream_options": {"include_usage": true}}))),
        (chats, chat(json!({"temperature": 1.2, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.5, "n": 3}))),
        (
            chats,
            chat(json!({"temperature": 0.8, "seed": 3, "logprobs": true, "top_logprobs": 4, "stream": true})),
        ),
        (chats, chat(json!({"temperature": 0, "stop": ["token", "e"], "logit_bias": {"40": -3}}))),
        (chats, chat(json!({"temperature": 0, "tools": [tool], "stream": true, "max_tokens": 40}))),
        (words, json!({"prompt": "What is a token?", "max_tokens": 0, "echo": true, "logprobs": 2})),
        (words, json!({"prompt": ["A token is", "The cache"], "max_tokens": 9, "seed": 1, "n": 2})),
        (
            messages,
            json!({"max_tokens": 16, "stream": true, "temperature": 0, "stop_sequences": ["the"],
            "messages": [{"role": "user", "content": "What is prefill?"}]}),
        ),
    ];
    for (path, body) in asked {
        let (here, here_trace) = answer(&server, path, "headrace-demo", &body).await;
        let (there, there_trace) = answer(&server, path, "one", &body).await;
        assert_eq!(there, here, "{body}");
        for part in [
            "/usage",
            "/cost",
            "/engine/cached_blocks",
            "/engine/prompt_blocks",
            "/outcome",
            "/model/numerics",
        ] {
            assert_eq!(
                there_trace.pointer(part),
                here_trace.pointer(part),
                "{part} of {body}: {there_trace}"
            );
        }
        assert_eq!(there_trace["attempts"][0]["worker"], "w0/headrace-demo", "{there_trace}");
    }
    // All models are also served under their listed names, and operators see how.
    let (listed, _) = answer(&server, chats, "w0/headrace-demo", &chat(json!({"temperature": 0}))).await;
    let (here, _) = answer(&server, chats, "headrace-demo", &chat(json!({"temperature": 0}))).await;
    assert_eq!(without_usage(&listed), without_usage(&here));
    let shown: Value = serde_json::from_str(&server.ok(&["upstreams", "--json"])).unwrap();
    let shown = &shown["value"][0];
    assert_eq!(
        (&shown["lane"], &shown["models"][0]["load"]["age_s"].is_u64()),
        (&json!("tokens"), &true),
        "{shown}"
    );
    let kept = std::fs::read_dir(server.dir.join("cache/words")).unwrap().count();
    assert_eq!(kept, 1, "its words are kept");
    server.stop();
    far.stop();
}

#[tokio::test]
async fn what_a_call_marks_is_kept_at_its_worker_and_billed_and_explained_as_here() {
    let root = tempfile::tempdir().unwrap();
    let mut far = worker(root.path(), "far");
    let mut server = gateway(root.path().join("front"), &[&far]);
    for (mark, field) in [
        (json!({"type": "ephemeral"}), "ephemeral_5m_input_tokens"),
        (json!({"type": "ephemeral", "ttl": "1h"}), "ephemeral_1h_input_tokens"),
    ] {
        let system = format!("{field}: {}", "You answer in one word. ".repeat(12));
        let body = json!({"max_tokens": 4, "temperature": 0,
            "system": [{"type": "text", "text": system, "cache_control": mark}],
            "messages": [{"role": "user", "content": "Why?"}]});
        let mut written = 0;
        for again in [false, true] {
            let (here, here_trace) = answer(&server, "/v1/messages", "headrace-demo", &body).await;
            let (there, trace) = answer(&server, "/v1/messages", "one", &body).await;
            assert_eq!(there, here, "{body}");
            for part in ["/usage", "/cost", "/engine/pinned_blocks", "/engine/unpinned_blocks"] {
                assert_eq!(trace.pointer(part), here_trace.pointer(part), "{part} of {body}: {trace}");
            }
            assert_eq!(trace["attempts"][0]["worker"], "w0/headrace-demo", "{trace}");
            let told: Value = serde_json::from_str(&there).unwrap();
            let tokens = |pointer: &str| told.pointer(pointer).and_then(Value::as_u64).unwrap();
            let (creation, read) =
                (tokens("/usage/cache_creation_input_tokens"), tokens("/usage/cache_read_input_tokens"));
            if again {
                assert!(creation == 0 && read >= written, "{told}");
            } else {
                written = tokens(&format!("/usage/cache_creation/{field}"));
                assert!(written > 0 && creation == written, "{told}");
                assert_eq!(trace["engine"]["pinned_blocks"], written / 16, "{trace}");
            }
            // Operators see what the call waited for.
            let id = trace["id"].as_str().unwrap();
            let shown: Value = serde_json::from_str(&server.ok(&["trace", id, "--json"])).unwrap();
            let engine = &shown["engine"];
            assert!(engine["ahead"]["running"].is_u64(), "{shown}");
            assert!(engine["beside"]["prefill_tokens"].is_u64(), "{shown}");
        }
    }
    server.stop();
    far.stop();
}

fn without_usage(answer: &str) -> Value {
    let mut answer: Value = serde_json::from_str(answer).unwrap();
    answer.as_object_mut().unwrap().remove("usage");
    answer
}

/// The content of a stream, without the parts that are unique to the call.
fn told(stream: &str) -> (String, String, Value, bool) {
    let (mut text, mut logprobs, mut end) = (String::new(), String::new(), Value::Null);
    for data in stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
    {
        let event: Value = serde_json::from_str(data).unwrap();
        let choice = &event["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        if !choice["logprobs"].is_null() {
            logprobs += &choice["logprobs"]["content"].to_string().replace("][", ",");
        }
        for part in [&choice["finish_reason"], &event["error"], &event["usage"]["completion_tokens"]] {
            if !part.is_null() {
                end = json!([end, part]);
            }
        }
    }
    (text, logprobs, end, stream.contains("data: [DONE]"))
}

/// Tokens of each answer whose worker is killed. Computing them takes much longer than finding out which worker does.
const KILLED_TOKENS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_whose_worker_is_killed_goes_on_at_another_with_the_very_bytes() {
    let root = tempfile::tempdir().unwrap();
    let mut workers = [worker(root.path(), "w0"), worker(root.path(), "w1")];
    let mut server = gateway(root.path().join("front"), &[&workers[0], &workers[1]]);
    let bodies: Vec<Value> = [
        json!({"temperature": 0}),
        json!({"temperature": 1.1, "seed": 5, "logprobs": true, "top_logprobs": 2}),
        json!({"temperature": 0.9, "seed": 6, "stop": ["never to be seen"], "repetition_penalty": 1.1}),
        json!({"temperature": 0, "logprobs": true}),
    ]
    .into_iter()
    .map(|mut body| {
        let more = json!({"stream": true, "max_tokens": KILLED_TOKENS, "ignore_eos": true,
            "stream_options": {"include_usage": true}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat(body)
    })
    .collect();
    let mut expected = Vec::new();
    for body in &bodies {
        expected.push(told(&answer(&server, "/v1/chat/completions", "headrace-demo", body).await.0));
    }
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let calls: Vec<_> = bodies
        .iter()
        .cycle()
        .take(4 * bodies.len())
        .map(|body| {
            let (mut body, begun) = (body.clone(), begun.clone());
            body["model"] = "far".into();
            let call =
                http().post(format!("{}/v1/chat/completions", server.url)).bearer_auth(KEY).json(&body);
            tokio::spawn(async move {
                let mut answer = call.send().await.unwrap();
                assert_eq!(answer.status(), 200);
                let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
                let mut bytes = Vec::new();
                while let Some(more) = answer.chunk().await.unwrap() {
                    if bytes.is_empty() {
                        begun.send(()).unwrap();
                    }
                    bytes.extend_from_slice(&more);
                }
                (id, bytes)
            })
        })
        .collect();
    for _ in 0..5 {
        begins.recv().await.unwrap();
    }
    // Kills the worker with most of the calls. Similar prompts may all have gone to the worker whose cache holds the
    // first one.
    let shown: Value = serde_json::from_str(&server.ok(&["upstreams", "--json"])).unwrap();
    let in_flight = |at: usize| shown["value"][at]["in_flight"].as_u64().unwrap();
    let doomed = usize::from(in_flight(1) > in_flight(0));
    workers[doomed].signal("KILL");
    workers[doomed].wait();
    let mut moved = 0;
    for (call, expected) in calls.into_iter().zip(expected.iter().cycle()) {
        let (id, bytes) = call.await.unwrap();
        let trace = trace(&server, &id).await;
        let (text, logprobs, end, done) = told(std::str::from_utf8(&bytes).unwrap());
        assert_eq!((&text, &end, done), (&expected.0, &expected.2, true), "{trace}");
        assert_eq!(logprobs.replace("][", ","), expected.1.replace("][", ","), "{trace}");
        let attempts = trace["attempts"].as_array().unwrap();
        moved += usize::from(attempts.len() > 1);
        let (usage, cost) = (&trace["usage"], &trace["cost"]);
        assert_eq!(usage["output_tokens"], KILLED_TOKENS, "{trace}");
        assert_eq!(cost["loss_nano_dollars"].as_u64().unwrap_or_default(), 0, "{trace}");
    }
    assert!(moved > 0, "none of them was at the worker that was killed");
    server.stop();
    workers[1 - doomed].stop();
}

/// A figure of a worker's metrics.
async fn figure(server: &Server, name: &str) -> f64 {
    let at =
        server.welcome.split_whitespace().find(|word| word.ends_with("/metrics")).expect("metrics are shown");
    let text = http().get(at).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_job_at_the_worker() {
    let root = tempfile::tempdir().unwrap();
    let mut far = worker(root.path(), "far");
    let mut server = gateway(root.path().join("front"), &[&far]);
    let (choices, tokens) = (8, 1_500);
    let body =
        chat(json!({"model": "one", "stream": true, "max_tokens": tokens, "n": choices, "ignore_eos": true}));
    let began = Instant::now();
    // Asks again if the job was over before the first look at it.
    let (mut answer, id) = loop {
        let call = http().post(format!("{}/v1/chat/completions", server.url)).bearer_auth(KEY).json(&body);
        let mut answer = call.send().await.unwrap();
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        answer.chunk().await.unwrap().unwrap();
        if figure(&far, "headrace_engine_running{").await > 0.0 {
            break (answer, id);
        }
        assert!(began.elapsed() < PATIENCE, "no job is seen at the worker");
    };
    for _ in 0..2 {
        answer.chunk().await.unwrap().unwrap();
    }
    drop(answer);
    let began = Instant::now();
    while figure(&far, "headrace_engine_running{").await > 0.0 {
        assert!(began.elapsed() < PATIENCE, "the job goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let trace = trace(&server, &id).await;
    let output = trace["usage"]["output_tokens"].as_u64().unwrap();
    assert!((3..choices * tokens).contains(&output), "{trace}");
    server.stop();
    far.stop();
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// What arrives at a receiver of OTLP, one body after the other, each as it is.
fn otlp_receiver() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let arrived = Arc::<Mutex<Vec<u8>>>::default();
    let kept = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap_or_default() > 2 {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            kept.lock().unwrap().extend_from_slice(&body);
            let answer = b"HTTP/1.1 200 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            reader.get_mut().write_all(answer).unwrap();
        }
    });
    (url, arrived)
}

/// How many spans of a trace, as OTLP writes them, have this parent: 16 bytes of trace, 8 of the span itself, 8 of its parent.
fn spans_below(bytes: &[u8], trace: u128, parent: u64) -> usize {
    let head = [&[0x0a, 16][..], &trace.to_be_bytes(), &[0x12, 8]].concat();
    let tail = [&[0x22, 8][..], &parent.to_be_bytes()].concat();
    let is_it = |span: &&[u8]| span.starts_with(&head) && span[head.len() + 8..].starts_with(&tail);
    bytes.windows(head.len() + 8 + tail.len()).filter(is_it).count()
}

/// The record that a server has under a name, once it is there.
fn record_at(server: &Server, name: &str) -> Value {
    let began = Instant::now();
    loop {
        let output = server.command(&["trace", name, "--json"]);
        if output.status.success() {
            return serde_json::from_slice(&output.stdout).unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{name}: {}", said(&output));
    }
}

#[tokio::test]
async fn a_worker_keeps_a_record_and_a_span_of_each_job_below_the_try_that_sent_it() {
    let root = tempfile::tempdir().unwrap();
    let (url, sent) = otlp_receiver();
    let mut far = worker_with(root.path(), "far", &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]);
    let mut server = gateway(root.path().join("front"), &[&far]);
    let ask = |body: Value, traceparent: Option<String>| {
        let call = http().post(format!("{}/v1/chat/completions", server.url)).bearer_auth(KEY);
        traceparent.into_iter().fold(call, |call, parent| call.header("traceparent", parent)).json(&body)
    };
    let theirs = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let mut parents = Vec::new();
    for traceparent in [Some(theirs.clone()), None] {
        let is_theirs = traceparent.is_some();
        let call = ask(chat(json!({"model": "one", "temperature": 0})), traceparent).send().await.unwrap();
        let id = call.headers()["x-request-id"].to_str().unwrap().to_owned();
        let answer: Value = call.json().await.unwrap();
        let at_gateway = trace(&server, &id).await;
        let context = TraceContext::of_request(id.parse().unwrap(), is_theirs.then_some(TRACE));
        let (trace, parent) = (format!("{:032x}", context.trace), context.attempt(0).span);
        parents.push((context.trace, parent));
        let mut names = vec![id.clone(), answer["id"].as_str().unwrap().to_owned(), trace.clone()];
        names.push(context.attempt(0).traceparent());
        names.extend(is_theirs.then(|| theirs.clone()));
        for name in names {
            let job = record_at(&far, &name);
            assert_eq!(job["worker_job"]["call"], json!(id), "{name}: {job}");
            assert_ne!(job["id"], json!(id), "{job}");
            assert_eq!(job["trace_id"], json!(trace), "{job}");
            assert_eq!(job["parent_span_id"], json!(format!("{parent:016x}")), "{job}");
            assert_eq!(job["outcome"]["kind"], "completed", "{job}");
            assert_eq!(job["outcome"]["finish_reasons"].as_array().map(Vec::len), Some(1), "{job}");
            assert_eq!(job["model"]["served"], "headrace-demo", "{job}");
            for part in ["/usage", "/engine/cached_blocks", "/engine/prompt_blocks", "/engine/steps"] {
                assert_eq!(job.pointer(part), at_gateway.pointer(part), "{part}: {job}");
            }
            let stages: Vec<&str> =
                job["stages"].as_array().unwrap().iter().filter_map(|span| span["stage"].as_str()).collect();
            assert!(
                ["receive", "queue", "prefill", "decode"].iter().all(|stage| stages.contains(stage)),
                "{job}"
            );
            assert_eq!(
                (&job["org"], &job["cost"]["charged_nano_dollars"]),
                (&Value::Null, &json!(0)),
                "{job}"
            );
        }
        let drawn = far.ok(&["trace", &id]);
        assert!(drawn.contains("worker job") && drawn.contains(&id), "{drawn}");
        // The call itself is the gateway's.
        assert!(record_at(&server, &id).get("worker_job").is_none());
    }
    // The gateway lets go of a job whose client goes away.
    let body = json!({"model": "one", "stream": true, "max_tokens": 1_500, "n": 8, "ignore_eos": true});
    let mut answer = ask(chat(body), None).send().await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    for _ in 0..3 {
        answer.chunk().await.unwrap().unwrap();
    }
    drop(answer);
    let job = record_at(&far, &id);
    let output = job["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(job["outcome"]["kind"], "cancelled", "{job}");
    assert!((1..8 * 1_500).contains(&output) && job["worker_job"]["call"] == json!(id), "{job}");
    let context = TraceContext::of_request(id.parse().unwrap(), None);
    parents.push((context.trace, context.attempt(0).span));
    // Calls of the worker's own callers are what they were: none.
    assert_eq!(far.ok(&["trace", "--last", "20", "--json"]), "");
    assert_eq!(far.ok(&["trace", "--slowest", "20", "--json"]), "");
    let listed = |more: &[&str]| -> usize {
        let page: Value = serde_json::from_str(&far.ok(&[&["requests", "--json"], more].concat())).unwrap();
        page["data"].as_array().unwrap().len()
    };
    assert_eq!((listed(&[]), listed(&["--key", "worker-job"])), (0, 3), "each job is recorded once");
    let asked = http().get(format!("{}/v1/requests/{id}", far.url)).bearer_auth(KEY).send().await.unwrap();
    assert_eq!(asked.status(), 404, "no caller of the worker sees it");
    server.stop();
    far.stop();
    let sent = sent.lock().unwrap();
    for (trace, parent) in parents {
        assert_eq!(spans_below(&sent, trace, parent), 1, "{trace:032x}");
    }
}

#[tokio::test]
async fn a_worker_behind_tls_is_asked_in_either_version_of_http() {
    let root = tempfile::tempdir().unwrap();
    let (cert, key, secret) =
        (root.path().join("cert.pem"), root.path().join("key.pem"), root.path().join("secret"));
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::ExplicitNoCa;
    let pair = KeyPair::generate().unwrap();
    std::fs::write(&cert, params.self_signed(&pair).unwrap().pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    std::fs::write(&secret, SECRET).unwrap();
    let mut command = program();
    command.arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_WORKER_SECRET", SECRET);
    let tls = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let mut far = Server::begin(command, &root.path().join("far"), &tls, KEY);
    let mut text = "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n[[prices]]\nmodel = \"headrace-demo\"\n\
                    input = \"1\"\noutput = \"1\"\n"
        .to_owned();
    for (name, http2) in [("two", "auto"), ("one", "off")] {
        text += &format!(
            "[[upstreams]]\nname = {name:?}\nkind = \"headrace\"\nurl = \"https://localhost:{port}\"\nserve = true\n\
             secret_file = {secret:?}\nca_file = {cert:?}\nhttp2 = {http2:?}\nprice = {{ input = \"1\", output = \"1\" }}\n",
            port = far.address().port(),
        );
    }
    let front = root.path().join("front");
    std::fs::create_dir(&front).unwrap();
    let mut server = Server::serve(&front, &text, Some(KEY));
    let body = chat(json!({"temperature": 1, "seed": 4, "stream": true}));
    let path = "/v1/chat/completions";
    let (here, _) = answer(&server, path, "headrace-demo", &body).await;
    for model in ["two/headrace-demo", "one/headrace-demo"] {
        let (there, trace) = answer(&server, path, model, &body).await;
        assert_eq!(there, here, "{trace}");
        assert_eq!(trace["attempts"][0]["worker"], model, "{trace}");
    }
    server.stop();
    far.stop();
}

#[test]
fn what_is_no_worker_of_ours_is_told_and_stops_nobody() {
    let root = tempfile::tempdir().unwrap();
    let mut far = worker(root.path(), "far");
    let mut plain = Server::up(&root.path().join("plain"), &[]);
    let upstreams = format!(
        "[[upstreams]]\nname = \"good\"\nkind = \"headrace\"\nurl = \"{url}\"\nsecret_file = {secret:?}\nserve = true\n\
         [[upstreams]]\nname = \"wrong\"\nkind = \"headrace\"\nurl = \"{url}\"\nsecret_file = {other:?}\nserve = true\n\
         [[upstreams]]\nname = \"none\"\nkind = \"headrace\"\nurl = \"{none}\"\nsecret_file = {secret:?}\nserve = true\n\
         [[models]]\nname = \"far\"\ntargets = [\"good/headrace-demo\", \"wrong/headrace-demo\"]\n\
         [[prices]]\nmodel = \"far\"\ninput = \"1\"\noutput = \"2\"\n",
        url = far.url,
        none = plain.url,
        secret = root.path().join("secret"),
        other = root.path().join("other"),
    );
    std::fs::write(root.path().join("other"), "fedcba9876543210-fedcba9876543210").unwrap();
    let file = root.path().join("check.toml");
    let prices = upstreams.replace("serve = true", "serve = true\nprice = { input = \"1\", output = \"1\" }");
    std::fs::write(&file, &prices).unwrap();
    let checked = program().args(["config", "check", "--config"]).arg(&file).output().unwrap();
    let checked = said(&checked);
    for words in [
        "it takes no ticket of ours: the secret there is another one",
        "it takes no jobs: it needs a `[worker]` secret of its own",
        "good/headrace-demo",
        "no faults",
    ] {
        assert!(checked.contains(words), "{words}:\n{checked}");
    }
    std::fs::create_dir(root.path().join("front")).unwrap();
    let mut server = Server::serve(&root.path().join("front"), &prices, Some(KEY));
    let table = server.ok(&["upstreams"]);
    assert!(table.contains("the secret there is another one") && table.contains("tokens"), "{table}");
    server.stop();
    for (text, words) in [
        ("secret_file = \"/nowhere\"\nkind = \"headrace\"", "/nowhere"),
        ("kind = \"vllm\"\nsecret_file = \"SECRET\"", "this is of kind `vllm`"),
    ] {
        let secret = root.path().join("secret");
        let text = text.replace("SECRET", secret.to_str().unwrap());
        std::fs::write(&file, format!("[[upstreams]]\nname = \"x\"\nurl = \"http://h\"\n{text}\n")).unwrap();
        let checked = program().args(["config", "check", "--config"]).arg(&file).output().unwrap();
        assert!(!checked.status.success() && said(&checked).contains(words), "{}", said(&checked));
    }
    std::fs::write(root.path().join("short"), "short").unwrap();
    std::fs::write(&file, format!("[worker]\nsecret_file = {:?}\n", root.path().join("short"))).unwrap();
    let checked = said(&program().args(["config", "check", "--config"]).arg(&file).output().unwrap());
    assert!(checked.contains("the secret has 5 characters; it needs 32 or more"), "{checked}");
    plain.stop();
    far.stop();
}
