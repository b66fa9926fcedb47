//! The live view: the minute's figures, the rows for subscribers, and notes about slow, refused and failed calls.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{
    CallOutcome, KeyId, NanoDollars, RequestId, Stage, TraceRecord, TraceSink, TracedRefusal, UnixNanos,
};
use headrace_trace::{
    CallEndKind, EVENTS_WAITING, LiveView, Metrics, MetricsConfig, RecorderConfig, TraceRecorder,
    decode_record,
};
use tokio::sync::broadcast::error::TryRecvError;

const SECOND: u64 = 1_000_000_000;
/// The start of virtual time.
const START: u64 = 1_795_000_000 * SECOND;
const WAIT: Duration = Duration::from_secs(20);

fn recorder() -> Arc<TraceRecorder> {
    let metrics = Arc::new(Metrics::new(&MetricsConfig::default()));
    TraceRecorder::start(None, metrics, RecorderConfig::default()).unwrap()
}

/// A call that ran. It started `second` seconds after the start and took `millis` milliseconds.
fn ran(n: u64, second: u64, millis: u64) -> TraceRecord {
    let mut record = decode_record(include_str!("data/completed.json")).unwrap();
    record.request_id = RequestId::from_bits(n.into());
    record.started = UnixNanos::new(START + second * SECOND);
    record.duration_ns = millis * 1_000_000;
    record.first_token_ns = Some(millis * 500_000);
    record.stages.clear();
    record
}

fn refused(n: u64, second: u64, key: Option<&str>) -> TraceRecord {
    let mut record = ran(n, second, 1);
    record.key = key.map(|key| KeyId::new(key).unwrap());
    record.org = record.org.filter(|_| key.is_some());
    record.first_token_ns = None;
    record.engine = None;
    record.usage = Default::default();
    record.cost = NanoDollars::ZERO;
    record.outcome = CallOutcome::Refused(TracedRefusal {
        stage: Stage::Hold,
        rule: "requests_per_minute".to_owned(),
        status: 429,
        code: "rate_limit_exceeded".to_owned(),
        message: "60 requests a minute\u{1b}[2J".to_owned(),
    });
    record
}

#[test]
fn the_minute_has_the_calls_that_ended_in_its_sixty_seconds_and_no_others() {
    let recorder = recorder();
    let one = ran(1, 0, 100);
    let (tokens, cost) = (one.usage, one.cost);
    for n in 0..160_u64 {
        recorder.record(Box::new(ran(n, n, 100)));
    }
    recorder.record(Box::new(refused(900, 150, Some("key-1"))));
    // Refusals of an unknown caller are sampled away from the store, but are still counted.
    (0..50).for_each(|n| recorder.record(Box::new(refused(1_000 + n, 151, None))));
    let minute = recorder.live().minute(UnixNanos::new(START + 160 * SECOND));
    assert_eq!((minute.ended(CallEndKind::Completed), minute.ended(CallEndKind::Refused)), (60, 51));
    assert_eq!(minute.calls(), 111);
    assert_eq!(minute.prompt_tokens, 60 * tokens.prompt_tokens());
    assert_eq!(minute.cached_tokens, 60 * tokens.cached_input);
    assert_eq!(minute.completion_tokens, 60 * tokens.completion_tokens());
    assert_eq!(minute.charged.get(), 60 * cost.get());
    assert_eq!(minute.first_token.calls, 60);
    let exact = 50_000_000;
    assert!((exact..=exact * 9 / 8).contains(&minute.first_token.p50_ns), "{:?}", minute.first_token);
    // Time passes, and the old figures are forgotten.
    let later = recorder.live().minute(UnixNanos::new(START + 400 * SECOND));
    assert_eq!((later.calls(), later.first_token.calls), (0, 0));
    recorder.record(Box::new(ran(2_000, 10, 100)));
    assert_eq!(recorder.live().minute(UnixNanos::new(START + 160 * SECOND)).calls(), 111, "long gone");
}

#[test]
fn who_listens_gets_each_call_and_who_lags_is_told_how_many_it_missed() {
    let recorder = recorder();
    recorder.record(Box::new(ran(1, 0, 5)));
    assert!(recorder.flush(WAIT));
    let mut listener = recorder.live().subscribe();
    let (gone, mut late) = (recorder.live().subscribe(), recorder.live().subscribe());
    drop(gone);
    recorder.record(Box::new(ran(2, 1, 5)));
    recorder.record(Box::new(refused(3, 1, Some("key-1"))));
    assert!(recorder.flush(WAIT));
    let mut got = [listener.try_recv().unwrap(), listener.try_recv().unwrap()];
    got.sort_by_key(|row| row.id);
    assert_eq!(got.each_ref().map(|row| row.id.bits()), [2, 3], "from when it listened on");
    assert_eq!(got[1].json()["outcome"]["code"], "rate_limit_exceeded");
    assert_eq!(got[0].json()["cost"]["charged_nano_dollars"], ran(2, 1, 5).cost.get());
    assert_eq!(listener.try_recv().unwrap_err(), TryRecvError::Empty);
    for n in 0..EVENTS_WAITING as u64 {
        recorder.record(Box::new(ran(10 + n, 2, 5)));
    }
    assert!(recorder.flush(WAIT));
    assert_eq!(late.try_recv().unwrap_err(), TryRecvError::Lagged(2));
    assert!(late.try_recv().is_ok(), "and it goes on");
}

#[test]
fn what_is_slow_refused_or_failing_is_said_in_words() {
    let recorder = recorder();
    for n in 0..40 {
        recorder.record(Box::new(ran(n, 5, 20)));
    }
    let mut slow = ran(100, 5, 3_000);
    slow.stages = vec![headrace_domain::StageSpan {
        stage: Stage::Queue,
        start_ns: 0,
        duration_ns: 2_900_000_000,
        inside: None,
    }];
    recorder.record(Box::new(slow));
    (0..3).for_each(|n| recorder.record(Box::new(refused(200 + n, 6, Some("key-1")))));
    recorder.record(Box::new(refused(300, 7, Some("key-2"))));
    let mut failed = ran(400, 7, 10);
    failed.outcome = CallOutcome::Failed { stage: Stage::Upstream, message: "it broke off".to_owned() };
    recorder.record(Box::new(failed));
    assert!(recorder.flush(WAIT));
    let notes = recorder.live().notes(UnixNanos::new(START + 20 * SECOND));
    let of = |kind: &str| notes.iter().filter(|note| note.kind == kind).collect::<Vec<_>>();
    assert!(of("failed")[0].text.contains("failed in upstream after 10.0 ms: it broke off"), "{notes:?}");
    assert_eq!(of("refused").len(), 2);
    let key_1 = of("refused").into_iter().find(|note| note.text.contains("key-1")).unwrap();
    assert_eq!(key_1.text, "3 calls of key-1 were refused in hold with 429: 60 requests a minute\u{fffd}[2J");
    assert_eq!(key_1.code.as_deref(), Some("rate_limit_exceeded"));
    let [slow] = of("slow")[..] else { panic!("{notes:?}") };
    assert!(slow.text.contains("took 3.00 s, most of it in the engine's queue"), "{}", slow.text);
    assert!(slow.text.contains("first token came after 1.50 s"), "{}", slow.text);
    assert_eq!(slow.request.map(RequestId::bits), Some(100));
    assert_eq!(recorder.live().notes(UnixNanos::new(START + 200 * SECOND)), [], "long past");
    let name =
        |key: &KeyId| if key.as_str() == "key-1" { "green\u{1b}[2J".to_owned() } else { key.to_string() };
    let named = recorder.live().notes_with(UnixNanos::new(START + 20 * SECOND), &name);
    assert_eq!(named.len(), notes.len());
    assert!(
        named.iter().any(|note| note.text.starts_with("3 calls of green\u{fffd}[2J were refused")),
        "{named:?}"
    );
    assert!(named.iter().all(|note| !note.text.contains("key-1")), "{named:?}");
    let now = LiveView {
        at: UnixNanos::new(START + 20 * SECOND),
        in_flight: 2,
        calls: vec![headrace_trace::CallNow {
            id: RequestId::from_bits(9),
            stage: Stage::Decode,
            age_ns: 1_500_000,
            org: None,
            project: None,
            key: Some(KeyId::new("key-1").unwrap()),
            key_name: Some("green".to_owned()),
            model: None,
            completion_tokens: 12,
        }],
        minute: recorder.live().minute(UnixNanos::new(START + 20 * SECOND)),
        engines: Vec::new(),
        notes,
    };
    let json = now.json();
    assert_eq!(json["in_flight"]["by_stage"], serde_json::json!({ "decode": 1 }));
    assert_eq!(
        (json["calls"][0]["age_us"].as_f64(), json["calls"][0]["key"].as_str()),
        (Some(1500.0), Some("key-1"))
    );
    assert_eq!(json["calls"][0]["completion_tokens"], 12);
    assert_eq!(json["calls"][0]["key_name"], "green");
    assert_eq!(
        (json["per_minute"]["refused"].as_u64(), json["per_minute"]["failed"].as_u64()),
        (Some(4), Some(1))
    );
    assert_eq!(json["notes"][0]["kind"], "failed");
    assert_eq!(json["queue_us"]["calls"], json["ttft_us"]["calls"].as_u64().unwrap());
}
