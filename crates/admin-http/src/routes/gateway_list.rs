//! The list of gateways that share the ledger, with the load that each live one reports. Must not know how a gateway is
//! asked.

use axum::extract::State;
use axum::{Extension, Json};
use futures_util::future::join_all;
use headrace_admin::{AdminCommand, AdminReply, GatewayView};
use headrace_domain::{AdminCode, UnixNanos};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::{AdminApp, unexpected};
use crate::problem::ApiProblem;
use crate::routes::gateways::{LOAD, others, own_load, within_deadline};
use crate::values::Time;
use crate::who::AuthenticatedOperator;

/// The gateways that share the ledger.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GatewayList {
    /// By name. Empty if this server has the ledger for itself.
    data: Vec<GatewayShown>,
}

/// A gateway that shares the ledger.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Gateway")]
struct GatewayShown {
    /// The name that its operator gave it (`gateway.name`).
    name: String,
    /// Whether it is the gateway that answers.
    is_this: bool,
    /// `live`; `left` if it ended; `dead` if others ended it because it was silent too long.
    state: String,
    version: String,
    joined: Time,
    /// When it last showed that it lives.
    seen: Time,
    /// Calls in progress. `null` if it did not answer.
    in_flight: Option<u64>,
    /// Calls that ended within the last minute. `null` if it did not answer.
    calls_per_minute: Option<u64>,
    /// Its part of the calls of the last minute at all gateways that answered, from 0 to 1. `null` without calls.
    share: Option<f64>,
    /// Why a live gateway did not report its load. `null` if it did.
    silent: Option<String>,
}

/// What a gateway reported, or why it did not.
struct ReportedLoad {
    name: String,
    load: Result<Value, String>,
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<GatewayList>, ApiProblem> {
    let status = match app.run(&who, AdminCommand::Status).await? {
        AdminReply::Status(status) => status,
        other => return Err(unexpected(other)),
    };
    if let Some(why) = status.gateways_failing {
        let message = format!("the gateways cannot be read: {why}");
        return Err(ApiProblem::new(AdminCode::StoreFailed, message));
    }
    let mut loads = ask_others(&app).await;
    let now = app.now();
    let mut data: Vec<GatewayShown> = status
        .gateways
        .into_iter()
        .map(|gateway| {
            let load = match gateway.is_this {
                true => Some(Ok(own_load(&app))),
                // Two gateways may have the same name. Each takes one of their reports.
                false => {
                    let at = loads.iter().position(|load| load.name == gateway.name);
                    at.filter(|_| gateway.state == "live").map(|at| loads.swap_remove(at).load)
                }
            };
            shown(gateway, load, now)
        })
        .collect();
    let calls = |of: &GatewayShown| of.calls_per_minute.unwrap_or(0);
    let all: u64 = data.iter().map(calls).fold(0, u64::saturating_add);
    for gateway in &mut data {
        gateway.share = gateway.calls_per_minute.filter(|_| all > 0).map(|calls| calls as f64 / all as f64);
    }
    Ok(Json(GatewayList { data }))
}

fn shown(gateway: GatewayView, load: Option<Result<Value, String>>, now: UnixNanos) -> GatewayShown {
    let GatewayView { name, is_this, version, state, joined, unseen_ms } = gateway;
    let seen = UnixNanos::new(now.get().saturating_sub(unseen_ms.saturating_mul(1_000_000)));
    let silent = match &load {
        Some(Err(why)) => Some(why.clone()),
        None if state == "live" => Some("it does not report its load".to_owned()),
        _ => None,
    };
    let number = |field: &str| load.as_ref().and_then(|load| load.as_ref().ok()?.get(field)?.as_u64());
    GatewayShown {
        in_flight: number("in_flight"),
        calls_per_minute: number("calls_per_minute"),
        share: None,
        name,
        is_this,
        state,
        version,
        joined: Time(joined),
        seen: Time(seen),
        silent,
    }
}

/// Asks all other live gateways for their load, for two seconds at most each.
async fn ask_others(app: &AdminApp) -> Vec<ReportedLoad> {
    let Some(access) = app.peers() else { return Vec::new() };
    let asked = async {
        let (peers, missing) = others(app, access).await;
        let asked = peers.into_iter().map(|peer| async move {
            let load = access.ask(&peer, LOAD, &json!({})).await;
            ReportedLoad { name: peer.name, load }
        });
        let mut loads = join_all(asked).await;
        loads.extend(missing.into_iter().map(|of| ReportedLoad { name: of.gateway, load: Err(of.why) }));
        loads
    };
    within_deadline(asked).await.unwrap_or_default()
}
