//! The explanation of one call. It lists the call's terms beside the usual and the published values, the dearest term
//! in a sentence, and what would have helped. Plain data: it serializes, and `render` turns it into text.

use headrace_domain::{CallOutcome, Code, TraceRecord, TracedRefusal};
use headrace_trace::{plain, round_lines};
use serde::Serialize;

use crate::cost::why_cost;
use crate::cut::{Cut, cut};
use crate::levers::{Lever, levers};
use crate::reference::{ReferenceRow, beside_reference, reference_of};
use crate::shape::CallShape;
use crate::term::{Party, TermName};
use crate::usual::{Quantiles, Usual};
use crate::verdicts::{ExplainedVerdict, verdicts};
use crate::words::{self, Dearest};

/// A term is unusual if it takes at least this many per cent of its usual value.
const UNUSUAL_PERCENT: u64 = 200;
/// The excess over the usual value must also be at least this part of the call, in per mille.
const UNUSUAL_PERMILLE: u64 = 20;

/// Where a call's time and money went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The call's request id.
    pub id: String,
    /// Where most of its time went, in one sentence; or why it did not complete.
    pub sentence: String,
    /// Where most of its money went, in one sentence.
    pub money_sentence: String,
    /// Unusual terms, one sentence each, the largest excess first.
    pub unusual: Vec<String>,
    /// Microseconds from its first byte to its end: the sum of the terms.
    pub total_us: f64,
    /// The usual total of comparable calls, in microseconds.
    pub usual_total_us: Option<f64>,
    /// The term that took the most time. The terms of one wait, and those of one answer, are weighed together.
    pub dearest: Option<TermName>,
    /// The terms, in the order of the request path.
    pub terms: Vec<Term>,
    /// The published table, with this call's time for each row.
    pub reference: Vec<ReferenceRow>,
    /// The calls that `usual` values come from.
    pub compared: Compared,
    /// The attempts to have the call answered, with their outcomes.
    pub attempts: Vec<Try>,
    /// One line for each round, if the call ran more than one: what served it, its end, its time and its tokens.
    pub rounds: Vec<String>,
    /// The call's sizes.
    pub shape: CallShape,
    /// What would have helped, the largest saving first.
    pub levers: Vec<Lever>,
    /// Further remarks, one sentence each.
    pub notes: Vec<String>,
    /// Why it was refused, if it was.
    pub refusal: Option<Refusal>,
    /// What content rules decided about the request and the answer.
    pub verdicts: Vec<ExplainedVerdict>,
}

/// A part of a call's time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Term {
    /// The term's name.
    pub name: TermName,
    /// The party that spent this time.
    pub party: Party,
    /// Microseconds of this term.
    pub us: f64,
    /// Fraction of the call's time, from 0 to 1.
    pub share: f64,
    /// Median of the comparable calls, scaled to this call's size.
    pub usual_us: Option<f64>,
    /// 95th percentile of the comparable calls, scaled to this call's size.
    pub usual_p95_us: Option<f64>,
    /// The published range of its row, in microseconds, from and to.
    pub reference_us: Option<[u64; 2]>,
    /// The name of that row.
    pub reference: Option<&'static str>,
    /// Whether it took far more than usual.
    pub unusual: bool,
    /// Why it took that long.
    pub text: String,
}

/// An attempt to have the call answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Try {
    /// The worker that was called.
    pub worker: String,
    /// Microseconds from the call's first byte.
    pub start_us: f64,
    /// Duration in microseconds.
    pub duration_us: f64,
    /// The outcome: `answered`, `refused`, `failed`, `outrun` or `cut_short`.
    pub outcome: &'static str,
    /// The reason, in words. Empty if it was answered.
    pub text: String,
}

/// The calls that `usual` values come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Number of calls.
    pub calls: usize,
    /// A description of these calls.
    pub what: String,
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The stage that refused it.
    pub stage: &'static str,
    /// The rule that refused it, by the operators' name.
    pub rule: String,
    /// The error code that the caller received.
    pub code: String,
    /// The HTTP status.
    pub status: u16,
    /// The message that the caller received.
    pub message: String,
    /// The meaning of the code.
    pub meaning: String,
    /// What the caller or the operator can do.
    pub way_out: String,
    /// Path of the code's documentation page.
    pub doc: String,
}

/// Explains a call by comparison with the usual values.
pub fn explain(record: &TraceRecord, usual: &Usual) -> Explanation {
    let cut = cut(record);
    let is_answered = matches!(record.outcome, CallOutcome::Completed { .. });
    let terms: Vec<Term> = cut.iter().map(|(name, nanos)| term(*name, *nanos, record, usual)).collect();
    let dearest = dearest(&cut);
    let found = dearest.and_then(|name| terms.iter().find(|term| term.name == name));
    let usual_ns =
        found.filter(|term| term.unusual).and_then(|term| term.usual_us).map(|us| (us * 1e3) as u64);
    let spent = dearest.and_then(|term| {
        let nanos = *cut.get(&term)?;
        Some(Dearest { term, nanos, family_nanos: family_nanos(&cut, term.family()) })
    });
    Explanation {
        id: record.request_id.to_string(),
        sentence: words::sentence(record, spent, usual_ns),
        money_sentence: why_cost(record).sentence,
        unusual: unusual(&terms),
        total_us: record.duration_ns as f64 / 1e3,
        usual_total_us: usual.total().filter(|_| is_answered).map(|nanos| nanos as f64 / 1e3),
        dearest,
        reference: beside_reference(&cut),
        compared: compared(record, usual),
        attempts: attempts(record),
        rounds: round_lines(record),
        shape: CallShape::of(record),
        levers: levers(record, &cut, usual),
        notes: words::notes(record),
        refusal: refusal(record),
        verdicts: verdicts(record),
        terms,
    }
}

fn compared(record: &TraceRecord, usual: &Usual) -> Compared {
    if matches!(record.outcome, CallOutcome::Refused(_)) {
        let what = "a refused call is not compared with calls that were answered".to_owned();
        return Compared { calls: 0, what };
    }
    Compared { calls: usual.calls, what: usual.what.clone() }
}

fn attempts(record: &TraceRecord) -> Vec<Try> {
    let tried = record.attempts.iter().map(|attempt| Try {
        worker: plain(&attempt.worker),
        start_us: attempt.start_ns as f64 / 1e3,
        duration_us: attempt.duration_ns as f64 / 1e3,
        outcome: attempt.outcome.name(),
        text: words::fault_of(&attempt.worker, &attempt.outcome).unwrap_or_default(),
    });
    tried.collect()
}

fn term(name: TermName, nanos: u64, record: &TraceRecord, usual: &Usual) -> Term {
    let known = usual.term(name).filter(|_| is_comparable(name, record));
    let reference = reference_of(name);
    let us = |nanos: u64| nanos as f64 / 1e3;
    Term {
        name,
        party: name.party(),
        us: us(nanos),
        share: if record.duration_ns == 0 { 0.0 } else { nanos as f64 / record.duration_ns as f64 },
        usual_us: known.map(|known| us(known.p50)),
        usual_p95_us: known.map(|known| us(known.p95)),
        reference_us: reference.map(|row| [row.low_us, row.high_us]),
        reference: reference.map(|row| row.name),
        unusual: known.is_some_and(|known| is_unusual(nanos, known, record.duration_ns)),
        text: words::reason(name, nanos, record),
    }
}

/// Whether a term can be compared with answered calls. A refused call did not get as far as they did. A cancelled one
/// spent less time on its answer. A failed one is compared only in its waits.
fn is_comparable(name: TermName, record: &TraceRecord) -> bool {
    match record.outcome {
        CallOutcome::Completed { .. } => true,
        CallOutcome::Refused(_) => false,
        CallOutcome::Cancelled { .. } => !takes_as_long_as_the_answer(name),
        CallOutcome::Failed { .. } => name.is_a_wait(),
    }
}

const fn takes_as_long_as_the_answer(name: TermName) -> bool {
    matches!(
        name,
        TermName::Decode | TermName::DecodeBehindPrompts | TermName::Postprocess | TermName::Deliver
    )
}

fn is_unusual(nanos: u64, usual: Quantiles, whole: u64) -> bool {
    let beyond = nanos.saturating_sub(usual.p50);
    nanos > usual.p95
        && nanos / UNUSUAL_PERCENT >= usual.p50 / 100
        && beyond >= whole / 1000 * UNUSUAL_PERMILLE
        && beyond > 0
}

/// The largest term of the largest family.
fn dearest(cut: &Cut) -> Option<TermName> {
    let weight = |term: TermName| family_nanos(cut, term.family());
    let (largest, _) = cut.iter().max_by_key(|(term, nanos)| (weight(**term), **nanos))?;
    Some(*largest)
}

/// The sum of a family's terms.
fn family_nanos(cut: &Cut, family: TermName) -> u64 {
    let own = cut.iter().filter(|(term, _)| term.family() == family);
    own.map(|(_, nanos)| *nanos).fold(0, u64::saturating_add)
}

/// A sentence for each unusual term, the largest excess first.
fn unusual(terms: &[Term]) -> Vec<String> {
    let mut found: Vec<&Term> = terms.iter().filter(|term| term.unusual).collect();
    let beyond = |term: &Term| term.us - term.usual_us.unwrap_or(0.0);
    found.sort_by(|a, b| beyond(b).total_cmp(&beyond(a)));
    found
        .into_iter()
        .map(|term| words::unusual(term.name, term.us, term.usual_us.unwrap_or(0.0), &term.text))
        .collect()
}

/// The refusal of a call, with the meaning of its code from the table of refusals.
fn refusal(record: &TraceRecord) -> Option<Refusal> {
    let CallOutcome::Refused(TracedRefusal { stage, rule, status, code, message }) = &record.outcome else {
        return None;
    };
    let named = |name: &str| Code::ALL.iter().copied().find(|code| code.name() == name);
    // The rule is more specific than the code that the caller received.
    let row = named(rule).or_else(|| named(code));
    let page = named(code).or(row).map_or_else(String::new, |code| format!("docs/errors/{}.md", code.name()));
    Some(Refusal {
        stage: stage.name(),
        rule: plain(rule),
        code: plain(code),
        status: *status,
        message: plain(message),
        meaning: row.map_or("", Code::meaning).to_owned(),
        way_out: named(code).or(row).map_or("", Code::way_out).to_owned(),
        doc: page,
    })
}
