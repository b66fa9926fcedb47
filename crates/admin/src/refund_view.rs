//! Refunds as serializable data.

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId};
use serde::{Deserialize, Serialize};

/// A refund of a call's charge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefundView {
    /// The hold of the call. Its bits are those of the request id.
    pub hold: HoldId,
    /// The organisation that received the money.
    pub org: OrgId,
    /// The project of the call.
    pub project: ProjectId,
    /// The charge of the call.
    pub charged: NanoDollars,
    /// The refunded amount.
    pub amount: NanoDollars,
    /// The amount of the charge that can still be refunded.
    pub left: NanoDollars,
    /// The reference.
    pub reference: String,
    /// The balance now, money held included.
    pub balance: NanoDollars,
    /// Whether the same refund was made before under this reference, so that nothing was given back now.
    pub before: bool,
}
