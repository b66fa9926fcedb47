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
                match self.open.get_mut(hold) {
                    Some((budgeted, _)) => budgeted.reservations.extend_from_slice(reservations),
                    None => find(format!("{hold} reserves more of budgets and reserved nothing before")),
                }
            }
            JournalEvent::Settled(settled) => self.settled(settled),
            JournalEvent::Released { hold, .. } => {
                if let Some((budgeted, _)) = self.open.remove(hold) {
                    self.end(&budgeted, |_| 0);
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
        let Some(budgeted) = &held.budgeted else { return };
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
        let Some((budgeted, has_claim)) = self.open.remove(&settled.hold) else { return };
        let failed = settled.outcome == SettleOutcome::Failed;
        let is_waived = failed && has_claim;
        let tokens = settled.lines.iter().filter(|line| line.class != TokenClass::WebSearch);
        let tokens: u64 = tokens.map(|line| line.tokens).fold(0, u64::saturating_add);
        let dollars = u64::try_from(settled.charged.get()).unwrap_or(0);
        self.end(&budgeted, |measure| match measure {
            _ if is_waived => 0,
            BudgetMeasure::Dollars => dollars,
            BudgetMeasure::Tokens => tokens,
            BudgetMeasure::Requests => u64::from(!failed || !settled.lines.is_empty()),
        });
    }

    /// Ends a hold. Each rule takes what was used from its first reservation on.
    fn end(&mut self, budgeted: &BudgetedHold, used: impl Fn(BudgetMeasure) -> u64) {
        let mut left: HashMap<u64, u64> = HashMap::new();
        for reservation in &budgeted.reservations {
            let Some((rule, _)) = self.rules.get(&reservation.rule) else { continue };
            let left = left.entry(reservation.rule).or_insert_with(|| used(rule.measure));
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
