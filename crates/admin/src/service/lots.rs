//! Lots, contracts and free tiers: list, make, end and pay them, and take over the free tiers of the settings. Every change
//! is announced in the audit log before the ledger makes it.

use headrace_domain::{AdminCode, BudgetName, NanoDollars, OrgId, UnixNanos};
use headrace_ledger::{BudgetOrigin, BudgetRule, FreeTier, FreeTierReport, LotReport, LotTerms, Receipt};

use super::money::{DEBT_PAID, LOT_MAKE, MoneyAct};
use super::{AdminService, unexpected};
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::lot_act::{LotAct, LotReply, NewLot};

/// The actor of changes that the settings make.
const SETTINGS: &str = "settings";

impl AdminService {
    pub(super) fn lots(&self, act: LotAct, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let reply = match act {
            LotAct::List { org } => {
                self.read_others(now);
                LotReply::Lots(self.ledger.lots(org.as_ref(), now))
            }
            LotAct::Make { org, lot } => self.make_lot(org, lot, actor, now)?,
            LotAct::End { lot } => match self.change_money(&MoneyAct::LotEnded { lot }, actor, now)? {
                Receipt::LotEnded { lot, left } => LotReply::Ended { lot, left },
                other => return Err(unexpected(&other)),
            },
            LotAct::Pay { org, amount, reference } => self.pay(org, amount, reference, actor, now)?,
            LotAct::SetLowBalance { project, policy } => {
                let act =
                    MoneyAct::LowBalance { org: self.org_of(&project)?, project: project.clone(), policy };
                self.change_money(&act, actor, now)?;
                LotReply::LowBalanceSet { project, policy }
            }
            LotAct::ListFree => {
                self.read_others(now);
                LotReply::FreeTiers(self.ledger.free_tiers(now).into_iter().map(Into::into).collect())
            }
            LotAct::SetFree { tier } => {
                let name = tier.rule.name.clone();
                let rule = BudgetRule { origin: BudgetOrigin::Operator, ..tier.rule };
                let tier = FreeTier { rule, ..tier };
                tier.check().map_err(|fault| {
                    let message = format!("{}: {}", fault.field, fault.why);
                    AdminError::new(AdminCode::Invalid, message, "headrace free-tiers set --help")
                })?;
                self.change_money(&MoneyAct::FreeTier { tier: Box::new(tier) }, actor, now)?;
                let mut reports = self.ledger.free_tiers(now).into_iter();
                let report = reports.find(|report| report.tier.rule.name == name);
                LotReply::FreeSet(report.ok_or_else(|| unknown(&name))?.into())
            }
            LotAct::RemoveFree { name } => {
                self.change_money(&MoneyAct::FreeTierRemoved { name: name.clone() }, actor, now)?;
                LotReply::FreeRemoved(name)
            }
        };
        Ok(AdminReply::Lots(reply))
    }

    /// Makes a lot. If the reference was used before for the same lot, returns that one.
    fn make_lot(&self, org: OrgId, new: NewLot, actor: &str, now: UnixNanos) -> Result<LotReply, AdminError> {
        let NewLot { kind, amount, begins, ends, models, reference } = new;
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        // Ledger time may be ahead of this machine's clock.
        let begins = begins.unwrap_or_else(|| self.ledger.time().max(now));
        let terms = LotTerms { kind, amount, begins, ends, models, reference: reference.as_str().into() };
        if !self.acts_with_reference(LOT_MAKE, &org, &reference)?.is_empty() {
            let is_same = |of: &&LotReport| {
                let known = &of.lot.terms;
                (known.kind, known.amount, known.ends, &known.models, &*known.reference)
                    == (kind, amount, ends, &terms.models, reference.as_str())
            };
            let lots = self.ledger.lots(Some(&org), now);
            let lot = lots.iter().find(is_same).cloned();
            let lot = lot.ok_or_else(|| reference_used(&reference, "headrace lots list shows lots"))?;
            return Ok(LotReply::Made { lot, before: true });
        }
        let after = self.ledger.health().sequence;
        let terms = Box::new(terms);
        match self.announce_and_do(&MoneyAct::Lot { org: org.clone(), terms, after }, actor, now)? {
            Receipt::LotMade { lot: id } => {
                let lots = self.ledger.lots(Some(&org), now);
                let lot = lots.into_iter().find(|of| of.lot.id == id);
                let missing = || AdminError::new(AdminCode::Internal, format!("{id} is missing"), "");
                Ok(LotReply::Made { lot: lot.ok_or_else(missing)?, before: false })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Records a payment. The same reference again is the same payment.
    fn pay(
        &self,
        org: OrgId,
        amount: NanoDollars,
        reference: String,
        actor: &str,
        now: UnixNanos,
    ) -> Result<LotReply, AdminError> {
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        let before = self.acts_with_reference(DEBT_PAID, &org, &reference)?;
        if !before.is_empty() {
            let act = MoneyAct::DebtPaid { org: org.clone(), amount, reference: reference.clone(), after: 0 };
            if !before.contains(&act.detail()) {
                return Err(reference_used(&reference, "headrace audit shows payments"));
            }
            let owed = self.owed(&org, now);
            return Ok(LotReply::Paid { org, amount, owed, before: true });
        }
        let after = self.ledger.health().sequence;
        let act = MoneyAct::DebtPaid { org: org.clone(), amount, reference, after };
        match self.announce_and_do(&act, actor, now)? {
            Receipt::DebtPaid { owed } => Ok(LotReply::Paid { org, amount, owed, before: false }),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the free tiers of the settings those of the ledger. One that operators set stays, unless the settings have one
    /// of the same name. Returns the number of changes.
    ///
    /// # Errors
    /// If the ledger refuses a free tier, or cannot be written.
    pub fn take_over_free_tiers(&self, tiers: &[FreeTier], now: UnixNanos) -> Result<usize, AdminError> {
        self.read_others(now);
        let reports = self.ledger.free_tiers(now);
        let is_known = |tier: &&FreeTier| reports.iter().any(|report| report.tier == **tier);
        let changed = tiers.iter().filter(|tier| !is_known(tier));
        let set = changed.map(|tier| MoneyAct::FreeTier { tier: Box::new(tier.clone()) });
        let is_gone = |report: &&FreeTierReport| {
            report.tier.rule.origin == BudgetOrigin::Settings
                && !tiers.iter().any(|tier| tier.rule.name == report.tier.rule.name)
        };
        let gone = reports.iter().filter(is_gone);
        let removed = gone.map(|report| MoneyAct::FreeTierRemoved { name: report.tier.rule.name.clone() });
        let acts: Vec<MoneyAct> = removed.chain(set).collect();
        for act in &acts {
            self.change_money(act, SETTINGS, now)?;
        }
        Ok(acts.len())
    }

    fn change_money(&self, act: &MoneyAct, actor: &str, now: UnixNanos) -> Result<Receipt, AdminError> {
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        self.announce_and_do(act, actor, now)
    }

    /// Reads what other gateways wrote before. Without a journal, answers are what is known here.
    fn read_others(&self, now: UnixNanos) {
        let _ = self.ledger.transact(Vec::new(), now).durable.wait();
    }

    fn owed(&self, org: &OrgId, now: UnixNanos) -> NanoDollars {
        let projects = self.ledger.projects();
        let project = projects.iter().find(|(owner, _)| owner == org);
        let standing = project.and_then(|(org, project)| self.ledger.standing_at(org, project, now));
        standing.map_or(NanoDollars::ZERO, |standing| standing.owed)
    }

    /// Returns the details of the organisation's acts with this reference that were not refused. An empty reference is none.
    fn acts_with_reference(
        &self,
        act: &str,
        org: &OrgId,
        reference: &str,
    ) -> Result<Vec<String>, AdminError> {
        if reference.is_empty() {
            return Ok(Vec::new());
        }
        let refused = self.refused_rows()?;
        let ending = super::money::reference_detail(reference);
        let rows = self.directory.audit_of(act, Some(org.as_str()), usize::MAX)?;
        let details = rows.into_iter().filter(|row| !refused.contains(&row.seq)).map(|row| row.entry.detail);
        Ok(details.filter(|detail| detail.ends_with(&ending)).collect())
    }
}

fn reference_used(reference: &str, remedy: &str) -> AdminError {
    let message = format!("reference {reference:?} is used by another act of this kind");
    AdminError::new(AdminCode::ReferenceUsed, message, remedy)
}

fn unknown(name: &BudgetName) -> AdminError {
    headrace_ledger::LedgerRefusal::UnknownFreeTier { name: name.clone() }.into()
}
