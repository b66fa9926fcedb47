//! Questions about calls that go to all live gateways, and the answers that this gateway gives to others. Who may ask is
//! decided before: an operator's role at the route, another gateway by its credential.

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Uri};
use axum::routing::post;
use futures_util::future::join_all;
use headrace_domain::{AdminCode, ProjectId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::bad_cursor;
use crate::app::AdminApp;
use crate::input::MAX_BODY_BYTES;
use crate::peers::credential::HEADER;
use crate::peers::find::{CALL, PeerAnswers};
use crate::peers::forget::FORGET;
use crate::peers::merge::{FleetCursor, GatewayPage, MissingGateway, merge};
use crate::peers::search_all::SEARCH;
use crate::peers::usage::{PeerUsage, USAGE, add_missing};
use crate::peers::{DEADLINE, GatewayPeer, PeerAccess, no_answer};
use crate::problem::ApiProblem;
use crate::routes::search::{Search, SearchAsk, UsageQuery};
use crate::seams::{CallView, FoundCall};

/// The path of a question for the load.
pub(super) const LOAD: &str = "/gateway/v1/load";

/// All paths that other gateways call.
#[cfg(test)]
pub(crate) const PATHS: [&str; 5] = [SEARCH, CALL, LOAD, FORGET, USAGE];

/// A question of another gateway for one call.
#[derive(Debug, Deserialize)]
struct CallAsk {
    id: String,
    view: String,
}

/// A request of another gateway to remove a user.
#[derive(Debug, Deserialize)]
struct ForgetAsk {
    user: String,
    project: Option<ProjectId>,
}

/// Builds the routes that other gateways call.
pub(crate) fn router(app: AdminApp) -> Router {
    Router::new()
        .route(SEARCH, post(search_here))
        .route(CALL, post(call_here))
        .route(LOAD, post(load_here))
        .route(FORGET, post(forget_here))
        .route(USAGE, post(usage_here))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(app)
}

/// Checks the credential of another gateway, and parses what it asks.
fn asked<T: for<'de> Deserialize<'de>>(
    app: &AdminApp,
    (headers, uri, body): (&HeaderMap, &Uri, &Bytes),
) -> Result<T, ApiProblem> {
    let header = headers.get(HEADER).and_then(|header| header.to_str().ok());
    if !app.peers().is_some_and(|peers| peers.is_peer(header, uri.path(), body)) {
        let message = "only a gateway with the same secrets may ask this";
        return Err(ApiProblem::new(AdminCode::BadCredential, message));
    }
    serde_json::from_slice(body).map_err(|error| ApiProblem::form(None, format!("the body: {error}")))
}

async fn search_here(
    State(app): State<AdminApp>,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Value>, ApiProblem> {
    let search: Search = asked(&app, (&headers, &uri, &body))?;
    own_search(&app, search.ask()?).await.map(Json)
}

async fn call_here(
    State(app): State<AdminApp>,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Value>, ApiProblem> {
    let CallAsk { id, view } = asked(&app, (&headers, &uri, &body))?;
    let view = CallView::ALL.into_iter().find(|known| known.name() == view);
    let view = view.ok_or_else(|| ApiProblem::form(Some("view"), "this gateway does not know this view"))?;
    let found = app.ask_calls(move |calls| calls.call(&id, view)).await??;
    Ok(Json(json!({ "found": found })))
}

async fn forget_here(
    State(app): State<AdminApp>,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Value>, ApiProblem> {
    let ForgetAsk { user, project } = asked(&app, (&headers, &uri, &body))?;
    let stores = app.ask_calls(move |calls| calls.forget(&user, project.as_ref())).await?;
    Ok(Json(json!({ "stores": stores })))
}

async fn usage_here(
    State(app): State<AdminApp>,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Value>, ApiProblem> {
    let query: UsageQuery = asked(&app, (&headers, &uri, &body))?;
    let named = query.named();
    let own = app.ask_calls(move |calls| calls.usage(&named, &[])).await??;
    Ok(Json(own.usage))
}

async fn load_here(
    State(app): State<AdminApp>,
    headers: HeaderMap,
    uri: Uri,
    body: Bytes,
) -> Result<Json<Value>, ApiProblem> {
    let _: Value = asked(&app, (&headers, &uri, &body))?;
    Ok(Json(own_load(&app)))
}

/// The load of this gateway: `in_flight` calls, and `calls_per_minute` that ended.
pub(super) fn own_load(app: &AdminApp) -> Value {
    let now = app.calls().now();
    json!({ "in_flight": now["in_flight"]["total"], "calls_per_minute": now["per_minute"]["calls"] })
}

async fn own_search(app: &AdminApp, ask: SearchAsk) -> Result<Value, ApiProblem> {
    let SearchAsk { named, cursor, limit } = ask;
    Ok(app.ask_calls(move |calls| calls.search(&named, cursor.as_deref(), limit)).await??)
}

/// Searches the calls of all live gateways, or of this one if it has its stores for itself. The gateways that did not
/// answer are in `missing_gateways`.
pub(crate) async fn search(app: &AdminApp, ask: SearchAsk) -> Result<Value, ApiProblem> {
    let Some(access) = app.peers() else { return own_search(app, ask).await };
    let position = match ask.cursor.as_deref() {
        Some(text) => FleetCursor::parse(text).ok_or_else(bad_cursor)?,
        None => FleetCursor::default(),
    };
    let others = others(app, access);
    let own = access.peers().own();
    let address = |peer: &GatewayPeer| peer.address.clone().unwrap_or_default();
    let own_after = position.of(&address(&own));
    let here = async {
        let Some(after) = &own_after else { return Ok(None) };
        let ask = SearchAsk { named: ask.named.clone(), cursor: after.clone(), limit: ask.limit };
        own_search(app, ask).await.map(Some)
    };
    let there = async {
        let (peers, missing) = others.await;
        let asked = peers.into_iter().filter_map(|peer| Some((position.of(&address(&peer))?, peer)));
        let answers = asked.map(|(after, peer)| {
            let body = ask.body(after.as_deref());
            async move { (access.ask(&peer, SEARCH, &body).await, after, peer) }
        });
        (join_all(answers).await, missing)
    };
    let (here, there) = tokio::join!(here, within_deadline(there));
    let (answers, mut missing) = there.unwrap_or_else(|why| (Vec::new(), vec![why]));
    let mut pages = Vec::new();
    if let (Some(page), Some(after)) = (here?, own_after) {
        pages.push(GatewayPage { address: address(&own), name: own.name, after, page });
    }
    for (answer, after, peer) in answers {
        match answer {
            Ok(page) => pages.push(GatewayPage { address: address(&peer), name: peer.name, after, page }),
            Err(why) => missing.push(MissingGateway { gateway: peer.name, why }),
        }
    }
    Ok(merge(&position, pages, missing, ask.limit))
}

/// Usage over all live gateways, or of this one if it has its stores for itself. The gateways whose usage is not in it are in
/// `missing_gateways`: their calls have no key, user, tag and upstream, and the sums have their charges.
pub(crate) async fn usage(app: &AdminApp, named: Vec<(&'static str, String)>) -> Result<Value, ApiProblem> {
    let Some(access) = app.peers() else {
        return Ok(app.ask_calls(move |calls| calls.usage(&named, &[])).await??.usage);
    };
    let there = async {
        let (peers, missing) = others(app, access).await;
        (access.usage_of(peers, &named).await, missing)
    };
    let (PeerUsage { answers, missing: silent }, mut missing) =
        within_deadline(there).await.unwrap_or_else(|why| (PeerUsage::default(), vec![why]));
    // This gateway reads the ledger last, so that it has every charge that the others have.
    let own = app.ask_calls(move |calls| calls.usage(&named, &answers)).await??;
    let silent = silent.into_iter().chain(own.unread);
    missing.extend(silent.map(|(gateway, why)| MissingGateway { gateway, why }));
    let mut usage = own.usage;
    add_missing(&mut usage, missing);
    Ok(usage)
}

/// A view of a call, and the gateway that answered the call.
#[derive(Debug)]
pub(crate) struct LocatedCall {
    pub(crate) call: FoundCall,
    /// `None` if there can be no other gateway.
    pub(crate) gateway: Option<String>,
}

impl LocatedCall {
    /// The view with the name of the gateway.
    pub(crate) fn into_view(self) -> Value {
        let Self { call, gateway } = self;
        let mut view = call.view;
        if let (Value::Object(fields), Some(gateway)) = (&mut view, gateway) {
            fields.insert("gateway".to_owned(), gateway.into());
        }
        view
    }
}

/// Finds a view of a call at all live gateways: at this one, or at the other one that answered the call. `None` if no gateway
/// knows the call. The caller checks whose call was found, because a name may fit several.
///
/// # Errors
/// If traces cannot be read, or no gateway that answered knows the call and others did not answer.
pub(crate) async fn find(
    app: &AdminApp,
    id: String,
    view: CallView,
) -> Result<Option<LocatedCall>, ApiProblem> {
    let here = id.clone();
    let found = app.ask_calls(move |calls| calls.call(&here, view)).await??;
    let Some(access) = app.peers() else {
        return Ok(found.map(|call| LocatedCall { call, gateway: None }));
    };
    if let Some(call) = found {
        return Ok(Some(LocatedCall { call, gateway: Some(access.peers().own().name) }));
    }
    let there = async {
        let (peers, missing) = others(app, access).await;
        let mut answers = access.find(peers, &id, view).await;
        answers.missing.extend(missing);
        answers
    };
    let answers = within_deadline(there)
        .await
        .unwrap_or_else(|why| PeerAnswers { missing: vec![why], ..PeerAnswers::default() });
    let silent = answers.silent();
    match (answers.found, silent) {
        (Some((call, gateway)), _) => Ok(Some(LocatedCall { call, gateway: Some(gateway) })),
        (None, None) => Ok(None),
        (None, Some(silent)) => {
            let message = format!(
                "the gateways that answered do not know this call, and others did not answer ({silent})"
            );
            Err(ApiProblem::not_found(message))
        }
    }
}

/// Reads the other live gateways.
pub(super) async fn others(app: &AdminApp, access: &PeerAccess) -> (Vec<GatewayPeer>, Vec<MissingGateway>) {
    let peers = access.peers();
    let read = app.blocking(move || peers.others()).await;
    let why = match read {
        Ok(Ok(others)) => return (others, Vec::new()),
        Ok(Err(why)) => why,
        Err(_) => "this gateway is stopping".to_owned(),
    };
    (Vec::new(), vec![all_others(why)])
}

fn all_others(why: String) -> MissingGateway {
    MissingGateway { gateway: "all others".to_owned(), why }
}

/// Waits for other gateways until the deadline.
pub(super) async fn within_deadline<T>(there: impl Future<Output = T>) -> Result<T, MissingGateway> {
    tokio::time::timeout(DEADLINE.saturating_mul(2), there).await.map_err(|_| all_others(no_answer()))
}
