//! The usual times: quantiles over a bounded number of comparable records. Reads no store; the caller supplies the
//! records.

use std::collections::{BTreeMap, BTreeSet};

use headrace_domain::{Attempt, AttemptOutcome, CallOutcome, TraceRecord};

use crate::cut::{Cut, cut};
use crate::shape::CallShape;
use crate::term::TermName;

/// Most records that are compared. Callers pass the newest ones first.
pub const MOST_COMPARED: usize = 2_000;
/// Fewest calls for a quantile. With fewer, the comparison is widened to less similar calls.
const ENOUGH_CALLS: usize = 8;
/// Fewest calls from which anything is called usual.
const LEAST_CALLS: usize = 3;
/// Sizes are alike up to this factor in either direction.
const ALIKE: u64 = 2;

/// The usual values for calls like a given one.
#[derive(Debug, Clone, Default)]
pub struct Usual {
    pub(crate) calls: usize,
    /// A description of the compared calls.
    pub(crate) what: String,
    terms: BTreeMap<TermName, Quantiles>,
    /// Recent speeds of other models on this server.
    pub(crate) speeds: Vec<Speed>,
}

/// Quantiles of a term in nanoseconds, scaled to the size of the call in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p95: u64,
}

/// Recent nanoseconds per token of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Speed {
    pub(crate) model: String,
    pub(crate) calls: usize,
    pub(crate) prefill_ns: f64,
    pub(crate) decode_ns: f64,
}

impl Usual {
    /// The value if no other calls were examined.
    pub fn unknown() -> Self {
        Self { what: "no other calls were looked at".to_owned(), ..Self::default() }
    }

    /// Computes the usual values from at most [`MOST_COMPARED`] records. Skips records that are not comparable, and the
    /// call itself.
    ///
    /// Comparable calls were answered completely, by the same model at the same upstream, and streamed in the same way.
    /// If there are enough of them, only those of similar batch size and length are used.
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

    /// The quantiles of a term, scaled to the call's size. `None` if too few calls are comparable.
    pub(crate) fn term(&self, term: TermName) -> Option<Quantiles> {
        self.terms.get(&term).copied()
    }

    /// Sum of the medians of all terms. `None` if too few calls are comparable.
    pub(crate) fn total(&self) -> Option<u64> {
        let sum = self.terms.values().fold(0_u64, |sum, quantiles| sum.saturating_add(quantiles.p50));
        (!self.terms.is_empty()).then_some(sum)
    }
}

fn is_comparable(of: &TraceRecord, other: &TraceRecord) -> bool {
    other.request_id != of.request_id
        && matches!(other.outcome, CallOutcome::Completed { .. })
        && other.endpoint == of.endpoint
        && other.stream == of.stream
        && (of.model_served.is_none() || other.model_served == of.model_served)
        && (of.model_served.is_none() || other.upstream == of.upstream)
        && other.shadow_of.is_some() == of.shadow_of.is_some()
        && other.worker_job.is_some() == of.worker_job.is_some()
}

/// Whether two sizes are within a factor of [`ALIKE`]. Very small sizes are always alike.
const fn is_about(a: u64, b: u64) -> bool {
    let (least, most) = if a < b { (a, b) } else { (b, a) };
    most <= least.saturating_add(8).saturating_mul(ALIKE)
}

/// Scales a term of another call to this call's size.
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

/// Median nanoseconds per token of the other models, the fastest first.
fn speeds(records: &[&TraceRecord], of: &TraceRecord) -> Vec<Speed> {
    let mut samples: BTreeMap<&str, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    let same = same_models(records, of);
    for record in records {
        let Some(model) = record.model_served.as_deref() else { continue };
        let shape = CallShape::of(record);
        let is_other = !same.contains(model) && record.endpoint == of.endpoint;
        let answered = matches!(record.outcome, CallOutcome::Completed { .. }) && shape.output_tokens > 1;
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

/// The names of a call's model: its own, and every name for which the same worker answered.
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

/// The id of the worker that answered: its upstream and the model's name there.
fn answered_by(record: &TraceRecord) -> Option<&str> {
    let answered =
        |attempt: &&Attempt| attempt.outcome == AttemptOutcome::Answered && attempt.model.is_none();
    record.attempts.iter().rfind(answered).map(|attempt| &*attempt.worker)
}

fn per_token(cut: &Cut, terms: &[TermName], tokens: u64) -> u64 {
    let nanos: u64 = terms.iter().filter_map(|term| cut.get(term)).sum();
    nanos / tokens.max(1)
}
