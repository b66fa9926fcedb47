//! Stores that are opened by the URL of their place.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::sync::Arc;

use headrace_domain::{Clock, ManualClock, OrgId, ProjectId, UnixNanos};
use headrace_ledger::{GrantKind, JournalEvent, LedgerOperation, Owner, Transaction};
use headrace_objects::{FileLimits, ObjectLimits};
use headrace_store::disk::DiskGuard;
use headrace_store::trace::TraceRetention;
use headrace_store::{Storage, StorageUrl, StoreName};
use headrace_trace::UsageQuery;

const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(NOW))
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".sqlite"))
        .collect();
    names.sort();
    names
}

#[test]
fn only_the_stores_that_are_asked_for_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let url =
        StorageUrl::parse_in(&format!("sqlite:{}", dir.path().display()), Path::new("/nowhere")).unwrap();
    let storage = Storage::open(url.clone(), None);
    assert_eq!(names(dir.path()), [""; 0]);
    let identities = storage.identities().unwrap();
    assert_eq!(names(dir.path()), ["identity.sqlite"]);
    assert!(identities.operators.operators().unwrap().is_empty());
    let reader = Storage::open_read_only(url);
    assert!(reader.traces().is_err(), "there are no traces");
    assert!(!reader.place(StoreName::Ledger).exists());
    assert!(reader.place(StoreName::Ledger).to_string().ends_with("/ledger.sqlite"));
    let opened = storage.ledger("test", Box::new(|| Owner::new(1)), &clock(), Box::new(|_| ())).unwrap();
    assert_eq!(names(dir.path()), ["identity.sqlite", "ledger.sqlite"]);
    opened.admin.close().unwrap();
}

#[test]
fn a_copy_has_all_stores_and_the_same_ledger() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let storage = Storage::open(StorageUrl::of_folder(from.path()), None);
    drop(storage.identities().unwrap());
    drop(storage.objects(ObjectLimits::default(), None).unwrap());
    drop(storage.batches(FileLimits::default(), None).unwrap());
    let guard = DiskGuard::of(from.path(), Some(0));
    drop(storage.traces(TraceRetention::default(), u64::MAX, guard).unwrap());
    let opened = storage.ledger("test", Box::new(|| Owner::new(1)), &clock(), Box::new(|_| ())).unwrap();
    let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
    let open = LedgerOperation::OpenProject { org: org.clone(), project };
    let (kind, amount) = (GrantKind::Paid, headrace_domain::NanoDollars::new(5));
    let grant = LedgerOperation::Grant { org: org.clone(), amount, kind, reference: "r".into() };
    opened.admin.transact(vec![open, grant], NOW).durable.wait().unwrap();
    for (after, expected) in [(0, true), (1, false)] {
        let is_grant = |transaction: &Transaction| matches!(transaction.event, JournalEvent::Granted { .. });
        assert_eq!(opened.admin.history().has_after(after, &is_grant).unwrap(), expected, "row {after}");
    }
    storage.reader().usage().unwrap().usage(&UsageQuery::default()).unwrap();
    assert_eq!(storage.reader().copy_to(to.path(), false).unwrap(), 5);
    assert!(!names(to.path()).contains(&"traces.sqlite".to_owned()));
    let copy = Storage::open_read_only(StorageUrl::of_folder(to.path()));
    let (copied, own) = (copy.ledger().verify().unwrap(), opened.admin.verify().unwrap());
    assert!(copied.ok());
    assert_eq!(copied, own);
    opened.admin.close().unwrap();
    assert!(opened.client.health().down.is_some(), "a closed ledger takes no commands");
}
