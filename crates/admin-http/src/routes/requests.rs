//! Calls: search, views of one call, comparison, usage and caches. The JSON comes from [`CallRecords`].

use axum::extract::State;
use axum::{Extension, Json};
use headrace_domain::{AdminCode, ProjectId};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::access::DEVELOPERS;
use crate::app::AdminApp;
use crate::input::{PathName, QueryInput};
use crate::org_scope::{is_within, narrow};
use crate::problem::ApiProblem;
use crate::routes::gateways;
use crate::routes::search::{Search, query};
use crate::seams::{CallRecords, CallView};
use crate::values::Name;
use crate::who::AuthenticatedOperator;

query! {
    /// Filters and groups for usage.
    UsageQuery {
        /// Groups, separated by commas: `org`, `project`, `key`, `model`, `upstream`, `user`, `tag`.
        by,
        /// `hour`, `day` or `month`.
        interval,
        /// Only calls from this time on.
        from,
        /// Only calls before this time.
        to,
        org,
        project,
    }
}

query! {
    /// Filters and groups for cache figures.
    CacheQuery {
        /// Groups, separated by commas: `org`, `model`, `prefix`.
        by,
        /// Only calls from this time on.
        from,
        /// Only calls before this time.
        to,
    }
}

/// A project and a month.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatementQuery {
    #[schemars(with = "Name")]
    project: ProjectId,
    /// The month, such as `2026-11`.
    #[schemars(regex(pattern = r"^\d{4}-(0[1-9]|1[0-2])$"))]
    month: String,
}

/// The two calls to compare.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompareQuery {
    /// The first call's id.
    a: String,
    /// The second call's id.
    b: String,
}

/// A call's id: `req_…`, or the id of its answer.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CallId {
    pub(crate) id: String,
}

fn gone() -> ApiProblem {
    ApiProblem::not_found("there is no such call, or its trace is no longer kept")
}

async fn ask<T: Send + 'static>(
    app: &AdminApp,
    ask: impl FnOnce(&dyn CallRecords) -> Result<T, headrace_admin::AdminError> + Send + 'static,
) -> Result<T, ApiProblem> {
    Ok(app.ask_calls(ask).await??)
}

pub(crate) async fn search(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<Search>,
) -> Result<Json<Value>, ApiProblem> {
    let mut ask = query.ask()?;
    let is_content = ask.named.iter().any(|(name, _)| *name == "content");
    if is_content && !DEVELOPERS.allows(who.operator.role) {
        return Err(ApiProblem::new(AdminCode::Role, "this role may not search contents").at(Some("content")));
    }
    narrow(&who.operator, &mut ask.named)?;
    gateways::search(&app, ask).await.map(Json)
}

async fn look(
    app: AdminApp,
    who: &AuthenticatedOperator,
    id: String,
    what: CallView,
) -> Result<Json<Value>, ApiProblem> {
    check_call(&app, who, &id).await?;
    gateways::look(&app, id, what).await?.map(Json).ok_or_else(gone)
}

/// Checks that a call belongs to the operator's organisation. Calls of others answer as missing.
pub(crate) async fn check_call(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    id: &str,
) -> Result<(), ApiProblem> {
    let Some(org) = &who.operator.org else { return Ok(()) };
    let trace = gateways::look(app, id.to_owned(), CallView::Trace).await?.ok_or_else(gone)?;
    match trace["org"] == org.as_str() {
        true => Ok(()),
        false => Err(gone()),
    }
}

pub(crate) async fn one(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<Value>, ApiProblem> {
    look(app, &who, call.id, CallView::Trace).await
}

pub(crate) async fn explain(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<Value>, ApiProblem> {
    look(app, &who, call.id, CallView::Explain).await
}

pub(crate) async fn beside(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<Value>, ApiProblem> {
    look(app, &who, call.id, CallView::Beside).await
}

pub(crate) async fn content(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<Value>, ApiProblem> {
    check_call(&app, &who, &call.id).await?;
    let found = gateways::look(&app, call.id, CallView::Content).await?;
    let message = "nothing is recorded of this call's request and answer, or it is no longer kept: see `records` of its project";
    let found = found.ok_or_else(|| ApiProblem::not_found(message))?;
    // Who reads what callers wrote is in the audit log, before it is shown.
    let id = found["id"].as_str().unwrap_or_default().to_owned();
    app.note(&who, "content.read", id, String::new()).await?;
    Ok(Json(found))
}

pub(crate) async fn cost(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<Value>, ApiProblem> {
    look(app, &who, call.id, CallView::Cost).await
}

pub(crate) async fn receipt(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<Value>, ApiProblem> {
    check_call(&app, &who, &call.id).await?;
    let no_receipt = || {
        ApiProblem::not_found(
            "this call has no receipt: it was refused, failed before any work, is not settled yet, or its trace is no longer kept",
        )
    };
    gateways::look(&app, call.id, CallView::Receipt).await?.map(Json).ok_or_else(no_receipt)
}

pub(crate) async fn compare(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<CompareQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let CompareQuery { a, b } = query;
    let (a, b) = tokio::join!(record(&app, &who, a), record(&app, &who, b));
    let ((a, a_ran), (b, b_ran)) = (a?, b?);
    let mut compared = ask(&app, move |calls| calls.compare(&a, &b)).await?;
    if let (Some(a_ran), Some(b_ran), Value::Object(fields)) = (a_ran, b_ran, &mut compared) {
        fields.insert("gateways".to_owned(), serde_json::json!({ "a": a_ran, "b": b_ran }));
    }
    Ok(Json(compared))
}

/// The record of a call that the operator may see, from the gateway that answered the call, with the gateway's name.
async fn record(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    id: String,
) -> Result<(Value, Option<String>), ApiProblem> {
    let found = gateways::find(app, id, CallView::Record).await?.ok_or_else(gone)?;
    match &who.operator.org {
        Some(org) if found.0["org"] != org.as_str() => Err(gone()),
        _ => Ok(found),
    }
}

pub(crate) async fn usage(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<UsageQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let mut named = query.named();
    narrow(&who.operator, &mut named)?;
    ask(&app, move |calls| calls.usage(&named)).await.map(Json)
}

pub(crate) async fn statement(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<StatementQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let StatementQuery { project, month } = query;
    let found = app.directory().project(&project);
    if found.is_none_or(|found| !is_within(&who.operator, &found.org)) {
        return Err(ApiProblem::not_found(format!("there is no project `{project}`")).at(Some("project")));
    }
    ask(&app, move |calls| calls.statement(&project, &month)).await.map(Json)
}

pub(crate) async fn cache(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<CacheQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let named = query.named();
    ask(&app, move |calls| calls.cache(&named)).await.map(Json)
}

pub(crate) async fn now(State(app): State<AdminApp>) -> Result<Json<Value>, ApiProblem> {
    let mut now = app.calls().now();
    // Events carry only new samples, so a client reads the history here once.
    now["history"] = app.calls().history();
    Ok(Json(now))
}
