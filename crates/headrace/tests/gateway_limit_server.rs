//! Three gateways over one PostgreSQL database count their limits per minute in one Redis server: their sum, tokens that
//! calls did not use, and a kill of the server under load. Needs `HEADRACE_POSTGRES_BIN` and `HEADRACE_REDIS_SERVER`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;
#[path = "../../valkey/tests/support/redis.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod redis;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program};
use postgres::{PostgresServer, versions};
use redis::RedisServer;
use serde_json::{Value, json};

const KEY: &str = "sk-integration-test-0123456789abcdef";
/// Requests per minute. Ten in a second.
const LIMIT: u64 = 600;

fn gateway(root: &Path, name: &str, database: &str, limits: &str) -> Server {
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database);
    command.env("HEADRACE_LIMITS__VALKEY__URL", limits).arg("up");
    Server::begin(command, &root.join(name), &["--admin-listen", "off"], KEY)
}

/// Makes a key, and waits until all gateways know it.
async fn make_key(name: &str, limit: [&str; 2], gateways: &[Server]) -> String {
    let project = ["--project", "default", "--json"];
    let made = gateways[0].ok(&[&["keys", "create", "--name", name][..], &limit, &project].concat());
    let made: Value = serde_json::from_str(&made).unwrap();
    let secret = made["value"]["secret"].as_str().unwrap().to_owned();
    let http = reqwest::Client::new();
    for gateway in gateways {
        let until = Instant::now() + PATIENCE;
        while models(&http, gateway, &secret).await == 401 {
            assert!(Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    secret
}

/// Makes a call that counts as a request and uses no tokens. Returns its status.
async fn models(http: &reqwest::Client, gateway: &Server, key: &str) -> u16 {
    let call = http.get(format!("{}/v1/models", gateway.url)).bearer_auth(key).timeout(PATIENCE);
    call.send().await.unwrap().status().as_u16()
}

/// Calls the gateways in turn for a time, faster than the limit allows. Returns the number of calls that passed, and the
/// longest call.
async fn load(gateways: &[Server], key: &str, time: Duration) -> (u64, Duration) {
    let (http, began) = (reqwest::Client::new(), Instant::now());
    let (mut passed, mut longest) = (0, Duration::ZERO);
    while began.elapsed() < time {
        for gateway in gateways {
            let asked = Instant::now();
            let status = models(&http, gateway, key).await;
            longest = longest.max(asked.elapsed());
            assert!(status == 200 || status == 429, "{status}");
            passed += u64::from(status == 200);
        }
    }
    (passed, longest)
}

fn bound(since: Instant) -> u64 {
    LIMIT + LIMIT * u64::try_from(since.elapsed().as_millis()).unwrap() / 60_000 + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_count_in_one_server_and_keep_the_limit_while_it_is_killed() {
    let Some(bin) = versions().into_iter().last() else { return };
    let Some(mut limits) = RedisServer::start(&[]) else { return };
    let database = PostgresServer::start(&bin);
    let root = tempfile::tempdir().unwrap();
    let open = |name| gateway(root.path(), name, &database.url(), limits.url());
    let gateways = ["a", "b", "c"].map(open);

    // What calls held and did not use is there for the next gateway.
    let key = make_key("tokens", ["--tokens-per-minute", "1000"], &gateways).await;
    let http = reqwest::Client::new();
    for round in 0..9 {
        let gateway = &gateways[round % 3];
        let body =
            json!({"model": "headrace-demo", "prompt": "a", "max_tokens": 400, "stop": ["e", " ", "a"]});
        let call = http.post(format!("{}/v1/completions", gateway.url)).bearer_auth(&key).json(&body);
        let answer = call.timeout(PATIENCE).send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert_eq!(status, 200, "round {round}: {text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    // All of the limit passes, whichever gateway a call comes to, and no more.
    let began = Instant::now();
    let key = make_key("requests", ["--requests-per-minute", &LIMIT.to_string()], &gateways).await;
    // Each gateway answered one request meanwhile.
    let (mut passed, _) = load(&gateways[2..], &key, Duration::from_secs(2)).await;
    assert!(passed + 3 >= LIMIT, "{passed}");

    limits.kill();
    let killed = Instant::now();
    let (share, longest) = load(&gateways, &key, Duration::from_secs(4)).await;
    println!(
        "{share} passed in {:?} without the server, the longest call took {longest:?}",
        killed.elapsed()
    );
    passed += share;
    assert!(share >= 20, "each gateway has a third of ten a second: {share}");
    assert!(passed + 3 <= bound(began), "{passed}");
    limits.restart();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (again, _) = load(&gateways, &key, Duration::from_secs(4)).await;
    passed += again;
    assert!(again >= 20, "{again}");
    assert!(passed + 3 <= bound(began), "{passed}");
}
