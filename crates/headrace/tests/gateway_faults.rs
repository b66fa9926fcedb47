//! Three gateways over one PostgreSQL database under load, while gateways are stopped, connections are cut and the
//! database fails over to its standby. No hold is sold twice, no settlement is lost or done twice. One suite for each version of
//! PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does. `HEADRACE_STOPS`,
//! `HEADRACE_CUTS` and `HEADRACE_FAILOVERS` ask for more faults, `HEADRACE_SEED` for other moments.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/callers.rs"]
mod callers;
#[path = "common/server.rs"]
mod common;
#[path = "common/cutting_proxy.rs"]
mod cutting_proxy;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;
#[path = "../../postgres/tests/support/replication.rs"]
mod replication;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use callers::{CallCounts, call_until_stopped, verified_when_idle};
use common::{Server, program};
use cutting_proxy::CuttingProxy;
use postgres::{PostgresServer, versions};
use replication::ReplicatedServers;
use serde_json::Value;
use tokio::task::JoinHandle;

const KEY: &str = "sk-integration-test-0123456789abcdef";
/// How soon calls must be answered once the database is back.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// After this time without a sign of life, other gateways declare a gateway dead.
const LEASE: Duration = Duration::from_secs(15);

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Numbers that look random and depend on a seed alone.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn from_env() -> Self {
        let seed = from_env("HEADRACE_SEED", 1);
        println!("seed {seed}");
        Self(seed)
    }

    /// A time between both, in milliseconds.
    fn between(&mut self, least: u64, most: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(least + (self.0 >> 33) % (most - least + 1))
    }
}

/// Three gateways and the clients that call them.
struct Fleet {
    gateways: Vec<Server>,
    counts: Arc<CallCounts>,
    /// What the clients of the third gateway saw.
    third: Arc<CallCounts>,
    clients: Vec<JoinHandle<()>>,
}

impl Fleet {
    /// Starts three gateways over the database, and clients for each: four for the first two, two for the third.
    async fn start(root: &Path, database: &str) -> Self {
        let start = |name: &str| {
            let mut command = program();
            command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database).arg("up");
            Server::begin(command, &root.join(name), &["--admin-listen", "off"], KEY)
        };
        let gateways =
            tokio::task::block_in_place(|| ["a", "b", "c"].map(start)).into_iter().collect::<Vec<_>>();
        let counts = Arc::<CallCounts>::default();
        // A stopped gateway refuses when it continues.
        let third = Arc::new(CallCounts { max_refusal: common::PATIENCE, ..CallCounts::default() });
        let http = reqwest::Client::new();
        let client = |gateway: &Server, counts: &Arc<CallCounts>| {
            tokio::spawn(call_until_stopped(http.clone(), gateway.url.clone(), KEY, Arc::clone(counts)))
        };
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.extend(gateways[..2].iter().map(|gateway| client(gateway, &counts)));
            clients.push(client(&gateways[2], &third));
        }
        let fleet = Self { gateways, counts, third, clients };
        fleet.counts.until_answered(4, common::PATIENCE, "at the start").await;
        fleet
    }

    /// Ends the clients, and checks the ledger once no hold is open. Returns the answered calls and the settlements.
    async fn end(self) -> (u64, u64) {
        for counts in [&self.counts, &self.third] {
            counts.stop.store(true, Ordering::SeqCst);
        }
        for client in self.clients {
            client.await.unwrap();
        }
        for gateway in &self.gateways {
            assert!(!gateway.log().contains("went back"), "{}", gateway.log());
        }
        let verified: Value = verified_when_idle(&self.gateways[0], LEASE + Duration::from_secs(3)).await;
        let of = |count: fn(&CallCounts) -> u64| count(&self.counts) + count(&self.third);
        let answered = of(|counts| counts.answered.load(Ordering::SeqCst));
        let settled = verified["totals"]["settled"].as_u64().unwrap();
        println!(
            "{answered} answers, {settled} settlements, {} refusals, {} cut calls",
            of(|counts| counts.unavailable.load(Ordering::SeqCst)),
            of(|counts| counts.cut.load(Ordering::SeqCst)),
        );
        assert_eq!(of(|counts| counts.cut.load(Ordering::SeqCst)), 0, "no gateway ended");
        (answered, settled)
    }
}

/// Runs a test for each version, at the same time: it waits for most of its time.
async fn each_version<F: Future<Output = ()> + Send + 'static>(test: impl Fn(PathBuf) -> F) {
    let tests: Vec<_> = versions().into_iter().map(|bin| tokio::spawn(test(bin))).collect();
    for test in tests {
        test.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_gateway_delays_no_other_and_continues_under_a_new_name_after_its_lease() {
    each_version(|bin| async move {
        let database = PostgresServer::start(&bin);
        let root = tempfile::tempdir().unwrap();
        let fleet = Fleet::start(root.path(), &database.url()).await;
        let mut numbers = SeededNumbers::from_env();
        let mut outlived = 0;
        for stop in 0..from_env("HEADRACE_STOPS", 3) {
            tokio::time::sleep(numbers.between(100, 500)).await;
            // The first three take less than the lease, more than it, and less again.
            let stopped_for = match stop {
                0 => numbers.between(2_000, 3_000),
                1 => numbers.between(17_000, 18_000),
                2 => numbers.between(2_000, 3_000),
                _ => numbers.between(2_000, 30_000),
            };
            outlived += u64::from(stopped_for > LEASE);
            fleet.counts.longest_us.store(0, Ordering::SeqCst);
            fleet.gateways[2].signal("STOP");
            let until = Instant::now() + stopped_for;
            while Instant::now() < until {
                fleet.counts.until_answered(1, Duration::from_secs(2), "beside a stopped gateway").await;
            }
            let longest = Duration::from_micros(fleet.counts.longest_us.load(Ordering::SeqCst));
            assert!(longest < Duration::from_millis(1_500), "stop {stop}: another call took {longest:?}");
            fleet.gateways[2].signal("CONT");
            fleet.third.until_answered(3, BACK_WITHIN, "at the gateway that was stopped").await;
            println!("stopped for {stopped_for:?}; the longest call of others took {longest:?}");
        }
        let (answered, settled) = fleet.end().await;
        // The two calls of a gateway that outlived its lease are answered without a charge.
        let unpaid = 2 * outlived;
        assert!(
            settled <= answered && answered - settled <= unpaid,
            "{answered} answers, {settled} settlements"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_no_settlement_and_settle_nothing_twice() {
    each_version(|bin| async move {
        let database = PostgresServer::start(&bin);
        let proxy = CuttingProxy::start(database.port()).await;
        let root = tempfile::tempdir().unwrap();
        let url = database.url().replace(&database.port().to_string(), &proxy.port.to_string());
        let fleet = Fleet::start(root.path(), &url).await;
        let mut numbers = SeededNumbers::from_env();
        for cut in 0..from_env("HEADRACE_CUTS", 3) {
            tokio::time::sleep(numbers.between(100, 900)).await;
            if cut % 2 == 0 {
                proxy.cut_without_answers(numbers.between(2, 60)).await;
            } else {
                proxy.cut();
            }
            let back = fleet.counts.until_answered(4, BACK_WITHIN, "after a cut").await;
            println!("cut {cut}: four calls within {back:?}");
        }
        assert!(proxy.ended() > 0, "connections were cut");
        let (answered, settled) = fleet.end().await;
        assert_eq!(settled, answered, "each answered call is settled once");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_to_a_synchronous_standby_lose_nothing() {
    each_version(|bin| async move {
        let mut servers = tokio::task::spawn_blocking(move || ReplicatedServers::start(&bin)).await.unwrap();
        let root = tempfile::tempdir().unwrap();
        let fleet = Fleet::start(root.path(), &servers.url()).await;
        let mut numbers = SeededNumbers::from_env();
        for failover in 0..from_env("HEADRACE_FAILOVERS", 3) {
            tokio::time::sleep(numbers.between(100, 900)).await;
            let moment = numbers.between(1, 400);
            servers = tokio::task::spawn_blocking(move || {
                servers.fail_over(moment);
                servers
            })
            .await
            .unwrap();
            let back = fleet.counts.until_answered(4, BACK_WITHIN, "after a failover").await;
            println!("failover {failover}: four calls within {back:?}");
            servers = tokio::task::spawn_blocking(move || {
                servers.add_standby();
                servers
            })
            .await
            .unwrap();
        }
        let (answered, settled) = fleet.end().await;
        assert_eq!(settled, answered, "each answered call is settled once");
    })
    .await;
}
