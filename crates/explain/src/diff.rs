//! Compares two calls: which terms make up the difference, and in which facts they differ. Blames no party.

use headrace_domain::{CallOutcome, TraceRecord};
use headrace_trace::{grouped, humane_duration, plain};
use serde::Serialize;

use crate::cut::cut;
use crate::shape::CallShape;
use crate::term::TermName;
use crate::words;

/// The difference between two calls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Request id of the first call.
    pub a: String,
    /// Request id of the second call.
    pub b: String,
    /// The largest part of the difference, in one sentence.
    pub sentence: String,
    /// Every term of either call, in the order of the request path. The differences sum to that of the totals.
    pub terms: Vec<DiffTerm>,
    /// Total microseconds of the first call.
    pub a_us: f64,
    /// Total microseconds of the second call.
    pub b_us: f64,
    /// Differences other than times.
    pub facts: Vec<Fact>,
}

/// A term of both calls.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffTerm {
    /// The term's name.
    pub name: TermName,
    /// Microseconds in the first.
    pub a_us: f64,
    /// Microseconds in the second.
    pub b_us: f64,
    /// Microseconds of the second call less those of the first.
    pub delta_us: f64,
    /// Why the slower of the two took that long.
    pub text: String,
}

/// Another difference between the calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The name of the fact.
    pub name: &'static str,
    /// Its value in the first call.
    pub a: String,
    /// Its value in the second call.
    pub b: String,
}

/// Compares two calls.
pub fn diff(a: &TraceRecord, b: &TraceRecord) -> Difference {
    let (of_a, of_b) = (cut(a), cut(b));
    let terms: Vec<DiffTerm> = TermName::ALL
        .iter()
        .filter(|name| of_a.contains_key(name) || of_b.contains_key(name))
        .map(|name| {
            let nanos = |cut: &crate::cut::Cut| cut.get(name).copied().unwrap_or(0);
            let (in_a, in_b) = (nanos(&of_a), nanos(&of_b));
            let text =
                if in_b >= in_a { words::reason(*name, in_b, b) } else { words::reason(*name, in_a, a) };
            let us = |nanos: u64| nanos as f64 / 1e3;
            DiffTerm { name: *name, a_us: us(in_a), b_us: us(in_b), delta_us: us(in_b) - us(in_a), text }
        })
        .collect();
    Difference {
        a: a.request_id.to_string(),
        b: b.request_id.to_string(),
        sentence: sentence(a, b, &terms),
        a_us: a.duration_ns as f64 / 1e3,
        b_us: b.duration_ns as f64 / 1e3,
        facts: facts(a, b),
        terms,
    }
}

fn sentence(a: &TraceRecord, b: &TraceRecord, terms: &[DiffTerm]) -> String {
    let (slower, by) = match (a.duration_ns, b.duration_ns) {
        (a, b) if a == b => return format!("Both took {}.", humane_duration(a)),
        (a, b) if b > a => ("second", b - a),
        (a, b) => ("first", a - b),
    };
    let sign = if slower == "second" { 1.0 } else { -1.0 };
    let most = terms.iter().max_by(|x, y| (sign * x.delta_us).total_cmp(&(sign * y.delta_us)));
    let whole = format!(
        "The {slower} took {} longer ({} and {})",
        humane_duration(by),
        humane_duration(a.duration_ns),
        humane_duration(b.duration_ns)
    );
    match most.filter(|term| sign * term.delta_us > 0.0) {
        None => format!("{whole}."),
        Some(term) => format!(
            "{whole}, most of all in {}: {} more; {}.",
            words::activity(term.name),
            humane_duration((term.delta_us.abs() * 1e3) as u64),
            term.text
        ),
    }
}

/// Reads the value of one fact from a record.
type Said<'a> = &'a dyn Fn(&TraceRecord) -> String;

fn facts(a: &TraceRecord, b: &TraceRecord) -> Vec<Fact> {
    let row = |name: &'static str, of: &dyn Fn(&TraceRecord) -> String| {
        let (a, b) = (of(a), of(b));
        (a != b).then_some(Fact { name, a, b })
    };
    let text = |value: Option<&str>| value.map_or_else(|| "–".to_owned(), plain);
    let rows: [(&'static str, Said<'_>); 14] = [
        ("model", &|record| text(record.model_served.as_deref())),
        ("numerics", &|record| text(record.numerics.as_deref())),
        ("endpoint", &|record| text(record.endpoint.map(|endpoint| endpoint.name()))),
        ("streamed", &|record| record.stream.to_string()),
        ("organisation", &|record| text(record.org.as_ref().map(|id| id.as_str()))),
        ("upstream", &|record| text(record.upstream.as_deref())),
        ("prompt tokens", &|record| grouped(record.usage.prompt_tokens())),
        ("of them cached", &|record| grouped(record.usage.cached_input)),
        ("tokens generated", &|record| grouped(record.usage.completion_tokens())),
        ("batch on average", &|record| headrace_trace::three_digits(CallShape::of(record).batch)),
        ("ahead in the queue", &|record| {
            record.engine.as_ref().map_or_else(|| "–".to_owned(), |engine| engine.queue_depth.to_string())
        }),
        ("tries", &|record| record.attempts.len().to_string()),
        ("charged", &|record| record.cost.to_string()),
        ("ended", &|record| outcome(&record.outcome)),
    ];
    rows.into_iter().filter_map(|(name, of)| row(name, of)).collect()
}

fn outcome(outcome: &CallOutcome) -> String {
    match outcome {
        CallOutcome::Completed { finish } => plain(&finish.join(", ")),
        CallOutcome::Refused(refusal) => format!("{} {}", refusal.status, plain(&refusal.code)),
        CallOutcome::Cancelled { .. } => "cancelled".to_owned(),
        CallOutcome::Failed { stage, .. } => format!("failed in {}", stage.name()),
    }
}
