//! Endpoints that receive events: their state, the newest deliveries, tests.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, DeliveryView, WebhookAct, WebhookReply, WebhookView};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::{AdminApp, unexpected};
use crate::input::PathName;
use crate::problem::ApiProblem;
use crate::routes::ById;
use crate::values::Time;
use crate::who::AuthenticatedOperator;

/// Maximum number of deliveries in an answer.
const MAX_DELIVERIES: u32 = 200;

/// An endpoint that receives events.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WebhookShown {
    name: String,
    /// Scheme, host and port of its URL.
    host: String,
    /// The kinds of events that it receives.
    events: Vec<String>,
    /// When it said with status 410 that it wants no more events. `null` if it receives them.
    gone: Option<Time>,
    /// Recent events that wait.
    pending: u64,
    /// Recent events that it has.
    delivered: u64,
    /// Recent events that were given up.
    failed: u64,
    last_at: Option<Time>,
    /// The result of the last try.
    last_result: Option<String>,
}

/// An event for an endpoint.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WebhookDelivery {
    /// The id of the event (`webhook-id`).
    event: String,
    kind: String,
    webhook: String,
    /// When the event happened.
    at: Time,
    /// `pending`, `delivered` or `failed`.
    state: String,
    tries: u32,
    last_at: Option<Time>,
    last_result: Option<String>,
    /// When the next try is due. `null` if no try follows.
    next: Option<Time>,
}

/// The result of a test.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WebhookTest {
    /// The id of the event that was sent.
    event: String,
    /// Whether the endpoint answered with a status of 200 to 299.
    accepted: bool,
    /// The status, or why there was none.
    result: String,
}

async fn run(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: WebhookAct,
) -> Result<WebhookReply, ApiProblem> {
    match app.run(who, AdminCommand::Webhooks { act }).await? {
        AdminReply::Webhooks(reply) => Ok(reply),
        other => Err(unexpected(other)),
    }
}

fn other(reply: WebhookReply) -> ApiProblem {
    unexpected(AdminReply::Webhooks(reply))
}

async fn endpoints(app: &AdminApp, who: &AuthenticatedOperator) -> Result<Vec<WebhookShown>, ApiProblem> {
    let view = |of: WebhookView| WebhookShown {
        name: of.name,
        host: of.host,
        events: of.events,
        gone: of.gone.map(Time),
        pending: of.pending,
        delivered: of.delivered,
        failed: of.failed,
        last_at: of.last_at.map(Time),
        last_result: of.last_result,
    };
    match run(app, who, WebhookAct::List).await? {
        WebhookReply::Endpoints(all) => Ok(all.into_iter().map(view).collect()),
        reply => Err(other(reply)),
    }
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Vec<WebhookShown>>, ApiProblem> {
    endpoints(&app, &who).await.map(Json)
}

pub(crate) async fn deliveries(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Vec<WebhookDelivery>>, ApiProblem> {
    let view = |of: DeliveryView| WebhookDelivery {
        event: of.event,
        kind: of.kind,
        webhook: of.endpoint,
        at: Time(of.at),
        state: of.state,
        tries: of.tries,
        last_at: of.last_at.map(Time),
        last_result: of.last_result,
        next: of.next.map(Time),
    };
    match run(&app, &who, WebhookAct::Deliveries { most: MAX_DELIVERIES }).await? {
        WebhookReply::Deliveries(all) => Ok(Json(all.into_iter().map(view).collect())),
        reply => Err(other(reply)),
    }
}

pub(crate) async fn test(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<String>>,
) -> Result<Json<WebhookTest>, ApiProblem> {
    match run(&app, &who, WebhookAct::Test { name: id }).await? {
        WebhookReply::Tested { event, is_accepted, result, .. } => {
            Ok(Json(WebhookTest { event, accepted: is_accepted, result }))
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn resume(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<String>>,
) -> Result<Json<Vec<WebhookShown>>, ApiProblem> {
    run(&app, &who, WebhookAct::Resume { name: id }).await?;
    endpoints(&app, &who).await.map(Json)
}
