//! Rendered prompts, tokens, and checks of model files. Must not know how they are computed.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::AdminApp;
use crate::input::{JsonBody, PathName};
use crate::problem::ApiProblem;
use crate::routes::ByName;
use crate::seams::{RenderAsk, TokenizeAsk};

/// Maximum size of a body whose prompt is rendered, in bytes.
const MAX_PROMPT_BYTES: usize = 1024 * 1024;

/// A report, as `headrace render --json`, `headrace tokenize --json` and `headrace doctor --json` show it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Report(Map<String, Value>);

fn report(told: Value) -> Result<Json<Report>, ApiProblem> {
    match told {
        Value::Object(fields) => Ok(Json(Report(fields))),
        _ => Err(ApiProblem::internal("the report is none")),
    }
}

pub(crate) async fn render(
    State(app): State<AdminApp>,
    PathName(ByName { name }): PathName<ByName>,
    JsonBody(ask): JsonBody<RenderAsk, MAX_PROMPT_BYTES>,
) -> Result<Json<Report>, ApiProblem> {
    report(app.ask_prompts(move |prompts| prompts.render(&name, ask)).await??)
}

pub(crate) async fn tokenize(
    State(app): State<AdminApp>,
    PathName(ByName { name }): PathName<ByName>,
    JsonBody(ask): JsonBody<TokenizeAsk>,
) -> Result<Json<Report>, ApiProblem> {
    if ask.text.is_some() == ask.ids.is_some() {
        return Err(ApiProblem::form(Some("text"), "give `text` or `ids`"));
    }
    report(app.ask_prompts(move |prompts| prompts.tokenize(&name, ask)).await??)
}

pub(crate) async fn doctor(
    State(app): State<AdminApp>,
    PathName(ByName { name }): PathName<ByName>,
) -> Result<Json<Report>, ApiProblem> {
    report(app.ask_prompts(move |prompts| prompts.doctor(&name)).await??)
}
