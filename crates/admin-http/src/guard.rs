//! Checks before every route: the host name, the operator, whether another site's page sent the request, and the role.
//! A route without an access rule is refused. Must not know what a route does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::RequestExt as _;
use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{AccessTable, ROOT, RouteRoles};
use crate::app::AdminApp;
use crate::listener::OnConnectionLine;
use crate::org_scope::{check_path, closed_reason, is_open};
use crate::places::NoPlace;
use crate::problem::ApiProblem;
use crate::who::{
    AuthenticatedOperator, ByCookie, CSRF_HEADER, SessionToken, from_here, not_signed_in, peer,
};
use bytes::Bytes;
use headrace_domain::AdminCode;
use headrace_identity::OperatorRecord;
use hyper::body::{Frame, SizeHint};

/// `Retry-After` for an operator with too many requests, in seconds.
const TRY_AGAIN_S: u64 = 1;

/// Middleware around every route and page. Checks the host name, and adds headers that restrict what a browser may do
/// with the response.
pub(crate) async fn outside(State(app): State<AdminApp>, request: Request, next: Next) -> Response {
    let mut response = match app.names().check(&request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let headers = response.headers_mut();
    let set = |headers: &mut HeaderMap, name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(headers, header::CACHE_CONTROL, "no-store");
    set(headers, header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(headers, header::X_FRAME_OPTIONS, "DENY");
    set(headers, header::REFERRER_POLICY, "no-referrer");
    set(headers, HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    set(headers, HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    response
}

/// Middleware around each route. Checks access, and holds the operator's request slot until the response ends.
pub(crate) async fn guard(
    State((app, table)): State<(AdminApp, Arc<AccessTable>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = path_id(&mut request).await;
    match admit(&app, &table, &request, id.as_deref()) {
        Ok(Some(who)) => {
            let place = match app.serving(&who) {
                Ok(place) => place,
                Err(none) => return too_many(none).into_response(),
            };
            // Held until the last byte of the response is sent.
            let serving =
                request.extensions().get::<OnConnectionLine>().map(|OnConnectionLine(line)| line.serve());
            request.extensions_mut().insert(who);
            let response = next.run(request).await;
            response.map(|body| Body::new(HeldBody { body, _held: (place, serving) }))
        }
        Ok(None) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// The parameter `id` of a request's path, decoded as handlers read it. `None` if the route has none, or it is not UTF-8.
async fn path_id(request: &mut Request) -> Option<String> {
    let parameters = request.extract_parts::<RawPathParams>().await.ok()?;
    parameters.iter().find(|(name, _)| *name == "id").map(|(_, id)| id.to_owned())
}

/// A response body, with a value that is held until the body is dropped.
struct HeldBody<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn too_many(none: NoPlace) -> ApiProblem {
    let message = match none {
        NoPlace::OfHolder(has) => {
            format!(
                "this operator has {has} requests under way, as many as one may have now: wait for some of them"
            )
        }
        NoPlace::All(most) => {
            format!("{most} requests of operators are under way, as many as may be at once")
        }
    };
    ApiProblem::new(AdminCode::TooManySubscribers, message).retry_after(TRY_AGAIN_S)
}

/// Checks access and returns the operator. `None` if the route is open to every client. `id` is the id in the path.
fn admit(
    app: &AdminApp,
    table: &AccessTable,
    request: &Request,
    id: Option<&str>,
) -> Result<Option<AuthenticatedOperator>, ApiProblem> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let access = path.and_then(|path| table.of(request.method(), path));
    let Some(access) = access else {
        return Err(ApiProblem::new(AdminCode::Role, "no role may call this route"));
    };
    if access == RouteRoles::Anyone {
        return Ok(None);
    }
    let who = identify(app, request)?;
    if !access.allows(who.operator.role) {
        let message =
            format!("the role {} may not call this route: {} may", who.operator.role, access.words());
        return Err(ApiProblem::new(AdminCode::Role, message));
    }
    if who.operator.org.is_some() {
        check_scope(app, &who.operator, access, request, id)?;
    }
    Ok(Some(who))
}

/// Checks that an operator of one organisation may call a route, and that the subject in the path belongs to it.
fn check_scope(
    app: &AdminApp,
    operator: &OperatorRecord,
    access: RouteRoles,
    request: &Request,
    id: Option<&str>,
) -> Result<(), ApiProblem> {
    let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let pattern = pattern.strip_prefix(ROOT).unwrap_or(pattern);
    let method = if *request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let route = format!("{method} {pattern}");
    if !is_open(&route) {
        return Err(ApiProblem::new(AdminCode::Role, closed_reason(&route, &access.words())));
    }
    check_path(app, operator, &route, id)
}

fn identify(app: &AdminApp, request: &Request) -> Result<AuthenticatedOperator, ApiProblem> {
    let (headers, now) = (request.headers(), app.now());
    if let Some(shown) = headers.get(header::AUTHORIZATION) {
        let operator = app.by_key(bearer(shown).unwrap_or_default(), peer(request))?;
        return Ok(AuthenticatedOperator { operator, session: None, user: None });
    }
    let token = cookie(headers, app.cookie()).ok_or_else(not_signed_in)?;
    let found = app.sessions().find(token, now).ok_or_else(not_signed_in)?;
    // `SameSite=Strict` keeps other sites from sending the cookie, in browsers that support it. The browser's headers
    // are checked too.
    from_here(request)?;
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let shown = headers.get(CSRF_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
    if !is_safe && !found.csrf.is(shown) {
        let message = format!(
            "a change by a session needs the header `{CSRF_HEADER}`, which GET /admin/v1/session returns"
        );
        return Err(ApiProblem::new(AdminCode::Csrf, message));
    }
    if app.sessions().is_store_behind(token) {
        let app = app.clone();
        // Stored in the background, so that no request waits.
        tokio::spawn(async move { app.store_sessions().await });
    }
    let session =
        ByCookie { token: SessionToken(token.to_owned()), csrf: found.csrf, expires: found.expires };
    Ok(AuthenticatedOperator { operator: found.operator, session: Some(session), user: found.user })
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// The value of the cookie named `wanted`.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, wanted: &str) -> Option<&'h str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, token)| token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_request::request;

    #[test]
    fn a_cookie_is_found_among_others() {
        for (value, found) in [
            ("headrace_session_8081=abc", Some("abc")),
            ("a=b; headrace_session_8082=other; headrace_session_8081=abc; c=d", Some("abc")),
            ("headrace_session_8082=abc", None),
            ("headrace_session=abc", None),
            ("xheadrace_session_8081=abc", None),
            ("", None),
        ] {
            assert_eq!(
                cookie(request(&[("cookie", value)]).headers(), "headrace_session_8081"),
                found,
                "{value}"
            );
        }
    }
}
