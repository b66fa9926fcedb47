//! What the state amounts to for whoever looks: standings, holds and sums. Changes nothing.

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::calendar::Month;
use crate::command::{Budget, BudgetPeriod};
use crate::refusal::Resolution;
use crate::state::{Org, State};
use crate::transaction::Held;

/// What an organisation and a project can spend, for a look before any work and for display. Only a hold decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The organisation's money, held or not.
    pub balance: NanoDollars,
    /// What its calls in flight hold.
    pub held: NanoDollars,
    /// What it can still hold.
    pub available: NanoDollars,
    /// Spent by the project since it was opened, whatever its budget's period is.
    pub spent: NanoDollars,
    /// What the project's budget leaves; `None` without a budget.
    pub budget_left: Option<NanoDollars>,
    /// The budget itself.
    pub budget: Option<BudgetStanding>,
}

/// How a project stands to its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetStanding {
    /// The budget.
    pub budget: Budget,
    /// Spent in its period.
    pub spent: NanoDollars,
    /// Held by the project's calls in flight.
    pub held: NanoDollars,
    /// When the period ends.
    pub resets: Option<UnixNanos>,
}

/// What became of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldView {
    /// It is open.
    Open(Held),
    /// It is settled or released.
    Resolved(Resolution),
}

/// Sums over the whole ledger. The six amounts sum to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Paid in by customers; zero or below.
    pub paid_in: NanoDollars,
    /// Given away; zero or below.
    pub promotional: NanoDollars,
    /// Usage at list price, written-off usage included.
    pub revenue: NanoDollars,
    /// Usage written off; zero or below.
    pub loss: NanoDollars,
    /// Customers' money that is not held.
    pub available: NanoDollars,
    /// Customers' money held by calls in flight.
    pub held: NanoDollars,
    /// Organisations.
    pub orgs: u64,
    /// Projects.
    pub projects: u64,
    /// Holds open now.
    pub open_holds: u64,
    /// Holds ever taken.
    pub holds: u64,
    /// Holds ever settled.
    pub settled: u64,
    /// Holds ever released without a charge.
    pub released: u64,
    /// Transactions ever.
    pub transactions: u64,
}

impl State {
    pub(crate) fn standing(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<Standing> {
        let project = self.projects.get(project).filter(|p| p.org == *org)?;
        let Org { available, held } = *self.orgs.at(project.org_place)?;
        let budget = project.budget.map(|budget| BudgetStanding {
            budget,
            spent: NanoDollars::new(project.spent_in(budget.period, now)),
            held: NanoDollars::new(project.held),
            resets: resets(budget.period, now),
        });
        let left = |b: BudgetStanding| {
            b.budget.limit.get().saturating_sub(b.spent.get()).saturating_sub(b.held.get()).max(0)
        };
        Some(Standing {
            balance: NanoDollars::new(available.saturating_add(held)),
            held: NanoDollars::new(held),
            available: NanoDollars::new(available),
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

    pub(crate) fn totals(&self) -> Totals {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        Totals {
            paid_in: NanoDollars::new(self.house.paid_in),
            promotional: NanoDollars::new(self.house.promotional),
            revenue: NanoDollars::new(self.house.revenue),
            loss: NanoDollars::new(self.house.loss),
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

/// When a budget's period ends.
pub(crate) fn resets(period: BudgetPeriod, now: UnixNanos) -> Option<UnixNanos> {
    match period {
        BudgetPeriod::Total => None,
        BudgetPeriod::Month => Some(Month::of(now).end()),
    }
}
