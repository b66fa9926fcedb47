//! Encodes the state of budget rules as a part of a snapshot, in one canonical order. Counters that are over are left out:
//! when they are removed from memory depends on more than the state.

use std::sync::Arc;

use headrace_domain::UnixNanos;

use crate::budget_record::{
    read_alert, read_percents, read_raise, read_rule, read_window, write_alert, write_raise, write_rule,
    write_window,
};
use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::counters::{BudgetState, RuleState, SubjectCounters, WindowCounter};

/// Encodes all rules, counters and remembered alerts at ledger time `now`. The calls in flight follow from the holds.
pub(crate) fn write_budgets(w: &mut ByteWriter, budgets: &BudgetState, now: UnixNanos) {
    w.u64(budgets.last_number);
    w.len_of(budgets.rules.len());
    for RuleState { number, rule, raise, counters, .. } in &budgets.rules {
        w.u64(*number);
        write_rule(w, rule);
        write_raise(w, *raise);
        let is_kept = |counters: &SubjectCounters| counters.iter().any(|counter| !counter.is_over(now));
        let mut subjects: Vec<_> = counters.iter().filter(|(_, counters)| is_kept(counters)).collect();
        subjects.sort_unstable_by_key(|(subject, _)| *subject);
        w.len_of(subjects.len());
        for (subject, counters) in subjects {
            w.str(subject);
            let kept: Vec<_> = counters.iter().filter(|counter| !counter.is_over(now)).collect();
            w.len_of(kept.len());
            for WindowCounter { window, has_open_end, used, reserved, alerted } in kept {
                write_window(w, *window);
                w.bool(*has_open_end);
                w.u64(*used);
                w.u64(*reserved);
                w.len_of(alerted.len());
                alerted.iter().for_each(|percent| w.u64((*percent).into()));
            }
        }
    }
    w.len_of(budgets.alerts.len());
    for (time, alert) in &budgets.alerts {
        w.u64(time.get());
        write_alert(w, alert);
    }
}

/// Decodes what [`write_budgets`] encodes, into the state in which the calls in flight are counted.
pub(crate) fn read_budgets(r: &mut ByteReader<'_>, budgets: &mut BudgetState) -> Result<(), MalformedBytes> {
    budgets.last_number = r.u64()?;
    let mut before = 0;
    for _ in 0..r.len_of()? {
        let number = r.u64()?;
        if number <= before || number > budgets.last_number {
            return Err(r.malformed("the number of a budget rule"));
        }
        before = number;
        let rule = read_rule(r)?;
        let mut state = RuleState::new(number, rule, read_raise(r)?);
        for _ in 0..r.len_of()? {
            let subject: Arc<str> = r.str()?.into();
            let counters = read_counters(r)?;
            state.counters.insert(subject, counters);
        }
        budgets.restore(state);
    }
    for _ in 0..r.len_of()? {
        let time = UnixNanos::new(r.u64()?);
        budgets.alerts.push_back((time, read_alert(r)?));
    }
    budgets.index();
    Ok(())
}

fn read_counters(r: &mut ByteReader<'_>) -> Result<SubjectCounters, MalformedBytes> {
    let count = r.len_of()?;
    let mut counters = SubjectCounters::new();
    for _ in 0..count {
        let window = read_window(r)?;
        let mut counter = WindowCounter::new(window);
        counter.has_open_end = r.bool()?;
        (counter.used, counter.reserved) = (r.u64()?, r.u64()?);
        counter.alerted = read_percents(r)?.into();
        counters.push(counter);
    }
    Ok(counters)
}
