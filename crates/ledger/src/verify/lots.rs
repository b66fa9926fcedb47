//! Checks lots, contracts and free tiers from the events alone: what each hold drew, where it went back to, and that no
//! contract or free tier exceeds its amount.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, TokenClass, UnixNanos};

use crate::budget_rule::{BudgetMeasure, BudgetReservation};
use crate::command::SettleOutcome;
use crate::free_tier::FreeTier;
use crate::lot::{ChargedShare, CreditLot, FundingShare, HoldFunding, LotId, LotKind, MoneySource};
use crate::refund::{ChargeRefunded, RefundTarget};
use crate::transaction::{Account, HoldSettled, HoldTaken};

/// The movements that an event must make, without those of zero.
pub(super) type ExpectedEntries = BTreeMap<Account, i128>;

/// The lots, contracts and free tiers of a journal so far.
#[derive(Debug, Default)]
pub(super) struct LotVerifier {
    lots: BTreeMap<LotId, KnownLot>,
    last: u64,
    tiers: HashMap<u64, FreeTier>,
    /// Used and reserved, by free tier, subject and start of the window.
    counters: HashMap<(u64, Arc<str>, UnixNanos), (u64, u64)>,
    /// The shares of the charges that did not come from the balance alone.
    charges: HashMap<HoldId, Vec<ChargedShare>>,
    /// What was refunded of those charges.
    refunded: HashMap<HoldId, i64>,
    /// Whether the clock was set back. Windows are merged then, and only replaying knows their sums.
    pub(super) has_merged: bool,
}

#[derive(Debug)]
struct KnownLot {
    lot: CreditLot,
    /// What can still be used of a contract.
    credit: i64,
    /// What open holds have drawn from a contract.
    held: i64,
    is_over: bool,
}

impl KnownLot {
    /// Restores at most `amount` of what ended calls have used of a contract. Returns what is left of the amount.
    fn restore(&mut self, amount: i64) -> i64 {
        let used = self.lot.terms.amount.get().saturating_sub(self.credit).saturating_sub(self.held);
        let restored = amount.min(used).max(0);
        self.credit = self.credit.saturating_add(restored);
        amount.saturating_sub(restored)
    }
}

fn add(entries: &mut ExpectedEntries, account: Account, amount: i128) {
    let sum = entries.entry(account.clone()).or_default();
    *sum += amount;
    if *sum == 0 {
        entries.remove(&account);
    }
}

fn of(amount: NanoDollars) -> i128 {
    i128::from(amount.get())
}

impl LotVerifier {
    /// Checks a new lot, and returns its entries.
    pub(super) fn made(&mut self, lot: &CreditLot, find: &mut dyn FnMut(String)) -> ExpectedEntries {
        let (id, amount) = (lot.id, lot.terms.amount);
        if id.get() != self.last + 1 {
            find(format!("{id} does not follow lot_{}", self.last));
        }
        self.last = id.get();
        let mut entries = ExpectedEntries::new();
        let source = match lot.terms.kind {
            LotKind::Paid => Some(Account::PaidIn),
            LotKind::Promotional => Some(Account::Promotional),
            LotKind::Contract => None,
        };
        if let Some(source) = source {
            add(&mut entries, source, -of(amount));
            add(&mut entries, Account::Lot(id), of(amount));
        }
        let known = KnownLot { lot: lot.clone(), credit: amount.get(), held: 0, is_over: false };
        self.lots.insert(id, known);
        entries
    }

    /// Checks the end of a lot with `left` in its account, and returns its entries.
    pub(super) fn ended(&mut self, id: LotId, left: i64, find: &mut dyn FnMut(String)) -> ExpectedEntries {
        let mut entries = ExpectedEntries::new();
        match self.lots.get_mut(&id) {
            Some(known) if !known.is_over => known.is_over = true,
            _ => find(format!("{id} ends, and it is none or has ended")),
        }
        add(&mut entries, Account::Lot(id), -i128::from(left));
        add(&mut entries, Account::Expired, i128::from(left));
        entries
    }

    /// Returns the entries of a payment, which restores the contracts of the organisation, the oldest first.
    pub(super) fn paid(&mut self, org: &OrgId, amount: NanoDollars) -> ExpectedEntries {
        self.restore_contracts(org, amount.get());
        let mut entries = ExpectedEntries::new();
        add(&mut entries, Account::PaidIn, -of(amount));
        add(&mut entries, Account::Receivable(org.clone()), of(amount));
        entries
    }

    /// Restores the contracts of an organisation, the oldest first.
    fn restore_contracts(&mut self, org: &OrgId, amount: i64) {
        let contracts = self.lots.values_mut().filter(|known| !known.is_over && known.lot.org == *org);
        let contracts = contracts.filter(|known| known.lot.terms.kind == LotKind::Contract);
        contracts.fold(amount, |rest, known| known.restore(rest));
    }

    /// Records a free tier.
    pub(super) fn tier_set(&mut self, number: u64, tier: &FreeTier, find: &mut dyn FnMut(String)) {
        self.tiers.retain(|_, known| known.rule.name != tier.rule.name);
        if let Err(fault) = tier.check()
            && fault.field != "zone"
        {
            find(format!("free tier {}: {}: {}", tier.rule.name, fault.field, fault.why));
        }
        self.tiers.insert(number, tier.clone());
    }

    /// Records the end of a free tier.
    pub(super) fn tier_removed(&mut self, number: u64) {
        self.tiers.remove(&number);
    }

    /// Checks what a hold of `amount` draws, or an extension, and returns its entries. `None` if it draws from the balance
    /// alone.
    pub(super) fn drawn(
        &mut self,
        held: &HoldTaken,
        (amount, funding): (NanoDollars, Option<&HoldFunding>),
        time: UnixNanos,
        find: &mut dyn FnMut(String),
    ) -> Option<ExpectedEntries> {
        let funding = funding?;
        let mut entries = ExpectedEntries::new();
        add(&mut entries, Account::Held(held.project.clone()), of(amount));
        let mut sum = 0;
        for share in &funding.shares {
            sum += of(share.amount);
            if share.amount <= NanoDollars::ZERO {
                find(format!("{} draws a share of {}", held.hold, share.amount));
            }
            add(&mut entries, self.draw(held, share, time, find), -of(share.amount));
        }
        if sum != of(amount) {
            find(format!("{} draws shares of {sum} nano-dollars, and holds {amount}", held.hold));
        }
        Some(entries)
    }

    fn draw(
        &mut self,
        held: &HoldTaken,
        share: &FundingShare,
        time: UnixNanos,
        find: &mut dyn FnMut(String),
    ) -> Account {
        let hold = held.hold;
        if share.free.is_some() != (share.source == MoneySource::Free) {
            find(format!("{hold} reserves of a free tier and draws from elsewhere, or the other way round"));
        }
        let (id, is_contract) = match share.source {
            MoneySource::Balance => return Account::Available(held.org.clone()),
            MoneySource::Free => {
                if let Some(free) = &share.free {
                    self.reserve(free, find);
                }
                return Account::Promotional;
            }
            MoneySource::Lot(id) => (id, false),
            MoneySource::Contract(id) => (id, true),
        };
        match self.lots.get_mut(&id) {
            Some(known) if !known.is_over && known.lot.org == held.org => {
                if (known.lot.terms.kind == LotKind::Contract) != is_contract {
                    find(format!("{hold} draws from {id} as if it had another kind"));
                }
                if !known.lot.terms.is_live(time) {
                    find(format!("{hold} draws from {id}, which is not live"));
                }
                if is_contract {
                    known.credit = known.credit.saturating_sub(share.amount.get());
                    known.held = known.held.saturating_add(share.amount.get());
                    if known.credit < 0 {
                        find(format!("{hold} draws more than the amount of contract {id}"));
                    }
                }
            }
            _ => find(format!("{hold} draws from {id}, which its org does not have")),
        }
        if is_contract { Account::Receivable(held.org.clone()) } else { Account::Lot(id) }
    }

    fn reserve(&mut self, free: &BudgetReservation, find: &mut dyn FnMut(String)) {
        let Some(tier) = self.tiers.get(&free.rule) else {
            find(format!("{} is reserved of free tier {}, which is not set", free.amount, free.rule));
            return;
        };
        let key = (free.rule, Arc::clone(&free.subject), free.window.start);
        let (used, reserved) = self.counters.entry(key).or_default();
        *reserved = reserved.saturating_add(free.amount);
        let (sum, limit) = (used.saturating_add(*reserved), tier.rule.limit);
        if free.amount > 0 && sum > limit && !self.has_merged {
            let (name, subject) = (&tier.rule.name, &free.subject);
            find(format!("free tier {name} of {subject} is at {sum}, and its amount is {limit}"));
        }
    }

    /// Checks the end of a hold with all its shares, and returns its entries. `None` if it drew from the balance alone.
    pub(super) fn resolved(
        &mut self,
        held: &HoldTaken,
        settled: Option<&HoldSettled>,
        time: UnixNanos,
    ) -> Option<ExpectedEntries> {
        let funding = held.funding.as_deref()?;
        let charged = settled.map_or(NanoDollars::ZERO, |settled| settled.charged);
        let mut entries = ExpectedEntries::new();
        add(&mut entries, Account::Held(held.project.clone()), -of(held.amount));
        if let Some(HoldSettled { loss, .. }) = settled {
            add(&mut entries, Account::Revenue, of(charged) + of(*loss));
            add(&mut entries, Account::Loss, -of(*loss));
        }
        let mut left = charged.get();
        let mut charges = Vec::new();
        for share in &funding.shares {
            let part = share.amount.get().min(left).max(0);
            left -= part;
            if part > 0 {
                charges.push(ChargedShare { source: share.source, amount: NanoDollars::new(part) });
            }
            let back = share.amount.get() - part;
            let account = match share.source {
                MoneySource::Balance => Account::Available(held.org.clone()),
                MoneySource::Free => Account::Promotional,
                MoneySource::Contract(id) => {
                    if let Some(known) = self.lots.get_mut(&id) {
                        known.held = known.held.saturating_sub(share.amount.get());
                        known.credit = known.credit.saturating_add(back);
                    }
                    Account::Receivable(held.org.clone())
                }
                MoneySource::Lot(id) => match self.lots.get(&id) {
                    Some(known) if !known.is_over && !known.lot.terms.is_over(time) => Account::Lot(id),
                    _ => Account::Expired,
                },
            };
            add(&mut entries, account, i128::from(back));
        }
        self.end_free(held, settled, charged);
        if !charges.is_empty() {
            self.charges.insert(held.hold, charges);
        }
        Some(entries)
    }

    /// Replaces the reservations of a hold in free tiers by its use.
    fn end_free(&mut self, held: &HoldTaken, settled: Option<&HoldSettled>, charged: NanoDollars) {
        let shares = held.funding.iter().flat_map(|funding| &funding.shares);
        let mut left = charged.get();
        for share in shares {
            let part = share.amount.get().min(left).max(0);
            left -= part;
            let Some(free) = &share.free else { continue };
            let Some(tier) = self.tiers.get(&free.rule) else { continue };
            let used = match settled {
                Some(settled) => {
                    let failed = settled.outcome == SettleOutcome::Failed;
                    let lines = settled.lines.iter().filter(|line| line.class != TokenClass::WebSearch);
                    match tier.rule.measure {
                        _ if failed && held.claim.is_some() => 0,
                        BudgetMeasure::Dollars => u64::try_from(part).unwrap_or(0),
                        BudgetMeasure::Tokens => lines.map(|line| line.tokens).fold(0, u64::saturating_add),
                        BudgetMeasure::Requests => u64::from(!failed || !settled.lines.is_empty()),
                    }
                }
                None => 0,
            };
            let key = (free.rule, Arc::clone(&free.subject), free.window.start);
            let (sum, reserved) = self.counters.entry(key).or_default();
            *reserved = reserved.saturating_sub(free.amount);
            *sum = sum.saturating_add(used.min(free.amount));
        }
    }

    /// Checks where a refund goes, and returns its entries.
    pub(super) fn refunded(
        &mut self,
        refund: &ChargeRefunded,
        time: UnixNanos,
        find: &mut dyn FnMut(String),
    ) -> ExpectedEntries {
        let ChargeRefunded { hold, org, amount, parts, .. } = refund;
        let mut entries = ExpectedEntries::new();
        add(&mut entries, Account::Refunded, -of(*amount));
        let mut sum = 0;
        for part in parts {
            sum += of(part.amount);
            let account = match part.to {
                RefundTarget::Balance => Account::Available(org.clone()),
                RefundTarget::NewLot(id) => {
                    if id.get() != self.last + 1 {
                        find(format!("{id} does not follow lot_{}", self.last));
                    }
                    self.last = id.get();
                    let lot = refund.lot(id, part.amount, time);
                    self.lots.insert(id, KnownLot { lot, credit: 0, held: 0, is_over: false });
                    Account::Lot(id)
                }
                RefundTarget::Lot(id) => Account::Lot(id),
                RefundTarget::Contract(id) => {
                    let live = self.lots.get_mut(&id).filter(|known| !known.is_over);
                    let rest = live.map_or(part.amount.get(), |known| known.restore(part.amount.get()));
                    self.restore_contracts(org, rest);
                    Account::Receivable(org.clone())
                }
            };
            let known = match part.to {
                RefundTarget::Lot(id) | RefundTarget::Contract(id) => self.lots.get(&id),
                RefundTarget::Balance | RefundTarget::NewLot(_) => None,
            };
            if known.is_some_and(|known| known.lot.org != *org) {
                find(format!("{hold} is refunded to the lot of another org"));
            }
            add(&mut entries, account, of(part.amount));
        }
        if sum != of(*amount) {
            find(format!("the parts of a refund of {hold} sum to {sum} nano-dollars, not to {amount}"));
        }
        let shares = self.charges.get(hold);
        let is_free = |share: &&ChargedShare| share.source == MoneySource::Free;
        let free = shares.into_iter().flatten().filter(is_free).map(|share| share.amount.get());
        let refundable = refund.charged.get().saturating_sub(free.fold(0, i64::saturating_add));
        let refunded = self.refunded.entry(*hold).or_default();
        *refunded = refunded.saturating_add(amount.get());
        if *refunded > refundable {
            find(format!("{hold} is refunded what a free tier paid"));
        }
        entries
    }
}
