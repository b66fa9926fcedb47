//! Three gateways over one PostgreSQL database: one balance, one set of keys, kills of gateways and of the database. One
//! suite for each version of PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command
//! does. `HEADRACE_ROUNDS=1000` asks for more rounds, `HEADRACE_KILLS=100` for
//! more kills.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/callers.rs"]
mod callers;
#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use callers::{CallCounts, call_until_stopped, verified_when_idle};
use common::{Server, program, question};
use postgres::{PostgresServer, versions};
use serde_json::{Value, json};

const KEY: &str = "sk-integration-test-0123456789abcdef";

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A token costs a dollar, so that a call of eight tokens holds eight. There is no credit at first.
const PRICES: &str = r#"
[[prices]]
model = "headrace-demo"
input = "0"
output = "1000000"

[first_start]
credit = "0"
"#;

fn gateway(root: &Path, name: &str, database: &str, key: &str, prices: bool) -> Server {
    let dir = root.join(name);
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", key).env("HEADRACE_STORAGE__URL", database);
    if prices {
        let file = root.join(format!("{name}.toml"));
        std::fs::write(&file, PRICES).unwrap();
        command.arg("serve").arg("--config").arg(file);
    } else {
        command.arg("up");
    }
    Server::begin(command, &dir, &["--admin-listen", "off"], key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_calls_over_three_gateways_with_money_for_one_exactly_one_is_answered() {
    for bin in versions() {
        println!("{}", bin.display());
        let database = PostgresServer::start(&bin);
        let root = tempfile::tempdir().unwrap();
        // They start together on an empty database, with the same first key.
        let gateways: Vec<Server> = std::thread::scope(|scope| {
            let start = |name| {
                let (root, url) = (root.path(), database.url());
                scope.spawn(move || gateway(root, name, &url, KEY, true))
            };
            ["a", "b", "c"].map(start).into_iter().map(|started| started.join().unwrap()).collect()
        });
        let keys: Value = serde_json::from_str(&gateways[1].ok(&["keys", "list", "--json"])).unwrap();
        assert_eq!(keys["value"].as_array().map(Vec::len), Some(1), "{keys}");
        let status = gateways[1].ok(&["status"]);
        let live = status.lines().filter(|line| line.contains(": live, headrace ")).count();
        let this = status.lines().filter(|line| line.contains("(this one)")).count();
        assert_eq!((live, this), (3, 1), "{status}");
        let http = reqwest::Client::new();
        for round in 0..from_env("HEADRACE_ROUNDS", 5) {
            let reference = format!("round-{round}");
            gateways[0].ok(&["credit", "grant", "8", "--org", "default", "--reference", &reference]);
            let body = question(json!({ "max_tokens": 8 })).to_string();
            let calls: Vec<_> = (0..64)
                .map(|n| {
                    let call = http.post(format!("{}/v1/chat/completions", gateways[n % 3].url));
                    let call = call.bearer_auth(KEY).header("content-type", "application/json");
                    let call = call.body(body.clone()).timeout(common::PATIENCE);
                    tokio::spawn(async move { call.send().await.unwrap().status().as_u16() })
                })
                .collect();
            let mut statuses = Vec::new();
            for call in calls {
                statuses.push(call.await.unwrap());
            }
            let of = |status| statuses.iter().filter(|found| **found == status).count();
            assert_eq!((of(200), of(402)), (1, 63), "round {round}: {statuses:?}");
        }
        // A budget that one gateway sets counts at all of them, to the call.
        let credit = (64 * 8).to_string();
        gateways[0].ok(&["credit", "grant", &credit, "--org", "default", "--reference", "for the budget"]);
        let budget =
            ["budgets", "set", "ten", "10", "--measure", "requests", "--per", "day", "--each", "key"];
        gateways[1].ok(&budget);
        let body = question(json!({ "max_tokens": 8 })).to_string();
        let calls: Vec<_> = (0..64)
            .map(|n| {
                let call = http.post(format!("{}/v1/chat/completions", gateways[n % 3].url));
                let call = call.bearer_auth(KEY).header("content-type", "application/json");
                let call = call.body(body.clone()).timeout(common::PATIENCE);
                tokio::spawn(async move { call.send().await.unwrap().status().as_u16() })
            })
            .collect();
        let mut statuses = Vec::new();
        for call in calls {
            statuses.push(call.await.unwrap());
        }
        let of = |status| statuses.iter().filter(|found| **found == status).count();
        assert_eq!((of(200), of(429)), (10, 54), "{statuses:?}");
        gateways[2].ok(&["budgets", "remove", "ten"]);
        let spent = 8 * 64 - 10 * 8;
        gateways[0].ok(&[
            "credit",
            "correct",
            &spent.to_string(),
            "--org",
            "default",
            "--reason",
            "the rest",
        ]);
        let verified: Value = serde_json::from_str(&gateways[2].ok(&["ledger", "verify", "--json"])).unwrap();
        assert_eq!(verified["finding_count"], json!(0), "{verified}");

        // A key that one gateway makes works at another one. Its end at a third one counts for the next call.
        for _ in 0..10 {
            let [fresh, (id, secret)] = [key_made(&gateways[0]), key_made(&gateways[0])];
            // A command may name what another gateway made a moment ago.
            gateways[1].ok(&["keys", "revoke", &fresh.0]);
            until_status(&gateways[2], &secret, 402).await;
            gateways[1].ok(&["keys", "revoke", &id]);
            let (status, body) = gateways[2].chat(&secret, question(json!({ "max_tokens": 8 }))).await;
            assert_eq!(status, 401, "the first call after the revocation: {body}");
        }
        for mut gateway in gateways {
            gateway.stop();
        }
        // The directory remembers the database.
        let again = Server::up_with_key_kept(&root.path().join("a"), KEY);
        let balance = again.ok(&["credit", "show"]);
        assert!(balance.contains("0.00"), "{balance}");
    }
}

/// Makes a key at a gateway. Returns its id and its secret.
fn key_made(gateway: &Server) -> (String, String) {
    let made = gateway.ok(&["keys", "create", "--name", "other", "--project", "default", "--json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made["value"]["key"]["id"]), text(&made["value"]["secret"]))
}

async fn until_status(gateway: &Server, key: &str, wanted: u16) {
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        let (status, body) = gateway.chat(key, question(json!({ "max_tokens": 8 }))).await;
        if status == wanted {
            return;
        }
        assert!(Instant::now() < until, "{status}: {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_gateways_and_of_the_database_lose_nothing_and_sell_nothing_twice() {
    for bin in versions() {
        println!("{}", bin.display());
        let mut database = PostgresServer::start(&bin);
        let root = tempfile::tempdir().unwrap();
        let url = database.url();
        let mut gateways: Vec<Server> =
            ["a", "b", "c"].map(|name| gateway(root.path(), name, &url, KEY, false)).into_iter().collect();
        let (http, seen) = (reqwest::Client::new(), Arc::new(CallCounts::default()));
        let clients: Vec<_> = (0..6)
            .map(|n| {
                // The third gateway is the one that is killed.
                let url = gateways[n % 2].url.clone();
                tokio::spawn(call_until_stopped(http.clone(), url, KEY, Arc::clone(&seen)))
            })
            .collect();
        for kill in 0..from_env("HEADRACE_KILLS", 3) {
            let last = gateways.pop().unwrap();
            let doomed =
                tokio::spawn(call_until_stopped(http.clone(), last.url.clone(), KEY, Arc::clone(&seen)));
            tokio::time::sleep(Duration::from_millis(300)).await;
            last.signal("KILL");
            drop(last);
            doomed.abort();
            tokio::time::sleep(Duration::from_millis(200)).await;
            database.crash();
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            let before = seen.answered.load(Ordering::SeqCst);
            database.resume();
            let back = Instant::now();
            while seen.answered.load(Ordering::SeqCst) < before + 4 {
                assert!(back.elapsed() < Duration::from_secs(5), "kill {kill}: no call is answered");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            gateways.push(gateway(root.path(), "c", &url, KEY, false));
        }
        seen.stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.await.unwrap();
        }
        // The holds of killed gateways lapse.
        let verified = verified_when_idle(&gateways[0], Duration::from_secs(18)).await;
        let (answered, settled) =
            (seen.answered.load(Ordering::SeqCst), verified["totals"]["settled"].as_u64().unwrap());
        assert!(settled >= answered, "{answered} answers, {settled} settlements");
        println!(
            "{answered} answers, {settled} settlements, {} refusals while the database was away",
            seen.unavailable.load(Ordering::SeqCst)
        );
    }
}
