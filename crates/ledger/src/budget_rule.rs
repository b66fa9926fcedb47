//! Budget rules and what a hold asks of them, as plain data. Makes no decisions.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{
    BudgetName, HolderTiers, KeyId, ModelName, NanoDollars, OrgId, ProjectId, TierName, UnixNanos, UserId,
};
use serde::{Deserialize, Serialize};

use crate::time_zone::find_zone;

/// The maximum number of budget rules.
pub const MAX_BUDGET_RULES: usize = 10_000;
/// The maximum number of thresholds of a rule.
const MAX_THRESHOLDS: usize = 16;
/// The greatest threshold, in percent.
const MAX_THRESHOLD: u16 = 1_000;

/// A limit on what one subject, or each subject of a kind, may use within a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetRule {
    /// The rule's name.
    pub name: BudgetName,
    /// The kind of subject. Each subject has a counter of its own.
    pub scope: BudgetScope,
    /// The only organisation whose calls count. `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// The id of the only key, user, project, organisation or model that counts. `None` for each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Arc<str>>,
    /// The only tier whose holders count: keys, projects or organisations, as `scope` says. `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierName>,
    /// The window after which the counter begins anew.
    pub window: BudgetWindow,
    /// The IANA name of the time zone whose calendar divides time into windows.
    #[serde(default = "utc")]
    pub zone: Arc<str>,
    /// What is counted.
    pub measure: BudgetMeasure,
    /// The limit, in nano-dollars, tokens or requests. Zero allows nothing.
    pub limit: u64,
    /// Whether a call that does not fit is refused. Otherwise the rule only raises alerts.
    pub is_hard: bool,
    /// The use in percent of the limit at which alerts are raised, ascending: 1 to 1,000, at most 16 of them.
    #[serde(default)]
    pub thresholds: Vec<u16>,
    /// Who set the rule.
    #[serde(default)]
    pub origin: BudgetOrigin,
}

fn utc() -> Arc<str> {
    "UTC".into()
}

/// The kind of subject of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// An API key.
    Key,
    /// A user: the holder of an identity provider's token.
    User,
    /// A project.
    Project,
    /// An organisation.
    #[serde(alias = "organisation")]
    Org,
    /// A model within an organisation.
    Model,
}

/// The time after which a counter begins anew, by the calendar of the rule's zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetWindow {
    /// An hour of the clock.
    Hour,
    /// A day.
    Day,
    /// A week, which begins on Monday.
    Week,
    /// A month.
    Month,
    /// All time since the rule was set.
    Total,
}

/// What a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetMeasure {
    /// What customers pay, in nano-dollars.
    Dollars,
    /// Tokens, input and output together.
    Tokens,
    /// Calls. A call that is released without a charge does not count.
    Requests,
}

/// Who set a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetOrigin {
    /// An operator.
    #[default]
    Operator,
    /// The settings. A gateway removes rules that its settings no longer name.
    Settings,
}

/// A higher limit until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRaise {
    /// The limit until then, in the unit of the rule.
    pub limit: u64,
    /// The end of the raise, by ledger time.
    #[serde(with = "headrace_domain::rfc3339")]
    pub until: UnixNanos,
}

/// The first moment of a window and the first moment after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBounds {
    /// The first moment.
    pub start: UnixNanos,
    /// The first moment after the window. The end of time for a total.
    pub end: UnixNanos,
}

/// What a hold asks of budget rules and limits besides money.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldDemand {
    /// The caller's key.
    pub key: KeyId,
    /// The caller's user, if the credential names one.
    pub user: Option<UserId>,
    /// The model that serves the call.
    pub model: ModelName,
    /// The maximum number of tokens of the call, input and output together.
    pub tokens: u64,
    /// The tiers of the caller. `None` if it has none.
    pub tiers: Option<Arc<HolderTiers>>,
    /// The limits on calls in flight. `None` in a ledger of one process, which counts them without a ledger.
    pub places: Option<PlaceLimits>,
}

/// What a call asks of the budgets of the model that it goes over to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDemand {
    /// The model.
    pub model: ModelName,
    /// The maximum cost of the whole call on this model.
    pub amount: NanoDollars,
    /// The maximum number of tokens of the call on this model, input and output together.
    pub tokens: u64,
}

/// The maximum number of calls in flight over all gateways. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceLimits {
    /// Of the key.
    pub key: Option<u32>,
    /// Of the project.
    pub project: Option<u32>,
    /// Of the organisation.
    pub org: Option<u32>,
    /// Of the model, over all organisations.
    pub model: Option<u32>,
}

/// What a hold reserves of rules, and the limits on calls in flight that it counts against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BudgetedHold {
    /// What is reserved of each rule. A rule occurs again if its window turned before the hold was extended.
    pub reservations: Vec<BudgetReservation>,
    /// The subjects whose calls in flight are counted.
    pub places: HeldPlaces,
}

impl BudgetedHold {
    /// Whether nothing is reserved or counted.
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty() && self.places == HeldPlaces::default()
    }
}

/// What a hold reserves of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetReservation {
    /// The number of the rule.
    pub rule: u64,
    /// The subject whose counter it is in.
    pub subject: Arc<str>,
    /// The window, as the gateway that took the hold determined it. No other gateway computes it again.
    pub window: WindowBounds,
    /// The amount, in the unit of the rule.
    pub amount: u64,
}

/// The subjects whose calls in flight a hold counts against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldPlaces {
    /// The key, if it has a limit.
    pub key: Option<KeyId>,
    /// The project, if it has a limit.
    pub project: Option<ProjectId>,
    /// The organisation, if it has a limit.
    pub org: Option<OrgId>,
    /// The model, if it has a limit.
    pub model: Option<ModelName>,
}

/// An alert: the use of a subject reached a threshold. Raised once per rule, subject, window and threshold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertRaised {
    /// The number of the rule.
    pub rule: u64,
    /// The name of the rule.
    pub name: BudgetName,
    /// The subject.
    pub subject: Arc<str>,
    /// The window.
    pub window: WindowBounds,
    /// The threshold, in percent of the limit.
    pub percent: u16,
    /// The use, in the unit of the rule.
    pub used: u64,
    /// The limit in force.
    pub limit: u64,
}

/// A rule with its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetReport {
    /// The rule.
    pub rule: BudgetRule,
    /// The raise in force. `None` if there is none, or it is over.
    pub raise: Option<BudgetRaise>,
    /// The limit in force.
    pub limit: u64,
    /// The counters of the current window, by subject. A subject that used nothing in it has none.
    pub counters: Vec<BudgetCounter>,
}

/// The use of a rule by one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetCounter {
    /// The subject.
    pub subject: Arc<str>,
    /// The window.
    pub window: WindowBounds,
    /// The amount that ended calls used.
    pub used: u64,
    /// The amount that calls in flight have reserved.
    pub reserved: u64,
    /// The amount that further calls can reserve.
    pub left: u64,
    /// The thresholds whose alert was raised.
    pub alerted: Vec<u16>,
}

/// A fault in a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRuleFault {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

impl BudgetRule {
    /// Checks every field.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn check(&self) -> Result<(), BudgetRuleFault> {
        let fault = |field, why| Err(BudgetRuleFault { field, why });
        if find_zone(&self.zone).is_none() {
            return fault("zone", "it must be an IANA time zone, such as Europe/Berlin or UTC");
        }
        if self.thresholds.len() > MAX_THRESHOLDS {
            return fault("thresholds", "there may be at most 16");
        }
        if self.thresholds.iter().any(|percent| !(1..=MAX_THRESHOLD).contains(percent)) {
            return fault("thresholds", "each must be 1 to 1000 percent");
        }
        if !self.thresholds.is_sorted_by(|one, next| one < next) {
            return fault("thresholds", "they must ascend");
        }
        if self.measure == BudgetMeasure::Dollars && i64::try_from(self.limit).is_err() {
            return fault("limit", "it must be at most 9.2 billion dollars");
        }
        if self.tier.is_some() && matches!(self.scope, BudgetScope::User | BudgetScope::Model) {
            return fault("tier", "only rules of keys, projects and organisations may name a tier");
        }
        let Some(subject) = self.subject.as_deref() else { return Ok(()) };
        let is_id = match self.scope {
            BudgetScope::Key => KeyId::new(subject).is_ok(),
            BudgetScope::User => UserId::new(subject).is_ok(),
            BudgetScope::Project => ProjectId::new(subject).is_ok(),
            BudgetScope::Org => OrgId::new(subject).is_ok(),
            BudgetScope::Model => ModelName::new(subject).is_ok(),
        };
        if is_id { Ok(()) } else { fault("subject", "it is not an id of the scope's kind") }
    }

    /// Whether counters of this rule have the same meaning under `other`: only limits and thresholds differ.
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        let Self { name, scope, org, subject, tier, window, zone, measure, .. } = other;
        (&self.name, self.scope, &self.org, &self.subject) == (name, *scope, org, subject)
            && (&self.tier, self.window, &self.zone, self.measure) == (tier, *window, zone, *measure)
    }
}

impl BudgetScope {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Key, Self::User, Self::Project, Self::Org, Self::Model];

    /// The word for operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::User => "user",
            Self::Project => "project",
            Self::Org => "org",
            Self::Model => "model",
        }
    }
}

impl BudgetWindow {
    /// Every window.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Total];

    /// The word for operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

impl BudgetMeasure {
    /// Every measure.
    pub const ALL: [Self; 3] = [Self::Dollars, Self::Tokens, Self::Requests];

    /// The word for operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dollars => "dollars",
            Self::Tokens => "tokens",
            Self::Requests => "requests",
        }
    }

    /// Parses an amount as operators write it: dollars such as `25` or `0.50`, or a whole number.
    ///
    /// # Errors
    /// Returns what is wrong with the text.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        match self {
            Self::Dollars => {
                let amount = NanoDollars::from_dollars(text).map_err(|error| error.to_string())?;
                u64::try_from(amount.get()).map_err(|_| "it must not be below zero".to_owned())
            }
            Self::Tokens | Self::Requests => {
                text.replace('_', "").parse().map_err(|_| format!("`{text}` is not a whole number"))
            }
        }
    }

    /// Returns an amount as [`BudgetMeasure::parse`] reads it.
    pub fn text(self, amount: u64) -> String {
        match self {
            Self::Dollars => self.amount(amount).trim_start_matches('$').to_owned(),
            Self::Tokens | Self::Requests => amount.to_string(),
        }
    }

    /// Returns an amount in words, such as `$1.50` or `10 requests`.
    pub fn amount(self, amount: u64) -> String {
        match self {
            Self::Dollars => NanoDollars::new(i64::try_from(amount).unwrap_or(i64::MAX)).to_string(),
            Self::Tokens if amount == 1 => "1 token".to_owned(),
            Self::Tokens => format!("{amount} tokens"),
            Self::Requests if amount == 1 => "1 request".to_owned(),
            Self::Requests => format!("{amount} requests"),
        }
    }
}

impl fmt::Display for BudgetRule {
    /// Writes the rule in words, for the audit log and operators.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.measure.amount(self.limit);
        match self.window {
            BudgetWindow::Total => write!(f, "{amount} in all")?,
            window => write!(f, "{amount} a {} ({})", window.name(), self.zone)?,
        }
        match &self.subject {
            Some(subject) => write!(f, " for {} {subject}", self.scope.name())?,
            None => write!(f, " for each {}", self.scope.name())?,
        }
        if let Some(tier) = &self.tier {
            write!(f, " of tier {tier}")?;
        }
        if let Some(org) = &self.org {
            write!(f, " within {org}")?;
        }
        f.write_str(if self.is_hard { ", hard" } else { ", soft" })?;
        self.thresholds.iter().try_for_each(|percent| write!(f, ", alert at {percent} %"))
    }
}
