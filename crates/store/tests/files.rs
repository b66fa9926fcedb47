//! The stores of files, in a folder and in a database. Limits hold through any removals. Parts become a file as a whole or
//! not at all. Each request of a batch ends once. In a folder, unfinished files are removed at the next start.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

use headrace_domain::{Endpoint, KeyId, ProjectId, UnixNanos};
use headrace_objects::{
    BatchCounts, BatchKind, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes, FileDraft,
    FileLimits, FileRecord, FileStore, LineEnd, LineRecord, ListOrder, OUTPUT_PURPOSE, ObjectError, PageAsk,
    PartRecord, UploadFault, UploadRecord, UploadStatus,
};
use headrace_store::files::SqliteFiles;

#[allow(dead_code, reason = "other tests use the rest")]
mod shared;

use shared::{StoreBehaviour, TestPlace, check_all};

const LIMITS: FileLimits = FileLimits {
    max_file_bytes: 1_000_000,
    max_files_per_project: 4,
    max_file_bytes_per_project: 2_000_000,
    max_total_bytes: 1 << 30,
    max_open_batches_per_project: 1,
    max_requests_per_batch: 100,
};
const NOW: UnixNanos = UnixNanos::new(1_000);

fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

fn file(id: &str, purpose: &str) -> FileDraft {
    let (name, purpose) = (format!("{id}.txt"), purpose.to_owned());
    FileDraft::File(FileRecord {
        id: id.to_owned(),
        project: project("p"),
        created: NOW,
        expires: None,
        bytes: 0,
        name,
        purpose,
    })
}

/// Bytes that differ by position.
fn content(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect()
}

fn put(store: &dyn BatchStore, mut draft: FileDraft, bytes: &[u8]) -> Result<bool, ObjectError> {
    store.begin(&draft)?;
    let mut at = 0;
    for piece in bytes.chunks(300_001) {
        if let Err(error) = store.append(draft.id(), at, piece) {
            store.give_up(draft.id())?;
            return Err(error);
        }
        at += piece.len() as u64;
    }
    draft.set_bytes(at);
    store.finish(&draft, NOW)
}

fn all(store: &dyn BatchStore, id: &str) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let some = store.read(id, all.len() as u64).unwrap();
        if some.is_empty() {
            return all;
        }
        all.extend_from_slice(&some);
    }
}

fn rule(told: Result<bool, ObjectError>) -> &'static str {
    match told.unwrap_err() {
        ObjectError::Full { rule, .. } => rule,
        _ => "none of those on room",
    }
}

const BEHAVIOURS: &[StoreBehaviour] = &[
    ("limits hold through any removals", limits_hold_through_any_removals),
    ("files are read, listed and expire", files_are_read_from_any_place_listed_either_way_and_expire),
    ("parts become a file", parts_become_a_file_whole_or_not_at_all),
    ("each request ends once", each_request_of_a_batch_ends_once_and_is_counted_once),
    ("batches count for their project", batches_count_for_their_project_until_they_are_gone),
    ("any text of a client is kept", any_text_of_a_client_is_kept),
];

#[test]
fn files_and_batches_behave_alike_in_a_folder_and_in_a_database() {
    check_all(BEHAVIOURS);
}

fn limits_hold_through_any_removals(place: &TestPlace) {
    let store = place.files(LIMITS);
    let store = store.as_ref();
    let bytes = content(900_000, 1);
    assert!(put(store, file("whole", "vision"), &bytes).unwrap());
    store.begin(&file("begun", "vision")).unwrap();
    store.append("begun", 0, &content(1_000_000, 2)).unwrap();
    assert!(store.append("begun", 0, b"again").is_err(), "it continues where it ended");
    assert_eq!(store.file(&project("p"), "begun", NOW).unwrap(), None, "no client sees it");
    assert_eq!(rule(put(store, file("more", "vision"), &bytes)), "max_file_bytes_per_project");
    assert!(put(store, file("output", OUTPUT_PURPOSE), &bytes).unwrap(), "results are never refused");
    assert!(store.delete_file(&project("p"), "output", NOW).unwrap());
    store.give_up("begun").unwrap();
    assert!(all(store, "begun").is_empty() && all(store, "output").is_empty());
    assert_eq!(all(store, "whole"), bytes);
    assert_eq!(rule(put(store, file("long", "vision"), &content(1_000_001, 3))), "max_file_bytes");
    assert!(put(store, file("more", "vision"), &bytes).unwrap(), "there is room again");
    assert!(!store.delete_file(&project("q"), "more", NOW).unwrap(), "it is another project's");
    for id in ["whole", "more"] {
        assert!(store.delete_file(&project("p"), id, NOW).unwrap());
        assert!(!store.delete_file(&project("p"), id, NOW).unwrap());
        assert!(all(store, id).is_empty());
    }
    for id in ["1", "2", "3", "4"] {
        assert!(put(store, file(id, "vision"), b"").unwrap());
    }
    assert_eq!(rule(put(store, file("5", "vision"), b"")), "max_files_per_project");
}

#[test]
fn what_was_not_finished_is_gone_with_its_process_and_its_room_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("files.sqlite");
    let bytes = content(900_000, 1);
    {
        let store = SqliteFiles::open(&path, LIMITS).unwrap();
        assert!(put(&store, file("whole", "vision"), &bytes).unwrap());
        store.begin(&file("begun", "vision")).unwrap();
        store.append("begun", 0, &content(1_000_000, 2)).unwrap();
        assert_eq!(store.file(&project("p"), "begun", NOW).unwrap(), None, "nobody sees it");
        assert_eq!(store.files(&project("p"), None, &PageAsk::default(), NOW).unwrap().0.len(), 1);
        assert_eq!(rule(put(&store, file("more", "vision"), &bytes)), "max_file_bytes_per_project");
        assert!(put(&store, file("output", OUTPUT_PURPOSE), &bytes).unwrap(), "results are never refused");
        assert!(store.delete_file(&project("p"), "output", NOW).unwrap());
    }
    let store = SqliteFiles::open(&path, LIMITS).unwrap();
    assert_eq!(all(&store, "whole"), bytes);
    assert!(all(&store, "begun").is_empty());
    assert_eq!(rule(put(&store, file("long", "vision"), &content(1_000_001, 3))), "max_file_bytes");
    assert!(put(&store, file("more", "vision"), &bytes).unwrap(), "there is room again");
    assert!(!store.delete_file(&project("q"), "more", NOW).unwrap(), "it is somebody else's");
    for id in ["whole", "more"] {
        assert!(store.delete_file(&project("p"), id, NOW).unwrap());
        assert!(all(&store, id).is_empty());
    }
    for id in ["1", "2", "3", "4"] {
        assert!(put(&store, file(id, "vision"), b"").unwrap());
    }
    assert_eq!(rule(put(&store, file("5", "vision"), b"")), "max_files_per_project");
}

fn files_are_read_from_any_place_listed_either_way_and_expire(place: &TestPlace) {
    let store = place.files(LIMITS);
    let store = store.as_ref();
    let bytes = content(700_000, 4);
    assert!(put(store, file("a", "batch"), &bytes).unwrap());
    for at in [0, 1, 262_143, 262_144, 300_000, 300_001, 699_999, 700_000, 800_000] {
        let some = store.read("a", at as u64).unwrap();
        let rest = bytes.get(at..).unwrap_or_default();
        assert!(rest.starts_with(&some) && some.is_empty() == rest.is_empty(), "{at}");
    }
    let mut short = file("b", "vision");
    if let FileDraft::File(file) = &mut short {
        file.expires = Some(UnixNanos::new(2_000));
    }
    assert!(put(store, short, b"x").unwrap());
    let list = |ask: PageAsk, now| {
        let (files, more) = store.files(&project("p"), None, &ask, UnixNanos::new(now)).unwrap();
        (files.into_iter().map(|file| file.id).collect::<Vec<_>>(), more)
    };
    let one = |order, after: Option<&str>| PageAsk {
        limit: 1,
        order,
        after: after.map(str::to_owned),
        before: None,
    };
    assert_eq!(list(one(ListOrder::Ascending, None), 1_999), (vec!["a".to_owned()], true));
    assert_eq!(list(one(ListOrder::Ascending, Some("a")), 1_999), (vec!["b".to_owned()], false));
    assert_eq!(list(one(ListOrder::Descending, Some("b")), 1_999), (vec!["a".to_owned()], false));
    assert_eq!(list(one(ListOrder::Descending, Some("x")), 1_999), (vec![], false));
    assert_eq!(list(PageAsk::default(), 2_000), (vec!["a".to_owned()], false));
    assert_eq!(store.sweep_files(UnixNanos::new(2_000)).unwrap(), 1);
    assert!(store.read("b", 0).unwrap().is_empty());
}

fn parts_become_a_file_whole_or_not_at_all(place: &TestPlace) {
    let store = place.files(LIMITS);
    let store = store.as_ref();
    let (first, second) = (content(400_000, 5), content(300_000, 6));
    let upload = UploadRecord {
        id: "u".to_owned(),
        project: project("p"),
        created: NOW,
        expires: UnixNanos::new(5_000),
        status: UploadStatus::Pending,
        bytes: 700_000,
        name: "n".to_owned(),
        purpose: "batch".to_owned(),
        mime: "m".to_owned(),
        kept_seconds: Some(7),
        file: None,
    };
    store.create_upload(&upload).unwrap();
    let part = |id: &str| FileDraft::Part {
        project: project("p"),
        part: PartRecord { id: id.to_owned(), upload: "u".to_owned(), created: NOW, bytes: 0 },
    };
    for (id, bytes) in [("p2", &second), ("p1", &first), ("left", &first)] {
        assert!(put(store, part(id), bytes).unwrap());
    }
    let complete = |parts: &[&str], now| {
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        store.complete_upload(&project("p"), "u", &parts, "file", UnixNanos::new(now)).unwrap()
    };
    assert_eq!(complete(&["p1"], 1), Err(UploadFault::Bytes(400_000)));
    assert_eq!(complete(&["p1", "p1"], 1), Err(UploadFault::Part("p1".to_owned())));
    assert_eq!(complete(&["p1", "x"], 1), Err(UploadFault::Part("x".to_owned())));
    assert_eq!(complete(&["p1", "p2"], 5_000), Err(UploadFault::NotPending));
    let (upload, file) = complete(&["p1", "p2"], 2_000).unwrap();
    assert_eq!(
        (upload.status, file.bytes, file.expires),
        (UploadStatus::Completed, 700_000, Some(UnixNanos::new(7_000_002_000)))
    );
    assert_eq!(all(store, "file"), [first, second].concat());
    assert!(all(store, "left").is_empty() && store.read_part("u", "p1", 0).unwrap().is_empty());
    assert!(!put(store, part("late"), b"x").unwrap(), "it takes no parts any more");
    store.give_up("late").unwrap();
    // The parts' bytes belong to the file, and become free with it.
    assert!(store.delete_file(&project("p"), "file", NOW).unwrap());
    for id in ["1", "2"] {
        assert!(put(store, self::file(id, "vision"), &content(1_000_000, 7)).unwrap());
    }
    assert_eq!(store.cancel_upload(&project("q"), "u", NOW).unwrap(), None);
    assert_eq!(store.cancel_upload(&project("p"), "u", NOW).unwrap(), Some(Err(UploadFault::NotPending)));
}

fn batch(id: &str) -> BatchRecord {
    BatchRecord {
        id: id.to_owned(),
        project: project("p"),
        counts: BatchCounts::default(),
        state: BatchState {
            key: KeyId::new("k").unwrap(),
            endpoint: Endpoint::ChatCompletions,
            created: NOW,
            expires: UnixNanos::new(9_000),
            status: BatchStatus::Validating,
            times: BatchTimes::default(),
            input: Some("file".to_owned()),
            window: "24h".to_owned(),
            metadata: None,
            kept_seconds: None,
            faults: Vec::new(),
            output: None,
            errors: None,
        },
    }
}

fn line(at: u64) -> LineRecord {
    LineRecord { at, custom_id: format!("c{at}"), body: format!("{{\"n\":{at}}}"), noted: None }
}

fn each_request_of_a_batch_ends_once_and_is_counted_once(place: &TestPlace) {
    let store = place.files(LIMITS);
    store.create_batch(&batch("b")).unwrap();
    assert!(matches!(store.create_batch(&batch("c")), Err(ObjectError::Full { .. })), "one is open");
    let lines: Vec<LineRecord> = (0..6).map(line).collect();
    assert_eq!(store.add_lines("b", &lines[..4]).unwrap(), None);
    assert_eq!(store.add_lines("b", &[line(4), line(2)]).unwrap().as_deref(), Some("c2"));
    assert_eq!(store.add_lines("b", &lines[4..]).unwrap(), None, "nothing of what was refused was added");
    assert_eq!(store.lines("b", 0, 1).unwrap(), lines[..1], "one at least");
    store.note_answer("b", 1, "req_1", "noted").unwrap();
    drop(store);
    let store = place.files(LIMITS);
    assert_eq!(store.lines("b", 1, 1 << 20).unwrap()[0].noted.as_deref(), Some("req_1"));
    assert_eq!(store.begun_lines("b").unwrap(), [LineRecord { noted: Some("req_1".to_owned()), ..line(1) }]);
    store.end_line("b", 0, LineEnd::Failed, 400, Some(("req_0", "told"))).unwrap();
    store.end_line("b", 1, LineEnd::Completed, 200, None).unwrap();
    store.end_line("b", 1, LineEnd::Failed, 500, Some(("x", "x"))).unwrap();
    store.note_answer("b", 1, "x", "x").unwrap();
    store.end_line("b", 3, LineEnd::Completed, 200, Some(("req_3", "three"))).unwrap();
    store.end_rest("b", LineEnd::Cancelled).unwrap();
    store.end_rest("b", LineEnd::Expired).unwrap();
    let told = store.batch(&project("p"), "b").unwrap().unwrap();
    assert_eq!(told.counts, BatchCounts { total: 6, completed: 2, failed: 1, cancelled: 3, expired: 0 });
    let results = store.results("b", 0, 1 << 20).unwrap();
    let shown: Vec<_> =
        results.iter().map(|line| (line.at, line.end, line.status, line.answer.as_str())).collect();
    assert_eq!(
        shown,
        [
            (0, LineEnd::Failed, 400, "told"),
            (1, LineEnd::Completed, 200, "noted"),
            (2, LineEnd::Cancelled, 0, ""),
            (3, LineEnd::Completed, 200, "three"),
            (4, LineEnd::Cancelled, 0, ""),
            (5, LineEnd::Cancelled, 0, ""),
        ]
    );
    assert!(store.lines("b", 0, 1 << 20).unwrap().is_empty());
    assert!(!store.delete_batch(&project("p"), "b").unwrap(), "it is not over");
    let over = |state: &mut BatchState| state.status = BatchStatus::Cancelled;
    assert_eq!(store.open_batches().unwrap().len(), 1);
    store.change_batch("b", UnixNanos::new(50), &mut { over }).unwrap().unwrap();
    assert!(store.open_batches().unwrap().is_empty());
    assert_eq!(store.batch(&project("q"), "b").unwrap(), None, "it is somebody else's");
    store.create_batch(&batch("c")).unwrap();
    let list = |kind, after: Option<&str>| {
        let ask = PageAsk { limit: 1, after: after.map(str::to_owned), ..PageAsk::default() };
        let (batches, more) = store.batches(&project("p"), kind, &ask).unwrap();
        (batches.into_iter().map(|batch| batch.id).collect::<Vec<_>>(), more)
    };
    assert_eq!(list(BatchKind::OfFiles, None), (vec!["c".to_owned()], true));
    assert_eq!(list(BatchKind::OfFiles, Some("c")), (vec!["b".to_owned()], false));
    assert_eq!(list(BatchKind::OfMessages, None), (vec![], false));
    assert_eq!(
        (store.sweep_files(UnixNanos::new(49)).unwrap(), store.sweep_files(UnixNanos::new(50)).unwrap()),
        (0, 1)
    );
    assert_eq!(store.batch(&project("p"), "b").unwrap(), None);
    assert!(store.results("b", 0, 1 << 20).unwrap().is_empty());
}

/// What is counted for a project is what its limit refuses more of.
fn batches_count_for_their_project_until_they_are_gone(place: &TestPlace) {
    let limits = FileLimits { max_file_bytes_per_project: 10_000, ..LIMITS };
    let store = place.files(limits);
    let store = store.as_ref();
    assert!(put(store, file("file", "batch"), &content(4_000, 1)).unwrap());
    let check_room = |bytes: usize, why: &str| {
        for (bytes, fits) in [(bytes, true), (bytes + 1, false)] {
            store.begin(&file("probe", "vision")).unwrap();
            assert_eq!(store.append("probe", 0, &content(bytes, 2)).is_ok(), fits, "{bytes}: {why}");
            store.give_up("probe").unwrap();
        }
    };
    store.create_batch(&batch("b")).unwrap();
    let state = |status: BatchStatus| {
        let state = BatchState { status, ..batch("b").state };
        256 + serde_json::to_string(&state).unwrap().len()
    };
    let begun = 6_000 - state(BatchStatus::Validating);
    check_room(begun - 4_000, "the requests of its file are reserved");
    let lines: Vec<LineRecord> = (0..4).map(line).collect();
    store.add_lines("b", &lines).unwrap();
    check_room(begun - 4_000, "they were reserved");
    let begin = |state: &mut BatchState| state.status = BatchStatus::InProgress;
    store.change_batch("b", NOW, &mut { begin }).unwrap().unwrap();
    let running = 6_000 - state(BatchStatus::InProgress);
    let bodies = 4 * "{\"n\":0}".len();
    let of_lines = 4 * (256 + 2) + bodies;
    check_room(running - of_lines, "the file is read");
    store.note_answer("b", 0, "req_0", &"a".repeat(100)).unwrap();
    check_room(running - of_lines - 200, "an answer counts twice");
    store.note_answer("b", 0, "req_0", &"a".repeat(50)).unwrap();
    store.end_line("b", 0, LineEnd::Completed, 200, None).unwrap();
    store.end_line("b", 1, LineEnd::Failed, 400, Some(("req_1", "12345"))).unwrap();
    store.end_rest("b", LineEnd::Cancelled).unwrap();
    check_room(running - (of_lines - bodies) - 100 - 10, "ended requests have no body");
    store.note_answer("b", 0, "late", "late").unwrap();
    assert_eq!(store.results("b", 0, 1).unwrap()[0].answer, "a".repeat(50));
    store.clear_lines("b").unwrap();
    assert_eq!(store.batch(&project("p"), "b").unwrap().unwrap().counts, BatchCounts::default());
    check_room(running - 4_000, "they are read again");
    store.add_lines("b", &lines).unwrap();
    let over = |state: &mut BatchState| state.status = BatchStatus::Completed;
    store.change_batch("b", UnixNanos::new(50), &mut { over }).unwrap().unwrap();
    store.forget_lines("b").unwrap();
    assert!(store.delete_batch(&project("p"), "b").unwrap());
    check_room(6_000, "nothing of it is left");
    assert_eq!(store.change_batch("b", NOW, &mut { over }).unwrap(), None);
}

/// Names and ids of clients may have any characters, and ids in look-ups need not be ids.
fn any_text_of_a_client_is_kept(place: &TestPlace) {
    let store = place.files(LIMITS);
    let store = store.as_ref();
    let name = "\0 \u{1f980}\\x00 \u{feff}'; --".to_owned();
    let mut draft = file("f", "vision");
    if let FileDraft::File(file) = &mut draft {
        file.name.clone_from(&name);
    }
    assert!(put(store, draft, b"\0\xff").unwrap());
    assert_eq!(store.file(&project("p"), "f", NOW).unwrap().unwrap().name, name);
    assert_eq!(all(store, "f"), b"\0\xff");
    store.create_batch(&batch("b")).unwrap();
    let long = "x".repeat(10_000);
    let lines: Vec<LineRecord> = [&name, &long]
        .into_iter()
        .enumerate()
        .map(|(at, custom_id)| LineRecord { custom_id: custom_id.clone(), ..line(at as u64) })
        .collect();
    assert_eq!(store.add_lines("b", &lines).unwrap(), None);
    assert_eq!(store.lines("b", 0, 1 << 20).unwrap(), lines);
    let again = LineRecord { custom_id: long.clone(), ..line(7) };
    assert_eq!(store.add_lines("b", &[again]).unwrap(), Some(long));
    for id in ["", "\0", "f\0", "'"] {
        assert_eq!(store.file(&project("p"), id, NOW).unwrap(), None);
        assert_eq!(store.batch(&project("p"), id).unwrap(), None);
        assert_eq!(store.upload(&project("p"), id).unwrap(), None);
        assert!(store.read(id, 0).unwrap().is_empty() && !store.delete_file(&project("p"), id, NOW).unwrap());
        let ask = PageAsk { after: Some(id.to_owned()), ..PageAsk::default() };
        assert_eq!(store.files(&project("p"), None, &ask, NOW).unwrap(), (Vec::new(), false));
    }
    assert!(store.files(&project("p"), Some("\0"), &PageAsk::default(), NOW).unwrap().0.is_empty());
}
