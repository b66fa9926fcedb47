//! Acts on money. Each act is announced in the audit log before it is done in the ledger, and concluded afterwards. So
//! an act that a crash interrupted is found and finished. Must not know where the two logs are stored.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{AdminCode, BudgetName, NanoDollars, OrgId, ProjectId, UnixNanos};
use headrace_identity::{AuditEntry, AuditRow};
use headrace_ledger::{
    BudgetPeriod, BudgetRaise, BudgetRule, FreeTier, GrantKind, JournalEvent, LedgerOperation, LotId,
    LotTerms, LowBalance, ProjectBudget, Receipt, RefundableCharge,
};
use serde::{Deserialize, Serialize};

use super::{AdminService, unexpected};
use crate::command::{AdminReply, GrantView};
use crate::error::AdminError;

/// Names of acts in the audit log.
const GRANT: &str = "credit.grant";
const CORRECT: &str = "credit.correct";
pub(super) const LOT_MAKE: &str = "lot.make";
const LOT_END: &str = "lot.end";
pub(super) const DEBT_PAID: &str = "contract.payment";
const LOW_BALANCE: &str = "low_balance.set";
const FREE_TIER: &str = "free_tier.set";
const FREE_TIER_REMOVE: &str = "free_tier.remove";
const REFUND: &str = "charge.refund";
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
    /// A refund. It is idempotent: the ledger makes it once per reference.
    Refund { charge: RefundableCharge, amount: Option<NanoDollars>, reference: String },
    /// A new lot, and the last row of the journal before it.
    Lot { org: OrgId, terms: Box<LotTerms>, after: u64 },
    /// The end of a lot.
    LotEnded { lot: LotId },
    /// A payment of what an organisation owes, and the last row of the journal before it.
    DebtPaid { org: OrgId, amount: NanoDollars, reference: String, after: u64 },
    /// A project's policy for a low balance. It is idempotent.
    LowBalance { org: OrgId, project: ProjectId, policy: LowBalance },
    /// A free tier. It is idempotent.
    FreeTier { tier: Box<FreeTier> },
    /// The removal of a free tier.
    FreeTierRemoved { name: BudgetName },
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
            Self::Refund { charge, amount, reference } => {
                (REFUND, charge.org.to_string(), refund_detail(charge, *amount, reference))
            }
            Self::Lot { org, .. } => (LOT_MAKE, org.to_string(), self.detail()),
            Self::LotEnded { lot } => (LOT_END, lot.to_string(), String::new()),
            Self::DebtPaid { org, .. } => (DEBT_PAID, org.to_string(), self.detail()),
            Self::LowBalance { project, policy, .. } => {
                let policy = if *policy == LowBalance::Cap { "cap" } else { "refuse" };
                (LOW_BALANCE, project.to_string(), policy.to_owned())
            }
            Self::FreeTier { tier } => (FREE_TIER, tier.rule.name.to_string(), free_tier_detail(tier)),
            Self::FreeTierRemoved { name } => (FREE_TIER_REMOVE, name.to_string(), String::new()),
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

    /// The details of a lot or a payment in the audit log. They end with the reference.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Lot { terms, .. } => {
                let LotTerms { kind, amount, begins, ends, models, reference } = &**terms;
                let ends = ends.map_or_else(|| "never".to_owned(), |ends| Rfc3339(ends).to_string());
                let models = models.iter().flat_map(|models| models.iter());
                let models: Vec<&str> = models.map(|model| model.as_str()).collect();
                let models = if models.is_empty() { "all".to_owned() } else { models.join(" ") };
                let (kind, begins, reference) = (kind.name(), Rfc3339(*begins), reference_detail(reference));
                format!("{amount} {kind}, begins {begins}, ends {ends}, models {models}{reference}")
            }
            Self::DebtPaid { amount, reference, .. } => format!("{amount}{}", reference_detail(reference)),
            _ => String::new(),
        }
    }

    fn command(&self) -> LedgerOperation {
        match self.clone() {
            Self::Grant { grant: Grant { org, amount, kind, reference }, .. } => {
                LedgerOperation::Grant { org, amount, kind, reference }
            }
            Self::Budget { org, project, budget } => LedgerOperation::SetBudget { org, project, budget },
            Self::Refund { charge, amount, reference } => {
                LedgerOperation::Refund { charge: Box::new(charge), amount, reference }
            }
            Self::Lot { org, terms, .. } => LedgerOperation::MakeLot { org, terms },
            Self::LotEnded { lot } => LedgerOperation::EndLot { lot },
            Self::DebtPaid { org, amount, reference, .. } => {
                LedgerOperation::PayDebt { org, amount, reference }
            }
            Self::LowBalance { org, project, policy } => {
                LedgerOperation::SetLowBalance { org, project, policy }
            }
            Self::FreeTier { tier } => LedgerOperation::SetFreeTier { tier },
            Self::FreeTierRemoved { name } => LedgerOperation::RemoveFreeTier { name },
            Self::Clock { .. } => LedgerOperation::SetClock,
            Self::BudgetRule { rule } => LedgerOperation::SetBudgetRule { rule },
            Self::BudgetRaise { name, raise } => LedgerOperation::RaiseBudget { name, raise },
            Self::BudgetRemoved { name } => LedgerOperation::RemoveBudgetRule { name },
        }
    }
}

/// The end of the details of an act with a reference.
pub(super) fn reference_detail(reference: &str) -> String {
    format!(", reference {}", serde_json::Value::from(reference))
}

fn free_tier_detail(tier: &FreeTier) -> String {
    let models = tier.models.iter().flat_map(|models| models.iter());
    let models: Vec<&str> = models.map(|model| model.as_str()).collect();
    if models.is_empty() {
        tier.rule.to_string()
    } else {
        format!("{}, models {}", tier.rule, models.join(" "))
    }
}

fn refund_detail(charge: &RefundableCharge, amount: Option<NanoDollars>, reference: &str) -> String {
    let RefundableCharge { hold, project, charged, .. } = charge;
    let amount = amount.map_or_else(|| "all that is left".to_owned(), |amount| amount.to_string());
    let reference = serde_json::Value::from(reference);
    format!("{amount} of {charged} of {hold}, project {project}, reference {reference}")
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
                    self.is_written(*after, &|event| match event {
                        JournalEvent::Granted { org: to, kind: from, amount: granted, reference: named } => {
                            (to, from, granted, &**named) == (org, kind, amount, reference.as_str())
                        }
                        _ => false,
                    })?
                }
                MoneyAct::Refund { charge, reference, .. } => {
                    self.ledger.refund_by_reference(&charge.org, reference).is_some()
                }
                MoneyAct::Lot { org, terms, after } => self.is_written(*after, &|event| match event {
                    JournalEvent::LotMade(lot) => lot.org == *org && lot.terms == **terms,
                    _ => false,
                })?,
                MoneyAct::DebtPaid { org, amount, reference, after } => {
                    self.is_written(*after, &|event| match event {
                        JournalEvent::DebtPaid { org: by, amount: paid, reference: named } => {
                            (by, paid, &**named) == (org, amount, reference.as_str())
                        }
                        _ => false,
                    })?
                }
                MoneyAct::LotEnded { lot } => {
                    !self.ledger.lots(None, UnixNanos::new(0)).iter().any(|of| of.lot.id == *lot)
                }
                MoneyAct::FreeTierRemoved { name } => {
                    !self.ledger.free_tiers(now).iter().any(|report| report.tier.rule.name == *name)
                }
                MoneyAct::Budget { .. }
                | MoneyAct::BudgetRule { .. }
                | MoneyAct::BudgetRaise { .. }
                | MoneyAct::LowBalance { .. }
                | MoneyAct::FreeTier { .. } => false,
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

    /// Whether the journal has such an event after row `after`.
    fn is_written(&self, after: u64, is_it: &dyn Fn(&JournalEvent) -> bool) -> Result<bool, AdminError> {
        let found = self.ledger.history().has_after(after, &|transaction| is_it(&transaction.event));
        found.map_err(|error| {
            let remedy = "see that its file can be read";
            AdminError::new(AdminCode::LedgerUnavailable, error.to_string(), remedy)
        })
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
    pub(super) fn refused_rows(&self) -> Result<std::collections::HashSet<u64>, AdminError> {
        let rows = self.directory.audit_of(NOT_DONE, None, usize::MAX)?;
        let number = |row: &AuditRow| row.entry.detail.strip_prefix("row ")?.split(' ').next()?.parse().ok();
        Ok(rows.iter().filter_map(number).collect())
    }

    pub(super) fn balance(&self, org: &OrgId, now: UnixNanos) -> Result<NanoDollars, AdminError> {
        let projects = self.ledger.projects();
        let standing = projects.iter().find(|(owner, _)| owner == org);
        let standing = standing.and_then(|(org, project)| self.ledger.standing_at(org, project, now));
        Ok(standing.map_or(NanoDollars::ZERO, |standing| standing.balance))
    }
}
