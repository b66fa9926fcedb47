//! Stores on a full disk. Writes that would use the reserve are refused by name, and removals free space at once.
//! Nothing needs to be reopened once there is room. Copies in batches count like files.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::{Endpoint, KeyId, ProjectId, UnixNanos};
use headrace_objects::{
    BatchCounts, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes, ConversationRecord, FileDraft,
    FileLimits, FileRecord, FileStore, ItemRecord, LineEnd, LineRecord, OUTPUT_PURPOSE, ObjectError,
    ObjectLimits, ObjectStore, PageAsk,
};
use headrace_store::disk::{DiskGuard, DiskSpace};
use headrace_store::files::SqliteFiles;
use headrace_store::late::LateTraceStore;
use headrace_store::objects::SqliteObjects;
use headrace_store::trace::{SqliteTraceReader, TraceRetention};
use headrace_trace::{TraceReader, TraceStore};

const NOW: UnixNanos = UnixNanos::new(1_000);
/// Bytes that a write may count in addition to its own.
const AROUND: u64 = 1 << 20;

/// A disk whose free space the test sets.
#[derive(Clone)]
struct Disk(Arc<AtomicU64>);

impl Disk {
    const RESERVE: u64 = 1 << 20;

    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX >> 1)))
    }

    fn guard(&self) -> DiskGuard {
        let free = Arc::clone(&self.0);
        let probe = move || Ok(DiskSpace { free: free.load(Ordering::SeqCst), total: u64::MAX >> 1 });
        DiskGuard::probed(Arc::new(probe), Some(Self::RESERVE))
    }

    fn has(&self, more_than_the_reserve: u64) {
        self.0.store(Self::RESERVE + more_than_the_reserve, Ordering::SeqCst);
    }

    fn is_full(&self) {
        self.0.store(Self::RESERVE - 1, Ordering::SeqCst);
    }
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

fn draft(id: &str, purpose: &str) -> FileDraft {
    FileDraft::File(FileRecord {
        id: id.to_owned(),
        project: project(),
        created: NOW,
        expires: None,
        bytes: 0,
        name: id.to_owned(),
        purpose: purpose.to_owned(),
    })
}

fn put(store: &SqliteFiles, id: &str, purpose: &str, bytes: usize) -> Result<(), ObjectError> {
    let mut draft = draft(id, purpose);
    store.begin(&draft)?;
    store.append(id, 0, &vec![7; bytes])?;
    draft.set_bytes(bytes as u64);
    assert!(store.finish(&draft, NOW)?);
    Ok(())
}

fn batch(id: &str, endpoint: Endpoint, input: Option<&str>) -> BatchRecord {
    BatchRecord {
        id: id.to_owned(),
        project: project(),
        counts: BatchCounts::default(),
        state: BatchState {
            key: KeyId::new("k").unwrap(),
            endpoint,
            created: NOW,
            expires: UnixNanos::new(9_000),
            status: BatchStatus::Validating,
            times: BatchTimes::default(),
            input: input.map(str::to_owned),
            window: String::new(),
            metadata: None,
            kept_seconds: None,
            faults: Vec::new(),
            output: None,
            errors: None,
        },
    }
}

fn line(at: u64, bytes: usize) -> LineRecord {
    LineRecord { at, custom_id: format!("c{at}"), body: "b".repeat(bytes), noted: None }
}

fn is_full<T: std::fmt::Debug>(told: Result<T, ObjectError>) -> bool {
    matches!(told, Err(ObjectError::DiskFull { .. }))
}

fn rule<T: std::fmt::Debug>(told: Result<T, ObjectError>) -> &'static str {
    match told {
        Err(ObjectError::Full { rule, .. }) => rule,
        _ => "none of a bound",
    }
}

/// Bytes of all files below a directory whose names contain `part`.
fn on_disk(dir: &Path, part: &str) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let bytes = entries.filter(|entry| entry.file_name().to_string_lossy().contains(part)).map(|entry| {
        let found = entry.metadata().unwrap();
        if found.is_dir() { on_disk(&entry.path(), "") } else { found.len() }
    });
    bytes.sum()
}

#[test]
fn a_disk_without_room_refuses_each_piece_and_gives_back_what_was_written_at_once() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new());
    let store = SqliteFiles::open(&dir.path().join("files.sqlite"), FileLimits::default()).unwrap();
    let store = store.guarded(disk.guard(), None);
    put(&store, "before", "vision", 3 << 20).unwrap();
    let kept = on_disk(dir.path(), "segments");
    assert_eq!(kept, 3 << 20);
    // The disk fills up while a file is being written.
    store.begin(&draft("big", "vision")).unwrap();
    store.append("big", 0, &vec![1; 2 << 20]).unwrap();
    disk.has((1 << 20) - 1);
    assert!(is_full(store.append("big", 2 << 20, &vec![1; 1 << 20])));
    assert_eq!(on_disk(dir.path(), "segments"), kept + (2 << 20), "nothing of the refused piece was written");
    disk.is_full();
    store.give_up("big").unwrap();
    assert_eq!(on_disk(dir.path(), "segments"), kept);
    // Every call that stores something new is refused. Calls that only read or remove are not.
    assert!(store.failing().unwrap().contains("min_free_disk"));
    assert!(is_full(put(&store, "more", "vision", 1)) && is_full(put(&store, "out", OUTPUT_PURPOSE, 1)));
    assert!(is_full(store.create_batch(&batch("b", Endpoint::ChatCompletions, None))));
    assert!(is_full(store.add_lines("b", &[line(0, 1)])) && is_full(store.note_answer("b", 0, "r", "a")));
    assert!(is_full(store.check_room(&project())));
    assert_eq!(store.files(&project(), None, &PageAsk::default(), NOW).unwrap().0.len(), 1);
    assert_eq!(store.read("before", (3 << 20) - 1).unwrap(), [7]);
    assert!(store.delete_file(&project(), "before", NOW).unwrap());
    assert_eq!(on_disk(dir.path(), "segments"), 0);
    // There is room again, and nothing was reopened.
    disk.has(AROUND + 2);
    put(&store, "after", "vision", 2).unwrap();
    assert_eq!(store.failing(), None);
}

#[test]
fn an_upload_that_would_not_fit_the_disk_is_refused_before_its_first_part() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new());
    let store = SqliteFiles::open(&dir.path().join("f"), FileLimits::default()).unwrap();
    let store = store.guarded(disk.guard(), None);
    disk.has(AROUND);
    let upload = headrace_objects::UploadRecord {
        id: "u".to_owned(),
        project: project(),
        created: NOW,
        expires: UnixNanos::new(5_000),
        status: headrace_objects::UploadStatus::Pending,
        bytes: AROUND + 1,
        name: String::new(),
        purpose: "batch".to_owned(),
        mime: String::new(),
        kept_seconds: None,
        file: None,
    };
    assert!(is_full(store.create_upload(&upload)));
    store.create_upload(&headrace_objects::UploadRecord { bytes: 10, ..upload }).unwrap();
}

#[test]
fn a_store_that_cannot_be_opened_now_is_opened_by_the_first_call_that_can() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("later");
    let files = SqliteFiles::open(&dir.join("files.sqlite"), FileLimits::default()).unwrap();
    let objects = SqliteObjects::open(&dir.join("objects.sqlite"), ObjectLimits::default()).unwrap();
    let trace = dir.join("traces.sqlite");
    let mut traces =
        LateTraceStore::open(&trace, TraceRetention::default(), u64::MAX, Disk::new().guard()).unwrap();
    let reader = SqliteTraceReader::late(&trace);
    assert!(put(&files, "a", "vision", 10).is_err() && files.failing().is_some());
    assert!(objects.unfinished(NOW).is_err() && objects.failing().is_some());
    assert!(traces.append(&[]).is_err() && reader.last(1).is_err());
    std::fs::create_dir(&dir).unwrap();
    put(&files, "a", "vision", 10).unwrap();
    assert_eq!(files.read("a", 0).unwrap(), [7; 10]);
    assert!(objects.unfinished(NOW).unwrap().is_empty());
    assert_eq!((files.failing(), objects.failing()), (None, None));
    traces.append(&[]).unwrap();
    assert!(reader.last(1).unwrap().is_empty());
}

#[test]
fn what_a_process_left_is_removed_though_its_rows_were_never_committed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("files.sqlite");
    let open = || SqliteFiles::open(&path, FileLimits::default()).unwrap();
    let store = open();
    put(&store, "whole", "vision", 5).unwrap();
    store.begin(&draft("half", "vision")).unwrap();
    store.append("half", 0, b"half").unwrap();
    drop(store);
    std::fs::write(dir.path().join("files.segments/orphan"), "x").unwrap();
    let store = open();
    assert_eq!(on_disk(dir.path(), "segments"), 5);
    assert_eq!(store.read("whole", 0).unwrap(), [7; 5]);
}

#[test]
fn requests_and_answers_of_batches_count_as_files_do_and_are_given_back() {
    const MOST: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let limits = FileLimits { max_file_bytes_per_project: MOST, ..FileLimits::default() };
    let store = SqliteFiles::open(&dir.path().join("files.sqlite"), limits).unwrap();
    let fits = |bytes: usize| {
        let told = put(&store, "probe", "vision", bytes);
        if told.is_err() {
            store.give_up("probe").unwrap();
        } else {
            assert!(store.delete_file(&project(), "probe", NOW).unwrap());
        }
        told
    };
    fits(MOST as usize).unwrap();
    put(&store, "input", "batch", 40_000).unwrap();
    let of_file = |id: &str| batch(id, Endpoint::ChatCompletions, Some("input"));
    store.create_batch(&of_file("b1")).unwrap();
    // The room for its requests is reserved for the batch before its file is read, and is not taken twice.
    assert_eq!(rule(store.create_batch(&of_file("b2"))), "max_file_bytes_per_project");
    assert_eq!(store.add_lines("b1", &[line(0, 20_000), line(1, 20_000)]).unwrap(), None);
    // A second copy of the file would exceed the limit, so the batch and its requests are refused.
    assert_eq!(rule(store.create_batch(&of_file("b2"))), "max_file_bytes_per_project");
    assert_eq!(rule(store.add_lines("b1", &[line(2, 20_000)])), "max_file_bytes_per_project");
    assert_eq!(store.batch(&project(), "b1").unwrap().unwrap().counts.total, 2, "nothing of it was added");
    assert_eq!(rule(fits(20_000)), "max_file_bytes_per_project");
    // An answer counts as a row, and as a line of the result file.
    assert_eq!(rule(store.note_answer("b1", 0, "r", &"a".repeat(10_000))), "max_file_bytes_per_project");
    store.note_answer("b1", 0, "r", &"a".repeat(9_000)).unwrap();
    store.check_room(&project()).unwrap();
    let runs = |state: &mut BatchState| state.status = BatchStatus::InProgress;
    store.change_batch("b1", UnixNanos::new(50), &mut { runs }).unwrap().unwrap();
    // An ended request returns the room of its body.
    store.end_line("b1", 0, LineEnd::Completed, 200, None).unwrap();
    fits(15_000).unwrap();
    store.end_rest("b1", LineEnd::Cancelled).unwrap();
    fits(35_000).unwrap();
    assert_eq!(rule(fits(45_000)), "max_file_bytes_per_project");
    store.forget_lines("b1").unwrap();
    fits(59_000).unwrap();
    // The result file counts, but is never refused.
    put(&store, "results", OUTPUT_PURPOSE, 30_000).unwrap();
    assert_eq!(rule(fits(35_000)), "max_file_bytes_per_project");
    // Message batches bring their own requests, and their answers stay in rows.
    store.create_batch(&batch("m", Endpoint::Messages, None)).unwrap();
    assert_eq!(store.add_lines("m", &[line(0, 10_000)]).unwrap(), None);
    assert_eq!(rule(store.note_answer("m", 0, "r", &"ä".repeat(10_000))), "max_file_bytes_per_project");
    store.note_answer("m", 0, "r", &"ä".repeat(4_500)).unwrap();
    let over = |state: &mut BatchState| state.status = BatchStatus::Completed;
    for id in ["b1", "m"] {
        store.change_batch(id, UnixNanos::new(50), &mut { over }).unwrap().unwrap();
    }
    assert!(store.delete_batch(&project(), "m").unwrap());
    assert_eq!(store.sweep_files(UnixNanos::new(60)).unwrap(), 1);
    for id in ["input", "results"] {
        assert!(store.delete_file(&project(), id, NOW).unwrap());
    }
    fits(MOST as usize).unwrap();
}

#[test]
fn files_of_all_projects_together_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let limits = FileLimits { max_total_bytes: 10_000, ..FileLimits::default() };
    let store = SqliteFiles::open(&dir.path().join("files.sqlite"), limits).unwrap();
    put(&store, "a", "vision", 6_000).unwrap();
    let mut other = draft("b", "vision");
    if let FileDraft::File(file) = &mut other {
        file.project = ProjectId::new("q").unwrap();
    }
    store.begin(&other).unwrap();
    assert_eq!(rule(store.append("b", 0, &[1; 4_001])), "max_total");
    store.append("b", 0, &[1; 4_000]).unwrap();
}

/// The tables of a file of format 1, with a file of six bytes and a batch of one request.
const FORMAT_1: &str = "
    CREATE TABLE file (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    project TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    bytes INTEGER NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    upload TEXT,
    state INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX file_project ON file (project, state, seq);
    CREATE INDEX file_expires ON file (expires) WHERE expires IS NOT NULL;
    CREATE INDEX file_upload ON file (upload) WHERE upload IS NOT NULL;
    CREATE TABLE chunk (
    file TEXT NOT NULL,
    at INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (file, at)
    ) STRICT;
    CREATE TABLE held (
    project TEXT PRIMARY KEY,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE upload (
    id TEXT PRIMARY KEY,
    project TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    status INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    mime TEXT NOT NULL,
    kept_seconds INTEGER,
    file TEXT
    ) STRICT;
    CREATE INDEX upload_expires ON upload (expires);
    CREATE INDEX upload_project ON upload (project);
    CREATE TABLE batch (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    project TEXT NOT NULL,
    messages INTEGER NOT NULL,
    gone INTEGER,
    total INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    expired INTEGER NOT NULL,
    state TEXT NOT NULL
    ) STRICT;
    CREATE INDEX batch_project ON batch (project, messages, seq);
    CREATE INDEX batch_open ON batch (project) WHERE gone IS NULL;
    CREATE INDEX batch_gone ON batch (gone) WHERE gone IS NOT NULL;
    CREATE TABLE line (
    batch TEXT NOT NULL,
    at INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    body TEXT NOT NULL,
    request TEXT NOT NULL,
    answer TEXT NOT NULL,
    status INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    PRIMARY KEY (batch, at)
    ) STRICT;
    CREATE UNIQUE INDEX line_custom ON line (batch, custom_id);
    INSERT INTO file VALUES (1, 'old', 'p', 1, NULL, 6, 'n', 'vision', NULL, 1);
    INSERT INTO chunk VALUES ('old', 0, x'010203'), ('old', 3, x'040506');
    INSERT INTO held VALUES ('p', 1, 6);
    INSERT INTO batch VALUES (1, 'b', 'p', 0, NULL, 1, 0, 0, 0, 0, '{}');
    INSERT INTO line VALUES ('b', 0, 'c', 'body', '', '', 0, 0);
    PRAGMA application_id = 1213359721;
    PRAGMA user_version = 1;
";

#[test]
fn a_file_of_format_1_is_read_counted_and_emptied() {
    use sqlx::{ConnectOptions, Connection};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("files.sqlite");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut open = options.connect().await.unwrap();
        sqlx::raw_sql(FORMAT_1).execute(&mut open).await.unwrap();
        open.close().await.unwrap();
    });
    // The batch counts 256 bytes and `{}`, and its request 256 and five bytes.
    let held = 6 + 256 + 2 + 256 + 5;
    let limits = FileLimits { max_file_bytes_per_project: held + 10, ..FileLimits::default() };
    let store = SqliteFiles::open(&path, limits).unwrap();
    assert_eq!(store.read("old", 0).unwrap(), [1, 2, 3]);
    assert_eq!(store.read("old", 4).unwrap(), [5, 6]);
    assert!(store.read("old", 6).unwrap().is_empty());
    assert_eq!(rule(put(&store, "new", "vision", 11)), "max_file_bytes_per_project");
    store.give_up("new").unwrap();
    put(&store, "next", "vision", 10).unwrap();
    assert!(store.delete_file(&project(), "old", NOW).unwrap());
    assert!(store.read("old", 0).unwrap().is_empty());
    put(&store, "last", "vision", 6).unwrap();
    store.forget_lines("b").unwrap();
    put(&store, "more", "vision", 261).unwrap();
}

fn conversation(id: &str) -> ConversationRecord {
    ConversationRecord {
        id: id.to_owned(),
        project: project(),
        created: NOW,
        expires: UnixNanos::new(u64::MAX >> 2),
        metadata: "{}".to_owned(),
    }
}

fn items(bytes: usize) -> Vec<ItemRecord> {
    vec![ItemRecord { id: "i".to_owned(), json: "j".repeat(bytes) }]
}

#[test]
fn items_of_conversations_have_a_bound_for_each_project_and_are_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ObjectLimits { max_conversation_bytes_per_project: 10_000, ..ObjectLimits::default() };
    let store = SqliteObjects::open(&dir.path().join("o"), limits).unwrap();
    let bound = "max_conversation_bytes_per_project";
    store.create_conversation(&conversation("a"), &items(6_000)).unwrap();
    assert_eq!(rule(store.create_conversation(&conversation("b"), &items(4_001))), bound);
    store.create_conversation(&conversation("b"), &items(3_000)).unwrap();
    assert_eq!(rule(store.add_items(&project(), "b", &items(1_001), NOW)), bound);
    assert!(store.delete_item(&project(), "b", "i", NOW).unwrap());
    assert!(store.add_items(&project(), "b", &items(4_000), NOW).unwrap());
    assert!(store.delete_conversation(&project(), "a", NOW).unwrap());
    assert!(store.add_items(&project(), "b", &items(6_000), NOW).unwrap());
}

#[test]
fn objects_leave_the_reserve_free_and_shrink_when_they_are_removed() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new());
    let path = dir.path().join("objects.sqlite");
    let limits = ObjectLimits::default();
    let store = SqliteObjects::open_guarded(&path, limits, Some(disk.guard())).unwrap();
    store.create_conversation(&conversation("a"), &items(8 << 20)).unwrap();
    disk.is_full();
    assert!(is_full(store.create_conversation(&conversation("b"), &items(1))));
    assert!(store.is_full() && store.failing().is_some());
    assert!(store.conversation(&project(), "a", NOW).unwrap().is_some());
    assert!(store.delete_conversation(&project(), "a", NOW).unwrap());
    store.sweep(NOW).unwrap();
    assert!(on_disk(dir.path(), "objects.sqlite") < 1 << 20, "its pages are the disk's again");
    disk.has(AROUND);
    assert_eq!(store.failing(), None);
    assert!(!store.is_full());
    store.create_conversation(&conversation("b"), &items(1)).unwrap();
}

#[test]
fn objects_of_all_projects_together_have_a_bound_that_is_not_called_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let limits = ObjectLimits { max_total_bytes: 1 << 20, ..ObjectLimits::default() };
    let guard = Some(Disk::new().guard());
    let store = SqliteObjects::open_guarded(&dir.path().join("o"), limits, guard).unwrap();
    store.create_conversation(&conversation("a"), &items(700_000)).unwrap();
    assert_eq!(rule(store.create_conversation(&conversation("b"), &items(700_000))), "max_total");
    assert_eq!(store.failing(), None);
    assert!(store.delete_conversation(&project(), "a", NOW).unwrap());
    store.create_conversation(&conversation("b"), &items(700_000)).unwrap();
}

#[test]
fn traces_leave_the_reserve_free_and_are_stored_again_when_there_is_room() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new());
    let path = dir.path().join("traces.sqlite");
    let mut traces = LateTraceStore::open(&path, TraceRetention::default(), u64::MAX, disk.guard()).unwrap();
    disk.is_full();
    assert!(traces.append(&[]).unwrap_err().to_string().contains("min_free_disk"));
    disk.has(AROUND);
    traces.append(&[]).unwrap();
}
