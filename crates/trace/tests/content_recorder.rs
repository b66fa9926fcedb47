//! The recorder of contents: sweeps on time under steady traffic, commands that a full queue does not delay, and what is
//! redacted of an answer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_domain::{
    CallContent, Clock, ContentSink, Endpoint, ForgottenName, ManualClock, ProjectId, RecordLevel,
    RecordPolicy, RequestId, UnixNanos,
};
use headrace_trace::{
    CallCursor, ContentPage, ContentQuery, ContentRecorder, ContentRecorderConfig, ContentRedactor,
    ContentStore, StoredContent, TraceError,
};

const LONG: Duration = Duration::from_secs(60);

/// A store in memory. With a gate, each write waits until the other end of the gate is dropped.
#[derive(Default)]
struct MemoryContents {
    contents: Mutex<Vec<StoredContent>>,
    sweeps: Mutex<u64>,
    gate: Option<Mutex<Receiver<()>>>,
}

impl ContentStore for MemoryContents {
    fn append(&self, contents: &[StoredContent]) -> Result<(), TraceError> {
        if let Some(gate) = &self.gate {
            let _ = gate.lock().unwrap().recv();
        }
        self.contents.lock().unwrap().extend_from_slice(contents);
        Ok(())
    }
    fn sweep(&self, now: UnixNanos) -> Result<u64, TraceError> {
        *self.sweeps.lock().unwrap() += 1;
        let mut contents = self.contents.lock().unwrap();
        let before = contents.len();
        contents.retain(|content| content.expires > now);
        Ok((before - contents.len()) as u64)
    }
    fn get(&self, id: RequestId) -> Result<Option<StoredContent>, TraceError> {
        Ok(self.contents.lock().unwrap().iter().find(|content| content.id == id).cloned())
    }
    fn search(&self, _: &ContentQuery, _: Option<CallCursor>, _: usize) -> Result<ContentPage, TraceError> {
        Ok(ContentPage::default())
    }
    fn forget(&self, _: &ForgottenName, _: Option<&ProjectId>) -> Result<u64, TraceError> {
        Ok(0)
    }
}

/// Replaces `secret`.
struct ReplacingRedactor;

impl ContentRedactor for ReplacingRedactor {
    fn redact(&self, text: &str) -> Option<String> {
        text.contains("secret").then(|| text.replace("secret", "<X>"))
    }
}

fn content(number: u128, clock: &ManualClock) -> CallContent {
    CallContent {
        id: RequestId::from_bits(number),
        started: clock.now(),
        org: None,
        project: ProjectId::new("web").unwrap(),
        key: None,
        user: None,
        endpoint: Endpoint::ChatCompletions,
        model: None,
        stream: false,
        policy: RecordPolicy { level: RecordLevel::Full, keep_seconds: 60 },
        request: "x".repeat(100).into(),
        request_cut: false,
        answer: Vec::new().into(),
        answer_cut: false,
    }
}

fn start(
    store: MemoryContents,
    config: ContentRecorderConfig,
) -> (Arc<MemoryContents>, Arc<ManualClock>, Arc<ContentRecorder>) {
    let (store, clock) = (Arc::new(store), Arc::new(ManualClock::at(UnixNanos::new(1_000_000_000))));
    let recorder =
        ContentRecorder::start(Arc::clone(&store) as _, Arc::new(ReplacingRedactor), clock.clone(), config);
    (store, clock, recorder.unwrap())
}

/// Records a content every millisecond until `is_done`. Fails after [`LONG`].
fn record_until(recorder: &ContentRecorder, clock: &ManualClock, is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    let mut number = 0;
    while !is_done() {
        assert!(Instant::now() < deadline, "it never came to be");
        number += 1;
        recorder.record(Box::new(content(number, clock)));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn sweeps_are_made_on_time_while_contents_arrive() {
    let config = ContentRecorderConfig {
        sweep_every: Duration::from_millis(30),
        sweep_bytes: usize::MAX,
        ..ContentRecorderConfig::default()
    };
    let (store, clock, recorder) = start(MemoryContents::default(), config);
    record_until(&recorder, &clock, || recorder.stored() > 5);
    clock.advance(Duration::from_secs(61));
    record_until(&recorder, &clock, || recorder.removed() > 5);
    let before = *store.sweeps.lock().unwrap();
    record_until(&recorder, &clock, || *store.sweeps.lock().unwrap() >= before + 3);
    // Without any traffic, too.
    let (before, deadline) = (*store.sweeps.lock().unwrap(), Instant::now() + LONG);
    while *store.sweeps.lock().unwrap() < before + 3 {
        assert!(Instant::now() < deadline, "no sweep without traffic");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_sweep_is_made_before_its_time_after_a_number_of_bytes() {
    let config = ContentRecorderConfig {
        sweep_every: Duration::from_secs(3_600),
        sweep_bytes: 1_000,
        ..ContentRecorderConfig::default()
    };
    let (store, clock, recorder) = start(MemoryContents::default(), config);
    // One at the start, and one after each ten contents at most.
    record_until(&recorder, &clock, || *store.sweeps.lock().unwrap() >= 4);
    assert!(recorder.stored() >= 30, "{}", recorder.stored());
}

#[test]
fn a_full_queue_does_not_delay_a_command_beyond_its_time() {
    let (gate, wait) = channel();
    let store = MemoryContents { gate: Some(Mutex::new(wait)), ..MemoryContents::default() };
    let (_, clock, recorder) = start(store, ContentRecorderConfig::default());
    let mut number = 0;
    while recorder.dropped() == 0 {
        number += 1;
        recorder.record(Box::new(content(number, &clock)));
    }
    let began = Instant::now();
    assert!(!recorder.flush(Duration::from_millis(50)), "the store hangs");
    assert!(began.elapsed() < LONG / 2);
    drop(gate);
    assert!(recorder.flush(LONG));
    assert_eq!(u128::from(recorder.stored() + recorder.dropped()), number);
    assert!(recorder.close(LONG) && recorder.flush(LONG), "an ended thread has nothing left");
}

#[test]
fn a_redacted_answer_has_no_name_of_a_tool_and_no_cut_end() {
    let (store, clock, recorder) = start(MemoryContents::default(), ContentRecorderConfig::default());
    let answer = r#"data: {"choices":[{"delta":{"content":"a secret","tool_calls":[{"index":0,"function":{"name":"mail_secret","arguments":"{}"}}]}}]}

"#;
    let rows = [
        (RecordLevel::Redacted, false, ["a <X>", "mail_<X>"]),
        (RecordLevel::Redacted, true, ["", ""]),
        (RecordLevel::Full, true, ["a secret", "mail_secret"]),
    ];
    for (number, (level, answer_cut, expected)) in (1..).zip(rows) {
        let policy = RecordPolicy { level, keep_seconds: 60 };
        let answer = answer.as_bytes().to_vec().into();
        recorder.record(Box::new(CallContent { policy, answer, answer_cut, ..content(number, &clock) }));
        assert!(recorder.flush(LONG));
        let stored = store.get(RequestId::from_bits(number)).unwrap().unwrap();
        let text = stored.answer.first().map(|part| part.text.as_str()).unwrap_or_default();
        let name = stored.answer.iter().find_map(|part| part.name.as_deref()).unwrap_or_default();
        assert_eq!(([text, name], stored.answer_cut), (expected, answer_cut), "{level} {answer_cut}");
    }
}
