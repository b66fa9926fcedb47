//! The commands about lots, contracts and free tiers. What a hold draws from is decided elsewhere.

use std::sync::Arc;

use headrace_domain::{BudgetName, HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::budget_decisions::{RuleLimit, counters_of, numbered};
use crate::budget_rule::HoldDemand;
use crate::command::{LowBalance, Receipt};
use crate::command_time::CommandTime;
use crate::core::{LedgerCore, MAX_REFERENCE_BYTES};
use crate::counters::HoldParties;
use crate::free_tier::{FreeLeft, FreeTier, FreeTierReport, MAX_FREE_TIERS};
use crate::funding::FundingNeed;
use crate::lot::{CreditLot, HoldFunding, LotId, LotReport, LotTerms, MAX_LOT_MODELS, MAX_LOTS_PER_ORG};
use crate::refusal::LedgerRefusal;
use crate::state::OrgAccount;
use crate::transaction::{JournalEvent, Transaction};

/// The maximum number of ended lots that one command removes.
const LOTS_ENDED_AT_ONCE: usize = 16;

impl LedgerCore {
    /// Makes a lot for an organisation.
    pub(crate) fn make_lot(
        &mut self,
        org: OrgId,
        terms: LotTerms,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let invalid = |field, why| Err(LedgerRefusal::Invalid { field, why });
        if !self.state.orgs.contains(&org) {
            return Err(LedgerRefusal::UnknownOrg { org });
        }
        if terms.amount <= NanoDollars::ZERO {
            return invalid("amount", "a lot must be more than zero");
        }
        if terms.reference.len() > MAX_REFERENCE_BYTES {
            return invalid("reference", "it must have at most 256 bytes");
        }
        if terms.ends.is_some_and(|ends| ends <= terms.begins || ends <= now.ledger) {
            return invalid("ends", "it must lie ahead, and after the beginning");
        }
        if terms.models.as_ref().is_some_and(|models| models.is_empty() || models.len() > MAX_LOT_MODELS) {
            return invalid("models", "there must be 1 to 64, or none named");
        }
        if self.state.lots.count_of(&org) >= MAX_LOTS_PER_ORG {
            return invalid("lot", "the organisation has 1000 lots: end some");
        }
        let id = self.state.lots.next_id();
        self.commit(JournalEvent::LotMade(Box::new(CreditLot { id, org: org.clone(), terms })), now, out)?;
        self.end_lots(Some(&org), now, out);
        Ok(Receipt::LotMade { lot: id })
    }

    /// Ends a lot. What is left of it goes to the account of expired money.
    pub(crate) fn end_lot(
        &mut self,
        lot: LotId,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let known = self.state.lots.get(lot).ok_or(LedgerRefusal::UnknownLot { lot })?;
        let left = NanoDollars::new(known.left);
        self.commit(JournalEvent::LotEnded { lot }, now, out)?;
        Ok(Receipt::LotEnded { lot, left })
    }

    /// Records a payment of what an organisation owes under its contracts.
    pub(crate) fn pay(
        &mut self,
        org: OrgId,
        amount: NanoDollars,
        reference: &str,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let Some(known) = self.state.orgs.get(&org) else { return Err(LedgerRefusal::UnknownOrg { org }) };
        if reference.len() > MAX_REFERENCE_BYTES {
            return Err(LedgerRefusal::Invalid { field: "reference", why: "it must have at most 256 bytes" });
        }
        if amount <= NanoDollars::ZERO || amount.get() > known.debt() {
            let why = "a payment must be more than zero, and at most what the organisation's ended calls owe";
            return Err(LedgerRefusal::Invalid { field: "amount", why });
        }
        let reference: Arc<str> = reference.into();
        self.commit(JournalEvent::DebtPaid { org: org.clone(), amount, reference }, now, out)?;
        let owed = self.state.orgs.get(&org).map_or(0, OrgAccount::debt);
        Ok(Receipt::DebtPaid { owed: NanoDollars::new(owed) })
    }

    /// Returns what an extension of a hold draws from. `None` for the balance alone.
    pub(crate) fn fund_extension(
        &self,
        hold: HoldId,
        amount: NanoDollars,
        now: CommandTime,
    ) -> Result<Option<Box<HoldFunding>>, LedgerRefusal> {
        let held = self.open_hold(hold)?;
        let rows = held.parties();
        let org = rows.org.and_then(|place| self.state.orgs.name(place));
        let project = rows.project.and_then(|place| self.state.projects.name(place));
        let has_others = held.funding.is_some() || org.is_some_and(|org| self.state.lots.has_lots(org));
        let (true, Some(org), Some(project)) = (has_others, org, project) else {
            self.check_money(amount, rows)?;
            return Ok(None);
        };
        let parties = HoldParties { org, project, demand: None };
        let need = FundingNeed { parties, rows, amount, now: now.ledger };
        Ok(self.state.fund_extension(need, held.funding.as_deref())?.map(Box::new))
    }

    /// Returns what is left of the free tier that covers a call, after its hold was taken, and removes ended lots of its
    /// organisation.
    pub(crate) fn free_and_tidy(
        &mut self,
        project: &ProjectId,
        demand: Option<&HoldDemand>,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Option<Box<FreeLeft>> {
        let org = self.state.projects.get(project)?.org.clone();
        let parties = HoldParties { org: &org, project, demand };
        let free = self.state.free_left(parties, now.ledger);
        self.end_lots(Some(&org), now, out);
        free.map(Box::new)
    }

    /// Removes lots that have ended: those of `org`, or of all organisations. No call depends on when this happens.
    pub(crate) fn end_lots(&mut self, org: Option<&OrgId>, now: CommandTime, out: &mut Vec<Transaction>) {
        for lot in self.state.lots.ended(org, now.ledger, LOTS_ENDED_AT_ONCE) {
            // The lot stays, and nothing draws from it.
            if let Err(refusal) = self.commit(JournalEvent::LotEnded { lot }, now, out) {
                tracing::error!(%refusal, %lot, "an ended lot could not be removed");
            }
        }
    }

    pub(crate) fn set_low_balance(
        &mut self,
        org: &OrgId,
        project: ProjectId,
        policy: LowBalance,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        match self.state.projects.get(&project).filter(|known| known.org == *org) {
            None => return Err(LedgerRefusal::UnknownProject { project }),
            Some(known) if known.low_balance == policy => {}
            Some(_) => self.commit(JournalEvent::LowBalanceSet { project, policy }, now, out)?,
        }
        Ok(Receipt::LowBalanceSet)
    }

    pub(crate) fn set_free_tier(
        &mut self,
        tier: Box<FreeTier>,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        tier.check().map_err(|fault| LedgerRefusal::Invalid { field: fault.field, why: fault.why })?;
        let limit = RuleLimit { most: MAX_FREE_TIERS, why: "there are 1000 free tiers: remove some" };
        let (number, mut changed) = numbered(&self.state.free_tiers.budgets, &tier.rule, limit)?;
        let known = self.state.free_tiers.budgets.by_number(number);
        changed |= known.is_some_and(|known| self.state.free_tiers.tier(known) != *tier);
        if changed {
            self.commit(JournalEvent::FreeTierSet { number, tier }, now, out)?;
        }
        Ok(Receipt::FreeTierChanged { changed })
    }

    pub(crate) fn remove_free_tier(
        &mut self,
        name: &BudgetName,
        now: CommandTime,
        out: &mut Vec<Transaction>,
    ) -> Result<Receipt, LedgerRefusal> {
        let state = self.state.free_tiers.budgets.by_name(name).map(|state| state.number);
        let number = state.ok_or_else(|| LedgerRefusal::UnknownFreeTier { name: name.clone() })?;
        self.commit(JournalEvent::FreeTierRemoved { number }, now, out)?;
        Ok(Receipt::FreeTierChanged { changed: true })
    }

    /// Returns the lots of an organisation, or of all, in the order in which they were made. Lots that have ended are left
    /// out, although what is left of them is not removed yet.
    pub fn lots(&self, org: Option<&OrgId>, now: UnixNanos) -> Vec<LotReport> {
        let now = now.max(self.latest);
        let all = self.state.lots.lots.values();
        let wanted = all.filter(|of| org.is_none_or(|org| of.lot.org == *org) && !of.terms().is_over(now));
        wanted.map(|of| LotReport { lot: of.lot.clone(), left: NanoDollars::new(of.left) }).collect()
    }

    /// Returns all free tiers with the counters of their current windows at `now`, by name.
    pub fn free_tiers(&self, now: UnixNanos) -> Vec<FreeTierReport> {
        let now = now.max(self.latest);
        let state = &self.state.free_tiers;
        let report = |rule| FreeTierReport { tier: state.tier(rule), counters: counters_of(rule, now) };
        let mut reports: Vec<_> = state.budgets.rules.iter().map(report).collect();
        reports.sort_unstable_by(|one, other| one.tier.rule.name.cmp(&other.tier.rule.name));
        reports
    }
}
