//! What clients store, over two gateways and one PostgreSQL database: a response, a file and a batch of one gateway are
//! found through the other one, which ends the batches of a gateway that was killed. `HEADRACE_POSTGRES_BIN` names the
//! database's programs, as the step `postgres` of the test command does. The first version is enough here.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, said};
use postgres::{PostgresServer, versions};
use serde_json::{Value, json};

const KEY: &str = "sk-integration-test-0123456789abcdef";
const LINES: usize = 64;

fn gateway(root: &Path, name: &str, database: &str) -> Server {
    let mut command = program();
    command.arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database);
    Server::begin(command, &root.join(name), &["--admin-listen", "off"], KEY)
}

/// Calls a gateway with a body, or with none. Returns the status, whether there is a `retry-after`, and the body.
async fn call(gateway: &Server, method: &str, path: &str, body: Option<Value>) -> (u16, bool, String) {
    let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
    let call = reqwest::Client::new().request(method, format!("{}{path}", gateway.url)).bearer_auth(KEY);
    let call = match body {
        Some(body) => call.header("content-type", "application/json").body(body.to_string()),
        None => call,
    };
    let answer = call.timeout(PATIENCE).send().await.unwrap();
    let (status, waits) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    (status, waits, answer.text().await.unwrap())
}

async fn ok(gateway: &Server, method: &str, path: &str, body: Option<Value>) -> Value {
    let (status, _, body) = call(gateway, method, path, body).await;
    assert_eq!(status, 200, "{method} {path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Sends a file with requests that have `tokens` tokens each, and returns the id of its batch.
fn submitted(gateway: &Server, root: &Path, tokens: u64) -> String {
    let line = |n: usize| {
        let body = json!({"model": "headrace-demo", "max_tokens": tokens, "min_tokens": tokens,
            "messages": [{"role": "user", "content": format!("What is prefill? {n}")}]});
        json!({"custom_id": format!("line-{n}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
            .to_string()
    };
    let file = root.join("requests.jsonl");
    std::fs::write(&file, (0..LINES).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let mut submit = program();
    submit.env("HEADRACE_BASE_URL", &gateway.url).env("HEADRACE_API_KEY", KEY);
    let done = submit.args(["batches", "submit"]).arg(&file).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Waits until a batch is as wanted, and returns it.
async fn until(gateway: &Server, id: &str, limit: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + limit;
    loop {
        let batch = ok(gateway, "GET", &format!("/v1/batches/{id}"), None).await;
        if wanted(&batch) {
            return batch;
        }
        assert!(Instant::now() < until, "{batch}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn completed(batch: &Value) -> u64 {
    batch["request_counts"]["completed"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_gateway_stores_is_found_through_another_one_which_ends_its_batches() {
    let Some(bin) = versions().into_iter().next() else { return };
    let mut database = PostgresServer::start(&bin);
    let root = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| gateway(root.path(), name, &database.url()));

    // A response, and one that continues it through the other gateway.
    let ask = |previous: Value| {
        json!({"model": "headrace-demo", "input": "What is prefill?", "max_output_tokens": 4,
            "previous_response_id": previous})
    };
    let response = ok(&first, "POST", "/v1/responses", Some(ask(Value::Null))).await;
    let id = response["id"].as_str().unwrap();
    let next = ok(&second, "POST", "/v1/responses", Some(ask(json!(id)))).await;
    assert_eq!(next["previous_response_id"], id);
    let items = ok(&second, "GET", &format!("/v1/responses/{id}/input_items"), None).await;
    assert_eq!(items["data"][0]["content"][0]["text"], "What is prefill?");
    ok(&second, "DELETE", &format!("/v1/responses/{id}"), None).await;
    assert_eq!(call(&first, "GET", &format!("/v1/responses/{id}"), None).await.0, 404);
    let conversation = ok(&first, "POST", "/v1/conversations", Some(json!({"metadata": {"a": "b"}}))).await;
    let path = format!("/v1/conversations/{}", conversation["id"].as_str().unwrap());
    assert_eq!(ok(&second, "GET", &path, None).await, conversation);

    // A batch is cancelled through the gateway that does not run it.
    let cancelled = submitted(&first, root.path(), 4_000);
    until(&second, &cancelled, PATIENCE, |batch| batch["status"] == "in_progress").await;
    ok(&second, "POST", &format!("/v1/batches/{cancelled}/cancel"), None).await;
    let batch = until(&second, &cancelled, PATIENCE, |batch| batch["status"] == "cancelled").await;
    let calls_before = 2 + completed(&batch);
    assert!(completed(&batch) < LINES as u64, "{batch}");

    // A batch of a gateway that is killed ends through the other one, each request charged once.
    let id = submitted(&first, root.path(), 100);
    let path = format!("/v1/batches/{id}");
    let batch = until(&second, &id, PATIENCE, |batch| completed(batch) >= 2).await;
    let input = format!("/v1/files/{}/content", batch["input_file_id"].as_str().unwrap());
    let sent = std::fs::read_to_string(root.path().join("requests.jsonl")).unwrap();
    assert_eq!(call(&second, "GET", &input, None).await.2, sent);
    let begun = completed(&ok(&second, "GET", &path, None).await);
    first.signal("KILL");
    drop(first);
    assert!(begun < LINES as u64, "the batch ended before its gateway");
    let batch = until(&second, &id, PATIENCE, |batch| batch["status"] == "completed").await;
    assert_eq!(batch["request_counts"], json!({"total": LINES, "completed": LINES, "failed": 0}));
    let output = format!("/v1/files/{}/content", batch["output_file_id"].as_str().unwrap());
    let (_, _, answers) = call(&second, "GET", &output, None).await;
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: BTreeSet<&str> = answers.iter().map(|answer| answer["custom_id"].as_str().unwrap()).collect();
    assert_eq!((answers.len(), ids.len()), (LINES, LINES));
    assert!(answers.iter().all(|answer| answer["response"]["status_code"] == 200));
    let verified: Value = serde_json::from_str(&second.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!((&verified["finding_count"], &verified["totals"]["open_holds"]), (&json!(0), &json!(0)));
    assert_eq!(verified["totals"]["settled"], json!(calls_before + LINES as u64), "{verified}");

    // While the database is away, the refusal comes at once and says when to try again.
    database.crash();
    for (method, path, body) in [
        ("GET", "/v1/files", None),
        ("GET", path.as_str(), None),
        ("POST", "/v1/conversations", Some(json!({}))),
    ] {
        let began = Instant::now();
        let (status, waits, body) = call(&second, method, path, body).await;
        assert!((status, waits) == (503, true), "{method} {path}: {status} {body}");
        assert!(began.elapsed() < Duration::from_secs(2), "{method} {path}: {:?}", began.elapsed());
    }
    database.resume();
    let back = Instant::now();
    while call(&second, "GET", "/v1/files", None).await.0 != 200 {
        assert!(back.elapsed() < Duration::from_secs(5), "the files are still away");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
