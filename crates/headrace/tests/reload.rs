//! A changed configuration is put in force while calls run: all of it, or nothing, and it is said what came of it.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, question, said};
use serde_json::json;

const KEY: &str = "sk-reload-test-0123456789abcdefghijk";

/// A configuration under a further name of the demo model.
fn text(alias: &str, watch: &str, more: &str) -> String {
    format!(
        "[server]\nmetrics_listen = \"127.0.0.1:0\"\n{more}\n[aliases]\n{alias} = \"headrace-demo\"\n\
         [reload]\nwatch = \"{watch}\"\n[[prices]]\nmodel = \"headrace-demo\"\ninput = \"1\"\noutput = \"1\"\n"
    )
}

fn model(name: &str) -> String {
    format!("[[models]]\nname = {name:?}\npath = \"builtin:demo\"\n")
}

fn write(root: &Path, text: &str) {
    // As an editor does it: beside, then in its place.
    std::fs::write(root.join("new.toml"), text).unwrap();
    std::fs::rename(root.join("new.toml"), root.join("headrace.toml")).unwrap();
}

async fn status_of(server: &Server, model: &str) -> u16 {
    server.chat(KEY, question(json!({ "model": model, "max_tokens": 2 }))).await.0
}

async fn served_soon(server: &Server, model: &str) {
    let began = Instant::now();
    while status_of(server, model).await != 200 {
        assert!(began.elapsed() < PATIENCE, "`{model}` is not served");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn metrics(server: &Server) -> String {
    let at = server.welcome.split_whitespace().find(|word| word.ends_with("/metrics")).unwrap();
    reqwest::get(at).await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn a_reload_changes_all_or_nothing_and_drops_no_call() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::serve(root.path(), &text("first", "0s", ""), Some(KEY));
    assert_eq!((status_of(&server, "first").await, status_of(&server, "second").await), (200, 404));

    let stream = question(json!({ "stream": true, "max_tokens": 200, "ignore_eos": true }));
    let under_way = server.send(KEY, &stream).await;
    write(root.path(), &text("second", "0s", ""));
    let done = server.ok(&["reload"]);
    assert!(done.contains("in force: aliases"), "{done}");
    assert_eq!((status_of(&server, "first").await, status_of(&server, "second").await), (404, 200));
    assert!(under_way.text().await.unwrap().contains("[DONE]"), "a call that runs goes on");
    assert!(server.ok(&["reload"]).contains("no setting has changed"));

    for (bad, faults) in [
        ("[server\n".to_owned(), &["the file: is not TOML"][..]),
        (
            text("third", "0s", "idle_timeout = \"soon\"\ndrain = \"never\""),
            &["server.idle_timeout", "server.drain"],
        ),
        (
            text("third", "0s", "idle_timeout = \"1m\"\nmax_connections = 9"),
            &["server.idle_timeout needs a restart", "server.max_connections needs a restart"],
        ),
        (
            text("third", "0s", "") + &["headrace-demo", "other"].map(model).concat(),
            &["models: `other` is new, which needs a restart"],
        ),
    ] {
        write(root.path(), &bad);
        let refused = server.command(&["reload"]);
        let said = said(&refused);
        assert!(!refused.status.success(), "{said}");
        assert!(faults.iter().all(|fault| said.contains(fault)), "{faults:?}: {said}");
        assert!(said.contains("the former one goes on, whole"), "{said}");
        assert_eq!((status_of(&server, "second").await, status_of(&server, "third").await), (200, 404));
    }

    write(root.path(), &text("third", "0s", ""));
    server.signal("HUP");
    served_soon(&server, "third").await;
    let page = metrics(&server).await;
    for line in [
        "headrace_config_reloads_total{outcome=\"applied\"} 3",
        "headrace_config_reloads_total{outcome=\"refused\"} 4",
        "headrace_config_last_success_timestamp_seconds ",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGHUP: the configuration is read again: aliases"), "{log}");
    assert!(log.contains("headrace reload: the new configuration has 2 faults"), "{log}");
}

#[tokio::test]
async fn a_file_that_changes_is_read_by_itself() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::serve(root.path(), &text("first", "1s", ""), Some(KEY));
    served_soon(&server, "first").await;
    write(root.path(), &text("another", "1s", ""));
    served_soon(&server, "another").await;
    server.stop();
}

#[test]
fn without_a_server_there_is_nothing_to_reload() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::up(&root.path().join("data"), &[]);
    assert!(server.ok(&["reload"]).contains("no setting has changed"));
    server.stop();
    let refused = server.command(&["reload"]);
    assert!(!refused.status.success() && said(&refused).contains("no server runs"), "{}", said(&refused));
}
