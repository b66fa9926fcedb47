//! Checks and posts the entries of transactions: the only place where money moves between accounts. Knows no events.

use headrace_domain::NanoDollars;

use crate::state::{LedgerState, PartyRows, RuleBreach};
use crate::transaction::{Account, MoneyEntry};

impl LedgerState {
    /// Checks that the entries sum to zero, and that no balance overflows or falls below zero.
    pub(crate) fn check_entries(&self, entries: &[MoneyEntry], parties: PartyRows) -> Result<(), RuleBreach> {
        let sum = NanoDollars::checked_sum(entries.iter().map(|entry| entry.amount));
        if sum.map_err(|_| RuleBreach::Overflow)? != NanoDollars::ZERO {
            return Err(RuleBreach::Rule("a transaction's entries do not sum to zero"));
        }
        let (mut available_total, mut held_total) = (self.available_total, self.held_total);
        let (mut lots_total, mut receivable_total) = (self.lots.total, self.receivable_total);
        for (n, MoneyEntry { account, amount }) in entries.iter().enumerate() {
            if entries.iter().take(n).any(|earlier| earlier.account == *account) {
                return Err(RuleBreach::Rule("a transaction names an account twice"));
            }
            let add = |balance: i64| balance.checked_add(amount.get()).ok_or(RuleBreach::Overflow);
            let never_negative =
                |balance: i64, rule| if balance < 0 { Err(RuleBreach::Rule(rule)) } else { Ok(()) };
            match account {
                Account::PaidIn => add(self.platform.paid_in).map(|_| ())?,
                Account::Promotional => add(self.platform.promotional).map(|_| ())?,
                Account::Revenue => add(self.platform.revenue).map(|_| ())?,
                Account::Loss => add(self.platform.loss).map(|_| ())?,
                Account::Refunded => add(self.platform.refunded).map(|_| ())?,
                Account::Expired => add(self.platform.expired).map(|_| ())?,
                Account::Lot(id) => {
                    let known = self.lots.get(*id).map(|of| of.left);
                    let left = known.or((*id == self.lots.next_id()).then_some(0));
                    let left = left.ok_or(RuleBreach::Rule("an unknown lot"))?;
                    never_negative(add(left)?, "a lot is negative")?;
                    lots_total = add(lots_total)?;
                }
                Account::Receivable(org) => {
                    let place = self.orgs.place_near(org, parties.org);
                    let org = place.and_then(|place| self.orgs.at(place));
                    let org = org.ok_or(RuleBreach::Rule("an unknown organisation"))?;
                    let owed = add(org.receivable)?.checked_neg().ok_or(RuleBreach::Overflow)?;
                    never_negative(owed, "an organisation owes less than nothing")?;
                    receivable_total = add(receivable_total)?;
                }
                Account::Available(org) => {
                    let place = self.orgs.place_near(org, parties.org);
                    let org = place.and_then(|place| self.orgs.at(place));
                    let org = org.ok_or(RuleBreach::Rule("an unknown organisation"))?;
                    never_negative(add(org.available)?, "an available balance is negative")?;
                    available_total = add(available_total)?;
                }
                Account::Held(project) => {
                    let place = self.projects.place_near(project, parties.project);
                    let project = place.and_then(|place| self.projects.at(place));
                    let project = project.ok_or(RuleBreach::Rule("an unknown project"))?;
                    never_negative(add(project.held)?, "a held balance is negative")?;
                    held_total = add(held_total)?;
                }
            }
        }
        // All held money may become available again, so the sum of both totals must fit.
        let sum = available_total.checked_add(held_total).and_then(|sum| sum.checked_add(lots_total));
        sum.and_then(|_| receivable_total.checked_neg()).map(|_| ()).ok_or(RuleBreach::Overflow)
    }

    /// Moves the money. `check_entries` has proved that every account exists and no sum overflows.
    pub(crate) fn post(&mut self, entries: &[MoneyEntry], parties: PartyRows) {
        for MoneyEntry { account, amount } in entries {
            let amount = amount.get();
            match account {
                Account::PaidIn => self.platform.paid_in += amount,
                Account::Promotional => self.platform.promotional += amount,
                Account::Revenue => self.platform.revenue += amount,
                Account::Loss => self.platform.loss += amount,
                Account::Refunded => self.platform.refunded += amount,
                Account::Expired => self.platform.expired += amount,
                Account::Lot(id) => self.lots.post(*id, amount),
                Account::Receivable(org) => {
                    let place = self.orgs.place_near(org, parties.org);
                    if let Some(org) = place.and_then(|place| self.orgs.at_mut(place)) {
                        org.receivable += amount;
                        self.receivable_total += amount;
                    }
                }
                Account::Available(org) => {
                    let place = self.orgs.place_near(org, parties.org);
                    if let Some(org) = place.and_then(|place| self.orgs.at_mut(place)) {
                        org.available += amount;
                        self.available_total += amount;
                    }
                }
                Account::Held(project) => {
                    let place = self.projects.place_near(project, parties.project);
                    if let Some(project) = place.and_then(|place| self.projects.at_mut(place)) {
                        project.held += amount;
                        self.held_total += amount;
                        if let Some(org) = self.orgs.at_mut(project.org_place) {
                            org.held += amount;
                        }
                    }
                }
            }
        }
    }
}
