//! The decisions of the ledger. The input is a command and a time. The output is a receipt and transactions, or a
//! refusal that changes nothing. Synchronous and deterministic: no clock, no randomness, no I/O. Decisions are only in
//! memory; `service` makes them durable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, Rounding, UnixNanos};

use crate::budget_decisions::{ModelChange, budgeted, change_of_model, extension};
use crate::budget_rule::{HoldDemand, ModelDemand};
use crate::command::{
    ChargeLine, GrantKind, IdempotencyClaim, LedgerOperation, Owner, ProjectBudget, Receipt, ReleaseReason,
    SettleOutcome, StoredAnswer,
};
use crate::command_time::CommandTime;
use crate::counters::HoldParties;
use crate::funding::FundingNeed;
use crate::refusal::LedgerRefusal;
use crate::standing::{HoldView, LedgerTotals, SpendableBalance, resets};
use crate::state::{
    HeldFunds, LedgerState, MAX_ANSWER_BYTES, MAX_KEYS_PER_PROJECT, PartyRows, ProjectAccount, RuleBreach,
};
use crate::table::Map;
use crate::transaction::{HoldSettled, HoldTaken, JournalEvent, Transaction};

/// The maximum length of an idempotency key, in bytes.
const MAX_KEY_BYTES: usize = 255;
/// The maximum length of a reference, in bytes.
pub(crate) const MAX_REFERENCE_BYTES: usize = 256;
/// The maximum number of lines of one bill. A call of several rounds has lines for each of them.
pub const MAX_LINES: usize = 448;

/// The state, and the latest time that it has seen.
#[derive(Debug, Clone, Default)]
pub struct LedgerCore {
    pub(crate) state: LedgerState,
    pub(crate) latest: UnixNanos,
    /// The times until which holds do not expire because their owner is still working. They mean nothing to another
    /// process, which releases the holds of this one at its start, so they are not in the journal. They are kept apart
    /// from the state because a failed write can reopen a hold that was ended.
    kept: Map<HoldId, UnixNanos>,
}

/// The result of a successful command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedCommand {
    /// The receipt.
    pub receipt: Receipt,
    /// The transactions that must be made durable. Empty if the command changed nothing.
    pub transactions: Vec<Transaction>,
}

impl From<RuleBreach> for LedgerRefusal {
    fn from(breach: RuleBreach) -> Self {
        match breach {
            RuleBreach::Overflow => Self::Overflow,
            RuleBreach::Rule(why) => Self::Inconsistent { why },
        }
    }
}

impl LedgerCore {
    /// Creates an empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn over(state: LedgerState) -> Self {
        Self { latest: state.time, state, kept: Map::default() }
    }

    /// Replaces the state, for example after a failed write. Ledger time does not go back.
    pub(crate) fn rebase(&mut self, state: LedgerState) {
        self.latest = self.latest.max(state.time);
        self.state = state;
    }

    /// Records at `now` that the owner of the hold is still working. The hold does not expire for another `lifetime`.
    pub fn keep(&mut self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        self.latest = self.latest.max(now);
        self.kept.insert(hold, self.latest.after(lifetime));
    }

    /// Decides one command at `now`, like [`LedgerCore::apply_to`].
    ///
    /// # Errors
    /// Returns the refusal. Nothing is changed then.
    pub fn apply(
        &mut self,
        command: LedgerOperation,
        now: UnixNanos,
    ) -> Result<AppliedCommand, LedgerRefusal> {
        let mut transactions = Vec::new();
        let receipt = self.apply_to(command, now, &mut transactions)?;
        Ok(AppliedCommand { receipt, transactions })
    }

    /// Decides one command at `now`, and appends the transactions that must be made durable to `out`. If `now` is
    /// before the latest time seen, that latest time is used, so that ledger time never runs backwards. An expiry is
    /// moved by the same amount.
    ///
    /// # Errors
    /// Returns the refusal. Nothing is changed then.
    pub fn apply_to(
        &mut self,
        command: LedgerOperation,
        now: UnixNanos,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        if !matches!(command, LedgerOperation::SetClock) {
            self.latest = self.latest.max(now);
        }
        let now = CommandTime { ledger: self.latest, caller: now };
        self.state.forget_keys(now.ledger);
        match command {
            LedgerOperation::OpenProject { org, project } => self.open_project(org, project, now, out),
            LedgerOperation::Grant { org, amount, kind, reference } => {
                self.grant(org, amount, kind, &reference, now, out)
            }
            LedgerOperation::SetBudget { org, project, budget } => {
                self.set_budget(&org, project, budget, now, out)
            }
            LedgerOperation::SetBudgetRule { rule } => self.set_budget_rule(rule, now, out),
            LedgerOperation::RemoveBudgetRule { name } => self.remove_budget_rule(&name, now, out),
            LedgerOperation::RaiseBudget { name, raise } => self.raise_budget(&name, raise, now, out),
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand } => {
                let (claim, budgeted, funding) = (None, None, None);
                let wanted =
                    HoldTaken { hold, org, project, amount, owner, expires, claim, budgeted, funding };
                self.hold(wanted, (idempotency, demand.as_ref()), now, out)
            }
            LedgerOperation::Extend { hold, amount, model } => {
                self.extend(hold, (amount, model.as_deref()), now, out)
            }
            LedgerOperation::Settle { hold, lines, loss, outcome, answer } => {
                self.settle(hold, lines, loss, (outcome, answer), now, out)
            }
            LedgerOperation::Release { hold, why } => self.release(hold, why, now, out),
            LedgerOperation::MakeLot { org, terms } => self.make_lot(org, *terms, now, out),
            LedgerOperation::EndLot { lot } => self.end_lot(lot, now, out),
            LedgerOperation::PayDebt { org, amount, reference } => {
                self.pay(org, amount, &reference, now, out)
            }
            LedgerOperation::SetLowBalance { org, project, policy } => {
                self.set_low_balance(&org, project, policy, now, out)
            }
            LedgerOperation::SetFreeTier { tier } => self.set_free_tier(tier, now, out),
            LedgerOperation::RemoveFreeTier { name } => self.remove_free_tier(&name, now, out),
            LedgerOperation::Refund { charge, amount, reference } => {
                self.refund(*charge, amount, &reference, now, out)
            }
            LedgerOperation::ReleaseOwners { ended } => {
                let orphans = self.state.open.iter().filter(|(_, held)| ended.contains(&held.owner));
                let mut holds: Vec<_> = orphans.map(|(hold, _)| *hold).collect();
                holds.sort_unstable();
                Ok(self.release_many(&holds, ReleaseReason::Orphaned, now, out))
            }
            LedgerOperation::ExpireHolds => Ok(self.expire(None, now, out)),
            LedgerOperation::SetClock => self.set_clock(now.caller, out),
        }
    }

    /// Releases the holds of one owner whose expiry has passed. Whether an owner still works on a hold is known in its
    /// own process only.
    pub(crate) fn expire_own(&mut self, owner: Owner, now: UnixNanos, out: &mut Vec<Transaction>) -> Receipt {
        self.latest = self.latest.max(now);
        let now = CommandTime { ledger: self.latest, caller: now };
        self.state.forget_keys(now.ledger);
        self.expire(Some(owner), now, out)
    }

    /// Applies a transaction that another gateway decided.
    pub(crate) fn follow(&mut self, transaction: &Transaction) -> Result<(), RuleBreach> {
        self.state.evolve(transaction)?;
        match transaction.event {
            JournalEvent::ClockSet { .. } => self.turn_back(transaction.time),
            _ => self.latest = self.latest.max(transaction.time),
        }
        Ok(())
    }

    /// Releases the holds whose expiry has passed: those of `owner`, or of all owners.
    fn expire(&mut self, owner: Option<Owner>, now: CommandTime, out: &mut Vec<Transaction>) -> Receipt {
        self.kept.retain(|_, until| *until > now.ledger);
        let mut holds = self.state.due(now.ledger);
        let is_of_owner =
            |hold: &HoldId| owner.is_none() || self.state.open.get(hold).map(|held| held.owner) == owner;
        holds.retain(|hold| !self.kept.contains_key(hold) && is_of_owner(hold));
        self.end_lots(None, now, out);
        self.release_many(&holds, ReleaseReason::Expired, now, out)
    }

    /// Sets the latest time back. What is kept keeps its remaining time.
    fn turn_back(&mut self, to: UnixNanos) {
        let latest = std::mem::replace(&mut self.latest, to);
        for until in self.kept.values_mut() {
            *until = to.after(until.since(latest));
        }
    }

    fn set_clock(&mut self, to: UnixNanos, out: &mut Vec<Transaction>) -> Result<Receipt, LedgerRefusal> {
        let from = self.state.time;
        if to >= from {
            let why = "the ledger's time is not ahead of it: there is nothing to set back";
            return Err(LedgerRefusal::Invalid { field: "clock", why });
        }
        self.commit(JournalEvent::ClockSet { from }, CommandTime { ledger: to, caller: to }, out)?;
        self.turn_back(to);
        Ok(Receipt::ClockSet { from, to })
    }

    fn open_project(
        &mut self,
        org: OrgId,
        project: ProjectId,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        match self.state.projects.get(&project) {
            Some(known) if known.org == org => Ok(Receipt::ProjectOpened { created: false }),
            Some(_) => Err(LedgerRefusal::ProjectTaken { project }),
            None => {
                self.commit(JournalEvent::ProjectOpened { org, project }, now, out)?;
                Ok(Receipt::ProjectOpened { created: true })
            }
        }
    }

    fn grant(
        &mut self,
        org: OrgId,
        amount: NanoDollars,
        kind: GrantKind,
        reference: &str,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let Some(place) = self.state.orgs.place(&org) else { return Err(LedgerRefusal::UnknownOrg { org }) };
        if amount == NanoDollars::ZERO {
            return Err(LedgerRefusal::Invalid { field: "amount", why: "a grant must not be zero" });
        }
        let available = self.state.orgs.at(place).map_or(0, |org| org.available);
        if available.saturating_add(amount.get()) < 0 {
            let why = "a correction must not take more than is there and not held";
            return Err(LedgerRefusal::Invalid { field: "amount", why });
        }
        if reference.len() > MAX_REFERENCE_BYTES {
            return Err(LedgerRefusal::Invalid { field: "reference", why: "it must have at most 256 bytes" });
        }
        self.commit(JournalEvent::Granted { org, kind, amount, reference: reference.into() }, now, out)?;
        let balance = self.state.orgs.at(place).map_or(0, |org| org.available.saturating_add(org.held));
        Ok(Receipt::Granted { balance: NanoDollars::new(balance) })
    }

    fn set_budget(
        &mut self,
        org: &OrgId,
        project: ProjectId,
        budget: Option<ProjectBudget>,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        if self.state.projects.get(&project).is_none_or(|known| known.org != *org) {
            return Err(LedgerRefusal::UnknownProject { project });
        }
        if budget.is_some_and(|budget| budget.limit.is_negative()) {
            return Err(LedgerRefusal::Invalid { field: "budget", why: "it must not be below zero" });
        }
        self.commit(JournalEvent::BudgetSet { project, budget }, now, out)?;
        Ok(Receipt::BudgetSet)
    }

    fn hold(
        &mut self,
        mut wanted: HoldTaken,
        (claim, demand): (Option<IdempotencyClaim>, Option<&HoldDemand>),
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let HoldTaken { hold, amount, .. } = wanted;
        if amount.is_negative() {
            return Err(LedgerRefusal::Invalid { field: "amount", why: "a hold must not be below zero" });
        }
        if wanted.expires <= now.caller {
            return Err(LedgerRefusal::Invalid { field: "expires", why: "it must lie ahead" });
        }
        wanted.expires = now.ledger.after(wanted.expires.since(now.caller));
        if self.state.knows(&hold) {
            return Err(LedgerRefusal::DuplicateHold { hold });
        }
        let parties = self.state.parties_of(&wanted.project);
        let project = parties.project.and_then(|place| self.state.projects.at(place));
        let Some(project) = project.filter(|known| known.org == wanted.org) else {
            return Err(LedgerRefusal::UnknownProject { project: wanted.project });
        };
        // The key is checked first, because a replay costs nothing and needs no balance.
        wanted.claim = match claim {
            Some(claim) => Some(Self::claim(&wanted.project, project, claim)?),
            None => None,
        };
        let of = HoldParties { org: &wanted.org, project: &wanted.project, demand };
        let has_other_funding = self.state.has_other_funding(of);
        if has_other_funding {
            let need = FundingNeed { parties: of, rows: parties, amount, now: now.ledger };
            wanted.funding = self.state.fund(need)?.map(Box::new);
        } else {
            self.check_money(amount, parties)?;
        }
        self.check_budget(amount, parties, now.ledger)?;
        wanted.budgeted = budgeted(&self.state.budgets, of, amount, now.ledger)?;
        let project = has_other_funding.then(|| wanted.project.clone());
        self.commit(JournalEvent::Held(wanted), now, out)?;
        let free = project.and_then(|project| self.free_and_tidy(&project, demand, now, out));
        Ok(Receipt::Held { hold, amount, available: self.available(parties), free })
    }

    fn extend(
        &mut self,
        hold: HoldId,
        (amount, model): (NanoDollars, Option<&ModelDemand>),
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let is_more = amount > NanoDollars::ZERO;
        if amount.is_negative() || !(is_more || model.is_some()) {
            let why = "a hold is extended by more than nothing";
            return Err(LedgerRefusal::Invalid { field: "amount", why });
        }
        let held = self.open_hold(hold)?;
        let parties = held.parties();
        let amount_after = held.amount.checked_add(amount).map_err(|_| LedgerRefusal::Overflow)?;
        let funding = if is_more { self.fund_extension(hold, amount, now)? } else { None };
        if is_more {
            self.check_budget(amount, parties, now.ledger)?;
        }
        let budgeted = self.open_hold(hold)?.budgeted.as_deref();
        let reservations = match model {
            None => extension(&self.state.budgets, budgeted, amount, now.ledger)?,
            Some(_) if !self.state.budgets.has_rules() => Vec::new(),
            Some(to) => {
                let (org, _) = self.state.names(parties).ok_or(LedgerRefusal::UnknownHold { hold })?;
                let change = ModelChange { org: &org, amount, to };
                change_of_model(&self.state.budgets, budgeted, change, now.ledger)?
            }
        };
        if is_more || !reservations.is_empty() {
            self.commit(JournalEvent::Extended { hold, amount, reservations, funding }, now, out)?;
        }
        Ok(Receipt::Extended { hold, amount: amount_after, available: self.available(parties) })
    }

    /// Returns the amount that an organisation can still hold.
    fn available(&self, parties: PartyRows) -> NanoDollars {
        let org = parties.org.and_then(|place| self.state.orgs.at(place));
        NanoDollars::new(org.map_or(0, |org| org.available))
    }

    fn claim(
        name: &ProjectId,
        project: &ProjectAccount,
        claim: IdempotencyClaim,
    ) -> Result<(Arc<str>, [u8; 32]), LedgerRefusal> {
        let IdempotencyClaim { key, request_hash } = claim;
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(LedgerRefusal::Invalid {
                field: "idempotency key",
                why: "it must have 1 to 255 bytes",
            });
        }
        let Some(taken) = project.keys.get(key.as_str()) else {
            if project.keys.len() >= MAX_KEYS_PER_PROJECT {
                let limit = MAX_KEYS_PER_PROJECT;
                return Err(LedgerRefusal::TooManyKeys { project: name.clone(), limit });
            }
            return Ok((key.into(), request_hash));
        };
        let hold = taken.hold;
        if taken.request_hash != request_hash {
            return Err(LedgerRefusal::IdempotencyMismatch { hold });
        }
        Err(match &taken.finished {
            None => LedgerRefusal::IdempotencyInFlight { hold },
            Some(finished) => LedgerRefusal::IdempotencyReplay { hold, answer: finished.answer.clone() },
        })
    }

    pub(crate) fn check_money(&self, needed: NanoDollars, parties: PartyRows) -> Result<(), LedgerRefusal> {
        let org = parties.org.and_then(|place| self.state.orgs.at(place)).copied().unwrap_or_default();
        if needed.get() <= org.available {
            return Ok(());
        }
        let (own, covered) = (org.available, org.available);
        Err(self.state.short_funds(parties, needed, (own, covered), None))
    }

    fn check_budget(
        &self,
        needed: NanoDollars,
        parties: PartyRows,
        now: UnixNanos,
    ) -> Result<(), LedgerRefusal> {
        let project = parties.project.and_then(|place| self.state.projects.row(place));
        let Some((name, project)) = project else { return Ok(()) };
        let Some(ProjectBudget { limit, period }) = project.budget else { return Ok(()) };
        let (spent, held) = (project.spent_in(period, now), project.held);
        let committed = spent.checked_add(held).and_then(|sum| sum.checked_add(needed.get()));
        if committed.is_some_and(|committed| committed <= limit.get()) {
            return Ok(());
        }
        Err(LedgerRefusal::BudgetExceeded {
            project: name.clone(),
            limit,
            spent: NanoDollars::new(spent),
            held: NanoDollars::new(held),
            needed,
            resets: resets(period, now),
        })
    }

    pub(crate) fn open_hold(&self, hold: HoldId) -> Result<&HeldFunds, LedgerRefusal> {
        match self.state.open.get(&hold) {
            Some(held) => Ok(held),
            None => Err(match self.state.resolved.get(&hold) {
                Some(how) => LedgerRefusal::AlreadyResolved { hold, how },
                None => LedgerRefusal::UnknownHold { hold },
            }),
        }
    }

    fn settle(
        &mut self,
        hold: HoldId,
        lines: Vec<ChargeLine>,
        loss: NanoDollars,
        (outcome, answer): (SettleOutcome, Option<StoredAnswer>),
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let held = self.open_hold(hold)?;
        let used = check_lines(&lines)?;
        if loss.is_negative() {
            return Err(LedgerRefusal::Invalid { field: "loss", why: "it must not be below zero" });
        }
        // A failed call frees its idempotency key. If it were charged, its request would be charged twice.
        let waived = outcome == SettleOutcome::Failed && held.claim.is_some();
        let charged = if waived { NanoDollars::ZERO } else { used.min(held.amount) };
        let overflow = |_| LedgerRefusal::Overflow;
        let exceeded =
            if waived { NanoDollars::ZERO } else { used.checked_sub(charged).map_err(overflow)? };
        let written_off =
            used.checked_sub(charged).and_then(|more| loss.checked_add(more)).map_err(overflow)?;
        let returned = held.amount.checked_sub(charged).map_err(overflow)?;
        let keep = outcome == SettleOutcome::Completed && held.claim.is_some();
        let answer = answer.filter(|answer| keep && answer.body.len() <= MAX_ANSWER_BYTES).map(Arc::new);
        let answer_kept = answer.is_some();
        let settled = HoldSettled { hold, lines, charged, loss: written_off, outcome, answer };
        let budgeted = if self.state.budgets.has_rules() { held.budgeted.clone() } else { None };
        self.commit(JournalEvent::Settled(settled), now, out)?;
        if let Some(budgeted) = budgeted {
            self.raise_alerts(&budgeted, now, out);
        }
        Ok(Receipt::Settled { hold, charged, returned, loss: written_off, exceeded, answer_kept })
    }

    fn release(
        &mut self,
        hold: HoldId,
        why: ReleaseReason,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let returned = self.open_hold(hold)?.amount;
        self.commit(JournalEvent::Released { hold, why }, now, out)?;
        Ok(Receipt::Released { hold, returned })
    }

    /// Releases each of the holds. A hold that cannot be released stays open and is left out of the receipt.
    fn release_many(
        &mut self,
        holds: &[HoldId],
        why: ReleaseReason,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Receipt {
        let mut released = Vec::with_capacity(holds.len());
        let mut returned = NanoDollars::ZERO;
        for hold in holds {
            if let Ok(Receipt::Released { returned: amount, .. }) = self.release(*hold, why, now, out) {
                returned = returned.checked_add(amount).unwrap_or(NanoDollars::MAX);
                released.push(*hold);
            }
        }
        Receipt::ReleasedMany { holds: released, returned }
    }

    /// Makes the event's transaction and applies it.
    pub(crate) fn commit(
        &mut self,
        event: JournalEvent,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<(), LedgerRefusal> {
        out.push(self.state.enact(event, now.ledger)?);
        Ok(())
    }

    /// Returns the standing of an organisation and one of its projects at `now`. `None` if the project is not the
    /// organisation's.
    pub fn standing(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<SpendableBalance> {
        self.state.standing(org, project, now.max(self.latest))
    }

    /// Returns the state of a hold, as far as it is remembered.
    pub fn hold_view(&self, hold: &HoldId) -> Option<HoldView> {
        self.state.hold(hold)
    }

    /// Returns the time of the newest transaction.
    pub fn time(&self) -> UnixNanos {
        self.state.time
    }

    /// Returns the totals over the whole ledger.
    pub fn totals(&self) -> LedgerTotals {
        self.state.totals()
    }

    /// Returns all projects with their organisations, sorted by both names.
    pub fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        let projects = self.state.projects.iter();
        let mut all: Vec<_> = projects.map(|(id, project)| (project.org.clone(), id.clone())).collect();
        all.sort_unstable();
        all
    }

    /// Returns the owners of all open holds, in order and each once.
    pub fn owners(&self) -> Vec<Owner> {
        let owners: BTreeSet<Owner> = self.state.open.values().map(|held| held.owner).collect();
        owners.into_iter().collect()
    }

    /// Returns all open holds, oldest id first.
    pub fn open_holds(&self) -> Vec<HoldTaken> {
        self.state.open_holds()
    }
}

/// Returns the sum of the lines. The amount of each line must equal its price times its tokens.
fn check_lines(lines: &[ChargeLine]) -> Result<NanoDollars, LedgerRefusal> {
    if lines.len() > MAX_LINES {
        return Err(LedgerRefusal::Invalid { field: "lines", why: "a bill has at most 448 lines" });
    }
    for line in lines {
        let cost = line.price.cost(line.tokens, Rounding::Nearest).map_err(|_| LedgerRefusal::Overflow)?;
        if cost != line.amount {
            let why = "a line's amount is not its tokens times its price";
            return Err(LedgerRefusal::Invalid { field: "lines", why });
        }
    }
    NanoDollars::checked_sum(lines.iter().map(|line| line.amount)).map_err(|_| LedgerRefusal::Overflow)
}
