//! Calls: searched, looked at, compared; and what they come to. What is told is made elsewhere, as JSON.

use axum::Json;
use axum::extract::State;
use headrace_domain::ProjectId;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::app::App;
use crate::input::{Asked, Named};
use crate::page::{is_limit, rows};
use crate::problem::Problem;
use crate::seams::{Calls, Look};
use crate::values::Name;

/// A query all of whose parts are text, handed on by name.
macro_rules! query {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_doc])* $field: Option<String>,)*
        }

        impl $name {
            fn named(self) -> Vec<(&'static str, String)> {
                [$((stringify!($field), self.$field)),*]
                    .into_iter()
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect()
            }
        }
    };
}

query! {
    /// Which calls.
    Search {
        /// Calls from here on: a time, a date, or how long ago (`2h`).
        from,
        /// Calls before.
        to,
        /// Who paid.
        org,
        project,
        key,
        /// Whom the caller said that it is for.
        user,
        /// The model that served, or that was asked for.
        model,
        /// The upstream that was asked.
        upstream,
        /// `completed`, `refused`, `cancelled` or `failed`.
        outcome,
        /// Where it was refused or failed, or where most of its time went.
        stage,
        /// Took the server longer than so many milliseconds.
        slower_than_ms,
        /// Cost more than so many dollars.
        dearer_than,
        /// Stands in the refusal.
        text,
        /// The most rows: 1 to 500.
        limit,
        /// Where to go on: the `next` of the page before.
        cursor,
    }
}

query! {
    /// Whose use, and when.
    UsageQuery {
        /// What to tell apart, with commas between: `org`, `project`, `key`, `model`, `upstream`, `user`.
        by,
        /// `hour`, `day` or `month`.
        interval,
        /// Calls from here on.
        from,
        /// Calls before.
        to,
        org,
        project,
    }
}

query! {
    /// Whose prompts, and when.
    CacheQuery {
        /// What to tell apart, with commas between: `org`, `model`, `prefix`.
        by,
        /// Calls from here on.
        from,
        /// Calls before.
        to,
    }
}

/// Whose month.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatementQuery {
    #[schemars(with = "Name")]
    project: ProjectId,
    /// As `2026-11`.
    #[schemars(regex(pattern = r"^\d{4}-(0[1-9]|1[0-2])$"))]
    month: String,
}

/// Which two calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompareQuery {
    /// A call's id.
    a: String,
    /// Another's.
    b: String,
}

/// A call's id: `req_…`, or the id of its answer.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CallId {
    id: String,
}

fn gone() -> Problem {
    Problem::not_found("there is no such call, or its trace is no longer kept")
}

async fn ask<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&dyn Calls) -> Result<T, headrace_admin::AdminError> + Send + 'static,
) -> Result<T, Problem> {
    Ok(app.ask_calls(ask).await??)
}

pub(crate) async fn search(
    State(app): State<App>,
    Asked(query): Asked<Search>,
) -> Result<Json<Value>, Problem> {
    let Search { limit, cursor, .. } = &query;
    let limit = limit.as_deref().map(|limit| limit.parse().ok().filter(|rows| is_limit(*rows)));
    let limit = match limit {
        Some(None) => return Err(Problem::form(Some("limit"), "this is no number from 1 to 500")),
        Some(limit) => rows(limit),
        None => rows(None),
    };
    let cursor = cursor.clone();
    let mut named = query.named();
    named.retain(|(name, _)| !matches!(*name, "limit" | "cursor"));
    ask(&app, move |calls| calls.search(&named, cursor.as_deref(), limit)).await.map(Json)
}

async fn look(app: App, id: String, what: Look) -> Result<Json<Value>, Problem> {
    ask(&app, move |calls| calls.call(&id, what)).await?.map(Json).ok_or_else(gone)
}

pub(crate) async fn one(State(app): State<App>, Named(call): Named<CallId>) -> Result<Json<Value>, Problem> {
    look(app, call.id, Look::Trace).await
}

pub(crate) async fn explain(
    State(app): State<App>,
    Named(call): Named<CallId>,
) -> Result<Json<Value>, Problem> {
    look(app, call.id, Look::Explain).await
}

pub(crate) async fn beside(
    State(app): State<App>,
    Named(call): Named<CallId>,
) -> Result<Json<Value>, Problem> {
    look(app, call.id, Look::Beside).await
}

pub(crate) async fn cost(State(app): State<App>, Named(call): Named<CallId>) -> Result<Json<Value>, Problem> {
    look(app, call.id, Look::Cost).await
}

pub(crate) async fn compare(
    State(app): State<App>,
    Asked(query): Asked<CompareQuery>,
) -> Result<Json<Value>, Problem> {
    let CompareQuery { a, b } = query;
    ask(&app, move |calls| calls.compare(&a, &b)).await?.map(Json).ok_or_else(gone)
}

pub(crate) async fn usage(
    State(app): State<App>,
    Asked(query): Asked<UsageQuery>,
) -> Result<Json<Value>, Problem> {
    let named = query.named();
    ask(&app, move |calls| calls.usage(&named)).await.map(Json)
}

pub(crate) async fn statement(
    State(app): State<App>,
    Asked(query): Asked<StatementQuery>,
) -> Result<Json<Value>, Problem> {
    let StatementQuery { project, month } = query;
    if app.directory().project(&project).is_none() {
        return Err(Problem::not_found(format!("there is no project `{project}`")).at(Some("project")));
    }
    ask(&app, move |calls| calls.statement(&project, &month)).await.map(Json)
}

pub(crate) async fn cache(
    State(app): State<App>,
    Asked(query): Asked<CacheQuery>,
) -> Result<Json<Value>, Problem> {
    let named = query.named();
    ask(&app, move |calls| calls.cache(&named)).await.map(Json)
}

pub(crate) async fn now(State(app): State<App>) -> Result<Json<Value>, Problem> {
    let mut now = app.calls().now();
    // Events tell what is new: who begins to listen asks for the past once.
    now["history"] = app.calls().history();
    Ok(Json(now))
}
