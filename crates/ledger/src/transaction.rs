//! Transactions as the journal records them: an event, and the entries that moved money. Knows neither how an event was
//! decided nor how it is encoded.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};
use smallvec::SmallVec;

use crate::budget_rule::{AlertRaised, BudgetRaise, BudgetReservation, BudgetRule, BudgetedHold};
use crate::command::{
    ChargeLine, GrantKind, LowBalance, Owner, ProjectBudget, ReleaseReason, SettleOutcome, StoredAnswer,
};
use crate::free_tier::FreeTier;
use crate::lot::{CreditLot, HoldFunding, LotId};
use crate::refund::ChargeRefunded;

/// One indivisible change. Its entries sum to zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Ledger time. It is never before that of the previous transaction, unless this transaction sets the clock.
    pub time: UnixNanos,
    /// The event.
    pub event: JournalEvent,
    /// The money movements. No account occurs twice, and amounts of zero are left out.
    pub entries: Entries,
}

/// The entries of a transaction. An event without lots makes at most four.
pub type Entries = SmallVec<[MoneyEntry; 4]>;

/// One movement of money. A positive amount adds to the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoneyEntry {
    /// The account.
    pub account: Account,
    /// The amount.
    pub amount: NanoDollars,
}

/// An account. `PaidIn` and `Promotional` are negative by the amounts that customers paid or were given, `Loss` by the
/// amount written off, `Refunded` by the charges given back, and `Receivable` by the debts of organisations. The sum over
/// all accounts is zero.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Account {
    /// The outside world, from which payments come.
    PaidIn,
    /// The source of credit that is given away.
    Promotional,
    /// Usage at list price, charged or written off.
    Revenue,
    /// Usage that was not charged to a customer.
    Loss,
    /// Charges that were given back.
    Refunded,
    /// What was left of lots when they ended, and what came back to them later.
    Expired,
    /// An organisation's money that is not held. Never negative.
    Available(OrgId),
    /// The amount held by a project's calls in flight. Never negative.
    Held(ProjectId),
    /// The money in a paid or promotional lot. Never negative.
    Lot(LotId),
    /// What an organisation owes under its contracts, as zero or a negative amount, with what its calls in flight hold.
    Receivable(OrgId),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PaidIn => f.write_str("paid-in"),
            Self::Promotional => f.write_str("promotional"),
            Self::Revenue => f.write_str("revenue"),
            Self::Loss => f.write_str("loss"),
            Self::Refunded => f.write_str("refunded"),
            Self::Expired => f.write_str("expired"),
            Self::Available(org) => write!(f, "org/{org}/available"),
            Self::Held(project) => write!(f, "project/{project}/held"),
            Self::Lot(lot) => lot.fmt(f),
            Self::Receivable(org) => write!(f, "org/{org}/receivable"),
        }
    }
}

/// An event that changed the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalEvent {
    /// A project was opened.
    ProjectOpened {
        /// The organisation that pays.
        org: OrgId,
        /// The project.
        project: ProjectId,
    },
    /// Money was granted.
    Granted {
        /// The organisation that received the money.
        org: OrgId,
        /// The source of the money.
        kind: GrantKind,
        /// The amount.
        amount: NanoDollars,
        /// An operator's note.
        reference: Arc<str>,
    },
    /// A budget was set or removed.
    BudgetSet {
        /// The project.
        project: ProjectId,
        /// The new budget. `None` if it was removed.
        budget: Option<ProjectBudget>,
    },
    /// A hold was taken.
    Held(HoldTaken),
    /// A hold was settled.
    Settled(HoldSettled),
    /// A hold was released without a charge.
    Released {
        /// The hold.
        hold: HoldId,
        /// The reason.
        why: ReleaseReason,
    },
    /// A hold was extended.
    Extended {
        /// The hold.
        hold: HoldId,
        /// The additional amount.
        amount: NanoDollars,
        /// What is reserved of budget rules besides what the hold reserved before.
        reservations: Vec<BudgetReservation>,
        /// What it draws from. `None` for the balance alone.
        funding: Option<Box<HoldFunding>>,
    },
    /// Ledger time was set back to the time of this transaction.
    ClockSet {
        /// The previous ledger time, which is the time of the previous transaction.
        from: UnixNanos,
    },
    /// A budget rule was set.
    BudgetRuleSet {
        /// The number of the rule. A rule that counts something else than before has a new one.
        number: u64,
        /// The rule.
        rule: Box<BudgetRule>,
    },
    /// A budget rule was removed.
    BudgetRuleRemoved {
        /// The number of the rule.
        number: u64,
    },
    /// The limit of a budget rule was raised, or the raise was ended.
    BudgetRaised {
        /// The number of the rule.
        number: u64,
        /// The raise. `None` if it was ended.
        raise: Option<BudgetRaise>,
    },
    /// The use of a budget rule reached a threshold.
    AlertRaised(Box<AlertRaised>),
    /// A charge was refunded.
    Refunded(Box<ChargeRefunded>),
    /// A lot was made.
    LotMade(Box<CreditLot>),
    /// A lot ended. What was left of it is expired money.
    LotEnded {
        /// The lot.
        lot: LotId,
    },
    /// An organisation paid what it owed.
    DebtPaid {
        /// The organisation.
        org: OrgId,
        /// The amount.
        amount: NanoDollars,
        /// An operator's note.
        reference: Arc<str>,
    },
    /// The policy of a project for calls that the money does not cover was set.
    LowBalanceSet {
        /// The project.
        project: ProjectId,
        /// The policy.
        policy: LowBalance,
    },
    /// A free tier was set.
    FreeTierSet {
        /// Its number. A free tier that counts something else than before has a new one.
        number: u64,
        /// The free tier.
        tier: Box<FreeTier>,
    },
    /// A free tier was removed.
    FreeTierRemoved {
        /// Its number.
        number: u64,
    },
}

/// A new hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldTaken {
    /// The hold's id.
    pub hold: HoldId,
    /// The organisation that pays.
    pub org: OrgId,
    /// The project whose budget the hold counts against.
    pub project: ProjectId,
    /// The amount.
    pub amount: NanoDollars,
    /// The process that will settle it.
    pub owner: Owner,
    /// The ledger time at which it expires.
    pub expires: UnixNanos,
    /// The claimed idempotency key, and the hash of the request.
    pub claim: Option<(Arc<str>, [u8; 32])>,
    /// What it reserves of budget rules, and the calls in flight that it counts among. `None` if nothing.
    pub budgeted: Option<Box<BudgetedHold>>,
    /// What it draws from. `None` for the balance alone.
    pub funding: Option<Box<HoldFunding>>,
}

/// A settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldSettled {
    /// The hold.
    pub hold: HoldId,
    /// The usage, one line per token class.
    pub lines: Vec<ChargeLine>,
    /// The amount that the customer paid: at most the hold, and at most the sum of the lines.
    pub charged: NanoDollars,
    /// The amount that went to the loss account.
    pub loss: NanoDollars,
    /// How the call ended.
    pub outcome: SettleOutcome,
    /// The answer that is kept for the idempotency key.
    pub answer: Option<Arc<StoredAnswer>>,
}
