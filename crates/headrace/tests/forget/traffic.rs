//! Calls with the name of a user in every place that the API has for it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    reason = "helpers of tests, not all of which each test file uses"
)]

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::{PATIENCE, Server, program, said};

/// The name of the user. It occurs nowhere else.
pub(crate) const USER: &str = "canary.7f41c2e9@users.example";
pub(crate) const KEY: &str = "sk-integration-test-0123456789abcdef";
/// Lines of the batch.
pub(crate) const BATCH_LINES: usize = 2;
/// Calls that leave a trace with the user's label.
pub(crate) const LABELLED: usize = 6;

pub(crate) struct CanaryTraffic {
    url: String,
    http: reqwest::Client,
}

impl CanaryTraffic {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), http: reqwest::Client::new() }
    }

    /// Posts a body. Returns the status and the answer.
    async fn post(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> (u16, String) {
        let mut call = self.http.post(format!("{}{path}", self.url)).bearer_auth(KEY).timeout(PATIENCE);
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        let answer =
            call.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn ok(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Value {
        let (status, text) = self.post(path, body, headers).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Asks the demo model with more fields.
    pub(crate) async fn chat(&self, more: Value) -> Value {
        self.ok("/v1/chat/completions", &chat(more), &[]).await
    }

    /// Makes all calls, and waits until their batch is completed.
    pub(crate) async fn run(&self, root: &Path) {
        self.chat(json!({ "user": USER })).await;
        self.chat(json!({ "safety_identifier": USER, "stream": true })).await;
        let text = format!("My address is {USER}. What is prefill?");
        self.chat(json!({
            "user": USER, "metadata": { "tag": USER, "customer": USER },
            "messages": [{ "role": "user", "content": text }],
        }))
        .await;
        let stored = [("idempotency-key", USER)];
        self.ok("/v1/chat/completions", &chat(json!({ "user": USER })), &stored).await;
        let claude = json!({ "model": "headrace-demo", "max_tokens": 4, "metadata": { "user_id": USER },
            "messages": [{ "role": "user", "content": text }] });
        self.ok("/v1/messages", &claude, &[("anthropic-version", "2023-06-01")]).await;

        // Stored objects: a conversation, and a response in it.
        let conversation =
            self.ok("/v1/conversations", &json!({ "metadata": { "customer": USER } }), &[]).await;
        let body = json!({ "model": "headrace-demo", "max_output_tokens": 4, "input": text, "user": USER,
            "metadata": { "customer": USER }, "conversation": conversation["id"] });
        // The answer, which repeats the metadata, is kept for repeated requests.
        self.ok("/v1/responses", &body, &[("idempotency-key", "order-1")]).await;

        // A refusal that repeats what the caller sent.
        let (status, _) = self.post("/v1/chat/completions", &chat(json!({ "model": USER })), &[]).await;
        assert!((400..500).contains(&status), "{status}");
        self.batch(root).await;
    }

    /// A file of requests and its batch, with the user in both.
    async fn batch(&self, root: &Path) {
        let line = |n: usize| {
            let body = chat(json!({ "user": USER }));
            json!({ "custom_id": format!("{USER}-{n}"), "method": "POST", "url": "/v1/chat/completions", "body": body })
                .to_string()
        };
        let file = root.join("requests.jsonl");
        std::fs::write(&file, (0..BATCH_LINES).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let mut submit = program();
        submit.env("HEADRACE_BASE_URL", &self.url).env("HEADRACE_API_KEY", KEY);
        let done = submit.args(["batches", "submit"]).arg(&file).output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
        let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        let began = Instant::now();
        loop {
            let get = self.http.get(format!("{}/v1/batches/{id}", self.url)).bearer_auth(KEY);
            let batch: Value = get.timeout(PATIENCE).send().await.unwrap().json().await.unwrap();
            if batch["status"] == "completed" {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{batch}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Waits until a server has stored the traces of all calls: they are written a moment after their answers.
    pub(crate) fn until_traced(&self, server: &Server) {
        self.until_found(server, LABELLED + BATCH_LINES);
    }

    /// Waits until exactly `count` calls of the user are found.
    pub(crate) fn until_found(&self, server: &Server, count: usize) {
        let began = Instant::now();
        loop {
            let found: Value =
                serde_json::from_str(&server.ok(&["requests", "--user", USER, "--json"])).unwrap();
            if found["data"].as_array().unwrap().len() == count {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{found:#}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn chat(more: Value) -> Value {
    let mut body = json!({ "model": "headrace-demo", "max_tokens": 4,
        "messages": [{ "role": "user", "content": "What is prefill?" }] });
    let Value::Object(more) = more else { panic!("more fields are an object") };
    body.as_object_mut().unwrap().extend(more);
    body
}
