//! What the ledger can be asked to do, and what it answers when it did: plain data.
//! Decides nothing; `core` does.

use std::sync::Arc;

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};
use serde::{Deserialize, Serialize};

/// One thing to do. The commands of a batch are decided in order, each on the outcome of those before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Opens a project, and its organisation if that is new. Idempotent.
    OpenProject {
        /// The organisation that pays.
        org: OrgId,
        /// The project, unique across organisations.
        project: ProjectId,
    },
    /// Adds money to an organisation's balance, or takes back what was added by mistake.
    Grant {
        /// Who receives it.
        org: OrgId,
        /// How much; below zero it is taken back, at most what is there and not held.
        amount: NanoDollars,
        /// Where the money comes from.
        kind: GrantKind,
        /// What an operator wants to find it by: a payment's id, a ticket. At most 256 bytes.
        reference: String,
    },
    /// Sets or removes a project's budget. What was spent before counts.
    SetBudget {
        /// The organisation that the project belongs to.
        org: OrgId,
        /// The project.
        project: ProjectId,
        /// The new budget; `None` removes it.
        budget: Option<Budget>,
    },
    /// Reserves the most that a call can cost.
    Hold {
        /// The hold's id, never used before.
        hold: HoldId,
        /// Who pays.
        org: OrgId,
        /// Whose budget it counts against.
        project: ProjectId,
        /// The most that the call can cost; zero for a model that is free.
        amount: NanoDollars,
        /// The process that will settle it.
        owner: Owner,
        /// When it is released if nobody settles it, on the clock that gives `now`.
        expires: UnixNanos,
        /// The client's idempotency key, if it sent one.
        idempotency: Option<IdempotencyClaim>,
    },
    /// Holds more for a call that goes on beyond what it was thought to cost, under the same hold. It is refused as a hold
    /// would be, and then the hold stays as it was.
    Extend {
        /// Which hold.
        hold: HoldId,
        /// How much more; not zero.
        amount: NanoDollars,
    },
    /// Ends a hold by charging what was used. The charge never exceeds the hold: what the lines exceed it by goes to
    /// the loss account. A *failed* call that carried an idempotency key is not charged at all, because its key is
    /// free again and the retry will be: its lines go to the loss account.
    Settle {
        /// Which hold.
        hold: HoldId,
        /// What is charged, a line per token class; each amount is its price times its tokens, rounded to nearest.
        lines: Vec<ChargeLine>,
        /// What was used but is not charged, at list price: goes to the loss account.
        loss: NanoDollars,
        /// How the call ended.
        outcome: SettleOutcome,
        /// The answer to replay to the same idempotency key. Kept only if the hold made a claim and the outcome is
        /// `Completed`.
        answer: Option<StoredAnswer>,
    },
    /// Ends a hold without a charge.
    Release {
        /// Which hold.
        hold: HoldId,
        /// Why.
        why: ReleaseReason,
    },
    /// After a restart: releases the holds of every owner but this one. Nothing is charged.
    ReleaseOrphans {
        /// The owner whose holds stay.
        current_owner: Owner,
    },
    /// Releases the holds whose expiry has passed. Nothing is charged.
    ExpireHolds,
    /// Sets ledger time back to the caller's `now`, after it ran on a clock that was ahead. Holds and idempotency keys
    /// keep the time that they had left, and what was spent in a month that lies ahead counts in this one.
    SetClock,
}

/// A process that takes holds, new at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u128);

impl Owner {
    /// From an instance id that no other process and no earlier start of this one has.
    pub const fn new(instance: u128) -> Self {
        Self(instance)
    }

    /// The instance id.
    pub const fn get(self) -> u128 {
        self.0
    }
}

/// Where granted money comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantKind {
    /// Paid in by the customer.
    Paid,
    /// A gift: play credit, a goodwill refund.
    Promotional,
}

/// The most that a project may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// In nano-dollars; zero stops the project.
    pub limit: NanoDollars,
    /// Over which time.
    pub period: BudgetPeriod,
}

/// The time over which a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    /// For ever.
    Total,
    /// The calendar month, UTC.
    Month,
}

/// An idempotency key as the client sent it, and the hash of what it asked for. Its scope is the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyClaim {
    /// 1 to 255 bytes.
    pub key: String,
    /// Hash of the request's meaning: a repeated key with another hash is refused.
    pub request_hash: [u8; 32],
}

/// One line of a bill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeLine {
    /// The dated model that served the tokens.
    pub model: ModelName,
    /// Their class.
    pub class: TokenClass,
    /// How many.
    pub tokens: u64,
    /// The price that applied.
    pub price: NanoDollarsPerMillion,
    /// Price times tokens, rounded once to the nearest nano-dollar.
    pub amount: NanoDollars,
}

/// How a settled call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleOutcome {
    /// It ran to its end.
    Completed,
    /// The client went away.
    Cancelled,
    /// An upstream or we failed.
    Failed,
}

/// Why a hold was released without a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseReason {
    /// A later stage refused the call before any work.
    Refused,
    /// The call failed before anything was handed to the client.
    Failed,
    /// The client went away before any work. No call is released so yet; the journal has its code.
    Cancelled,
    /// The call goes to another model and takes a new hold. No call does so yet; the journal has its code.
    Rerouted,
    /// Its process ended without settling it.
    Orphaned,
    /// Nobody settled it in time.
    Expired,
}

/// An answer kept to be replayed byte for byte for 24 hours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// HTTP status.
    pub status: u16,
    /// The `content-type` header's value.
    pub content_type: String,
    /// The body, at most [`crate::MAX_ANSWER_BYTES`]: a longer one is not kept, and a repeat of its key is answered
    /// with [`crate::LedgerRefusal::IdempotencyReplay`] without an answer.
    pub body: Arc<[u8]>,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// The project is open.
    ProjectOpened {
        /// Whether it is new.
        created: bool,
    },
    /// The money is in the balance.
    Granted {
        /// The organisation's balance now, money held included.
        balance: NanoDollars,
    },
    /// The budget is set or removed.
    BudgetSet,
    /// The money is held.
    Held {
        /// Which hold.
        hold: HoldId,
        /// How much.
        amount: NanoDollars,
        /// What the organisation has left to hold.
        available: NanoDollars,
    },
    /// More money is held.
    Extended {
        /// Which hold.
        hold: HoldId,
        /// How much it holds now.
        amount: NanoDollars,
        /// What the organisation has left to hold.
        available: NanoDollars,
    },
    /// The hold is settled.
    Settled {
        /// Which hold.
        hold: HoldId,
        /// What the customer paid.
        charged: NanoDollars,
        /// What went back from the hold to the balance.
        returned: NanoDollars,
        /// What went to the loss account, `exceeded` included.
        loss: NanoDollars,
        /// By how much the lines exceeded the hold. More than zero is a fault of whoever sized the hold.
        exceeded: NanoDollars,
        /// Whether the answer is kept for the idempotency key.
        answer_kept: bool,
    },
    /// The hold is released.
    Released {
        /// Which hold.
        hold: HoldId,
        /// What went back to the balance.
        returned: NanoDollars,
    },
    /// Ledger time is set back.
    ClockSet {
        /// What it was.
        from: UnixNanos,
        /// What it is.
        to: UnixNanos,
    },
    /// Several holds are released.
    ReleasedMany {
        /// Which.
        holds: Vec<HoldId>,
        /// What went back to balances in all.
        returned: NanoDollars,
    },
}
