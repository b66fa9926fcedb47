//! Decides what a hold reserves of budget rules, and whether they cover it: all of them or none. Changes nothing.

use headrace_domain::{NanoDollars, UnixNanos};

use crate::budget_rule::{
    BudgetCounter, BudgetMeasure, BudgetReport, BudgetReservation, BudgetRule, BudgetedHold, HeldPlaces,
    MAX_BUDGET_RULES, PlaceLimits,
};
use crate::counters::{BudgetState, HoldParties, PlaceScope, RuleState};
use crate::refusal::{ExceededBudget, LedgerRefusal};
use crate::windows::TOTAL;

/// Returns what a hold of `amount` reserves, and the calls in flight that it counts among. `None` if nothing.
///
/// # Errors
/// Of the hard rules that do not cover the hold, the refusal names the one that has the least left, as a part of its limit.
pub(crate) fn budgeted(
    budgets: &BudgetState,
    parties: HoldParties<'_>,
    amount: NanoDollars,
    now: UnixNanos,
) -> Result<Option<Box<BudgetedHold>>, LedgerRefusal> {
    let limits = parties.demand.and_then(|demand| demand.places);
    if !budgets.has_rules() && limits.is_none() {
        return Ok(None);
    }
    let mut wanted = RuleCheck { now, reservations: Vec::new(), exceeded: None };
    budgets.each_rule_of(parties, |state, subject| {
        let needed = match (state.rule.measure, parties.demand) {
            (BudgetMeasure::Dollars, _) => u64::try_from(amount.get()).unwrap_or(0),
            (BudgetMeasure::Tokens, Some(demand)) => demand.tokens,
            (BudgetMeasure::Requests, Some(_)) => 1,
            (BudgetMeasure::Tokens | BudgetMeasure::Requests, None) => return Ok(()),
        };
        wanted.add(state, subject, needed);
        Ok::<(), LedgerRefusal>(())
    })?;
    let reservations = wanted.finish()?;
    let places = match limits {
        Some(limits) => held_places(budgets, parties, limits)?,
        None => HeldPlaces::default(),
    };
    let budgeted = BudgetedHold { reservations, places };
    Ok(if budgeted.is_empty() { None } else { Some(Box::new(budgeted)) })
}

/// Returns what a hold reserves in addition if it is extended by `amount`.
///
/// # Errors
/// As for a new hold.
pub(crate) fn extension(
    budgets: &BudgetState,
    held: Option<&BudgetedHold>,
    amount: NanoDollars,
    now: UnixNanos,
) -> Result<Vec<BudgetReservation>, LedgerRefusal> {
    let Some(held) = held else { return Ok(Vec::new()) };
    let mut wanted = RuleCheck { now, reservations: Vec::new(), exceeded: None };
    for (place, reservation) in held.reservations.iter().enumerate() {
        let is_again = held.reservations.iter().take(place).any(|earlier| earlier.rule == reservation.rule);
        let state = budgets.by_number(reservation.rule);
        if let Some(state) = state.filter(|state| !is_again && state.rule.measure == BudgetMeasure::Dollars) {
            wanted.add(state, reservation.subject.clone(), u64::try_from(amount.get()).unwrap_or(0));
        }
    }
    wanted.finish()
}

/// The reservations of one hold, and the rule that refuses it.
struct RuleCheck {
    now: UnixNanos,
    reservations: Vec<BudgetReservation>,
    exceeded: Option<Box<ExceededBudget>>,
}

impl RuleCheck {
    fn add(&mut self, state: &RuleState, subject: std::sync::Arc<str>, needed: u64) {
        let current = state.current(&subject, self.now);
        let (used, reserved) = current.map_or((0, 0), |counter| (counter.used, counter.reserved));
        let window = state.window_at(&subject, self.now);
        let limit = state.limit_at(self.now);
        let sum = used.checked_add(reserved).and_then(|sum| sum.checked_add(needed));
        let fits = sum.is_some_and(|sum| sum <= limit);
        // A counter of a soft rule may grow without a limit, but not beyond 64 bits. A hold of nothing always fits. It is
        // counted all the same, because it may be extended.
        if !fits && needed > 0 && (state.rule.is_hard || sum.is_none()) {
            let exceeded = ExceededBudget {
                name: state.rule.name.clone(),
                scope: state.rule.scope,
                subject,
                measure: state.rule.measure,
                window: state.rule.window,
                limit,
                used,
                reserved,
                needed,
                resets: (window.end != TOTAL.end).then_some(window.end),
                wait: (window.end != TOTAL.end).then(|| window.end.since(self.now)),
            };
            let is_nearer = self.exceeded.as_ref().is_none_or(|known| exceeded.is_nearer_than(known));
            if is_nearer {
                self.exceeded = Some(Box::new(exceeded));
            }
            return;
        }
        self.reservations.push(BudgetReservation { rule: state.number, subject, window, amount: needed });
    }

    fn finish(self) -> Result<Vec<BudgetReservation>, LedgerRefusal> {
        match self.exceeded {
            Some(exceeded) => Err(LedgerRefusal::BudgetRuleExceeded(exceeded)),
            None => Ok(self.reservations),
        }
    }
}

/// Returns the subjects whose calls in flight a hold counts among. A subject without a limit is not counted.
fn held_places(
    budgets: &BudgetState,
    parties: HoldParties<'_>,
    limits: PlaceLimits,
) -> Result<HeldPlaces, LedgerRefusal> {
    let HoldParties { org, project, demand } = parties;
    let Some(demand) = demand else { return Ok(HeldPlaces::default()) };
    let PlaceLimits { key, project: of_project, org: of_org, model } = limits;
    let check = |scope: PlaceScope, kind: &'static str, subject: &str, limit: Option<u32>| match limit {
        Some(limit) if budgets.in_flight(scope, subject) >= limit => {
            Err(LedgerRefusal::PlacesTaken { kind, subject: subject.into(), limit })
        }
        limit => Ok(limit.is_some()),
    };
    Ok(HeldPlaces {
        key: check(PlaceScope::Key, "key", demand.key.as_str(), key)?.then(|| demand.key.clone()),
        project: check(PlaceScope::Project, "project", project.as_str(), of_project)?
            .then(|| project.clone()),
        org: check(PlaceScope::Org, "org", org.as_str(), of_org)?.then(|| org.clone()),
        model: check(PlaceScope::Model, "model", demand.model.as_str(), model)?.then(|| demand.model.clone()),
    })
}

/// Returns the number that a rule gets, and whether the rule is different from the one before.
///
/// # Errors
/// The rule has a fault, or there are too many rules.
pub(crate) fn rule_number(budgets: &BudgetState, rule: &BudgetRule) -> Result<(u64, bool), LedgerRefusal> {
    rule.check().map_err(|fault| LedgerRefusal::Invalid { field: fault.field, why: fault.why })?;
    let limit = RuleLimit { most: MAX_BUDGET_RULES, why: "there are 10000 rules: remove some" };
    numbered(budgets, rule, limit)
}

/// The maximum number of rules, and what to say if there are as many.
#[derive(Clone, Copy)]
pub(crate) struct RuleLimit {
    pub(crate) most: usize,
    pub(crate) why: &'static str,
}

/// Returns the number that a checked rule gets, and whether the rule is different from the one before.
///
/// # Errors
/// There are too many rules.
pub(crate) fn numbered(
    budgets: &BudgetState,
    rule: &BudgetRule,
    limit: RuleLimit,
) -> Result<(u64, bool), LedgerRefusal> {
    let known = budgets.by_name(&rule.name);
    if known.is_none() && budgets.rules.len() >= limit.most {
        return Err(LedgerRefusal::Invalid { field: "budget", why: limit.why });
    }
    let next = budgets.last_number.checked_add(1).ok_or(LedgerRefusal::Overflow)?;
    Ok(match known {
        Some(known) if known.rule.counts_as(rule) => (known.number, known.rule != *rule),
        _ => (next, true),
    })
}

/// Returns all rules with the counters of their current windows at `now`, by name.
pub(crate) fn reports(budgets: &BudgetState, now: UnixNanos) -> Vec<BudgetReport> {
    let mut reports: Vec<_> = budgets.rules.iter().map(|state| report(state, now)).collect();
    reports.sort_unstable_by(|one, other| one.rule.name.cmp(&other.rule.name));
    reports
}

/// Returns the counters of a rule in its current windows at `now`, by subject.
pub(crate) fn counters_of(state: &RuleState, now: UnixNanos) -> Vec<BudgetCounter> {
    let limit = state.limit_at(now);
    let mut counters: Vec<_> = state
        .counters
        .keys()
        .filter_map(|subject| {
            let counter = state.current(subject, now)?;
            Some(BudgetCounter {
                subject: subject.clone(),
                window: state.window_at(subject, now),
                used: counter.used,
                reserved: counter.reserved,
                left: limit.saturating_sub(counter.used).saturating_sub(counter.reserved),
                alerted: counter.alerted.to_vec(),
            })
        })
        .collect();
    counters.sort_unstable_by(|one, other| one.subject.cmp(&other.subject));
    counters
}

fn report(state: &RuleState, now: UnixNanos) -> BudgetReport {
    BudgetReport {
        rule: state.rule.clone(),
        raise: state.raise.filter(|raise| now < raise.until),
        limit: state.limit_at(now),
        counters: counters_of(state, now),
    }
}
