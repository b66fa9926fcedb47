//! Cross-origin requests: which web pages a browser may let call this API and read its answers (Fetch standard, "CORS
//! protocol"). Origins match exactly. No answer ever allows the browser's own credentials: a page sends its key in a
//! header that it sets itself. Must not know the meaning of a route.

use std::fmt;

use headrace_call_api::CallAnswer;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Uri};

/// How long a browser may cache a preflight answer, in seconds. Browsers limit it to 7200.
const MAX_AGE_SECONDS: &str = "600";
/// Maximum number of allowed origins.
const MAX_ORIGINS: usize = 100;
/// Maximum bytes of the header names in a preflight request that are repeated in its answer.
const MAX_NAMES_BYTES: usize = 4096;
/// Answer headers that a page may read, in addition to those that it always may.
static EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, request-id, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, \
     x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, \
     x-headrace-model, x-headrace-upstream, idempotent-replayed, x-headrace-original-request, deprecation, sunset, link",
);
/// The request headers that an answer depends on.
static VARY: HeaderValue =
    HeaderValue::from_static("origin, access-control-request-method, access-control-request-headers");

/// The origins whose pages may call the API. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedOrigins(Vec<HeaderValue>);

/// Why a text is not a list of origins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadOrigin {
    /// The entry at fault.
    pub given: String,
    /// What is wrong with the entry.
    pub why: &'static str,
}

impl fmt::Display for BadOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.given, self.why)
    }
}

impl std::error::Error for BadOrigin {}

impl AllowedOrigins {
    /// Parses a comma-separated list, such as `https://app.example.com, http://localhost:5173`.
    ///
    /// # Errors
    /// The first entry that is not an origin as browsers write it.
    pub fn parse(list: &str) -> Result<Self, BadOrigin> {
        let mut origins = Vec::new();
        for given in list.split(',').map(str::trim).filter(|given| !given.is_empty()) {
            let bad = |why| BadOrigin { given: given.to_owned(), why };
            check(given).map_err(bad)?;
            let origin = HeaderValue::from_str(given).map_err(|_| bad("is no header"))?;
            if origins.len() == MAX_ORIGINS {
                return Err(bad("is one too many: at most 100 origins are allowed"));
            }
            origins.push(origin);
        }
        Ok(Self(origins))
    }

    /// Returns whether any origin is allowed.
    pub(crate) fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the origin of a request, if it is allowed.
    fn of(&self, headers: &HeaderMap) -> Option<&HeaderValue> {
        let mut given = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (given.next(), given.next()) else { return None };
        self.0.iter().find(|allowed| *allowed == origin)
    }

    /// Returns the answer to a preflight request. `methods` are those of the path's route. Returns `None` if the
    /// request is not a preflight, or its origin is not allowed.
    pub(crate) fn preflight<S>(&self, head: &Parts, methods: &str) -> Option<CallAnswer<S>> {
        if !self.are_any() || head.method != Method::OPTIONS {
            return None;
        }
        head.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        self.of(&head.headers)?;
        let answer = CallAnswer::json(StatusCode::NO_CONTENT.as_u16(), bytes::Bytes::new())
            .with_header("access-control-allow-methods", methods)
            .with_header("access-control-max-age", MAX_AGE_SECONDS);
        // The page may send calls, so it may also send any headers. The answer repeats only their names.
        Some(match names(&head.headers) {
            Some(names) => answer.with_header("access-control-allow-headers", names),
            None => answer,
        })
    }

    /// Adds the CORS headers to an answer.
    pub(crate) fn mark(&self, asked: &HeaderMap, answered: &mut HeaderMap) {
        if !self.are_any() {
            return;
        }
        // Caches must not give one origin's answer to another.
        answered.append(header::VARY, VARY.clone());
        if let Some(origin) = self.of(asked) {
            answered.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            answered.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED.clone());
        }
    }
}

/// Returns the header names in a preflight request, if they are valid.
fn names(headers: &HeaderMap) -> Option<String> {
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)?.to_str().ok()?;
    let names = asked.split(',').map(str::trim).filter(|name| !name.is_empty());
    let all_are = asked.len() <= MAX_NAMES_BYTES
        && names.clone().all(|name| HeaderName::from_bytes(name.as_bytes()).is_ok());
    all_are.then(|| names.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
}

/// Checks that a text is an origin exactly as a browser writes it.
fn check(given: &str) -> Result<(), &'static str> {
    if given == "*" || given == "null" {
        return Err("is everybody: name each origin, such as `https://app.example.com`");
    }
    let parts: Uri = given.parse().map_err(|_| "is no origin such as `https://app.example.com`")?;
    let (Some(scheme), Some(authority)) = (parts.scheme_str(), parts.authority()) else {
        return Err("is no origin: it begins with `https://` or `http://`");
    };
    if given.contains('*') {
        return Err("has a `*`: name each origin as it is");
    }
    let usual_port = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return Err("is no origin of a web page: it begins with `https://` or `http://`"),
    };
    if authority.as_str().contains('@') || given != format!("{scheme}://{authority}") {
        return Err("has more than scheme, host and port: an origin ends there, without a slash");
    }
    if given != given.to_ascii_lowercase() {
        return Err("has capitals, and browsers write origins without");
    }
    if authority.port_u16() == Some(usual_port) {
        return Err("names the usual port, and browsers leave that out");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_that_browsers_write_and_nothing_wider() {
        for (list, good) in [
            ("", true),
            ("https://app.example.com", true),
            ("https://app.example.com, http://localhost:5173", true),
            ("http://127.0.0.1:3000", true),
            ("http://[::1]:3000", true),
            ("*", false),
            ("null", false),
            ("https://*.example.com", false),
            ("https://app.example.com/", false),
            ("https://app.example.com/x", false),
            ("https://App.example.com", false),
            ("https://app.example.com:443", false),
            ("http://app.example.com:80", false),
            ("https://user@app.example.com", false),
            ("ftp://app.example.com", false),
            ("app.example.com", false),
            ("https://a.example, *", false),
        ] {
            assert_eq!(
                AllowedOrigins::parse(list).is_ok(),
                good,
                "{list}: {:?}",
                AllowedOrigins::parse(list)
            );
        }
        let many: Vec<_> = (0..=MAX_ORIGINS).map(|n| format!("https://a{n}.example")).collect();
        assert!(AllowedOrigins::parse(&many.join(",")).is_err());
    }
}
