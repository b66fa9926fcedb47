//! Numbered documents in a file and in a database: no gaps over kills and concurrent writers, never changed, and their hash
//! in the audit log.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod shared;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use headrace_domain::{OrgId, UnixNanos};
use headrace_identity::{KeyStore, NewDocument, NumberedDocument, StoreError};
use headrace_store::{Storage, StorageUrl};
use shared::{TestPlace, check_all};

/// The variable that names the folder of a child of [`a_killed_writer_leaves_no_gap`].
const CHILD: &str = "HEADRACE_TEST_DOCUMENTS";

fn new(series: &str, period: &str) -> NewDocument {
    NewDocument {
        series: series.to_owned(),
        kind: "invoice".to_owned(),
        org: OrgId::new("acme").unwrap(),
        period: period.to_owned(),
        about: String::new(),
        created: UnixNanos::new(1_790_000_000_000_000_000),
        actor: "a test".to_owned(),
    }
}

fn put(store: &dyn KeyStore, series: &str, period: &str) -> Result<NumberedDocument, StoreError> {
    store.number_document(&new(series, period), &|number| format!("{series}-{number} for {period}"))
}

/// Checks numbers, hashes and the audit log.
fn check(store: &dyn KeyStore) -> usize {
    let all = store.documents().unwrap();
    let mut last: Option<(&str, u64)> = None;
    for document in &all {
        let expected = match last {
            Some((series, number)) if series == document.series => number + 1,
            _ => 1,
        };
        assert_eq!(document.number, expected, "{}", document.series);
        last = Some((&document.series, document.number));
        let subject = format!("{}-{}", document.series, document.number);
        let audit = store.audit_of("invoice.final", Some(&subject), 10).unwrap();
        let hash: String = document.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(audit.len(), 1, "{subject}");
        assert!(audit[0].entry.detail.contains(&hash), "{}", audit[0].entry.detail);
    }
    store.verify_audit().unwrap();
    all.len()
}

fn each_series_counts_from_one_and_a_period_has_one_document(place: &TestPlace) {
    let store = place.identities().keys;
    assert_eq!(put(store.as_ref(), "A", "2026-01").unwrap().number, 1);
    assert_eq!(put(store.as_ref(), "A", "2026-02").unwrap().number, 2);
    assert_eq!(put(store.as_ref(), "B", "2026-03").unwrap().number, 1);
    let again = put(store.as_ref(), "B", "2026-01");
    assert!(matches!(again, Err(StoreError::Duplicate { .. })), "{again:?}");
    assert_eq!(put(store.as_ref(), "A", "2026-04").unwrap().number, 3, "a refusal takes no number");
    let reopened = place.identities().keys;
    assert_eq!(check(reopened.as_ref()), 4);
    let found = reopened.document("A", 2).unwrap().unwrap();
    assert_eq!((found.text.as_str(), found.period.as_str()), ("A-2 for 2026-02", "2026-02"));
    assert_eq!(reopened.document("A", 9).unwrap(), None);
}

fn concurrent_writers_give_each_number_once(place: &TestPlace) {
    const WRITERS: usize = 4;
    const EACH: usize = 12;
    let stores: Vec<Arc<dyn KeyStore>> = (0..WRITERS).map(|_| place.identities().keys).collect();
    let numbers = std::thread::scope(|scope| {
        let writer = |(at, store): (usize, &Arc<dyn KeyStore>)| {
            let store = Arc::clone(store);
            scope.spawn(move || {
                let mut numbers = Vec::new();
                for n in 0..EACH {
                    // Each period is tried by two writers.
                    let period = format!("p{}", (at / 2) * EACH + n);
                    match put(store.as_ref(), "S", &period) {
                        Ok(document) => numbers.push(document.number),
                        Err(StoreError::Duplicate { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                numbers
            })
        };
        let writers: Vec<_> = stores.iter().enumerate().map(writer).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<u64>>()
    });
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=(WRITERS / 2 * EACH) as u64).collect::<Vec<_>>());
    assert_eq!(check(stores[0].as_ref()), WRITERS / 2 * EACH);
}

#[test]
fn documents_keep_their_promises_in_files_and_databases() {
    check_all(&[
        ("series and periods", each_series_counts_from_one_and_a_period_has_one_document),
        ("concurrent writers", concurrent_writers_give_each_number_once),
    ]);
}

fn open(folder: &Path) -> Arc<dyn KeyStore> {
    Storage::open(StorageUrl::of_folder(folder), None).identities().unwrap().keys
}

#[test]
fn a_killed_writer_leaves_no_gap() {
    if let Ok(folder) = std::env::var(CHILD) {
        let store = open(Path::new(&folder));
        let first = store.documents().unwrap().len();
        for n in first.. {
            let document = put(store.as_ref(), "S", &format!("p{n}")).unwrap();
            println!("\nnumber {}", document.number);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0_u64;
    for round in 1..=8_usize {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_writer_leaves_no_gap", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let numbers = lines.map_while(Result::ok);
        let numbers =
            numbers.filter_map(|line| line.strip_prefix("number ").map(|n| n.parse::<u64>().unwrap()));
        for number in numbers.take(round * 3) {
            acknowledged = acknowledged.max(number);
        }
        // SIGKILL, at any step.
        child.kill().unwrap();
        child.wait().unwrap();
        let kept = check(open(folder.path()).as_ref()) as u64;
        assert!(kept >= acknowledged, "{kept} are kept, and {acknowledged} were acknowledged");
    }
    assert!(acknowledged >= 8 * 3);
}

#[test]
fn a_changed_document_is_noticed_and_a_file_refuses_changes() {
    let folder = tempfile::tempdir().unwrap();
    put(open(folder.path()).as_ref(), "S", "2026-01").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let path = folder.path().join("identity.sqlite");
    let run = |sql: &'static str| {
        runtime.block_on(async {
            use sqlx::Connection as _;
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
            let mut connection = sqlx::sqlite::SqliteConnection::connect_with(&options).await.unwrap();
            let done = sqlx::raw_sql(sql).execute(&mut connection).await.map(drop);
            connection.close().await.unwrap();
            done
        })
    };
    assert!(run("UPDATE documents SET text = 'x'").is_err());
    assert!(run("DELETE FROM documents").is_err());
    run("DROP TRIGGER documents_are_never_changed; UPDATE documents SET text = 'x'").unwrap();
    let store = open(folder.path());
    assert!(matches!(store.documents(), Err(StoreError::Corrupt { .. })));
    assert!(matches!(store.document("S", 1), Err(StoreError::Corrupt { .. })));
}
