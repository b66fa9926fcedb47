//! Budget rules: list, set, raise and remove them, and take over those of the settings. Every change is announced in the
//! audit log before the ledger makes it.

use std::time::Duration;

use headrace_domain::{AdminCode, BudgetName, UnixNanos};
use headrace_ledger::{BudgetOrigin, BudgetRaise, BudgetReport, BudgetRule};

use super::AdminService;
use super::money::MoneyAct;
use crate::budget_act::{BudgetAct, BudgetAlertView};
use crate::command::AdminReply;
use crate::error::AdminError;

/// The actor of changes that the settings make.
const SETTINGS: &str = "settings";

impl AdminService {
    pub(super) fn budgets(
        &self,
        act: BudgetAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        match act {
            BudgetAct::List => {
                let reports = self.budget_reports(now).into_iter().map(Into::into).collect();
                Ok(AdminReply::Budgets(reports))
            }
            BudgetAct::Alerts => {
                let reports = self.budget_reports(now);
                let measure = |name: &BudgetName| {
                    let report = reports.iter().find(|report| report.rule.name == *name);
                    report.map(|report| report.rule.measure)
                };
                let alerts = self.ledger.alerts().into_iter().rev();
                let view = |(at, alert): (UnixNanos, headrace_ledger::AlertRaised)| {
                    let measure = measure(&alert.name);
                    BudgetAlertView::new(at, alert, measure)
                };
                Ok(AdminReply::BudgetAlerts(alerts.map(view).collect()))
            }
            BudgetAct::Set { rule } => {
                let name = rule.name.clone();
                let rule = BudgetRule { origin: BudgetOrigin::Operator, ..rule };
                rule.check().map_err(|fault| {
                    let message = format!("{}: {}", fault.field, fault.why);
                    AdminError::new(AdminCode::Invalid, message, "headrace budgets set --help")
                })?;
                self.change_budget(MoneyAct::BudgetRule { rule: Box::new(rule) }, actor, now)?;
                self.budget_reply(&name, now)
            }
            BudgetAct::Raise { name, limit, seconds } => {
                let reports = self.budget_reports(now);
                let report = reports.iter().find(|report| report.rule.name == name);
                let measure = report.map(|report| report.rule.measure).ok_or_else(|| unknown(&name))?;
                let raise = match seconds {
                    0 => None,
                    seconds => {
                        let limit = measure.parse(&limit).map_err(|why| {
                            AdminError::new(
                                AdminCode::Invalid,
                                format!("limit: {why}"),
                                "headrace budgets raise --help",
                            )
                        })?;
                        // Ledger time may be ahead of this machine's clock.
                        let until = self.ledger.time().max(now).after(Duration::from_secs(seconds));
                        Some(BudgetRaise { limit, until })
                    }
                };
                let act = MoneyAct::BudgetRaise { name: name.clone(), raise };
                self.change_budget(act, actor, now)?;
                self.budget_reply(&name, now)
            }
            BudgetAct::Remove { name } => {
                self.change_budget(MoneyAct::BudgetRemoved { name: name.clone() }, actor, now)?;
                Ok(AdminReply::BudgetRemoved(name))
            }
        }
    }

    /// Makes the rules of the settings those of the ledger. A rule that operators set stays, unless the settings have one
    /// of the same name. Returns the number of changes.
    ///
    /// # Errors
    /// If the ledger refuses a rule, or cannot be written.
    pub fn take_over_budgets(&self, rules: &[BudgetRule], now: UnixNanos) -> Result<usize, AdminError> {
        let reports = self.budget_reports(now);
        let known = |rule: &&BudgetRule| reports.iter().any(|report| report.rule == **rule);
        let changed = rules.iter().filter(|rule| !known(rule));
        let set = changed.map(|rule| MoneyAct::BudgetRule { rule: Box::new(rule.clone()) });
        let is_gone = |report: &&BudgetReport| {
            report.rule.origin == BudgetOrigin::Settings
                && !rules.iter().any(|rule| rule.name == report.rule.name)
        };
        let gone = reports.iter().filter(is_gone);
        let removed = gone.map(|report| MoneyAct::BudgetRemoved { name: report.rule.name.clone() });
        let acts: Vec<MoneyAct> = removed.chain(set).collect();
        let count = acts.len();
        for act in acts {
            self.change_budget(act, SETTINGS, now)?;
        }
        Ok(count)
    }

    /// Returns all rules, with what other gateways changed before.
    fn budget_reports(&self, now: UnixNanos) -> Vec<BudgetReport> {
        // An empty batch reads what other gateways wrote. Without a ledger, the answer is what is known here.
        let _ = self.ledger.transact(Vec::new(), now).durable.wait();
        self.ledger.budgets(now)
    }

    fn budget_reply(&self, name: &BudgetName, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let report = self.ledger.budgets(now).into_iter().find(|report| report.rule.name == *name);
        report.map(|report| AdminReply::BudgetChanged(report.into())).ok_or_else(|| unknown(name))
    }

    fn change_budget(&self, act: MoneyAct, actor: &str, now: UnixNanos) -> Result<(), AdminError> {
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        self.announce_and_do(&act, actor, now).map(drop)
    }
}

fn unknown(name: &BudgetName) -> AdminError {
    headrace_ledger::LedgerRefusal::UnknownBudgetRule { name: name.clone() }.into()
}
