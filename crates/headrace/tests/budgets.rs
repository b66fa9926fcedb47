//! Budgets by window through the whole program: from the settings and from commands to refusals over HTTP, alerts, a raise,
//! a reload and a restart.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use common::{Server, question};
use serde_json::{Value, json};

const KEY: &str = "sk-budgets-test-0123456789abcdefghijklmno";

const MODEL: &str = "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n";
/// Two requests a day for each key, and an alert at the first of ten cents of a project.
const BUDGETS: &str = r#"
[[budgets]]
name = "calls"
each = "key"
per = "day"
measure = "requests"
limit = 2
zone = "Asia/Tokyo"

[[budgets]]
name = "watch"
each = "project"
measure = "tokens"
limit = 1000
soft = true
alerts = [1, 100]
"#;

/// The status, the code and the message of an answer, and its `Retry-After` in seconds.
async fn ask(server: &Server, key: &str) -> (u16, String, String, Option<u64>) {
    let mut body = question(json!({ "max_tokens": 16 }));
    body["model"] = json!("headrace-demo");
    let answer = server.send(key, &body).await;
    let status = answer.status().as_u16();
    let wait = answer.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
    let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let text = |at: &str| body.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    (status, text("/error/code"), text("/error/message"), wait)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_of_the_settings_and_of_operators_refuse_calls_and_raise_alerts() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::serve(root.path(), &format!("{MODEL}{BUDGETS}"), Some(KEY));
    for _ in 0..2 {
        assert_eq!(ask(&server, KEY).await.0, 200);
    }
    let (status, code, message, wait) = ask(&server, KEY).await;
    assert_eq!((status, code.as_str()), (429, "quota_exceeded"), "{message}");
    assert!(message.starts_with("Budget `calls` allows key `key_"), "{message}");
    assert!(message.contains("2 requests a day: 2 requests used, 0 requests reserved"), "{message}");
    assert!(message.contains("T15:00:00Z") && message.contains("headrace budgets raise calls"), "{message}");
    assert!((1..=86_400).contains(&wait.unwrap()), "{wait:?}");
    // Another key has a counter of its own.
    let created = server.ok(&["keys", "create", "--name", "other"]);
    let other = created.lines().next().unwrap().to_owned();
    assert_eq!(ask(&server, &other).await.0, 200);

    let listed = server.ok(&["budgets", "list"]);
    assert!(listed.contains("2 requests a day") && listed.contains("soft"), "{listed}");
    let alerts = server.ok(&["budgets", "alerts"]);
    assert!(alerts.contains("watch") && alerts.contains("1 %"), "{alerts}");
    assert_eq!(alerts.lines().count(), 2, "the head and one alert: {alerts}");

    let raised = server.ok(&["budgets", "raise", "calls", "3", "--hours", "1"]);
    assert!(raised.contains("3 requests until"), "{raised}");
    assert_eq!(ask(&server, KEY).await.0, 200);
    assert_eq!(ask(&server, KEY).await.0, 429);

    // A budget in dollars of an operator.
    server.ok(&["budgets", "set", "poor", "0.0000001", "--per", "hour", "--each", "org"]);
    let (status, code, message, _) = ask(&server, &other).await;
    assert_eq!((status, code.as_str()), (402, "budget_rule_exceeded"), "{message}");
    let audit = server.ok(&["audit"]);
    for act in ["budget_rule.set", "budget_rule.raise", "settings"] {
        assert!(audit.contains(act), "{act}: {audit}");
    }
    let refused = server.command(&["budgets", "set", "bad", "1", "--zone", "Mars/Olympus"]);
    assert!(!refused.status.success() && common::said(&refused).contains("zone"), "{refused:?}");

    // The counters are still there after a restart, which changes the settings.
    server.stop();
    let fewer = BUDGETS.split("[[budgets]]\nname = \"watch\"").next().unwrap();
    let server = Server::serve(root.path(), &format!("{MODEL}{fewer}"), Some(KEY));
    let listed = server.ok(&["budgets", "list"]);
    assert!(!listed.contains("watch") && listed.contains("poor"), "{listed}");
    assert_eq!(ask(&server, KEY).await.1, "quota_exceeded");
    server.ok(&["budgets", "remove", "poor"]);
    assert_eq!(ask(&server, &other).await.0, 200);
    let verified: Value = serde_json::from_str(&server.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!(verified["finding_count"], json!(0), "{verified}");
}
