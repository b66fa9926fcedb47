//! Tests what a receiver gets, what is retried, and what is lost and counted. `tests/sdk/test_telemetry.py` checks the
//! bodies with the protocol's official decoder.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Mutex;

use headrace_domain::{CallOutcome, RequestId, SystemClock, WorkerJob};
use headrace_trace::{MetricsConfig, decode_record};
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::Target;
use crate::proto::{Data, KeyValue, Span, Value};

/// Time limit for any step, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn record(name: &str) -> SharedRecord {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    SharedRecord::from(Box::new(decode_record(text.trim_end()).unwrap()))
}

/// The received requests: path, head and body of each.
type Arrived = Arc<Mutex<Vec<(String, String, Vec<u8>)>>>;

/// Answers the requests in order with these (status, extra headers, body). The last answer repeats forever.
async fn receiver(answers: Vec<(u16, &'static str, Vec<u8>)>) -> (String, Arrived) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let arrived = Arrived::default();
    let seen = Arc::clone(&arrived);
    tokio::spawn(async move {
        let mut answers = answers.into_iter().peekable();
        let mut last = (200, "", Vec::new());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let (head, body) = loop {
                let mut piece = [0; 4096];
                let count = stream.read(&mut piece).await.unwrap();
                bytes.extend_from_slice(&piece[..count]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let Some(end) = text.find("\r\n\r\n") else { continue };
                let head = text[..end].to_ascii_lowercase();
                let length: usize = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                    .map_or(0, |length| length.trim().parse().unwrap());
                if bytes.len() >= end + 4 + length {
                    break (head, bytes[end + 4..].to_vec());
                }
            };
            let path = head.split(' ').nth(1).unwrap().to_owned();
            seen.lock().unwrap().push((path, head, body));
            last = answers.next().unwrap_or(last);
            let (status, headers, body) = &last;
            let head = format!(
                "HTTP/1.1 {status} x\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client may have stopped reading.
            let _ = stream.write_all(body).await;
        }
    });
    (url, arrived)
}

fn config(url: &str) -> TelemetryConfig {
    let to = |path: &str| {
        Some(Target { url: format!("{url}{path}"), headers: vec![("x-secret".to_owned(), "s3".to_owned())] })
    };
    TelemetryConfig {
        traces: to("/v1/traces"),
        metrics: to("/v1/metrics"),
        logs: to("/v1/logs"),
        resource: vec![("service.name".to_owned(), "test".to_owned())],
        linger: Duration::from_millis(1),
        metrics_every: Duration::from_secs(3600),
        ..TelemetryConfig::default()
    }
}

fn start(config: &TelemetryConfig) -> (Arc<Telemetry>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new(&MetricsConfig::default()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let started = Telemetry::start(config, "0.0.0", &metrics, &clock);
    (started.unwrap(), metrics)
}

fn counted(metrics: &Metrics, sample: &str) -> f64 {
    let page = metrics.prometheus();
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{sample} ")));
    line.unwrap_or_else(|| panic!("no {sample} in {page}")).parse().unwrap()
}

fn said(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value
}

#[test]
fn a_call_is_a_span_with_its_stages_and_tries_and_the_same_trace_everywhere() {
    let call = record("moved-on.json");
    let spans: Vec<Span> = spans::spans(&call);
    let trace = u128::from_str_radix("4bf92f3577b34da6a3ce929d0e0e4736", 16).unwrap().to_be_bytes();
    assert!(spans.iter().all(|span| span.trace_id == trace && span.span_id.len() == 8));
    let root = &spans[0];
    assert_eq!(root.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert_eq!((root.name.as_str(), root.kind), ("chat headrace-demo-20m", 2));
    assert_eq!(root.end_time_unix_nano - root.start_time_unix_nano, call.duration_ns);
    assert_eq!(said(&root.attributes, "gen_ai.usage.input_tokens"), Some(Value::IntValue(412)));
    // Stages partition the call, and attempts link to the failed attempts that they follow.
    let (stages, tries): (Vec<&Span>, Vec<&Span>) = spans[1..].iter().partition(|span| span.kind == 1);
    assert!(spans[1..].iter().all(|span| span.parent_span_id == root.span_id));
    let took: u64 = stages.iter().map(|span| span.end_time_unix_nano - span.start_time_unix_nano).sum();
    assert_eq!(took, call.duration_ns);
    assert_eq!(tries.len(), call.attempts.len());
    let linked: Vec<&Span> = tries.iter().copied().filter(|span| !span.links.is_empty()).collect();
    assert_eq!(linked.len(), 2, "two followed one that came to nothing");
    for span in linked {
        let earlier = tries.iter().find(|earlier| earlier.span_id == span.links[0].span_id).unwrap();
        assert!(earlier.status.is_some() && earlier.start_time_unix_nano < span.start_time_unix_nano);
    }
    let ids: BTreeSet<&Vec<u8>> = spans.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), spans.len());
    // The log record has the same ids, and the histograms have exemplars with them.
    let line = logs::line(&call, 1);
    assert_eq!((&line.trace_id, &line.span_id, line.severity_number), (&root.trace_id, &root.span_id, 9));
    let mut genai = GenAi::default();
    genai.observe(&call);
    let metrics = genai.metrics(0, 1);
    assert_eq!(metrics.len(), 5);
    for metric in metrics {
        let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{metric:?}") };
        let point = &histogram.data_points[0];
        assert_eq!(point.exemplars[0].trace_id, root.trace_id);
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
    }
}

/// What a worker makes of a call's second try: a record of its own, below that try's span.
fn worker_job_of(call: &TraceRecord) -> TraceRecord {
    let theirs = TraceContext::of(call).attempt(1).traceparent();
    let (trace, span) = headrace_domain::parse_traceparent(&theirs).unwrap();
    TraceRecord {
        request_id: RequestId::from_bits(0x0192_0000_0000_7000_9000_0000_0000_0001),
        trace_id: Some(trace.to_owned()),
        parent_span_id: Some(span.to_owned()),
        endpoint: None,
        attempts: Vec::new(),
        worker_job: Some(Box::new(WorkerJob { call: call.request_id })),
        ..call.clone()
    }
}

#[test]
fn a_worker_job_is_a_span_in_the_callers_trace_below_the_try_that_sent_it() {
    let call = record("moved-on.json");
    let job = worker_job_of(&call);
    let (ours, theirs) = (spans::spans(&job), spans::spans(&call));
    let tried =
        said(&theirs.iter().filter(|span| span.kind == 3).nth(1).unwrap().attributes, "headrace.worker");
    assert_eq!(tried, Some(Value::StringValue(call.attempts[1].worker.to_string())));
    let parent = theirs.iter().filter(|span| span.kind == 3).nth(1).unwrap();
    let root = &ours[0];
    assert_eq!((&root.trace_id, &root.parent_span_id), (&parent.trace_id, &parent.span_id));
    assert_eq!((root.name.as_str(), root.kind), ("text_completion headrace-demo-20m", 2));
    let named = Some(Value::StringValue(call.request_id.to_string()));
    assert_eq!(said(&root.attributes, "headrace.worker_job.call"), named);
    assert!(ours[1..].iter().all(|span| span.parent_span_id == root.span_id));
    let ids: BTreeSet<&Vec<u8>> = ours.iter().chain(&theirs).map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), ours.len() + theirs.len(), "no span of the job has the id of one of the call");
}

#[tokio::test]
async fn a_worker_job_is_sent_as_spans_and_neither_logged_nor_counted() {
    let (url, arrived) = receiver(vec![(200, "", Vec::new())]).await;
    let (telemetry, metrics) = start(&config(&url));
    telemetry.seen(&SharedRecord::from(Box::new(worker_job_of(&record("moved-on.json")))));
    assert!(telemetry.close(PATIENCE).await);
    let sent =
        |signal: &str| counted(&metrics, &format!("headrace_telemetry_sent_total{{signal=\"{signal}\"}}"));
    assert_eq!((sent("traces"), sent("logs")), (1.0, 0.0));
    let genai = |body: &[u8]| body.windows(7).any(|bytes| bytes == b"gen_ai.");
    let arrived = arrived.lock().unwrap();
    assert!(arrived.iter().all(|(path, _, body)| path == "/v1/traces" || !genai(body)));
}

#[test]
fn every_name_that_is_the_conventions_is_in_their_pinned_version() {
    let known: serde_json::Value =
        serde_json::from_slice(include_bytes!("../../tests/data/semconv-1.41.1.json")).unwrap();
    let known: BTreeSet<&str> =
        known["names"].as_array().unwrap().iter().filter_map(serde_json::Value::as_str).collect();
    assert_eq!(SCHEMA, "https://opentelemetry.io/schemas/1.41.1");
    let (mut names, mut genai) = (BTreeSet::new(), GenAi::default());
    let calls = [
        "completed.json",
        "moved-on.json",
        "refused.json",
        "refused-early.json",
        "failed.json",
        "cancelled.json",
    ];
    for call in calls.map(record) {
        genai.observe(&call);
        let spans = spans::spans(&call);
        let of_spans = spans.iter().flat_map(|span| &span.attributes);
        let line = logs::line(&call, 1);
        names.extend(of_spans.chain(&line.attributes).map(|attribute| attribute.key.clone()));
    }
    for metric in genai.metrics(0, 1) {
        let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{metric:?}") };
        let attributes = histogram.data_points.iter().flat_map(|point| &point.attributes);
        names.extend(attributes.map(|attribute| attribute.key.clone()));
        names.insert(metric.name);
    }
    let theirs: Vec<&String> = names.iter().filter(|name| !name.starts_with("headrace.")).collect();
    assert!(theirs.len() > 15, "{theirs:?}");
    let unknown: Vec<_> = theirs.into_iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[tokio::test]
async fn each_signal_arrives_at_its_path_with_its_headers() {
    let (url, arrived) = receiver(vec![(200, "", Vec::new())]).await;
    let (telemetry, metrics) = start(&config(&url));
    telemetry.seen(&record("completed.json"));
    assert!(telemetry.close(PATIENCE).await);
    let arrived = arrived.lock().unwrap();
    let paths: BTreeSet<&str> = arrived.iter().map(|(path, _, _)| path.as_str()).collect();
    assert_eq!(paths, BTreeSet::from(["/v1/logs", "/v1/metrics", "/v1/traces"]));
    let named = |head: &str| head.contains("x-secret: s3") && head.contains("application/x-protobuf");
    assert!(arrived.iter().all(|(_, head, body)| named(head) && !body.is_empty()));
    for signal in ["traces", "logs"] {
        assert_eq!(counted(&metrics, &format!("headrace_telemetry_sent_total{{signal=\"{signal}\"}}")), 1.0);
    }
}

#[tokio::test]
async fn what_may_go_well_another_time_is_tried_again_and_what_will_not_is_dropped() {
    let again = |status| (status, "retry-after: 0\r\n", Vec::new());
    let (url, arrived) = receiver(vec![again(503), again(429), again(502), (200, "", Vec::new())]).await;
    let alone = TelemetryConfig { metrics: None, logs: None, ..config(&url) };
    let (telemetry, metrics) = start(&alone);
    telemetry.seen(&record("completed.json"));
    wait_for(|| counted(&metrics, "headrace_telemetry_sent_total{signal=\"traces\"}") == 1.0).await;
    let bodies: BTreeSet<Vec<u8>> = arrived.lock().unwrap().iter().map(|(_, _, body)| body.clone()).collect();
    assert_eq!((arrived.lock().unwrap().len(), bodies.len()), (4, 1), "the same body, until it was taken");
    assert!(telemetry.close(PATIENCE).await);

    let (url, arrived) = receiver(vec![(400, "", b"no".to_vec())]).await;
    let (telemetry, metrics) = start(&TelemetryConfig { metrics: None, logs: None, ..config(&url) });
    telemetry.seen(&record("completed.json"));
    let rejected = "headrace_telemetry_dropped_total{signal=\"traces\",reason=\"rejected\"}";
    wait_for(|| counted(&metrics, rejected) == 1.0).await;
    assert_eq!(arrived.lock().unwrap().len(), 1);
    assert!(telemetry.close(PATIENCE).await);
}

#[tokio::test]
async fn parts_that_were_not_taken_are_counted() {
    let partial = ExportLogsPartialSuccess { rejected_log_records: 1, error_message: "too old".to_owned() };
    let body = ExportLogsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let (url, _arrived) = receiver(vec![(200, "", body)]).await;
    let linger = Duration::from_millis(200);
    let (telemetry, metrics) =
        start(&TelemetryConfig { metrics: None, traces: None, linger, ..config(&url) });
    (0..3).for_each(|_| telemetry.seen(&record("completed.json")));
    assert!(telemetry.close(PATIENCE).await);
    assert_eq!(counted(&metrics, "headrace_telemetry_sent_total{signal=\"logs\"}"), 2.0);
    assert_eq!(
        counted(&metrics, "headrace_telemetry_dropped_total{signal=\"logs\",reason=\"rejected\"}"),
        1.0
    );
}

/// Answers that no proper receiver gives. The exporter neither accepts them, follows them, nor waits for them without a
/// limit.
#[tokio::test]
async fn a_hostile_receiver_is_neither_believed_nor_followed_nor_waited_for() {
    let rejected = "headrace_telemetry_dropped_total{signal=\"traces\",reason=\"rejected\"}";
    let failed = "headrace_telemetry_dropped_total{signal=\"traces\",reason=\"failed\"}";
    let page = b"<html>Please log in</html>".to_vec();
    let (elsewhere, followed) = receiver(vec![(200, "", Vec::new())]).await;
    let location: &'static str = Box::leak(format!("location: {elsewhere}/v1/traces\r\n").into_boxed_str());
    for (status, headers, body, counter) in [
        (200, "content-type: text/html; charset=utf-8\r\n", page.clone(), rejected),
        (307, location, Vec::new(), rejected),
        (302, location, page, rejected),
        (404, "", vec![b'x'; 1 << 20], rejected),
        // The exporter ignores a wait of centuries.
        (503, "retry-after: 9999999999\r\n", Vec::new(), failed),
    ] {
        let (url, _arrived) = receiver(vec![(status, headers, body)]).await;
        let alone = TelemetryConfig { metrics: None, logs: None, retry_for: Duration::ZERO, ..config(&url) };
        let (telemetry, metrics) = start(&alone);
        telemetry.seen(&record("completed.json"));
        wait_for(|| counted(&metrics, counter) == 1.0).await;
        assert_eq!(counted(&metrics, "headrace_telemetry_sent_total{signal=\"traces\"}"), 0.0, "{status}");
        assert!(telemetry.close(PATIENCE).await);
    }
    assert!(followed.lock().unwrap().is_empty(), "no secret header goes where a redirect points");
}

/// An accepted body stays accepted, however long the response is. Only a limited part of the response is read.
#[tokio::test]
async fn an_answer_without_an_end_is_cut() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let endless = tokio::spawn(async move {
        let mut sent = 0_usize;
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut piece = vec![0; 1 << 16];
        let _ = stream.read(&mut piece).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n\r\n").await.unwrap();
        // Until the client stops reading.
        while stream.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
        sent
    });
    let (telemetry, metrics) = start(&TelemetryConfig { metrics: None, logs: None, ..config(&url) });
    telemetry.seen(&record("completed.json"));
    wait_for(|| counted(&metrics, "headrace_telemetry_sent_total{signal=\"traces\"}") == 1.0).await;
    let sent = timeout(PATIENCE, endless).await.unwrap().unwrap();
    assert!(sent < 64 << 20, "{sent}");
    assert!(telemetry.close(PATIENCE).await);
}

/// Calls that finish during a slow metrics export are still counted.
#[tokio::test]
async fn no_call_is_missing_in_the_conventions_histograms_however_slow_a_sending_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let slow = TelemetryConfig {
        queue_records: 4,
        metrics_every: Duration::from_millis(1),
        timeout: Duration::from_secs(3600),
        traces: None,
        logs: None,
        ..config(&url)
    };
    let (telemetry, metrics) = start(&slow);
    // The export is in progress, and the receiver does not answer.
    let (_held, _) = listener.accept().await.unwrap();
    let call = record("completed.json");
    for _ in 0..25 {
        (0..4).for_each(|_| telemetry.seen(&call));
        wait_for(|| telemetry.metrics.as_ref().unwrap().waiting() == 0).await;
    }
    let full = "headrace_telemetry_dropped_total{signal=\"metrics\",reason=\"queue_full\"}";
    assert_eq!(counted(&metrics, full), 0.0);
}

/// The receiver never answers. Handing over calls does not wait, and calls that do not fit are counted.
#[tokio::test]
async fn a_receiver_that_never_answers_holds_nobody_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silent =
        TelemetryConfig { queue_records: 10, batch_records: 2, metrics: None, logs: None, ..config(&url) };
    let (telemetry, metrics) = start(&TelemetryConfig { timeout: Duration::from_secs(3600), ..silent });
    let call = record("completed.json");
    let began = std::time::Instant::now();
    (0..100_000).for_each(|_| telemetry.seen(&call));
    let took = began.elapsed();
    let full = "headrace_telemetry_dropped_total{signal=\"traces\",reason=\"queue_full\"}";
    // Ten calls wait, and two more are being sent forever.
    let dropped = counted(&metrics, full);
    assert!((99_988.0..=99_990.0).contains(&dropped), "{dropped}");
    assert!(took < PATIENCE, "handing over waited: {took:?}");
    assert!(!telemetry.close(Duration::from_millis(50)).await, "it waits no longer than it may");
}

#[tokio::test]
async fn traces_are_sampled_whole_and_by_their_ids() {
    let (telemetry, _metrics) = start(&TelemetryConfig { sample_percent: 10, ..TelemetryConfig::default() });
    let mut call = TraceRecord::clone(&record("completed.json"));
    call.trace_id = None;
    let kept = (0..10_000_u128).filter(|number| {
        call.request_id =
            RequestId::from_bits(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        telemetry.samples(&call)
    });
    let kept = kept.count();
    assert!((900..1100).contains(&kept), "{kept}");
}

#[tokio::test]
async fn no_word_that_was_told_to_a_caller_leaves() {
    let (url, arrived) = receiver(vec![(200, "", Vec::new())]).await;
    let (telemetry, _metrics) = start(&config(&url));
    let mut call = TraceRecord::clone(&record("failed.json"));
    call.outcome =
        CallOutcome::Failed { stage: headrace_domain::Stage::Upstream, message: "CANARY-OUTCOME".to_owned() };
    call.moderation = Some("CANARY-MODERATION".to_owned());
    for attempt in &mut call.attempts {
        attempt.outcome = headrace_domain::AttemptOutcome::Failed {
            code: "upstream_failed".to_owned(),
            why: "CANARY-WHY".to_owned(),
        };
    }
    telemetry.seen(&SharedRecord::from(Box::new(call)));
    let mut call = TraceRecord::clone(&record("refused.json"));
    if let CallOutcome::Refused(refusal) = &mut call.outcome {
        refusal.message = "CANARY-MESSAGE".to_owned();
    }
    telemetry.seen(&SharedRecord::from(Box::new(call)));
    assert!(telemetry.close(PATIENCE).await);
    let arrived = arrived.lock().unwrap();
    assert!(arrived.len() >= 3);
    for (path, _, body) in arrived.iter() {
        assert!(!String::from_utf8_lossy(body).contains("CANARY"), "{path}");
    }
}

#[test]
fn what_cannot_be_sent_is_refused_before_it_is() {
    for (url, header, says) in [
        ("ftp://x", "a", "must begin with http"),
        ("no address", "a", "no address"),
        ("http://x/v1", "bad name", "header `bad name`"),
        (
            "http://me:hush@x/v1",
            "a",
            "`http://x/v1` is no address for telemetry: it holds a user or a password",
        ),
    ] {
        let headers = vec![(header.to_owned(), "v".to_owned())];
        let config = TelemetryConfig {
            traces: Some(Target { url: url.to_owned(), headers }),
            ..TelemetryConfig::default()
        };
        let why = Telemetry::check(&config).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
    let secret =
        Target { url: "http://x".to_owned(), headers: vec![("authorization".to_owned(), "hush".to_owned())] };
    assert!(!format!("{secret:?}").contains("hush"));
}

async fn wait_for(is_so: impl Fn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap();
}
