//! Sign in, show the signed-in operator, and sign out.

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::Extension;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, NoContent, Response};
use headrace_admin::AdminError;
use headrace_identity::OperatorRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::access::AccessTable;
use crate::app::AdminApp;
use crate::input::JsonBody;
use crate::problem::ApiProblem;
use crate::sessions::{FoundSession, SESSION_LIFETIME};
use crate::values::Time;
use crate::who::{AuthenticatedOperator, ByCookie, from_here, peer};

/// A way to sign in.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SignIn {
    /// The part after `#sign-in=` of a sign-in link. A link works once.
    Link(String),
    /// An operator's key.
    Key(String),
}

/// The signed-in operator.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Session {
    /// The operator's name.
    operator: String,
    /// The operator's id.
    id: String,
    /// What the operator may do: `owner`, `admin`, `billing`, `developer` or `viewer`.
    role: &'static str,
    /// The only organisation that the operator sees and changes. `null` for all of them.
    org: Option<String>,
    /// The CSRF token for the header `x-headrace-csrf` of acts. `null` if the request came with a key.
    csrf: Option<String>,
    /// When the session ends at the latest. `null` if the request came with a key.
    expires: Option<Time>,
    /// The routes that this role may call, such as `GET /status`.
    may: Vec<String>,
}

impl Session {
    fn of(operator: &OperatorRecord, table: &AccessTable) -> Self {
        let is_open = |route: &str| operator.org.is_none() || crate::org_scope::is_open(route);
        let may = table.routes().filter(|(route, access)| access.allows(operator.role) && is_open(route));
        let may = may.map(|(route, _)| route);
        Self {
            operator: operator.name.clone(),
            id: operator.id.to_string(),
            role: operator.role.name(),
            org: operator.org.as_ref().map(ToString::to_string),
            csrf: None,
            expires: None,
            may: may.collect(),
        }
    }
}

/// A response that sets or deletes a cookie.
pub(crate) struct CookieResponse<T> {
    body: T,
    cookie: HeaderValue,
}

impl<T: IntoResponse> IntoResponse for CookieResponse<T> {
    fn into_response(self) -> Response {
        ([(header::SET_COOKIE, self.cookie)], self.body).into_response()
    }
}

impl<T: OperationOutput> OperationOutput for CookieResponse<T> {
    type Inner = T::Inner;

    fn operation_response(ctx: &mut GenContext, operation: &mut Operation) -> Option<Described> {
        T::operation_response(ctx, operation)
    }

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        T::inferred_responses(ctx, operation)
    }
}

/// Extracts the client's address. Refuses requests that another site's page made the browser send.
pub(crate) struct SessionVisitor(std::net::IpAddr);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for SessionVisitor {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, _: &S) -> Result<Self, ApiProblem> {
        let mut head = Request::new(axum::body::Body::empty());
        *head.headers_mut() = parts.headers.clone();
        *head.extensions_mut() = parts.extensions.clone();
        from_here(&head)?;
        Ok(Self(peer(&head)))
    }
}

impl aide::operation::OperationInput for SessionVisitor {}

/// Signs in.
pub(crate) async fn begin(
    State(app): State<AdminApp>,
    Extension(table): Extension<Arc<AccessTable>>,
    SessionVisitor(peer): SessionVisitor,
    JsonBody(sign_in): JsonBody<SignIn>,
) -> Result<CookieResponse<Json<Session>>, ApiProblem> {
    let now = app.now();
    let (operator, how) = match &sign_in {
        SignIn::Link(link) => (app.by_link(link, peer)?, "by a link"),
        SignIn::Key(key) => (app.by_key(key, peer)?, "by the key"),
    };
    let who = AuthenticatedOperator { operator, session: None, user: None };
    let subject = who.operator.id.to_string();
    // Audited before the session exists, so that the audit log knows every session.
    app.note(&who, "operator.sign_in", subject, format!("{how}, from {peer}")).await?;
    let (token, found) =
        app.sessions().begin(&who.operator, now).map_err(|error: AdminError| ApiProblem::from(error))?;
    // A session that is not stored ends with the process.
    let _ = app.store_sessions().await;
    let FoundSession { operator, csrf, expires, .. } = found;
    let session = Session {
        csrf: Some(csrf.expose().to_owned()),
        expires: Some(Time(expires)),
        ..Session::of(&operator, &table)
    };
    let cookie = cookie(app.cookie(), token.expose(), SESSION_LIFETIME.as_secs(), app.url());
    Ok(CookieResponse { body: Json(session), cookie: cookie? })
}

/// Shows the signed-in operator.
pub(crate) async fn show(
    Extension(table): Extension<Arc<AccessTable>>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Json<Session> {
    let session = Session::of(&who.operator, &table);
    Json(match who.session {
        None => session,
        Some(ByCookie { csrf, expires, .. }) => {
            Session { csrf: Some(csrf.expose().to_owned()), expires: Some(Time(expires)), ..session }
        }
    })
}

/// Signs out.
pub(crate) async fn end(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<CookieResponse<NoContent>, ApiProblem> {
    let Some(session) = &who.session else {
        return Err(ApiProblem::form(None, "a key has no session: revoke its operator to end it"));
    };
    app.sessions().end(&session.token.0);
    let stored = app.store_sessions().await;
    let subject = who.operator.id.to_string();
    app.note(&who, "operator.sign_out", subject, String::new()).await?;
    stored?;
    Ok(CookieResponse { body: NoContent, cookie: cookie(app.cookie(), "", 0, app.url())? })
}

/// Makes a cookie that scripts cannot read and other sites' pages cannot send.
pub(crate) fn cookie(name: &str, token: &str, seconds: u64, url: &str) -> Result<HeaderValue, ApiProblem> {
    let secure = if url.starts_with("https://") { "; Secure" } else { "" };
    let text = format!("{name}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).map_err(|_| ApiProblem::internal("a token that is no header"))
}
