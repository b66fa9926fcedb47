//! The lots of all organisations, with what is left of each, and the free tiers. Makes no decisions.

use std::collections::{BTreeMap, BTreeSet};

use headrace_domain::{NanoDollars, OrgId, UnixNanos};

use crate::lot::{CreditLot, LotId, LotKind, LotTerms};
use crate::table::Map;

/// All lots that were made and not removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct LotState {
    pub(crate) lots: BTreeMap<LotId, LotBalance>,
    by_org: Map<OrgId, Vec<LotId>>,
    /// The number of the lot that was made last. 0 before the first one.
    pub(crate) last_number: u64,
    /// What is left in paid and promotional lots. Contracts hold no money.
    pub(crate) total: i64,
    /// The lots that have an end, the soonest first.
    ends: BTreeSet<(UnixNanos, LotId)>,
}

/// A lot with what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LotBalance {
    pub(crate) lot: CreditLot,
    pub(crate) left: i64,
    /// What open holds have drawn from a contract. With what is left, it is at most the contract's amount. Zero for other lots.
    pub(crate) held: i64,
}

impl LotState {
    /// Whether no lot was ever made, so that the state takes no room in a snapshot.
    pub(crate) fn is_unused(&self) -> bool {
        self.last_number == 0
    }

    /// Whether an organisation has lots. Costs nothing if there are no lots.
    pub(crate) fn has_lots(&self, org: &OrgId) -> bool {
        !self.by_org.is_empty() && self.by_org.contains_key(org)
    }

    pub(crate) fn get(&self, id: LotId) -> Option<&LotBalance> {
        self.lots.get(&id)
    }

    /// Returns the lots of an organisation, oldest first.
    pub(crate) fn of_org(&self, org: &OrgId) -> impl Iterator<Item = &LotBalance> {
        let ids = self.by_org.get(org);
        ids.into_iter().flatten().filter_map(|id| self.lots.get(id))
    }

    pub(crate) fn count_of(&self, org: &OrgId) -> usize {
        self.by_org.get(org).map_or(0, Vec::len)
    }

    /// Returns the id of the next lot.
    pub(crate) fn next_id(&self) -> LotId {
        LotId::new(self.last_number.saturating_add(1))
    }

    /// Returns the lots that have ended by `now`: of `org`, or of all organisations. At most `limit`.
    pub(crate) fn ended(&self, org: Option<&OrgId>, now: UnixNanos, limit: usize) -> Vec<LotId> {
        if self.ends.first().is_none_or(|(soonest, _)| *soonest > now) {
            return Vec::new();
        }
        let is_over = |of: &&LotBalance| of.lot.terms.is_over(now);
        match org {
            Some(org) => self.of_org(org).filter(is_over).map(|of| of.lot.id).take(limit).collect(),
            None => {
                let ended = self.ends.iter().take_while(|(ends, _)| *ends <= now);
                ended.map(|(_, id)| *id).take(limit).collect()
            }
        }
    }

    /// Adds a lot. The money of paid and promotional lots comes with entries, and a contract can be used at once.
    pub(crate) fn insert(&mut self, lot: CreditLot, left: i64) {
        self.last_number = self.last_number.max(lot.id.get());
        if let Some(ends) = lot.terms.ends {
            self.ends.insert((ends, lot.id));
        }
        if lot.terms.kind != LotKind::Contract {
            self.total += left;
        }
        self.by_org.entry(lot.org.clone()).or_default().push(lot.id);
        self.lots.insert(lot.id, LotBalance { lot, left, held: 0 });
    }

    /// Removes a lot. Its money has left it.
    pub(crate) fn remove(&mut self, id: LotId) {
        let Some(removed) = self.lots.remove(&id) else { return };
        let org = &removed.lot.org;
        if let Some(ids) = self.by_org.get_mut(org) {
            ids.retain(|known| *known != id);
            if ids.is_empty() {
                self.by_org.remove(org);
            }
        }
        if let Some(ends) = removed.lot.terms.ends {
            self.ends.remove(&(ends, id));
        }
    }

    /// Moves money into or out of a paid or promotional lot. The entries were checked.
    pub(crate) fn post(&mut self, id: LotId, amount: i64) {
        if let Some(of) = self.lots.get_mut(&id) {
            of.left += amount;
            self.total += amount;
        }
    }

    /// Changes what is left of a contract, which holds no money. A contract that was removed stays removed.
    pub(crate) fn use_contract(&mut self, id: LotId, amount: i64) {
        if let Some(of) = self.lots.get_mut(&id) {
            of.left = of.left.saturating_add(amount);
        }
    }

    /// Changes what open holds have drawn from a contract.
    pub(crate) fn hold_contract(&mut self, id: LotId, amount: i64) {
        if let Some(of) = self.lots.get_mut(&id) {
            of.held = of.held.saturating_add(amount);
        }
    }

    /// Restores the contracts of an organisation by a payment or a refund: `first`, then the oldest. What open holds have drawn
    /// is not restored.
    pub(crate) fn restore_contracts(&mut self, org: &OrgId, first: Option<LotId>, amount: i64) {
        let mut rest = amount;
        let own = self.by_org.get(org).into_iter().flatten();
        for id in first.iter().chain(own.filter(|id| Some(**id) != first)) {
            let is_contract =
                |of: &&mut LotBalance| of.lot.terms.kind == LotKind::Contract && of.lot.org == *org;
            let Some(of) = self.lots.get_mut(id).filter(is_contract) else { continue };
            let drawn = of.lot.terms.amount.get().saturating_sub(of.left).saturating_sub(of.held);
            let restored = rest.min(drawn).max(0);
            of.left = of.left.saturating_add(restored);
            rest = rest.saturating_sub(restored);
        }
    }

    /// Returns what an organisation can draw from its lots at `now`, for any model: prepaid money, and contracts.
    pub(crate) fn usable(&self, org: &OrgId, now: UnixNanos) -> (NanoDollars, NanoDollars) {
        let (mut prepaid, mut credit) = (0_i64, 0_i64);
        for LotBalance { lot, left, held: _ } in self.of_org(org).filter(|of| of.lot.terms.is_live(now)) {
            match lot.terms.kind {
                LotKind::Contract => credit = credit.saturating_add(*left),
                LotKind::Paid | LotKind::Promotional => prepaid = prepaid.saturating_add(*left),
            }
        }
        (NanoDollars::new(prepaid), NanoDollars::new(credit))
    }
}

impl LotBalance {
    pub(crate) const fn terms(&self) -> &LotTerms {
        &self.lot.terms
    }
}
