//! What happened, as it stands in the journal: an event and the entries by which it moved money.
//! Knows neither how it was decided nor how it is encoded.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};
use smallvec::SmallVec;

use crate::command::{Budget, ChargeLine, GrantKind, Owner, ReleaseReason, SettleOutcome, StoredAnswer};

/// One indivisible change. Its entries sum to zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Ledger time: never before the transaction that precedes it, unless this one sets the clock.
    pub time: UnixNanos,
    /// What happened.
    pub event: Event,
    /// How money moved. No account stands in it twice; amounts of zero are left out.
    pub entries: Entries,
}

/// The entries of a transaction: no event makes more than four.
pub type Entries = SmallVec<[Entry; 4]>;

/// One movement: more than zero adds to the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub account: Account,
    /// How much.
    pub amount: NanoDollars,
}

/// Where money can be. What customers paid and were given stands below zero in `PaidIn` and `Promotional`, what was
/// written off below zero in `Loss`; the sum over all accounts is zero.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Account {
    /// The world outside, from which payments come.
    PaidIn,
    /// The purse from which credit is given away.
    Promotional,
    /// Usage at list price, charged or written off.
    Revenue,
    /// Usage that nobody was charged for.
    Loss,
    /// An organisation's money that is not held. Never below zero.
    Available(OrgId),
    /// What a project's calls in flight hold. Never below zero.
    Held(ProjectId),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PaidIn => f.write_str("paid-in"),
            Self::Promotional => f.write_str("promotional"),
            Self::Revenue => f.write_str("revenue"),
            Self::Loss => f.write_str("loss"),
            Self::Available(org) => write!(f, "org/{org}/available"),
            Self::Held(project) => write!(f, "project/{project}/held"),
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A project was opened.
    ProjectOpened {
        /// Who pays.
        org: OrgId,
        /// The project.
        project: ProjectId,
    },
    /// Money was granted.
    Granted {
        /// To whom.
        org: OrgId,
        /// From where.
        kind: GrantKind,
        /// How much.
        amount: NanoDollars,
        /// An operator's note.
        reference: Arc<str>,
    },
    /// A budget was set or removed.
    BudgetSet {
        /// Whose.
        project: ProjectId,
        /// The new one.
        budget: Option<Budget>,
    },
    /// A hold was taken.
    Held(Held),
    /// A hold was settled.
    Settled(Settled),
    /// A hold was released without a charge.
    Released {
        /// Which.
        hold: HoldId,
        /// Why.
        why: ReleaseReason,
    },
    /// A hold was extended.
    Extended {
        /// Which.
        hold: HoldId,
        /// By how much.
        amount: NanoDollars,
    },
    /// Ledger time was set back to this transaction's.
    ClockSet {
        /// What it was: the time of the transaction before.
        from: UnixNanos,
    },
}

/// A hold as it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its id.
    pub hold: HoldId,
    /// Who pays.
    pub org: OrgId,
    /// Whose budget.
    pub project: ProjectId,
    /// How much.
    pub amount: NanoDollars,
    /// The process that will settle it.
    pub owner: Owner,
    /// Ledger time of its expiry.
    pub expires: UnixNanos,
    /// The idempotency key that it claims, and the hash of the request.
    pub claim: Option<(Arc<str>, [u8; 32])>,
}

/// A settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Which hold.
    pub hold: HoldId,
    /// What was used, by class.
    pub lines: Vec<ChargeLine>,
    /// What the customer paid: at most the hold and at most the sum of the lines.
    pub charged: NanoDollars,
    /// What went to the loss account.
    pub loss: NanoDollars,
    /// How the call ended.
    pub outcome: SettleOutcome,
    /// The answer kept for the idempotency key.
    pub answer: Option<Arc<StoredAnswer>>,
}
