//! Tiers: list, create, change, delete and assign them.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, TierAct};
use headrace_domain::{KeyId, ModelName, OrgId, ProjectId, TierName};
use headrace_identity::{ModelAccess, TierHolder, TierRecord, TierRules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::page::{PageQuery, RowPage};
use crate::problem::ApiProblem;
use crate::routes::{ById, CreatedBody};
use crate::values::{Limits, Name, Time, Title};
use crate::who::AuthenticatedOperator;

const CHANGED: &str = "tiers";

/// A tier: a named set of limits and entitlements.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Tier")]
pub(crate) struct TierView {
    name: String,
    /// Limits of each organisation, project or key that has the tier, beside its own. The least counts.
    limits: Limits,
    /// The models that may be asked for. `null` for all, including models added later.
    models: Option<Vec<String>>,
    /// Most tokens of a prompt and its answer together.
    max_context_tokens: Option<u32>,
    /// Most tokens of an answer, reasoning included.
    max_output_tokens: Option<u32>,
    /// Whether calls may ask for reasoning.
    reasoning: bool,
    created: Time,
}

impl From<TierRecord> for TierView {
    fn from(of: TierRecord) -> Self {
        let TierRecord { name, rules, created } = of;
        let TierRules { limits, models, max_context_tokens, max_output_tokens, reasoning } = rules;
        Self {
            name: name.to_string(),
            limits: limits.into(),
            models: match models {
                ModelAccess::All => None,
                ModelAccess::Only(models) => Some(models.iter().map(ToString::to_string).collect()),
            },
            max_context_tokens,
            max_output_tokens,
            reasoning,
            created: Time(created),
        }
    }
}

/// What a tier allows. An absent field restricts nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTierRules {
    /// Limits of each organisation, project or key that has the tier, beside its own. The least counts.
    limits: Option<Limits>,
    /// The models that may be asked for. If absent, all may, including models added later.
    #[schemars(with = "Option<Vec<Title>>")]
    models: Option<Vec<ModelName>>,
    /// Most tokens of a prompt and its answer together.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    max_context_tokens: Option<u32>,
    /// Most tokens of an answer, reasoning included.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    max_output_tokens: Option<u32>,
    /// Whether calls may ask for reasoning. If absent, they may.
    reasoning: Option<bool>,
}

impl From<NewTierRules> for TierRules {
    fn from(of: NewTierRules) -> Self {
        let NewTierRules { limits, models, max_context_tokens, max_output_tokens, reasoning } = of;
        Self {
            limits: limits.map(Into::into).unwrap_or_default(),
            models: models.map_or(ModelAccess::All, |names| ModelAccess::Only(names.into_iter().collect())),
            max_context_tokens,
            max_output_tokens,
            reasoning: reasoning.unwrap_or(true),
        }
    }
}

/// A tier to be created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTier {
    #[schemars(with = "Name")]
    name: TierName,
    rules: NewTierRules,
}

/// The tier of an organisation, a project or a key.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssignedTier {
    /// The tier's name. `null` for no tier.
    #[schemars(with = "Option<Name>")]
    tier: Option<TierName>,
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<TierView>>, ApiProblem> {
    let tiers = app.directory().tiers().into_iter().map(TierView::from);
    Ok(Json(RowPage::by(tiers, query.limit, query.cursor.as_deref(), |tier| tier.name.clone())))
}

pub(crate) async fn create(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(NewTier { name, rules }): JsonBody<NewTier>,
) -> Result<CreatedBody<TierView>, ApiProblem> {
    let act = TierAct::Create { name, rules: rules.into() };
    match app.run(&who, AdminCommand::Tiers { act }).await? {
        AdminReply::TierSet(tier) => {
            app.changed(CHANGED);
            Ok(CreatedBody(tier.into()))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn change(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<TierName>>,
    JsonBody(rules): JsonBody<NewTierRules>,
) -> Result<Json<TierView>, ApiProblem> {
    let act = TierAct::Change { name: id, rules: rules.into() };
    match app.run(&who, AdminCommand::Tiers { act }).await? {
        AdminReply::TierSet(tier) => {
            app.changed(CHANGED);
            Ok(Json(tier.into()))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn remove(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<TierName>>,
) -> Result<NoContent, ApiProblem> {
    app.run(&who, AdminCommand::Tiers { act: TierAct::Remove { name: id } }).await?;
    app.changed(CHANGED);
    Ok(NoContent)
}

pub(crate) async fn assign_to_org(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<OrgId>>,
    JsonBody(tier): JsonBody<AssignedTier>,
) -> Result<Json<AssignedTier>, ApiProblem> {
    assign(app, &who, TierHolder::Org(id), tier, "orgs").await
}

pub(crate) async fn assign_to_project(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<ProjectId>>,
    JsonBody(tier): JsonBody<AssignedTier>,
) -> Result<Json<AssignedTier>, ApiProblem> {
    assign(app, &who, TierHolder::Project(id), tier, "projects").await
}

pub(crate) async fn assign_to_key(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<KeyId>>,
    JsonBody(tier): JsonBody<AssignedTier>,
) -> Result<Json<AssignedTier>, ApiProblem> {
    assign(app, &who, TierHolder::Key(id), tier, "keys").await
}

async fn assign(
    app: AdminApp,
    who: &AuthenticatedOperator,
    to: TierHolder,
    AssignedTier { tier }: AssignedTier,
    changed: &'static str,
) -> Result<Json<AssignedTier>, ApiProblem> {
    match app.run(who, AdminCommand::Tiers { act: TierAct::Assign { to, tier } }).await? {
        AdminReply::TierAssigned(_, tier) => {
            app.changed(changed);
            Ok(Json(AssignedTier { tier }))
        }
        other => Err(unexpected(other)),
    }
}
