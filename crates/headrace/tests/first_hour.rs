//! What users meet in their first hour at the command line: the newest call, the choice of the server, a copy of the
//! data.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Server, program, question, said};
use serde_json::{Value, json};

async fn call(server: &Server, key: &str, body: &Value) -> (u16, String) {
    let response = server.send(key, body).await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let status = response.status().as_u16();
    response.bytes().await.unwrap();
    (status, id)
}

fn newest(server: &Server) -> Value {
    serde_json::from_str(&server.ok(&["trace", "--last", "--json"])).unwrap()
}

/// Calls that are answered, streamed, refused to a known caller, and refused to unknown callers more often than such
/// refusals are stored.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_call_is_the_one_that_was_just_answered() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::up(&root.path().join("data"), &[]);
    let mut strangers = Vec::new();
    for round in 0..20 {
        let unknown = json!({"model": "nothing", "messages": [{"role": "user", "content": "x"}]});
        for (key, body, expected) in [
            (server.key.as_str(), question(json!({"max_tokens": 2})), 200),
            (server.key.as_str(), question(json!({"max_tokens": 2, "stream": true})), 200),
            (server.key.as_str(), unknown, 404),
            ("sk-nobody-0123456789abcdefghijklmnop", question(json!({})), 401),
        ] {
            let (status, id) = call(&server, key, &body).await;
            assert_eq!(status, expected);
            assert_eq!(newest(&server)["id"], id.as_str(), "round {round}, {status}");
            strangers.extend((status == 401).then_some(id));
        }
    }
    for id in strangers {
        let found: Value = serde_json::from_str(&server.ok(&["trace", &id, "--json"])).unwrap();
        assert_eq!(found["id"], id.as_str(), "also one that was not stored");
    }
    // Sums over the traces and the ledger include them, too.
    let cache: Value = serde_json::from_str(&server.ok(&["cache", "--by", "model", "--json"])).unwrap();
    assert_eq!(cache["calls"], 40, "{cache:#}");
    let usage: Value = serde_json::from_str(&server.ok(&["usage", "--json"])).unwrap();
    assert_eq!(usage["total"]["calls"], 40, "{usage:#}");
}

fn chat(server: &Server, key: Option<&str>, args: &[&str]) -> std::process::Output {
    let mut command = program();
    command.envs(key.map(|key| ("HEADRACE_API_KEY", key)));
    command.args(["chat", "What is a KV cache?", "--max-tokens", "4"]).args(args);
    // The current directory must not help.
    command.current_dir(server.dir.parent().unwrap()).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_is_named_decides_which_server_is_asked() {
    let root = tempfile::tempdir().unwrap();
    let first = Server::up(&root.path().join("first"), &[]);
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", "sk-another-0123456789abcdefghijkl").arg("up");
    let other = Server::begin(command, &root.path().join("other"), &[], "");
    let other_dir = other.dir.to_str().unwrap();
    let calls = |server: &Server| {
        let usage: Value = serde_json::from_str(&server.ok(&["usage", "--json"])).unwrap();
        usage["total"]["calls"].as_u64().unwrap()
    };
    // A lent key replaces a key of another server, with a note. An empty key counts as none.
    for (at, key) in [(1, Some(first.key.as_str())), (2, Some("")), (3, Some(" ")), (4, None)] {
        let output = chat(&first, key, &["--data-dir", other_dir]);
        assert!(output.status.success(), "{key:?}: {}", said(&output));
        let noted = said(&output).contains("is none of this server's");
        assert_eq!(noted, at == 1, "{}", said(&output));
        assert_eq!((calls(&first), calls(&other)), (0, at));
    }
    // A key on the command line was chosen: it is never replaced, and the error says what to do.
    let chosen = chat(&first, None, &["--data-dir", other_dir, "--key", &first.key]);
    assert!(!chosen.status.success() && said(&chosen).contains("--key"), "{}", said(&chosen));
    let nowhere = chat(&first, None, &["--data-dir", "nowhere"]);
    assert!(said(&nowhere).contains("no server runs on the data directory nowhere"), "{}", said(&nowhere));
    // An empty address and an empty model count as none, too.
    let mut empty = program();
    empty.envs([("HEADRACE_API_KEY", ""), ("HEADRACE_BASE_URL", ""), ("HEADRACE_MODEL", "")]);
    empty.args(["chat", "Hello", "--max-tokens", "2", "--data-dir", other_dir]);
    let output = empty.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    // With an address in the environment, no argument is needed.
    let mut ping = program();
    let output = ping.env("HEADRACE_BASE_URL", &first.url).args(["ping", "--count", "1"]).output().unwrap();
    assert!(output.status.success() && said(&output).contains(&first.url), "{}", said(&output));
    // A usage error begins like every other error.
    let output = program().args(["chat", "--nonsense"]).output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).starts_with("headrace: "), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_busy_server_starts_and_verifies() {
    let root = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::up(&root.path().join("data"), &[]));
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..3)
        .map(|_| {
            let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut calls = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(call(&server, &server.key, &question(json!({"max_tokens": 3}))).await.0, 200);
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let (_, before) = call(&server, &server.key, &question(json!({"max_tokens": 3}))).await;
    for round in 0..3 {
        let copy = root.path().join(format!("copy{round}"));
        let made = server.ok(&["backup", copy.to_str().unwrap()]);
        assert!(made.contains("its ledger holds every invariant"), "{made}");
        let again = server.command(&["backup", copy.to_str().unwrap()]);
        assert!(said(&again).contains("is not empty"), "{}", said(&again));
    }
    stop.store(true, Ordering::Relaxed);
    for calls in load {
        assert!(calls.await.unwrap() > 0, "there was load");
    }
    let copy = Server::up_with_key_kept(&root.path().join("copy2"), &server.key);
    assert_eq!(call(&copy, &server.key, &question(json!({"max_tokens": 3}))).await.0, 200, "its keys work");
    let found: Value = serde_json::from_str(&copy.ok(&["trace", &before, "--json"])).unwrap();
    assert_eq!(found["id"], before.as_str());
    assert!(copy.ok(&["ledger", "verify"]).contains("every invariant holds"));
    let bare = root.path().join("bare");
    server.ok(&["backup", "--no-traces", bare.to_str().unwrap()]);
    assert!(!bare.join("traces.sqlite").exists() && bare.join("ledger.sqlite").exists());
}
