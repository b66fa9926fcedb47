//! Checks budget rules from the events alone: adds up what is reserved and used, by other code than the ledger's own.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_domain::{HoldId, TokenClass, UnixNanos};

use crate::budget_rule::{
    AlertRaised, BudgetMeasure, BudgetRaise, BudgetReservation, BudgetRule, BudgetedHold,
};
use crate::command::SettleOutcome;
use crate::transaction::{HoldSettled, HoldTaken, JournalEvent};

/// The budget rules of a journal so far.
#[derive(Debug, Default)]
pub(super) struct BudgetVerifier {
    rules: BTreeMap<u64, (BudgetRule, Option<BudgetRaise>)>,
    /// Used and reserved, by rule, subject and start of the window.
    counters: HashMap<CounterKey, (u64, u64)>,
    /// The holds that reserve something, with whether they claim an idempotency key.
    open: HashMap<HoldId, (BudgetedHold, bool)>,
    /// The holds that reserve nothing and claim an idempotency key. They may reserve something later.
    claims: HashSet<HoldId>,
    alerts: HashSet<(CounterKey, u16)>,
    /// Whether the clock was set back. Windows are merged then, and only replaying knows their sums.
    has_merged: bool,
}

type CounterKey = (u64, String, UnixNanos);

fn key_of(of: &BudgetReservation) -> CounterKey {
    (of.rule, of.subject.to_string(), of.window.start)
}

impl BudgetVerifier {
    /// Checks the next event, and calls `find` with each fault.
    pub(super) fn event(&mut self, event: &JournalEvent, time: UnixNanos, find: &mut dyn FnMut(String)) {
        match event {
            JournalEvent::BudgetRuleSet { number, rule } => {
                let raise = self.rules.get(number).and_then(|(_, raise)| *raise);
                self.rules.retain(|_, (known, _)| known.name != rule.name);
                self.rules.insert(*number, (BudgetRule::clone(rule), raise));
                if let Err(fault) =
                    rule.check().or_else(|fault| if fault.field == "zone" { Ok(()) } else { Err(fault) })
                {
                    find(format!("budget {}: {}: {}", rule.name, fault.field, fault.why));
                }
            }
            JournalEvent::BudgetRuleRemoved { number } => {
                self.rules.remove(number);
            }
            JournalEvent::BudgetRaised { number, raise } => {
                if let Some((_, known)) = self.rules.get_mut(number) {
                    *known = *raise;
                }
            }
            JournalEvent::Held(held) => self.held(held, time, find),
            JournalEvent::Extended { hold, reservations, .. } if !reservations.is_empty() => {
                self.reserve(reservations, time, find);
                // A call may go over to a model that has the first budget that counts it.
                let has_claim = self.claims.remove(hold);
                let (budgeted, _) =
                    self.open.entry(*hold).or_insert_with(|| (BudgetedHold::default(), has_claim));
                budgeted.reservations.extend_from_slice(reservations);
            }
            JournalEvent::Settled(settled) => self.settled(settled),
            JournalEvent::Released { hold, .. } => {
                self.claims.remove(hold);
                if let Some((budgeted, _)) = self.open.remove(hold) {
                    self.end(&budgeted, |_, _| 0);
                }
            }
            JournalEvent::AlertRaised(alert) => self.alert(alert, find),
            JournalEvent::ClockSet { .. } => self.has_merged = true,
            JournalEvent::Extended { .. }
            | JournalEvent::ProjectOpened { .. }
            | JournalEvent::Granted { .. }
            | JournalEvent::BudgetSet { .. }
            | JournalEvent::Refunded(_)
            | JournalEvent::LotMade(_)
            | JournalEvent::LotEnded { .. }
            | JournalEvent::DebtPaid { .. }
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::FreeTierSet { .. }
            | JournalEvent::FreeTierRemoved { .. } => {}
        }
    }

    fn held(&mut self, held: &HoldTaken, time: UnixNanos, find: &mut dyn FnMut(String)) {
        let Some(budgeted) = &held.budgeted else {
            if held.claim.is_some() {
                self.claims.insert(held.hold);
            }
            return;
        };
        self.reserve(&budgeted.reservations, time, find);
        for reservation in &budgeted.reservations {
            let Some((rule, _)) = self.rules.get(&reservation.rule) else { continue };
            let amount = u64::try_from(held.amount.get()).unwrap_or(u64::MAX);
            if rule.measure == BudgetMeasure::Dollars && reservation.amount != amount {
                find(format!("{} reserves another sum of budget {} than it holds", held.hold, rule.name));
            }
        }
        self.open.insert(held.hold, (BudgetedHold::clone(budgeted), held.claim.is_some()));
    }

    fn reserve(&mut self, more: &[BudgetReservation], time: UnixNanos, find: &mut dyn FnMut(String)) {
        for reservation in more {
            let Some((rule, raise)) = self.rules.get(&reservation.rule) else {
                find(format!(
                    "{} is reserved of rule {}, which is not set",
                    reservation.amount, reservation.rule
                ));
                continue;
            };
            let (used, reserved) = self.counters.entry(key_of(reservation)).or_default();
            *reserved = reserved.saturating_add(reservation.amount);
            let raised = raise.filter(|raise| time < raise.until).map_or(0, |raise| raise.limit);
            let limit = rule.limit.max(raised);
            let sum = used.saturating_add(*reserved);
            if rule.is_hard && reservation.amount > 0 && sum > limit && !self.has_merged {
                let (name, subject) = (&rule.name, &reservation.subject);
                find(format!("budget {name} of {subject} is at {sum} and its limit is {limit}"));
            }
        }
    }

    fn settled(&mut self, settled: &HoldSettled) {
        self.claims.remove(&settled.hold);
        let Some((budgeted, has_claim)) = self.open.remove(&settled.hold) else { return };
        let failed = settled.outcome == SettleOutcome::Failed;
        let is_waived = failed && has_claim;
        let has_run = !failed || !settled.lines.is_empty();
        // What is charged of each line: the first lines are charged first.
        let mut left = u64::try_from(settled.charged.get()).unwrap_or(0);
        let charged: Vec<u64> = settled
            .lines
            .iter()
            .map(|line| {
                let part = u64::try_from(line.amount.get()).unwrap_or(0).min(left);
                left -= part;
                part
            })
            .collect();
        let whole = u64::try_from(settled.charged.get()).unwrap_or(0);
        self.end(&budgeted, |measure, by_model| {
            let lines = || {
                let lines = settled.lines.iter().zip(&charged);
                lines.filter(move |(line, _)| by_model.is_none_or(|(model, _)| line.model.as_str() == model))
            };
            match (measure, by_model) {
                _ if is_waived => 0,
                (BudgetMeasure::Dollars, None) => whole,
                (BudgetMeasure::Dollars, Some(_)) => {
                    lines().map(|(_, part)| *part).fold(0, u64::saturating_add)
                }
                (BudgetMeasure::Tokens, _) => {
                    let tokens = lines().filter(|(line, _)| line.class != TokenClass::WebSearch);
                    tokens.map(|(line, _)| line.tokens).fold(0, u64::saturating_add)
                }
                (BudgetMeasure::Requests, None) => u64::from(has_run),
                (BudgetMeasure::Requests, Some((_, is_last))) => {
                    let is_its = if settled.lines.is_empty() { is_last } else { lines().next().is_some() };
                    u64::from(has_run && is_its)
                }
            }
        });
    }

    /// Ends a hold. Each rule takes what was used from its first reservation on. `used` gets the model of a reservation, and
    /// whether the call went over to it last, if the rule has reservations for several models.
    fn end(&mut self, budgeted: &BudgetedHold, used: impl Fn(BudgetMeasure, Option<(&str, bool)>) -> u64) {
        let mut left: HashMap<(u64, &str), u64> = HashMap::new();
        let mut subjects: HashMap<u64, Vec<&str>> = HashMap::new();
        for BudgetReservation { rule, subject, .. } in &budgeted.reservations {
            subjects.entry(*rule).or_default().push(subject);
        }
        for reservation in &budgeted.reservations {
            let Some((rule, _)) = self.rules.get(&reservation.rule) else { continue };
            let subject = &*reservation.subject;
            let of_rule = subjects.get(&reservation.rule).map_or(&[][..], Vec::as_slice);
            let has_several = of_rule.iter().any(|one| *one != subject);
            let model = subject.split_once('/').map_or(subject, |(_, model)| model);
            let by_model = has_several.then(|| (model, of_rule.last() == Some(&subject)));
            let left =
                left.entry((reservation.rule, subject)).or_insert_with(|| used(rule.measure, by_model));
            let actual = reservation.amount.min(*left);
            *left -= actual;
            let (used, reserved) = self.counters.entry(key_of(reservation)).or_default();
            *reserved = reserved.saturating_sub(reservation.amount);
            *used = used.saturating_add(actual);
        }
    }

    fn alert(&mut self, alert: &AlertRaised, find: &mut dyn FnMut(String)) {
        let AlertRaised { rule, name, subject, window, percent, used, limit } = alert;
        let key = (*rule, subject.to_string(), window.start);
        if !self.has_merged {
            let known = self.counters.get(&key).map_or(0, |(used, _)| *used);
            if known != *used {
                find(format!("an alert of budget {name} reports a use of {used}, and it is {known}"));
            }
        }
        if u128::from(*used) * 100 < u128::from(*limit) * u128::from(*percent) {
            find(format!("an alert of budget {name} at {percent} % reports a use of {used} of {limit}"));
        }
        if !self.alerts.insert((key, *percent)) {
            find(format!("the alert of budget {name} at {percent} % of {subject} is raised twice"));
        }
    }
}
