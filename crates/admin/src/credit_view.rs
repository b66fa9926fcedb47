//! Balances and budgets of projects as serializable data.

use headrace_domain::{NanoDollars, OrgId, ProjectId, UnixNanos};
use headrace_ledger::{LowBalance, ProjectBudget, SpendableBalance};
use serde::{Deserialize, Serialize};

/// The balance and budget of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditView {
    /// The organisation that pays.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The organisation's balance, money held included.
    pub balance: NanoDollars,
    /// The amount that the organisation's calls in flight hold.
    pub held: NanoDollars,
    /// The amount that further calls of the organisation can hold.
    pub available: NanoDollars,
    /// The part of it that is in lots. Some of them may be for some models only.
    #[serde(default)]
    pub in_lots: NanoDollars,
    /// The amount that the organisation can still use under contracts.
    #[serde(default)]
    pub credit: NanoDollars,
    /// The amount that it owes under contracts, with what its calls in flight hold.
    #[serde(default)]
    pub owed: NanoDollars,
    /// What happens to the project's calls that the money does not cover.
    #[serde(default)]
    pub low_balance: LowBalance,
    /// Spent by the project since it was opened.
    #[serde(default)]
    pub spent: NanoDollars,
    /// The project's budget.
    pub budget: Option<BudgetView>,
}

/// The state of a project's budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetView {
    /// The budget.
    pub budget: ProjectBudget,
    /// Spent in the budget's period.
    pub spent: NanoDollars,
    /// Held by the project's calls in flight.
    pub held: NanoDollars,
    /// The part of the budget that is left.
    pub left: NanoDollars,
    /// When the period ends. `None` for a total budget.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub resets: Option<UnixNanos>,
}

impl CreditView {
    pub(crate) fn new(org: OrgId, project: ProjectId, standing: &SpendableBalance) -> Self {
        let budget = standing.budget.map(|of| BudgetView {
            budget: of.budget,
            spent: of.spent,
            held: of.held,
            left: standing.budget_left.unwrap_or_default(),
            resets: of.resets,
        });
        Self {
            org,
            project,
            balance: standing.balance,
            held: standing.held,
            available: standing.available,
            in_lots: standing.in_lots,
            credit: standing.credit,
            owed: standing.owed,
            low_balance: standing.low_balance,
            spent: standing.spent,
            budget,
        }
    }
}
