//! Moving keys, ledger and what clients stored between SQLite and PostgreSQL, and backups of a shared ledger under load. One suite for each
//! version of PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;
#[path = "common/token_issuer.rs"]
mod token_issuer;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};

use common::{PATIENCE, Server, program, question, said};
use postgres::{PostgresServer, versions};
use serde_json::{Value, json};
use token_issuer::TokenIssuer;

const KEY: &str = "sk-integration-test-0123456789abcdef";

/// A directory with projects, money, a rotated key, a revoked key, an operator and calls. The server has stopped.
async fn filled(dir: &Path) -> KnownSecrets {
    filled_with(up(), dir).await
}

async fn filled_with(mut up: std::process::Command, dir: &Path) -> KnownSecrets {
    up.env("HEADRACE_BOOTSTRAP_KEY", KEY);
    let mut server = Server::begin(up, dir, &["--admin-listen", "off"], KEY);
    server.ok(&["orgs", "create", "acme", "--requests-per-minute", "50"]);
    server.ok(&["projects", "create", "red", "--org", "acme"]);
    server.ok(&["credit", "grant", "75", "--org", "acme", "--reference", "invoice-1"]);
    server.ok(&["budget", "set", "20", "--project", "red", "--per", "month"]);
    let made = |name: &str| -> (String, String) {
        let made = server.ok(&["keys", "create", "--name", name, "--project", "red", "--json"]);
        let made: Value = serde_json::from_str(&made).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&made["value"]["key"]["id"]), text(&made["value"]["secret"]))
    };
    let (turning, former) = made("turning");
    let rotated: Value = serde_json::from_str(&server.ok(&["keys", "rotate", &turning, "--json"])).unwrap();
    let newer = rotated["value"]["secret"].as_str().unwrap().to_owned();
    let (revoked_id, revoked) = made("revoked");
    server.ok(&["keys", "revoke", &revoked_id]);
    for secret in [KEY, &former, &newer] {
        let (status, body) = server.chat(secret, question(json!({ "max_tokens": 4 }))).await;
        assert_eq!(status, 200, "{body}");
    }
    let stored = stored(&server).await;
    let (replayed, answer) = once(&server).await;
    assert!(!replayed, "the first request runs");
    server.stop();
    KnownSecrets { good: vec![KEY.to_owned(), former, newer], revoked, stored, answer }
}

/// Sends a request with an idempotency key. Returns whether its stored answer came back, and the answer.
async fn once(server: &Server) -> (bool, String) {
    let call = reqwest::Client::new().post(format!("{}/v1/chat/completions", server.url)).bearer_auth(KEY);
    let call = call.header("content-type", "application/json").header("idempotency-key", "moved");
    let call = call.body(question(json!({ "max_tokens": 4 })).to_string()).timeout(common::PATIENCE);
    let answer = call.send().await.unwrap();
    let (status, replayed) = (answer.status(), answer.headers().contains_key("idempotent-replayed"));
    let body = answer.text().await.unwrap();
    assert_eq!(status, 200, "{body}");
    (replayed, body)
}

async fn posted(server: &Server, path: &str, kind: &str, body: String) -> String {
    let call = reqwest::Client::new().post(format!("{}{path}", server.url)).bearer_auth(KEY);
    let answer = call.header("content-type", kind).body(body).timeout(common::PATIENCE).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{path}: {text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    answer["id"].as_str().unwrap().to_owned()
}

/// Stores one object of each kind. Returns the paths at which clients read them, and what they read.
async fn stored(server: &Server) -> Vec<(String, String)> {
    let json = "application/json";
    let ask = json!({"model": "headrace-demo", "input": "What is prefill?", "max_output_tokens": 4});
    let response = posted(server, "/v1/responses", json, ask.to_string()).await;
    let item = json!({"type": "message", "role": "user", "content": "What is decode?"});
    let items = json!({"metadata": {"a": "b"}, "items": [item.clone(), item]});
    let conversation = posted(server, "/v1/conversations", json, items.to_string()).await;
    let line = json!({"custom_id": "a\u{1f980}", "method": "POST", "url": "/v1/chat/completions",
        "body": question(json!({ "max_tokens": 4 }))});
    let part = |name: &str, value: &str| {
        format!("--B\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n")
    };
    // Longer than a row of the database.
    let content = format!("{line}\n{}", "\n".repeat(600_000));
    let form = part("\"purpose\"", "batch") + &part("\"file\"; filename=\"a\"", &content) + "--B--\r\n";
    let file = posted(server, "/v1/files", "multipart/form-data; boundary=B", form).await;
    let batch =
        json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let batch = format!("/v1/batches/{}", posted(server, "/v1/batches", json, batch.to_string()).await);
    let output = loop {
        let shown: Value = serde_json::from_str(&server.get(&batch).await.1).unwrap();
        if shown["status"] == "completed" {
            break shown["output_file_id"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let mut stored = Vec::new();
    for path in [
        format!("/v1/responses/{response}"),
        format!("/v1/conversations/{conversation}"),
        format!("/v1/conversations/{conversation}/items"),
        "/v1/files".to_owned(),
        format!("/v1/files/{file}/content"),
        format!("/v1/files/{output}/content"),
        batch,
    ] {
        let (status, body) = server.get(&path).await;
        assert_eq!(status, 200, "{path}: {body}");
        stored.push((path, body));
    }
    stored
}

struct KnownSecrets {
    good: Vec<String>,
    revoked: String,
    /// Paths of stored objects, and what clients read there.
    stored: Vec<(String, String)>,
    /// The stored answer of a request with an idempotency key.
    answer: String,
}

/// What operators see of keys and money, which a move must not change.
fn known(dir: &Path) -> Vec<String> {
    let show = |args: &[&str]| {
        let shown = program().args(args).arg("--data-dir").arg(dir).output().unwrap();
        assert!(shown.status.success(), "{args:?}: {}", said(&shown));
        String::from_utf8(shown.stdout).unwrap()
    };
    let ledger: Value = serde_json::from_str(&show(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!(ledger["finding_count"], json!(0), "{ledger}");
    vec![
        show(&["keys", "list"]),
        show(&["credit", "show"]),
        show(&["audit", "--last", "100"]),
        ledger["totals"].to_string(),
    ]
}

fn moved(dir: &Path, to: &str) -> std::process::Output {
    program().args(["move", "--to", to, "--data-dir"]).arg(dir).output().unwrap()
}

fn moves(dir: &Path, to: &str) {
    let done = moved(dir, to);
    assert!(done.status.success() && said(&done).contains("holds every invariant"), "{}", said(&done));
}

fn fails(dir: &Path, to: &str, why: &str) {
    let done = moved(dir, to);
    assert!(!done.status.success() && said(&done).contains(why), "{}", said(&done));
}

async fn serves(dir: &Path, secrets: &KnownSecrets) -> Server {
    serves_with(up(), dir, secrets).await
}

async fn serves_with(up: std::process::Command, dir: &Path, secrets: &KnownSecrets) -> Server {
    let server = Server::begin(up, dir, &["--admin-listen", "off"], KEY);
    for secret in &secrets.good {
        let (status, body) = server.chat(secret, question(json!({ "max_tokens": 4 }))).await;
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(server.chat(&secrets.revoked, question(json!({ "max_tokens": 4 }))).await.0, 401);
    for (path, body) in &secrets.stored {
        assert_eq!(server.get(path).await, (200, body.clone()), "{path}");
    }
    assert_eq!(once(&server).await, (true, secrets.answer.clone()));
    server
}

fn up() -> std::process::Command {
    let mut command = program();
    command.arg("up");
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_ledger_move_between_directories() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (root.path().join("first"), root.path().join("second"));
    let secrets = filled(&first).await;
    let before = known(&first);
    std::fs::create_dir(&second).unwrap();
    let place = format!("sqlite:{}", second.display());
    moves(&first, &place);
    assert_eq!(known(&first), before);
    fails(&first, &place, "already");
    fails(&first, "mysql://somewhere", "--to");
    serves(&first, &secrets).await.stop();
    // The old files are still where they were, with an older ledger.
    fails(&first, "sqlite:", "already");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_ledger_move_to_a_database_and_back_and_are_copied_under_load() {
    for bin in versions() {
        println!("{}", bin.display());
        let database = PostgresServer::start(&bin);
        let root = tempfile::tempdir().unwrap();
        let (dir, other, copy) = (root.path().join("a"), root.path().join("b"), root.path().join("copy"));
        let secrets = filled(&dir).await;
        let before = known(&dir);
        moves(&dir, &database.url());
        assert_eq!(known(&dir), before);
        assert!(!dir.join("ledger.sqlite").exists() && dir.join("ledger.sqlite.moved").exists());
        assert!(!dir.join("files.segments").exists() && dir.join("files.segments.moved").exists());
        let another = root.path().join("another");
        filled(&another).await;
        fails(&another, &database.url(), "secret");

        // The directory remembers the database, and another gateway joins with an empty one.
        let mut gateway = serves(&dir, &secrets).await;
        let mut joined = up();
        joined.env("HEADRACE_STORAGE__URL", database.url());
        let settings = ["--admin-listen", "off", "--set", "gateway.name=\"second\""];
        let mut second = Server::begin(joined, &other, &settings, KEY);
        let stop = Arc::new(AtomicBool::new(false));
        let calls: Vec<_> =
            [&gateway.url, &second.url].map(|url| load(url.clone(), Arc::clone(&stop))).into();
        gateway.ok(&["backup", copy.to_str().unwrap()]);
        stop.store(true, Ordering::Relaxed);
        for call in calls {
            assert!(call.await.unwrap() > 0, "there was load");
        }
        fails(&other, "sqlite:", "is in use by process");
        gateway.stop();
        fails(&dir, "sqlite:", "second");
        second.stop();
        known(&copy);
        serves(&copy, &secrets).await.stop();

        let before = known(&dir);
        moves(&other, "sqlite:");
        assert_eq!(known(&other), before);
        serves(&other, &secrets).await.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_stored_in_a_directory_of_its_own_moves_along() {
    for bin in versions() {
        println!("{}", bin.display());
        let database = PostgresServer::start(&bin);
        let root = tempfile::tempdir().unwrap();
        let (dir, objects) = (root.path().join("a"), root.path().join("objects"));
        let with_objects = |mut command: std::process::Command| {
            command.env("HEADRACE_OBJECTS_DIR", &objects);
            command
        };
        let secrets = filled_with(with_objects(up()), &dir).await;
        assert!(objects.join("answers.sqlite").exists() && !dir.join("answers.sqlite").exists());
        let moves = |to: &str| {
            let mut command = with_objects(program());
            let done = command.args(["move", "--to", to, "--data-dir"]).arg(&dir).output().unwrap();
            (done.status.success(), said(&done))
        };
        let mut other = with_objects(up());
        other.env("HEADRACE_BOOTSTRAP_KEY", KEY);
        let mut other = Server::begin(other, &root.path().join("b"), &["--admin-listen", "off"], KEY);
        let refused = moves(&database.url());
        assert!(!refused.0 && refused.1.contains("in use"), "{refused:?}");
        other.stop();
        let moved = moves(&database.url());
        assert!(moved.0, "{moved:?}");
        for store in ["objects.sqlite", "files.sqlite", "files.segments", "answers.sqlite"] {
            let (old, moved) = (objects.join(store), objects.join(format!("{store}.moved")));
            assert!(!old.exists() && moved.exists(), "{store}");
        }
        serves(&dir, &secrets).await.stop();
        let moved = moves("sqlite:");
        assert!(moved.0 && objects.join("answers.sqlite").exists(), "{moved:?}");
        serves_with(with_objects(up()), &dir, &secrets).await.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipt_keys_that_a_directory_had_before_it_joined_sign_nothing_after_a_move_or_in_a_backup() {
    let keys = |dir: &Path| -> Vec<String> {
        let shown = program().args(["receipt", "keys", "--data-dir"]).arg(dir).output().unwrap();
        assert!(shown.status.success(), "{}", said(&shown));
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let id = |key: &Value| key["kid"].as_str().unwrap().to_owned();
        shown["keys"].as_array().unwrap().iter().map(id).collect()
    };
    for bin in versions() {
        println!("{}", bin.display());
        let database = PostgresServer::start(&bin);
        let root = tempfile::tempdir().unwrap();
        let [dir, first, copy, place] = ["dir", "first", "copy", "place"].map(|name| root.path().join(name));
        let up = |dir: &Path, is_joined: bool| {
            let mut up = up();
            up.env("HEADRACE_BOOTSTRAP_KEY", KEY);
            if is_joined {
                up.env("HEADRACE_STORAGE__URL", database.url());
            }
            Server::begin(up, dir, &["--admin-listen", "off"], KEY)
        };
        let mut alone = up(&dir, false);
        alone.ok(&["receipt", "rotate"]);
        alone.stop();
        assert_eq!(keys(&dir).len(), 2);
        up(&first, true).stop();
        let shared = keys(&first);
        assert_eq!(shared.len(), 1);
        let mut joined = up(&dir, true);
        assert_eq!(keys(&dir), shared);
        joined.ok(&["backup", copy.to_str().unwrap()]);
        joined.stop();
        assert_eq!(keys(&copy), shared);
        std::fs::create_dir(&place).unwrap();
        moves(&dir, &format!("sqlite:{}", place.display()));
        assert_eq!(keys(&dir), shared);
    }
}

/// An endpoint of webhooks, which answers with status 500 until it is open. Passes on whether it was open, and the id of
/// the event.
fn endpoint(is_open: &Arc<AtomicBool>) -> (String, Receiver<(bool, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = mpsc::channel();
    let is_open = Arc::clone(is_open);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut text, mut chunk) = (String::new(), [0; 4096]);
            let header = |head: &str, name: &str| {
                head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap().to_owned()
            };
            let head = loop {
                let count = stream.read(&mut chunk).unwrap();
                text.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
                if let Some((head, body)) = text.split_once("\r\n\r\n")
                    && body.len() >= header(head, "content-length").parse::<usize>().unwrap()
                {
                    break head.to_owned();
                }
                assert!(count > 0, "{text}");
            };
            let open = is_open.load(Ordering::SeqCst);
            let status = if open { 204 } else { 500 };
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            if send.send((open, header(&head, "webhook-id"))).is_err() {
                return;
            }
        }
    });
    (host, receive)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_that_waits_for_its_endpoint_is_sent_after_moves() {
    let databases: Vec<PostgresServer> = versions().iter().map(|bin| PostgresServer::start(bin)).collect();
    let folder = tempfile::tempdir().unwrap();
    let mut routes = vec![vec![format!("sqlite:{}", folder.path().display())]];
    routes.extend(databases.iter().map(|database| vec![database.url()]));
    let more: Vec<PostgresServer> = versions().iter().map(|bin| PostgresServer::start(bin)).collect();
    routes.extend(more.iter().map(|database| vec![database.url(), "sqlite:".to_owned()]));
    for route in routes {
        println!("{route:?}");
        let root = tempfile::tempdir().unwrap();
        let is_open = Arc::<AtomicBool>::default();
        let (host, received) = endpoint(&is_open);
        let secret = root.path().join("secret");
        std::fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let settings = format!(
            "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n[[budgets]]\nname = \"watch\"\n\
             each = \"project\"\nmeasure = \"tokens\"\nlimit = 1000\nsoft = true\nalerts = [1]\n[[webhooks]]\n\
             name = \"ops\"\nurl = \"{host}/hook\"\nhosts = [\"{host}\"]\nsecret_file = \"{}\"\n",
            secret.display()
        );
        let mut server = Server::serve(root.path(), &settings, Some(KEY));
        let (status, body) = server.chat(KEY, question(json!({ "max_tokens": 1 }))).await;
        assert_eq!(status, 200, "{body}");
        let (_, event) = received.recv_timeout(PATIENCE).unwrap();
        server.stop();
        let dir = root.path().join("data");
        for to in &route {
            moves(&dir, to);
            let is_left = dir.join("webhooks.sqlite").exists() || !dir.join("webhooks.sqlite.moved").exists();
            assert_eq!(is_left, !to.starts_with("postgres"), "a file that was moved to a database is marked");
        }
        is_open.store(true, Ordering::SeqCst);
        let _server = Server::serve(root.path(), &settings, None);
        loop {
            let (open, id) = received.recv_timeout(PATIENCE).unwrap();
            assert_eq!(id, event);
            if open {
                break;
            }
        }
    }
}

/// Calls a gateway again and again. Returns how often it answered.
fn load(url: String, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<u64> {
    tokio::spawn(async move {
        let (client, mut answered) = (reqwest::Client::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            let call = client.post(format!("{url}/v1/chat/completions")).bearer_auth(KEY);
            let body = question(json!({ "max_tokens": 4 })).to_string();
            let call = call.header("content-type", "application/json").body(body).timeout(common::PATIENCE);
            assert_eq!(call.send().await.unwrap().status().as_u16(), 200);
            answered += 1;
        }
        answered
    })
}

/// The users of a stopped directory with the times of their last use.
fn users(dir: &Path) -> Value {
    let shown = program().args(["users", "list", "--json", "--data-dir"]).arg(dir).output().unwrap();
    assert!(shown.status.success(), "{}", said(&shown));
    serde_json::from_slice(&shown.stdout).unwrap()
}

/// A user of an identity provider has no key: its record and its last use come from its tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_use_of_a_provider_s_user_moves_along() {
    let databases: Vec<PostgresServer> = versions().iter().map(|bin| PostgresServer::start(bin)).collect();
    let folder = tempfile::tempdir().unwrap();
    let mut routes = vec![vec![format!("sqlite:{}", folder.path().display())]];
    routes.extend(databases.iter().map(|database| vec![database.url(), "sqlite:".to_owned()]));
    for route in routes {
        let (root, issuer) = (tempfile::tempdir().unwrap(), TokenIssuer::start().await);
        let settings =
            format!("[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n{}", issuer.settings(""));
        let mut server = Server::serve(root.path(), &settings, Some(KEY));
        let token = issuer.token("ann", json!({}));
        let patience = std::time::Instant::now() + PATIENCE;
        // The record is made a moment after the first token, and a use is noted once there is one.
        let before = loop {
            let (status, body) = server.chat(&token, question(json!({ "max_tokens": 1 }))).await;
            assert_eq!(status, 200, "{body}");
            let shown: Value = serde_json::from_str(&server.ok(&["users", "list", "--json"])).unwrap();
            if shown.to_string().contains("\"last_seen\":\"") {
                server.stop();
                break users(&root.path().join("data"));
            }
            assert!(std::time::Instant::now() < patience, "no use was noted: {shown}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        };
        assert!(before.to_string().contains("\"last_seen\":\""), "{before}");
        for to in &route {
            moves(&root.path().join("data"), to);
            assert_eq!(users(&root.path().join("data")), before, "{to}");
        }
    }
}
