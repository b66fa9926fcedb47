//! Free tiers: list, set and remove them. They are what the provider of the server gives, so an operator of one
//! organisation only lists those that apply to it.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{AdminReply, FreeTierView, LotAct, LotReply};
use headrace_domain::{BudgetName, ModelName, OrgId, TierName};
use headrace_ledger::FreeTier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName};
use crate::problem::ApiProblem;
use crate::routes::budgets::{BudgetRuleShown, MeasureShown, NewBudgetRule, ScopeShown, WindowShown};
use crate::routes::lots::run_lot_act;
use crate::routes::{ById, budget_scope};
use crate::values::Name;
use crate::who::AuthenticatedOperator;

/// The topic of changes that watching pages load again.
const CHANGED: &str = "budgets";

/// A free tier with its use. The limit is what each subject may use free of charge in a window.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FreeTier")]
pub(crate) struct FreeTierShown {
    #[serde(flatten)]
    rule: BudgetRuleShown,
    /// The only models whose calls are free. `null` for all.
    models: Option<Vec<String>>,
}

/// A free tier to be set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewFreeTier {
    /// Who has a free amount of its own: `key`, `user`, `project` or `org`.
    scope: ScopeShown,
    /// Only calls of this organisation are free. If absent, those of all.
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    /// The only key, user, project or organisation whose calls are free. If absent, each of them.
    #[schemars(length(min = 1, max = 256))]
    subject: Option<String>,
    /// Only holders of this tier. If absent, all.
    #[schemars(with = "Option<Name>")]
    tier: Option<TierName>,
    window: WindowShown,
    /// The time zone of the calendar. If absent, UTC.
    #[schemars(length(min = 1, max = 64))]
    zone: Option<String>,
    measure: MeasureShown,
    /// What is free in a window: dollars such as `0.50`, or a whole number.
    #[schemars(regex(pattern = r"^\d{1,18}(\.\d{1,9})?$"))]
    limit: String,
    /// The only models whose calls are free. If absent, all.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = 64))]
    models: Option<Vec<ModelName>>,
}

impl From<FreeTierView> for FreeTierShown {
    fn from(of: FreeTierView) -> Self {
        let FreeTierView { tier: FreeTier { rule, models }, counters } = of;
        let limit = rule.limit;
        let names = |models: &[ModelName]| models.iter().map(ToString::to_string).collect();
        let models = models.as_deref().map(names);
        let rule = headrace_admin::BudgetRuleView { rule, raise: None, limit, counters };
        Self { rule: rule.into(), models }
    }
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Vec<FreeTierShown>>, ApiProblem> {
    let within = |of: FreeTierView| match &who.operator.org {
        Some(org) => budget_scope::free_tier_within(app.directory(), org, of),
        None => Some(of),
    };
    match run_lot_act(&app, &who, LotAct::ListFree).await? {
        LotReply::FreeTiers(tiers) => {
            Ok(Json(tiers.into_iter().filter_map(within).map(Into::into).collect()))
        }
        other => Err(unexpected(AdminReply::Lots(other))),
    }
}

pub(crate) async fn set(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<BudgetName>>,
    JsonBody(new): JsonBody<NewFreeTier>,
) -> Result<Json<FreeTierShown>, ApiProblem> {
    let NewFreeTier { scope, org, subject, tier, window, zone, measure, limit, models } = new;
    let (hard, thresholds) = (None, None);
    let rule = NewBudgetRule { scope, org, subject, tier, window, zone, measure, limit, hard, thresholds };
    let tier = FreeTier { rule: rule.named(id)?, models: models.map(Into::into) };
    match run_lot_act(&app, &who, LotAct::SetFree { tier }).await? {
        LotReply::FreeSet(tier) => {
            app.changed(CHANGED);
            Ok(Json(tier.into()))
        }
        other => Err(unexpected(AdminReply::Lots(other))),
    }
}

pub(crate) async fn remove(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<BudgetName>>,
) -> Result<NoContent, ApiProblem> {
    run_lot_act(&app, &who, LotAct::RemoveFree { name: id }).await?;
    app.changed(CHANGED);
    Ok(NoContent)
}
