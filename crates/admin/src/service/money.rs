//! Acts on money. Each act is announced in the audit log before it is done in the ledger, and concluded afterwards. So
//! an act that a crash interrupted is found and finished. Must not know where the two logs are stored.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{AdminCode, BudgetName, NanoDollars, OrgId, ProjectId, UnixNanos};
use headrace_identity::{AuditEntry, AuditRow};
use headrace_ledger::{
    BudgetPeriod, BudgetRaise, BudgetRule, GrantKind, LedgerOperation, ProjectBudget, Receipt,
};
use serde::{Deserialize, Serialize};

use super::{AdminService, unexpected};
use crate::command::{AdminReply, GrantView};
use crate::error::AdminError;

/// Names of acts in the audit log.
const GRANT: &str = "credit.grant";
const CORRECT: &str = "credit.correct";
const BUDGET: &str = "budget.set";
const CLOCK: &str = "ledger.clock";
const BUDGET_RULE: &str = "budget_rule.set";
const BUDGET_RAISE: &str = "budget_rule.raise";
const BUDGET_REMOVE: &str = "budget_rule.remove";
const NOT_DONE: &str = "money.refused";

/// The code of an error that leaves open whether an act is in the ledger.
const UNDECIDED: AdminCode = AdminCode::LedgerUndecided;

/// Maximum number of grants, and of corrections, in one list.
const MAX_GRANTS: usize = 10_000;

/// Money added to an organisation's balance, or, below zero, taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The organisation.
    pub org: OrgId,
    /// The amount.
    pub amount: NanoDollars,
    /// The kind of grant.
    pub kind: GrantKind,
    /// The reference of a grant, or the reason of a correction. Unique within an organisation, unless it is empty.
    pub reference: String,
}

/// An announced act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub(super) enum MoneyAct {
    /// A grant, and the last row of the journal before it.
    Grant { grant: Grant, after: u64 },
    /// A new budget. It is idempotent.
    Budget { org: OrgId, project: ProjectId, budget: Option<ProjectBudget> },
    /// Setting the ledger's time back to the clock's.
    Clock { from: UnixNanos },
    /// A budget rule. It is idempotent.
    BudgetRule { rule: Box<BudgetRule> },
    /// A raise of a budget rule, or its end. It is idempotent.
    BudgetRaise { name: BudgetName, raise: Option<BudgetRaise> },
    /// The removal of a budget rule.
    BudgetRemoved { name: BudgetName },
}

impl MoneyAct {
    fn entry(&self, actor: &str, at: UnixNanos) -> AuditEntry {
        let (act, subject, detail) = match self {
            Self::Grant { grant, .. } => (grant.act(), grant.org.to_string(), grant.detail()),
            Self::Budget { project, budget, .. } => (BUDGET, project.to_string(), budget_detail(*budget)),
            Self::Clock { from } => {
                let seconds = from.since(at).as_secs();
                (CLOCK, "ledger".to_owned(), format!("back by {seconds} s"))
            }
            Self::BudgetRule { rule } => (BUDGET_RULE, rule.name.to_string(), rule.to_string()),
            Self::BudgetRaise { name, raise: Some(BudgetRaise { limit, until }) } => {
                (BUDGET_RAISE, name.to_string(), format!("to {limit} until {}", Rfc3339(*until)))
            }
            Self::BudgetRaise { name, raise: None } => (BUDGET_RAISE, name.to_string(), "ended".to_owned()),
            Self::BudgetRemoved { name } => (BUDGET_REMOVE, name.to_string(), String::new()),
        };
        AuditEntry { at, actor: actor.to_owned(), act: act.to_owned(), subject, detail }
    }

    fn command(&self) -> LedgerOperation {
        match self.clone() {
            Self::Grant { grant: Grant { org, amount, kind, reference }, .. } => {
                LedgerOperation::Grant { org, amount, kind, reference }
            }
            Self::Budget { org, project, budget } => LedgerOperation::SetBudget { org, project, budget },
            Self::Clock { .. } => LedgerOperation::SetClock,
            Self::BudgetRule { rule } => LedgerOperation::SetBudgetRule { rule },
            Self::BudgetRaise { name, raise } => LedgerOperation::RaiseBudget { name, raise },
            Self::BudgetRemoved { name } => LedgerOperation::RemoveBudgetRule { name },
        }
    }
}

fn budget_detail(budget: Option<ProjectBudget>) -> String {
    match budget {
        None => "none".to_owned(),
        Some(ProjectBudget { limit, period: BudgetPeriod::Month }) => format!("{limit} a month"),
        Some(ProjectBudget { limit, period: BudgetPeriod::Total }) => format!("{limit} in all"),
    }
}

impl Grant {
    fn act(&self) -> &'static str {
        if self.amount < NanoDollars::ZERO { CORRECT } else { GRANT }
    }

    /// The grant as text for the audit log. [`Grant::from_audit_entry`] parses it.
    fn detail(&self) -> String {
        let kind = match self.kind {
            GrantKind::Paid => "paid",
            GrantKind::Promotional => "promotional",
        };
        let reference = serde_json::Value::from(self.reference.as_str());
        format!("{} {kind}, reference {reference}", self.amount)
    }

    /// Parses the grant from an audit row.
    fn from_audit_entry(entry: &AuditEntry) -> Option<Self> {
        let (amount, rest) = entry.detail.split_once(' ')?;
        let (kind, reference) = rest.split_once(", reference ")?;
        let kind = match kind {
            "paid" => GrantKind::Paid,
            "promotional" => GrantKind::Promotional,
            _ => return None,
        };
        Some(Self {
            org: OrgId::new(&entry.subject).ok()?,
            amount: NanoDollars::from_dollars(amount).ok()?,
            kind,
            reference: serde_json::from_str(reference).ok()?,
        })
    }
}

impl AdminService {
    /// Adds money. If the reference was used before, returns the grant that used it.
    pub(super) fn grant(&self, grant: Grant, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        if grant.amount <= NanoDollars::ZERO {
            return Err(AdminError::new(
                AdminCode::Invalid,
                format!("a grant must be more than zero, and this is {}", grant.amount),
                "headrace credit correct AMOUNT --reason WHY takes back what was granted by mistake",
            ));
        }
        self.move_credit(grant, actor, now)
    }

    /// Takes money back, with a reason.
    pub(super) fn correct(
        &self,
        grant: Grant,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        if grant.reference.trim().is_empty() {
            return Err(AdminError::new(AdminCode::Invalid, "a correction needs a reason", "--reason WHY"));
        }
        let amount = NanoDollars::new(grant.amount.get().saturating_abs().saturating_neg());
        if amount == NanoDollars::ZERO {
            return Err(AdminError::new(AdminCode::Invalid, "a correction of nothing", ""));
        }
        self.move_credit(Grant { amount, ..grant }, actor, now)
    }

    fn move_credit(&self, grant: Grant, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        // One act at a time, so that the second of two acts with one reference finds the first.
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        if let Some(before) = self.used_before(&grant)? {
            if before != grant {
                return Err(AdminError::new(
                    AdminCode::ReferenceUsed,
                    format!("reference {:?} is used by a grant of {}", grant.reference, before.amount),
                    "headrace credit list shows it; choose another reference",
                ));
            }
            let (org, amount, balance) = (grant.org.clone(), grant.amount, self.balance(&grant.org, now)?);
            return Ok(AdminReply::CreditGranted { org, amount, balance, before: true });
        }
        if !self.ledger.projects().iter().any(|(org, _)| *org == grant.org) {
            return Err(headrace_ledger::LedgerRefusal::UnknownOrg { org: grant.org }.into());
        }
        let (org, amount) = (grant.org.clone(), grant.amount);
        let after = self.ledger.health().sequence;
        match self.announce_and_do(&MoneyAct::Grant { grant, after }, actor, now)? {
            Receipt::Granted { balance } => {
                Ok(AdminReply::CreditGranted { org, amount, balance, before: false })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Sets or removes a budget.
    pub(super) fn budget(
        &self,
        project: ProjectId,
        budget: Option<ProjectBudget>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        let org = self.org_of(&project)?;
        self.announce_and_do(&MoneyAct::Budget { org, project: project.clone(), budget }, actor, now)?;
        Ok(AdminReply::BudgetSet { project })
    }

    /// Sets the ledger's time back to the clock's.
    pub(super) fn set_clock(&self, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        let from = self.ledger.time();
        if from <= now {
            return Err(AdminError::new(
                AdminCode::Invalid,
                "the ledger is not ahead of this machine's clock: there is nothing to set back",
                "where the server runs on a clock that is ahead, set that clock right and start it again first",
            ));
        }
        match self.announce_and_do(&MoneyAct::Clock { from }, actor, now)? {
            Receipt::ClockSet { from, to } => Ok(AdminReply::LedgerClockSet { from, to }),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists grants and corrections, newest first, of all organisations or of one.
    pub(super) fn grants(&self, org: Option<&OrgId>) -> Result<AdminReply, AdminError> {
        let mut rows = Vec::new();
        for act in [GRANT, CORRECT] {
            rows.extend(self.directory.audit_of(act, org.map(OrgId::as_str), MAX_GRANTS)?);
        }
        let refused = self.refused_rows()?;
        rows.retain(|row| !refused.contains(&row.seq));
        rows.sort_by_key(|row| std::cmp::Reverse(row.seq));
        let view = |AuditRow { entry, .. }: AuditRow| {
            let Grant { org, amount, kind, reference } = Grant::from_audit_entry(&entry)?;
            Some(GrantView { at: entry.at, actor: entry.actor, org, amount, kind, reference })
        };
        Ok(AdminReply::Grants(rows.into_iter().filter_map(view).collect()))
    }

    /// Finishes acts that a crash or a failed journal left announced. Concludes those that the ledger has, and does the
    /// others.
    pub(super) fn finish_announced(&self, now: UnixNanos) -> Result<(), AdminError> {
        let announced = self.directory.announced()?;
        if let (Some(why), false) = (self.ledger.health().down, announced.is_empty()) {
            return Err(headrace_ledger::LedgerRefusal::Unavailable { why }.into());
        }
        if !announced.is_empty() {
            // A batch whose outcome was unknown is in the journal afterwards, or never will be.
            let decided = self.ledger.transact(Vec::new(), now).durable.wait();
            decided.map_err(|failed| AdminError::new(UNDECIDED, failed.to_string(), "try again"))?;
        }
        for (row, act) in announced {
            let act: MoneyAct = serde_json::from_str(&act).map_err(|error| {
                AdminError::new(
                    AdminCode::Internal,
                    format!("row {row} of the audit log announces: {error}"),
                    "",
                )
            })?;
            let there = match &act {
                MoneyAct::Grant { grant: Grant { org, amount, kind, reference }, after } => {
                    let found = self.ledger.has_grant(*after, org, *kind, *amount, reference);
                    found.map_err(|error| {
                        let remedy = "see that its file can be read";
                        AdminError::new(AdminCode::LedgerUnavailable, error.to_string(), remedy)
                    })?
                }
                MoneyAct::Budget { .. } | MoneyAct::BudgetRule { .. } | MoneyAct::BudgetRaise { .. } => false,
                MoneyAct::BudgetRemoved { name } => {
                    !self.ledger.budgets(now).iter().any(|report| report.rule.name == *name)
                }
                MoneyAct::Clock { .. } => self.ledger.time() <= now,
            };
            if there {
                self.directory.conclude(row, None)?;
            } else if let Err(error) = self.carry_out(row, &act, "after a failure", now) {
                // A refused act is concluded too. If the ledger cannot be written, the remaining acts wait.
                if error.code == UNDECIDED {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(super) fn announce_and_do(
        &self,
        act: &MoneyAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<Receipt, AdminError> {
        let text = serde_json::to_string(act);
        let text = text.map_err(|error| AdminError::new(AdminCode::Internal, error.to_string(), ""))?;
        let row = self.directory.announce(&act.entry(actor, now), &text)?;
        self.carry_out(row, act, actor, now)
    }

    /// Does the act that a row announces, and concludes it, unless the ledger leaves open whether it is done.
    fn carry_out(
        &self,
        row: u64,
        act: &MoneyAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<Receipt, AdminError> {
        let transacted = self.ledger.transact(vec![act.command()], now);
        transacted.durable.wait().map_err(|failed| {
            let remedy = "see that the disk has space; do not repeat it: it is in the audit log, and finished as soon as the ledger can be written";
            AdminError::new(UNDECIDED, failed.to_string(), remedy)
        })?;
        let verdict = transacted.verdicts.into_iter().next();
        let verdict =
            verdict.ok_or_else(|| AdminError::new(AdminCode::Internal, "the ledger gave no verdict", ""))?;
        let done = verdict.into_result().map_err(AdminError::from);
        let not_done = done.as_ref().err().map(|error| {
            let detail = format!("row {row} did not happen: {}", error.message);
            AuditEntry { act: NOT_DONE.to_owned(), detail, ..act.entry(actor, now) }
        });
        match self.directory.conclude(row, not_done.as_ref()) {
            Ok(()) => done,
            // The act is done, so the failed conclusion is not reported. The next run concludes it.
            Err(_) if done.is_ok() => done,
            Err(error) => done.map_err(|_| error.into()),
        }
    }

    /// Returns the organisation's grant or correction with the same reference.
    fn used_before(&self, grant: &Grant) -> Result<Option<Grant>, AdminError> {
        if grant.reference.is_empty() {
            return Ok(None);
        }
        let refused = self.refused_rows()?;
        let rows = self.directory.audit_of(grant.act(), Some(grant.org.as_str()), usize::MAX)?;
        let mut grants = rows
            .iter()
            .filter(|row| !refused.contains(&row.seq))
            .filter_map(|row| Grant::from_audit_entry(&row.entry));
        Ok(grants.find(|before| before.reference == grant.reference))
    }

    /// Returns the numbers of rows whose act the ledger refused.
    fn refused_rows(&self) -> Result<std::collections::HashSet<u64>, AdminError> {
        let rows = self.directory.audit_of(NOT_DONE, None, usize::MAX)?;
        let number = |row: &AuditRow| row.entry.detail.strip_prefix("row ")?.split(' ').next()?.parse().ok();
        Ok(rows.iter().filter_map(number).collect())
    }

    fn balance(&self, org: &OrgId, now: UnixNanos) -> Result<NanoDollars, AdminError> {
        let projects = self.ledger.projects();
        let standing = projects.iter().find(|(owner, _)| owner == org);
        let standing = standing.and_then(|(org, project)| self.ledger.standing_at(org, project, now));
        Ok(standing.map_or(NanoDollars::ZERO, |standing| standing.balance))
    }
}
