//! Refunds of charges as plain data: what can be refunded, and what was. Makes no decisions.

use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId};
use serde::{Deserialize, Serialize};

/// The maximum number of refunds that a ledger remembers. All of them are kept, so that no reference is used twice.
pub const MAX_REFUNDS: usize = 1_000_000;

/// The charge of a settled hold, as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundableCharge {
    /// The settled hold. Its bits are those of the call's request id.
    pub hold: HoldId,
    /// The organisation that paid.
    pub org: OrgId,
    /// The project of the call.
    pub project: ProjectId,
    /// The amount that was charged.
    pub charged: NanoDollars,
}

/// A refund that was made under a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefundMade {
    /// The hold whose charge was refunded.
    pub hold: HoldId,
    /// The refunded amount.
    pub amount: NanoDollars,
}

/// A refund: a part of a charge, or all of it, was given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeRefunded {
    /// The settled hold. Its bits are those of the call's request id.
    pub hold: HoldId,
    /// The organisation that received the money.
    pub org: OrgId,
    /// The project of the call.
    pub project: ProjectId,
    /// The charge of the hold. All refunds of a hold name the same charge.
    pub charged: NanoDollars,
    /// The refunded amount, above zero. The refunds of a hold never exceed its charge in sum.
    pub amount: NanoDollars,
    /// An operator's reference, 1 to 256 bytes. Unique among the refunds of an organisation.
    pub reference: Arc<str>,
}
