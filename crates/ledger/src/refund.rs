//! Refunds of charges as plain data: what can be refunded, and what was. Makes no decisions.

use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::lot::{ChargedShare, CreditLot, LotId, LotKind, LotTerms, MoneySource};

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
    /// The parts of the charge by their origin, in the order in which they were drawn. Empty if all came from the balance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ChargedShare>,
}

impl RefundableCharge {
    /// The part of the charge that can be refunded: all that no free tier paid.
    pub fn refundable(&self) -> NanoDollars {
        let free = self.shares.iter().filter(|share| share.source == MoneySource::Free);
        let free = free.fold(0_i64, |sum, share| sum.saturating_add(share.amount.get()));
        NanoDollars::new(self.charged.get().saturating_sub(free))
    }
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
    /// Where the money goes. The parts sum to the amount.
    pub parts: Vec<RefundPart>,
}

/// A part of a refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefundPart {
    /// Where it goes.
    pub to: RefundTarget,
    /// The amount, more than zero.
    pub amount: NanoDollars,
}

/// Where a part of a refund goes: back to its origin while that lives, otherwise to a new promotional lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundTarget {
    /// The organisation's balance.
    Balance,
    /// A lot.
    Lot(LotId),
    /// A contract: the organisation owes less.
    Contract(LotId),
    /// A new promotional lot without an end.
    NewLot(LotId),
}

impl ChargeRefunded {
    /// Returns the new lot of a refund that was made at `time`.
    pub(crate) fn lot(&self, id: LotId, amount: NanoDollars, time: UnixNanos) -> CreditLot {
        let reference = Arc::clone(&self.reference);
        let kind = LotKind::Promotional;
        let terms = LotTerms { kind, amount, begins: time, ends: None, models: None, reference };
        CreditLot { id, org: self.org.clone(), terms }
    }
}
