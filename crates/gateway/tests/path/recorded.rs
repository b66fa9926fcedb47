//! What is recorded of a call for each record policy, dialect and form of the answer; and that a call never waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use headrace_domain::{
    CallContent, Clock, ContentSink, Dialect, Endpoint, ForgottenName, ManualClock, ProjectId, RecordLevel,
    RecordPolicy, RecordRules, RequestId, SystemClock, UnixNanos,
};
use headrace_moderation::PiiRedactor;
use headrace_store::{Storage, StorageUrl};
use headrace_trace::{
    AnswerPartKind, CallCursor, ContentPage, ContentQuery, ContentRecorder, ContentRecorderConfig,
    ContentRedactor, ContentStore, StoredContent, TraceError,
};
use serde_json::{Value, json};

use crate::scripted_server::{answer_of, server, whole};
use crate::world::{MODEL, Script, Setup, World, read};

const MAIL: &str = "eva@example.com";
const SAID: &str = "Write to eva@example.com now.";
pub(crate) const FLUSH: Duration = Duration::from_secs(60);

struct TestRedactor(PiiRedactor);

impl ContentRedactor for TestRedactor {
    fn redact(&self, text: &str) -> Option<String> {
        self.0.redact(text)
    }
}

fn redactor() -> Arc<dyn ContentRedactor> {
    Arc::new(TestRedactor(PiiRedactor::new().unwrap()))
}

pub(crate) fn start(store: Arc<dyn ContentStore>, clock: Arc<dyn Clock>) -> Arc<ContentRecorder> {
    ContentRecorder::start(store, redactor(), clock, ContentRecorderConfig::default()).unwrap()
}

/// Sets what the project of a world records.
pub(crate) fn records(world: &World, level: RecordLevel) {
    let rules = RecordRules { level: Some(level), keep_seconds: Some(3600) };
    world.directory.set_project_records(&world.project, rules, "test", SystemClock::new().now()).unwrap();
}

fn body(endpoint: Endpoint, model: &str, stream: bool) -> Value {
    let text = format!("I am {MAIL}, prompt-canary.");
    match endpoint {
        Endpoint::Responses => json!({"model": model, "stream": stream, "input": text, "user": "u-7",
            "metadata": {"tag": "checkout"}, "store": false}),
        Endpoint::Messages => json!({"model": model, "stream": stream, "max_tokens": 90,
            "messages": [{"role": "user", "content": text}], "metadata": {"user_id": "u-7"}}),
        _ => json!({"model": model, "stream": stream, "max_tokens": 90, "user": "u-7",
            "metadata": {"tag": "checkout"}, "messages": [{"role": "user", "content": text}]}),
    }
}

/// Checks what is recorded of the last call of a world.
async fn check(world: &World, store: &dyn ContentStore, recorder: &ContentRecorder, level: RecordLevel) {
    world.balance_when_idle().await;
    assert!(recorder.flush(FLUSH));
    let trace = world.last_trace();
    let text = serde_json::to_string(&*trace).unwrap();
    let what = format!("{level} {:?} stream {}", trace.endpoint, trace.stream);
    assert!(
        !text.contains("prompt-canary") && !text.contains(MAIL),
        "{what}: a trace has no content: {text}"
    );
    let has_labels = level.has_labels();
    assert_eq!(trace.user.is_some(), has_labels, "{what}");
    // The network, because the settings say nothing else.
    let client = trace.client.map(|client| client.to_string());
    assert_eq!(client.as_deref(), has_labels.then_some("127.0.0.0/24"), "{what}");
    assert!(!text.contains("127.0.0.1"), "{what}: {text}");
    if trace.endpoint != Some(Endpoint::Messages) {
        assert_eq!(
            trace.labels.as_ref().and_then(|labels| labels.tag()),
            has_labels.then_some("checkout"),
            "{what}"
        );
    }
    let found = store.get(trace.request_id).unwrap();
    assert_eq!(found.is_some(), level.has_content(), "{what}");
    let Some(found) = found else { return };
    assert_eq!((found.project.as_str(), found.level), ("web", level), "{what}");
    assert_eq!(found.user.as_ref().map(|user| user.as_str()), Some("u-7"), "{what}");
    assert!(!found.request_cut && !found.answer_cut, "{what}");
    let texts: Vec<_> = found.answer.iter().filter(|part| part.kind == AnswerPartKind::Text).collect();
    let [text] = texts[..] else { panic!("{what}: {found:?}") };
    let is_full = level == RecordLevel::Full;
    let (mail, said) = if is_full { (MAIL, SAID) } else { ("<EMAIL>", "Write to <EMAIL> now.") };
    assert_eq!(text.text, said, "{what}");
    assert!(
        found.request.contains("prompt-canary") && found.request.contains(mail),
        "{what}: {}",
        found.request
    );
    assert_eq!(found.request.contains(MAIL), is_full, "{what}");
    assert!(serde_json::from_str::<Value>(&found.request).is_ok(), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_policy_records_what_it_says_in_every_dialect() {
    let dir = tempfile::tempdir().unwrap();
    let store = Storage::open(StorageUrl::of_folder(dir.path()), None).contents(1 << 30, None);
    let recorder = start(store.clone(), Arc::new(SystemClock::new()));
    let world = World::new(Setup::default());
    world.gateway.keep_contents(recorder.clone());
    world.script(Script::Say(SAID));
    for level in RecordLevel::ALL {
        records(&world, level);
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
            for stream in [false, true] {
                let answer = world.call(endpoint, body(endpoint, MODEL, stream)).await;
                assert_eq!(answer.status, 200, "{level} {endpoint:?}");
                read(answer).await;
                check(&world, &*store, &recorder, level).await;
            }
        }
    }
    assert_eq!((recorder.stored(), recorder.dropped()), (12, 0));
    // A call that is refused before it runs has no content.
    read(world.call(Endpoint::ChatCompletions, json!({"model": MODEL, "messages": 7})).await).await;
    assert!(recorder.flush(FLUSH));
    assert_eq!(recorder.stored(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_passed_on_is_recorded_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = Storage::open(StorageUrl::of_folder(dir.path()), None).contents(1 << 30, None);
    let recorder = start(store.clone(), Arc::new(SystemClock::new()));
    let answers = vec![whole(&answer_of(SAID)); 4];
    let server = server("gpu", Dialect::OpenAi, answers);
    let world = crate::scripted_server::world(std::slice::from_ref(&server));
    world.gateway.keep_contents(recorder.clone());
    let model = crate::scripted_server::body(false, &json!({}))["model"].as_str().unwrap().to_owned();
    for level in RecordLevel::ALL {
        records(&world, level);
        let endpoint = Endpoint::ChatCompletions;
        let answer = world.call(endpoint, body(endpoint, &model, false)).await;
        assert_eq!(answer.status, 200, "{level}");
        read(answer).await;
        check(&world, &*store, &recorder, level).await;
    }
}

/// A store that waits before each write until it is released, and fails if the test says so.
struct SlowStore {
    release: std::sync::Mutex<Receiver<()>>,
    fails: AtomicBool,
}

impl ContentStore for SlowStore {
    fn append(&self, _: &[StoredContent]) -> Result<(), TraceError> {
        let _ = self.release.lock().unwrap().recv();
        match self.fails.load(Ordering::SeqCst) {
            true => Err(TraceError::Store { doing: "write".to_owned(), why: "the disk is full".to_owned() }),
            false => Ok(()),
        }
    }
    fn sweep(&self, _: UnixNanos) -> Result<u64, TraceError> {
        Ok(0)
    }
    fn get(&self, _: RequestId) -> Result<Option<StoredContent>, TraceError> {
        Ok(None)
    }
    fn search(&self, _: &ContentQuery, _: Option<CallCursor>, _: usize) -> Result<ContentPage, TraceError> {
        Ok(ContentPage::default())
    }
    fn forget(&self, _: &ForgottenName, _: Option<&ProjectId>) -> Result<u64, TraceError> {
        Ok(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_or_fails_costs_no_call() {
    let (release, released) = channel();
    let store = Arc::new(SlowStore { release: released.into(), fails: AtomicBool::new(true) });
    let recorder = start(store, Arc::new(SystemClock::new()));
    let world = World::new(Setup::default());
    world.gateway.keep_contents(recorder.clone());
    records(&world, RecordLevel::Full);
    // The store answers none of these calls' writes before they have ended.
    for _ in 0..3 {
        let answer = world.chat(true).await;
        assert_eq!(answer.status, 200);
        read(answer).await;
        world.balance_when_idle().await;
    }
    assert_eq!(recorder.stored(), 0);
    // From now on each write fails at once.
    drop(release);
    assert!(recorder.flush(FLUSH));
    assert_eq!((recorder.stored(), recorder.dropped()), (0, 3));
}

fn content(clock: &ManualClock, bytes: usize) -> Box<CallContent> {
    let request = format!("{{\"messages\":\"{}\"}}", "x".repeat(bytes));
    Box::new(CallContent {
        id: RequestId::fresh(clock.now()),
        started: clock.now(),
        org: None,
        project: ProjectId::new("web").unwrap(),
        key: None,
        user: None,
        endpoint: Endpoint::ChatCompletions,
        model: None,
        stream: false,
        policy: RecordPolicy { level: RecordLevel::Full, keep_seconds: 60 },
        request: request.into(),
        request_cut: false,
        answer: bytes::Bytes::from_static(br#"{"choices":[{"index":0,"message":{"content":"a"}}]}"#),
        answer_cut: false,
    })
}

#[test]
fn contents_beyond_the_bytes_of_the_queue_are_dropped_and_counted() {
    let (release, released) = channel();
    let store = Arc::new(SlowStore { release: released.into(), fails: AtomicBool::new(false) });
    let clock = Arc::new(ManualClock::at(UnixNanos::new(1_000_000_000)));
    let config = ContentRecorderConfig { queue_bytes: 10_000, ..ContentRecorderConfig::default() };
    let recorder = ContentRecorder::start(store, redactor(), clock.clone(), config).unwrap();
    // One that no queue of this size takes, and one that it takes.
    recorder.record(content(&clock, 20_000));
    assert_eq!(recorder.dropped(), 1);
    recorder.record(content(&clock, 100));
    release.send(()).unwrap();
    drop(release);
    assert!(recorder.flush(FLUSH));
    assert_eq!((recorder.stored(), recorder.dropped()), (1, 1));
    assert!(recorder.close(FLUSH));
    recorder.record(content(&clock, 100));
    assert_eq!(recorder.dropped(), 2);
}

#[test]
fn contents_are_removed_when_their_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = Storage::open(StorageUrl::of_folder(dir.path()), None).contents(1 << 30, None);
    let clock = Arc::new(ManualClock::at(UnixNanos::new(1_000_000_000)));
    let recorder = start(store.clone(), clock.clone());
    let first = content(&clock, 10);
    let id = first.id;
    recorder.record(first);
    assert!(recorder.flush(FLUSH));
    assert!(store.get(id).unwrap().is_some());
    clock.advance(Duration::from_secs(59));
    assert!(recorder.flush(FLUSH));
    assert!(store.get(id).unwrap().is_some());
    clock.advance(Duration::from_secs(1));
    assert!(recorder.flush(FLUSH));
    assert!(store.get(id).unwrap().is_none());
    assert_eq!(recorder.removed(), 1);
}
