//! The ledger's SQLite file alone: what it refuses, and what can be read beside it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::path::Path;

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};
use headrace_ledger::{
    ChargeLine, GrantKind, Journal, JournalError, Ledger, LedgerOperation, LedgerOptions, Owner,
    ReleaseReason, SettleOutcome,
};
use headrace_store::journal::{SqliteJournal, load_file, verify_file};
use sqlx::{Connection, SqliteConnection};

fn at(seconds: u64) -> UnixNanos {
    UnixNanos::new(seconds * 1_000_000_000)
}

fn org() -> OrgId {
    OrgId::new("o").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

fn nano(amount: i64) -> NanoDollars {
    NanoDollars::new(amount)
}

fn hold_id(n: u64) -> HoldId {
    HoldId::from_bits(n.into())
}

fn open(path: &Path) -> Ledger {
    let journal = SqliteJournal::open(path).unwrap();
    let options = LedgerOptions { snapshot_rows: 5, ..LedgerOptions::default() };
    Ledger::open_with(Box::new(journal), Owner::new(1), at(0), options).unwrap().0
}

fn line(class: TokenClass, tokens: u64) -> ChargeLine {
    let (model, price) = (ModelName::new("m").unwrap(), NanoDollarsPerMillion::new(1_000_000).unwrap());
    ChargeLine { model, class, tokens, price, amount: nano(tokens.cast_signed()) }
}

fn must(ledger: &Ledger, command: LedgerOperation, time: u64) {
    let done = ledger.transact(vec![command], at(time));
    assert!(done.verdicts[0].is_done(), "{:?}", done.verdicts);
    done.durable.wait().unwrap();
}

fn hold(n: u64) -> LedgerOperation {
    LedgerOperation::Hold {
        hold: hold_id(n),
        org: org(),
        project: project(),
        amount: nano(100),
        owner: Owner::new(1),
        expires: at(10_000),
        demand: None,
        idempotency: None,
    }
}

fn settle(n: u64) -> LedgerOperation {
    let lines = vec![line(TokenClass::Input, 30), line(TokenClass::Output, 4)];
    let outcome = SettleOutcome::Completed;
    LedgerOperation::Settle { hold: hold_id(n), lines, loss: nano(2), outcome, answer: None }
}

/// A ledger with three calls: 1 is settled, 2 is released, 3 is open.
fn with_calls(path: &Path) -> Ledger {
    let ledger = open(path);
    let (kind, reference) = (GrantKind::Paid, String::new());
    must(&ledger, LedgerOperation::OpenProject { org: org(), project: project() }, 1);
    must(&ledger, LedgerOperation::Grant { org: org(), amount: nano(1000), kind, reference }, 2);
    for n in 1..=3 {
        must(&ledger, hold(n), 2 + n);
    }
    must(&ledger, settle(1), 10);
    must(&ledger, LedgerOperation::Release { hold: hold_id(2), why: ReleaseReason::Cancelled }, 11);
    ledger
}

fn sql(path: &Path, statement: &'static str) -> Result<(), sqlx::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let done = sqlx::raw_sql(statement).execute(&mut connection).await.map(|_| ());
        connection.close().await?;
        done
    })
}

#[test]
fn a_ledger_opens_where_it_was_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    let ledger = with_calls(&path);
    let totals = ledger.totals();
    ledger.close().unwrap();
    assert!(!directory.path().join("ledger.sqlite-wal").exists(), "closing leaves one file");
    let report = verify_file(&path).unwrap();
    assert!(report.ok() && report.snapshots > 1, "{report}");
    assert_eq!(report.totals, totals);
    let ledger = open(&path);
    assert_eq!(ledger.totals(), totals);
    assert_eq!((totals.revenue, totals.held, totals.available), (nano(36), nano(100), nano(866)));
}

#[test]
fn verify_reads_beside_a_running_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    let ledger = with_calls(&path);
    let seen = verify_file(&path).unwrap();
    assert!(seen.ok(), "{seen}");
    assert_eq!(seen.totals, ledger.totals());
    must(&ledger, hold(9), 20);
    assert_eq!(verify_file(&path).unwrap().totals.open_holds, 2, "and the server went on");
    ledger.close().unwrap();
}

#[test]
fn it_opens_inside_a_runtime_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ledger = with_calls(&path);
        let done = ledger.transact(vec![hold(7)], at(30));
        done.durable.await.unwrap();
        ledger.close().unwrap();
    });
}

#[test]
fn the_journal_is_append_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    with_calls(&path).close().unwrap();
    for statement in ["UPDATE journal SET time = 0", "DELETE FROM journal WHERE sequence = 2"] {
        let error = sql(&path, statement).unwrap_err().to_string();
        assert!(error.contains("append-only"), "{statement}: {error}");
    }
    // `verify_file` detects changes that were made after the triggers were dropped.
    sql(&path, "DROP TRIGGER journal_never_updated; UPDATE journal SET payload = x'00' WHERE sequence = 3")
        .unwrap();
    let report = verify_file(&path).unwrap();
    assert!(report.to_string().contains("row 3"), "{report}");
}

#[test]
fn what_is_no_ledger_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let table: [(&str, &'static str, &str); 3] = [
        ("foreign", "CREATE TABLE t (x)", "not a Headrace ledger journal"),
        ("other store", "CREATE TABLE t (x); PRAGMA application_id = 1", "not a Headrace ledger journal"),
        ("newer", "CREATE TABLE t (x); PRAGMA application_id = 0x48526c67; PRAGMA user_version = 2", "newer"),
    ];
    for (name, statement, wanted) in table {
        let path = directory.path().join(name);
        sql(&path, statement).unwrap();
        for error in
            [SqliteJournal::open(&path).map(drop).unwrap_err(), verify_file(&path).map(drop).unwrap_err()]
        {
            assert!(error.to_string().contains(wanted), "{name}: {error}");
            let newer = matches!(error, JournalError::NewerFormat { found: 2, known: 1, .. });
            assert_eq!(newer, name == "newer");
        }
    }
    let garbage = directory.path().join("garbage");
    std::fs::write(&garbage, vec![0x5a; 10_000]).unwrap();
    assert!(SqliteJournal::open(&garbage).is_err());
    assert!(verify_file(&directory.path().join("absent")).is_err());
    assert!(!directory.path().join("absent").exists(), "looking creates nothing");
}

#[test]
fn a_second_writer_is_refused_not_mixed_in() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    let ledger = with_calls(&path);
    let rows = load_file(&path).unwrap().rows;
    let mut other = SqliteJournal::open(&path).unwrap();
    let last = rows.last().unwrap();
    assert!(other.append(std::slice::from_ref(last)).is_err(), "a row of that number is there");
    assert!(other.append(&rows[..2]).is_err());
    assert_eq!(load_file(&path).unwrap().rows, rows);
    ledger.close().unwrap();
}

#[test]
fn several_rows_are_written_all_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    with_calls(&path).close().unwrap();
    let rows = load_file(&path).unwrap().rows;
    let copy = directory.path().join("copy.sqlite");
    let mut journal = SqliteJournal::open(&copy).unwrap();
    journal.append(&rows[..3]).unwrap();
    // The third row collides. The fourth, written before it, must be undone as well.
    assert!(journal.append(&[rows[3].clone(), rows[2].clone()]).is_err());
    assert_eq!(journal.rows_after(0, 9).unwrap(), rows[..3]);
    journal.append(&rows[3..]).unwrap();
    assert_eq!(journal.rows_after(2, 2).unwrap(), rows[2..4]);
}

#[test]
fn a_file_that_is_removed_takes_nothing_more_and_is_not_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (path, away) = (directory.path().join("ledger.sqlite"), directory.path().join("away.sqlite"));
    with_calls(&path).close().unwrap();
    let rows = load_file(&path).unwrap().rows;
    let copy = directory.path().join("copy.sqlite");
    let mut journal = SqliteJournal::open(&copy).unwrap();
    journal.append(&rows[..2]).unwrap();
    let refused = |journal: &mut SqliteJournal| {
        let error = journal.append(&rows[2..3]).unwrap_err().to_string();
        assert!(error.contains("copy.sqlite was removed or replaced"), "{error}");
        assert!(journal.recover().is_err());
    };
    std::fs::rename(&copy, &away).unwrap();
    refused(&mut journal);
    assert!(!copy.exists(), "no empty journal is begun");
    std::fs::copy(&path, &copy).unwrap();
    refused(&mut journal);
    std::fs::rename(&away, &copy).unwrap();
    journal.recover().unwrap();
    assert_eq!(journal.rows_after(0, 9).unwrap(), rows[..2]);
    journal.append(&rows[2..]).unwrap();
}

/// Format 1 stays readable forever. The file was written by the first program with this format.
#[test]
fn a_file_of_format_1_opens() {
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ledger-v1.sqlite"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.sqlite");
    if std::env::var("HEADRACE_GOLDEN").as_deref() == Ok("write") {
        with_calls(&path).close().unwrap();
        std::fs::copy(&path, golden).unwrap();
    }
    std::fs::copy(golden, &path).unwrap();
    let report = verify_file(&path).unwrap();
    assert!(report.ok() && report.snapshots == 2, "{report}");
    let ledger = open(&path);
    assert_eq!(ledger.totals(), report.totals);
    must(&ledger, settle(3), 12);
    ledger.close().unwrap();
    let report = verify_file(&path).unwrap();
    assert!(report.ok(), "{report}");
    assert_eq!((report.totals.revenue, report.totals.held), (nano(72), nano(0)));
}
