//! The explanation of one call: its terms beside what is usual and what is published, the dearest of them in one sentence first, and
//! what would have helped. Plain data: it serializes, and `render` writes it out.

use headrace_domain::{Code, Outcome, TraceRecord, TracedRefusal};
use headrace_trace::plain;
use serde::Serialize;

use crate::cost::why_cost;
use crate::cut::{Cut, cut};
use crate::levers::{Lever, levers};
use crate::reference::{ReferenceRow, beside_reference, reference_of};
use crate::shape::CallShape;
use crate::term::{Party, TermName};
use crate::usual::{Quantiles, Usual};
use crate::words::{self, Dearest};

/// A term is unusual from this many times its usual value on, in per cent.
const UNUSUAL_PERCENT: u64 = 200;
/// And where what is beyond the usual is at least this part of the call, in per mille.
const UNUSUAL_PERMILLE: u64 = 20;

/// Where a call's time and money went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Which call.
    pub id: String,
    /// Where most of its time went, in one sentence; or what kept it from its end.
    pub sentence: String,
    /// The same of its money.
    pub money_sentence: String,
    /// What is out of the usual, each in a sentence, the largest first.
    pub unusual: Vec<String>,
    /// Microseconds from its first byte to its end: the sum of the terms.
    pub total_us: f64,
    /// What comparable calls take in all, in microseconds.
    pub usual_total_us: Option<f64>,
    /// The term that took most, those of one wait and of one answer weighed together.
    pub dearest: Option<TermName>,
    /// In the order of the path.
    pub terms: Vec<Term>,
    /// The published table, with what this call took of each row.
    pub reference: Vec<ReferenceRow>,
    /// What `usual` means.
    pub compared: Compared,
    /// Who was asked to answer it, and what came of each try.
    pub attempts: Vec<Try>,
    /// Its sizes.
    pub shape: CallShape,
    /// What would have helped, what saves most first.
    pub levers: Vec<Lever>,
    /// What else should be known, each a sentence.
    pub notes: Vec<String>,
    /// Why it was turned away, if it was.
    pub refusal: Option<Refusal>,
}

/// A part of a call's time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Term {
    /// Which.
    pub name: TermName,
    /// Whose.
    pub party: Party,
    /// Microseconds.
    pub us: f64,
    /// Which part of the whole, from 0 to 1.
    pub share: f64,
    /// What it takes half of the comparable calls at most, for this call's size.
    pub usual_us: Option<f64>,
    /// What it takes 95 of 100 of them at most.
    pub usual_p95_us: Option<f64>,
    /// What the published table says of the row that it belongs to, from and to.
    pub reference_us: Option<[u64; 2]>,
    /// That row.
    pub reference: Option<&'static str>,
    /// Whether it took far more than is usual.
    pub unusual: bool,
    /// Why it took what it took.
    pub text: String,
}

/// A try to have the call answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Try {
    /// Who was asked.
    pub worker: String,
    /// Microseconds from the call's first byte.
    pub start_us: f64,
    /// Microseconds that it took.
    pub duration_us: f64,
    /// What came of it: `answered`, `refused`, `failed`, `outrun` or `cut_short`.
    pub outcome: &'static str,
    /// Why, in words; empty if it was answered.
    pub text: String,
}

/// What `usual` means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// How many calls.
    pub calls: usize,
    /// Which.
    pub what: String,
}

/// Why a call was turned away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Where.
    pub stage: &'static str,
    /// By which rule: an operator's name of it.
    pub rule: String,
    /// The code that the caller was told.
    pub code: String,
    /// HTTP status.
    pub status: u16,
    /// What the caller was told.
    pub message: String,
    /// What the code means.
    pub meaning: String,
    /// What can be done.
    pub way_out: String,
    /// Its page.
    pub doc: String,
}

/// Explains a call beside what is usual.
pub fn explain(record: &TraceRecord, usual: &Usual) -> Explanation {
    let cut = cut(record);
    let is_answered = matches!(record.outcome, Outcome::Completed { .. });
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
        shape: CallShape::of(record),
        levers: levers(record, &cut, usual),
        notes: words::notes(record),
        refusal: refusal(record),
        terms,
    }
}

fn compared(record: &TraceRecord, usual: &Usual) -> Compared {
    if matches!(record.outcome, Outcome::Refused(_)) {
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

/// Whether a term of the call can be compared with those of calls that were answered. A refused call did not come as far as they did,
/// and one that broke off spent less on its answer.
fn is_comparable(name: TermName, record: &TraceRecord) -> bool {
    match record.outcome {
        Outcome::Completed { .. } => true,
        Outcome::Refused(_) => false,
        Outcome::Cancelled { .. } => !takes_as_long_as_the_answer(name),
        Outcome::Failed { .. } => name.is_a_wait(),
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

/// The unusual terms in sentences, what is furthest beyond its usual first.
fn unusual(terms: &[Term]) -> Vec<String> {
    let mut found: Vec<&Term> = terms.iter().filter(|term| term.unusual).collect();
    let beyond = |term: &Term| term.us - term.usual_us.unwrap_or(0.0);
    found.sort_by(|a, b| beyond(b).total_cmp(&beyond(a)));
    found
        .into_iter()
        .map(|term| words::unusual(term.name, term.us, term.usual_us.unwrap_or(0.0), &term.text))
        .collect()
}

/// Why it was turned away, with what the table of refusals says of its code.
fn refusal(record: &TraceRecord) -> Option<Refusal> {
    let Outcome::Refused(TracedRefusal { stage, rule, status, code, message }) = &record.outcome else {
        return None;
    };
    let named = |name: &str| Code::ALL.iter().copied().find(|code| code.name() == name);
    // The rule tells an operator more than the code that its caller was told.
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
