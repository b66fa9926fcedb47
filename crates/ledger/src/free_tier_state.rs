//! The free tiers and what is used of them, with the counters of budget rules. Makes no decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{ModelName, OrgId, ProjectId, UnixNanos};

use crate::budget_rule::{BudgetReservation, BudgetScope, BudgetedHold, HeldPlaces};
use crate::counters::{BudgetState, RuleState};
use crate::free_tier::FreeTier;
use crate::hold_use::HoldUse;
use crate::lot::HoldFunding;

/// All free tiers.
#[derive(Debug, Clone, Default)]
pub(crate) struct FreeTierState {
    /// The rules with their counters.
    pub(crate) budgets: BudgetState,
    /// The models of the rules that name some, by the number of the rule.
    pub(crate) models: BTreeMap<u64, Arc<[ModelName]>>,
}

impl FreeTierState {
    pub(crate) fn is_unused(&self) -> bool {
        self.budgets.is_unused()
    }

    pub(crate) fn has_tiers(&self) -> bool {
        self.budgets.has_rules()
    }

    /// Returns the free tier of a rule.
    pub(crate) fn tier(&self, state: &RuleState) -> FreeTier {
        FreeTier { rule: state.rule.clone(), models: self.models.get(&state.number).cloned() }
    }

    /// Whether a free tier covers calls of a model.
    pub(crate) fn covers(&self, number: u64, model: Option<&ModelName>) -> bool {
        let models = self.models.get(&number);
        models.is_none_or(|models| model.is_some_and(|model| models.contains(model)))
    }

    /// Whether a free tier may cover calls of a project, as far as it is known without a call.
    pub(crate) fn may_cover(&self, org: &OrgId, project: &ProjectId) -> bool {
        self.budgets.rules.iter().any(|RuleState { rule, .. }| {
            let subject = rule.subject.as_deref();
            rule.org.as_ref().is_none_or(|only| only == org)
                && match rule.scope {
                    BudgetScope::Org => subject.is_none_or(|only| only == org.as_str()),
                    BudgetScope::Project => subject.is_none_or(|only| only == project.as_str()),
                    BudgetScope::Key | BudgetScope::User | BudgetScope::Model => true,
                }
        })
    }

    pub(crate) fn set(&mut self, number: u64, tier: &FreeTier) {
        let before = self.budgets.by_name(&tier.rule.name).map(|state| state.number);
        self.budgets.set(number, &tier.rule);
        if let Some(before) = before {
            self.models.remove(&before);
        }
        if let Some(models) = &tier.models {
            self.models.insert(number, Arc::clone(models));
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.budgets.remove(number);
        self.models.remove(&number);
    }

    /// Reserves what a hold takes. Its reservations were checked.
    pub(crate) fn reserve(&mut self, funding: &HoldFunding, now: UnixNanos) {
        for share in &funding.shares {
            if let Some(free) = &share.free {
                self.budgets.reserve(std::slice::from_ref(free), now);
            }
        }
    }

    /// Returns the rule that the reservations of a hold would break.
    pub(crate) fn check(&self, funding: &HoldFunding, now: UnixNanos) -> Result<(), &'static str> {
        let mut reservations = funding.shares.iter().filter_map(|share| share.free.as_ref());
        reservations.try_for_each(|free| self.budgets.check(std::slice::from_ref(free), now))
    }

    /// Ends one reservation: what was reserved becomes what was used, or is free again.
    pub(crate) fn end(&mut self, reservation: &BudgetReservation, used: HoldUse) {
        let reservations = vec![reservation.clone()];
        self.budgets.end_hold(&BudgetedHold { reservations, places: HeldPlaces::default() }, used, None);
    }
}
