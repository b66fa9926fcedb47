//! What comparable calls took: quantiles over a bounded number of records. Reads no store; whoever calls feeds it.

use std::collections::{BTreeMap, BTreeSet};

use headrace_domain::{Attempt, AttemptOutcome, Outcome, TraceRecord};

use crate::cut::{Cut, cut};
use crate::shape::CallShape;
use crate::term::TermName;

/// Most records that are looked at: what a caller reads for it, the newest first.
pub const MOST_COMPARED: usize = 2_000;
/// So many calls make a quantile; with fewer, what counts as comparable is widened.
const ENOUGH_CALLS: usize = 8;
/// With fewer than so many there is no saying what is usual.
const LEAST_CALLS: usize = 3;
/// Sizes are alike up to this factor either way.
const ALIKE: u64 = 2;

/// What is usual for calls like one.
#[derive(Debug, Clone, Default)]
pub struct Usual {
    pub(crate) calls: usize,
    /// In what they are alike.
    pub(crate) what: String,
    terms: BTreeMap<TermName, Quantiles>,
    /// How fast other models here were.
    pub(crate) speeds: Vec<Speed>,
}

/// Of a term, in nanoseconds, for a call of this one's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p95: u64,
}

/// What a model took for a token lately, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Speed {
    pub(crate) model: String,
    pub(crate) calls: usize,
    pub(crate) prefill_ns: f64,
    pub(crate) decode_ns: f64,
}

impl Usual {
    /// Nothing is known of other calls.
    pub fn unknown() -> Self {
        Self { what: "no other calls were looked at".to_owned(), ..Self::default() }
    }

    /// From at most [`MOST_COMPARED`] records, whichever: those that are not comparable are passed over, and so is the call itself.
    ///
    /// Comparable are calls of the same model at the same place, streamed alike, that were answered to the end; where there are
    /// enough of them, only those in as big a batch and of about the same length.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a TraceRecord>, of: &TraceRecord) -> Self {
        let records: Vec<&TraceRecord> = records.into_iter().take(MOST_COMPARED).collect();
        let alike = |other: &&&TraceRecord| is_comparable(of, other);
        let base: Vec<(&TraceRecord, CallShape)> =
            records.iter().filter(alike).map(|record| (*record, CallShape::of(record))).collect();
        let shape = CallShape::of(of);
        let as_busy = |(_, other): &&(&TraceRecord, CallShape)| other.load() == shape.load();
        let as_long = |(_, other): &&(&TraceRecord, CallShape)| {
            is_about(other.computed_tokens, shape.computed_tokens)
                && is_about(other.output_tokens, shape.output_tokens)
        };
        let close: Vec<_> = base.iter().filter(as_busy).filter(as_long).collect();
        let busy: Vec<_> = base.iter().filter(as_busy).collect();
        let (chosen, how) = if close.len() >= ENOUGH_CALLS {
            (close, format!(", {} and of about its length", shape.load().words()))
        } else if busy.len() >= ENOUGH_CALLS {
            (busy, format!(", {}, whatever their length", shape.load().words()))
        } else {
            (base.iter().collect(), ", whatever their length and load".to_owned())
        };
        let speeds = speeds(&records, of);
        if chosen.len() < LEAST_CALLS {
            let what = format!("{} comparable calls are too few to say what is usual", chosen.len());
            return Self { calls: 0, what, speeds, terms: BTreeMap::new() };
        }
        let mut samples: BTreeMap<TermName, Vec<u64>> = BTreeMap::new();
        for (record, other) in &chosen {
            let cut = cut(record);
            for term in TermName::ALL {
                let nanos = cut.get(term).copied().unwrap_or(0);
                samples.entry(*term).or_default().push(scaled(*term, nanos, other, &shape));
            }
        }
        let terms = samples.into_iter().filter_map(|(term, samples)| Some((term, quantiles(samples)?)));
        let model = of.model_served.as_deref().map_or_else(
            || "calls of the same kind".to_owned(),
            |model| format!("calls of `{}`", headrace_trace::plain(model)),
        );
        Self { calls: chosen.len(), what: format!("{model}{how}"), terms: terms.collect(), speeds }
    }

    /// What a term usually takes a call of this size; `None`: nobody knows.
    pub(crate) fn term(&self, term: TermName) -> Option<Quantiles> {
        self.terms.get(&term).copied()
    }

    /// All terms of the usual call that this one may lack.
    pub(crate) fn total(&self) -> Option<u64> {
        let sum = self.terms.values().fold(0_u64, |sum, quantiles| sum.saturating_add(quantiles.p50));
        (!self.terms.is_empty()).then_some(sum)
    }
}

fn is_comparable(of: &TraceRecord, other: &TraceRecord) -> bool {
    other.request_id != of.request_id
        && matches!(other.outcome, Outcome::Completed { .. })
        && other.endpoint == of.endpoint
        && other.stream == of.stream
        && (of.model_served.is_none() || other.model_served == of.model_served)
        && (of.model_served.is_none() || other.upstream == of.upstream)
        && other.shadow_of.is_some() == of.shadow_of.is_some()
        && other.worker_job.is_some() == of.worker_job.is_some()
}

/// Within [`ALIKE`] of each other, either way; what is nearly nothing is alike.
const fn is_about(a: u64, b: u64) -> bool {
    let (least, most) = if a < b { (a, b) } else { (b, a) };
    most <= least.saturating_add(8).saturating_mul(ALIKE)
}

/// What a term of another call comes to at this one's size.
fn scaled(term: TermName, nanos: u64, other: &CallShape, own: &CallShape) -> u64 {
    let size = |shape: &CallShape| match term {
        TermName::Prefill => shape.computed_tokens,
        TermName::Decode | TermName::DecodeBehindPrompts | TermName::Postprocess | TermName::Deliver => {
            shape.output_tokens
        }
        TermName::Render | TermName::Cache => shape.prompt_tokens,
        _ => 1,
    };
    let (other, own) = (size(other).max(1), size(own).max(1));
    u64::try_from(u128::from(nanos) * u128::from(own) / u128::from(other)).unwrap_or(u64::MAX)
}

fn quantiles(mut samples: Vec<u64>) -> Option<Quantiles> {
    samples.sort_unstable();
    let at = |percent: usize| samples.get((samples.len().saturating_sub(1) * percent).div_ceil(100)).copied();
    Some(Quantiles { p50: at(50)?, p95: at(95)? })
}

/// What other models took for a token, by the median of their calls, the fastest first.
fn speeds(records: &[&TraceRecord], of: &TraceRecord) -> Vec<Speed> {
    let mut samples: BTreeMap<&str, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    let same = same_models(records, of);
    for record in records {
        let Some(model) = record.model_served.as_deref() else { continue };
        let shape = CallShape::of(record);
        let is_other = !same.contains(model) && record.endpoint == of.endpoint;
        let answered = matches!(record.outcome, Outcome::Completed { .. }) && shape.output_tokens > 1;
        if !is_other || !answered {
            continue;
        }
        let cut = cut(record);
        let (prefill, decode) = samples.entry(model).or_default();
        prefill.push(per_token(&cut, &[TermName::Prefill, TermName::Upstream], shape.computed_tokens));
        decode.push(per_token(&cut, &[TermName::Decode, TermName::DecodeBehindPrompts], shape.output_tokens));
    }
    let enough = samples.into_iter().filter(|(_, (_, decode))| decode.len() >= LEAST_CALLS);
    let mut speeds: Vec<Speed> = enough
        .filter_map(|(model, (prefill, decode))| {
            let calls = decode.len();
            let (prefill, decode) = (quantiles(prefill)?.p50, quantiles(decode)?.p50);
            let model = model.to_owned();
            Some(Speed { model, calls, prefill_ns: prefill as f64, decode_ns: decode as f64 })
        })
        .collect();
    speeds.sort_by(|a, b| a.decode_ns.total_cmp(&b.decode_ns));
    speeds
}

/// The names under which the model of a call is served: its own, and those whose calls the same worker answered.
fn same_models<'a>(records: &[&'a TraceRecord], of: &'a TraceRecord) -> BTreeSet<&'a str> {
    let own: Option<&str> = of.model_served.as_deref();
    let all = || records.iter().copied().chain([of]);
    let workers: BTreeSet<&str> = all()
        .filter(|record| own.is_some() && record.model_served.as_deref() == own)
        .filter_map(answered_by)
        .collect();
    let names = all().filter(|record| answered_by(record).is_some_and(|worker| workers.contains(worker)));
    names.filter_map(|record| record.model_served.as_deref()).chain(own).collect()
}

/// The worker that answered, by the id that operators know it by: its server and the model's name there.
fn answered_by(record: &TraceRecord) -> Option<&str> {
    let answered =
        |attempt: &&Attempt| attempt.outcome == AttemptOutcome::Answered && attempt.model.is_none();
    record.attempts.iter().rfind(answered).map(|attempt| &*attempt.worker)
}

fn per_token(cut: &Cut, terms: &[TermName], tokens: u64) -> u64 {
    let nanos: u64 = terms.iter().filter_map(|term| cut.get(term)).sum();
    nanos / tokens.max(1)
}
