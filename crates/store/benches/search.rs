//! Measures the cost of a search page in a file with many traces. Run with `cargo bench -p headrace-store --bench
//! search [-- ROWS [FILE]]`. Prints the time to store a trace, and for each query the time of its first page, warm, and
//! of all pages.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use headrace_domain::{CallOutcome, NanoDollars, OrgId, ProjectId, RequestId, TraceRecord, UnixNanos};
use headrace_store::trace::{SqliteTraceReader, SqliteTraceStore, TraceRetention};
use headrace_trace::{CallQuery, TraceError, TraceReader, TraceStore, decode_record};

const SECOND: u64 = 1_000_000_000;
const BATCH: u64 = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let rows: u64 = numbers.next().map_or(Ok(100_000), |text| text.parse())?;
    let path =
        numbers.next().map_or_else(|| std::env::temp_dir().join("headrace-search.sqlite"), PathBuf::from);
    if !path.exists() {
        fill(&path, rows)?;
    }
    let reader = SqliteTraceReader::open(&path)?;
    let questions: &[&[(&str, &str)]] = &[
        &[],
        &[("to", "2026-11-18T12:00:00Z")],
        &[("org", "org-3")],
        &[("project", "project-77")],
        &[("model", "model-2"), ("org", "org-3")],
        &[("outcome", "refused")],
        &[("outcome", "failed"), ("org", "org-5")],
        &[("text", "no such words")],
        &[("slower_than_ms", "2000")],
        &[("slower_than_ms", "1")],
        &[("dearer_than", "0.05")],
        &[("stage", "decode"), ("org", "org-1")],
        &[("org", "org-1"), ("model", "nothing")],
        &[("outcome", "completed"), ("org", "nobody")],
        &[("org", "org-1"), ("stage", "moderate")],
        &[("org", "org-1"), ("slower_than_ms", "900000")],
    ];
    println!(
        "{:<44} {:>6} {:>10} {:>10} {:>10}",
        "question, pages of 100", "found", "first", "again", "worst"
    );
    for fields in questions {
        let mut query = CallQuery::default();
        for (name, value) in *fields {
            query.set(name, value, UnixNanos::new(0))?;
        }
        let (first, page) = timed(|| reader.search(&query, None, 100))?;
        let (again, _) = timed(|| reader.search(&query, None, 100))?;
        let (mut worst, mut after) = (first.max(again), page.next);
        for _ in 0..60 {
            let Some(cursor) = after else { break };
            let (took, page) = timed(|| reader.search(&query, Some(cursor), 100))?;
            worst = worst.max(took);
            after = page.next;
        }
        let words: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        println!(
            "{:<44} {:>6} {:>10.2?} {:>10.2?} {:>10.2?}",
            words.join(" "),
            page.calls.len(),
            first,
            again,
            worst
        );
    }
    if let Some(id) = reader.last(1)?.first().map(|record| record.request_id) {
        let (took, found) = timed(|| reader.beside(id, 100))?;
        println!("beside the newest: {} in {took:.2?}", found.map_or(0, |found| found.len()));
    }
    Ok(())
}

fn timed<T>(ask: impl FnOnce() -> Result<T, TraceError>) -> Result<(Duration, T), TraceError> {
    let start = Instant::now();
    ask().map(|answer| (start.elapsed(), answer))
}

/// Writes calls of twenty organisations and two hundred projects. One in ten is refused, and one in a hundred failed.
fn fill(path: &std::path::Path, rows: u64) -> Result<(), Box<dyn std::error::Error>> {
    let golden = decode_record(include_str!("../../trace/tests/data/completed.json"))?;
    let refused = decode_record(include_str!("../../trace/tests/data/refused.json"))?;
    let retention = TraceRetention { max_records: rows.max(1), max_age: None };
    let mut store = SqliteTraceStore::open(path, retention)?;
    let mut spent = Duration::ZERO;
    for from in (0..rows).step_by(BATCH as usize) {
        let batch: Result<Vec<TraceRecord>, Box<dyn std::error::Error>> = (from..(from + BATCH).min(rows))
            .map(|n| {
                let mixed = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                let mut record = if mixed % 10 == 0 { refused.clone() } else { golden.clone() };
                if mixed % 100 == 1 {
                    let stage = headrace_domain::Stage::Upstream;
                    record.outcome = CallOutcome::Failed { stage, message: "it broke off".to_owned() };
                }
                record.request_id = RequestId::from_bits(u128::from(n) << 64 | u128::from(mixed));
                record.started = UnixNanos::new(1_795_000_000 * SECOND + n * SECOND / 20);
                record.duration_ns = (mixed % 997) * (mixed % 13) * 1_000_000;
                record.org = Some(OrgId::new(&format!("org-{}", mixed % 20))?);
                record.project = Some(ProjectId::new(&format!("project-{}", mixed % 200))?);
                record.model_served = Some(format!("model-{}", mixed % 7));
                record.cost = NanoDollars::new(i64::try_from(mixed % 1_000)? * 60_000);
                Ok(record)
            })
            .collect();
        let batch = batch?;
        let start = Instant::now();
        store.append(&batch)?;
        spent += start.elapsed();
    }
    let each = spent / u32::try_from(rows.max(1)).unwrap_or(u32::MAX);
    println!(
        "stored {rows} traces in {spent:.1?}, {each:.1?} each; {} bytes",
        std::fs::metadata(path)?.len()
    );
    Ok(())
}
