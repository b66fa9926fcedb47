//! The operator of a request, the client's address, and whether another site's page made the browser send the request.
//! Must not know what the request does.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use headrace_domain::AdminCode;
use headrace_identity::{CredentialKind, OperatorRecord};
use headrace_jwt::ProviderUser;

use crate::listener::OnConnectionLine;
use crate::problem::ApiProblem;
use crate::sessions::CsrfToken;

/// Prefix of the session cookie's name. The port follows it: browsers share cookies between all ports of a host, so two
/// servers on one machine would sign each other's operators out.
const COOKIE: &str = "headrace_session_";
/// The cookie's name at the default port, for the OpenAPI document.
pub(crate) const USUAL_COOKIE: &str = "headrace_session_8081";
/// The header that carries the CSRF token.
pub(crate) const CSRF_HEADER: &str = "x-headrace-csrf";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The operator of a request.
#[derive(Debug, Clone)]
pub(crate) struct AuthenticatedOperator {
    pub(crate) operator: OperatorRecord,
    /// The session. `None` if the request came with a key.
    pub(crate) session: Option<ByCookie>,
    /// The user, if an identity provider signed the operator in.
    pub(crate) user: Option<Arc<ProviderUser>>,
}

/// A session that was found by a cookie.
#[derive(Debug, Clone)]
pub(crate) struct ByCookie {
    pub(crate) token: SessionToken,
    pub(crate) csrf: CsrfToken,
    pub(crate) expires: headrace_domain::UnixNanos,
}

/// A session's token. Never shown by `Debug`.
#[derive(Clone)]
pub(crate) struct SessionToken(pub(crate) String);

impl std::fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The name of the session cookie of a listener at `port`.
pub(crate) fn cookie_name(port: u16) -> String {
    format!("{COOKIE}{port}")
}

impl AuthenticatedOperator {
    /// The operator's name in the audit log.
    pub(crate) fn actor(&self) -> String {
        self.operator.actor()
    }
}

/// Checks that no other site's page made a browser send this request.
///
/// # Errors
/// [`AdminCode::Origin`] if the browser's headers name another site or origin.
pub(crate) fn from_here(request: &Request) -> Result<(), ApiProblem> {
    let headers = request.headers();
    let refused = |why: &str| Err(ApiProblem::new(AdminCode::Origin, why));
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

pub(crate) fn not_signed_in() -> ApiProblem {
    ApiProblem::new(AdminCode::NotSignedIn, "the request has no valid session or key").remedy(
        "POST /admin/v1/session with a key or a link (headrace operators link), or `Authorization: Bearer` with an operator's key",
    )
}

/// The error for a credential that is not valid where credentials of the kind `taken` are. If its form is that of another
/// kind, the error says so.
pub(crate) fn refused_credential(presented: &str, taken: CredentialKind) -> ApiProblem {
    let kind = CredentialKind::of(presented);
    let (place, remedy) = match taken {
        CredentialKind::ScimCredential => {
            ("`/scim/v2` takes", "headrace scim create ORG makes a SCIM credential")
        }
        _ => ("the admin API takes sessions, or", "headrace operators create makes an operator's key"),
    };
    if kind == taken {
        return bad_credential();
    }
    let message = format!("the credential is {kind}, and {place} {taken}");
    ApiProblem::new(AdminCode::BadCredential, message).remedy(remedy)
}

/// The error for a bad credential. It is the same for every reason.
pub(crate) fn bad_credential() -> ApiProblem {
    ApiProblem::new(
        AdminCode::BadCredential,
        "this key or link is not valid: it was never made, was used before, was revoked, or has expired",
    )
    .remedy("headrace operators link ID makes a new link")
}

pub(crate) fn peer(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<OnConnectionLine>().map(|OnConnectionLine(line)| line.peer);
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
