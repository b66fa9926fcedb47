//! Tests of `headrace batches` from outside: sends, awaits and reads files over real sockets, and checks its error
//! messages.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, said};
use serde_json::{Value, json};

fn line(id: &str, body: Value) -> String {
    let body = match body {
        Value::Null => json!({"model": "headrace-demo", "max_tokens": 8,
            "messages": [{"role": "user", "content": "What is prefill?"}]}),
        body => body,
    };
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
}

fn written(dir: &Path, name: &str, lines: &[String]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

/// A command of a client with a key and no data directory.
fn client(server: &Server, args: &[&str]) -> Command {
    let mut command = program();
    command.env("HEADRACE_BASE_URL", &server.url).env("HEADRACE_API_KEY", &server.key);
    command.arg("batches").args(args);
    command
}

fn ask(server: &Server, args: &[&str]) -> Output {
    client(server, args).output().unwrap()
}

fn ok(server: &Server, args: &[&str]) -> String {
    let output = ask(server, args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail, and returns its error message.
fn fails(server: &Server, args: &[&str]) -> String {
    let output = ask(server, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", said(&output));
    assert!(output.stdout.is_empty(), "{args:?}: {}", said(&output));
    String::from_utf8(output.stderr).unwrap()
}

fn submitted(server: &Server, file: &Path, more: &[&str]) -> String {
    let args = [&["submit", file.to_str().unwrap()], more].concat();
    let id = ok(server, &args);
    assert!(id.starts_with("batch_") && id.lines().count() == 1, "the id alone: {id}");
    id.trim().to_owned()
}

#[test]
fn a_file_is_sent_waited_for_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(&dir.path().join("data"), &[]);
    let lines =
        [line("a", Value::Null), line("b", json!({"model": "nobody", "messages": []})), String::new()];
    // A file name that must be escaped in the upload's form.
    let file = written(dir.path(), "my \"requests\".jsonl", &lines);
    let id = submitted(&server, &file, &["--metadata", "run=nightly", "--window", "90m"]);
    let waited = ok(&server, &["wait", &id]);
    assert!(waited.contains("completed: 1 answered, 1 failed, of 2"), "{waited}");
    let shown = ok(&server, &["show", &id]);
    for part in [&id, "completed", "/v1/chat/completions", "answers   file-", "errors    file-"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let body: Value = serde_json::from_str(&ok(&server, &["show", &id, "--json"])).unwrap();
    assert_eq!((&body["metadata"], &body["completion_window"]), (&json!({"run": "nightly"}), &json!("90m")));
    let listed: Value = serde_json::from_str(&ok(&server, &["list", "--json"])).unwrap();
    assert_eq!(listed["data"][0], body);
    assert!(ok(&server, &["list"]).contains(&format!("{id}  ")));

    // The results: written to a pipe, and into a new file.
    let answers = ok(&server, &["results", &id]);
    let answer: Value = serde_json::from_str(&answers).unwrap();
    assert_eq!((&answer["custom_id"], &answer["response"]["status_code"]), (&json!("a"), &json!(200)));
    let errors: Value = serde_json::from_str(&ok(&server, &["results", &id, "--errors"])).unwrap();
    assert_eq!(errors["custom_id"], "b");
    let out = dir.path().join("answers.jsonl");
    ok(&server, &["results", &id, "--output", out.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), answers);
    let again = fails(&server, &["results", &id, "--output", out.to_str().unwrap()]);
    assert!(again.contains("answers.jsonl"), "{again}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), answers, "what is there stays");
    assert!(fails(&server, &["cancel", &id]).contains("nothing to cancel"));

    // On the server's own machine, without a key.
    let lent = program().args(["batches", "list", "--data-dir"]).arg(&server.dir).output().unwrap();
    assert!(lent.status.success() && said(&lent).contains(&id), "{}", said(&lent));
}

/// Waits until the program catches SIGINT, which it does from its first look at the batch on.
fn until_caught(program: &std::process::Child, began: Instant) {
    const INTERRUPT: u64 = 1 << (2 - 1);
    let caught = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & INTERRUPT != 0
    };
    while !caught() {
        assert!(began.elapsed() < PATIENCE, "it does not catch SIGINT");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_ends_the_waiting_and_not_the_batch() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(&dir.path().join("data"), &[]);
    let long = json!({"model": "headrace-demo", "messages": [{"role": "user", "content": "Tell me all."}],
        "min_tokens": 400, "max_tokens": 400});
    let lines: Vec<String> = (0..200).map(|at| line(&format!("r{at}"), long.clone())).collect();
    let id = submitted(&server, &written(dir.path(), "long.jsonl", &lines), &[]);
    let early = fails(&server, &["results", &id]);
    assert!(early.contains("has ended") && early.contains(&format!("headrace batches wait {id}")), "{early}");
    let late = fails(&server, &["wait", &id, "--timeout", "300ms"]);
    assert!(late.contains("after the time") && late.contains("The batch still runs"), "{late}");

    let mut waiting =
        client(&server, &["wait", &id]).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    until_caught(&waiting, began);
    let interrupt = || Command::new("kill").args(["-INT", &waiting.id().to_string()]).status().unwrap();
    assert!(interrupt().success());
    let status = loop {
        if let Some(status) = waiting.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    waiting.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("The batch still runs") && text.contains(&id), "{text}");
    let status = |id: &str| -> Value { serde_json::from_str(&ok(&server, &["show", id, "--json"])).unwrap() };
    assert_eq!(status(&id)["status"], "in_progress", "nobody ended it");

    let cancelled = ok(&server, &["cancel", &id]);
    assert!(cancelled.contains("cancelling") || cancelled.contains("cancelled"), "{cancelled}");
    let waited = ask(&server, &["wait", &id]);
    assert_eq!(waited.status.code(), Some(1), "{}", said(&waited));
    assert!(said(&waited).contains("is cancelled"), "{}", said(&waited));
    let errors = ok(&server, &["results", &id, "--errors"]);
    assert!(errors.contains("batch_cancelled"), "{errors}");
}

#[test]
fn what_cannot_be_done_is_told_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(&dir.path().join("data"), &[]);
    let nowhere = dir.path().join("none.jsonl");
    assert!(fails(&server, &["submit", nowhere.to_str().unwrap()]).contains("cannot read"));
    assert!(fails(&server, &["submit", dir.path().to_str().unwrap()]).contains("is no file"));
    let twice = [line("a", Value::Null), "{".to_owned(), line("a", Value::Null)];
    let bad = written(dir.path(), "bad.jsonl", &twice);
    let why = fails(&server, &["submit", bad.to_str().unwrap()]);
    for part in ["nothing was sent", "line 2: ", "line 3: line 1 has the same `custom_id`"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let good = written(dir.path(), "good.jsonl", &[line("a", Value::Null)]);
    let good = good.to_str().unwrap();
    let why = fails(&server, &["submit", good, "--endpoint", "/v1/embeddings"]);
    assert!(why.contains("line 1: `url`: it must be the batch's endpoint, `/v1/embeddings`"), "{why}");
    assert_eq!(ok(&server, &["list"]), "no batches\n", "nothing of it was sent");

    for (args, part) in [
        (&["show", "batch_0"][..], "headrace batches list"),
        (&["cancel", "batch_0"], "headrace batches list"),
        (&["wait", "batch_0"], "headrace batches list"),
        (&["results", "batch_0"], "headrace batches list"),
        (&["show", "../files"], "they look like `batch_0123abcd`"),
        (&["list", "--after", "a b"], "they look like"),
    ] {
        let why = fails(&server, args);
        assert!(why.contains(part), "{args:?}: {why}");
    }
    // Wrong usage has an exit code of its own.
    for args in [&["submit", good, "--window", "2d"][..], &["submit", good, "--endpoint", "/v1/messages"]] {
        assert_eq!(ask(&server, args).status.code(), Some(2), "{args:?}");
    }
    let mut stranger = client(&server, &["list"]);
    let output = stranger.env("HEADRACE_API_KEY", "sk-nobody-0123456789abcdefghijklmnop").output().unwrap();
    assert!(output.status.code() == Some(1) && said(&output).contains("401"), "{}", said(&output));
    let keyless =
        program().args(["batches", "list", "--url", &server.url]).current_dir(dir.path()).output().unwrap();
    assert!(said(&keyless).contains("HEADRACE_API_KEY"), "{}", said(&keyless));
    let mut gone = client(&server, &["list", "--url", "http://127.0.0.1:9"]);
    assert!(said(&gone.output().unwrap()).contains("headrace up"), "a server that is not there");
}

/// The JSON answer of an operator's command.
fn made(server: &Server, args: &[&str]) -> Value {
    let output = program().args(args).args(["--json", "--data-dir"]).arg(&server.dir).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn secret(key: &Value) -> String {
    key["value"]["secret"].as_str().unwrap().to_owned()
}

/// Submits a batch with another key and returns its id.
fn submitted_by(server: &Server, key: &str, file: &Path) -> String {
    let mut command = client(server, &["submit", file.to_str().unwrap()]);
    let output = command.env("HEADRACE_API_KEY", key).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn waited_by(server: &Server, key: &str, id: &str) -> Output {
    client(server, &["wait", id]).env("HEADRACE_API_KEY", key).output().unwrap()
}

#[test]
fn a_batch_that_waits_for_a_limit_keeps_no_other_tenants_batch_from_running() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(&dir.path().join("data"), &[]);
    made(&server, &["orgs", "create", "other"]);
    made(&server, &["projects", "create", "theirs", "--org", "other"]);
    made(&server, &["credit", "grant", "5", "--org", "other"]);
    let theirs = secret(&made(&server, &["keys", "create", "--project", "theirs", "--name", "theirs"]));
    let lines: Vec<String> = (0..40).map(|at| line(&format!("r{at}"), Value::Null)).collect();
    let file = written(dir.path(), "lines.jsonl", &lines);
    // Each key may send, create and run a few requests per minute. Together their batches have more lines than run at
    // once.
    let slow: Vec<String> = (0..3)
        .map(|_| {
            let args = ["keys", "create", "--name", "slow", "--requests-per-minute", "3"];
            let key = secret(&made(&server, &args));
            submitted_by(&server, &key, &file)
        })
        .collect();
    let status = |id: &str| -> Value { serde_json::from_str(&ok(&server, &["show", id, "--json"])).unwrap() };
    let began = Instant::now();
    for id in &slow {
        // Its requests have reached the key's limit now.
        while status(id)["request_counts"]["completed"] != json!(1) {
            assert!(began.elapsed() < PATIENCE, "{}", status(id));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let id = submitted_by(&server, &theirs, &file);
    let waited = waited_by(&server, &theirs, &id);
    assert!(said(&waited).contains("completed: 40 answered, 0 failed, of 40"), "{}", said(&waited));
    for id in &slow {
        let counts = &status(id)["request_counts"];
        assert!(counts["completed"].as_u64().unwrap() < 40, "it waits for its own limit: {counts}");
    }
}

#[test]
fn a_batch_ends_when_its_key_is_revoked_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(&dir.path().join("data"), &[]);
    let key = made(&server, &["keys", "create", "--name", "gone", "--requests-per-minute", "3"]);
    let lines: Vec<String> = (0..30).map(|at| line(&format!("r{at}"), Value::Null)).collect();
    let id = submitted_by(&server, &secret(&key), &written(dir.path(), "lines.jsonl", &lines));
    let status = || -> Value { serde_json::from_str(&ok(&server, &["show", &id, "--json"])).unwrap() };
    let began = Instant::now();
    while status()["request_counts"]["completed"] != json!(1) {
        assert!(began.elapsed() < PATIENCE, "{}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    made(&server, &["keys", "revoke", key["value"]["key"]["id"].as_str().unwrap_or_else(|| panic!("{key}"))]);
    // The other lines wait a minute for their limit. Cancelling does not wait for them.
    let waited = ask(&server, &["wait", &id, "--timeout", "20s"]);
    assert!(said(&waited).contains("cancelled"), "{}", said(&waited));
    let told = status();
    assert_eq!(told["errors"]["data"][0]["code"], "invalid_api_key", "{told}");
    assert_eq!(told["request_counts"]["completed"], 1, "{told}");
}
