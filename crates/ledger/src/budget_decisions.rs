//! Decides what a hold reserves of budget rules, and whether they cover it: all of them or none. Changes nothing.

use headrace_domain::{NanoDollars, OrgId, UnixNanos};

use crate::budget_rule::{
    BudgetCounter, BudgetMeasure, BudgetReport, BudgetReservation, BudgetRule, BudgetScope, BudgetedHold,
    HeldPlaces, MAX_BUDGET_RULES, ModelDemand, PlaceLimits,
};
use crate::counters::{BudgetState, HoldParties, PlaceScope, RuleState};
use crate::hold_use::model_subject;
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
    for (state, newest) in newest_of_rules(budgets, held) {
        // A rule of other models than the one that the call went over to counts nothing more.
        if state.rule.measure == BudgetMeasure::Dollars && state.may_count(&newest.subject) {
            wanted.add(state, newest.subject.clone(), u64::try_from(amount.get()).unwrap_or(0));
        }
    }
    wanted.finish()
}

/// A call that goes over to another model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelChange<'c> {
    pub(crate) org: &'c OrgId,
    /// The amount by which the hold grows.
    pub(crate) amount: NanoDollars,
    pub(crate) to: &'c ModelDemand,
}

/// Returns what a hold reserves in addition if its call goes over to another model. The rules of that model reserve the whole
/// call there. What was reserved for models before stays reserved until the call ends. A rule of those models alone gets a
/// reservation of nothing for the other model, which says that the use is divided by model ([`RuleState::may_count`]).
///
/// # Errors
/// As for a new hold.
pub(crate) fn change_of_model(
    budgets: &BudgetState,
    held: Option<&BudgetedHold>,
    change: ModelChange<'_>,
    now: UnixNanos,
) -> Result<Vec<BudgetReservation>, LedgerRefusal> {
    let ModelChange { org, amount, to } = change;
    let mut wanted = RuleCheck { now, reservations: Vec::new(), exceeded: None };
    let reservations = held.map_or(&[][..], |held| held.reservations.as_slice());
    let reserved = |rule: u64, subject: Option<&str>| {
        let of_rule = reservations.iter().filter(|known| known.rule == rule);
        let mut of_subject = of_rule.filter(|known| subject.is_none_or(|subject| *known.subject == *subject));
        let first = of_subject.next()?.amount;
        Some(of_subject.fold(first, |sum, known| sum.saturating_add(known.amount)))
    };
    let [more, whole] = [amount, to.amount].map(|amount| u64::try_from(amount.get()).unwrap_or(0));
    budgets.each_model_rule(org, &to.model, |state, subject| {
        let needed = match state.rule.measure {
            BudgetMeasure::Dollars => whole,
            BudgetMeasure::Tokens => to.tokens,
            BudgetMeasure::Requests => 1,
        };
        match reserved(state.number, Some(&subject)) {
            None => wanted.add(state, subject, needed),
            Some(before) if before < needed => wanted.add(state, subject, needed - before),
            Some(_) => {}
        }
    });
    let Some(held) = held else { return wanted.finish() };
    for (state, newest) in newest_of_rules(budgets, held) {
        match (state.rule.scope, state.rule.measure) {
            (BudgetScope::Model, _) => {
                let subject = model_subject(org, to.model.as_str());
                if !state.may_count(&subject) && reserved(state.number, Some(&subject)).is_none() {
                    wanted.add(state, subject.into(), 0);
                }
            }
            (_, BudgetMeasure::Dollars) if more > 0 => wanted.add(state, newest.subject.clone(), more),
            (_, BudgetMeasure::Tokens) => {
                let before = reserved(state.number, None).unwrap_or(0);
                if before < to.tokens {
                    wanted.add(state, newest.subject.clone(), to.tokens - before);
                }
            }
            (_, BudgetMeasure::Dollars | BudgetMeasure::Requests) => {}
        }
    }
    wanted.finish()
}

/// Returns the newest reservation of each rule of a hold, in the order of the rules' first reservations.
fn newest_of_rules<'h>(
    budgets: &'h BudgetState,
    held: &'h BudgetedHold,
) -> impl Iterator<Item = (&'h RuleState, &'h BudgetReservation)> {
    let is_first =
        move |place: usize, rule: u64| !held.reservations.iter().take(place).any(|one| one.rule == rule);
    held.reservations.iter().enumerate().filter(move |(place, one)| is_first(*place, one.rule)).filter_map(
        move |(_, first)| {
            let newest = held.reservations.iter().rev().find(|one| one.rule == first.rule)?;
            Some((budgets.by_number(first.rule)?, newest))
        },
    )
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
