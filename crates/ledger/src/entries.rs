//! The entries that each event makes: which accounts it moves, and by how much. Moves nothing.

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::lot::{FundingShare, HoldFunding, LotId, LotKind, MoneySource};
use crate::refund::RefundTarget;
use crate::state::{HeldFunds, LedgerState, PartyRows, RuleBreach};
use crate::transaction::{Account, Entries, HoldSettled, JournalEvent, MoneyEntry};

/// Entries that are added up by account.
#[derive(Default)]
struct EntrySums(Entries);

impl EntrySums {
    /// Adds an amount to the entry of an account. Events without lots name no account twice, so the first entry is found
    /// only for those with lots.
    fn add(&mut self, account: Account, amount: i64) -> Result<(), RuleBreach> {
        if amount == 0 {
            return Ok(());
        }
        match self.0.iter_mut().find(|entry| entry.account == account) {
            Some(entry) => {
                let sum = entry.amount.get().checked_add(amount).ok_or(RuleBreach::Overflow)?;
                entry.amount = NanoDollars::new(sum);
            }
            None => self.0.push(MoneyEntry { account, amount: NanoDollars::new(amount) }),
        }
        Ok(())
    }

    fn finish(self) -> Entries {
        let Self(mut entries) = self;
        entries.retain(|entry| entry.amount != NanoDollars::ZERO);
        entries
    }
}

fn minus(n: i64) -> Result<i64, RuleBreach> {
    n.checked_neg().ok_or(RuleBreach::Overflow)
}

impl LedgerState {
    /// Returns the entries that an event makes in this state at `time`.
    pub(crate) fn entries_for(
        &self,
        event: &JournalEvent,
        parties: PartyRows,
        time: UnixNanos,
    ) -> Result<Entries, RuleBreach> {
        let mut entries = Entries::new();
        let mut move_money = |account: Account, amount: i64| {
            if amount != 0 {
                entries.push(MoneyEntry { account, amount: NanoDollars::new(amount) });
            }
        };
        match event {
            JournalEvent::ProjectOpened { .. }
            | JournalEvent::BudgetSet { .. }
            | JournalEvent::BudgetRuleSet { .. }
            | JournalEvent::BudgetRuleRemoved { .. }
            | JournalEvent::BudgetRaised { .. }
            | JournalEvent::AlertRaised(_)
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::FreeTierSet { .. }
            | JournalEvent::FreeTierRemoved { .. }
            | JournalEvent::ClockSet { .. } => {}
            JournalEvent::Granted { org, kind, amount, .. } => {
                let source = match kind {
                    crate::GrantKind::Paid => Account::PaidIn,
                    crate::GrantKind::Promotional => Account::Promotional,
                };
                move_money(source, minus(amount.get())?);
                move_money(Account::Available(org.clone()), amount.get());
            }
            JournalEvent::Held(held) => {
                let amount = held.amount.get();
                if let Some(funding) = &held.funding {
                    return drawn(funding, (held.org.clone(), held.project.clone()), amount);
                }
                move_money(Account::Available(held.org.clone()), minus(amount)?);
                move_money(Account::Held(held.project.clone()), amount);
            }
            JournalEvent::Extended { amount, funding, .. } => {
                let (org, project) =
                    self.names(parties).ok_or(RuleBreach::Rule("a hold is extended that is not open"))?;
                if let Some(funding) = funding {
                    return drawn(funding, (org, project), amount.get());
                }
                move_money(Account::Available(org), minus(amount.get())?);
                move_money(Account::Held(project), amount.get());
            }
            JournalEvent::Settled(HoldSettled { hold, charged, loss, .. }) => {
                let ((org, project), held) = self.resolved(hold, parties)?;
                if let Some(funding) = &held.funding {
                    return self.returned(funding, (org, project), held.amount, (*charged, *loss), time);
                }
                let amount = held.amount.get();
                let (charged, loss) = (charged.get(), loss.get());
                let returned = amount.checked_sub(charged).ok_or(RuleBreach::Overflow)?;
                move_money(Account::Held(project), minus(amount)?);
                move_money(Account::Available(org), returned);
                move_money(Account::Revenue, charged.checked_add(loss).ok_or(RuleBreach::Overflow)?);
                move_money(Account::Loss, minus(loss)?);
            }
            JournalEvent::Released { hold, .. } => {
                let ((org, project), held) = self.resolved(hold, parties)?;
                if let Some(funding) = &held.funding {
                    let nothing = (NanoDollars::ZERO, NanoDollars::ZERO);
                    return self.returned(funding, (org, project), held.amount, nothing, time);
                }
                move_money(Account::Held(project), minus(held.amount.get())?);
                move_money(Account::Available(org), held.amount.get());
            }
            JournalEvent::Refunded(refund) => {
                move_money(Account::Refunded, minus(refund.amount.get())?);
                for part in &refund.parts {
                    let account = match part.to {
                        RefundTarget::Balance => Account::Available(refund.org.clone()),
                        RefundTarget::Lot(lot) | RefundTarget::NewLot(lot) => Account::Lot(lot),
                        RefundTarget::Contract(_) => Account::Receivable(refund.org.clone()),
                    };
                    move_money(account, part.amount.get());
                }
            }
            JournalEvent::LotMade(lot) => {
                let amount = lot.terms.amount.get();
                let source = match lot.terms.kind {
                    LotKind::Paid => Account::PaidIn,
                    LotKind::Promotional => Account::Promotional,
                    LotKind::Contract => return Ok(entries),
                };
                move_money(source, minus(amount)?);
                move_money(Account::Lot(lot.id), amount);
            }
            JournalEvent::LotEnded { lot } => {
                let of = self.lots.get(*lot).ok_or(RuleBreach::Rule("an unknown lot ends"))?;
                if of.terms().kind != LotKind::Contract {
                    move_money(Account::Lot(*lot), minus(of.left)?);
                    move_money(Account::Expired, of.left);
                }
            }
            JournalEvent::DebtPaid { org, amount, .. } => {
                move_money(Account::PaidIn, minus(amount.get())?);
                move_money(Account::Receivable(org.clone()), amount.get());
            }
        }
        Ok(entries)
    }

    /// Returns an open hold, with its organisation and project.
    fn resolved(
        &self,
        hold: &HoldId,
        parties: PartyRows,
    ) -> Result<((OrgId, ProjectId), &HeldFunds), RuleBreach> {
        let open = self.open.get(hold).ok_or(RuleBreach::Rule("a hold is resolved that is not open"))?;
        let names = self.names(parties).ok_or(RuleBreach::Rule("a hold is resolved that is not open"))?;
        Ok((names, open))
    }

    /// Returns the entries of the end of a hold with shares. What is not charged goes back to its origin. What would go to a
    /// lot that has ended is expired money.
    fn returned(
        &self,
        funding: &HoldFunding,
        (org, project): (OrgId, ProjectId),
        held: NanoDollars,
        (charged, loss): (NanoDollars, NanoDollars),
        time: UnixNanos,
    ) -> Result<Entries, RuleBreach> {
        let mut entries = EntrySums::default();
        entries.add(Account::Held(project), minus(held.get())?)?;
        for part in funding.split(charged) {
            let account = match part.share.source {
                MoneySource::Lot(id) if !self.is_lot_open(id, time) => Account::Expired,
                _ => account_of(part.share, &org),
            };
            entries.add(account, part.returned)?;
        }
        entries.add(Account::Revenue, charged.get().checked_add(loss.get()).ok_or(RuleBreach::Overflow)?)?;
        entries.add(Account::Loss, minus(loss.get())?)?;
        Ok(entries.finish())
    }

    /// Whether money can go back to a lot.
    fn is_lot_open(&self, id: LotId, time: UnixNanos) -> bool {
        self.lots.get(id).is_some_and(|of| !of.terms().is_over(time))
    }
}

/// Returns the entries of a hold with shares, or of its extension.
fn drawn(
    funding: &HoldFunding,
    (org, project): (OrgId, ProjectId),
    amount: i64,
) -> Result<Entries, RuleBreach> {
    let mut entries = EntrySums::default();
    for share in &funding.shares {
        entries.add(account_of(share, &org), minus(share.amount.get())?)?;
    }
    entries.add(Account::Held(project), amount)?;
    Ok(entries.finish())
}

/// Returns the account from which a share is drawn.
fn account_of(share: &FundingShare, org: &OrgId) -> Account {
    match share.source {
        MoneySource::Balance => Account::Available(org.clone()),
        MoneySource::Lot(id) => Account::Lot(id),
        MoneySource::Contract(_) => Account::Receivable(org.clone()),
        // A free tier has no money of its own: it is given away when it is used.
        MoneySource::Free => Account::Promotional,
    }
}
