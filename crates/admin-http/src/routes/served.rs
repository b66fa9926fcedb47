//! Models, prices, routes and upstreams.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, RouteView, UpstreamAct, UpstreamView};
use headrace_domain::ModelName;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::{AdminApp, unexpected};
use crate::input::{PathName, QueryInput};
use crate::page::{PageQuery, RowPage};
use crate::problem::ApiProblem;
use crate::routes::{ByName, bad_cursor};
use crate::seams::{ModelPrices, ServedModel, StoredCheckpoint};
use crate::who::AuthenticatedOperator;

/// A name that leads to several models: `name`, `sticky`, and `to` with `model`, `weight` and, if on trial, `canary`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Route(Map<String, Value>);

/// An upstream server, as `headrace upstreams --json` shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Upstream(Map<String, Value>);

fn shown<T: Serialize>(view: &T) -> Map<String, Value> {
    match serde_json::to_value(view) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

pub(crate) async fn models(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<ServedModel>>, ApiProblem> {
    let mut models = app.server(|server| server.models()).await?;
    models.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(RowPage::by(models, query.limit, query.cursor.as_deref(), |model| model.name.clone())))
}

/// The contents of a checkpoint and the memory it needs, as `headrace models inspect --json` shows them.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Inspected(Map<String, Value>);

fn inspected(told: Value) -> Result<Json<Inspected>, ApiProblem> {
    match told {
        Value::Object(fields) => Ok(Json(Inspected(fields))),
        _ => Err(ApiProblem::internal("the report is none")),
    }
}

pub(crate) async fn inspect(
    State(app): State<AdminApp>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Inspected>, ApiProblem> {
    inspected(app.server(move |server| server.inspect(&name)).await??)
}

pub(crate) async fn checkpoints(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<StoredCheckpoint>>, ApiProblem> {
    let found = app.server(|server| server.checkpoints()).await?;
    RowPage::from_place(found, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

pub(crate) async fn inspect_checkpoint(
    State(app): State<AdminApp>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Inspected>, ApiProblem> {
    inspected(app.server(move |server| server.inspect_checkpoint(&name)).await??)
}

pub(crate) async fn prices(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<ModelPrices>>, ApiProblem> {
    let prices = app.server(|server| server.prices()).await??;
    RowPage::from_place(prices, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

pub(crate) async fn routes(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<Route>>, ApiProblem> {
    let views = routed(&app, &who, None).await?;
    let rows = views.iter().map(|view| Route(shown(view))).collect();
    RowPage::from_place(rows, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

async fn routed(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    resume: Option<ModelName>,
) -> Result<Vec<RouteView>, ApiProblem> {
    match app.run(who, AdminCommand::Routes { resume }).await? {
        AdminReply::Routes(views) => Ok(views),
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn resume_route(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Route>, ApiProblem> {
    let unknown = || ApiProblem::not_found("there is no such route");
    let name = ModelName::new(&name).map_err(|_| unknown())?;
    let known = routed(&app, &who, None).await?;
    known.iter().find(|view| view.name == name).ok_or_else(unknown)?;
    let views = routed(&app, &who, Some(name.clone())).await?;
    app.changed("routes");
    Ok(Json(Route(shown(views.iter().find(|view| view.name == name).ok_or_else(unknown)?))))
}

pub(crate) async fn upstreams(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<Upstream>>, ApiProblem> {
    let views = fronted(&app, &who, None).await?;
    let rows = views.iter().map(|view| Upstream(shown(view))).collect();
    RowPage::from_place(rows, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

async fn fronted(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: Option<UpstreamAct>,
) -> Result<Vec<UpstreamView>, ApiProblem> {
    match app.run(who, AdminCommand::Upstreams { act }).await? {
        AdminReply::Upstreams(views) => Ok(views),
        other => Err(unexpected(other)),
    }
}

async fn act(
    app: AdminApp,
    who: AuthenticatedOperator,
    act: UpstreamAct,
) -> Result<Json<Upstream>, ApiProblem> {
    let name = act.upstream().to_owned();
    let unknown = || ApiProblem::not_found("there is no such upstream");
    let known = fronted(&app, &who, None).await?;
    known.iter().find(|view| view.name == name).ok_or_else(unknown)?;
    let views = fronted(&app, &who, Some(act)).await?;
    app.changed("upstreams");
    Ok(Json(Upstream(shown(views.iter().find(|view| view.name == name).ok_or_else(unknown)?))))
}

pub(crate) async fn drain(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Upstream>, ApiProblem> {
    act(app, who, UpstreamAct::Drain { upstream: name }).await
}

pub(crate) async fn resume(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Upstream>, ApiProblem> {
    act(app, who, UpstreamAct::Resume { upstream: name }).await
}

pub(crate) async fn probe(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Upstream>, ApiProblem> {
    act(app, who, UpstreamAct::Probe { upstream: name }).await
}
