//! What operators see of calls, through the whole program: search, usage, statements, caches and the current state of
//! the server. Money in them equals the ledger's.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, Server};
use serde_json::{Value, json};

async fn call(server: &Server, content: &str, max_tokens: u32) -> (u16, String) {
    let body = json!({"model": "headrace-demo", "max_tokens": max_tokens, "stream": true,
        "messages": [{"role": "user", "content": content}]});
    let response = server.send(&server.key, &body).await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let status = response.status().as_u16();
    response.text().await.unwrap();
    (status, id)
}

fn json_of(server: &Server, args: &[&str]) -> Value {
    serde_json::from_str(&server.ok(&[args, &["--json"]].concat())).unwrap()
}

fn ids(found: &Value) -> Vec<String> {
    found["data"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// Searches until `count` calls are found, because a trace is written a moment after its answer.
fn found(server: &Server, args: &[&str], count: usize) -> Value {
    let began = Instant::now();
    loop {
        let found = json_of(server, args);
        if ids(&found).len() == count {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{args:?}: {found:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_found_summed_and_seen_as_they_go() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::up(&root.path().join("data"), &[]);
    let mut calls = Vec::new();
    for n in 0..4 {
        let (status, id) = call(&server, &format!("What is a token? Say it {n} times."), 12).await;
        assert_eq!(status, 200);
        calls.push(id);
    }
    let (status, refused) = call(&server, &"word ".repeat(4_000), 12).await;
    assert_eq!(status, 400);
    let all = found(&server, &["requests"], 5);
    let newest_first: Vec<_> = std::iter::once(&refused).chain(calls.iter().rev()).cloned().collect();
    assert_eq!(ids(&all), newest_first);
    let of = |args: &[&str], count| ids(&found(&server, &[&["requests"], args].concat(), count));
    assert_eq!(of(&["--outcome", "refused"], 1), std::slice::from_ref(&refused));
    assert_eq!(of(&["--stage", "render"], 1), std::slice::from_ref(&refused));
    assert_eq!(of(&["--text", "CONTEXT"], 1), std::slice::from_ref(&refused));
    assert_eq!(of(&["--dearer-than", "0"], 4).len(), 4);
    assert_eq!(of(&["--model", "headrace-demo", "--outcome", "completed", "--since", "1h"], 4).len(), 4);
    assert!(of(&["--slower-than", "1h"], 0).is_empty() && of(&["--org", "nobody"], 0).is_empty());
    // Pagination.
    let first = found(&server, &["requests", "--limit", "2"], 2);
    let next = first["next"].as_str().unwrap().to_owned();
    assert_eq!(of(&["--after", &next], 3), newest_first[2..]);
    assert!(server.ok(&["requests", "--limit", "2"]).contains(&format!("--after {next}")));

    // The money equals the ledger's.
    let charged: i64 = all["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["cost"]["charged_nano_dollars"].as_i64().unwrap())
        .sum();
    assert!(charged > 0);
    let usage = json_of(&server, &["usage", "--by", "key,model"]);
    assert_eq!(usage["total"]["charged"]["nano_dollars"], charged.to_string());
    assert_eq!((usage["total"]["calls"].as_u64(), usage["total"]["refused"].as_u64()), (Some(4), Some(1)));
    let with_key =
        usage["rows"].as_array().unwrap().iter().find(|row| row["calls"] == 4).expect("all under one key");
    assert!(with_key["key"].as_str().unwrap().starts_with("key"), "{with_key}");
    assert_eq!(with_key["model"], "headrace-demo");
    let status = json_of(&server, &["status"]);
    let revenue = &status["value"]["totals"]["revenue"];
    assert_eq!(revenue.as_i64().or_else(|| revenue.as_str()?.parse().ok()), Some(charged), "{status:#}");
    let csv = server.ok(&["usage", "--csv", "--interval", "month"]);
    assert!(csv.starts_with("start,calls,"), "{csv}");
    let statement = json_of(&server, &["statement"]);
    assert_eq!(statement["total"]["nano_dollars"], charged.to_string());
    assert!(server.ok(&["statement"]).contains("Statement of project default"));
    assert!(
        String::from_utf8_lossy(&server.command(&["statement", "--project", "nobody"]).stderr)
            .contains("nobody")
    );

    // The first of the four calls found nothing in the cache; the others found its prefix.
    let cache = json_of(&server, &["cache", "--by", "model"]);
    assert_eq!(cache["calls"], 4);
    assert!(cache["rows"][0]["prompt_tokens"].as_u64() > Some(0), "{cache:#}");

    // The current state. The figures of a minute cover whole seconds, without the current one.
    let began = Instant::now();
    let now = loop {
        let now = json_of(&server, &["now"])["value"].clone();
        let counted = |what: &str| now["per_minute"][what].as_u64().unwrap_or_default();
        if counted("completed") + counted("refused") >= 5 {
            break now;
        }
        assert!(began.elapsed() < PATIENCE, "{now:#}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(
        (now["in_flight"]["total"].as_u64(), now["per_minute"]["refused"].as_u64()),
        (Some(0), Some(1)),
        "{now:#}"
    );
    assert_eq!(now["per_minute"]["completed"], 4);
    assert_eq!(now["per_minute"]["spend_nano_dollars"], charged.to_string());
    assert_eq!(now["notes"][0]["request"], refused);
    assert!(now["kv"]["blocks"].as_u64() > Some(0));
}

/// A call in flight is shown with its stage.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_is_seen_in_its_stage() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::up(&root.path().join("data"), &[]);
    let body = json!({"model": "headrace-demo", "max_tokens": 1900, "n": 8, "stream": true, "ignore_eos": true,
        "messages": [{"role": "user", "content": "Count."}]});
    let began = Instant::now();
    let (mut response, mut id) = (None, String::new());
    let seen = loop {
        let now = json_of(&server, &["now"])["value"].clone();
        let call = now["calls"].as_array().unwrap().iter().find(|call| call["id"] == id.as_str()).cloned();
        if call.as_ref().is_some_and(|call| call["stage"] == "decode") {
            assert_eq!(now["in_flight"]["by_stage"]["decode"], 1);
            break call.unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{now:#}");
        // Starts the first call, or another one if the previous call ended between two looks.
        if call.is_none() {
            let asked = server.send(&server.key, &body).await;
            assert_eq!(asked.status(), 200);
            id = asked.headers()["x-request-id"].to_str().unwrap().to_owned();
            response = Some(asked);
        }
    };
    assert!(seen["age_us"].as_f64() > Some(0.0));
    assert_eq!((seen["model"].as_str(), seen["org"].as_str()), (Some("headrace-demo"), Some("default")));
    assert!(seen["key"].as_str().unwrap().starts_with("key"), "{seen}");
    drop(response);
}

/// A rule for each outcome that needs no judge.
const RULES: &str = r#"
[[moderation.rules]]
name = "forbidden"
kind = "words"
words = ["nightingale"]
action = "block"

[[moderation.rules]]
name = "addresses"
kind = "pii"
entities = ["email"]
action = "redact"
applies_to = "output"

[[moderation.rules]]
name = "tickets"
kind = "regex"
pattern = "TICKET-[0-9]{4,9}"
action = "block"
applies_to = "output"
dry_run = true
"#;

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_found_by_the_verdicts_of_content_rules_and_explained() {
    let root = tempfile::tempdir().unwrap();
    let key = "sk-verdicts-0123456789abcdefghijkl";
    let server = Server::serve(root.path(), RULES, Some(key));
    let mut calls = Vec::new();
    for (prompt, status) in [
        ("All is well.", 200),
        ("Sing, nightingale.", 400),
        ("Write to ann@example.com.", 200),
        ("See TICKET-12345.", 200),
    ] {
        // The answer begins with the prompt.
        let body = json!({"model": "headrace-demo", "prompt": prompt, "echo": true, "max_tokens": 4});
        let url = format!("{}/v1/completions", server.url);
        let call = reqwest::Client::new().post(url).bearer_auth(key).body(body.to_string());
        let call = call.header("content-type", "application/json").timeout(PATIENCE);
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{prompt}");
        calls.push(answer.headers()["x-request-id"].to_str().unwrap().to_owned());
    }
    let [_, blocked, redacted, dry_run] = &calls[..] else { panic!("{calls:?}") };
    found(&server, &["requests"], 4);
    for (args, expected) in [
        (vec!["--moderation", "any"], vec![dry_run, redacted, blocked]),
        (vec!["--moderation", "blocked"], vec![blocked]),
        (vec!["--moderation", "redacted"], vec![redacted]),
        (vec!["--moderation", "dry_run"], vec![dry_run]),
        (vec!["--moderation", "flagged"], vec![]),
        (vec!["--content-rule", "addresses"], vec![redacted]),
        (vec!["--content-rule", "addresses", "--moderation", "blocked"], vec![]),
        (vec!["--moderation", "any", "--outcome", "completed"], vec![dry_run, redacted]),
    ] {
        let rows = found(&server, &[&["requests"], &args[..]].concat(), expected.len());
        assert_eq!(ids(&rows).iter().collect::<Vec<_>>(), expected, "{args:?}");
    }
    let rows = found(&server, &["requests", "--moderation", "dry_run"], 1);
    let verdict = json!([{"rule": "tickets", "action": "flag", "kind": "regex", "place": "answer", "dry_run": "block"}]);
    assert_eq!(rows["data"][0]["verdicts"], verdict);

    let bad = server.command(&["requests", "--moderation", "stopped"]);
    let error = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(!bad.status.success(), "{error}");
    assert!(error.contains("any, blocked, redacted, flagged, dry_run, no_verdict"), "{error}");

    for (id, parts) in [
        (
            blocked,
            ["The rule `forbidden` (words) refused the request.", "HTTP 400 with the code `content_policy`."],
        ),
        (
            redacted,
            ["The rule `addresses` (pii) replaced its matches", "The answer with the matches replaced."],
        ),
        (dry_run, ["in a dry run.", "To apply the rule, remove `dry_run`"]),
    ] {
        let text = server.ok(&["trace", id, "--explain"]);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("content rules"), "{text}");
        for part in parts {
            assert!(words.contains(part), "{part}: {text}");
        }
    }
}
