//! Three gateways over one PostgreSQL database share the limits per minute: their sum, their moves, kills of gateways and
//! of the database. Runs on the last version of PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of
//! the test command does: the statements of shares run on all of them in the tests of `postgres`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program};
use postgres::{PostgresServer, versions};
use serde_json::Value;

const KEY: &str = "sk-integration-test-0123456789abcdef";
/// Requests per minute. Five in a second.
const LIMIT: u64 = 300;

fn gateway(root: &Path, name: &str, database: &str) -> Server {
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database).arg("up");
    Server::begin(command, &root.join(name), &["--admin-listen", "off"], KEY)
}

/// Makes a key with the limit, and waits until all gateways know it. Each of them then answered one request.
async fn limited_key(name: &str, gateways: &[&Server]) -> String {
    let limit = LIMIT.to_string();
    let project = ["--project", "default", "--requests-per-minute", &limit, "--json"];
    let made = gateways[0].ok(&[&["keys", "create", "--name", name][..], &project].concat());
    let made: Value = serde_json::from_str(&made).unwrap();
    let secret = made["value"]["secret"].as_str().unwrap().to_owned();
    let http = reqwest::Client::new();
    for gateway in gateways {
        let until = Instant::now() + PATIENCE;
        while ask(&http, gateway, &secret).await.0 == 401 {
            assert!(Instant::now() < until);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    secret
}

/// Makes one call, which counts as a request. Returns its status, and the limit, the remainder and the wait that it names.
async fn ask(http: &reqwest::Client, gateway: &Server, key: &str) -> (u16, [Option<u64>; 3]) {
    let call = http.get(format!("{}/v1/models", gateway.url)).bearer_auth(key).timeout(PATIENCE);
    let answer = call.send().await.unwrap();
    let number = |name| answer.headers().get(name).and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    let names = ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "retry-after"];
    (answer.status().as_u16(), names.map(number))
}

/// Calls the gateways in turn for a time, faster than the limit allows. Returns the number of calls that passed.
async fn load(gateways: &[&Server], key: &str, time: Duration) -> u64 {
    let (http, began) = (reqwest::Client::new(), Instant::now());
    let mut passed = 0;
    while began.elapsed() < time {
        for gateway in gateways {
            let (status, [limit, left, wait]) = ask(&http, gateway, key).await;
            assert!(status == 200 || status == 429, "{status}");
            if status == 429 {
                assert_eq!(limit, Some(LIMIT), "the headers name the limit over all gateways");
                assert!(left.unwrap() <= LIMIT && wait.unwrap() >= 1);
            }
            passed += u64::from(status == 200);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    passed
}

/// Calls one gateway for ten seconds. At least 90 % of what the limit refills meanwhile must pass.
async fn has_the_limit(gateway: &Server, key: &str, what: &str) {
    let began = Instant::now();
    let passed = load(&[gateway], key, Duration::from_secs(10)).await;
    println!("{what}: {passed} passed in {:?}", began.elapsed());
    assert!(passed >= LIMIT / 6 * 9 / 10, "{what}: {passed}");
    assert!(passed <= refilled(began.elapsed()) + 1, "{what}: {passed}");
}

fn refilled(time: Duration) -> u64 {
    LIMIT * u64::try_from(time.as_millis()).unwrap() / 60_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_admit_what_one_would_and_any_of_them_gets_90_percent_within_three_seconds() {
    if let Some(bin) = versions().last() {
        println!("{}", bin.display());
        let mut database = PostgresServer::start(bin);
        let (root, url) = (tempfile::tempdir().unwrap(), database.url());
        let first = gateway(root.path(), "a", &url);
        // A lone gateway has all of a limit at once.
        let alone = limited_key("alone", &[&first]).await;
        let http = reqwest::Client::new();
        let began = Instant::now();
        let mut passed = 1;
        while ask(&http, &first, &alone).await.0 == 200 {
            passed += 1;
        }
        assert!((LIMIT..=LIMIT + refilled(began.elapsed()) + 1).contains(&passed), "{passed}");

        let [second, third] = ["b", "c"].map(|name| gateway(root.path(), name, &url));
        let all = [&first, &second, &third];
        tokio::time::sleep(Duration::from_secs(3)).await;

        // All load at one of them, which has a third at first.
        let key = limited_key("one", &all).await;
        let began = Instant::now();
        let passed = load(&[&third], &key, Duration::from_secs(3)).await;
        println!("all load at one: {passed} passed in {:?}", began.elapsed());
        assert!(passed >= (LIMIT - 3) * 9 / 10 && passed <= LIMIT + refilled(began.elapsed()), "{passed}");

        // Over all three, no more than one would admit, and no less than most of it.
        let key = limited_key("three", &all).await;
        let began = Instant::now();
        let passed = load(&all, &key, Duration::from_secs(6)).await;
        println!("all load over three: {passed} passed in {:?}", began.elapsed());
        assert!(passed <= LIMIT + refilled(began.elapsed()), "{passed}");
        assert!(passed >= LIMIT * 9 / 10, "{passed}");
        // The load moves.
        load(&[&second], &key, Duration::from_secs(3)).await;
        has_the_limit(&second, &key, "moved").await;

        // A gateway that is killed and started again in its directory gives its share back at once.
        second.signal("KILL");
        drop(second);
        let again = gateway(root.path(), "b", &url);
        load(&[&first], &key, Duration::from_secs(3)).await;
        has_the_limit(&first, &key, "killed and started again").await;
        // The share of one that stays away is free after its lease.
        drop(again);
        load(&[&third], &key, Duration::from_secs(20)).await;
        has_the_limit(&third, &key, "killed").await;

        // Without the database, shares end before others could have them.
        let mut first = first;
        database.crash();
        let away = Instant::now();
        load(&[&third], &key, Duration::from_secs(8)).await;
        has_the_share_until_lapse(&http, &third, &key, away).await;
        database.resume();
        load(&[&third], &key, Duration::from_secs(8)).await;
        has_the_limit(&third, &key, "the database is back").await;
        first.stop();
        load(&[&third], &key, Duration::from_secs(2)).await;
        has_the_limit(&third, &key, "stopped").await;
    }
}

/// Asks until calls are refused for good.
async fn has_the_share_until_lapse(http: &reqwest::Client, gateway: &Server, key: &str, away: Instant) {
    let mut last = away;
    while away.elapsed() < Duration::from_secs(16) {
        if ask(http, gateway, key).await.0 == 200 {
            last = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let held = last.duration_since(away);
    println!("without the database, calls passed for {held:?}");
    assert!(held > Duration::from_secs(10) && held < Duration::from_secs(13), "{held:?}");
}
