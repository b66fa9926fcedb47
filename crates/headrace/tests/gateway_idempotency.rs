//! Idempotency keys over three gateways and one PostgreSQL database: of many equal requests at all gateways one runs and
//! is charged, and all get the same bytes, also if a gateway is killed meanwhile. `HEADRACE_POSTGRES_BIN` names the
//! database's programs, as the step `postgres` of the test command does. The first version is enough here.
//! `HEADRACE_TWIN_ROUNDS` asks for more rounds, `HEADRACE_SEED` for other moments.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/callers.rs"]
mod callers;
#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

use std::path::Path;
use std::time::{Duration, Instant};

use callers::verified_when_idle;
use common::{PATIENCE, Server, program, question};
use postgres::{PostgresServer, versions};
use serde_json::{Value, json};

const KEY: &str = "sk-integration-test-0123456789abcdef";
const TWINS: usize = 64;
/// Within this time another gateway frees the keys of one that was killed.
const LEASE: Duration = Duration::from_secs(15);

fn gateway(root: &Path, name: &str, database: &str) -> Server {
    let mut command = program();
    command.arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database);
    Server::begin(command, &root.join(name), &["--admin-listen", "off"], KEY)
}

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What one twin got.
#[derive(Debug)]
struct TwinAnswer {
    body: Vec<u8>,
    is_replayed: bool,
    content_type: String,
}

/// Sends a request again and again until it gets an answer, first to one gateway, and to the others if that one is gone.
async fn twin(http: reqwest::Client, urls: Vec<String>, key: String, body: String) -> TwinAnswer {
    let began = Instant::now();
    for attempt in 0.. {
        assert!(began.elapsed() < LEASE + PATIENCE, "no answer");
        let url = &urls[attempt % urls.len()];
        let call = http.post(format!("{url}/v1/chat/completions")).bearer_auth(KEY);
        let call = call.header("content-type", "application/json").header("idempotency-key", &key);
        let Ok(answer) = call.body(body.clone()).timeout(PATIENCE).send().await else { continue };
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        // An answer that breaks off was not the answer.
        let Ok(bytes) = answer.bytes().await else { continue };
        match status {
            200 => {
                return TwinAnswer {
                    body: bytes.to_vec(),
                    is_replayed: text("idempotent-replayed").as_deref() == Some("true"),
                    content_type: text("content-type").unwrap(),
                };
            }
            409 | 429 | 503 => {
                let said: Value = serde_json::from_slice(&bytes).unwrap();
                assert_ne!(said["error"]["code"], "idempotency_answer_gone", "{said}");
                assert!(text("retry-after").is_some(), "{said}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            status => panic!("{status}: {}", String::from_utf8_lossy(&bytes)),
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twins_at_three_gateways_run_once_and_get_the_same_bytes() {
    let Some(bin) = versions().into_iter().next() else { return };
    let database = PostgresServer::start(&bin);
    let root = tempfile::tempdir().unwrap();
    let mut gateways: Vec<Server> = tokio::task::block_in_place(|| {
        ["a", "b", "c"].map(|name| gateway(root.path(), name, &database.url()))
    })
    .into_iter()
    .collect();
    let http = reqwest::Client::new();
    let rounds = from_env("HEADRACE_TWIN_ROUNDS", 4);
    let seed = from_env("HEADRACE_SEED", 1);
    println!("{rounds} rounds of {TWINS} twins, seed {seed}");
    let mut numbers = seed;
    let mut kill_rounds = Vec::new();
    for round in 0..rounds {
        // The last gateway is killed in every fourth round, and another one takes its place.
        let kills = round % 4 == 3;
        let stream = round % 3 != 0;
        let (tokens, began) = (if kills { 2_000 } else { 8 }, Instant::now());
        let body =
            question(json!({"max_tokens": tokens, "min_tokens": tokens, "stream": stream})).to_string();
        let urls: Vec<String> = gateways.iter().map(|gateway| gateway.url.clone()).collect();
        let twins: Vec<_> = (0..TWINS)
            .map(|at| {
                // In a round with a kill all twins begin at the gateway that is killed.
                let first = if kills { urls.len() - 1 } else { at % urls.len() };
                let urls = urls.iter().cycle().skip(first).take(urls.len()).cloned().collect();
                tokio::spawn(twin(http.clone(), urls, format!("round-{round}"), body.clone()))
            })
            .collect();
        if kills {
            numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            tokio::time::sleep(Duration::from_millis(50 + (numbers >> 33) % 400)).await;
            let killed = gateways.pop().unwrap();
            killed.signal("KILL");
            drop(killed);
        }
        let mut answers = Vec::new();
        for twin in twins {
            answers.push(twin.await.unwrap());
        }
        let first = &answers[0];
        assert!(
            answers.iter().all(|answer| answer.body == first.body),
            "round {round}: all get the same bytes"
        );
        let expected = if stream { "text/event-stream" } else { "application/json" };
        assert!(answers.iter().all(|answer| answer.content_type == expected));
        let own = answers.iter().filter(|answer| !answer.is_replayed).count();
        // The one that ran at the killed gateway may have been answered there, or not.
        assert!(own == 1 || (kills && own == 0), "round {round}: {own} ran");
        if kills {
            kill_rounds.push(began.elapsed());
            let name = format!("after-{round}");
            let next = tokio::task::block_in_place(|| gateway(root.path(), &name, &database.url()));
            gateways.push(next);
        }
    }
    let verified = verified_when_idle(&gateways[0], LEASE + Duration::from_secs(5)).await;
    assert_eq!(verified["totals"]["settled"], json!(rounds), "one charge for each round: {verified}");
    // One that took longer than the lease ran a second time, after nothing was charged for the first.
    println!("{rounds} rounds; those with a kill took {kill_rounds:?}");
}
