//! The refunds so far: how much of each charge was given back, and under which references. Makes no decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId};

use crate::refund::{ChargeRefunded, MAX_REFUNDS, RefundMade};

/// All refunds of a ledger.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefundState {
    /// The charges with refunds.
    pub(crate) charges: BTreeMap<HoldId, RefundedCharge>,
    /// The refunds by organisation and reference.
    pub(crate) references: BTreeMap<OrgId, BTreeMap<Arc<str>, RefundMade>>,
    count: usize,
}

/// A charge with refunds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefundedCharge {
    pub(crate) org: OrgId,
    pub(crate) project: ProjectId,
    pub(crate) charged: NanoDollars,
    pub(crate) refunded: NanoDollars,
}

impl RefundState {
    /// Whether there were no refunds, so that the state takes no room in a snapshot.
    pub(crate) fn is_unused(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count >= MAX_REFUNDS
    }

    /// Returns the refund of an organisation with this reference.
    pub(crate) fn by_reference(&self, org: &OrgId, reference: &str) -> Option<RefundMade> {
        self.references.get(org)?.get(reference).copied()
    }

    /// Returns the amount that was refunded of a hold's charge.
    pub(crate) fn refunded(&self, hold: &HoldId) -> NanoDollars {
        self.charges.get(hold).map_or(NanoDollars::ZERO, |charge| charge.refunded)
    }

    /// Returns the rule that a refund would break.
    pub(crate) fn check(&self, refund: &ChargeRefunded) -> Result<(), &'static str> {
        let ChargeRefunded { hold, org, project, charged, amount, reference, .. } = refund;
        if *amount <= NanoDollars::ZERO {
            return Err("a refund of nothing");
        }
        if self.by_reference(org, reference).is_some() {
            return Err("a reference of a refund is used twice");
        }
        let known = self.charges.get(hold);
        if known.is_some_and(|known| (&known.org, &known.project, known.charged) != (org, project, *charged))
        {
            return Err("two refunds of a hold name different charges");
        }
        let sum = self.refunded(hold).checked_add(*amount).map_err(|_| "refunds overflow")?;
        if sum > *charged { Err("refunds exceed their charge") } else { Ok(()) }
    }

    /// Records a refund. `check` has accepted it.
    pub(crate) fn note(&mut self, refund: &ChargeRefunded) {
        let ChargeRefunded { hold, org, project, charged, amount, reference, .. } = refund;
        let entry = RefundMade { hold: *hold, amount: *amount };
        self.references.entry(org.clone()).or_default().insert(Arc::clone(reference), entry);
        let charge = self.charges.entry(*hold).or_insert_with(|| RefundedCharge {
            org: org.clone(),
            project: project.clone(),
            charged: *charged,
            refunded: NanoDollars::ZERO,
        });
        charge.refunded = charge.refunded.checked_add(*amount).unwrap_or(NanoDollars::MAX);
        self.count += 1;
    }
}
