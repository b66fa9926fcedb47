//! Who asks, from where, and whether another page made the browser ask. Must not know what is asked.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use headrace_domain::AdminCode;
use headrace_identity::{AuthRefusal, OperatorRecord};

use crate::listener::On;
use crate::problem::Problem;
use crate::sessions::Csrf;

/// How cookies of sessions begin. The port stands behind it: browsers keep one cookie of a name for all ports of a host, and
/// two servers of one machine would sign each other's operators out.
const COOKIE: &str = "headrace_session_";
/// The cookie of a listener at the usual port, for the document.
pub(crate) const USUAL_COOKIE: &str = "headrace_session_8081";
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

/// The cookie of sessions at a listener.
pub(crate) fn cookie_name(port: u16) -> String {
    format!("{COOKIE}{port}")
}

impl Who {
    /// As the audit log names who did it.
    pub(crate) fn actor(&self) -> String {
        self.operator.actor()
    }
}

/// That no page of somebody else made a browser send this.
///
/// # Errors
/// Where the browser says that one did.
pub(crate) fn from_here(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let refused = |why: &str| Err(Problem::new(AdminCode::Origin, why));
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
    Problem::new(AdminCode::NotSignedIn, "nobody is signed in").remedy(
        "POST /admin/v1/session with a key or a link (headrace operators link), or `Authorization: Bearer` with an operator's key",
    )
}

/// The same for every key that is not good.
pub(crate) fn bad_credential(_: AuthRefusal) -> Problem {
    Problem::new(
        AdminCode::BadCredential,
        "this key or link is not good: it was never made, used before, revoked, or is over",
    )
    .remedy("headrace operators link ID makes a new link")
}

pub(crate) fn peer(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<On>().map(|On(line)| line.peer);
    peer.unwrap_or(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_request::request;

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
}
