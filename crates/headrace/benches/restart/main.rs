//! How long does a start take with a long history? `cargo bench -p headrace --bench restart`. Fills a ledger with
//! requests, as many to a row as a busy server writes, and starts `headrace up` on it: after a kill, so that the start reads
//! every row since the last snapshot, and after an orderly end. SQLite, and the first PostgreSQL that
//! `HEADRACE_POSTGRES_BIN` names. `HEADRACE_BENCH_REQUESTS` (1,000,000) sets the number of requests, and
//! `HEADRACE_BENCH_ROW` (32) the number of operations in a row.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark ends by panicking")]

#[path = "../../tests/common/server.rs"]
mod common;
#[path = "../../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod postgres;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Server, program};
use headrace_domain::{
    Clock, HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, SystemClock, TokenClass,
};
use headrace_ledger::{ChargeLine, CommandResult, GrantKind, LedgerOperation, Owner, SettleOutcome};
use headrace_postgres::PostgresUrl;
use headrace_store::{Storage, StorageUrl};

const KEY: &str = "sk-restart-benchmark-0123456789abcdef";
/// The organisation and the project of the first start.
const DEFAULT: &str = "default";

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, url, folder] = &arguments[..]
        && role == "--fill"
    {
        fill(url, Path::new(folder));
        #[allow(
            clippy::disallowed_methods,
            reason = "like a kill: the ledger is not closed, so it writes no snapshot"
        )]
        std::process::exit(0);
    }
    measure("SQLite", None);
    match postgres::versions().first() {
        Some(bin) => {
            // The fill need not survive a power cut.
            let database = postgres::PostgresServer::start_with(bin, |_| vec!["fsync=off".to_owned()]);
            measure("PostgreSQL", Some(&database.url()));
        }
        None => println!("PostgreSQL is not measured"),
    }
    ExitCode::SUCCESS
}

fn started(dir: &Path, database: Option<&str>) -> (Server, Duration) {
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).arg("up");
    if let Some(url) = database {
        command.env("HEADRACE_STORAGE__URL", url);
    }
    let begun = Instant::now();
    let server = Server::begin(command, dir, &["--admin-listen", "off"], KEY);
    (server, begun.elapsed())
}

fn measure(name: &str, database: Option<&str>) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    started(&dir, database).0.stop();
    let (mut empty, without) = started(&dir, database);
    empty.stop();
    let place = database.map_or_else(|| format!("sqlite:{}", dir.display()), str::to_owned);
    let filling = Instant::now();
    let filler = Command::new(std::env::current_exe().unwrap()).args(["--fill", &place]).arg(&dir).status();
    assert!(filler.unwrap().success());
    let filled = filling.elapsed();
    let (mut server, killed) = started(&dir, database);
    server.stop();
    let (mut server, orderly) = started(&dir, database);
    let checking = Instant::now();
    let report = server.ok(&["ledger", "verify"]);
    let checked = checking.elapsed();
    server.stop();
    println!(
        "{name}: {} requests in {:.0} s; ready after a kill in {:.2} s, after an orderly end in {:.2} s, without a history in \
         {:.2} s; `ledger verify` in {:.1} s",
        number("HEADRACE_BENCH_REQUESTS", 1_000_000),
        filled.as_secs_f64(),
        killed.as_secs_f64(),
        orderly.as_secs_f64(),
        without.as_secs_f64(),
        checked.as_secs_f64(),
    );
    println!("{report}");
}

/// Settles requests of two lines each, many to a row.
fn fill(url: &str, folder: &Path) {
    let url = match url.parse::<PostgresUrl>() {
        Ok(_) => StorageUrl::parse_in(url, folder).unwrap(),
        Err(_) => StorageUrl::of_folder(folder),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let owner = Owner::new(7);
    let storage = Storage::open(url, None);
    let ledger = storage.ledger("filler", Box::new(move || owner), &clock, Box::new(|_| {})).unwrap().admin;
    let (org, project) = (OrgId::new(DEFAULT).unwrap(), ProjectId::new(DEFAULT).unwrap());
    let (kind, amount) = (GrantKind::Paid, NanoDollars::new(i64::MAX / 4));
    let grant = LedgerOperation::Grant { org: org.clone(), amount, kind, reference: "benchmark".into() };
    assert!(ledger.transact(vec![grant], clock.now()).verdicts.iter().all(CommandResult::is_done));
    let model = ModelName::new("headrace-demo").unwrap();
    let line = |class, tokens| ChargeLine {
        model: model.clone(),
        class,
        tokens,
        price: NanoDollarsPerMillion::new(150_000_000).unwrap(),
        amount: NanoDollars::new(i64::try_from(tokens).unwrap() * 150),
    };
    let (requests, row) =
        (number("HEADRACE_BENCH_REQUESTS", 1_000_000), number("HEADRACE_BENCH_ROW", 32) / 2);
    let mut open: Vec<HoldId> = Vec::new();
    let mut taken = 0;
    while taken < requests || !open.is_empty() {
        let now = clock.now();
        let mut operations: Vec<LedgerOperation> = open
            .drain(..)
            .map(|hold| LedgerOperation::Settle {
                hold,
                lines: vec![line(TokenClass::Input, 800), line(TokenClass::Output, 200)],
                loss: NanoDollars::new(0),
                outcome: SettleOutcome::Completed,
                answer: None,
            })
            .collect();
        for _ in 0..row.min(requests - taken) {
            taken += 1;
            let hold = HoldId::from_bits(u128::from(taken) << 64 | 7);
            open.push(hold);
            operations.push(LedgerOperation::Hold {
                hold,
                org: org.clone(),
                project: project.clone(),
                amount: NanoDollars::new(200_000),
                owner,
                expires: now.after(Duration::from_secs(600)),
                idempotency: None,
                demand: None,
            });
        }
        let done = ledger.transact(operations, now);
        assert!(done.verdicts.iter().all(CommandResult::is_done), "{:?}", done.verdicts);
        done.durable.wait().unwrap();
    }
}
