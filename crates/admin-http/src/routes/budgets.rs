//! Budget rules and their alerts: list, set, raise and remove them.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{
    AdminCommand, AdminReply, BudgetAct, BudgetAlertView, BudgetCounterView, BudgetRuleView,
};
use headrace_domain::{AdminCode, BudgetName, OrgId, TierName};
use headrace_ledger::{BudgetMeasure, BudgetOrigin, BudgetRaise, BudgetRule, BudgetScope, BudgetWindow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::page::{PageQuery, RowPage};
use crate::problem::ApiProblem;
use crate::routes::{ById, budget_scope};
use crate::values::{Name, Time};
use crate::who::AuthenticatedOperator;

const CHANGED: &str = "budgets";

/// The kind of subject. Each subject has a counter of its own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BudgetScope")]
pub(crate) enum ScopeShown {
    Key,
    User,
    Project,
    Org,
    /// A model within an organisation.
    Model,
}

/// The window after which a counter begins anew, by the calendar. A week begins on Monday.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BudgetWindow")]
pub(crate) enum WindowShown {
    Hour,
    Day,
    Week,
    Month,
    Total,
}

/// What is counted. An amount of dollars is a text such as `0.50`, and one of tokens or requests a whole number.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BudgetMeasure")]
pub(crate) enum MeasureShown {
    Dollars,
    Tokens,
    Requests,
}

/// A budget rule with its use.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BudgetRuleShown {
    name: String,
    scope: ScopeShown,
    /// The only organisation whose calls count. `null` for all.
    org: Option<String>,
    /// The only key, user, project, organisation or model that counts. `null` for each of them.
    subject: Option<String>,
    /// The only tier whose holders count. `null` for all.
    tier: Option<String>,
    window: WindowShown,
    /// The time zone of the calendar.
    zone: String,
    measure: MeasureShown,
    /// The limit without a raise.
    limit: String,
    /// The limit in force.
    limit_now: String,
    /// When the raise in force ends. `null` if there is none.
    raised_until: Option<Time>,
    /// Whether a call that does not fit is refused. Otherwise only alerts are raised.
    hard: bool,
    /// The use in percent of the limit at which alerts are raised.
    thresholds: Vec<u16>,
    /// Whether the settings define the rule.
    from_settings: bool,
    /// The use in the current window, by subject.
    counters: Vec<CounterShown>,
}

/// The use of a budget by one subject.
#[derive(Debug, Serialize, JsonSchema)]
struct CounterShown {
    subject: String,
    /// The amount that ended calls used.
    used: String,
    /// The amount that calls in flight have reserved.
    reserved: String,
    /// The amount that further calls can reserve.
    left: String,
    /// When the window ends. `null` for a total.
    resets: Option<Time>,
    /// The thresholds whose alert was raised in the window, in percent.
    alerted: Vec<u16>,
}

/// An alert of a budget.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BudgetAlertShown {
    at: Time,
    budget: String,
    subject: String,
    /// The threshold, in percent of the limit.
    percent: u16,
    used: String,
    limit: String,
    /// When the window ends. `null` for a total.
    resets: Option<Time>,
}

/// A budget rule to be set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBudgetRule {
    pub(crate) scope: ScopeShown,
    #[schemars(with = "Option<Name>")]
    pub(crate) org: Option<OrgId>,
    /// The only key, user, project, organisation or model that counts. If absent, each of them has a counter.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) subject: Option<String>,
    #[schemars(with = "Option<Name>")]
    pub(crate) tier: Option<TierName>,
    pub(crate) window: WindowShown,
    /// The time zone of the calendar. If absent, UTC.
    #[schemars(length(min = 1, max = 64))]
    pub(crate) zone: Option<String>,
    pub(crate) measure: MeasureShown,
    /// Dollars such as `0.50`, or a whole number.
    #[schemars(regex(pattern = r"^\d{1,18}(\.\d{1,9})?$"))]
    pub(crate) limit: String,
    /// If absent, the rule is hard.
    pub(crate) hard: Option<bool>,
    /// Percent of the limit, ascending: 1 to 1,000, at most 16.
    #[schemars(length(max = 16), inner(range(min = 1, max = 1000)))]
    pub(crate) thresholds: Option<Vec<u16>>,
}

/// A higher limit for a time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBudgetRaise {
    /// The limit meanwhile, in the unit of the budget.
    #[schemars(regex(pattern = r"^\d{1,18}(\.\d{1,9})?$"))]
    limit: String,
    /// The length of the raise, in seconds. 0 ends the raise in force.
    #[schemars(range(max = 315_360_000_u64))]
    seconds: u64,
}

impl From<BudgetRuleView> for BudgetRuleShown {
    fn from(of: BudgetRuleView) -> Self {
        let BudgetRuleView { rule, raise, limit: limit_now, counters } = of;
        let BudgetRule {
            name,
            scope,
            org,
            subject,
            tier,
            window,
            zone,
            measure,
            limit,
            is_hard,
            thresholds,
            origin,
        } = rule;
        let counter = |of: BudgetCounterView| {
            let BudgetCounterView { subject, used, reserved, left, resets, alerted } = of;
            let [used, reserved, left] = [used, reserved, left].map(|amount| measure.text(amount));
            CounterShown { subject, used, reserved, left, resets: resets.map(Time), alerted }
        };
        Self {
            name: name.to_string(),
            scope: match scope {
                BudgetScope::Key => ScopeShown::Key,
                BudgetScope::User => ScopeShown::User,
                BudgetScope::Project => ScopeShown::Project,
                BudgetScope::Org => ScopeShown::Org,
                BudgetScope::Model => ScopeShown::Model,
            },
            org: org.map(String::from),
            subject: subject.map(|subject| subject.to_string()),
            tier: tier.map(String::from),
            window: match window {
                BudgetWindow::Hour => WindowShown::Hour,
                BudgetWindow::Day => WindowShown::Day,
                BudgetWindow::Week => WindowShown::Week,
                BudgetWindow::Month => WindowShown::Month,
                BudgetWindow::Total => WindowShown::Total,
            },
            zone: zone.to_string(),
            measure: match measure {
                BudgetMeasure::Dollars => MeasureShown::Dollars,
                BudgetMeasure::Tokens => MeasureShown::Tokens,
                BudgetMeasure::Requests => MeasureShown::Requests,
            },
            limit: measure.text(limit),
            limit_now: measure.text(limit_now),
            raised_until: raise.map(|BudgetRaise { until, .. }| Time(until)),
            hard: is_hard,
            thresholds,
            from_settings: origin == BudgetOrigin::Settings,
            counters: counters.into_iter().map(counter).collect(),
        }
    }
}

impl From<BudgetAlertView> for BudgetAlertShown {
    fn from(of: BudgetAlertView) -> Self {
        let BudgetAlertView { at, name, subject, percent, used, limit, measure, resets } = of;
        let text = |amount: u64| measure.map_or_else(|| amount.to_string(), |measure| measure.text(amount));
        Self {
            at: Time(at),
            budget: name.to_string(),
            subject,
            percent,
            used: text(used),
            limit: text(limit),
            resets: resets.map(Time),
        }
    }
}

impl NewBudgetRule {
    pub(crate) fn named(self, name: BudgetName) -> Result<BudgetRule, ApiProblem> {
        let Self { scope, org, subject, tier, window, zone, measure, limit, hard, thresholds } = self;
        let measure = match measure {
            MeasureShown::Dollars => BudgetMeasure::Dollars,
            MeasureShown::Tokens => BudgetMeasure::Tokens,
            MeasureShown::Requests => BudgetMeasure::Requests,
        };
        Ok(BudgetRule {
            name,
            scope: match scope {
                ScopeShown::Key => BudgetScope::Key,
                ScopeShown::User => BudgetScope::User,
                ScopeShown::Project => BudgetScope::Project,
                ScopeShown::Org => BudgetScope::Org,
                ScopeShown::Model => BudgetScope::Model,
            },
            org,
            subject: subject.map(Into::into),
            tier,
            window: match window {
                WindowShown::Hour => BudgetWindow::Hour,
                WindowShown::Day => BudgetWindow::Day,
                WindowShown::Week => BudgetWindow::Week,
                WindowShown::Month => BudgetWindow::Month,
                WindowShown::Total => BudgetWindow::Total,
            },
            zone: zone.unwrap_or_else(|| "UTC".to_owned()).into(),
            measure,
            limit: measure.parse(&limit).map_err(|why| {
                ApiProblem::new(AdminCode::Invalid, format!("limit: {why}")).at(Some("limit"))
            })?,
            is_hard: hard.unwrap_or(true),
            thresholds: thresholds.unwrap_or_default(),
            origin: BudgetOrigin::Operator,
        })
    }
}

async fn rules(app: &AdminApp, who: &AuthenticatedOperator) -> Result<Vec<BudgetRuleView>, ApiProblem> {
    match app.run(who, AdminCommand::Budgets { act: BudgetAct::List }).await? {
        AdminReply::Budgets(budgets) => Ok(budgets),
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<BudgetRuleShown>>, ApiProblem> {
    let within = |of: BudgetRuleView| match &who.operator.org {
        Some(org) => budget_scope::rule_within(app.directory(), org, of),
        None => Some(of),
    };
    let budgets = rules(&app, &who).await?.into_iter().filter_map(within).map(BudgetRuleShown::from);
    Ok(Json(RowPage::by(budgets, query.limit, query.cursor.as_deref(), |of| of.name.clone())))
}

pub(crate) async fn alerts(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Vec<BudgetAlertShown>>, ApiProblem> {
    let alerts = match app.run(&who, AdminCommand::Budgets { act: BudgetAct::Alerts }).await? {
        AdminReply::BudgetAlerts(alerts) => alerts,
        other => return Err(unexpected(other)),
    };
    let Some(org) = &who.operator.org else {
        return Ok(Json(alerts.into_iter().map(Into::into).collect()));
    };
    let rules = rules(&app, &who).await?;
    let is_own = |alert: &BudgetAlertView| budget_scope::is_alert_of(app.directory(), org, &rules, alert);
    Ok(Json(alerts.into_iter().filter(is_own).map(Into::into).collect()))
}

pub(crate) async fn set(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<BudgetName>>,
    JsonBody(new): JsonBody<NewBudgetRule>,
) -> Result<Json<BudgetRuleShown>, ApiProblem> {
    let rule = new.named(id)?;
    changed(&app, &who, BudgetAct::Set { rule }).await
}

pub(crate) async fn raise(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<BudgetName>>,
    JsonBody(NewBudgetRaise { limit, seconds }): JsonBody<NewBudgetRaise>,
) -> Result<Json<BudgetRuleShown>, ApiProblem> {
    changed(&app, &who, BudgetAct::Raise { name: id, limit, seconds }).await
}

async fn changed(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: BudgetAct,
) -> Result<Json<BudgetRuleShown>, ApiProblem> {
    match app.run(who, AdminCommand::Budgets { act }).await? {
        AdminReply::BudgetChanged(budget) => {
            app.changed(CHANGED);
            Ok(Json(budget.into()))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn remove(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<BudgetName>>,
) -> Result<NoContent, ApiProblem> {
    app.run(&who, AdminCommand::Budgets { act: BudgetAct::Remove { name: id } }).await?;
    app.changed(CHANGED);
    Ok(NoContent)
}
