//! Calls: search, views of one call, comparison, usage and caches. The JSON comes from [`CallRecords`].

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::content_filter_words;
use headrace_domain::{AdminCode, ProjectId};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::access::DEVELOPERS;
use crate::app::AdminApp;
use crate::input::{PathName, QueryInput};
use crate::org_scope::{is_within, narrow};
use crate::problem::ApiProblem;
use crate::routes::gateways::{self, LocatedCall};
use crate::routes::search::{Search, UsageQuery, query};
use crate::seams::{CallRecords, CallView};
use crate::values::Name;
use crate::who::AuthenticatedOperator;

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
    if is_content {
        let words = content_filter_words(ask.named.iter().map(|(name, value)| (*name, value.as_str())));
        app.note(&who, "content.search", "contents".to_owned(), words).await?;
    }
    gateways::search(&app, ask).await.map(Json)
}

/// Finds a view of a call that the operator may see. Calls of other organisations answer as missing. `None` if the call has
/// no such view.
async fn find(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    id: String,
    what: CallView,
) -> Result<Option<LocatedCall>, ApiProblem> {
    let id = check_call(app, who, id).await?;
    match gateways::find(app, id, what).await? {
        // Another gateway may know another call by the same name.
        Some(found) if !is_own(who, &found) => Err(gone()),
        found => Ok(found),
    }
}

async fn look(
    app: AdminApp,
    who: &AuthenticatedOperator,
    id: String,
    what: CallView,
) -> Result<Json<Value>, ApiProblem> {
    find(&app, who, id, what).await?.map(|found| Json(found.into_view())).ok_or_else(gone)
}

/// Whether a call belongs to the operator's organisation.
fn is_own(who: &AuthenticatedOperator, found: &LocatedCall) -> bool {
    who.operator.org.is_none() || who.operator.org == found.call.org
}

/// Checks that a call belongs to the operator's organisation. Calls of others answer as missing. Returns the id of the call
/// that was checked, by which it must be found from then on.
pub(crate) async fn check_call(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    id: String,
) -> Result<String, ApiProblem> {
    if who.operator.org.is_none() {
        return Ok(id);
    }
    let found = gateways::find(app, id, CallView::Trace).await?.ok_or_else(gone)?;
    if is_own(who, &found) { Ok(found.call.id) } else { Err(gone()) }
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
    let found = find(&app, &who, call.id, CallView::Content).await?;
    let message = "nothing is recorded of this call's request and answer, or it is no longer kept: see `records` of its project";
    let found = found.ok_or_else(|| ApiProblem::not_found(message))?;
    // Who reads what callers wrote is in the audit log, before it is shown.
    app.note(&who, "content.read", found.call.id.clone(), String::new()).await?;
    Ok(Json(found.into_view()))
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
    let no_receipt = || {
        ApiProblem::not_found(
            "this call has no receipt: it was refused, failed before any work, is not settled yet, or its trace is no longer kept",
        )
    };
    let found = find(&app, &who, call.id, CallView::Receipt).await?;
    found.map(|found| Json(found.into_view())).ok_or_else(no_receipt)
}

pub(crate) async fn compare(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<CompareQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let CompareQuery { a, b } = query;
    let (a, b) = tokio::join!(record(&app, &who, a), record(&app, &who, b));
    let (a, b) = (a?, b?);
    let (a_record, b_record) = (a.call.view, b.call.view);
    let mut compared = ask(&app, move |calls| calls.compare(&a_record, &b_record)).await?;
    if let (Some(a_ran), Some(b_ran), Value::Object(fields)) = (a.gateway, b.gateway, &mut compared) {
        fields.insert("gateways".to_owned(), serde_json::json!({ "a": a_ran, "b": b_ran }));
    }
    Ok(Json(compared))
}

/// The record of a call that the operator may see, from the gateway that answered the call.
async fn record(app: &AdminApp, who: &AuthenticatedOperator, id: String) -> Result<LocatedCall, ApiProblem> {
    let found = gateways::find(app, id, CallView::Record).await?.ok_or_else(gone)?;
    if is_own(who, &found) { Ok(found) } else { Err(gone()) }
}

pub(crate) async fn usage(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<UsageQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let mut named = query.named();
    narrow(&who.operator, &mut named)?;
    gateways::usage(&app, named).await.map(Json)
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
