//! Commands about budget rules as serializable data, and what they answer. Contains no decisions.

use headrace_domain::{BudgetName, UnixNanos};
use headrace_ledger::{
    AlertRaised, BudgetCounter, BudgetMeasure, BudgetRaise, BudgetReport, BudgetRule, WindowBounds,
};
use serde::{Deserialize, Serialize};

/// A command about budget rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum BudgetAct {
    /// Lists all rules with their use.
    List,
    /// Lists the newest alerts.
    Alerts,
    /// Sets a rule, or changes the one with the same name.
    Set {
        /// The rule.
        rule: BudgetRule,
    },
    /// Raises the limit of a rule for a time.
    Raise {
        /// The rule.
        name: BudgetName,
        /// The limit meanwhile, in text: dollars, or a whole number, as the rule's measure is.
        limit: String,
        /// The length of the raise, in seconds. 0 ends the raise in force.
        seconds: u64,
    },
    /// Removes a rule.
    Remove {
        /// The rule.
        name: BudgetName,
    },
}

/// A rule with its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRuleView {
    /// The rule.
    pub rule: BudgetRule,
    /// The raise in force.
    pub raise: Option<BudgetRaise>,
    /// The limit in force, in nano-dollars, tokens or requests.
    pub limit: u64,
    /// The use of the current window, by subject.
    pub counters: Vec<BudgetCounterView>,
}

/// The use of a rule by one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetCounterView {
    /// The subject.
    pub subject: String,
    /// The amount that ended calls used.
    pub used: u64,
    /// The amount that calls in flight have reserved.
    pub reserved: u64,
    /// The amount that further calls can reserve.
    pub left: u64,
    /// When the window ends. `None` for a total.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub resets: Option<UnixNanos>,
    /// The thresholds whose alert was raised in the window, in percent.
    pub alerted: Vec<u16>,
}

/// An alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetAlertView {
    /// When it was raised.
    #[serde(with = "headrace_domain::rfc3339")]
    pub at: UnixNanos,
    /// The rule.
    pub name: BudgetName,
    /// The subject.
    pub subject: String,
    /// The threshold, in percent of the limit.
    pub percent: u16,
    /// The use, in the unit of the rule.
    pub used: u64,
    /// The limit that was in force.
    pub limit: u64,
    /// What the rule counts. `None` if it was removed since.
    pub measure: Option<BudgetMeasure>,
    /// When the window ends. `None` for a total.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub resets: Option<UnixNanos>,
}

fn end_of(window: WindowBounds) -> Option<UnixNanos> {
    Some(window.end).filter(|end| end.get() != u64::MAX)
}

impl From<BudgetReport> for BudgetRuleView {
    fn from(of: BudgetReport) -> Self {
        let BudgetReport { rule, raise, limit, counters } = of;
        Self { rule, raise, limit, counters: counters.into_iter().map(Into::into).collect() }
    }
}

impl From<BudgetCounter> for BudgetCounterView {
    fn from(counter: BudgetCounter) -> Self {
        let BudgetCounter { subject, window, used, reserved, left, alerted } = counter;
        Self { subject: subject.to_string(), used, reserved, left, resets: end_of(window), alerted }
    }
}

impl BudgetAlertView {
    pub(crate) fn new(at: UnixNanos, of: AlertRaised, measure: Option<BudgetMeasure>) -> Self {
        let AlertRaised { name, subject, window, percent, used, limit, .. } = of;
        let (subject, resets) = (subject.to_string(), end_of(window));
        Self { at, name, subject, percent, used, limit, measure, resets }
    }
}
