//! What lots, contracts, free tiers and the shares of holds change in the state, and the rules that they must keep. Moves
//! no money: entries do.

use headrace_domain::{NanoDollars, OrgId, UnixNanos};

use crate::hold_use::HoldUse;
use crate::lot::{HoldFunding, LotKind, MoneySource};
use crate::refund::{ChargeRefunded, RefundPart, RefundTarget};
use crate::state::{HeldFunds, LedgerState, OrgAccount};
use crate::table::RowIndex;
use crate::transaction::JournalEvent;

type RuleCheck = Result<(), &'static str>;

fn rule(holds: bool, why: &'static str) -> RuleCheck {
    if holds { Ok(()) } else { Err(why) }
}

impl LedgerState {
    /// Checks what a hold of `amount` draws, or its extension.
    pub(crate) fn check_funding(
        &self,
        funding: Option<&HoldFunding>,
        amount: NanoDollars,
        org: &OrgId,
        now: UnixNanos,
    ) -> RuleCheck {
        let Some(funding) = funding else { return Ok(()) };
        let sum = NanoDollars::checked_sum(funding.shares.iter().map(|share| share.amount));
        rule(sum == Ok(amount), "the shares of a hold do not sum to it")?;
        for (place, share) in funding.shares.iter().enumerate() {
            rule(share.amount > NanoDollars::ZERO, "a hold draws a share of nothing")?;
            rule(share.free.is_some() == (share.source == MoneySource::Free), "a share is free and is not")?;
            let repeats = funding
                .shares
                .iter()
                .take(place)
                .any(|earlier| earlier.source == share.source && share.source != MoneySource::Free);
            rule(!repeats, "a hold draws twice from one source")?;
            let (MoneySource::Lot(id) | MoneySource::Contract(id)) = share.source else { continue };
            let of = self.lots.get(id).filter(|of| of.lot.org == *org);
            let of = of.ok_or("a hold draws from an unknown lot")?;
            let is_contract = matches!(share.source, MoneySource::Contract(_));
            rule((of.terms().kind == LotKind::Contract) == is_contract, "a lot has another kind")?;
            rule(of.terms().is_live(now), "a hold draws from a lot that is not live")?;
            rule(share.amount.get() <= of.left, "a hold draws more than is left of a lot")?;
        }
        self.free_tiers.check(funding, now)
    }

    /// Records what a hold draws besides money.
    pub(crate) fn note_drawn(&mut self, funding: &HoldFunding, now: UnixNanos) {
        for share in &funding.shares {
            if let MoneySource::Contract(id) = share.source {
                self.lots.use_contract(id, share.amount.get().saturating_neg());
            }
        }
        self.free_tiers.reserve(funding, now);
    }

    /// Adds to what an organisation's calls hold of free tiers and contracts, or subtracts with `sign` -1.
    pub(crate) fn hold_elsewhere(&mut self, org: Option<RowIndex>, funding: &HoldFunding, sign: i64) {
        let Some(org) = org.and_then(|place| self.orgs.at_mut(place)) else { return };
        for share in &funding.shares {
            let amount = share.amount.get().saturating_mul(sign);
            match share.source {
                MoneySource::Free => org.held_free = org.held_free.saturating_add(amount),
                MoneySource::Contract(id) => {
                    org.held_credit = org.held_credit.saturating_add(amount);
                    self.lots.hold_contract(id, amount);
                }
                MoneySource::Balance | MoneySource::Lot(_) => {}
            }
        }
    }

    /// Counts what open holds have drawn from contracts, after a snapshot was read.
    pub(crate) fn count_held_contracts(&mut self) {
        let fundings = self.open.values().filter_map(|held| held.funding.as_deref());
        for share in fundings.flat_map(|funding| &funding.shares) {
            if let MoneySource::Contract(id) = share.source {
                self.lots.hold_contract(id, share.amount.get());
            }
        }
    }

    /// Records what an ended hold gives back besides money.
    pub(crate) fn end_funding(&mut self, held: &HeldFunds, charged: NanoDollars, used: HoldUse) {
        let Some(funding) = &held.funding else { return };
        for part in funding.split(charged) {
            if let MoneySource::Contract(id) = part.share.source {
                self.lots.use_contract(id, part.returned);
            }
            if let Some(free) = &part.share.free {
                let dollars = u64::try_from(part.charged).unwrap_or(0);
                self.free_tiers.end(free, HoldUse { dollars, ..used });
            }
        }
    }

    /// Checks where a refund goes.
    pub(crate) fn check_refund_parts(&self, refund: &ChargeRefunded, now: UnixNanos) -> RuleCheck {
        let sum = NanoDollars::checked_sum(refund.parts.iter().map(|part| part.amount));
        rule(sum == Ok(refund.amount), "the parts of a refund do not sum to it")?;
        let is_own = |id| self.lots.get(id).filter(|of| of.lot.org == refund.org);
        let to_contracts = refund.parts.iter().filter(|part| matches!(part.to, RefundTarget::Contract(_)));
        let forgiven = to_contracts.fold(0_i64, |sum, part| sum.saturating_add(part.amount.get()));
        let debt = self.orgs.get(&refund.org).map_or(0, OrgAccount::debt);
        rule(forgiven <= debt.max(0), "a refund forgives more than ended calls owe")?;
        for RefundPart { to, amount } in &refund.parts {
            rule(*amount > NanoDollars::ZERO, "a part of a refund is nothing")?;
            match *to {
                RefundTarget::Balance | RefundTarget::Contract(_) => {}
                RefundTarget::NewLot(id) => {
                    rule(id == self.lots.next_id(), "a lot has the number of another one")?;
                }
                RefundTarget::Lot(id) => {
                    let of = is_own(id).ok_or("a refund to an unknown lot")?;
                    let is_open = !of.terms().is_over(now) && of.terms().kind != LotKind::Contract;
                    rule(is_open, "a refund to a lot that has ended")?;
                }
            }
        }
        Ok(())
    }

    /// Records where a refund goes besides its money.
    pub(crate) fn note_refund_parts(&mut self, refund: &ChargeRefunded, now: UnixNanos) {
        for RefundPart { to, amount } in &refund.parts {
            match *to {
                RefundTarget::Contract(id) => {
                    self.lots.restore_contracts(&refund.org, Some(id), amount.get());
                }
                RefundTarget::NewLot(id) => {
                    self.lots.insert(refund.lot(id, *amount, now), amount.get());
                }
                RefundTarget::Balance | RefundTarget::Lot(_) => {}
            }
        }
    }

    /// Checks an event about lots, debts or free tiers.
    pub(crate) fn check_lot_event(&self, event: &JournalEvent) -> RuleCheck {
        match event {
            JournalEvent::LotMade(lot) => {
                rule(lot.id == self.lots.next_id(), "a lot has the number of another one")?;
                rule(lot.terms.amount > NanoDollars::ZERO, "a lot of nothing")?;
                rule(self.orgs.contains(&lot.org), "a lot of an unknown organisation")
            }
            JournalEvent::LotEnded { lot } => rule(self.lots.get(*lot).is_some(), "an unknown lot ends"),
            JournalEvent::DebtPaid { org, amount, .. } => {
                rule(*amount > NanoDollars::ZERO, "a payment of nothing")?;
                let debt = self.orgs.get(org).map_or(0, OrgAccount::debt);
                rule(amount.get() <= debt, "a payment of more than ended calls owe")
            }
            JournalEvent::LowBalanceSet { project, .. } => {
                rule(self.projects.contains(project), "a policy of an unknown project")
            }
            JournalEvent::FreeTierSet { number, tier } => {
                let budgets = &self.free_tiers.budgets;
                let known = budgets.by_name(&tier.rule.name).map(|state| state.number);
                let is_new = Some(*number) == budgets.last_number.checked_add(1);
                rule(known == Some(*number) || is_new, "a free tier has the number of another one")
            }
            JournalEvent::FreeTierRemoved { number } => {
                rule(self.free_tiers.budgets.by_number(*number).is_some(), "an unknown free tier")
            }
            _ => Ok(()),
        }
    }

    /// Records an event about lots, debts or free tiers. `check_lot_event` has accepted it.
    pub(crate) fn note_lot_event(&mut self, event: &JournalEvent) {
        match event {
            JournalEvent::LotMade(lot) => self.lots.insert((**lot).clone(), lot.terms.amount.get()),
            JournalEvent::LotEnded { lot } => self.lots.remove(*lot),
            JournalEvent::DebtPaid { org, amount, .. } => {
                self.lots.restore_contracts(org, None, amount.get());
            }
            JournalEvent::LowBalanceSet { project, policy } => {
                if let Some(project) = self.projects.get_mut(project) {
                    project.low_balance = *policy;
                }
            }
            JournalEvent::FreeTierSet { number, tier } => self.free_tiers.set(*number, tier),
            JournalEvent::FreeTierRemoved { number } => self.free_tiers.remove(*number),
            _ => {}
        }
    }
}
