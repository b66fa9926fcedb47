//! Kills the whole server with SIGKILL at random moments under load. The ledger must verify every time, contain every
//! answered call, and have no open hold after the next start. 20 kills by default, `HEADRACE_CRASHES=200` for more;
//! `HEADRACE_SEED` replays one run.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Server, program, question};
use serde_json::{Value, json};

const CLIENTS: u64 = 6;

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_verifies_after_every_kill() {
    let crashes = from_env("HEADRACE_CRASHES", 20);
    let seed = from_env("HEADRACE_SEED", u64::from(std::process::id()) | 1 << 40);
    println!("seed {seed}: HEADRACE_SEED={seed} replays the moments");
    let mut random = seed;
    let dir = tempfile::tempdir().unwrap();
    let answered = Arc::new(AtomicU64::new(0));
    // One client for all calls. Creating one reads the system's certificates, which takes longer than the load may
    // last.
    let http = reqwest::Client::new();
    for crash in 0..crashes {
        let mut server = Server::up(dir.path(), &[]);
        let (key, url) = (server.key.clone(), server.url.clone());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (http, key, url) = (http.clone(), key.clone(), url.clone());
                let answered = Arc::clone(&answered);
                tokio::spawn(async move { ask_until_gone(&http, &url, &key, client, &answered).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(30 + next(&mut random) % 250)).await;
        server.signal("KILL");
        let _ = server.wait();
        for client in clients {
            client.await.unwrap();
        }
        let verified = verify(dir.path());
        let holds = verified["totals"]["holds"].as_u64().unwrap_or_else(|| panic!("{verified}"));
        let answers = answered.load(Ordering::SeqCst);
        assert!(
            holds >= answers,
            "crash {crash}, seed {seed}: {answers} heads were seen and {holds} holds are kept"
        );
    }
    let answers = answered.load(Ordering::SeqCst);
    println!("{crashes} kills, {answers} answers begun");
    assert!(answers > crashes, "there was load");
    let mut server = Server::up(dir.path(), &[]);
    assert_eq!(server.chat(&server.key, question(json!({}))).await.0, 200, "the next call is served");
    server.stop();
    assert_eq!(verify(dir.path())["totals"]["open_holds"], 0, "orphans are resolved");
}

/// Streams answers until the server is gone, and counts each successful status line.
async fn ask_until_gone(http: &reqwest::Client, url: &str, key: &str, client: u64, answered: &AtomicU64) {
    for turn in 0.. {
        let content = format!("client {client}, turn {turn}: what is a token?");
        let body = json!({
            "model": "headrace-demo", "stream": turn % 2 == 0, "max_tokens": 40, "ignore_eos": true,
            "messages": [{"role": "user", "content": content}],
        });
        let sent = http.post(format!("{url}/v1/chat/completions")).bearer_auth(key).json(&body).send().await;
        let Ok(answer) = sent else { return };
        assert_eq!(answer.status(), 200);
        answered.fetch_add(1, Ordering::SeqCst);
        // Every third reader leaves before the end.
        if turn % 3 != 2 && answer.bytes().await.is_err() {
            return;
        }
    }
}

fn verify(dir: &std::path::Path) -> Value {
    let output = program().args(["ledger", "verify", "--json", "--data-dir"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", common::said(&output));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", common::said(&output)))
}
