//! Scores of calls, datasets of recorded requests and answers, and the removal of a user from all stores.

use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json};
use headrace_admin::{
    AdminCommand, AdminReply, CallDataset, CallScore, ContentAct, ContentReply, ForgottenStore, RecordName,
    ScoreValue,
};
use headrace_domain::{OrgId, ProjectId, RequestId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::page::{PageQuery, RowPage, rows};
use crate::problem::ApiProblem;
use crate::routes::requests::{CallId, check_call};
use crate::routes::{ById, CreatedBody};
use crate::values::{Name, Time};
use crate::who::AuthenticatedOperator;

const DATASETS: &str = "datasets";
/// Items of a new dataset if the client sets no limit.
const USUAL_ITEMS: usize = 1_000;

/// A score of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Score")]
pub(crate) struct ScoreView {
    /// What is scored.
    name: String,
    value: f64,
    /// A remark. Empty if there is none.
    comment: String,
    /// Who gave the score.
    actor: String,
    at: Time,
}

impl From<CallScore> for ScoreView {
    fn from(of: CallScore) -> Self {
        let CallScore { id: _, name, value, comment, actor, at } = of;
        Self { name: name.into(), value: value.into(), comment, actor, at: Time(at) }
    }
}

/// The scores of a call, by name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CallScores {
    data: Vec<ScoreView>,
}

/// A score to be given, in place of the one of the same name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewScore {
    /// What is scored: 1 to 64 letters, digits, `.`, `_` and `-`.
    #[schemars(with = "Name")]
    name: RecordName,
    /// A number from -10⁹ to 10⁹. Six decimal places are kept.
    #[schemars(with = "f64")]
    value: ScoreValue,
    /// A remark of at most 1,024 bytes.
    #[serde(default)]
    comment: String,
}

/// A dataset: a named set of recorded requests and answers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Dataset")]
pub(crate) struct DatasetView {
    name: String,
    /// The number of its items.
    items: u64,
    /// The filters by which its items were chosen, in words.
    from: String,
    /// Who created it.
    actor: String,
    created: Time,
}

impl From<CallDataset> for DatasetView {
    fn from(of: CallDataset) -> Self {
        let CallDataset { name, org: _, from, actor, created, items } = of;
        Self { name: name.into(), items, from, actor, created: Time(created) }
    }
}

/// A dataset to be created from recorded requests and answers. An absent filter restricts nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDataset {
    #[schemars(with = "Name")]
    name: RecordName,
    /// Only calls from this time on: a time, a date, or an age (`2h`).
    from: Option<String>,
    /// Only calls before this time.
    to: Option<String>,
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    #[schemars(with = "Option<Name>")]
    project: Option<ProjectId>,
    /// The end user that the client named.
    user: Option<String>,
    /// The model that served the call.
    model: Option<String>,
    /// Text in the request or the answer.
    text: Option<String>,
    /// The maximum number of items. The newest calls are taken. If absent, 1,000.
    #[schemars(range(min = 1, max = 100_000))]
    limit: Option<usize>,
}

impl NewDataset {
    fn filters(&self) -> Vec<(String, String)> {
        let named = [
            ("from", self.from.clone()),
            ("to", self.to.clone()),
            ("org", self.org.as_ref().map(ToString::to_string)),
            ("project", self.project.as_ref().map(ToString::to_string)),
            ("user", self.user.clone()),
            ("model", self.model.clone()),
            ("text", self.text.clone()),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// A user to be forgotten.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgottenUser {
    /// The user, as clients name it.
    user: String,
    /// Only in this project. If absent, everywhere.
    #[schemars(with = "Option<Name>")]
    project: Option<ProjectId>,
}

/// What was done in a store.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ForgottenStore")]
pub(crate) struct ForgottenStoreView {
    /// The store, such as `traces`, or the name of another gateway.
    store: String,
    /// The number of records that were removed or changed.
    records: u64,
    /// Why something may be left. `null` if nothing is.
    failed: Option<String>,
}

/// What was done in all stores.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ForgetReport {
    stores: Vec<ForgottenStoreView>,
}

async fn act(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: ContentAct,
) -> Result<ContentReply, ApiProblem> {
    match app.run(who, AdminCommand::Contents { act }).await? {
        AdminReply::Contents(reply) => Ok(reply),
        other => Err(unexpected(other)),
    }
}

/// The error for a reply to another act.
fn other(reply: ContentReply) -> ApiProblem {
    unexpected(AdminReply::Contents(reply))
}

fn call_of(id: &str) -> Result<RequestId, ApiProblem> {
    id.parse().map_err(|_| ApiProblem::form(Some("id"), "scores are given by the id `req_…`"))
}

pub(crate) async fn scores(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
) -> Result<Json<CallScores>, ApiProblem> {
    let id = call_of(&check_call(&app, &who, call.id).await?)?;
    match act(&app, &who, ContentAct::Scores { id }).await? {
        ContentReply::Scores { scores } => {
            Ok(Json(CallScores { data: scores.into_iter().map(ScoreView::from).collect() }))
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn score(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(call): PathName<CallId>,
    JsonBody(NewScore { name, value, comment }): JsonBody<NewScore>,
) -> Result<CreatedBody<ScoreView>, ApiProblem> {
    let id = call_of(&check_call(&app, &who, call.id).await?)?;
    match act(&app, &who, ContentAct::Score { id, name, value, comment }).await? {
        ContentReply::Scored { score } => Ok(CreatedBody(score.into())),
        reply => Err(other(reply)),
    }
}

pub(crate) async fn datasets(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<DatasetView>>, ApiProblem> {
    match act(&app, &who, ContentAct::ListDatasets).await? {
        ContentReply::Datasets { datasets } => {
            let all = datasets.into_iter().map(DatasetView::from);
            Ok(Json(RowPage::by(all, query.limit, query.cursor.as_deref(), |dataset| dataset.name.clone())))
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn create_dataset(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(new): JsonBody<NewDataset>,
) -> Result<CreatedBody<DatasetView>, ApiProblem> {
    let filters = new.filters();
    let (name, limit) = (new.name, new.limit.unwrap_or(USUAL_ITEMS));
    let create = ContentAct::CreateDataset { name, filters, limit };
    match act(&app, &who, create).await? {
        ContentReply::DatasetCreated { dataset } => {
            app.changed(DATASETS);
            Ok(CreatedBody(dataset.into()))
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn dataset_items(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<RecordName>>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<Value>>, ApiProblem> {
    let after = query.cursor.as_deref().map_or(Ok(0), str::parse);
    let after = after.map_err(|_| ApiProblem::form(Some("cursor"), "this is no `next` of a page"))?;
    let show = ContentAct::ShowDataset { name: id, after, limit: rows(query.limit) };
    match act(&app, &who, show).await? {
        ContentReply::Page { contents, next } => Ok(Json(RowPage { data: contents, next })),
        reply => Err(other(reply)),
    }
}

pub(crate) async fn remove_dataset(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<RecordName>>,
) -> Result<NoContent, ApiProblem> {
    act(&app, &who, ContentAct::RemoveDataset { name: id }).await?;
    app.changed(DATASETS);
    Ok(NoContent)
}

pub(crate) async fn forget(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(ForgottenUser { user, project }): JsonBody<ForgottenUser>,
) -> Result<Json<ForgetReport>, ApiProblem> {
    if user.is_empty() {
        return Err(ApiProblem::form(Some("user"), "name the user"));
    }
    match act(&app, &who, ContentAct::Forget { user, project }).await? {
        ContentReply::Forgotten { stores } => {
            let view =
                |ForgottenStore { store, records, failed }| ForgottenStoreView { store, records, failed };
            Ok(Json(ForgetReport { stores: stores.into_iter().map(view).collect() }))
        }
        reply => Err(other(reply)),
    }
}
