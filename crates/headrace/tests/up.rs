//! The program from one command to tokens, a bill and a trace, over real sockets.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, question, run, said};
use serde_json::{Value, json};

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_prints_a_key_that_works_and_a_second_start_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("data");
    let mut server = Server::up_with_fresh_key(&dir);
    for part in ["$10.00", "curl ", "from openai import OpenAI", "headrace chat", "trace --last", &server.url]
    {
        assert!(server.welcome.contains(part), "{part}\n{}", server.welcome);
    }
    assert_eq!(server.get("/healthz").await.0, 200);
    assert_eq!(server.get("/readyz").await.0, 200);
    assert!(server.get("/v1/models").await.1.contains("headrace-demo"));
    let (status, whole) = server.chat(&server.key, question(json!({}))).await;
    assert_eq!(status, 200, "{whole}");
    assert!(!text_of(&whole).is_empty(), "{whole}");
    let streamed = server.send(&server.key, &question(json!({ "stream": true }))).await;
    let id = streamed.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body = streamed.text().await.unwrap();
    let deltas = body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let text: String = deltas
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, text_of(&whole), "streamed or not, the same: {body}");
    assert!(server.ok(&["trace", &id]).contains("decode"));
    assert!(server.ok(&["trace", "--last"]).contains(&id));
    // By the answer's id, which users of an SDK see.
    let answer = whole["id"].as_str().unwrap();
    assert!(answer.starts_with("chatcmpl-") && server.ok(&["trace", answer]).contains("decode"));
    assert!(server.get(&format!("/v1/requests/{answer}")).await.1.contains("\"stages\""));
    // By the trace id of the caller's own telemetry.
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let call = reqwest::Client::builder().no_proxy().build().unwrap();
    let call = call.post(format!("{}/v1/chat/completions", server.url)).bearer_auth(&server.key);
    let call = call.header("traceparent", &parent).json(&question(json!({})));
    assert_eq!(call.send().await.unwrap().status(), 200);
    for name in [trace, &parent, &trace.to_uppercase(), "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"] {
        assert!(server.ok(&["trace", name]).contains("decode"), "{name}");
        assert!(server.get(&format!("/v1/requests/{name}")).await.1.contains("\"stages\""), "{name}");
    }
    // Callers choose trace ids themselves, so such an id must not open another organisation's record.
    server.ok(&["orgs", "create", "other"]);
    server.ok(&["projects", "create", "others", "--org", "other"]);
    let made = server.ok(&["keys", "create", "--name", "other", "--project", "others", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for name in [trace, &parent, &id] {
        let asked = client.get(format!("{}/v1/requests/{name}", server.url));
        let asked = asked.bearer_auth(made["value"]["secret"].as_str().unwrap()).send().await.unwrap();
        assert_eq!(asked.status(), 404, "{name}");
    }
    assert!(server.ok(&["trace", "--slowest", "5", "--json"]).contains(&id));
    assert!(server.get(&format!("/v1/requests/{id}")).await.1.contains("\"stages\""));
    server.stop();
    assert!(!dir.join("address").exists() && !dir.join("control.sock").exists());
    let again = Server::up_with_key_kept(&dir, &server.key);
    assert!(!again.welcome.contains("sk-"), "{}", again.welcome);
    assert_eq!(again.chat(&server.key, question(json!({}))).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_created_limited_and_dead_within_a_second_of_revocation() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    assert!(!server.welcome.contains(&server.key), "a chosen key is not repeated");
    let made = server.ok(&["keys", "create", "--name", "ci", "--allow", "headrace-demo", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    let secret = made["value"]["secret"].as_str().unwrap().to_owned();
    let id = made["value"]["key"]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.chat(&secret, question(json!({}))).await.0, 200);
    server.ok(&["keys", "revoke", &id]);
    let revoked = Instant::now();
    // A call that starts a second after the revocation is refused, however long earlier calls took.
    loop {
        let sent = revoked.elapsed();
        if server.chat(&secret, question(json!({}))).await.0 == 401 {
            break;
        }
        assert!(sent < Duration::from_secs(1), "the key lives on");
    }
    let made = server.ok(&["keys", "create", "--name", "late", "--allow", "nosuchmodel", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["value"]["unserved"], json!(["nosuchmodel"]));
    let late = made["value"]["key"]["id"].as_str().unwrap();
    assert!(server.ok(&["keys", "limits", late, "--concurrency", "3"]).contains('3'));
    let listed = server.ok(&["keys", "list"]);
    assert!(listed.contains(&id) && listed.contains("revoked") && !listed.contains(&secret), "{listed}");
    let unknown = server.command(&["keys", "revoke", "key_none"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(said(&unknown).contains("keys list"), "{}", said(&unknown));
    assert!(server.ok(&["status"]).contains("is ready at"));
    server.stop();
    // The same commands on the stopped directory.
    assert!(server.ok(&["keys", "list"]).contains(&id));
    assert!(server.ok(&["audit"]).contains("key.revoke"));
    assert!(server.ok(&["status"]).contains("no server runs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn money_is_held_spent_refused_and_always_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &["--set", "first_start.credit=0.00001"]);
    let (status, refused) = server.chat(&server.key, question(json!({ "max_tokens": 200 }))).await;
    assert_eq!(status, 402, "{refused}");
    assert!(server.ok(&["ledger", "verify"]).contains("every invariant holds"));
    server.ok(&["credit", "grant", "5", "--reference", "invoice 1"]);
    assert!(
        server
            .ok(&["credit", "grant", "5", "--reference", "invoice 1"])
            .contains("before, under this reference")
    );
    server.ok(&["credit", "correct", "-1.5", "--reason", "too much"]);
    let below = server.command(&["credit", "grant", "-5"]);
    assert!(said(&below).contains("credit correct"), "{}", said(&below));
    let grants: Value = serde_json::from_str(&server.ok(&["credit", "list", "--json"])).unwrap();
    let of = |at: usize, field: &str| grants["value"][at][field].clone();
    assert_eq!((of(0, "amount"), of(1, "reference")), (json!(-1_500_000_000), json!("invoice 1")));
    assert!(of(0, "at").as_str().unwrap().ends_with('Z'), "a time is text: {grants}");
    let (status, answer) = server.chat(&server.key, question(json!({ "max_tokens": 200 }))).await;
    assert_eq!(status, 200, "{answer}");
    assert!(server.ok(&["credit", "show"]).contains("default"));
    server.ok(&["budget", "set", "0", "--per", "total"]);
    let (status, stopped) = server.chat(&server.key, question(json!({}))).await;
    assert!(matches!(status, 402 | 429), "{status} {stopped}");
    server.ok(&["budget", "clear"]);
    assert_eq!(server.chat(&server.key, question(json!({}))).await.0, 200);
    server.stop();
    let report: Value = serde_json::from_str(&server.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!((&report["ok"], &report["totals"]["open_holds"]), (&json!(true), &json!(0)));
    assert_eq!(report["totals"]["settled"], json!(2));
    // A grant to the stopped server is there after the next start.
    server.ok(&["credit", "grant", "1"]);
    assert!(server.ok(&["ledger", "verify"]).contains("every invariant holds"));
    let log = server.ok(&["audit"]);
    for act in ["credit.grant", "credit.correct", "budget.set", "invoice 1", "too much"] {
        assert!(log.contains(act), "{act}\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_gone_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    let (ledger, away) = (dir.path().join("ledger.sqlite"), dir.path().join("away.sqlite"));
    assert_eq!(server.chat(&server.key, question(json!({}))).await.0, 200);
    std::fs::rename(&ledger, &away).unwrap();
    // Readiness fails even without a call.
    let began = Instant::now();
    while server.get("/readyz").await.0 == 200 {
        assert!(began.elapsed() < PATIENCE, "the server says that it is ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (status, refused) = server.chat(&server.key, question(json!({}))).await;
    assert!(status == 503 && refused.to_string().contains("was removed or replaced"), "{status} {refused}");
    assert_eq!(server.get("/readyz").await.0, 503);
    assert!(server.ok(&["status"]).contains("ledger CANNOT BE WRITTEN"));
    std::fs::rename(&away, &ledger).unwrap();
    let began = Instant::now();
    while server.chat(&server.key, question(json!({}))).await.0 != 200 {
        assert!(began.elapsed() < PATIENCE, "it comes back with its file");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(dir.path().join(format!("ledger.sqlite{suffix}")));
    }
    let refused = server.command(&["up", "--listen", "127.0.0.1:0", "--threads", "1"]);
    let said = said(&refused);
    assert!(refused.status.code() == Some(1) && said.contains("accounts in it: default"), "{said}");
    assert!(server.ok(&["ledger", "open-accounts"]).contains("1 account opened"));
    let again = Server::up_with_key_kept(dir.path(), &server.key);
    assert_eq!(again.chat(&again.key, question(json!({}))).await.0, 402, "its balance is zero");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_a_call_finish_and_exits_with_zero() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    let body = question(json!({ "stream": true, "max_tokens": 200, "ignore_eos": true }));
    let mut response = server.send(&server.key, &body).await;
    assert_eq!(response.status(), 200);
    let first = response.chunk().await.unwrap();
    assert!(first.is_some());
    server.signal("TERM");
    let rest = tokio::time::timeout(PATIENCE, response.text()).await.unwrap().unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("draining") && log.contains("every call is settled"), "{log}");
    let report: Value = serde_json::from_str(&server.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!(report["totals"]["open_holds"], json!(0));
}

#[test]
fn one_process_at_a_time_in_a_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(dir.path(), &[]);
    for listen in ["127.0.0.1:0".to_owned(), server.address().to_string()] {
        let second = server.command(&["up", "--listen", &listen]);
        assert_eq!(second.status.code(), Some(1));
        let pid = server.pid();
        for part in [
            format!("already running at {}, process {pid}, data directory ", server.url),
            format!("stop it with `kill {pid}`"),
        ] {
            assert!(said(&second).contains(&part), "{part}\n{}", said(&second));
        }
    }
    let taken = tempfile::tempdir().unwrap();
    let listen = server.address().to_string();
    let second = run(&["up", "--listen", &listen, "--data-dir", taken.path().join("d").to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    let why = said(&second);
    assert!(why.contains("cannot listen on") && why.contains("--listen"), "{why}");
    assert!(why.contains(&format!("another headrace (process {}), of another data", server.pid())), "{why}");
    // The message identifies the console's port as such.
    let console = server.welcome.split_once("console  http://").unwrap().1;
    let console = console.split('/').next().unwrap();
    let third = run(&["up", "--listen", console, "--data-dir", taken.path().join("e").to_str().unwrap()]);
    let why = said(&third);
    assert!(why.contains(&format!("the console of another headrace (process {})", server.pid())), "{why}");
    // Another program is not mistaken for a Headrace server.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = other.local_addr().unwrap().to_string();
    let fourth = run(&["up", "--listen", &listen, "--data-dir", taken.path().join("f").to_str().unwrap()]);
    let why = said(&fourth);
    assert!(why.contains(&format!("(process {})", std::process::id())), "{why}");
    assert!(!why.contains("headrace (process") || why.contains("up-"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_environment_works_on_a_directory_that_has_keys() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Server::up_with_fresh_key(dir.path());
    let shown = first.key.clone();
    first.stop();
    let mut again = Server::up(dir.path(), &[]);
    assert!(again.welcome.contains("added to project `default`"), "{}", again.welcome);
    assert_eq!(again.chat(&again.key, question(json!({}))).await.0, 200, "the chosen key");
    assert_eq!(again.chat(&shown, question(json!({}))).await.0, 200, "the key that was there");
    again.stop();
    let known = Server::up(dir.path(), &[]);
    assert!(known.welcome.contains("the one in HEADRACE_BOOTSTRAP_KEY\n"), "{}", known.welcome);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_first_key_is_in_a_file_and_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::serve(dir.path(), "", None);
    assert!(!server.welcome.contains("sk-") && !server.welcome.contains("curl"), "{}", server.welcome);
    let file = dir.path().join("data/first-key");
    assert!(server.welcome.contains(file.to_str().unwrap()), "{}", server.welcome);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let key = std::fs::read_to_string(file).unwrap().trim().to_owned();
    assert_eq!(server.chat(&key, question(json!({}))).await.0, 200);
    // SIGHUP neither ends the server nor reloads it.
    server.signal("HUP");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.chat(&key, question(json!({}))).await.0, 200);
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGHUP: ") && log.contains("every call is settled"), "{log}");
    let other = "sk-another-0123456789abcdefghijkl";
    let mut again = Server::serve(dir.path(), "", Some(other));
    assert_eq!(again.chat(other, question(json!({}))).await.0, 401, "a service makes no key of a variable");
    again.signal("TERM");
    let (_, log) = again.wait();
    assert!(log.contains("is ignored: this data directory has keys") && !log.contains(other), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_terminal_drains() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    let body = question(json!({ "stream": true, "max_tokens": 200, "ignore_eos": true }));
    let mut response = server.send(&server.key, &body).await;
    assert!(response.chunk().await.unwrap().is_some());
    server.signal("HUP");
    // The shell and the kernel may both send SIGHUP.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let _ = std::process::Command::new("kill").args(["-HUP", &server.pid().to_string()]).status();
    let rest = tokio::time::timeout(PATIENCE, response.text()).await.unwrap().unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("every call is settled"), "{log}");
}

#[test]
fn a_bad_configuration_is_refused_whole_before_anything_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("headrace.toml");
    std::fs::write(&file, "[server]\nlisten = \"nowhere\"\ndrian = \"5s\"\n[scheduler]\nmax_running = 0\n")
        .unwrap();
    let data = dir.path().join("data");
    let output = program()
        .env("HEADRACE_WIRE__MAX_N", "many")
        .args(["serve", "--threads", "none", "--config"])
        .arg(&file)
        .arg("--data-dir")
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = said(&output);
    for part in [
        "5 faults",
        "server.listen: \"nowhere\" is not an address",
        "did you mean `server.drain`?",
        "scheduler.max_running",
        "environment HEADRACE_WIRE__MAX_N",
        "engine.threads: `none` is not an integer from 1 to 1024 (flag --threads)",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!data.exists());
    let check = program().args(["config", "check", "--set", "server.drain=5s"]).output().unwrap();
    assert_eq!(check.status.code(), Some(0));
    let shown = String::from_utf8(check.stdout).unwrap();
    assert!(
        shown.contains("server.drain") && shown.contains("flag --set") && shown.contains("no faults"),
        "{shown}"
    );
}

#[test]
fn a_model_that_cannot_be_served_is_refused_with_its_name_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (data, model) = (dir.path().join("data"), dir.path().join("gpt9"));
    std::fs::create_dir(&model).unwrap();
    let up = |model: &str| {
        let args = ["up", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap(), "--model", model];
        let output = run(&args);
        (output.status.code(), said(&output))
    };
    let (code, text) = up("/does/not/exist");
    assert_eq!((code, text.contains("there is no such file or directory")), (Some(2), true), "{text}");
    let (code, text) = up(model.to_str().unwrap());
    assert_eq!(
        (code, text.contains("holds neither config.json nor a .gguf file")),
        (Some(2), true),
        "{text}"
    );
    std::fs::write(model.join("config.json"), r#"{"architectures":["Gpt9ForCausalLM"],"model_type":"gpt9"}"#)
        .unwrap();
    let (code, text) = up(model.to_str().unwrap());
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("`gpt9`") && text.contains("Gpt9ForCausalLM") && text.contains("LlamaForCausalLM"),
        "{text}"
    );
}

#[test]
fn help_teaches_by_example() {
    for args in [&["--help"][..], &["up", "--help"], &["keys", "create", "--help"], &["trace", "--help"]] {
        let output = run(args);
        assert!(output.status.success() && said(&output).contains("headrace"), "{args:?}");
    }
    assert_eq!(run(&["nonsense"]).status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_sigterm_a_service_denies_readiness_and_takes_calls_until_the_delay_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("headrace.toml");
    std::fs::write(&file, "[server]\nmetrics_listen = \"127.0.0.1:0\"\n").unwrap();
    let key = "sk-integration-test-0123456789abcdef";
    let first_key = dir.path().join("key");
    std::fs::write(&first_key, key).unwrap();
    let mut command = program();
    command.arg("serve").arg("--config").arg(&file);
    let of_first_key = format!("first_start.key_file={}", first_key.to_str().unwrap());
    let more = ["--set", &of_first_key, "--set", "server.drain_delay=1h"];
    let mut server = Server::begin(command, &dir.path().join("data"), &more, key);
    let metrics = server.welcome.lines().find_map(|line| line.trim().strip_prefix("metrics")).unwrap();
    let ready = metrics.trim().replace("/metrics", "/readyz");
    assert_eq!(reqwest::get(&ready).await.unwrap().status(), 200);
    let answer = server.send(key, &question(json!({}))).await;
    assert_eq!((answer.status().as_u16(), answer.headers().get("connection")), (200, None));
    server.signal("TERM");
    while reqwest::get(&ready).await.unwrap().status() == 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let why = reqwest::get(&ready).await.unwrap().text().await.unwrap();
    assert!(why.contains("the server stops soon"), "{why}");
    assert_eq!(server.get("/readyz").await.0, 503);
    let status = said(&server.command(&["status"]));
    assert!(status.contains("the server stops soon"), "{status}");
    // New connections and calls are still accepted, and clients are asked to close.
    for _ in 0..2 {
        let answer = server.send(key, &question(json!({}))).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers().get("connection").unwrap(), "close");
        assert!(answer.text().await.unwrap().contains("\"usage\""));
    }
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    for part in
        ["calls are taken for 3600 s more (server.drain_delay)", "draining: ", "every call is settled"]
    {
        assert!(log.contains(part), "{part}\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_at_once_and_the_next_start_releases_the_hold() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &["--set", "server.drain=60s"]);
    let body = question(json!({ "stream": true, "max_tokens": 1900, "ignore_eos": true }));
    let mut response = server.send(&server.key, &body).await;
    assert!(response.chunk().await.unwrap().is_some());
    server.signal("INT");
    tokio::time::sleep(Duration::from_millis(30)).await;
    server.signal("INT");
    let (status, log) = server.wait();
    // A fast machine may have ended the call between the two signals.
    assert!(matches!(status.code(), Some(0 | 130)), "{status} {log}");
    let mut next = Server::up_with_key_kept(dir.path(), &server.key);
    let report: Value = serde_json::from_str(&next.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!((&report["ok"], &report["totals"]["open_holds"]), (&json!(true), &json!(0)));
    next.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_a_listener_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &["--metrics-listen", "127.0.0.1:0"]);
    assert_eq!(server.chat(&server.key, question(json!({}))).await.0, 200);
    assert_ne!(server.get("/metrics").await.0, 200, "not on the public address");
    let line = server.welcome.lines().find_map(|line| line.trim().strip_prefix("metrics")).unwrap();
    let text = reqwest::get(line.trim()).await.unwrap().text().await.unwrap();
    for part in
        ["headrace_engine_kv_blocks_free{model=\"headrace-demo\"}", "headrace_ledger_up 1", "headrace_edge_"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    server.stop();
}
