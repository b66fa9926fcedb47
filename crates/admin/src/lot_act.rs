//! Commands about lots, contracts and free tiers as serializable data, and what they answer. Contains no decisions.

use std::sync::Arc;

use headrace_domain::{BudgetName, ModelName, NanoDollars, OrgId, ProjectId, UnixNanos};
use headrace_ledger::{FreeTier, FreeTierReport, LotId, LotKind, LotReport, LowBalance};
use serde::{Deserialize, Serialize};

use crate::budget_act::BudgetCounterView;

/// A command about lots, contracts or free tiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum LotAct {
    /// Lists the lots that have not ended, of all organisations or of one.
    List {
        /// Only of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Makes a lot.
    Make {
        /// The organisation.
        org: OrgId,
        /// The lot.
        lot: NewLot,
    },
    /// Ends a lot. What is left of it is expired money.
    End {
        /// The lot.
        lot: LotId,
    },
    /// Records a payment of what an organisation owes under its contracts.
    Pay {
        /// The organisation.
        org: OrgId,
        /// The amount, more than zero and at most what is owed.
        amount: NanoDollars,
        /// A reference to find the payment by. The same reference again is the same payment.
        reference: String,
    },
    /// Sets what happens to a project's calls that the money does not cover.
    SetLowBalance {
        /// The project.
        project: ProjectId,
        /// The policy.
        policy: LowBalance,
    },
    /// Lists free tiers with their use.
    ListFree,
    /// Sets a free tier, or changes the one with the same name.
    SetFree {
        /// The free tier.
        tier: FreeTier,
    },
    /// Removes a free tier.
    RemoveFree {
        /// The free tier.
        name: BudgetName,
    },
}

/// A lot to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewLot {
    /// The kind.
    pub kind: LotKind,
    /// The amount, more than zero. Of a contract: the most that the organisation may owe.
    pub amount: NanoDollars,
    /// When calls begin to draw from it. `None` for now.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub begins: Option<UnixNanos>,
    /// When it ends. `None` for never.
    #[serde(default, with = "headrace_domain::rfc3339::option")]
    pub ends: Option<UnixNanos>,
    /// The only models whose calls draw from it. `None` for all.
    #[serde(default)]
    pub models: Option<Arc<[ModelName]>>,
    /// A reference to find the lot by. The same reference again is the same lot.
    pub reference: String,
}

/// The reply to a command about lots, contracts or free tiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "of", rename_all = "snake_case")]
pub enum LotReply {
    /// Lots, in the order in which they were made.
    Lots(Vec<LotReport>),
    /// A lot was made, now or before.
    Made {
        /// The lot.
        lot: LotReport,
        /// Whether the same lot was made before under this reference.
        before: bool,
    },
    /// A lot was ended.
    Ended {
        /// The lot.
        lot: LotId,
        /// What was left of it.
        left: NanoDollars,
    },
    /// A payment was recorded, now or before.
    Paid {
        /// The organisation.
        org: OrgId,
        /// The amount.
        amount: NanoDollars,
        /// What the organisation owes now, with what its calls in flight hold.
        owed: NanoDollars,
        /// Whether the same payment was recorded before under this reference.
        before: bool,
    },
    /// The policy of a project was set.
    LowBalanceSet {
        /// The project.
        project: ProjectId,
        /// The policy.
        policy: LowBalance,
    },
    /// Free tiers, by name.
    FreeTiers(Vec<FreeTierView>),
    /// A free tier was set.
    FreeSet(FreeTierView),
    /// A free tier was removed.
    FreeRemoved(BudgetName),
}

/// A free tier with its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeTierView {
    /// The free tier.
    #[serde(flatten)]
    pub tier: FreeTier,
    /// The use of the current window, by subject.
    pub counters: Vec<BudgetCounterView>,
}

impl From<FreeTierReport> for FreeTierView {
    fn from(of: FreeTierReport) -> Self {
        let FreeTierReport { tier, counters } = of;
        Self { tier, counters: counters.into_iter().map(Into::into).collect() }
    }
}
