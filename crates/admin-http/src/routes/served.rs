//! Models, prices, routes and upstreams.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, RouteView, UpstreamAct, UpstreamView};
use headrace_domain::ModelName;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::{App, unexpected};
use crate::input::{Asked, Named};
use crate::page::{Page, PageQuery};
use crate::problem::Problem;
use crate::routes::{ByName, bad_cursor};
use crate::seams::{ModelPrices, ServedModel, StoredCheckpoint};
use crate::who::Who;

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
    State(app): State<App>,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<ServedModel>>, Problem> {
    let mut models = app.house(|house| house.models()).await?;
    models.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(Page::by(models, query.limit, query.cursor.as_deref(), |model| model.name.clone())))
}

/// The contents of a checkpoint and the memory it needs, as `headrace models inspect --json` shows them.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Inspected(Map<String, Value>);

fn inspected(told: Value) -> Result<Json<Inspected>, Problem> {
    match told {
        Value::Object(fields) => Ok(Json(Inspected(fields))),
        _ => Err(Problem::internal("the report is none")),
    }
}

pub(crate) async fn inspect(
    State(app): State<App>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Inspected>, Problem> {
    inspected(app.house(move |house| house.inspect(&name)).await??)
}

pub(crate) async fn checkpoints(
    State(app): State<App>,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<StoredCheckpoint>>, Problem> {
    let found = app.house(|house| house.checkpoints()).await?;
    Page::from_place(found, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

pub(crate) async fn inspect_checkpoint(
    State(app): State<App>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Inspected>, Problem> {
    inspected(app.house(move |house| house.inspect_checkpoint(&name)).await??)
}

pub(crate) async fn prices(
    State(app): State<App>,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<ModelPrices>>, Problem> {
    let prices = app.house(|house| house.prices()).await??;
    Page::from_place(prices, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

pub(crate) async fn routes(
    State(app): State<App>,
    Extension(who): Extension<Who>,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<Route>>, Problem> {
    let views = routed(&app, &who, None).await?;
    let rows = views.iter().map(|view| Route(shown(view))).collect();
    Page::from_place(rows, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

async fn routed(app: &App, who: &Who, resume: Option<ModelName>) -> Result<Vec<RouteView>, Problem> {
    match app.run(who, AdminCommand::Routes { resume }).await? {
        AdminReply::Routes(views) => Ok(views),
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn resume_route(
    State(app): State<App>,
    Extension(who): Extension<Who>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Route>, Problem> {
    let unknown = || Problem::not_found("there is no such route");
    let name = ModelName::new(&name).map_err(|_| unknown())?;
    let known = routed(&app, &who, None).await?;
    known.iter().find(|view| view.name == name).ok_or_else(unknown)?;
    let views = routed(&app, &who, Some(name.clone())).await?;
    app.changed("routes");
    Ok(Json(Route(shown(views.iter().find(|view| view.name == name).ok_or_else(unknown)?))))
}

pub(crate) async fn upstreams(
    State(app): State<App>,
    Extension(who): Extension<Who>,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<Upstream>>, Problem> {
    let views = fronted(&app, &who, None).await?;
    let rows = views.iter().map(|view| Upstream(shown(view))).collect();
    Page::from_place(rows, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

async fn fronted(app: &App, who: &Who, act: Option<UpstreamAct>) -> Result<Vec<UpstreamView>, Problem> {
    match app.run(who, AdminCommand::Upstreams { act }).await? {
        AdminReply::Upstreams(views) => Ok(views),
        other => Err(unexpected(other)),
    }
}

async fn act(app: App, who: Who, act: UpstreamAct) -> Result<Json<Upstream>, Problem> {
    let name = act.upstream().to_owned();
    let unknown = || Problem::not_found("there is no such upstream");
    let known = fronted(&app, &who, None).await?;
    known.iter().find(|view| view.name == name).ok_or_else(unknown)?;
    let views = fronted(&app, &who, Some(act)).await?;
    app.changed("upstreams");
    Ok(Json(Upstream(shown(views.iter().find(|view| view.name == name).ok_or_else(unknown)?))))
}

pub(crate) async fn drain(
    State(app): State<App>,
    Extension(who): Extension<Who>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Upstream>, Problem> {
    act(app, who, UpstreamAct::Drain { upstream: name }).await
}

pub(crate) async fn resume(
    State(app): State<App>,
    Extension(who): Extension<Who>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Upstream>, Problem> {
    act(app, who, UpstreamAct::Resume { upstream: name }).await
}

pub(crate) async fn probe(
    State(app): State<App>,
    Extension(who): Extension<Who>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Upstream>, Problem> {
    act(app, who, UpstreamAct::Probe { upstream: name }).await
}
