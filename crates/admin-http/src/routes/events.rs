//! The event stream: the server's state each second, calls as they end, and changes by operators.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use headrace_domain::AdminCode;
use headrace_identity::OperatorId;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Interval, MissedTickBehavior};

use crate::app::AdminApp;
use crate::places::{HolderSlot, NoPlace};
use crate::problem::ApiProblem;
use crate::seams::Ended;
use crate::who::AuthenticatedOperator;

/// Interval between `now` events.
const EVERY: Duration = Duration::from_secs(1);
/// `Retry-After` for a refused subscriber, in seconds.
const TRY_AGAIN_S: u64 = 10;

/// One open event stream.
struct EventWatcher {
    app: AdminApp,
    who: AuthenticatedOperator,
    ticks: Interval,
    ended: Ended,
    changes: broadcast::Receiver<&'static str>,
    _place: HolderSlot<OperatorId>,
}

pub(crate) async fn watch(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Response, ApiProblem> {
    let place = app.subscriber(&who).map_err(|none| {
        let message = match none {
            NoPlace::OfHolder(has) => {
                format!(
                    "this operator has {has} streams of events, as many as one may have now: close a page"
                )
            }
            NoPlace::All(most) => {
                format!("there are {most} streams of events, as many as may be at once: close a page")
            }
        };
        ApiProblem::new(AdminCode::TooManySubscribers, message).retry_after(TRY_AGAIN_S)
    })?;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watching =
        EventWatcher { ended: app.calls().ended(), changes: app.changes(), app, who, ticks, _place: place };
    let events = futures_util::stream::unfold(watching, |mut watching| async move {
        Some((Ok::<_, Infallible>(watching.next().await?), watching))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(events)).into_response())
}

impl EventWatcher {
    /// The next event. `None` ends the stream: the operator's access has ended, or the server is stopping.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            _ = self.ticks.tick() => {
                self.app.may_go_on(&self.who).then(|| event("now", &self.app.calls().now()))
            }
            Some(row) = self.ended.next() => Some(event("call", &row)),
            changed = self.changes.recv() => match changed {
                Ok(what) => Some(event("changed", &json!({ "what": what }))),
                // A client that was too slow reads everything again.
                Err(RecvError::Lagged(_)) => Some(event("changed", &json!({ "what": "all" }))),
                Err(RecvError::Closed) => None,
            },
        }
    }
}

/// Formats one event. Serialized JSON contains no line breaks.
fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}
