//! The decision about a refund: at most the charge in sum, and once per reference.

use std::sync::Arc;

use headrace_domain::{NanoDollars, OrgId};

use crate::command::Receipt;
use crate::command_time::CommandTime;
use crate::core::{LedgerCore, MAX_REFERENCE_BYTES};
use crate::lot::{ChargedShare, LotKind, MoneySource};
use crate::refund::{ChargeRefunded, RefundMade, RefundPart, RefundTarget, RefundableCharge};
use crate::refusal::{HoldResolution, LedgerRefusal};
use crate::state::OrgAccount;
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
        let refundable = charge.refundable();
        let RefundableCharge { hold, org, project, charged, shares } = charge;
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
            let left = refundable.checked_sub(refunded).unwrap_or_default();
            return Ok(Receipt::Refunded { hold, amount: entry.amount, left, before: true });
        }
        let is_known =
            self.state.resolved.get(&hold).is_none_or(|how| how == HoldResolution::Settled { charged });
        if self.state.open.contains_key(&hold) || !is_known {
            return Err(LedgerRefusal::Invalid { field: "charge", why: "it is not the charge of this hold" });
        }
        let rest = refundable.checked_sub(refunded).map_err(|_| LedgerRefusal::Overflow)?;
        let asked = amount.unwrap_or(rest);
        if asked.is_negative() || (asked == NanoDollars::ZERO && amount.is_some()) {
            return Err(LedgerRefusal::Invalid { field: "amount", why: "a refund must be more than zero" });
        }
        if asked > rest || asked == NanoDollars::ZERO {
            return Err(LedgerRefusal::RefundExceedsCharge { hold, charged: refundable, refunded, asked });
        }
        if self.state.refunds.is_full() {
            return Err(LedgerRefusal::Invalid { field: "refund", why: "the ledger has a million refunds" });
        }
        let parts = self.refund_parts(&org, charged, &shares, (refunded, asked), now)?;
        let reference: Arc<str> = reference.into();
        let refund = ChargeRefunded { hold, org, project, charged, amount: asked, reference, parts };
        self.commit(JournalEvent::Refunded(Box::new(refund)), now, out)?;
        let left = rest.checked_sub(asked).map_err(|_| LedgerRefusal::Overflow)?;
        Ok(Receipt::Refunded { hold, amount: asked, left, before: false })
    }

    /// Returns where a refund of `asked` goes, after `refunded` was given back before. What was drawn last goes back first.
    fn refund_parts(
        &self,
        org: &OrgId,
        charged: NanoDollars,
        shares: &[ChargedShare],
        (refunded, asked): (NanoDollars, NanoDollars),
        now: CommandTime,
    ) -> Result<Vec<RefundPart>, LedgerRefusal> {
        let all = [ChargedShare { source: MoneySource::Balance, amount: charged }];
        let shares = if shares.is_empty() { &all } else { shares };
        let sum = NanoDollars::checked_sum(shares.iter().map(|share| share.amount));
        if sum != Ok(charged) {
            return Err(LedgerRefusal::Invalid { field: "charge", why: "its shares do not sum to it" });
        }
        let mut owed = self.state.orgs.get(org).map_or(0, OrgAccount::debt);
        let (mut skip, mut rest, mut of_new) = (refunded.get(), asked.get(), 0_i64);
        let mut parts: Vec<RefundPart> = Vec::new();
        let mut give = |to: RefundTarget, amount: i64| {
            if amount <= 0 {
                return;
            }
            match parts.iter_mut().find(|part| part.to == to) {
                Some(part) => part.amount = NanoDollars::new(part.amount.get().saturating_add(amount)),
                None => parts.push(RefundPart { to, amount: NanoDollars::new(amount) }),
            }
        };
        for share in shares.iter().rev().filter(|share| share.source != MoneySource::Free) {
            let skipped = skip.min(share.amount.get());
            skip -= skipped;
            let taken = rest.min(share.amount.get() - skipped);
            rest -= taken;
            match share.source {
                MoneySource::Balance => give(RefundTarget::Balance, taken),
                MoneySource::Lot(id) => {
                    let lot = self.state.lots.get(id).filter(|of| of.lot.org == *org);
                    let is_live = lot.is_some_and(|of| {
                        of.terms().kind != LotKind::Contract && !of.terms().is_over(now.ledger)
                    });
                    if is_live { give(RefundTarget::Lot(id), taken) } else { of_new += taken }
                }
                MoneySource::Contract(id) => {
                    let less = taken.min(owed).max(0);
                    owed -= less;
                    give(RefundTarget::Contract(id), less);
                    of_new += taken - less;
                }
                MoneySource::Free => {}
            }
        }
        give(RefundTarget::NewLot(self.state.lots.next_id()), of_new);
        Ok(parts)
    }
}
