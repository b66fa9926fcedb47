//! Operators search the calls of all live gateways at any one of them: two gateways on one PostgreSQL database, one of
//! which is stopped. Runs on the last version of PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of
//! the test command does.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, question};
use postgres::{PostgresServer, versions};
use serde_json::{Value, json};

const KEY: &str = "sk-integration-test-0123456789abcdef";

/// A gateway with an admin listener, and an operator's key.
struct Gateway {
    server: Server,
    admin: String,
    operator: String,
}

impl Gateway {
    fn start(root: &Path, name: &str, database: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = format!("127.0.0.1:{port}");
        let admin = format!("http://{at}");
        let mut command = program();
        command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database);
        command.env("HEADRACE_GATEWAY__NAME", name).env("HEADRACE_GATEWAY__ADVERTISE", &admin);
        command.arg("up");
        let server = Server::begin(command, &root.join(name), &["--admin-listen", &at], KEY);
        let made = server.ok(&["operators", "create", "--name", name, "--role", "viewer", "--json"]);
        let made: Value = serde_json::from_str(&made).unwrap();
        let operator = made["value"]["key"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        Self { server, admin, operator }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let http = reqwest::Client::new();
        let url = format!("{}/admin/v1{path}", self.admin);
        let answer = http.get(url).bearer_auth(&self.operator).timeout(PATIENCE).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn calls(&self, query: &str) -> Value {
        let (status, page) = self.get(&format!("/requests?{query}")).await;
        assert_eq!(status, 200, "{page}");
        page
    }

    /// Makes a call, and returns its id.
    async fn call(&self) -> String {
        let http = reqwest::Client::new();
        let call = http.post(format!("{}/v1/chat/completions", self.server.url)).bearer_auth(KEY);
        let call = call.json(&question(json!({ "max_tokens": 2 }))).timeout(PATIENCE);
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        answer.headers()["x-request-id"].to_str().unwrap().to_owned()
    }
}

fn ids(page: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    page["data"].as_array().unwrap().iter().map(|row| (text(row, "id"), text(row, "gateway"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_one_gateway_is_found_at_another_and_a_silent_gateway_is_named() {
    let Some(bin) = versions().pop() else { return };
    let database = PostgresServer::start(&bin);
    let root = tempfile::tempdir().unwrap();
    let url = database.url();
    let (a, b) = (Gateway::start(root.path(), "a", &url), Gateway::start(root.path(), "b", &url));
    let (since, mut made) = (Instant::now(), Vec::new());
    for gateway in [&a, &b, &a, &b, &a] {
        let name = if std::ptr::eq(gateway, &a) { "a" } else { "b" };
        made.push((gateway.call().await, name.to_owned()));
    }
    made.reverse();

    // A registered address, and stored traces, take a moment.
    let until = Instant::now() + PATIENCE;
    loop {
        let page = b.calls("").await;
        if ids(&page) == made && page["missing_gateways"] == json!([]) {
            break;
        }
        assert!(Instant::now() < until, "{made:?}: {page}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ids(&a.calls("").await), made);
    assert_eq!(ids(&a.calls("outcome=failed").await), []);

    // Pages of two, begun at one gateway and continued at the other.
    let (mut read, mut cursor) = (Vec::new(), String::new());
    for at in [&a, &b, &a, &b] {
        let page = at.calls(&format!("limit=2{cursor}")).await;
        read.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(read, made);

    // By its id, in every view, with the name of its gateway.
    let (of_a, of_b) = (&made[0].0, &made[1].0);
    for view in ["", "/explain", "/cost", "/beside"] {
        for (at, id, name) in [(&b, of_a, "a"), (&a, of_a, "a"), (&a, of_b, "b")] {
            let (status, found) = at.get(&format!("/requests/{id}{view}")).await;
            assert_eq!((status, found["gateway"].as_str()), (200, Some(name)), "{view}: {found}");
        }
    }
    // Two calls of different gateways are compared at either of them.
    for at in [&a, &b] {
        let (status, compared) = at.get(&format!("/requests/compare?a={of_a}&b={of_b}")).await;
        assert_eq!((status, &compared["gateways"]), (200, &json!({"a": "a", "b": "b"})), "{compared}");
        assert!(compared["sentence"].is_string(), "{compared}");
    }
    // Each gateway has answered its part of the calls. The last minute ends a second ago.
    let until = since + Duration::from_secs(50);
    loop {
        let (status, listed) = a.get("/gateways").await;
        assert_eq!(status, 200, "{listed}");
        let rows = listed["data"].as_array().unwrap();
        let names: Vec<_> = rows.iter().map(|row| (row["name"].as_str(), row["is_this"].as_bool())).collect();
        assert_eq!(names, [(Some("a"), Some(true)), (Some("b"), Some(false))], "{listed}");
        assert!(rows.iter().all(|row| row["state"] == "live" && row["in_flight"] == 0), "{listed}");
        let loads = rows.iter().map(|row| (row["calls_per_minute"].as_u64(), row["share"].as_f64()));
        if loads.collect::<Vec<_>>() == [(Some(3), Some(0.6)), (Some(2), Some(0.4))] {
            break;
        }
        assert!(Instant::now() < until, "{listed}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let unknown = "req_00000000000000000000000000";
    assert_eq!(a.get(&format!("/requests/{unknown}")).await.0, 404);

    // The command finds it from the directory of the other gateway.
    let shown = a.server.ok(&["trace", of_b, "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["request_id"].as_str().or(shown["id"].as_str()), Some(of_b.as_str()), "{shown}");
    let explained = a.server.command(&["trace", of_b, "--explain"]);
    let text = common::said(&explained);
    assert!(explained.status.success() && text.contains("this call ran on gateway b"), "{text}");

    // The command searches the calls of all gateways, page by page, also from a directory that answered none of them.
    let (mut listed, mut after) = (Vec::new(), None::<String>);
    loop {
        let more: Vec<&str> = after.as_deref().into_iter().flat_map(|after| ["--after", after]).collect();
        let page = b.server.ok(&[&["requests", "--limit", "2", "--json"][..], &more].concat());
        let page: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(page["missing_gateways"], json!([]), "{page}");
        listed.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        after = Some(next.to_owned());
    }
    assert_eq!(listed, made);
    let text = common::said(&b.server.command(&["requests"]));
    assert!(text.contains("3 of these calls ran on gateway a"), "{text}");
    let none = b.server.ok(&["requests", "--outcome", "failed", "--since", "1h", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&none).unwrap()["data"], json!([]), "{none}");

    // No one else may ask for calls, and an operator's key is no gateway's credential.
    for path in ["search", "call"] {
        let http = reqwest::Client::new();
        let asked =
            http.post(format!("{}/gateway/v1/{path}", a.admin)).bearer_auth(&a.operator).json(&json!({}));
        assert_eq!(asked.header("x-headrace-gateway", "1.00").send().await.unwrap().status().as_u16(), 401);
    }

    // The other gateway is stopped. This one answers within the deadline, and names it.
    b.server.signal("STOP");
    let begun = Instant::now();
    let page = a.calls("").await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    let own: Vec<_> = made.iter().filter(|(_, name)| name == "a").cloned().collect();
    assert_eq!(ids(&page), own);
    let missing = page["missing_gateways"].as_array().unwrap();
    assert_eq!((missing.len(), missing[0]["gateway"].as_str()), (1, Some("b")), "{page}");
    assert!(missing[0]["why"].as_str().unwrap().contains("no answer within 2 s"), "{page}");
    let text = common::said(&a.server.command(&["requests"]));
    assert!(text.contains("gateway b did not answer: no answer within 2 s"), "{text}");
    let (status, found) = a.get(&format!("/requests/{of_b}")).await;
    let message = found["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 404 && message.contains("b: no answer within 2 s"), "{found}");
    assert_eq!(a.get(&format!("/requests/{of_a}")).await.0, 200);
    let (status, listed) = a.get("/gateways").await;
    let [own, silent] = listed["data"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((status, &own["silent"], &silent["share"]), (200, &Value::Null, &Value::Null), "{listed}");
    assert!(silent["silent"].as_str().unwrap().contains("no answer within 2 s"), "{listed}");
    b.server.signal("CONT");
}
