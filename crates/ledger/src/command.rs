//! The commands of the ledger and the receipts for them, as plain data. Makes no decisions; `core` does.

use std::sync::Arc;

use headrace_domain::{
    BudgetName, HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass,
    UnixNanos,
};
use serde::{Deserialize, Serialize};

use crate::budget_rule::{BudgetRaise, BudgetRule, HoldDemand, ModelDemand};
use crate::free_tier::{FreeLeft, FreeTier};
use crate::lot::{LotId, LotTerms};
use crate::refund::RefundableCharge;

/// One command. The commands of a batch are decided in order, each on the outcome of the earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerOperation {
    /// Opens a project, and its organisation if that does not exist yet. Idempotent.
    OpenProject {
        /// The organisation that pays.
        org: OrgId,
        /// The project, unique across organisations.
        project: ProjectId,
    },
    /// Adds money to an organisation's balance, or takes back money that was added by mistake.
    Grant {
        /// The organisation that receives the money.
        org: OrgId,
        /// The amount. A negative amount is taken back; it is limited to the money that is there and not held.
        amount: NanoDollars,
        /// The source of the money.
        kind: GrantKind,
        /// A reference for operators, such as a payment's id or a ticket. At most 256 bytes.
        reference: String,
    },
    /// Sets or removes a project's budget. Money spent before counts, too.
    SetBudget {
        /// The organisation that the project belongs to.
        org: OrgId,
        /// The project.
        project: ProjectId,
        /// The new budget; `None` removes it.
        budget: Option<ProjectBudget>,
    },
    /// Sets a budget rule, or changes the one with the same name. Counters stay if only limit, hardness, thresholds and
    /// origin change. Holds that were taken before do not count.
    SetBudgetRule {
        /// The rule.
        rule: Box<BudgetRule>,
    },
    /// Removes a budget rule and its counters.
    RemoveBudgetRule {
        /// The name of the rule.
        name: BudgetName,
    },
    /// Raises the limit of a budget rule until a time, or ends the raise.
    RaiseBudget {
        /// The name of the rule.
        name: BudgetName,
        /// The raise. `None` ends the one in force.
        raise: Option<BudgetRaise>,
    },
    /// Makes a lot: money that is limited in time or to some models, or a contract that is paid later.
    MakeLot {
        /// The organisation.
        org: OrgId,
        /// The terms.
        terms: Box<LotTerms>,
    },
    /// Ends a lot. What is left of it is expired money.
    EndLot {
        /// The lot.
        lot: LotId,
    },
    /// Records a payment of what an organisation owes under its contracts.
    PayDebt {
        /// The organisation.
        org: OrgId,
        /// The amount, more than zero and at most what is owed.
        amount: NanoDollars,
        /// A reference for operators, such as an invoice. At most 256 bytes.
        reference: String,
    },
    /// Sets what happens to a project's calls that the money does not cover.
    SetLowBalance {
        /// The organisation that the project belongs to.
        org: OrgId,
        /// The project.
        project: ProjectId,
        /// The policy.
        policy: LowBalance,
    },
    /// Sets a free tier, or changes the one with the same name. Counters stay if only the amount, the models or the origin
    /// change.
    SetFreeTier {
        /// The free tier.
        tier: Box<FreeTier>,
    },
    /// Removes a free tier and its counters.
    RemoveFreeTier {
        /// The name of the free tier.
        name: BudgetName,
    },
    /// Reserves the maximum cost of a call.
    Hold {
        /// The hold's id, which was never used before.
        hold: HoldId,
        /// The organisation that pays.
        org: OrgId,
        /// The project whose budget the hold counts against.
        project: ProjectId,
        /// The maximum cost of the call. Zero for a free model.
        amount: NanoDollars,
        /// The process that will settle it.
        owner: Owner,
        /// When the hold is released if it was not settled, on the clock that gives `now`.
        expires: UnixNanos,
        /// The client's idempotency key, if it sent one.
        idempotency: Option<IdempotencyClaim>,
        /// What the call asks of budget rules. `None` for a hold without a call: only its money counts then.
        demand: Option<HoldDemand>,
    },
    /// Holds more under the same hold, for a call that costs more than expected or goes over to another model. It can be
    /// refused like a hold. The hold then stays unchanged.
    Extend {
        /// The hold to extend.
        hold: HoldId,
        /// The additional amount. It may be zero only if the call goes over to another model.
        amount: NanoDollars,
        /// The model that the call goes over to, whose budgets must have room. `None` if the model stays.
        model: Option<Box<ModelDemand>>,
    },
    /// Ends a hold by charging for the usage. The charge never exceeds the hold. If the lines exceed it, the rest goes
    /// to the loss account. A *failed* call with an idempotency key is not charged, because its key is free again and
    /// the retry will be charged. Its lines go to the loss account.
    Settle {
        /// The hold to settle.
        hold: HoldId,
        /// The charges, one line per token class. Each amount is its price times its tokens, rounded to nearest.
        lines: Vec<ChargeLine>,
        /// Usage that is not charged, at list price. It goes to the loss account.
        loss: NanoDollars,
        /// How the call ended.
        outcome: SettleOutcome,
        /// The answer to replay for the same idempotency key. It is kept only if the hold claimed a key and the outcome
        /// is `Completed`.
        answer: Option<StoredAnswer>,
    },
    /// Ends a hold without a charge.
    Release {
        /// The hold to release.
        hold: HoldId,
        /// The reason.
        why: ReleaseReason,
    },
    /// Gives back a part of a charge, or all of it. The same reference again is the same refund.
    Refund {
        /// The charge, as the journal has it.
        charge: Box<RefundableCharge>,
        /// The amount, more than zero. `None` for all that was not refunded before.
        amount: Option<NanoDollars>,
        /// A reference for operators, unique among the refunds of the organisation. 1 to 256 bytes.
        reference: String,
    },
    /// Releases the holds of processes that have ended, without a charge. The holds of all other owners stay.
    ReleaseOwners {
        /// The owners that have ended.
        ended: Vec<Owner>,
    },
    /// Releases the holds whose expiry has passed, without a charge. A ledger that several gateways share releases only
    /// those of the gateway that asks.
    ExpireHolds,
    /// Sets ledger time back to the caller's `now`, after it ran on a clock that was ahead. Holds and idempotency keys
    /// keep their remaining time. Money spent in a month that lies ahead counts in the current month.
    SetClock,
}

/// A process that takes holds. Each start of a process is a new owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u128);

impl Owner {
    /// Creates an owner from an instance id. No other process and no earlier start of this process may have the same
    /// id.
    pub const fn new(instance: u128) -> Self {
        Self(instance)
    }

    /// The instance id.
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// The source of granted money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantKind {
    /// Paid in by the customer.
    Paid,
    /// A gift: play credit, a goodwill refund.
    Promotional,
}

/// The maximum amount that a project may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectBudget {
    /// The limit in nano-dollars. Zero stops the project.
    pub limit: NanoDollars,
    /// The period over which the limit applies.
    pub period: BudgetPeriod,
}

/// What happens to a call that the money does not cover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LowBalance {
    /// The call is refused.
    #[default]
    Refuse,
    /// The call gets as many tokens as the money covers, if that is one at least.
    Cap,
}

/// The period of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    /// All time.
    Total,
    /// The calendar month, UTC.
    Month,
}

/// An idempotency key as the client sent it, with the hash of the request. Its scope is the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyClaim {
    /// The key, 1 to 255 bytes.
    pub key: String,
    /// The hash of the request's content. A repeated key with another hash is refused.
    pub request_hash: [u8; 32],
}

/// One line of a bill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeLine {
    /// The dated model that served the tokens.
    pub model: ModelName,
    /// The class of the tokens.
    pub class: TokenClass,
    /// The number of tokens.
    pub tokens: u64,
    /// The price that applied to them.
    pub price: NanoDollarsPerMillion,
    /// Price times tokens, rounded once to the nearest nano-dollar.
    pub amount: NanoDollars,
}

/// The outcome of a settled call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleOutcome {
    /// The call ran to its end.
    Completed,
    /// The client disconnected.
    Cancelled,
    /// An upstream or this program failed.
    Failed,
}

/// The reason for releasing a hold without a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseReason {
    /// A later stage refused the call before any work.
    Refused,
    /// The call failed before the client received anything.
    Failed,
    /// The client disconnected before any work. No call uses this reason yet, but the journal has a code for it.
    Cancelled,
    /// The call goes to another model and takes a new hold. No call uses this reason yet, but the journal has a code
    /// for it.
    Rerouted,
    /// The owner process ended without settling the hold.
    Orphaned,
    /// The hold was not settled in time.
    Expired,
}

/// An answer that is kept for 24 hours to be replayed byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The value of the `content-type` header.
    pub content_type: String,
    /// The body, at most [`crate::MAX_ANSWER_BYTES`]. A longer body is not kept. A repeat of its key is then refused
    /// with [`crate::LedgerRefusal::IdempotencyReplay`] without an answer.
    pub body: Arc<[u8]>,
}

/// The result of a successful command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// The project is open.
    ProjectOpened {
        /// Whether the project was created by this command.
        created: bool,
    },
    /// The money is in the balance.
    Granted {
        /// The organisation's new balance, including held money.
        balance: NanoDollars,
    },
    /// The budget is set or removed.
    BudgetSet,
    /// The budget rule is set, raised or removed.
    BudgetRuleChanged {
        /// Whether the rule was different before.
        changed: bool,
    },
    /// The money is held.
    Held {
        /// The hold.
        hold: HoldId,
        /// The amount that is held.
        amount: NanoDollars,
        /// The amount that the organisation can still hold.
        available: NanoDollars,
        /// What is left of a free tier that covers the call. `None` if none does.
        free: Option<Box<FreeLeft>>,
    },
    /// More money is held.
    Extended {
        /// The hold.
        hold: HoldId,
        /// The total amount that is held now.
        amount: NanoDollars,
        /// The amount that the organisation can still hold.
        available: NanoDollars,
    },
    /// The hold is settled.
    Settled {
        /// The hold.
        hold: HoldId,
        /// The amount that the customer paid.
        charged: NanoDollars,
        /// The amount that went back from the hold to the balance.
        returned: NanoDollars,
        /// The amount that went to the loss account, including `exceeded`.
        loss: NanoDollars,
        /// The amount by which the lines exceeded the hold. A value above zero is a bug in the calculation of the hold.
        exceeded: NanoDollars,
        /// Whether the answer is kept for the idempotency key.
        answer_kept: bool,
    },
    /// The hold is released.
    Released {
        /// The hold.
        hold: HoldId,
        /// The amount that went back to the balance.
        returned: NanoDollars,
    },
    /// A lot is made.
    LotMade {
        /// The lot.
        lot: LotId,
    },
    /// A lot is ended.
    LotEnded {
        /// The lot.
        lot: LotId,
        /// What was left of it.
        left: NanoDollars,
    },
    /// A payment is recorded.
    DebtPaid {
        /// The amount that the organisation owes now.
        owed: NanoDollars,
    },
    /// The policy of a project is set.
    LowBalanceSet,
    /// A free tier is set or removed.
    FreeTierChanged {
        /// Whether it was different before.
        changed: bool,
    },
    /// A charge was refunded.
    Refunded {
        /// The hold whose charge was refunded.
        hold: HoldId,
        /// The amount that this refund gave back.
        amount: NanoDollars,
        /// The amount of the charge that can still be refunded.
        left: NanoDollars,
        /// Whether the same refund was made before under this reference, so that nothing was given back now.
        before: bool,
    },
    /// Ledger time was set back.
    ClockSet {
        /// The time before.
        from: UnixNanos,
        /// The time now.
        to: UnixNanos,
    },
    /// Several holds were released.
    ReleasedMany {
        /// The released holds.
        holds: Vec<HoldId>,
        /// The total amount that went back to balances.
        returned: NanoDollars,
    },
}
