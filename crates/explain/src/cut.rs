//! Cuts a call's time into terms. They sum to the call's duration to the nanosecond, for any record. Contains no
//! wording.

use std::collections::BTreeMap;

use headrace_domain::{Attempt, AttemptOutcome, Stage, TraceRecord};

use crate::term::TermName;

/// Nanoseconds by term. Terms of zero are left out.
pub(crate) type Cut = BTreeMap<TermName, u64>;

/// Cuts the call's time into terms. Their sum is `duration_ns`.
pub(crate) fn cut(record: &TraceRecord) -> Cut {
    let mut terms = Cut::new();
    let retried = retried(record);
    // The last whole span's term, with the nanoseconds that inner spans have not yet taken from it.
    let mut last: Option<(TermName, u64)> = None;
    for span in &record.stages {
        match span.inside {
            None => {
                let end = span.start_ns.saturating_add(span.duration_ns);
                let lost = if waits_for_words(span.stage) {
                    overlap(&retried, span.start_ns, end).min(span.duration_ns)
                } else {
                    0
                };
                let term = TermName::of_stage(span.stage);
                add(&mut terms, TermName::Retries, lost);
                add(&mut terms, term, span.duration_ns - lost);
                last = Some((term, span.duration_ns - lost));
            }
            Some(_) => {
                let Some((whole, left)) = &mut last else { continue };
                let share = span.duration_ns.min(*left);
                *left -= share;
                shift(&mut terms, *whole, TermName::of_stage(span.stage), share);
            }
        }
    }
    shift(&mut terms, TermName::Render, TermName::Form, record.form_ns);
    split_queue(record, &mut terms);
    split_decode(record, &mut terms);
    balance(&mut terms, record.duration_ns);
    terms.retain(|_, nanos| *nanos > 0);
    terms
}

const fn waits_for_words(stage: Stage) -> bool {
    matches!(stage, Stage::Place | Stage::Upstream | Stage::Queue | Stage::Prefill)
}

fn add(terms: &mut Cut, term: TermName, nanos: u64) {
    let sum = terms.entry(term).or_default();
    *sum = sum.saturating_add(nanos);
}

/// Moves `nanos` from one term to another, at most as many as are there.
fn shift(terms: &mut Cut, from: TermName, to: TermName, nanos: u64) {
    let Some(left) = terms.get_mut(&from) else { return };
    let moved = nanos.min(*left);
    *left -= moved;
    add(terms, to, moved);
}

/// Intervals of the failed or refused attempts, joined so that they do not overlap. Only the time before the first
/// output counts. An answer that broke off later and was resumed was not wasted.
fn retried(record: &TraceRecord) -> Vec<(u64, u64)> {
    let in_vain = |attempt: &&Attempt| {
        matches!(attempt.outcome, AttemptOutcome::Refused { .. } | AttemptOutcome::Failed { .. })
    };
    let until = record.first_token_ns.unwrap_or(record.duration_ns);
    let last = record.attempts.last();
    let mut spans: Vec<(u64, u64)> = record
        .attempts
        .iter()
        .filter(in_vain)
        // If all attempts failed, the last one is the call's own failure, not a retry.
        .filter(|attempt| last.is_some_and(|last| !std::ptr::eq(*attempt, last)))
        .map(|attempt| (attempt.start_ns, attempt.start_ns.saturating_add(attempt.duration_ns).min(until)))
        .collect();
    spans.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ if to > from => joined.push((from, to)),
            _ => {}
        }
    }
    joined
}

fn overlap(spans: &[(u64, u64)], from: u64, to: u64) -> u64 {
    spans.iter().map(|span| span.1.min(to).saturating_sub(span.0.max(from))).sum()
}

/// Splits the queue wait by the work that the engine did in that time.
fn split_queue(record: &TraceRecord, terms: &mut Cut) {
    let queue_ns = terms.get(&TermName::Queue).copied().unwrap_or(0);
    let Some(ahead) = record.engine.as_ref().and_then(|engine| engine.ahead) else { return };
    let ahead = ahead.within(queue_ns);
    for (term, nanos) in [
        (TermName::QueueOwn, ahead.own_decode_ns),
        (TermName::QueueOwnPrompts, ahead.own_prefill_ns),
        (TermName::QueueOthers, ahead.others_decode_ns),
        (TermName::QueueOthersPrompts, ahead.others_prefill_ns),
    ] {
        shift(terms, TermName::Queue, term, nanos);
    }
}

/// Splits off the part of the decode that was spent on other prompts in the same steps.
fn split_decode(record: &TraceRecord, terms: &mut Cut) {
    let Some(beside) = record.engine.as_ref().and_then(|engine| engine.beside) else { return };
    shift(terms, TermName::Decode, TermName::DecodeBehindPrompts, beside.decode_prefill_ns);
}

/// Makes the terms sum to `total`. Missing time becomes unaccounted, and excess time is taken from each term in
/// proportion.
fn balance(terms: &mut Cut, total: u64) {
    let sum: u128 = terms.values().map(|nanos| u128::from(*nanos)).sum();
    if sum > u128::from(total) {
        for nanos in terms.values_mut() {
            *nanos = u64::try_from(u128::from(*nanos) * u128::from(total) / sum).unwrap_or(0);
        }
    }
    let sum: u64 = terms.values().fold(0, |sum: u64, nanos| sum.saturating_add(*nanos));
    let missing = total.saturating_sub(sum);
    // If the terms were scaled down, the largest one gets the rounding error.
    let rounding = missing < terms.len() as u64;
    match terms.iter_mut().max_by_key(|(_, nanos)| **nanos).filter(|_| rounding) {
        Some((_, nanos)) => *nanos = nanos.saturating_add(missing),
        None => add(terms, TermName::Unaccounted, missing),
    }
}
