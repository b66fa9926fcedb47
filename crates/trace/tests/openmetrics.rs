//! Checks that every family of the registry changes in some scenario. The OpenMetrics page must have the same samples
//! as the text page, plus exemplars. The parser of `prometheus_client` reads a running server's page in `tests/sdk`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{TraceRecord, TraceSink};
use headrace_trace::{
    Metrics, MetricsConfig, PageFormat, RecordObserver, RecorderConfig, SampleValue, SharedRecord,
    TraceContext, TraceError, TraceRecorder, TraceStore, decode_record,
};

fn record(name: &str) -> TraceRecord {
    let path = format!("{}/tests/data/{name}.json", env!("CARGO_MANIFEST_DIR"));
    decode_record(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn metrics() -> Arc<Metrics> {
    let models = vec!["headrace-demo-20m".to_owned()];
    Arc::new(Metrics::new(&MetricsConfig { models, version: "0.1.0".to_owned() }))
}

/// A store that accepts everything.
struct Taking;

impl TraceStore for Taking {
    fn append(&mut self, _: &[TraceRecord]) -> Result<(), TraceError> {
        Ok(())
    }
}

/// A family that no scenario here changes fails this test by its name. Otherwise a metric could claim something that is
/// never counted.
#[test]
fn every_family_is_moved_by_something() {
    let metrics = metrics();
    let recorder =
        TraceRecorder::start(Some(Box::new(Taking)), Arc::clone(&metrics), RecorderConfig::default())
            .unwrap();
    for name in ["completed", "slow-upload", "moved-on", "refused", "refused-early", "cancelled", "failed"] {
        recorder.record(Box::new(record(name)));
    }
    let mut preempted = record("completed");
    preempted.engine.as_mut().unwrap().preemptions = 2;
    recorder.record(Box::new(preempted));
    assert!(recorder.close(Duration::from_secs(20)));
    // The recorder is closed, so it only counts the record.
    recorder.record(Box::new(record("completed")));
    metrics.observe_journal(Duration::from_millis(1));
    let families = metrics.families();
    assert!(families.len() > 15, "{}", families.len());
    for family in families {
        let moved = family.samples.iter().any(|sample| match &sample.value {
            SampleValue::Count(count) => *count > 0,
            SampleValue::Number(number) => *number != 0.0,
            SampleValue::Histogram(buckets) => buckets.counts.iter().any(|count| *count > 0),
        });
        assert!(moved, "nothing moves {}", family.name);
    }
}

#[test]
fn openmetrics_says_the_same_with_examples_that_lead_to_calls() {
    let metrics = metrics();
    let call = record("moved-on");
    metrics.observe(&call);
    metrics.register_counter("headrace_other_total", "Of \"others\".", &[("a", "b")], Box::new(|| 2.0));
    let (text, open) = (metrics.prometheus(), metrics.page(PageFormat::OpenMetrics));
    assert!(open.ends_with("# EOF\n") && !text.contains("# EOF"));
    assert!(
        open.contains("# TYPE headrace_other counter\n")
            && open.contains("headrace_other_total{a=\"b\"} 2\n")
    );
    assert!(open.contains("# HELP headrace_other Of \\\"others\\\".\n"), "{open}");
    let trace = format!("{:032x}", TraceContext::of(&call).trace);
    assert_eq!(Some(trace.as_str()), call.trace_id.as_deref());
    let example = format!(" # {{trace_id=\"{trace}\",request_id=\"{}\"}} 1.92148 ", call.request_id);
    let line = open
        .lines()
        .find(|line| line.starts_with("headrace_request_duration_seconds_bucket") && line.contains(&example));
    assert!(line.unwrap().contains("le=\"2.5\""), "{line:?}");
    assert!(open.contains("le=\"1.0\"") && !text.contains("le=\"1.0\""));
    // Without exemplars, whole bounds and the suffixes of counters, the samples are the same.
    let samples = |page: &str| -> Vec<String> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(" # ").next().unwrap().replace(".0\"", "\"")).collect()
    };
    let whole = |page: &str| samples(page).len();
    assert_eq!(whole(&text), whole(&open));
    assert_eq!(samples(&text), samples(&open));
}

/// A tap that keeps the ids of the calls it saw.
#[derive(Default)]
struct Counting(std::sync::Mutex<Vec<headrace_domain::RequestId>>);

impl RecordObserver for Counting {
    fn seen(&self, record: &SharedRecord) {
        self.0.lock().unwrap().push(record.request_id);
    }
}

#[test]
fn taps_see_every_record_also_those_that_are_not_stored() {
    let metrics = metrics();
    let recorder = TraceRecorder::start(None, metrics, RecorderConfig::default()).unwrap();
    let tap = Arc::new(Counting::default());
    recorder.record(Box::new(record("completed")));
    recorder.tap(vec![Arc::clone(&tap) as Arc<dyn RecordObserver>]);
    let (completed, early) = (record("completed"), record("refused-early"));
    let expected = [completed.request_id, early.request_id];
    recorder.record(Box::new(completed));
    recorder.record(Box::new(early));
    assert_eq!(*tap.0.lock().unwrap(), expected);
}
