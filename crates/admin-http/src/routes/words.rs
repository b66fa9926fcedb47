//! Rendered prompts, tokens, and checks of model files. Must not know how they are computed.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::App;
use crate::input::{Body, Named};
use crate::problem::Problem;
use crate::routes::ByName;
use crate::seams::{RenderAsk, TokenizeAsk};

/// Maximum size of a body whose prompt is rendered, in bytes.
const MAX_PROMPT_BYTES: usize = 1024 * 1024;

/// A report, as `headrace render --json`, `headrace tokenize --json` and `headrace doctor --json` show it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Report(Map<String, Value>);

fn report(told: Value) -> Result<Json<Report>, Problem> {
    match told {
        Value::Object(fields) => Ok(Json(Report(fields))),
        _ => Err(Problem::internal("the report is none")),
    }
}

pub(crate) async fn render(
    State(app): State<App>,
    Named(ByName { name }): Named<ByName>,
    Body(ask): Body<RenderAsk, MAX_PROMPT_BYTES>,
) -> Result<Json<Report>, Problem> {
    report(app.ask_prompts(move |prompts| prompts.render(&name, ask)).await??)
}

pub(crate) async fn tokenize(
    State(app): State<App>,
    Named(ByName { name }): Named<ByName>,
    Body(ask): Body<TokenizeAsk>,
) -> Result<Json<Report>, Problem> {
    if ask.text.is_some() == ask.ids.is_some() {
        return Err(Problem::form(Some("text"), "give `text` or `ids`"));
    }
    report(app.ask_prompts(move |prompts| prompts.tokenize(&name, ask)).await??)
}

pub(crate) async fn doctor(
    State(app): State<App>,
    Named(ByName { name }): Named<ByName>,
) -> Result<Json<Report>, Problem> {
    report(app.ask_prompts(move |prompts| prompts.doctor(&name)).await??)
}
