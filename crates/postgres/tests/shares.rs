//! Shares in rate limits over real PostgreSQL servers: one suite for each version that `HEADRACE_POSTGRES_BIN` names, as
//! the step `postgres` of the test command does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headrace_domain::{Clock, OrgId, ProjectId, SystemClock};
use headrace_limits::{
    GatewayShares, LimitSpec, Limits, RateRule, Scope, ShareHolder, ShareKey, ShareStore as _,
};
use headrace_postgres::{PostgresJournal, PostgresShares, PostgresUrl};

use headrace_ledger::{Owner, SharedJournal as _};
use support::{PostgresServer, versions};

struct TestGateway {
    limits: Limits,
    shares: GatewayShares,
    store: PostgresShares,
}

impl TestGateway {
    fn start(url: &Arc<PostgresUrl>, holder: u128) -> Self {
        let (limits, shares) = Limits::over_gateways(Duration::from_secs(60), ShareHolder::new(holder));
        Self { limits, shares, store: PostgresShares::new(Arc::clone(url)) }
    }

    fn exchange(&mut self) {
        self.shares.exchange(&mut self.store, &SystemClock::new()).unwrap();
    }

    fn share(&self, key: &ShareKey, limit: u64) -> u64 {
        self.limits.usable_share(key, limit, SystemClock::new().now())
    }
}

fn scopes() -> [(Scope, LimitSpec); 2] {
    let spec = |requests| LimitSpec { requests_per_minute: Some(requests), ..LimitSpec::UNLIMITED };
    [
        (Scope::Project(ProjectId::new("p").unwrap()), spec(600)),
        (Scope::Org(OrgId::new("o").unwrap()), spec(6_000)),
    ]
}

/// Makes the tables of the journal.
fn set_up(server: &PostgresServer) -> Arc<PostgresUrl> {
    let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
    PostgresJournal::new(Arc::clone(&url)).join(Owner::new(1), 1).unwrap();
    url
}

fn run_sql(server: &PostgresServer, statement: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        client.batch_execute(statement).await.unwrap();
    });
}

/// The shares at one moment, or less: gateways change theirs while this reads. Each is read twice.
fn shares_now(limits: &[Limits], key: &ShareKey) -> Vec<u64> {
    let now = SystemClock::new().now();
    let read = || limits.iter().map(|limits| limits.usable_share(key, 600, now)).collect::<Vec<_>>();
    read().into_iter().zip(read()).map(|(first, second)| first.min(second)).collect()
}

#[test]
fn shares_follow_the_load_from_one_gateway_to_another() {
    for bin in versions() {
        println!("{}", bin.display());
        let server = PostgresServer::start(&bin);
        let url = set_up(&server);
        let key = ShareKey { scope: scopes()[0].0.clone(), rule: RateRule::Requests };
        let mut gateways = [TestGateway::start(&url, 1), TestGateway::start(&url, u128::MAX)];
        gateways[0].exchange();
        assert_eq!(gateways[0].share(&key, 600), 600, "a lone gateway has everything");
        let began = Instant::now();
        gateways[1].exchange();
        assert_eq!(gateways[1].share(&key, 600), 0, "the first one has not shrunk yet");
        for _ in 0..2 {
            gateways.iter_mut().for_each(TestGateway::exchange);
        }
        assert_eq!([0, 1].map(|n: usize| gateways[n].share(&key, 600)), [300, 300]);
        // All load at the second one.
        let now = || SystemClock::new().now();
        let mut admitted = 0;
        for _ in 0..3 {
            admitted += (0..700).filter(|_| gateways[1].limits.count(&scopes(), now()).is_ok()).count();
            gateways.iter_mut().for_each(TestGateway::exchange);
        }
        let shares = [0, 1].map(|n: usize| gateways[n].share(&key, 600));
        assert!(shares[1] >= 540 && shares[0] + shares[1] <= 600, "{shares:?}");
        // What the first one did not use moved, too.
        admitted += (0..700).filter(|_| gateways[1].limits.count(&scopes(), now()).is_ok()).count();
        let refilled = 10 * usize::try_from(began.elapsed().as_secs() + 1).unwrap();
        assert!((540..=600 + refilled).contains(&admitted), "{admitted}");
        // One that ends gives its share back; one that takes its place has it at once.
        let [mut first, second] = gateways;
        first.shares.leave(&mut first.store, &SystemClock::new()).unwrap();
        assert_eq!(first.share(&key, 600), 0);
        drop(second);
        let mut third = TestGateway::start(&url, 3);
        third.shares.replace(ShareHolder::new(u128::MAX));
        third.exchange();
        assert_eq!(third.share(&key, 600), 600);
        assert!(
            third.limits.count(&scopes(), SystemClock::new().now()).is_err(),
            "its predecessor may have used it up"
        );
    }
}

#[test]
fn exchanges_through_crashes_of_the_database_keep_the_sum() {
    for bin in versions() {
        println!("{}", bin.display());
        let mut server = PostgresServer::start(&bin);
        let url = set_up(&server);
        let key = ShareKey { scope: scopes()[0].0.clone(), rule: RateRule::Requests };
        let clock = SystemClock::new();
        let mut gateways: Vec<TestGateway> = (1..4).map(|n| TestGateway::start(&url, n)).collect();
        let limits: Vec<Limits> = gateways.iter().map(|gateway| gateway.limits.clone()).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for gateway in &mut gateways {
                let stop = &stop;
                scope.spawn(move || {
                    let clock = SystemClock::new();
                    while !stop.load(Ordering::SeqCst) {
                        let _ = gateway.shares.exchange(&mut gateway.store, &clock);
                        std::thread::sleep(Duration::from_millis(50));
                    }
                });
            }
            for round in 0..3_usize {
                let until = Instant::now() + Duration::from_millis(1_500);
                while Instant::now() < until {
                    // The load moves between the gateways.
                    let now = clock.now();
                    (0..20).for_each(|_| drop(limits[round].count(&scopes(), now)));
                    let shares = shares_now(&limits, &key);
                    assert!(shares.iter().sum::<u64>() <= 600, "{shares:?}");
                    std::thread::sleep(Duration::from_millis(5));
                }
                server.crash();
                server.resume();
            }
            let until = Instant::now() + Duration::from_secs(10);
            loop {
                let now = clock.now();
                (0..20).for_each(|_| drop(limits[0].count(&scopes(), now)));
                let shares: Vec<u64> =
                    limits.iter().map(|limits| limits.usable_share(&key, 600, now)).collect();
                assert!(shares.iter().sum::<u64>() <= 600, "{shares:?}");
                if shares[0] >= 540 {
                    break;
                }
                assert!(Instant::now() < until, "{shares:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::SeqCst);
        });
    }
}

#[test]
fn a_table_that_cannot_be_read_is_named() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let url = set_up(&server);
        let mut store = PostgresShares::new(Arc::clone(&url));
        store
            .exchange(&mut |table, time| {
                let key = ShareKey { scope: scopes()[0].0.clone(), rule: RateRule::Requests };
                let shares = headrace_limits::LimitShares {
                    limit: 600,
                    free_missing: 1,
                    at_micros: time,
                    idle_since_micros: None,
                    rows: [(ShareHolder::new(7), headrace_limits::ShareRow { share: 5, want: 6, need: 7 })]
                        .into(),
                };
                table.limits.insert(key, shares);
            })
            .unwrap();
        let mut seen = None;
        PostgresShares::new(Arc::clone(&url)).exchange(&mut |table, _| seen = Some(table.clone())).unwrap();
        let seen = seen.unwrap();
        assert_eq!(seen.limits.values().next().unwrap().rows[&ShareHolder::new(7)].need, 7);
        run_sql(&server, "UPDATE headrace.share_limit SET body = '{}'");
        let error = store.exchange(&mut |_, _| panic!("nothing was read")).unwrap_err();
        assert!(error.to_string().contains("headrace.share_limit"), "{error}");
    }
}
