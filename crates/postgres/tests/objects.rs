//! Objects and batches of several gateways over one database: who runs a batch, what a gateway that ended leaves, and
//! totals that stay exact. The behaviour of one gateway's store is tested in crate `store`. Runs on each version of
//! PostgreSQL that `HEADRACE_POSTGRES_BIN` names.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::sync::{Arc, Mutex};

use headrace_domain::{Endpoint, KeyId, ProjectId, UnixNanos};
use headrace_ledger::{Owner, SharedJournal};
use headrace_objects::{
    BatchCounts, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes, FileDraft, FileLimits,
    FileRecord, FileStore, LineEnd, LineRecord, ObjectError, ObjectLimits, ObjectStore, ResponseRecord,
    ResponseStatus,
};
use headrace_postgres::{PostgresAddresses, PostgresFiles, PostgresJournal, PostgresObjects, PostgresUrl};
use support::{PostgresServer, versions};

const NOW: UnixNanos = UnixNanos::new(1_000);

/// The stores of one gateway.
struct TestGateway {
    owner: Owner,
    journal: Mutex<PostgresJournal>,
    objects: PostgresObjects,
    files: PostgresFiles,
}

impl TestGateway {
    fn join(url: &Arc<PostgresUrl>, owner: u128) -> Self {
        let owner = Owner::new(owner);
        let mut journal = PostgresJournal::new(Arc::clone(url)).named("test", "0");
        journal.join(owner, 1).unwrap();
        let limits = ObjectLimits { max_responses_per_project: 20, ..ObjectLimits::default() };
        let objects = PostgresObjects::open(Arc::clone(url), limits, Arc::new(move || Some(owner))).unwrap();
        let limits = FileLimits::default();
        let files = PostgresFiles::open(Arc::clone(url), limits, Arc::new(move || Some(owner))).unwrap();
        Self { owner, journal: Mutex::new(journal), objects, files }
    }

    fn own(&self) -> Vec<String> {
        self.files.own_batches().unwrap().into_iter().map(|batch| batch.id).collect()
    }
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

fn batch(id: &str) -> BatchRecord {
    BatchRecord {
        id: id.to_owned(),
        project: project(),
        counts: BatchCounts::default(),
        state: BatchState {
            key: KeyId::new("k").unwrap(),
            endpoint: Endpoint::ChatCompletions,
            created: NOW,
            expires: UnixNanos::new(9_000),
            status: BatchStatus::InProgress,
            times: BatchTimes::default(),
            input: None,
            window: "24h".to_owned(),
            metadata: None,
            kept_seconds: None,
            faults: Vec::new(),
            output: None,
            errors: None,
        },
    }
}

fn response(id: &str, status: ResponseStatus) -> ResponseRecord {
    ResponseRecord {
        id: id.to_owned(),
        project: project(),
        created: NOW,
        expires: UnixNanos::new(1_000_000),
        status,
        previous: None,
        conversation: None,
        input: "[]".to_owned(),
        output: "[]".to_owned(),
        body: "{}".to_owned(),
        events: None,
    }
}

fn is_fenced(done: Result<(), ObjectError>) -> bool {
    matches!(done, Err(ObjectError::Unavailable { why }) if why.contains("another gateway"))
}

#[test]
fn a_batch_has_one_gateway_and_another_one_once_that_has_ended() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
        let [first, second, third] = [1, 2, 3].map(|owner| TestGateway::join(&url, owner));
        first.files.create_batch(&batch("b")).unwrap();
        let lines: Vec<LineRecord> = (0..3)
            .map(|at| LineRecord { at, custom_id: at.to_string(), body: "{}".to_owned(), noted: None })
            .collect();
        first.files.add_lines("b", &lines).unwrap();
        first.files.note_answer("b", 0, "req_0", "first").unwrap();
        assert_eq!((first.own(), second.own(), third.own()), (vec!["b".to_owned()], vec![], vec![]));
        // Only its gateway changes its requests. Any gateway reads and cancels it.
        assert!(is_fenced(second.files.note_answer("b", 0, "req_x", "other")));
        assert!(is_fenced(second.files.end_line("b", 1, LineEnd::Failed, 500, None)));
        assert!(is_fenced(second.files.end_rest("b", LineEnd::Expired)));
        assert!(is_fenced(second.files.clear_lines("b")) && is_fenced(second.files.forget_lines("b")));
        assert!(is_fenced(second.files.add_lines("b", &lines).map(drop)));
        let cancel = |state: &mut BatchState| state.status = BatchStatus::Cancelling;
        let changed = second.files.change_batch("b", NOW, &mut { cancel }).unwrap().unwrap();
        assert_eq!(changed.state.status, BatchStatus::Cancelling);
        assert_eq!(
            first.files.batch(&project(), "b").unwrap().unwrap().state.status,
            BatchStatus::Cancelling
        );

        // It ends. One of the others has the batch, and it has lost it.
        first.journal.lock().unwrap().leave(first.owner).unwrap();
        let taken = std::thread::scope(|scope| {
            [&second, &third].map(|gateway| scope.spawn(|| gateway.own())).map(|taken| taken.join().unwrap())
        });
        assert_eq!(taken.concat(), ["b"], "{taken:?}");
        let (heir, other) = if taken[0].is_empty() { (&third, &second) } else { (&second, &third) };
        assert_eq!((heir.own(), other.own(), first.own()), (vec!["b".to_owned()], vec![], vec![]));
        assert!(is_fenced(first.files.note_answer("b", 1, "req_1", "late")));
        assert!(is_fenced(first.files.end_line("b", 0, LineEnd::Completed, 200, None)));
        assert_eq!(heir.files.begun_lines("b").unwrap().len(), 1, "the noted answer is still there");
        heir.files.end_line("b", 0, LineEnd::Completed, 200, None).unwrap();
        heir.files.end_rest("b", LineEnd::Cancelled).unwrap();
        let counts = first.files.batch(&project(), "b").unwrap().unwrap().counts;
        assert_eq!(counts, BatchCounts { total: 3, completed: 1, failed: 0, cancelled: 2, expired: 0 });

        // A result file that the first one had begun is begun anew.
        let draft = |bytes| {
            FileDraft::File(FileRecord {
                id: "file-1".to_owned(),
                project: project(),
                created: NOW,
                expires: None,
                bytes,
                name: "n".to_owned(),
                purpose: "batch_output".to_owned(),
            })
        };
        first.files.begin(&draft(0)).unwrap();
        first.files.append("file-1", 0, b"half").unwrap();
        heir.files.begin(&draft(0)).unwrap();
        assert!(first.files.append("file-1", 4, b"more").is_err());
        heir.files.append("file-1", 0, b"whole").unwrap();
        assert!(heir.files.finish(&draft(5), NOW).unwrap());
        assert_eq!(first.files.read("file-1", 0).unwrap(), b"whole");
    }
}

#[test]
fn a_response_in_progress_is_its_gateways_own_until_that_has_ended() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
        let [first, second] = [1, 2].map(|owner| TestGateway::join(&url, owner));
        for id in ["a", "b"] {
            first.objects.put_response(&response(id, ResponseStatus::InProgress), &[]).unwrap();
        }
        assert_eq!(second.objects.unfinished(NOW).unwrap(), []);
        // A client deletes one through another gateway: its end does not bring it back.
        assert!(second.objects.delete_response(&project(), "b", NOW).unwrap());
        first.objects.put_response(&response("b", ResponseStatus::Ended), &[]).unwrap();
        assert_eq!(first.objects.response(&project(), "b", NOW).unwrap(), None);
        assert!(!first.objects.delete_response(&project(), "b", NOW).unwrap());
        first.journal.lock().unwrap().leave(first.owner).unwrap();
        assert_eq!(second.objects.unfinished(NOW).unwrap(), [(project(), "a".to_owned())]);
        second.objects.put_response(&response("a", ResponseStatus::Ended), &[]).unwrap();
        assert_eq!(second.objects.unfinished(NOW).unwrap(), []);

        // Both write at once: the project keeps as many as its limit says.
        let second = TestGateway::join(&url, 3);
        std::thread::scope(|scope| {
            for (name, gateway) in [("x", &first), ("y", &second)] {
                scope.spawn(move || {
                    for number in 0..40 {
                        let one = response(&format!("{name}{number}"), ResponseStatus::Ended);
                        gateway.objects.put_response(&one, &[]).unwrap();
                        if number % 4 == 0 {
                            gateway.objects.delete_response(&project(), &one.id, NOW).unwrap();
                        }
                    }
                });
            }
        });
        let is_there = |name: &str, number: usize| {
            second.objects.response(&project(), &format!("{name}{number}"), NOW).unwrap().is_some()
        };
        let kept = ["x", "y"].map(|name| (0..40).filter(|number| is_there(name, *number)).count());
        assert!((18..=20).contains(&(kept[0] + kept[1])), "{kept:?}");
        assert_eq!(second.objects.sweep(UnixNanos::new(2_000_000)).unwrap() as usize, kept[0] + kept[1]);
        for number in 0..20 {
            second
                .objects
                .put_response(&response(&format!("z{number}"), ResponseStatus::Ended), &[])
                .unwrap();
        }
        assert!((0..20).all(|number| is_there("z", number)), "the total counts no removed one");
    }
}

#[test]
fn a_gateway_that_is_not_live_is_known_by_its_name_and_a_command_is_not_one() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
        let addresses = PostgresAddresses::new(Arc::clone(&url));
        let join = |name: &str, owner: u128| {
            let mut journal = PostgresJournal::new(Arc::clone(&url)).named(name, "0");
            journal.join(Owner::new(owner), 1).unwrap();
            journal
        };
        let (mut a, mut b, mut command) = (join("a", 1), join("b", 2), join("headrace command", 3));
        let live =
            || -> Vec<String> { addresses.live().unwrap().into_iter().map(|gateway| gateway.name).collect() };
        assert_eq!((live(), addresses.ended().unwrap()), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        for (journal, owner) in [(&mut a, 1), (&mut b, 2), (&mut command, 3)] {
            journal.leave(Owner::new(owner)).unwrap();
        }
        assert_eq!((live(), addresses.ended().unwrap()), (vec![], vec!["a".to_owned(), "b".to_owned()]));
        // It starts again, under another owner.
        let _again = join("a", 4);
        assert_eq!((live(), addresses.ended().unwrap()), (vec!["a".to_owned()], vec!["b".to_owned()]));
    }
}
