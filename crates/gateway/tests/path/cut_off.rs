//! A batch whose process ends in the middle of a request, at every step between two writes. The next process continues:
//! no paid answer is lost, and none is paid for twice. Deterministic: the process ends inside the store, at the step
//! itself.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{CallService, ObjectMethod, ObjectOperation, RequestTarget};
use headrace_domain::{Clock, NanoDollars, ProjectId, TraceSink, UnixNanos};
use headrace_gateway::{Gateway, GatewayConfig, GatewayParts, TraceLookup};
use headrace_identity::RateLimits;
use headrace_ledger::{Journal, JournalError, JournalRow, Ledger, MemoryJournal, Owner, StateSnapshot};
use headrace_limits::Limits;
use headrace_objects::{
    BatchKind, BatchRecord, BatchState, BatchStore, FileDraft, FileLimits, FileRecord, FileStore, LineEnd,
    LineRecord, LineResult, MemoryObjects, ObjectError, ObjectLimits, PageAsk, UploadFault, UploadRecord,
};
use headrace_store::{Storage, StorageUrl};
use serde_json::{Value, json};

use crate::world::{MODEL, Setup, World, read};

/// The index of the request that is cut off.
const CUT_LINE: u64 = 1;
const LINES: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

/// The step at which the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The answer is complete, but not stored.
    BeforeNoted,
    /// It is stored, but not paid for.
    BeforePaid,
    /// It is paid for, but the request has not ended.
    BeforeEnded,
    /// The end is stored, but not yet confirmed to the gateway.
    AfterEnded,
}

type Stored<T> = Result<T, ObjectError>;

/// How long the disk takes for an append. A step that does not wait for it is far ahead when the process ends.
const DISK: Duration = Duration::from_millis(50);

/// A journal on a slow disk.
struct Slow(MemoryJournal);

impl Journal for Slow {
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        self.0.snapshot_before(sequence)
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        self.0.rows_after(sequence, limit)
    }

    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        std::thread::sleep(DISK);
        self.0.append(rows)
    }

    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
        self.0.write_snapshot(snapshot)
    }

    fn recover(&mut self) -> Result<(), JournalError> {
        self.0.recover()
    }
}

/// A store whose process ends at one of its steps: the thread that reaches the step never returns.
struct Cutting {
    store: Arc<dyn BatchStore>,
    cut: Option<(Cut, Sender<()>)>,
    /// The stored answers, in order.
    noted: Mutex<Vec<(u64, Value)>>,
}

impl Cutting {
    fn reached(&self, cut: Cut, at: u64) {
        if let Some((_, dead)) = self.cut.as_ref().filter(|(here, _)| *here == cut && at == CUT_LINE) {
            dead.send(()).unwrap();
            loop {
                std::thread::park();
            }
        }
    }
}

impl BatchStore for Cutting {
    fn note_answer(&self, batch: &str, at: u64, request: &str, answer: &str) -> Stored<()> {
        self.reached(Cut::BeforeNoted, at);
        self.store.note_answer(batch, at, request, answer)?;
        self.noted.lock().unwrap().push((at, serde_json::from_str(answer).unwrap()));
        self.reached(Cut::BeforePaid, at);
        Ok(())
    }

    fn end_line(
        &self,
        batch: &str,
        at: u64,
        end: LineEnd,
        status: u16,
        told: Option<(&str, &str)>,
    ) -> Stored<()> {
        self.reached(Cut::BeforeEnded, at);
        self.store.end_line(batch, at, end, status, told)?;
        self.reached(Cut::AfterEnded, at);
        Ok(())
    }

    fn create_batch(&self, batch: &BatchRecord) -> Stored<()> {
        self.store.create_batch(batch)
    }

    fn batch(&self, project: &ProjectId, id: &str) -> Stored<Option<BatchRecord>> {
        self.store.batch(project, id)
    }

    fn batches(
        &self,
        project: &ProjectId,
        kind: BatchKind,
        ask: &PageAsk,
    ) -> Stored<(Vec<BatchRecord>, bool)> {
        self.store.batches(project, kind, ask)
    }

    fn open_batches(&self) -> Stored<Vec<BatchRecord>> {
        self.store.open_batches()
    }

    fn change_batch(
        &self,
        id: &str,
        gone: UnixNanos,
        change: &mut dyn FnMut(&mut BatchState),
    ) -> Stored<Option<BatchRecord>> {
        self.store.change_batch(id, gone, change)
    }

    fn delete_batch(&self, project: &ProjectId, id: &str) -> Stored<bool> {
        self.store.delete_batch(project, id)
    }

    fn add_lines(&self, batch: &str, lines: &[LineRecord]) -> Stored<Option<String>> {
        self.store.add_lines(batch, lines)
    }

    fn clear_lines(&self, batch: &str) -> Stored<()> {
        self.store.clear_lines(batch)
    }

    fn forget_lines(&self, batch: &str) -> Stored<()> {
        self.store.forget_lines(batch)
    }

    fn lines(&self, batch: &str, from: u64, most_bytes: u64) -> Stored<Vec<LineRecord>> {
        self.store.lines(batch, from, most_bytes)
    }

    fn begun_lines(&self, batch: &str) -> Stored<Vec<LineRecord>> {
        self.store.begun_lines(batch)
    }

    fn end_rest(&self, batch: &str, end: LineEnd) -> Stored<()> {
        self.store.end_rest(batch, end)
    }

    fn results(&self, batch: &str, from: u64, most_bytes: u64) -> Stored<Vec<LineResult>> {
        self.store.results(batch, from, most_bytes)
    }
}

impl FileStore for Cutting {
    fn limits(&self) -> FileLimits {
        self.store.limits()
    }

    fn begin(&self, draft: &FileDraft) -> Stored<()> {
        self.store.begin(draft)
    }

    fn append(&self, id: &str, at: u64, bytes: &[u8]) -> Stored<()> {
        self.store.append(id, at, bytes)
    }

    fn finish(&self, draft: &FileDraft, now: UnixNanos) -> Stored<bool> {
        self.store.finish(draft, now)
    }

    fn give_up(&self, id: &str) -> Stored<()> {
        self.store.give_up(id)
    }

    fn file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Stored<Option<FileRecord>> {
        self.store.file(project, id, now)
    }

    fn files(
        &self,
        project: &ProjectId,
        purpose: Option<&str>,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Stored<(Vec<FileRecord>, bool)> {
        self.store.files(project, purpose, ask, now)
    }

    fn read(&self, id: &str, at: u64) -> Stored<Vec<u8>> {
        self.store.read(id, at)
    }

    fn delete_file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Stored<bool> {
        self.store.delete_file(project, id, now)
    }

    fn create_upload(&self, upload: &UploadRecord) -> Stored<()> {
        self.store.create_upload(upload)
    }

    fn upload(&self, project: &ProjectId, id: &str) -> Stored<Option<UploadRecord>> {
        self.store.upload(project, id)
    }

    fn cancel_upload(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Stored<Option<Result<UploadRecord, UploadFault>>> {
        self.store.cancel_upload(project, id, now)
    }

    fn read_part(&self, upload: &str, part: &str, at: u64) -> Stored<Vec<u8>> {
        self.store.read_part(upload, part, at)
    }

    fn complete_upload(
        &self,
        project: &ProjectId,
        id: &str,
        parts: &[String],
        file: &str,
        now: UnixNanos,
    ) -> Stored<Result<(UploadRecord, FileRecord), UploadFault>> {
        self.store.complete_upload(project, id, parts, file, now)
    }

    fn sweep_files(&self, now: UnixNanos) -> Stored<u64> {
        self.store.sweep_files(now)
    }
}

/// A process that uses the ledger and files handed from one process to the next.
struct Process {
    runtime: tokio::runtime::Runtime,
    gateway: Arc<Gateway>,
    store: Arc<Cutting>,
}

impl Process {
    fn start(world: &World, ledger: Ledger, owner: u64, dir: &Path, cut: Option<(Cut, Sender<()>)>) -> Self {
        let store =
            Storage::open(StorageUrl::of_folder(dir), None).batches(FileLimits::default(), None).unwrap();
        let store = Arc::new(Cutting { store, cut, noted: Mutex::default() });
        let parts = GatewayParts {
            clock: Arc::clone(&world.clock) as Arc<dyn Clock>,
            directory: Arc::clone(&world.directory),
            tokens: None,
            certificates: None,
            limits: Limits::new(),
            ledger: Arc::new(ledger),
            traces: Arc::clone(&world.traces) as Arc<dyn TraceSink>,
            records: Arc::clone(&world.traces) as Arc<dyn TraceLookup>,
            objects: Arc::new(MemoryObjects::new(ObjectLimits::default())),
            files: Some(Arc::clone(&store) as Arc<dyn BatchStore>),
            answers: Arc::new(headrace_objects::MemoryAnswers::new(1 << 30)),
            cache_secret: [9; 32],
            owner: Owner::new(owner.into()),
        };
        let gateway = Gateway::new(parts, world.gateway.catalog(), GatewayConfig::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Self { runtime, gateway, store }
    }

    fn look(&self, world: &World, method: ObjectMethod, path: &str, body: String) -> (u16, String) {
        let operation = ObjectOperation { method, path: path.to_owned(), query: Vec::new() };
        self.runtime.block_on(async {
            let admission = self.gateway.admit(world.head(RequestTarget::Object(operation))).ok().unwrap();
            let answer = self.gateway.serve(admission, Bytes::from(body)).await;
            (answer.status, read(answer).await)
        })
    }

    fn create(&self, world: &World) -> String {
        let line = |at| {
            let content = format!("say ha, {at}");
            json!({"custom_id": format!("line-{at}"), "params": {"model": MODEL, "max_tokens": 5,
                "messages": [{"role": "user", "content": content}]}})
        };
        let requests = json!({"requests": (0..LINES).map(line).collect::<Vec<_>>()}).to_string();
        let (status, batch) = self.look(world, ObjectMethod::Post, "messages/batches", requests);
        assert_eq!(status, 200, "{batch}");
        serde_json::from_str::<Value>(&batch).unwrap()["id"].as_str().unwrap().to_owned()
    }

    /// The result of each request, once the batch is over.
    fn results(&self, world: &World, id: &str) -> Vec<Value> {
        let path = format!("messages/batches/{id}");
        let began = std::time::Instant::now();
        loop {
            let (_, batch) = self.look(world, ObjectMethod::Get, &path, String::new());
            let batch: Value = serde_json::from_str(&batch).unwrap();
            if batch["processing_status"] == "ended" {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{batch}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (status, lines) = self.look(world, ObjectMethod::Get, &format!("{path}/results"), String::new());
        assert_eq!(status, 200, "{lines}");
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn spent(world: &World, ledger: &Ledger) -> NanoDollars {
    let standing = ledger.standing(&world.org, &world.project).unwrap();
    assert_eq!(standing.held, NanoDollars::ZERO, "every hold is resolved");
    NanoDollars::from_dollars("1").unwrap().checked_sub(standing.balance).unwrap()
}

fn world() -> World {
    // One request of the batch at a time, so that it is known what ran before the cut.
    let limits = RateLimits { concurrency: Some(2), ..RateLimits::default() };
    World::new(Setup { limits, ..Setup::default() })
}

/// The cost of the whole batch if nothing is cut off, and the prompt of each of its requests.
fn undisturbed() -> (NanoDollars, Vec<Arc<[u32]>>) {
    let (world, dir) = (world(), tempfile::tempdir().unwrap());
    let process = Process::start(&world, world.ledger.clone(), 1, dir.path(), None);
    let id = process.create(&world);
    assert_eq!(process.results(&world, &id).len() as u64, LINES);
    let prompts: Vec<_> =
        world.engine.jobs.lock().unwrap().iter().map(|job| Arc::clone(&job.prompt)).collect();
    assert_eq!(prompts.len() as u64, LINES);
    (spent(&world, &world.ledger), prompts)
}

fn cut_off(cut: Cut, cost: NanoDollars, prompts: &[Arc<[u32]>]) {
    let (world, dir) = (world(), tempfile::tempdir().unwrap());
    let (dead, died): (_, Receiver<()>) = channel();
    let journal = MemoryJournal::with(world.journal.contents());
    let (ledger, _) =
        Ledger::open(Box::new(Slow(journal.clone())), Owner::new(1), world.clock.now()).unwrap();
    let first = Process::start(&world, ledger, 1, dir.path(), Some((cut, dead)));
    let id = first.create(&world);
    died.recv_timeout(PATIENCE).unwrap();
    // The next process finds only what is on the disk now.
    let journal = MemoryJournal::with(journal.contents());
    let mut noted = first.store.noted.lock().unwrap().clone();
    let Process { runtime, gateway, store: _ } = first;
    runtime.shutdown_background();
    drop(gateway);

    let now = world.clock.now();
    let (ledger, _) = Ledger::open(Box::new(journal), Owner::new(2), now).unwrap();
    let second = Process::start(&world, ledger.clone(), 2, dir.path(), None);
    let resumed = second.runtime.block_on(second.gateway.resume_batches());
    assert_eq!(resumed, Ok(1), "{cut:?}");
    let results = second.results(&world, &id);
    noted.extend(second.store.noted.lock().unwrap().clone());
    for (at, result) in results.iter().enumerate() {
        assert_eq!(result["custom_id"], format!("line-{at}"));
        assert_eq!(result["result"]["type"], "succeeded", "{cut:?}: {result}");
        let (_, last) = noted.iter().rfind(|(line, _)| *line == at as u64).unwrap();
        assert_eq!(&result["result"]["message"], last, "{cut:?}: the answer is the one that was paid for");
    }
    assert_eq!(results.len() as u64, LINES);
    let asked = |line: u64| {
        let prompt = &prompts[usize::try_from(line).unwrap()];
        world.engine.jobs.lock().unwrap().iter().filter(|job| job.prompt == *prompt).count()
    };
    let times = match cut {
        Cut::BeforeNoted | Cut::BeforePaid => 2,
        Cut::BeforeEnded | Cut::AfterEnded => 1,
    };
    // The request after the cut may have begun in parallel: a paid request makes way for the next one.
    assert_eq!((asked(CUT_LINE - 1), asked(CUT_LINE)), (1, times), "{cut:?}");
    assert_eq!(spent(&world, &ledger), cost, "{cut:?}: each request is paid for once");
}

#[test]
fn money_a_batch_that_is_cut_off_at_any_step_pays_for_each_request_once() {
    let (cost, prompts) = undisturbed();
    assert!(cost > NanoDollars::ZERO);
    for cut in [Cut::BeforeNoted, Cut::BeforePaid, Cut::BeforeEnded, Cut::AfterEnded] {
        cut_off(cut, cost, &prompts);
    }
}
