//! The ledger's state and the rules by which a transaction changes it. `posting` moves the money. It checks every rule before it changes anything, for new transactions and replayed ones alike. Makes no decisions
//! and reads no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::budget_rule::{BudgetReservation, BudgetedHold};
use crate::calendar::MonthNumber;
use crate::command::{BudgetPeriod, LowBalance, Owner, ProjectBudget, SettleOutcome, StoredAnswer};
use crate::counters::BudgetState;
use crate::free_tier_state::FreeTierState;
use crate::hold_use::HoldUse;
use crate::lot::HoldFunding;
use crate::lot_state::LotState;
use crate::refund::ChargeRefunded;
use crate::refund_state::RefundState;
use crate::refusal::HoldResolution;
use crate::resolved::ResolvedHolds;
use crate::table::{Map, RowIndex, RowTable};
use crate::transaction::{HoldSettled, JournalEvent, Transaction};

/// The maximum length of an answer body that is kept for an idempotency key, in bytes.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;
/// The maximum size of all kept answers, in bytes. Beyond it, the oldest answers are dropped. Their keys stay, so that
/// no request is charged twice.
pub const MAX_ANSWERS_BYTES: usize = 64 << 20;
/// The maximum number of idempotency keys that are remembered per project.
pub const MAX_KEYS_PER_PROJECT: usize = 1_000_000;
/// How long an idempotency key stays taken after its call was settled.
pub(crate) const KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A rule that a transaction would break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleBreach {
    /// A sum does not fit 64 bits.
    Overflow,
    /// Any other rule.
    Rule(&'static str),
}

impl RuleBreach {
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::Overflow => "a sum overflows 64 bits",
            Self::Rule(why) => why,
        }
    }
}

/// The combined result of all transactions so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerState {
    pub(crate) time: UnixNanos,
    pub(crate) counts: StateCounts,
    pub(crate) platform: PlatformAccounts,
    pub(crate) available_total: i64,
    pub(crate) held_total: i64,
    pub(crate) orgs: RowTable<OrgId, OrgAccount>,
    pub(crate) projects: RowTable<ProjectId, ProjectAccount>,
    pub(crate) open: Map<HoldId, HeldFunds>,
    /// A lower bound for the expiry of all open holds. Holds usually end long before they expire, so maintaining the
    /// exact minimum would be wasted work.
    pub(crate) soonest: Option<UnixNanos>,
    pub(crate) resolved: ResolvedHolds,
    /// Keys of finished calls, oldest first.
    pub(crate) finished: VecDeque<(UnixNanos, ProjectId, Arc<str>)>,
    /// The entries of `finished` whose answer is kept, oldest first.
    pub(crate) kept: VecDeque<(ProjectId, Arc<str>)>,
    pub(crate) answers_bytes: usize,
    pub(crate) budgets: BudgetState,
    pub(crate) refunds: RefundState,
    pub(crate) lots: LotState,
    pub(crate) free_tiers: FreeTierState,
    /// The sum of what all organisations owe, as zero or a negative amount.
    pub(crate) receivable_total: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StateCounts {
    pub(crate) transactions: u64,
    pub(crate) holds: u64,
    pub(crate) settled: u64,
    pub(crate) released: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PlatformAccounts {
    pub(crate) paid_in: i64,
    pub(crate) promotional: i64,
    pub(crate) revenue: i64,
    pub(crate) loss: i64,
    pub(crate) refunded: i64,
    pub(crate) expired: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OrgAccount {
    pub(crate) available: i64,
    /// The amount held by all its projects.
    pub(crate) held: i64,
    /// The part of it that free tiers pay for.
    pub(crate) held_free: i64,
    /// The part of it that is to be owed under contracts.
    pub(crate) held_credit: i64,
    /// What it owes under contracts with what its calls in flight may come to owe, as zero or a negative amount.
    pub(crate) receivable: i64,
}

impl OrgAccount {
    /// What ended calls owe under contracts. A payment or a refund never takes more, because holds of calls in flight give back
    /// what they do not use.
    pub(crate) const fn debt(&self) -> i64 {
        self.receivable.saturating_neg().saturating_sub(self.held_credit)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ProjectAccount {
    pub(crate) org: OrgId,
    /// The row of its organisation.
    pub(crate) org_place: RowIndex,
    pub(crate) held: i64,
    pub(crate) spent: i64,
    /// The month of the last settlement. `spent_in_month` is the amount spent in it.
    pub(crate) month: MonthNumber,
    pub(crate) spent_in_month: i64,
    pub(crate) budget: Option<ProjectBudget>,
    pub(crate) low_balance: LowBalance,
    pub(crate) keys: HashMap<Arc<str>, IdempotencyEntry>,
}

/// An open hold, with the rows of its organisation and project.
#[derive(Debug, Clone)]
pub(crate) struct HeldFunds {
    pub(crate) org: RowIndex,
    pub(crate) project: RowIndex,
    pub(crate) amount: NanoDollars,
    pub(crate) owner: Owner,
    pub(crate) expires: UnixNanos,
    pub(crate) claim: Option<(Arc<str>, [u8; 32])>,
    pub(crate) budgeted: Option<Box<BudgetedHold>>,
    pub(crate) funding: Option<Box<HoldFunding>>,
}

/// The rows of the organisation and the project that a transaction concerns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartyRows {
    pub(crate) org: Option<RowIndex>,
    pub(crate) project: Option<RowIndex>,
}

#[derive(Debug, Clone)]
pub(crate) struct IdempotencyEntry {
    pub(crate) hold: HoldId,
    pub(crate) request_hash: [u8; 32],
    /// `None` while the call runs.
    pub(crate) finished: Option<FinishedAnswer>,
}

#[derive(Debug, Clone)]
pub(crate) struct FinishedAnswer {
    pub(crate) until: UnixNanos,
    pub(crate) answer: Option<Arc<StoredAnswer>>,
}

impl ProjectAccount {
    pub(crate) fn new(org: OrgId, org_place: RowIndex) -> Self {
        let (keys, month) = (HashMap::new(), MonthNumber::default());
        let low_balance = LowBalance::default();
        Self { org, org_place, held: 0, spent: 0, month, spent_in_month: 0, budget: None, low_balance, keys }
    }

    /// Returns the amount that counts against a budget of this period at `now`.
    pub(crate) fn spent_in(&self, period: BudgetPeriod, now: UnixNanos) -> i64 {
        match period {
            BudgetPeriod::Total => self.spent,
            BudgetPeriod::Month => self.spent_in_month_of(MonthNumber::of(now)),
        }
    }

    pub(crate) fn spent_in_month_of(&self, month: MonthNumber) -> i64 {
        if self.month == month { self.spent_in_month } else { 0 }
    }
}

impl HeldFunds {
    pub(crate) const fn parties(&self) -> PartyRows {
        PartyRows { org: Some(self.org), project: Some(self.project) }
    }
}

impl LedgerState {
    /// Looks up the parties of an event once. Later accesses compare the names and do not trust the row indices.
    pub(crate) fn parties(&self, event: &JournalEvent) -> PartyRows {
        let of_hold = |hold: &HoldId| self.open.get(hold).map(HeldFunds::parties).unwrap_or_default();
        match event {
            JournalEvent::Held(held) => self.parties_of(&held.project),
            JournalEvent::Extended { hold, .. } | JournalEvent::Released { hold, .. } => of_hold(hold),
            JournalEvent::Settled(settled) => of_hold(&settled.hold),
            JournalEvent::Granted { org, .. } => PartyRows { org: self.orgs.place(org), project: None },
            JournalEvent::Refunded(refund) => PartyRows { org: self.orgs.place(&refund.org), project: None },
            JournalEvent::LotMade(lot) => PartyRows { org: self.orgs.place(&lot.org), project: None },
            JournalEvent::DebtPaid { org, .. } => PartyRows { org: self.orgs.place(org), project: None },
            JournalEvent::ProjectOpened { .. }
            | JournalEvent::BudgetSet { .. }
            | JournalEvent::BudgetRuleSet { .. }
            | JournalEvent::BudgetRuleRemoved { .. }
            | JournalEvent::BudgetRaised { .. }
            | JournalEvent::AlertRaised(_)
            | JournalEvent::LotEnded { .. }
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::FreeTierSet { .. }
            | JournalEvent::FreeTierRemoved { .. }
            | JournalEvent::ClockSet { .. } => PartyRows::default(),
        }
    }

    /// Returns the rows of a project and its organisation.
    pub(crate) fn parties_of(&self, project: &ProjectId) -> PartyRows {
        let project = self.projects.place(project);
        let org = project.and_then(|place| self.projects.at(place)).map(|project| project.org_place);
        PartyRows { org, project }
    }

    pub(crate) fn names(&self, parties: PartyRows) -> Option<(OrgId, ProjectId)> {
        Some((self.orgs.name(parties.org?)?.clone(), self.projects.name(parties.project?)?.clone()))
    }

    /// Makes the transaction of an event at `time` and applies it. If it would break a rule, changes nothing and
    /// returns the rule.
    pub(crate) fn enact(&mut self, event: JournalEvent, time: UnixNanos) -> Result<Transaction, RuleBreach> {
        let parties = self.parties(&event);
        let entries = self.entries_for(&event, parties, time)?;
        let transaction = Transaction { time, event, entries };
        self.apply(&transaction, parties)?;
        Ok(transaction)
    }

    /// Applies a transaction read from a journal. Its entries must be those that its event makes.
    pub(crate) fn replay(&mut self, transaction: &Transaction) -> Result<(), RuleBreach> {
        let parties = self.parties(&transaction.event);
        if self.entries_for(&transaction.event, parties, transaction.time)? != transaction.entries {
            return Err(RuleBreach::Rule("a transaction's entries are not those of its event"));
        }
        self.apply(transaction, parties)
    }

    /// Applies a transaction. If it would break a rule, changes nothing and returns the rule.
    pub(crate) fn evolve(&mut self, transaction: &Transaction) -> Result<(), RuleBreach> {
        self.apply(transaction, self.parties(&transaction.event))
    }

    fn apply(&mut self, transaction: &Transaction, parties: PartyRows) -> Result<(), RuleBreach> {
        if transaction.time < self.time && !matches!(transaction.event, JournalEvent::ClockSet { .. }) {
            return Err(RuleBreach::Rule("ledger time runs backwards"));
        }
        self.check_entries(&transaction.entries, parties)?;
        self.check_event(&transaction.event, transaction.time, parties)?;
        self.time = transaction.time;
        self.counts.transactions += 1;
        self.forget_keys(transaction.time);
        self.post(&transaction.entries, parties);
        self.note(&transaction.event, transaction.time, parties);
        Ok(())
    }

    fn check_event(
        &self,
        event: &JournalEvent,
        now: UnixNanos,
        parties: PartyRows,
    ) -> Result<(), RuleBreach> {
        let rule = |holds: bool, why| if holds { Ok(()) } else { Err(RuleBreach::Rule(why)) };
        match event {
            JournalEvent::ProjectOpened { project, .. } => {
                rule(!self.projects.contains(project), "a project is opened twice")
            }
            JournalEvent::Granted { org, amount, .. } => {
                rule(*amount != NanoDollars::ZERO, "a grant of nothing")?;
                rule(self.orgs.contains(org), "a grant to an unknown organisation")
            }
            JournalEvent::BudgetSet { project, budget } => {
                rule(self.projects.contains(project), "a budget for an unknown project")?;
                rule(budget.is_none_or(|b| !b.limit.is_negative()), "a budget below zero")
            }
            JournalEvent::Held(held) => {
                let place = self.projects.place_near(&held.project, parties.project);
                let project = place.and_then(|place| self.projects.at(place));
                let project = project.ok_or(RuleBreach::Rule("an unknown project"))?;
                rule(project.org == held.org, "a hold on another organisation's project")?;
                rule(!held.amount.is_negative(), "a hold below zero")?;
                rule(!self.open.contains_key(&held.hold), "a hold is taken twice")?;
                rule(self.resolved.get(&held.hold).is_none(), "a resolved hold is taken again")?;
                let taken = held.claim.as_ref().and_then(|(key, _)| project.keys.get(key));
                let free = taken.is_none_or(|key| key.finished.as_ref().is_some_and(|f| f.until <= now));
                rule(free, "an idempotency key is claimed twice")?;
                self.check_reservations(
                    held.budgeted.as_ref().map(|held| held.reservations.as_slice()),
                    now,
                )?;
                self.check_funding(held.funding.as_deref(), held.amount, &held.org, now)
                    .map_err(RuleBreach::Rule)
            }
            JournalEvent::Extended { hold, amount, reservations, funding } => {
                let is_more = *amount > NanoDollars::ZERO;
                // A call that goes over to a model that costs no more reserves of the budgets of that model alone.
                let only_reserves =
                    *amount == NanoDollars::ZERO && !reservations.is_empty() && funding.is_none();
                rule(is_more || only_reserves, "a hold is extended by nothing")?;
                self.check_reservations(Some(reservations), now)?;
                let held =
                    self.open.get(hold).ok_or(RuleBreach::Rule("a hold is extended that is not open"))?;
                if let Some(funding) = funding {
                    let org = self.orgs.name(held.org).ok_or(RuleBreach::Rule("an unknown organisation"))?;
                    self.check_funding(Some(funding), *amount, org, now).map_err(RuleBreach::Rule)?;
                }
                held.amount.checked_add(*amount).map(|_| ()).map_err(|_| RuleBreach::Overflow)
            }
            JournalEvent::Settled(settled) => self.check_settled(settled, now),
            JournalEvent::Released { hold, .. } => {
                rule(self.open.contains_key(hold), "a hold is resolved that is not open")
            }
            JournalEvent::ClockSet { from } => {
                rule(*from == self.time, "the clock is set from a time that it did not show")?;
                rule(now < *from, "the clock is set to a time that is not earlier")
            }
            JournalEvent::BudgetRuleSet { number, rule: set } => {
                let known = self.budgets.by_name(&set.name).map(|state| state.number);
                let is_new = Some(*number) == self.budgets.last_number.checked_add(1);
                rule(known == Some(*number) || is_new, "a budget rule has the number of another one")
            }
            JournalEvent::BudgetRuleRemoved { number } | JournalEvent::BudgetRaised { number, .. } => {
                rule(self.budgets.by_number(*number).is_some(), "an unknown budget rule")
            }
            JournalEvent::AlertRaised(alert) => self.budgets.check_alert(alert).map_err(RuleBreach::Rule),
            JournalEvent::Refunded(refund) => self.check_refund(refund, now),
            JournalEvent::LotMade(_)
            | JournalEvent::LotEnded { .. }
            | JournalEvent::DebtPaid { .. }
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::FreeTierSet { .. }
            | JournalEvent::FreeTierRemoved { .. } => self.check_lot_event(event).map_err(RuleBreach::Rule),
        }
    }

    fn check_refund(&self, refund: &ChargeRefunded, now: UnixNanos) -> Result<(), RuleBreach> {
        let is_orgs = self.projects.get(&refund.project).is_some_and(|project| project.org == refund.org);
        if !is_orgs {
            return Err(RuleBreach::Rule("a refund to an unknown project"));
        }
        let settled = HoldResolution::Settled { charged: refund.charged };
        if self.open.contains_key(&refund.hold)
            || self.resolved.get(&refund.hold).is_some_and(|how| how != settled)
        {
            return Err(RuleBreach::Rule("a refund of a charge that was not made"));
        }
        self.refunds.check(refund).map_err(RuleBreach::Rule)?;
        self.check_refund_parts(refund, now).map_err(RuleBreach::Rule)
    }

    fn check_reservations(
        &self,
        reservations: Option<&[BudgetReservation]>,
        now: UnixNanos,
    ) -> Result<(), RuleBreach> {
        reservations
            .map_or(Ok(()), |reservations| self.budgets.check(reservations, now))
            .map_err(RuleBreach::Rule)
    }

    fn check_settled(&self, settled: &HoldSettled, now: UnixNanos) -> Result<(), RuleBreach> {
        let rule = |holds: bool, why| if holds { Ok(()) } else { Err(RuleBreach::Rule(why)) };
        let held =
            self.open.get(&settled.hold).ok_or(RuleBreach::Rule("a hold is resolved that is not open"))?;
        let project = self.projects.at(held.project).ok_or(RuleBreach::Rule("an unknown project"))?;
        rule(!settled.charged.is_negative(), "a charge below zero")?;
        rule(settled.charged <= held.amount, "a charge exceeds its hold")?;
        rule(!settled.loss.is_negative(), "a loss below zero")?;
        let waived = settled.outcome == SettleOutcome::Failed && held.claim.is_some();
        rule(!waived || settled.charged == NanoDollars::ZERO, "a failed call with a key is charged")?;
        let answer_size = settled.answer.as_deref().map_or(0, |a| a.body.len());
        rule(answer_size <= MAX_ANSWER_BYTES, "an answer is too long to keep")?;
        let charged = settled.charged.get();
        project.spent.checked_add(charged).ok_or(RuleBreach::Overflow)?;
        project.spent_in_month_of(MonthNumber::of(now)).checked_add(charged).ok_or(RuleBreach::Overflow)?;
        Ok(())
    }

    /// Records all changes other than money. `check_event` has proved that the event is allowed.
    fn note(&mut self, event: &JournalEvent, now: UnixNanos, parties: PartyRows) {
        match event {
            JournalEvent::ProjectOpened { org, project } => {
                let place = self.orgs.place_or_insert(org, OrgAccount::default);
                self.projects.place_or_insert(project, || ProjectAccount::new(org.clone(), place));
            }
            JournalEvent::Granted { .. } => {}
            JournalEvent::BudgetSet { project, budget } => {
                if let Some(project) = self.projects.get_mut(project) {
                    project.budget = *budget;
                }
            }
            JournalEvent::Held(held) => {
                self.counts.holds += 1;
                self.insert_open(held, parties);
                if let Some(budgeted) = &held.budgeted {
                    self.budgets.reserve(&budgeted.reservations, now);
                }
                if let Some(funding) = &held.funding {
                    self.note_drawn(funding, now);
                }
            }
            JournalEvent::Extended { hold, amount, reservations, funding } => {
                self.budgets.reserve(reservations, now);
                if let Some(funding) = funding {
                    self.note_drawn(funding, now);
                    let org = self.open.get(hold).map(|held| held.org);
                    self.hold_elsewhere(org, funding, 1);
                }
                if let Some(held) = self.open.get_mut(hold) {
                    let before = held.funding.as_deref();
                    let funding = HoldFunding::extended(before, held.amount, funding.as_deref(), *amount);
                    held.funding = funding.map(Box::new);
                    held.amount = held.amount.checked_add(*amount).unwrap_or(NanoDollars::MAX);
                    if !reservations.is_empty() {
                        let budgeted = held.budgeted.get_or_insert_default();
                        budgeted.reservations.extend_from_slice(reservations);
                    }
                }
            }
            JournalEvent::Settled(settled) => {
                self.counts.settled += 1;
                self.note_settled(settled, now);
            }
            JournalEvent::Released { hold, why } => {
                self.counts.released += 1;
                if let Some(held) = self.close(*hold, HoldResolution::Released { why: *why }) {
                    self.end_budgeted(&held, HoldUse::default(), None);
                    self.end_funding(&held, NanoDollars::ZERO, HoldUse::default());
                    self.free_key(&held);
                }
            }
            JournalEvent::ClockSet { from } => self.set_back(*from, now),
            JournalEvent::BudgetRuleSet { number, rule } => self.budgets.set(*number, rule),
            JournalEvent::BudgetRuleRemoved { number } => self.budgets.remove(*number),
            JournalEvent::BudgetRaised { number, raise } => self.budgets.raise(*number, *raise),
            JournalEvent::AlertRaised(alert) => self.budgets.note_alert(alert, now),
            JournalEvent::Refunded(refund) => {
                self.refunds.note(refund);
                self.note_refund_parts(refund, now);
            }
            JournalEvent::LotMade(_)
            | JournalEvent::LotEnded { .. }
            | JournalEvent::DebtPaid { .. }
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::FreeTierSet { .. }
            | JournalEvent::FreeTierRemoved { .. } => self.note_lot_event(event),
        }
    }

    /// Moves times that lie ahead of `from` to the same distance ahead of `to`. No project gets a budget twice: money
    /// spent in a month after `to` counts in the month of `to`.
    fn set_back(&mut self, from: UnixNanos, to: UnixNanos) {
        let moved = |time: UnixNanos| to.after(time.since(from));
        for held in self.open.values_mut() {
            held.expires = moved(held.expires);
        }
        self.soonest = self.open.values().map(|held| held.expires).min();
        for (until, project, name) in &mut self.finished {
            *until = moved(*until);
            let key = self.projects.get_mut(project).and_then(|project| project.keys.get_mut(name));
            if let Some(finished) = key.and_then(|key| key.finished.as_mut()) {
                finished.until = *until;
            }
        }
        let month = MonthNumber::of(to);
        for project in self.projects.values_mut() {
            project.month = project.month.min(month);
        }
        self.budgets.set_back(from, to);
        self.free_tiers.budgets.set_back(from, to);
    }
}
