//! How many holds and settlements a second do three gateways get through one PostgreSQL database, and how long does a
//! hold take? `cargo bench -p headrace-postgres --bench turns`. The three gateways are processes of their own. Each is
//! offered a third of the rate, whether it keeps up or not, on one organisation's balance. The server is the
//! first one that `HEADRACE_POSTGRES_BIN` names (Debian: /usr/lib/postgresql/15/bin), with `fsync`. `HEADRACE_BENCH_RATE` (4000 pairs a second) and
//! `HEADRACE_BENCH_SECONDS` (10) change the load. A rate of 0 offers as much as 64 callers for each gateway can ask.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark ends by panicking")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_domain::{Clock, HoldId, NanoDollars, OrgId, ProjectId, SystemClock};
use headrace_ledger::{
    CommandResult, GrantKind, JournalHistory as _, LedgerAdmin as _, LedgerClient as _, LedgerOperation,
    Owner, SettleOutcome, SharedLedger, SharedLedgerOptions,
};
use headrace_postgres::{PostgresJournal, PostgresJournalHistory, PostgresPresence, PostgresUrl};

const GATEWAYS: u64 = 3;
const CALLERS: u64 = 64;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn open(url: &Arc<PostgresUrl>, owner: u64) -> SharedLedger {
    let journal = PostgresJournal::new(Arc::clone(url));
    let presence = PostgresPresence::new(Arc::clone(url));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (owner, next) =
        (Owner::new(u128::from(owner)), Box::new(move || Owner::new(u128::from(owner + 100))));
    let options = SharedLedgerOptions::default();
    SharedLedger::open(Box::new(journal), Box::new(presence), owner, next, clock, options).unwrap().0
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, url, owner] = &arguments[..]
        && role == "--gateway"
    {
        return gateway(&Arc::new(url.parse().unwrap()), owner.parse().unwrap());
    }
    let Some(bin) = support::versions().into_iter().next() else {
        println!("HEADRACE_POSTGRES_BIN names no folder with PostgreSQL's programs");
        return;
    };
    let server = support::PostgresServer::start(&bin);
    let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
    let first = open(&url, 1_000);
    let now = SystemClock::new().now();
    let opened = LedgerOperation::OpenProject { org: org(), project: project() };
    let (kind, amount) = (GrantKind::Paid, NanoDollars::new(i64::MAX / 4));
    let granted = LedgerOperation::Grant { org: org(), amount, kind, reference: "bench".into() };
    assert!(first.transact(vec![opened, granted], now).verdicts.iter().all(CommandResult::is_done));
    first.close().unwrap();
    let (rate, seconds) = (number("HEADRACE_BENCH_RATE", 4_000), number("HEADRACE_BENCH_SECONDS", 10));
    println!("{}: {GATEWAYS} gateways, {rate} pairs a second offered for {seconds} s", bin.display());
    let gateways: Vec<_> = (1..=GATEWAYS)
        .map(|owner| {
            Command::new(&arguments[0])
                .args(["--gateway", &server.url(), &owner.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let (mut pairs, mut latencies) = (0, Vec::new());
    for gateway in gateways {
        let output = gateway.wait_with_output().unwrap();
        assert!(output.status.success());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            match line.split_once(' ') {
                Some(("pairs", count)) => pairs += count.parse::<u64>().unwrap(),
                Some(("hold_us", values)) => {
                    latencies.extend(values.split(' ').map(|value| value.parse::<u64>().unwrap()));
                }
                _ => println!("{line}"),
            }
        }
    }
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize] as f64 / 1_000.0;
    println!(
        "{} pairs a second; hold p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, most {:.0} ms",
        pairs / seconds,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    let report = PostgresJournalHistory::new(url).verify().unwrap();
    assert!(report.ok(), "{:?}", report.findings);
    println!("the journal holds every invariant: {} rows, {} transactions", report.rows, report.transactions);
}

fn org() -> OrgId {
    OrgId::new("o").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

/// One gateway: offers its part of the load, and prints its pairs and the time of each hold in microseconds.
fn gateway(url: &Arc<PostgresUrl>, owner: u64) {
    let ledger = open(url, owner);
    let (rate, seconds) = (number("HEADRACE_BENCH_RATE", 4_000), number("HEADRACE_BENCH_SECONDS", 10));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pairs = Arc::new(AtomicU64::new(0));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let next = Arc::new(AtomicU64::new(owner << 40));
    let end = Instant::now() + Duration::from_secs(seconds);
    let one = {
        let (pairs, latencies, ledger) = (Arc::clone(&pairs), Arc::clone(&latencies), ledger.clone());
        move |due: Instant| {
            let (pairs, latencies, ledger) = (Arc::clone(&pairs), Arc::clone(&latencies), ledger.clone());
            let hold = HoldId::from_bits(u128::from(next.fetch_add(1, Ordering::Relaxed)));
            async move {
                let now = SystemClock::new().now();
                let asked = LedgerOperation::Hold {
                    hold,
                    org: org(),
                    project: project(),
                    amount: NanoDollars::new(5_000),
                    owner: Owner::new(0),
                    expires: now.after(Duration::from_secs(600)),
                    demand: None,
                    idempotency: None,
                };
                if !ledger.decide(vec![asked], now).await.verdicts[0].is_done() {
                    return;
                }
                let took = u64::try_from(due.elapsed().as_micros()).unwrap();
                let (loss, outcome) = (NanoDollars::new(1_900), SettleOutcome::Completed);
                let settled = LedgerOperation::Settle { hold, lines: vec![], loss, outcome, answer: None };
                if ledger.decide(vec![settled], now).await.verdicts[0].is_done() {
                    pairs.fetch_add(1, Ordering::Relaxed);
                    latencies.lock().unwrap().push(took);
                }
            }
        }
    };
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        if rate == 0 {
            for _ in 0..CALLERS {
                let one = one.clone();
                tasks.spawn(async move {
                    while Instant::now() < end {
                        one(Instant::now()).await;
                    }
                });
            }
        } else {
            let every =
                Duration::from_secs(1) * u32::try_from(GATEWAYS).unwrap() / u32::try_from(rate).unwrap();
            let mut due = Instant::now();
            while due < end {
                tokio::time::sleep_until(due.into()).await;
                // Timers are coarse: what has become due meanwhile is asked at once, and counts from when it was due.
                while due <= Instant::now() {
                    tasks.spawn(one(due));
                    due += every;
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    });
    println!("pairs {}", pairs.load(Ordering::Relaxed));
    let latencies: Vec<String> = latencies.lock().unwrap().iter().map(u64::to_string).collect();
    println!("hold_us {}", latencies.join(" "));
    ledger.close().unwrap();
}
