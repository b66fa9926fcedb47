//! Free tiers, lots, contracts, refunds and low balances through the whole program: from commands and settings to headers,
//! refusals and statements.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use common::{Server, question};
use serde_json::{Value, json};

const KEY: &str = "sk-lots-test-0123456789abcdefghijklmnopqr";

const SETTINGS: &str = r#"
[[models]]
name = "headrace-demo"
path = "builtin:demo"

[[free_tiers]]
name = "daily"
each = "key"
measure = "requests"
limit = 2
zone = "Asia/Tokyo"
"#;

/// An answer: its status, its headers by name, and its body.
struct AskedCall {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: Value,
}

impl AskedCall {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn text(&self, at: &str) -> &str {
        self.body.pointer(at).and_then(Value::as_str).unwrap_or_default()
    }
}

async fn ask(server: &Server, key: &str, max_tokens: u32) -> AskedCall {
    let mut body = question(json!({ "max_tokens": max_tokens }));
    body["model"] = json!("headrace-demo");
    let answer = server.send(key, &body).await;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    AskedCall { status, headers, body: serde_json::from_str(&answer.text().await.unwrap()).unwrap() }
}

fn json_of(server: &Server, arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&server.ok(&arguments)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_tier_a_contract_a_refund_and_a_low_balance_work_together() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::serve(root.path(), SETTINGS, Some(KEY));
    server.ok(&["orgs", "create", "poor"]);
    server.ok(&["projects", "create", "poor-app", "--org", "poor"]);
    let created = server.ok(&["keys", "create", "--name", "poor", "--project", "poor-app"]);
    let poor = created.lines().next().unwrap().to_owned();

    // Two calls a day are free, and the third one needs money.
    for left in ["1", "0"] {
        let asked = ask(&server, &poor, 16).await;
        assert_eq!(asked.status, 200, "{:?}", asked.body);
        assert_eq!(asked.header("x-headrace-free-left"), Some(left));
        assert_eq!(asked.header("x-headrace-free-unit"), Some("requests"));
        assert!(asked.header("x-headrace-free-resets").unwrap().ends_with("T15:00:00Z"));
    }
    let refused = ask(&server, &poor, 16).await;
    assert_eq!((refused.status, refused.text("/error/code")), (402, "out_of_money"));
    let message = refused.text("/error/message");
    assert!(message.contains("Of free tier `daily`, 0 of 2 requests a day are left"), "{message}");
    let listed = server.ok(&["free-tiers", "list"]);
    assert!(listed.contains("daily") && listed.contains("2 requests a day"), "{listed}");

    // A contract pays for it, and a refund reduces what is owed.
    server.ok(&["lots", "add", "1", "--org", "poor", "--contract", "--reference", "contract-7"]);
    let again = server.ok(&["lots", "add", "1", "--org", "poor", "--contract", "--reference", "contract-7"]);
    assert!(again.contains("before"), "{again}");
    let paid = ask(&server, &poor, 16).await;
    assert_eq!(paid.status, 200, "{:?}", paid.body);
    let request = paid.header("x-request-id").unwrap().to_owned();
    let refund = ["refund", &request, "--reference", "ticket-1"];
    let first = server.ok(&refund);
    assert!(first.contains("refunded to organisation poor"), "{first}");
    assert!(server.ok(&refund).contains("before"), "once per reference");
    let more = server.command(&["refund", &request, "--amount", "0.000001", "--reference", "ticket-2"]);
    assert!(!more.status.success() && common::said(&more).contains("more cannot be refunded"), "{more:?}");
    let lots = json_of(&server, &["lots", "list", "--org", "poor"]);
    assert!(lots.to_string().contains("\"left\":1000000000"), "the refund restored the contract: {lots}");
    let statement = json_of(&server, &["statement", "--project", "poor-app"]);
    assert_eq!(statement["after_refunds"]["nano_dollars"], {
        let of = |name: &str| statement[name]["nano_dollars"].as_str().unwrap().parse::<i64>().unwrap();
        assert!(of("refunded") < 0 && of("total") > 0, "{statement}");
        json!((of("total") + of("refunded")).to_string())
    });

    // A lot of a little money: the call is refused, or cut to what the money covers.
    server.ok(&["lots", "end", "lot_1"]);
    server.ok(&["lots", "add", "0.0001", "--org", "poor", "--promotional", "--ends", "2099-01-01"]);
    assert_eq!(ask(&server, &poor, 1_000).await.status, 402);
    server.ok(&["projects", "low-balance", "poor-app", "cap"]);
    let capped = ask(&server, &poor, 1_000).await;
    assert_eq!(capped.status, 200, "{:?}", capped.body);
    let tokens: u64 = capped.header("x-headrace-capped").unwrap().parse().unwrap();
    assert!((1..1_000).contains(&tokens), "{tokens}");
    let verified = json_of(&server, &["ledger", "verify"]);
    assert_eq!(verified["finding_count"], json!(0), "{verified}");
    let audit = server.ok(&["audit"]);
    for act in ["lot.make", "lot.end", "charge.refund", "free_tier.set", "low_balance.set"] {
        assert!(audit.contains(act), "{act}: {audit}");
    }
}
