//! Reloads of a changed configuration while calls run: all of it is applied or nothing, and the outcome is reported.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, question, said};
use serde_json::json;

const KEY: &str = "sk-reload-test-0123456789abcdefghijk";

/// A configuration with an alias of the demo model.
fn text(alias: &str, watch: &str, more: &str) -> String {
    format!(
        "[server]\nmetrics_listen = \"127.0.0.1:0\"\n{more}\n[aliases]\n{alias} = \"headrace-demo\"\n\
         [reload]\nwatch = \"{watch}\"\n[[prices]]\nmodel = \"headrace-demo\"\ninput = \"1\"\noutput = \"1\"\n"
    )
}

fn model(name: &str, more: &str) -> String {
    format!("[[models]]\nname = {name:?}\n{more}\n")
}

/// A configuration of these models, each with its name and the other lines of its table.
fn models(models: &[(&str, &str)]) -> String {
    let mut text = "[server]\nmetrics_listen = \"127.0.0.1:0\"\n[reload]\nwatch = \"0s\"\n".to_owned();
    for (name, more) in models {
        text += &model(name, more);
        text += &format!("[[prices]]\nmodel = {name:?}\ninput = \"1\"\noutput = \"1\"\n");
    }
    text
}

/// A second copy of the demo model, from its directory.
fn copy() -> String {
    format!("path = {:?}", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint"))
}

/// A call that takes a second or more, and has begun to answer.
async fn long_call(server: &Server, model: &str) -> reqwest::Response {
    let call = json!({ "model": model, "stream": true, "max_tokens": 1900, "n": 2, "ignore_eos": true });
    let mut response = server.send(KEY, &question(call)).await;
    assert_eq!(response.status().as_u16(), 200);
    assert!(response.chunk().await.unwrap().is_some());
    response
}

async fn ends_whole(call: reqwest::Response) {
    let text = call.text().await.unwrap();
    assert!(text.trim_end().ends_with("data: [DONE]"), "{}", &text[text.len().saturating_sub(500)..]);
}

/// Waits until the metrics page has this line.
async fn shown_soon(server: &Server, line: &str) -> String {
    let began = Instant::now();
    loop {
        let page = metrics(server).await;
        if page.lines().any(|shown| shown == line) {
            return page;
        }
        assert!(began.elapsed() < PATIENCE, "no `{line}` in\n{page}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Number of the server's threads whose names begin with `name`.
fn threads(server: &Server, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

fn write(root: &Path, text: &str) {
    // Writes a new file and renames it, as an editor does.
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
            text("third", "0s", "") + &model("headrace-demo", "path = \"builtin:demo\"\nthreads = 64"),
            &["models[0].threads: 64 threads, and the process computes on 1: more need a restart"],
        ),
    ] {
        write(root.path(), &bad);
        let refused = server.command(&["reload"]);
        let said = said(&refused);
        assert!(!refused.status.success(), "{said}");
        assert!(faults.iter().all(|fault| said.contains(fault)), "{faults:?}: {said}");
        assert!(said.contains("the former one stays in force, unchanged"), "{said}");
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

const DEMO: (&str, &str) = ("headrace-demo", "path = \"builtin:demo\"");

#[tokio::test]
async fn models_come_and_go_and_no_call_notices() {
    let root = tempfile::tempdir().unwrap();
    let copy = copy();
    let mut server = Server::serve(root.path(), &models(&[DEMO]), Some(KEY));
    let first = long_call(&server, "headrace-demo").await;
    write(root.path(), &models(&[DEMO, ("second", &copy)]));
    let done = server.ok(&["reload"]);
    assert!(done.contains("models (`second` is new)"), "{done}");
    assert_eq!((status_of(&server, "headrace-demo").await, status_of(&server, "second").await), (200, 200));
    ends_whole(first).await;
    let page = metrics(&server).await;
    for line in [
        "headrace_engine_up{model=\"headrace-demo\"} 1",
        "headrace_engine_up{model=\"second\"} 1",
        "headrace_engines_ending 0",
        "headrace_tokens_total{class=\"output\",model=\"second\"} 2",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }

    let last = long_call(&server, "second").await;
    write(root.path(), &models(&[DEMO]));
    assert!(server.ok(&["reload"]).contains("`second` is gone"));
    assert_eq!(status_of(&server, "second").await, 404);
    let page = metrics(&server).await;
    assert!(page.contains("headrace_engine_running{model=\"second\"} 2"), "its call goes on: {page}");
    assert!(page.contains("headrace_engines_ending 1") && threads(&server, "engine-second") == 1, "{page}");
    assert_eq!(server.get("/readyz").await.0, 200);
    ends_whole(last).await;
    let page = shown_soon(&server, "headrace_engines_ending 0").await;
    assert!(!page.contains("headrace_engine_up{model=\"second\"}"), "{page}");
    assert_eq!((threads(&server, "engine-second"), threads(&server, "engine-headrace")), (0, 1));
    server.stop();
}

#[tokio::test]
async fn a_model_is_loaded_anew_while_the_former_one_ends_and_the_server_may_end_meanwhile() {
    let root = tempfile::tempdir().unwrap();
    let copy = copy();
    let mut server = Server::serve(root.path(), &models(&[DEMO]), Some(KEY));
    let smaller = format!("{}\nkv_memory = \"8 MiB\"", DEMO.1);
    let before = long_call(&server, "headrace-demo").await;
    write(root.path(), &models(&[(DEMO.0, &smaller)]));
    server.signal("HUP");
    let page = shown_soon(&server, "headrace_engines_ending 1").await;
    assert_eq!((threads(&server, "engine-headrace"), status_of(&server, "headrace-demo").await), (2, 200));
    assert_eq!(page.matches("headrace_engine_kv_blocks{model=\"headrace-demo\"}").count(), 1, "{page}");
    ends_whole(before).await;
    shown_soon(&server, "headrace_engines_ending 0").await;
    assert_eq!(threads(&server, "engine-headrace"), 1);

    // The only model is removed, and another one is added.
    let last = long_call(&server, "headrace-demo").await;
    write(root.path(), &models(&[("second", &copy)]));
    server.ok(&["reload"]);
    assert_eq!((status_of(&server, "headrace-demo").await, status_of(&server, "second").await), (404, 200));
    server.signal("TERM");
    ends_whole(last).await;
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGHUP: the configuration is read again: models (`headrace-demo` is loaded anew)"));
    assert!(log.contains("every call is settled"), "{log}");
}

#[tokio::test]
async fn one_bad_model_and_none_is_loaded() {
    let root = tempfile::tempdir().unwrap();
    let copy = copy();
    let mut server = Server::serve(root.path(), &models(&[DEMO]), Some(KEY));
    let broken = root.path().join("broken");
    std::fs::create_dir(&broken).unwrap();
    for file in
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint")).unwrap()
    {
        let file = file.unwrap();
        std::fs::copy(file.path(), broken.join(file.file_name())).unwrap();
    }
    let config = std::fs::read_to_string(broken.join("config.json")).unwrap();
    let config = config.replace("\"num_hidden_layers\": 5", "\"num_hidden_layers\": 6");
    std::fs::write(broken.join("config.json"), config).unwrap();
    let [missing, broken] = [root.path().join("missing"), broken].map(|path| format!("path = {path:?}"));
    let huge = format!("{copy}\nkv_memory = \"60 TiB\"");
    for (bad, faults) in [
        (models(&[DEMO, ("second", &copy), ("third", &missing)]), &["models[2].path", "no such file"][..]),
        (models(&[DEMO, ("second", &copy), ("third", &broken)]), &["model `third` cannot be served"]),
        (models(&[("second", &huge)]), &["models[0].kv_memory: the KV caches of new models come to "]),
        ("models = []\n".to_owned(), &["models: is empty"]),
    ] {
        write(root.path(), &bad);
        let refused = server.command(&["reload"]);
        let said = said(&refused);
        assert!(
            !refused.status.success() && said.contains("the former one stays in force, unchanged"),
            "{said}"
        );
        assert!(faults.iter().all(|fault| said.contains(fault)), "{faults:?}: {said}");
        assert_eq!(
            (status_of(&server, "headrace-demo").await, status_of(&server, "second").await),
            (200, 404)
        );
        assert_eq!((threads(&server, "engine-headrace"), threads(&server, "engine-")), (1, 1));
    }
    server.stop();
}
