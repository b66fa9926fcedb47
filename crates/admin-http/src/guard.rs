//! Before every route: whose name this listener is asked by, who asks, whether another page made the browser ask, and whether the
//! role may. What has no entry is refused. Must not know what a route does.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use headrace_identity::{AuthRefusal, OperatorRecord};

use crate::access::Access;
use crate::app::App;
use crate::listener::Peer;
use crate::problem::Problem;
use crate::router::AccessTable;
use crate::sessions::Csrf;

/// The cookie of a session.
pub(crate) const COOKIE: &str = "headrace_session";
/// The header with which a page shows that an act is its own.
pub(crate) const CSRF_HEADER: &str = "x-headrace-csrf";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) operator: OperatorRecord,
    /// By what session, where it is not by a key.
    pub(crate) session: Option<ByCookie>,
}

/// A session that a browser showed.
#[derive(Debug, Clone)]
pub(crate) struct ByCookie {
    pub(crate) token: Token,
    pub(crate) csrf: Csrf,
    pub(crate) expires: headrace_domain::UnixNanos,
}

/// A session's token. Never shown by `Debug`.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Who {
    /// As the audit log names who did it.
    pub(crate) fn actor(&self) -> String {
        self.operator.actor()
    }
}

/// Around everything, pages too: the name that was asked, and headers that bind what a browser may do with an answer.
pub(crate) async fn outside(State(app): State<App>, request: Request, next: Next) -> Response {
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

/// Around each route.
pub(crate) async fn guard(
    State((app, table)): State<(App, Arc<AccessTable>)>,
    mut request: Request,
    next: Next,
) -> Response {
    match admit(&app, &table, &request) {
        Ok(Some(who)) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Ok(None) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// Who it is, where the route asks for that.
fn admit(app: &App, table: &AccessTable, request: &Request) -> Result<Option<Who>, Problem> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let access = path.and_then(|path| table.of(request.method(), path));
    let Some(access) = access else {
        return Err(Problem::new(StatusCode::FORBIDDEN, "role", "nobody may call this route"));
    };
    if access == Access::Anyone {
        return Ok(None);
    }
    let who = identify(app, request)?;
    if !access.allows(who.operator.role) {
        let message =
            format!("the role {} may not call this route: {} may", who.operator.role, access.words());
        return Err(Problem::new(StatusCode::FORBIDDEN, "role", message));
    }
    Ok(Some(who))
}

fn identify(app: &App, request: &Request) -> Result<Who, Problem> {
    let (headers, now) = (request.headers(), app.now());
    if let Some(shown) = headers.get(header::AUTHORIZATION) {
        let operator = app.by_key(bearer(shown).unwrap_or_default(), peer(request))?;
        return Ok(Who { operator, session: None });
    }
    let token = cookie(headers).ok_or_else(not_signed_in)?;
    let found = app.sessions().find(token, now).ok_or_else(not_signed_in)?;
    // SameSite=Strict keeps the cookie at home in browsers that know it; what else they say is held to it, too.
    from_here(request)?;
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let shown = headers.get(CSRF_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
    if !is_safe && !found.csrf.is(shown) {
        let message = format!(
            "an act by a session needs the header `{CSRF_HEADER}`, as GET /admin/v1/session tells it"
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, "csrf", message));
    }
    let session = ByCookie { token: Token(token.to_owned()), csrf: found.csrf, expires: found.expires };
    Ok(Who { operator: found.operator, session: Some(session) })
}

/// That no page of somebody else made a browser send this.
///
/// # Errors
/// Where the browser says that one did.
pub(crate) fn from_here(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let refused = |why: &str| Err(Problem::new(StatusCode::FORBIDDEN, "origin", why));
    let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return refused("a page of another site asked for this");
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match (of, host) {
        (Some(of), Some(host)) if of.eq_ignore_ascii_case(host) => Ok(()),
        _ => refused("a page of another origin asked for this"),
    }
}

pub(crate) fn not_signed_in() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "not_signed_in", "nobody is signed in").remedy(
        "POST /admin/v1/session with a key or a link (headrace operators link), or `Authorization: Bearer` with an operator's key",
    )
}

/// The same for every key that is not good.
pub(crate) fn bad_credential(_: AuthRefusal) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "bad_credential",
        "this key or link is not good: it was never made, used before, revoked, or is over",
    )
    .remedy("headrace operators link ID makes a new link")
}

pub(crate) fn peer(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<Peer>().map(|Peer(address)| *address);
    peer.unwrap_or(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED))
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// The session's token, if there is one cookie of that name.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, token)| token)
}

/// The names by which a listener may be asked: addresses, `localhost`, and the one that its operator gave it. Any other name may be
/// somebody else's that leads here (DNS rebinding).
#[derive(Debug, Clone)]
pub(crate) struct Names {
    given: Option<String>,
}

impl Names {
    /// With the host of an outside address such as `https://console.example.com`.
    pub(crate) fn new(url: Option<&str>) -> Self {
        let host = url.and_then(|url| url.split_once("://")).map(|(_, rest)| rest.trim_end_matches('/'));
        let host = host.and_then(|host| host.parse::<Authority>().ok());
        Self { given: host.map(|host| host.host().to_ascii_lowercase()) }
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
            _ => None,
        };
        let known = host.as_ref().is_some_and(|host| self.is_ours(host.host()));
        // A form such as `GET http://host/` names the host twice.
        let same = request.uri().authority().is_none_or(|asked| Some(asked) == host.as_ref());
        if known && same {
            return Ok(());
        }
        Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "host",
            "this listener is not known by that name: ask by its address or as localhost, or set `admin.url`",
        ))
    }

    fn is_ours(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.given.as_deref().is_some_and(|given| host.eq_ignore_ascii_case(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri("/admin/v1/status");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn only_names_that_nobody_else_can_take_are_ours() {
        let names = Names::new(Some("https://Console.example.com:8443/"));
        for (hosts, good) in [
            (&["127.0.0.1:8081"][..], true),
            (&["localhost"], true),
            (&["LOCALHOST:9"], true),
            (&["[::1]:8081"], true),
            (&["192.0.2.7"], true),
            (&["console.example.com"], true),
            (&["evil.example"], false),
            (&["localhost.evil.example"], false),
            (&["127.0.0.1.evil.example:8081"], false),
            (&["127.0.0.1", "127.0.0.1"], false),
            (&[""], false),
            (&[], false),
        ] {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(names.check(&request(&headers)).is_ok(), good, "{hosts:?}");
        }
    }

    #[test]
    fn what_another_page_made_a_browser_send_is_refused() {
        for (headers, good) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("origin", "http://127.0.0.1:8081")], true),
            (&[("origin", "https://127.0.0.1:8081")], true),
            (&[("origin", "http://127.0.0.1:3000")], false),
            (&[("origin", "http://evil.example")], false),
            (&[("origin", "null")], false),
        ] {
            let with_host: Vec<_> = [("host", "127.0.0.1:8081")].iter().chain(headers).copied().collect();
            assert_eq!(from_here(&request(&with_host)).is_ok(), good, "{headers:?}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        for (value, found) in [
            ("headrace_session=abc", Some("abc")),
            ("a=b; headrace_session=abc; c=d", Some("abc")),
            ("xheadrace_session=abc", None),
            ("", None),
        ] {
            assert_eq!(cookie(request(&[("cookie", value)]).headers()), found, "{value}");
        }
    }
}
