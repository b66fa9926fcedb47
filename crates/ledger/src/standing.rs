//! Read-only views of the state: standings, holds and totals.

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::calendar::MonthNumber;
use crate::command::{BudgetPeriod, LowBalance, ProjectBudget};
use crate::refusal::HoldResolution;
use crate::state::{LedgerState, OrgAccount};
use crate::transaction::HoldTaken;

/// The amounts that an organisation and a project can spend, for checks before any work and for display. Only a hold
/// decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendableBalance {
    /// The organisation's money, including held money and what its live lots have left.
    pub balance: NanoDollars,
    /// The amount held by its calls in flight.
    pub held: NanoDollars,
    /// The amount that it can still hold, from its balance and its live lots.
    pub available: NanoDollars,
    /// The part of it that is in lots. Some of them may be for some models only.
    pub in_lots: NanoDollars,
    /// The amount that it can still hold under contracts.
    pub credit: NanoDollars,
    /// The amount that its ended calls owe under contracts.
    pub owed: NanoDollars,
    /// The amount that its calls in flight hold under contracts.
    pub held_credit: NanoDollars,
    /// Whether a free tier may cover its calls. `false` if it has money or credit, because nothing depends on it then.
    pub may_be_free: bool,
    /// What happens to the project's calls that the money does not cover.
    pub low_balance: LowBalance,
    /// The amount spent by the project since it was opened, regardless of its budget's period.
    pub spent: NanoDollars,
    /// The remaining budget of the project. `None` without a budget.
    pub budget_left: Option<NanoDollars>,
    /// The state of the budget. `None` without a budget.
    pub budget: Option<BudgetStanding>,
}

/// The state of a project's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetStanding {
    /// The budget.
    pub budget: ProjectBudget,
    /// The amount spent in the budget's period.
    pub spent: NanoDollars,
    /// The amount held by the project's calls in flight.
    pub held: NanoDollars,
    /// The end of the period. `None` for a total budget.
    pub resets: Option<UnixNanos>,
}

/// The state of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldView {
    /// The hold is open.
    Open(HoldTaken),
    /// The hold is settled or released.
    Resolved(HoldResolution),
}

/// Totals over the whole ledger. The ten amounts sum to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerTotals {
    /// Money paid in by customers, as zero or a negative amount.
    pub paid_in: NanoDollars,
    /// Money given away, as zero or a negative amount.
    pub promotional: NanoDollars,
    /// Usage at list price, including usage that was written off.
    pub revenue: NanoDollars,
    /// Usage that was written off, as zero or a negative amount.
    pub loss: NanoDollars,
    /// Charges that were given back, as zero or a negative amount.
    pub refunded: NanoDollars,
    /// What was left of lots when they ended, as zero or a positive amount.
    pub expired: NanoDollars,
    /// What organisations owe under contracts, as zero or a negative amount.
    pub receivable: NanoDollars,
    /// Customers' money in lots.
    pub in_lots: NanoDollars,
    /// Customers' money that is not held and not in lots.
    pub available: NanoDollars,
    /// Money held by calls in flight.
    pub held: NanoDollars,
    /// The number of organisations.
    pub orgs: u64,
    /// The number of projects.
    pub projects: u64,
    /// The number of holds that are open now.
    pub open_holds: u64,
    /// The number of all holds ever taken.
    pub holds: u64,
    /// The number of holds ever settled.
    pub settled: u64,
    /// The number of holds ever released without a charge.
    pub released: u64,
    /// The number of all transactions.
    pub transactions: u64,
}

impl LedgerState {
    pub(crate) fn standing(
        &self,
        org: &OrgId,
        project_id: &ProjectId,
        now: UnixNanos,
    ) -> Option<SpendableBalance> {
        let project = self.projects.get(project_id).filter(|p| p.org == *org)?;
        let account = *self.orgs.at(project.org_place)?;
        let OrgAccount { available, held, held_free, held_credit, .. } = account;
        let held = held.saturating_sub(held_free).saturating_sub(held_credit);
        let (in_lots, credit) = self.lots.usable(org, now);
        let available = available.saturating_add(in_lots.get());
        let budget = project.budget.map(|budget| BudgetStanding {
            budget,
            spent: NanoDollars::new(project.spent_in(budget.period, now)),
            held: NanoDollars::new(project.held),
            resets: resets(budget.period, now),
        });
        let left = |b: BudgetStanding| {
            b.budget.limit.get().saturating_sub(b.spent.get()).saturating_sub(b.held.get()).max(0)
        };
        Some(SpendableBalance {
            balance: NanoDollars::new(available.saturating_add(held)),
            held: NanoDollars::new(held),
            available: NanoDollars::new(available),
            in_lots,
            credit,
            owed: NanoDollars::new(account.debt()),
            held_credit: NanoDollars::new(held_credit),
            low_balance: project.low_balance,
            may_be_free: available <= 0 && credit.get() <= 0 && self.free_tiers.may_cover(org, project_id),
            spent: NanoDollars::new(project.spent),
            budget_left: budget.map(left).map(NanoDollars::new),
            budget,
        })
    }

    pub(crate) fn hold(&self, hold: &HoldId) -> Option<HoldView> {
        let open = self.held(hold).map(HoldView::Open);
        open.or_else(|| self.resolved.get(hold).map(HoldView::Resolved))
    }

    /// Whether a hold is open, or remembered as resolved.
    pub(crate) fn knows(&self, hold: &HoldId) -> bool {
        self.open.contains_key(hold) || self.resolved.get(hold).is_some()
    }

    pub(crate) fn totals(&self) -> LedgerTotals {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        LedgerTotals {
            paid_in: NanoDollars::new(self.platform.paid_in),
            promotional: NanoDollars::new(self.platform.promotional),
            revenue: NanoDollars::new(self.platform.revenue),
            loss: NanoDollars::new(self.platform.loss),
            refunded: NanoDollars::new(self.platform.refunded),
            expired: NanoDollars::new(self.platform.expired),
            receivable: NanoDollars::new(self.receivable_total),
            in_lots: NanoDollars::new(self.lots.total),
            available: NanoDollars::new(self.available_total),
            held: NanoDollars::new(self.held_total),
            orgs: count(self.orgs.len()),
            projects: count(self.projects.len()),
            open_holds: count(self.open.len()),
            holds: self.counts.holds,
            settled: self.counts.settled,
            released: self.counts.released,
            transactions: self.counts.transactions,
        }
    }
}

/// Returns the end of a budget's period, or `None` for a total budget.
pub(crate) fn resets(period: BudgetPeriod, now: UnixNanos) -> Option<UnixNanos> {
    match period {
        BudgetPeriod::Total => None,
        BudgetPeriod::Month => Some(MonthNumber::of(now).end()),
    }
}
