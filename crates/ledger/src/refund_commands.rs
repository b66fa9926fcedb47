//! The decision about a refund: at most the charge in sum, and once per reference.

use std::sync::Arc;

use headrace_domain::{NanoDollars, OrgId};

use crate::command::Receipt;
use crate::command_time::CommandTime;
use crate::core::{LedgerCore, MAX_REFERENCE_BYTES};
use crate::refund::{ChargeRefunded, RefundMade, RefundableCharge};
use crate::refusal::{HoldResolution, LedgerRefusal};
use crate::transaction::{JournalEvent, Transaction};

impl LedgerCore {
    /// Returns the refund of an organisation with this reference.
    pub fn refund_by_reference(&self, org: &OrgId, reference: &str) -> Option<RefundMade> {
        self.state.refunds.by_reference(org, reference)
    }

    /// Refunds a part of a charge, or all that is left of it. The same reference again is the same refund.
    pub(crate) fn refund(
        &mut self,
        charge: RefundableCharge,
        amount: Option<NanoDollars>,
        reference: &str,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let RefundableCharge { hold, org, project, charged } = charge;
        if self.state.projects.get(&project).is_none_or(|known| known.org != org) {
            return Err(LedgerRefusal::UnknownProject { project });
        }
        if reference.is_empty() || reference.len() > MAX_REFERENCE_BYTES {
            return Err(LedgerRefusal::Invalid { field: "reference", why: "it must have 1 to 256 bytes" });
        }
        let refunded = self.state.refunds.refunded(&hold);
        if let Some(entry) = self.state.refunds.by_reference(&org, reference) {
            if entry.hold != hold || amount.is_some_and(|amount| amount != entry.amount) {
                let RefundMade { hold, amount } = entry;
                return Err(LedgerRefusal::RefundReferenceUsed { reference: reference.into(), hold, amount });
            }
            let left = charged.checked_sub(refunded).unwrap_or_default();
            return Ok(Receipt::Refunded { hold, amount: entry.amount, left, before: true });
        }
        let is_known =
            self.state.resolved.get(&hold).is_none_or(|how| how == HoldResolution::Settled { charged });
        if self.state.open.contains_key(&hold) || !is_known {
            return Err(LedgerRefusal::Invalid { field: "charge", why: "it is not the charge of this hold" });
        }
        let rest = charged.checked_sub(refunded).map_err(|_| LedgerRefusal::Overflow)?;
        let asked = amount.unwrap_or(rest);
        if asked.is_negative() || (asked == NanoDollars::ZERO && amount.is_some()) {
            return Err(LedgerRefusal::Invalid { field: "amount", why: "a refund must be more than zero" });
        }
        if asked > rest || asked == NanoDollars::ZERO {
            return Err(LedgerRefusal::RefundExceedsCharge { hold, charged, refunded, asked });
        }
        if self.state.refunds.is_full() {
            return Err(LedgerRefusal::Invalid { field: "refund", why: "the ledger has a million refunds" });
        }
        let reference: Arc<str> = reference.into();
        let refund = ChargeRefunded { hold, org, project, charged, amount: asked, reference };
        self.commit(JournalEvent::Refunded(Box::new(refund)), now, out)?;
        let left = rest.checked_sub(asked).map_err(|_| LedgerRefusal::Overflow)?;
        Ok(Receipt::Refunded { hold, amount: asked, left, before: false })
    }
}
