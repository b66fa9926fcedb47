//! Tests which calls count, and the percentiles over them. Must not know how calls are made.

use std::time::Instant;

use super::*;
use crate::chunk::ServerUsage;
use crate::{PlannedSession, RunPlan, StopRule, Warmup, read_trace, text, write_trace};

const GAUGE: TokenizerGauge = TokenizerGauge { tokens_per_word: 1.25, overhead_tokens: 8.0, source: "usage" };

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One second of warm-up, then five measured seconds.
fn config() -> BenchConfig {
    let mut config = BenchConfig::new("http://127.0.0.1:8080");
    config.load = LoadShape::Open { rate: 1.0, arrivals: crate::ArrivalSpread::Poisson };
    config.stop = StopRule { requests: None, duration: Some(ms(5_000)) };
    config.warmup = Warmup::Time(ms(1_000));
    config.slo = "ttft=500ms,itl=50ms,e2e=2s".parse().ok();
    config.record = true;
    config.started_unix_ms = Some(1_700_000_000_000);
    config
}

fn server() -> ReportedServer {
    ReportedServer {
        url: "http://127.0.0.1:8080".into(),
        endpoint: "/v1/chat/completions".into(),
        model: "m".into(),
        context_window: Some(4_096),
    }
}

/// A call due at `due` and sent at `sent`, with events after `events`, all in milliseconds.
fn record(config: &BenchConfig, due: u64, sent: u64, events: &[u32], ending: CallEnd) -> CallRecord {
    let session: PlannedSession = RunPlan::new(config).sessions().next().unwrap();
    let output = events.len() as u64;
    CallRecord {
        call: session.calls[0].clone(),
        session: None,
        prefix: None,
        measured: due >= 1_000,
        due: ms(due),
        sent: ms(sent),
        waited: Duration::ZERO,
        heard: HeardCall {
            sent: Instant::now(),
            events: events.iter().map(|event| event * 1_000).collect(),
            end: ms(u64::from(events.last().copied().unwrap_or(7))),
            usage: (ending == CallEnd::Ok).then_some(ServerUsage { prompt: 100, output, cached: Some(40) }),
            answer: String::new(),
            ending,
        },
    }
}

fn failed(class: &str) -> CallEnd {
    CallEnd::Failed(CallFailure {
        class: class.into(),
        message: format!("{class} it was"),
        status: Some(429),
    })
}

fn report(config: &BenchConfig, records: Vec<CallRecord>, elapsed: u64, cut_short: bool) -> BenchReport {
    let window = MeasureWindow::new(config);
    let mut tally = RunTally::new(config);
    for record in records {
        window.admit(record.call.index, record.due);
        tally.take(SessionEvent::Ended(Box::new(record)), &window);
    }
    let run = RunFacts {
        elapsed: ms(elapsed),
        begin: window.begin(),
        end: window.end(),
        cut_short,
        in_flight_max: 3,
        sent_again: 0,
        wake_lag: QuantileRecorder::default(),
    };
    tally.report(config, server(), GAUGE, &run)
}

/// One call of each kind: a warm-up call that reaches into the window, a good one, and a lagging one. Then one that is
/// slow between tokens, a failed one, and one that ends after the window.
fn usual(config: &BenchConfig) -> Vec<CallRecord> {
    vec![
        record(config, 900, 900, &[200, 300], CallEnd::Ok),
        record(config, 1_000, 1_000, &[100, 120, 140, 160, 180], CallEnd::Ok),
        record(config, 2_000, 2_600, &[100, 110], CallEnd::Ok),
        record(config, 3_000, 3_000, &[100, 300, 500], CallEnd::Ok),
        record(config, 3_500, 3_500, &[], failed("429 rate_limit_exceeded")),
        record(config, 5_900, 5_900, &[50, 150, 250], CallEnd::Ok),
    ]
}

#[test]
fn what_happened_in_the_window_counts_whosever_call_it_is() {
    let config = config();
    let report = report(&config, usual(&config), 6_150, false);
    assert_eq!((report.window_s, report.elapsed_s), (5.0, 6.15));
    let calls = CallTotals { sent: 5, ok: 4, failed: 1, warmup: 1, ..CallTotals::default() };
    assert_eq!(report.calls, calls);
    // Two of the warm-up's tokens arrived in the window, and two of the last call's tokens after it.
    let tokens = 2 + 5 + 2 + 3 + 1;
    assert_eq!(report.rates.output_tokens_per_s, f64::from(tokens) / 5.0);
    assert_eq!(report.rates.requests_per_s, 4.0 / 5.0);
    assert_eq!(report.rates.prompt_tokens_per_s, 500.0 / 5.0);
    assert_eq!(report.rates.due_per_s, Some(1.0));
    assert_eq!((report.tokens.output, report.tokens.prompt, report.tokens.cached), (13, 400, Some(160)));
}

#[test]
fn latencies_count_from_when_a_call_was_due_and_the_lag_stands_beside_them() {
    let config = config();
    let report = report(&config, usual(&config), 6_150, false);
    let latency = &report.latency;
    let near =
        |found: f64, wanted: f64| assert!((found - wanted).abs() <= wanted * 0.001, "{found} {wanted}");
    near(latency.from_due.ttft_ms.max, 700.0);
    near(latency.from_sent.ttft_ms.max, 100.0);
    near(latency.from_due.e2e_ms.max, 710.0);
    near(latency.send_lag_ms.max, 600.0);
    near(report.generator.own_lag_ms.max, 600.0);
    assert!(
        !report.generator.kept_up && report.remarks.iter().any(|remark| remark.contains("could not keep up"))
    );
    // Gaps: four of 20, one of 10, two of 200, two of 100.
    assert_eq!(latency.itl_ms.count, 9);
    near(latency.itl_ms.max, 200.0);
    assert_eq!(latency.tpot_ms.count, 4);
    let counted: u64 = latency.histogram.iter().map(|bucket| bucket.calls).sum();
    assert_eq!(counted, 4);
}

#[test]
fn goodput_counts_what_was_offered_and_names_what_was_missed() {
    let config = config();
    let window = MeasureWindow::new(&config);
    let mut tally = RunTally::new(&config);
    for record in usual(&config) {
        window.admit(record.call.index, record.due);
        tally.take(SessionEvent::Ended(Box::new(record)), &window);
    }
    tally.take(SessionEvent::Unsent, &window);
    let goodput = tally.goodput(config.slo.unwrap(), 5.0);
    // Only the first call is good: the second lags, and the third and the last are slow between tokens.
    let missed = MissedBounds { ttft: 1, itl: 2, failed: 1, unsent: 1, ..MissedBounds::default() };
    assert_eq!((goodput.offered, goodput.good, goodput.missed), (6, 1, missed));
    assert_eq!((goodput.share, goodput.requests_per_s, goodput.output_tokens_per_s), (0.167, 0.2, 1.0));
}

#[test]
fn tokens_of_one_event_are_shared_out() {
    let config = config();
    let mut call = record(&config, 1_000, 1_000, &[100, 200, 300], CallEnd::Ok);
    call.heard.usage = Some(ServerUsage { prompt: 9, output: 9, cached: None });
    let report = report(&config, vec![call], 2_000, false);
    assert_eq!(report.tokens.per_event, 3.0);
    // 200 ms for the eight tokens after the first.
    assert_eq!(report.latency.tpot_ms.max, 25.0);
    assert_eq!(report.series[1].output_tokens, 9);
    assert!(report.remarks.iter().any(|remark| remark.contains("3.00 tokens per event")));
}

#[test]
fn events_that_come_in_bunches_are_remarked_upon() {
    let config = config();
    let bunched = |report: &BenchReport| report.remarks.iter().any(|remark| remark.contains("bunches"));
    let events = [100, 100, 100, 100, 200, 200, 200, 200, 300];
    let call = |events: &[u32]| vec![record(&config, 1_000, 1_000, events, CallEnd::Ok)];
    assert!(bunched(&report(&config, call(&events), 2_000, false)));
    assert!(!bunched(&report(&config, call(&[100, 120, 140, 160, 180]), 2_000, false)));
}

#[test]
fn without_usage_events_are_counted_and_that_is_said() {
    let config = config();
    let mut call = record(&config, 1_000, 1_000, &[100, 200, 300], CallEnd::Ok);
    call.heard.usage = None;
    let report = report(&config, vec![call], 2_000, false);
    assert_eq!((report.tokens.output, report.tokens.without_usage, report.tokens.cached), (3, 1, None));
    assert!(report.remarks.iter().any(|remark| remark.contains("without usage")));
}

#[test]
fn an_early_end_is_marked_and_its_window_ends_with_it() {
    let config = config();
    let records = vec![
        record(&config, 1_000, 1_000, &[100, 120], CallEnd::Ok),
        record(&config, 2_500, 2_500, &[100], CallEnd::CutOff),
    ];
    let report = report(&config, records, 3_000, true);
    assert_eq!((report.cut_short, report.window_s, report.calls.cut_off), (true, 2.0, 1));
    assert_eq!(report.goodput.unwrap().offered, 1);
    assert!(report.remarks[0].contains("cut short"), "{:?}", report.remarks);
}

#[test]
fn errors_are_counted_by_class_the_most_frequent_first() {
    let config = config();
    let many = |class: &str, count: usize| {
        (0..count).map(|_| record(&config, 1_000, 1_000, &[], failed(class))).collect::<Vec<_>>()
    };
    let mut records = many("timeout", 1);
    records.extend(many("429 x", 3));
    records.extend((0..100).flat_map(|class| many(&format!("class {class}"), 1)));
    let report = report(&config, records, 2_000, false);
    let first = &report.errors[0];
    assert_eq!((first.class.as_str(), first.calls), ("others", 38));
    let second = &report.errors[1];
    assert_eq!((second.class.as_str(), second.calls, second.example.as_str()), ("429 x", 3, "429 x it was"));
    assert_eq!(report.errors.iter().map(|error| error.calls).sum::<u64>(), 104);
    assert!(report.remarks.iter().any(|remark| remark.contains("no call was answered")));
}

/// The trace of a run reads back as a trace that asks for the same calls.
#[test]
fn the_trace_of_a_run_reads_back() {
    let config = config();
    let report = report(&config, usual(&config), 6_150, false);
    let mut written = Vec::new();
    write_trace(&mut written, &report.trace).unwrap();
    let read = read_trace(written.as_slice()).unwrap();
    let rows: Vec<(f64, Option<u32>, Option<u32>)> =
        read.iter().map(|call| (call.at_ms, call.prompt_tokens, call.output_tokens)).collect();
    assert_eq!(
        rows,
        [
            (900.0, Some(100), Some(2)),
            (1_000.0, Some(100), Some(5)),
            (2_000.0, Some(100), Some(2)),
            (3_000.0, Some(100), Some(3)),
            // The call failed, so the trace has the planned tokens.
            (3_500.0, Some(128), Some(64)),
            (5_900.0, Some(100), Some(3)),
        ]
    );
}

/// Compares the JSON and the screen with the committed files. `HEADRACE_BLESS=1` rewrites them.
#[test]
fn the_forms_are_the_committed_ones() {
    let config = config();
    let report = report(&config, usual(&config), 6_150, false);
    let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
    let json = json.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let screen = text(&report, crate::PlotStyle { width: 100, color: false });
    for (name, found) in [("report.json", json), ("screen.txt", screen)] {
        let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("HEADRACE_BLESS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, wanted, "{path} differs: if it should, HEADRACE_BLESS=1 writes it anew");
    }
}
