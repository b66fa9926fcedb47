//! Free tiers as plain data: what calls may use free of charge within a window. Makes no decisions.

use std::sync::Arc;

use headrace_domain::{BudgetName, ModelName, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::budget_rule::{
    BudgetCounter, BudgetMeasure, BudgetRule, BudgetRuleFault, BudgetScope, BudgetWindow,
};
use crate::lot::MAX_LOT_MODELS;

/// The maximum number of free tiers.
pub const MAX_FREE_TIERS: usize = 1_000;

/// What each subject of a kind may use free of charge within a window. Its lot for a window is a counter, which the first
/// hold of the window makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeTier {
    /// The subjects, the window and the amount. The rule is hard and has no thresholds.
    #[serde(flatten)]
    pub rule: BudgetRule,
    /// The only models whose calls are free. `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Arc<[ModelName]>>,
}

impl FreeTier {
    /// Checks every field.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn check(&self) -> Result<(), BudgetRuleFault> {
        let fault = |field, why| Err(BudgetRuleFault { field, why });
        self.rule.check()?;
        if self.rule.scope == BudgetScope::Model {
            return fault("scope", "it must be key, user, project or org");
        }
        if !self.rule.is_hard || !self.rule.thresholds.is_empty() {
            return fault("thresholds", "a free tier raises no alerts");
        }
        if self.models.as_ref().is_some_and(|models| models.is_empty() || models.len() > MAX_LOT_MODELS) {
            return fault("models", "there must be 1 to 64, or none named");
        }
        Ok(())
    }
}

/// A free tier with its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeTierReport {
    /// The free tier.
    pub tier: FreeTier,
    /// The use in the current window, by subject. A subject that used nothing in it has none.
    pub counters: Vec<BudgetCounter>,
}

/// What is left of a free tier for one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeLeft {
    /// The name of the free tier.
    pub name: BudgetName,
    /// What is counted.
    pub measure: BudgetMeasure,
    /// The length of the window.
    pub window: BudgetWindow,
    /// The amount of a window, in the unit of the measure.
    pub limit: u64,
    /// The amount that further calls can use.
    pub left: u64,
    /// The end of the window. `None` for a total.
    pub resets: Option<UnixNanos>,
}
