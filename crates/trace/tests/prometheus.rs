//! Checks the page for Prometheus with a small parser of the text format 0.0.4. Every sample belongs to an announced
//! family, labels unescape, histograms add up, and no caller can grow the label sets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{CallOutcome, Code, Stage, TraceRecord, TracedRefusal};
use headrace_trace::{Metrics, MetricsConfig, decode_record};

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

#[derive(Debug, Default)]
struct Page {
    /// The type of each family.
    types: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    samples: Vec<Sample>,
}

impl Page {
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: BTreeMap<_, _> = labels.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        self.samples.iter().find(|s| s.name == name && s.labels == labels).map(|s| s.value)
    }
}

fn parse(text: &str) -> Page {
    assert!(text.ends_with('\n'), "the last line must end");
    let mut page = Page::default();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(page.helps.insert(name.to_owned(), help.to_owned()).is_none(), "{name} announced twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(is_name(name) && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(page.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} announced twice");
            assert!(page.helps.contains_key(name));
            family = name.to_owned();
        } else {
            let sample = parse_sample(line);
            let base = match page.types[&family].as_str() {
                "histogram" => sample
                    .name
                    .trim_end_matches("_bucket")
                    .trim_end_matches("_sum")
                    .trim_end_matches("_count"),
                _ => sample.name.as_str(),
            };
            assert_eq!(base, family, "samples of a family stand together: {line}");
            page.samples.push(sample);
        }
    }
    let distinct: BTreeSet<String> =
        page.samples.iter().map(|s| format!("{} {:?}", s.name, s.labels)).collect();
    assert_eq!(distinct.len(), page.samples.len(), "a sample stands twice");
    check_histograms(&page);
    page
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

fn parse_sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap();
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (value, after) = unescape(after);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').unwrap();
        }
    }
    let text = rest.strip_prefix(' ').unwrap();
    let value = match text {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number.parse().unwrap(),
    };
    Sample { name: name.to_owned(), labels, value }
}

/// A label's value up to its closing quote, and the rest of the text.
fn unescape(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (out, &text[at + 1..]),
            '\\' => out.push(match chars.next().unwrap().1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                c => panic!("unknown escape \\{c}"),
            }),
            c => out.push(c),
        }
    }
    panic!("unterminated label: {text}");
}

fn check_histograms(page: &Page) {
    for (family, _) in page.types.iter().filter(|(_, kind)| *kind == "histogram") {
        let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in page.samples.iter().filter(|s| s.name == format!("{family}_bucket")) {
            let mut labels = sample.labels.clone();
            let le = labels.remove("le").unwrap();
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
            series.entry(format!("{labels:?}")).or_default().push((le, sample.value));
        }
        assert!(!series.is_empty(), "{family} has no series");
        for (labels, buckets) in series {
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{family} {labels} {buckets:?}");
            let (last_bound, last) = *buckets.last().unwrap();
            assert_eq!(last_bound, f64::INFINITY);
            let one = |suffix: &str| {
                let all = page.samples.iter().filter(|s| s.name == format!("{family}{suffix}"));
                let of: Vec<f64> =
                    all.filter(|s| format!("{:?}", s.labels) == labels).map(|s| s.value).collect();
                assert_eq!(of.len(), 1, "{family}{suffix} {labels}");
                of[0]
            };
            assert_eq!(one("_count"), last, "{family} {labels}");
            assert!(one("_sum") >= 0.0);
        }
    }
}

fn record(name: &str) -> TraceRecord {
    let path = format!("{}/tests/data/{name}.json", env!("CARGO_MANIFEST_DIR"));
    decode_record(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&MetricsConfig {
        models: vec![
            "headrace-demo-20m".to_owned(),
            "headrace-demo-20m".to_owned(),
            "spare \"quoted\"\\".to_owned(),
        ],
        version: "0.1.0".to_owned(),
    }))
}

#[test]
fn an_empty_registry_is_a_valid_page() {
    let page = parse(&metrics().prometheus());
    assert_eq!(page.value("headrace_build_info", &[("version", "0.1.0")]), Some(1.0));
    let tokens = [("class", "output"), ("model", "spare \"quoted\"\\")];
    assert_eq!(page.value("headrace_tokens_total", &tokens), Some(0.0), "escaped and back");
}

#[test]
fn requests_are_counted_by_what_happened_to_them() {
    let metrics = metrics();
    for name in ["completed", "completed", "slow-upload", "refused", "refused-early", "cancelled", "failed"] {
        metrics.observe(&record(name));
    }
    let page = parse(&metrics.prometheus());
    let requests = |endpoint, outcome, code, model| {
        let labels = [("endpoint", endpoint), ("outcome", outcome), ("code", code), ("model", model)];
        page.value("headrace_requests_total", &labels)
    };
    let demo = "headrace-demo-20m";
    assert_eq!(requests("chat.completions", "completed", "", demo), Some(2.0));
    assert_eq!(requests("completions", "completed", "", demo), Some(1.0));
    assert_eq!(requests("messages", "refused", "rate_limit_exceeded", demo), Some(1.0));
    assert_eq!(requests("none", "refused", "invalid_api_key", "none"), Some(1.0));
    assert_eq!(requests("chat.completions", "cancelled", "", demo), Some(1.0));
    assert_eq!(requests("chat.completions", "failed", "", demo), Some(1.0));
    for (name, labels, value) in [
        ("headrace_refusals_total", &[("stage", "hold"), ("rule", "requests_per_minute")][..], 1.0),
        ("headrace_failures_total", &[("stage", "decode")], 1.0),
        ("headrace_finishes_total", &[("reason", "stop")], 3.0),
        ("headrace_finishes_total", &[("reason", "length")], 1.0),
        ("headrace_tokens_total", &[("class", "cached_input"), ("model", demo)], 1_024.0),
        ("headrace_cost_nano_dollars_total", &[("model", demo)], 5_744_037.0),
        ("headrace_loss_nano_dollars_total", &[("model", demo)], 12_500.0),
        ("headrace_prompt_blocks_total", &[("cache", "hit")], 64.0),
        ("headrace_prompt_blocks_total", &[("cache", "miss")], 2_288.0),
        ("headrace_preemptions_total", &[], 3.0),
        ("headrace_stage_duration_seconds_count", &[("stage", "connect")], 7.0),
        ("headrace_stage_duration_seconds_count", &[("stage", "settle")], 6.0),
        // 9.7 once and 17.95 five times, exact in nanoseconds.
        ("headrace_stage_duration_seconds_sum", &[("stage", "hold")], 0.000_099_45),
        // Two spans in each of five calls, and one before `place` in the refused call. Each call counts as one
        // observation.
        ("headrace_stage_duration_seconds_count", &[("stage", "handover")], 6.0),
        ("headrace_stage_duration_seconds_bucket", &[("stage", "hold"), ("le", "0.00001")], 1.0),
        ("headrace_stage_duration_seconds_bucket", &[("stage", "hold"), ("le", "0.000025")], 6.0),
        ("headrace_time_to_first_token_seconds_count", &[], 5.0),
        ("headrace_inter_token_seconds_count", &[], 5.0),
        ("headrace_batch_size_count", &[], 5.0),
        ("headrace_batch_size_bucket", &[("le", "1")], 1.0),
    ] {
        assert_eq!(page.value(name, labels), Some(value), "{name} {labels:?}");
    }
}

#[test]
fn no_caller_can_grow_the_labels() {
    let metrics = metrics();
    for n in 0..1_000 {
        let mut record = record("refused");
        record.model_asked = Some(format!("invented-{n}"));
        record.model_served = None;
        record.outcome = CallOutcome::Refused(TracedRefusal {
            stage: Stage::Route,
            rule: format!("rule_{n}"),
            status: 404,
            code: format!("code_{n}"),
            message: String::new(),
        });
        metrics.observe(&record);
    }
    let page = parse(&metrics.prometheus());
    assert!(page.samples.iter().all(|s| !s.labels.values().any(|v| v.starts_with("invented"))));
    let requests: Vec<_> = page.samples.iter().filter(|s| s.name == "headrace_requests_total").collect();
    assert!(
        requests.len() < 100 && requests.iter().all(|s| s.labels["model"] == "other"),
        "{}",
        requests.len()
    );
    assert_eq!(requests.iter().map(|s| s.value).sum::<f64>(), 1_000.0);
    assert!(page.samples.iter().filter(|s| s.name == "headrace_refusals_total").count() < 100);
}

#[test]
fn every_code_of_the_table_counts_by_its_own_name_whatever_came_before() {
    let metrics = metrics();
    let refuse = |code: &str| {
        let mut record = record("refused");
        let CallOutcome::Refused(refusal) = &mut record.outcome else { panic!("{:?}", record.outcome) };
        (refusal.code, refusal.rule) = (code.to_owned(), code.to_owned());
        metrics.observe(&record);
    };
    (0..200).for_each(|n| refuse(&format!("invented_{n}")));
    Code::ALL.iter().for_each(|code| refuse(code.name()));
    let page = parse(&metrics.prometheus());
    for code in Code::ALL.iter().map(|code| code.name()) {
        let of = |name: &str, label: &str| {
            let all = page.samples.iter().filter(|s| s.name == name);
            all.filter(|s| s.labels[label] == code).map(|s| s.value).sum::<f64>()
        };
        assert_eq!(of("headrace_requests_total", "code"), 1.0, "{code}");
        assert_eq!(of("headrace_refusals_total", "rule"), 1.0, "{code}");
    }
}

#[test]
fn gauges_of_other_rooms_are_read_when_asked() {
    let metrics = metrics();
    metrics.register_gauge(
        "engine_queue",
        "Waiting.\nNow \\ here",
        &[("engine", "a\"b\n")],
        Box::new(|| 1.5),
    );
    metrics.register_gauge("bad-name!", "", &[("bad label", "x")], Box::new(|| f64::NAN));
    metrics.register_gauge("engine_queue", "Waiting.", &[("engine", "second")], Box::new(|| f64::INFINITY));
    metrics.register_gauge("engine_queue", "Waiting.", &[("engine", "second")], Box::new(|| 7.0));
    metrics.register_counter("steps_total", "Steps.", &[], Box::new(|| 3e12));
    metrics.register_gauge("headrace_batch_size", "Taken.", &[], Box::new(|| 0.0));
    let page = parse(&metrics.prometheus());
    assert_eq!(page.value("engine_queue", &[("engine", "a\"b\n")]), Some(1.5));
    assert_eq!(page.value("engine_queue", &[("engine", "second")]), Some(7.0), "the later one replaces");
    assert_eq!(page.helps["engine_queue"], "Waiting.\\nNow \\\\ here");
    assert_eq!(page.value("steps_total", &[]), Some(3e12));
    assert!(page.value("bad_name_", &[("bad_label", "x")]).is_some_and(f64::is_nan));
    assert_eq!(page.types["headrace_batch_size"], "histogram", "a taken name is not shown twice");
    metrics.unregister(("engine", "second"));
    let page = parse(&metrics.prometheus());
    assert_eq!(page.value("engine_queue", &[("engine", "second")]), None);
    assert_eq!(page.value("engine_queue", &[("engine", "a\"b\n")]), Some(1.5), "the others stay");
}

#[test]
fn commits_of_the_journal_are_timed() {
    let metrics = metrics();
    metrics.observe_journal(Duration::from_micros(800));
    let page = parse(&metrics.prometheus());
    assert_eq!(page.value("headrace_ledger_journal_seconds_sum", &[]), Some(0.0008));
}

#[test]
fn counting_from_many_threads_loses_nothing() {
    let metrics = metrics();
    let record = record("completed");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| metrics.observe(&record)));
        }
    });
    let page = parse(&metrics.prometheus());
    assert_eq!(page.value("headrace_request_duration_seconds_count", &[]), Some(2_000.0));
    assert_eq!(page.value("headrace_request_duration_seconds_sum", &[]), Some(3_842.96));
}
