//! The ledger's decisions: a command and a time in, a receipt and transactions out, or a refusal that changes nothing.
//! Synchronous and deterministic: no clock, no randomness, no I/O. What it decides is in memory only; `service`
//! makes it durable.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, Rounding, UnixNanos};

use crate::command::{
    Budget, ChargeLine, Command, GrantKind, IdempotencyClaim, Receipt, ReleaseReason, SettleOutcome,
    StoredAnswer,
};
use crate::refusal::LedgerRefusal;
use crate::standing::{HoldView, Standing, Totals, resets};
use crate::state::{Breach, MAX_ANSWER_BYTES, MAX_KEYS_PER_PROJECT, Map, State};
use crate::transaction::{Event, Held, Settled, Transaction};

/// Longest idempotency key, in bytes.
const MAX_KEY_BYTES: usize = 255;
/// Longest reference of a grant, in bytes.
const MAX_REFERENCE_BYTES: usize = 256;
/// Most lines of one bill.
const MAX_LINES: usize = 64;

/// The state and the latest time that it has seen.
#[derive(Debug, Clone, Default)]
pub struct Core {
    state: State,
    latest: UnixNanos,
    /// Holds whose owner said that it is still at work, and until when they do not expire for that. Of no meaning to
    /// another process, which releases the holds of this one at its start; so it is in no journal. It stands beside the
    /// state, because a hold that was ended may be open again when a write has failed.
    kept: Map<HoldId, UnixNanos>,
}

/// A command that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// What it did.
    pub receipt: Receipt,
    /// What must be made durable; empty if the command changed nothing.
    pub transactions: Vec<Transaction>,
}

/// A command's time: the ledger's, and how far it is ahead of the caller's clock.
#[derive(Clone, Copy)]
struct Now {
    ledger: UnixNanos,
    caller: UnixNanos,
}

impl From<Breach> for LedgerRefusal {
    fn from(breach: Breach) -> Self {
        match breach {
            Breach::Overflow => Self::Overflow,
            Breach::Rule(why) => Self::Inconsistent { why },
        }
    }
}

impl Core {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn over(state: State) -> Self {
        Self { latest: state.time, state, kept: Map::default() }
    }

    /// Puts another state in place of this one, as after a failed write. Ledger time stays where it was.
    pub(crate) fn rebase(&mut self, state: State) {
        self.latest = self.latest.max(state.time);
        self.state = state;
    }

    /// Says at `now` that whoever took the hold is still at work: it does not expire for another `lifetime`.
    pub fn keep(&mut self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        self.latest = self.latest.max(now);
        self.kept.insert(hold, self.latest.after(lifetime));
    }

    /// Decides one command at `now`. A `now` before the latest one seen counts as that one, so that ledger time never
    /// runs backwards; an expiry is moved by the same amount.
    ///
    /// # Errors
    /// A refusal, and nothing is changed.
    pub fn apply(&mut self, command: Command, now: UnixNanos) -> Result<Applied, LedgerRefusal> {
        if command != Command::SetClock {
            self.latest = self.latest.max(now);
        }
        let now = Now { ledger: self.latest, caller: now };
        self.state.forget_keys(now.ledger);
        match command {
            Command::OpenProject { org, project } => self.open_project(org, project, now),
            Command::Grant { org, amount, kind, reference } => self.grant(org, amount, kind, &reference, now),
            Command::SetBudget { org, project, budget } => self.set_budget(&org, project, budget, now),
            Command::Hold { hold, org, project, amount, owner, expires, idempotency } => {
                let wanted = Held { hold, org, project, amount, owner, expires, claim: None };
                self.hold(wanted, idempotency, now)
            }
            Command::Extend { hold, amount } => self.extend(hold, amount, now),
            Command::Settle { hold, lines, loss, outcome, answer } => {
                self.settle(hold, lines, loss, outcome, answer, now)
            }
            Command::Release { hold, why } => self.release(hold, why, now),
            Command::ReleaseOrphans { current_owner } => {
                let orphans = self.state.open.values().filter(|held| held.owner != current_owner);
                let mut holds: Vec<_> = orphans.map(|held| held.hold).collect();
                holds.sort_unstable();
                Ok(self.release_many(&holds, ReleaseReason::Orphaned, now))
            }
            Command::ExpireHolds => {
                let due = self.state.expiries.iter().take_while(|(expires, _)| *expires <= now.ledger);
                self.kept.retain(|_, until| *until > now.ledger);
                let is_over = |hold: &HoldId| !self.kept.contains_key(hold);
                let holds: Vec<_> = due.map(|(_, hold)| *hold).filter(is_over).collect();
                Ok(self.release_many(&holds, ReleaseReason::Expired, now))
            }
            Command::SetClock => self.set_clock(now.caller),
        }
    }

    fn set_clock(&mut self, to: UnixNanos) -> Result<Applied, LedgerRefusal> {
        let from = self.state.time;
        if to >= from {
            let why = "the ledger's time is not ahead of it: there is nothing to set back";
            return Err(LedgerRefusal::Invalid { field: "clock", why });
        }
        let set = self.commit(Event::ClockSet { from }, Now { ledger: to, caller: to })?;
        let latest = std::mem::replace(&mut self.latest, to);
        for until in self.kept.values_mut() {
            *until = to.after(until.since(latest));
        }
        Ok(applied(Receipt::ClockSet { from, to }, set))
    }

    fn open_project(&mut self, org: OrgId, project: ProjectId, now: Now) -> Result<Applied, LedgerRefusal> {
        match self.state.projects.get(&project) {
            Some(known) if known.org == org => {
                let receipt = Receipt::ProjectOpened { created: false };
                Ok(Applied { receipt, transactions: Vec::new() })
            }
            Some(_) => Err(LedgerRefusal::ProjectTaken { project }),
            None => {
                let opened = self.commit(Event::ProjectOpened { org, project }, now)?;
                Ok(applied(Receipt::ProjectOpened { created: true }, opened))
            }
        }
    }

    fn grant(
        &mut self,
        org: OrgId,
        amount: NanoDollars,
        kind: GrantKind,
        reference: &str,
        now: Now,
    ) -> Result<Applied, LedgerRefusal> {
        if !self.state.orgs.contains_key(&org) {
            return Err(LedgerRefusal::UnknownOrg { org });
        }
        if amount == NanoDollars::ZERO {
            return Err(LedgerRefusal::Invalid { field: "amount", why: "a grant must not be zero" });
        }
        let available = self.state.orgs.get(&org).map_or(0, |org| org.available);
        if available.saturating_add(amount.get()) < 0 {
            let why = "a correction must not take more than is there and not held";
            return Err(LedgerRefusal::Invalid { field: "amount", why });
        }
        if reference.len() > MAX_REFERENCE_BYTES {
            return Err(LedgerRefusal::Invalid { field: "reference", why: "it must have at most 256 bytes" });
        }
        let event = Event::Granted { org: org.clone(), kind, amount, reference: reference.into() };
        let granted = self.commit(event, now)?;
        let balance = self.state.orgs.get(&org).map_or(0, |org| org.available.saturating_add(org.held));
        Ok(applied(Receipt::Granted { balance: NanoDollars::new(balance) }, granted))
    }

    fn set_budget(
        &mut self,
        org: &OrgId,
        project: ProjectId,
        budget: Option<Budget>,
        now: Now,
    ) -> Result<Applied, LedgerRefusal> {
        if self.state.projects.get(&project).is_none_or(|known| known.org != *org) {
            return Err(LedgerRefusal::UnknownProject { project });
        }
        if budget.is_some_and(|budget| budget.limit.is_negative()) {
            return Err(LedgerRefusal::Invalid { field: "budget", why: "it must not be below zero" });
        }
        let set = self.commit(Event::BudgetSet { project, budget }, now)?;
        Ok(applied(Receipt::BudgetSet, set))
    }

    fn hold(
        &mut self,
        mut wanted: Held,
        claim: Option<IdempotencyClaim>,
        now: Now,
    ) -> Result<Applied, LedgerRefusal> {
        let Held { hold, amount, .. } = wanted;
        if amount.is_negative() {
            return Err(LedgerRefusal::Invalid { field: "amount", why: "a hold must not be below zero" });
        }
        if wanted.expires <= now.caller {
            return Err(LedgerRefusal::Invalid { field: "expires", why: "it must lie ahead" });
        }
        wanted.expires = now.ledger.after(wanted.expires.since(now.caller));
        if self.state.hold(&hold).is_some() {
            return Err(LedgerRefusal::DuplicateHold { hold });
        }
        let known = self.state.projects.get(&wanted.project).filter(|known| known.org == wanted.org);
        if known.is_none() {
            return Err(LedgerRefusal::UnknownProject { project: wanted.project });
        }
        // The key first: a replay costs nothing and needs no balance.
        wanted.claim = match claim {
            Some(claim) => Some(self.claim(&wanted.project, claim)?),
            None => None,
        };
        self.check_money(&wanted)?;
        self.check_budget(&wanted, now.ledger)?;
        let org = wanted.org.clone();
        let held = self.commit(Event::Held(wanted), now)?;
        let available = NanoDollars::new(self.state.orgs.get(&org).map_or(0, |org| org.available));
        Ok(applied(Receipt::Held { hold, amount, available }, held))
    }

    fn extend(&mut self, hold: HoldId, amount: NanoDollars, now: Now) -> Result<Applied, LedgerRefusal> {
        if amount <= NanoDollars::ZERO {
            let why = "a hold is extended by more than nothing";
            return Err(LedgerRefusal::Invalid { field: "amount", why });
        }
        let held = self.open_hold(hold)?;
        let more = Held { amount, claim: None, ..held.clone() };
        let amount_after = held.amount.checked_add(amount).map_err(|_| LedgerRefusal::Overflow)?;
        self.check_money(&more)?;
        self.check_budget(&more, now.ledger)?;
        let extended = self.commit(Event::Extended { hold, amount }, now)?;
        let available = NanoDollars::new(self.state.orgs.get(&more.org).map_or(0, |org| org.available));
        Ok(applied(Receipt::Extended { hold, amount: amount_after, available }, extended))
    }

    fn claim(
        &self,
        project: &ProjectId,
        claim: IdempotencyClaim,
    ) -> Result<(Arc<str>, [u8; 32]), LedgerRefusal> {
        let IdempotencyClaim { key, request_hash } = claim;
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(LedgerRefusal::Invalid {
                field: "idempotency key",
                why: "it must have 1 to 255 bytes",
            });
        }
        let keys = self.state.projects.get(project).map(|project| &project.keys);
        let Some(taken) = keys.and_then(|keys| keys.get(key.as_str())) else {
            if keys.is_some_and(|keys| keys.len() >= MAX_KEYS_PER_PROJECT) {
                let limit = MAX_KEYS_PER_PROJECT;
                return Err(LedgerRefusal::TooManyKeys { project: project.clone(), limit });
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

    fn check_money(&self, wanted: &Held) -> Result<(), LedgerRefusal> {
        let org = self.state.orgs.get(&wanted.org).copied().unwrap_or_default();
        let needed = wanted.amount;
        if needed.get() <= org.available {
            return Ok(());
        }
        let balance = NanoDollars::new(org.available.saturating_add(org.held));
        let held = NanoDollars::new(org.held);
        Err(if needed <= balance {
            LedgerRefusal::HeldInFlight { balance, held, needed }
        } else {
            LedgerRefusal::OutOfMoney { balance, held, needed }
        })
    }

    fn check_budget(&self, wanted: &Held, now: UnixNanos) -> Result<(), LedgerRefusal> {
        let Some(project) = self.state.projects.get(&wanted.project) else { return Ok(()) };
        let Some(Budget { limit, period }) = project.budget else { return Ok(()) };
        let (spent, held) = (project.spent_in(period, now), project.held);
        let committed = spent.checked_add(held).and_then(|sum| sum.checked_add(wanted.amount.get()));
        if committed.is_some_and(|committed| committed <= limit.get()) {
            return Ok(());
        }
        Err(LedgerRefusal::BudgetExceeded {
            project: wanted.project.clone(),
            limit,
            spent: NanoDollars::new(spent),
            held: NanoDollars::new(held),
            needed: wanted.amount,
            resets: resets(period, now),
        })
    }

    fn open_hold(&self, hold: HoldId) -> Result<&Held, LedgerRefusal> {
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
        outcome: SettleOutcome,
        answer: Option<StoredAnswer>,
        now: Now,
    ) -> Result<Applied, LedgerRefusal> {
        let held = self.open_hold(hold)?;
        let used = check_lines(&lines)?;
        if loss.is_negative() {
            return Err(LedgerRefusal::Invalid { field: "loss", why: "it must not be below zero" });
        }
        // A failed call frees its idempotency key; charging it would charge the key's request twice.
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
        let settled = Settled { hold, lines, charged, loss: written_off, outcome, answer };
        let settled = self.commit(Event::Settled(settled), now)?;
        let receipt = Receipt::Settled { hold, charged, returned, loss: written_off, exceeded, answer_kept };
        Ok(applied(receipt, settled))
    }

    fn release(&mut self, hold: HoldId, why: ReleaseReason, now: Now) -> Result<Applied, LedgerRefusal> {
        let returned = self.open_hold(hold)?.amount;
        let released = self.commit(Event::Released { hold, why }, now)?;
        Ok(applied(Receipt::Released { hold, returned }, released))
    }

    /// Releases each; one that cannot be released stays open and is left out.
    fn release_many(&mut self, holds: &[HoldId], why: ReleaseReason, now: Now) -> Applied {
        let mut released = Vec::with_capacity(holds.len());
        let mut returned = NanoDollars::ZERO;
        let mut transactions = Vec::with_capacity(holds.len());
        for hold in holds {
            if let Ok(one) = self.release(*hold, why, now) {
                if let Receipt::Released { returned: amount, .. } = one.receipt {
                    returned = returned.checked_add(amount).unwrap_or(NanoDollars::MAX);
                }
                released.push(*hold);
                transactions.extend(one.transactions);
            }
        }
        Applied { receipt: Receipt::ReleasedMany { holds: released, returned }, transactions }
    }

    /// Makes the event's transaction and applies it.
    fn commit(&mut self, event: Event, now: Now) -> Result<Transaction, LedgerRefusal> {
        let entries = self.state.entries_for(&event)?;
        let transaction = Transaction { time: now.ledger, event, entries };
        self.state.evolve(&transaction)?;
        Ok(transaction)
    }

    /// How an organisation and one of its projects stand at `now`; `None` if the project is not its own.
    pub fn standing(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<Standing> {
        self.state.standing(org, project, now.max(self.latest))
    }

    /// What became of a hold, as far as it is remembered.
    pub fn hold_view(&self, hold: &HoldId) -> Option<HoldView> {
        self.state.hold(hold)
    }

    /// The time of the newest transaction.
    pub fn time(&self) -> UnixNanos {
        self.state.time
    }

    /// Sums over everything.
    pub fn totals(&self) -> Totals {
        self.state.totals()
    }

    /// Every project and its organisation, in order of both names.
    pub fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        let projects = self.state.projects.iter();
        let mut all: Vec<_> = projects.map(|(id, project)| (project.org.clone(), id.clone())).collect();
        all.sort_unstable();
        all
    }

    /// Every open hold, oldest id first.
    pub fn open_holds(&self) -> Vec<Held> {
        let mut all: Vec<_> = self.state.open.values().cloned().collect();
        all.sort_unstable_by_key(|held| held.hold);
        all
    }
}

fn applied(receipt: Receipt, transaction: Transaction) -> Applied {
    Applied { receipt, transactions: vec![transaction] }
}

/// The sum of the lines, each of which must be what its price makes it.
fn check_lines(lines: &[ChargeLine]) -> Result<NanoDollars, LedgerRefusal> {
    if lines.len() > MAX_LINES {
        return Err(LedgerRefusal::Invalid { field: "lines", why: "a bill has at most 64 lines" });
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
