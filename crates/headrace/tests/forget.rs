//! `headrace forget` over the whole program: calls carry the name of a user in every place that the API has for it. Then
//! the user is forgotten, and every byte of the data directory is searched for the name. The books and the audit log
//! still verify.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "forget/traffic.rs"]
mod traffic;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Server, program, said};
use serde_json::Value;
use traffic::{CanaryTraffic, KEY, USER};

/// The files of a directory that contain the name, with the number of places.
fn places(dir: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // A file may end between the two steps: a log that SQLite has merged.
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let count = bytes.windows(USER.len()).filter(|at| *at == USER.as_bytes()).count();
            if count > 0 {
                let name = path.strip_prefix(dir).unwrap().to_string_lossy().into_owned();
                *found.entry(name.split('-').next().unwrap().to_owned()).or_insert(0) += count;
            }
        }
    }
    found
}

fn json_of(server: &Server, args: &[&str]) -> Value {
    serde_json::from_str(&server.ok(&[args, &["--json"]].concat())).unwrap()
}

fn totals(server: &Server) -> (Value, Value) {
    let usage = json_of(server, &["usage", "--by", "model"]);
    (usage["total"]["calls"].clone(), usage["total"]["charged"].clone())
}

fn verifies(server: &Server) {
    assert_eq!(json_of(server, &["ledger", "verify"])["finding_count"], 0);
    server.ok(&["audit", "verify"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_user_is_in_no_file_of_a_running_server() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let server = Server::up(&dir, &["--set", "records.level=full"]);
    let traffic = CanaryTraffic::new(&server.url);
    traffic.run(root.path()).await;
    traffic.until_traced(&server);
    let sums = totals(&server);
    let before = places(&dir);
    for store in [
        "answers.sqlite",
        "contents.sqlite",
        "files.segments",
        "objects.sqlite",
        "traces.sqlite",
        "usage.sqlite",
    ] {
        assert!(before.keys().any(|name| name.starts_with(store)), "{store}: {before:?}");
    }
    let forgotten = server.ok(&["forget", USER]);
    assert!(forgotten.contains("traces"), "{forgotten}");
    assert_eq!(places(&dir), BTreeMap::new(), "{forgotten}");
    assert_eq!(totals(&server), sums, "the sums of usage are kept");
    let found = json_of(&server, &["requests", "--user", USER]);
    assert_eq!(found["data"].as_array().map(Vec::len), Some(0), "{found}");
    verifies(&server);

    // The server serves on, and the user is recorded again if it comes back.
    traffic.chat(serde_json::json!({ "user": USER })).await;
    traffic.until_found(&server, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_forgotten_while_no_server_runs_and_only_in_the_named_project() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let mut server = Server::up(&dir, &["--set", "records.level=full"]);
    let traffic = CanaryTraffic::new(&server.url);
    traffic.run(root.path()).await;
    traffic.until_traced(&server);
    server.stop();
    server.ok(&["forget", USER, "--project", "elsewhere"]);
    let kept = places(&dir);
    for store in ["contents.sqlite", "files.segments", "objects.sqlite", "traces.sqlite"] {
        assert!(kept.keys().any(|name| name.starts_with(store)), "{store}: {kept:?}");
    }
    server.ok(&["forget", USER, "--project", "default"]);
    assert_eq!(places(&dir), BTreeMap::new());
    verifies(&server);
    let again = Server::up_with_key_kept(&dir, KEY);
    assert_eq!(json_of(&again, &["requests", "--user", USER])["data"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_empty_name_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let output = program().args(["forget", "", "--data-dir"]).arg(root.path()).output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
}
