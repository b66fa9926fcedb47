//! Open holds in the state: how they are recorded, and what their ends change besides money. Makes no decisions.

use std::sync::Arc;

use headrace_domain::{HoldId, TokenClass, UnixNanos};

use crate::calendar::MonthNumber;
use crate::command::SettleOutcome;
use crate::hold_use::HoldUse;
use crate::refusal::HoldResolution;
use crate::state::{HeldFunds, IdempotencyEntry, KEY_LIFETIME, LedgerState, PartyRows};
use crate::transaction::{HoldSettled, HoldTaken};

/// Returns what a settled call used of budget rules. A call that is not charged because its key is free again used nothing.
fn use_of(settled: &HoldSettled, held: &HeldFunds) -> HoldUse {
    if settled.outcome == SettleOutcome::Failed && held.claim.is_some() {
        return HoldUse::default();
    }
    let tokens = settled.lines.iter().filter(|line| line.class != TokenClass::WebSearch);
    let tokens = tokens.fold(0_u64, |sum, line| sum.saturating_add(line.tokens));
    let has_run = settled.outcome != SettleOutcome::Failed || !settled.lines.is_empty();
    let dollars = u64::try_from(settled.charged.get()).unwrap_or(0);
    HoldUse { dollars, tokens, requests: has_run.into() }
}

impl LedgerState {
    pub(crate) fn end_budgeted(&mut self, held: &HeldFunds, used: HoldUse, settled: Option<&HoldSettled>) {
        if let Some(budgeted) = &held.budgeted {
            self.budgets.end_hold(budgeted, used, settled);
        }
    }

    /// Records an open hold and its claim. Returns `false` if the organisation or the project is unknown.
    pub(crate) fn insert_open(&mut self, held: &HoldTaken, parties: PartyRows) -> bool {
        let HoldTaken { hold, amount, owner, expires, claim, budgeted, funding, .. } = held;
        let PartyRows { org: Some(org), project: Some(project) } = parties else { return false };
        if let (Some((key, hash)), Some(project)) = (claim, self.projects.at_mut(project)) {
            let claimed = IdempotencyEntry { hold: *hold, request_hash: *hash, finished: None };
            project.keys.insert(Arc::clone(key), claimed);
        }
        self.soonest = Some(self.soonest.map_or(*expires, |soonest| soonest.min(*expires)));
        let (amount, owner, expires, claim) = (*amount, *owner, *expires, claim.clone());
        let (budgeted, funding) = (budgeted.clone(), funding.clone());
        if let Some(budgeted) = &budgeted {
            self.budgets.take_places(&budgeted.places);
        }
        if let Some(funding) = &funding {
            self.hold_elsewhere(Some(org), funding, 1);
        }
        self.open.insert(*hold, HeldFunds { org, project, amount, owner, expires, claim, budgeted, funding });
        true
    }

    /// Returns an open hold with the names of its parties.
    pub(crate) fn held(&self, hold: &HoldId) -> Option<HoldTaken> {
        self.open.get(hold).and_then(|open| self.with_names(*hold, open))
    }

    /// Returns all open holds, oldest id first.
    pub(crate) fn open_holds(&self) -> Vec<HoldTaken> {
        let mut all: Vec<_> =
            self.open.iter().filter_map(|(hold, open)| self.with_names(*hold, open)).collect();
        all.sort_unstable_by_key(|held| held.hold);
        all
    }

    fn with_names(&self, hold: HoldId, open: &HeldFunds) -> Option<HoldTaken> {
        let (org, project) = self.names(open.parties())?;
        let HeldFunds { amount, owner, expires, claim, budgeted, funding, .. } = open.clone();
        Some(HoldTaken { hold, org, project, amount, owner, expires, claim, budgeted, funding })
    }

    /// Returns the open holds that have expired by `now`, the earliest expiry first.
    pub(crate) fn due(&mut self, now: UnixNanos) -> Vec<HoldId> {
        if self.soonest.is_none_or(|soonest| soonest > now) {
            return Vec::new();
        }
        let expiries = self.open.iter().map(|(hold, open)| (open.expires, *hold));
        let mut due: Vec<_> = expiries.clone().filter(|(expires, _)| *expires <= now).collect();
        self.soonest = expiries.map(|(expires, _)| expires).min();
        due.sort_unstable();
        due.into_iter().map(|(_, hold)| hold).collect()
    }

    pub(crate) fn note_settled(&mut self, settled: &HoldSettled, now: UnixNanos) {
        let charged = settled.charged;
        let Some(held) = self.close(settled.hold, HoldResolution::Settled { charged }) else { return };
        let used = use_of(settled, &held);
        self.end_budgeted(&held, used, Some(settled));
        self.end_funding(&held, charged, used);
        if let Some(project) = self.projects.at_mut(held.project) {
            let month = MonthNumber::of(now);
            project.spent_in_month = project.spent_in_month_of(month) + charged.get();
            project.month = month;
            project.spent += charged.get();
        }
        self.settle_key(settled, &held, now.after(KEY_LIFETIME));
    }

    pub(crate) fn close(&mut self, hold: HoldId, how: HoldResolution) -> Option<HeldFunds> {
        let held = self.open.remove(&hold)?;
        if let Some(funding) = &held.funding {
            self.hold_elsewhere(Some(held.org), funding, -1);
        }
        self.resolved.insert(hold, how);
        Some(held)
    }
}
