//! Margins: which group a call counts for, calls of unknown cost, and the output.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

use std::path::PathBuf;

use headrace_domain::{Attempt, AttemptOutcome, NanoDollars, OrgId, TraceRecord, UnixNanos};
use headrace_trace::{MarginBy, MarginReport, decode_record};
use serde_json::{Value, json};

const DAY_NS: u64 = 86_400_000_000_000;

/// A call of organisation `org` that was charged `charged`, with its attempts and their costs.
fn call(org: &str, charged: i64, tries: &[(&str, Option<i64>)]) -> TraceRecord {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/completed.json");
    let mut record = decode_record(std::fs::read_to_string(file).unwrap().trim_end()).unwrap();
    record.started = UnixNanos::new(20_000 * DAY_NS);
    record.org = Some(OrgId::new(org).unwrap());
    record.model_served = Some("big".to_owned());
    record.cost = NanoDollars::new(charged);
    let attempt = |(worker, paid): &(&str, Option<i64>)| Attempt {
        prompt: 0,
        worker: (*worker).into(),
        model: None,
        start_ns: 0,
        duration_ns: 1,
        outcome: AttemptOutcome::Answered,
        paid: paid.map(NanoDollars::new),
    };
    record.attempts = tries.iter().map(attempt).collect();
    record.paid = Attempt::paid_for(&record.attempts);
    record
}

fn sums(by: &[MarginBy], calls: &[TraceRecord]) -> MarginReport {
    let mut margin = MarginReport::new(by.to_vec());
    calls.iter().for_each(|call| margin.add(call));
    margin
}

fn calls() -> Vec<TraceRecord> {
    let mut later = call("acme", 50, &[("east/big-2026", Some(80))]);
    later.started = UnixNanos::new(20_001 * DAY_NS);
    let mut refused = call("acme", 0, &[]);
    refused.cost = NanoDollars::ZERO;
    vec![
        call("acme", 1_000, &[("east/big-2026", Some(250))]),
        // The first attempt broke off after it was billed; the second answered.
        call("acme", 1_000, &[("east/big-2026", Some(40)), ("west/org/big", Some(300))]),
        // The cost of one of these attempts is unknown.
        call("other", 700, &[("north/big", None), ("west/org/big", Some(300))]),
        call("other", 10, &[("a/b@local", None)]),
        later,
        refused,
    ]
}

/// Calls, charged, paid and margin; then calls, charged and paid for calls of unknown cost.
fn figures(row: &Value) -> [i64; 7] {
    let unknown = &row["cost_unknown"];
    let of = |row: &Value, name: &str| row[name].as_i64().unwrap();
    [
        of(row, "calls"),
        of(row, "charged_nano_dollars"),
        of(row, "paid_nano_dollars"),
        of(row, "margin_nano_dollars"),
        of(unknown, "calls"),
        of(unknown, "charged_nano_dollars"),
        of(unknown, "paid_nano_dollars"),
    ]
}

#[test]
fn each_try_is_paid_by_whoever_was_asked_and_each_call_counts_once() {
    let json = sums(&[MarginBy::Upstream], &calls()).json();
    let rows: Vec<_> =
        json["rows"].as_array().unwrap().iter().map(|row| (row["upstream"].clone(), figures(row))).collect();
    assert_eq!(
        rows,
        [
            (Value::Null, [0, 0, 0, 0, 1, 10, 0]),
            (json!("east"), [2, 1_050, 250 + 40 + 80, 1_050 - 370, 0, 0, 0]),
            (json!("west"), [1, 1_000, 300, 700, 1, 700, 300]),
        ]
    );
    assert_eq!(figures(&json["total"]), [3, 2_050, 670, 1_380, 2, 710, 300]);
}

#[test]
fn every_way_of_telling_calls_apart_has_the_same_total() {
    let whole = sums(&[], &calls()).json()["total"].clone();
    for by in MarginBy::ALL {
        for more in MarginBy::ALL {
            let json = sums(&[by, more], &calls()).json();
            assert_eq!(json["total"], whole, "{by:?} {more:?}");
        }
    }
    let by = [MarginBy::Day, MarginBy::Org, MarginBy::Model, MarginBy::Target];
    let json = sums(&by, &calls()).json();
    let last = json["rows"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["day"], &last["org"], &last["model"], &last["target"]),
        (&json!("2024-10-05"), &json!("acme"), &json!("big"), &json!("east/big-2026"))
    );
    assert_eq!(figures(last), [1, 50, 80, -30, 0, 0, 0], "a loss is below zero");
}

#[test]
fn the_table_says_whose_cost_nobody_knows() {
    let table = sums(&[MarginBy::Org, MarginBy::Upstream], &calls()).table();
    let expected = "\
org    upstream  calls         charged          paid        margin            cost unknown      charged
acme   east          2     $0.00000105   $0.00000037   $0.00000068    64.8 %
acme   west          1      $0.000001    $0.0000003    $0.0000007    70.0 %
";
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = table.lines().map(squeezed).collect();
    for (line, wanted) in lines.iter().zip(expected.lines().map(squeezed)) {
        assert_eq!(*line, wanted, "{table}");
    }
    assert!(lines[3].starts_with("other (here) 0 ") && lines[3].ends_with("1 $0.00000001"), "{table}");
    assert!(
        lines.last().unwrap().starts_with("total 3 $0.00000205 $0.00000067 $0.00000138 67.3 % 2 $0.00000071"),
        "{table}"
    );
    let width = |line: &str| line.chars().count();
    assert!(table.lines().all(|line| width(line) <= width(table.lines().next().unwrap())), "{table}");
    assert!(MarginReport::new(vec![MarginBy::Org]).table().starts_with("no calls"));
}
