//! The commands about budget rules and their alerts. What a hold reserves is decided elsewhere.

use headrace_domain::{BudgetName, UnixNanos};

use crate::budget_decisions::{reports, rule_number};
use crate::budget_rule::{AlertRaised, BudgetRaise, BudgetReport, BudgetRule, BudgetedHold};
use crate::command::Receipt;
use crate::command_time::CommandTime;
use crate::core::LedgerCore;
use crate::refusal::LedgerRefusal;
use crate::transaction::{JournalEvent, Transaction};

impl LedgerCore {
    /// Raises the alerts that an ended hold makes due, each once.
    pub(crate) fn raise_alerts(
        &mut self,
        ended: &BudgetedHold,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) {
        for alert in self.state.budgets.due_alerts(ended, now.ledger) {
            // The settlement is valid without its alerts.
            if let Err(refusal) = self.commit(JournalEvent::AlertRaised(Box::new(alert)), now, out) {
                tracing::error!(%refusal, "an alert of a budget could not be raised");
            }
        }
    }

    pub(crate) fn set_budget_rule(
        &mut self,
        rule: Box<BudgetRule>,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let (number, changed) = rule_number(&self.state.budgets, &rule)?;
        if changed {
            self.commit(JournalEvent::BudgetRuleSet { number, rule }, now, out)?;
        }
        Ok(Receipt::BudgetRuleChanged { changed })
    }

    fn number_of(&self, name: &BudgetName) -> Result<u64, LedgerRefusal> {
        let state = self.state.budgets.by_name(name).map(|state| state.number);
        state.ok_or_else(|| LedgerRefusal::UnknownBudgetRule { name: name.clone() })
    }

    pub(crate) fn remove_budget_rule(
        &mut self,
        name: &BudgetName,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let number = self.number_of(name)?;
        self.commit(JournalEvent::BudgetRuleRemoved { number }, now, out)?;
        Ok(Receipt::BudgetRuleChanged { changed: true })
    }

    pub(crate) fn raise_budget(
        &mut self,
        name: &BudgetName,
        raise: Option<BudgetRaise>,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let number = self.number_of(name)?;
        if raise.is_some_and(|raise| raise.until <= now.ledger) {
            return Err(LedgerRefusal::Invalid { field: "until", why: "it must lie ahead" });
        }
        self.commit(JournalEvent::BudgetRaised { number, raise }, now, out)?;
        Ok(Receipt::BudgetRuleChanged { changed: true })
    }

    /// Returns all budget rules with the counters of their current windows at `now`, by name.
    pub fn budgets(&self, now: UnixNanos) -> Vec<BudgetReport> {
        reports(&self.state.budgets, now.max(self.latest))
    }

    /// Returns the newest alerts with the times at which they were raised, oldest first, at most 1,000.
    pub fn alerts(&self) -> Vec<(UnixNanos, AlertRaised)> {
        self.state.budgets.alerts.iter().cloned().collect()
    }
}
