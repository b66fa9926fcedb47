//! Pages of other origins: whose pages a browser may let call this API and read its answers (Fetch standard, "CORS protocol"). Origins are
//! exact, and no answer ever allows credentials of the browser's own: a key travels in a header that the page sets itself. Knows no route's
//! meaning.

use std::fmt;

use headrace_call_api::Answer;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Uri};

/// How long a browser may go by what a preflight was told, in seconds: browsers keep it no longer than 7200.
const MAX_AGE_SECONDS: &str = "600";
/// Most origins that are allowed.
const MAX_ORIGINS: usize = 100;
/// Most bytes of the names of headers that a preflight is told back.
const MAX_NAMES_BYTES: usize = 4096;
/// Headers of answers that a page may read, beside those that it always may.
static EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, request-id, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, \
     x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, \
     x-headrace-model, x-headrace-upstream, idempotent-replayed, deprecation, sunset, link",
);
/// What an answer depends on.
static VARY: HeaderValue =
    HeaderValue::from_static("origin, access-control-request-method, access-control-request-headers");

/// The origins whose pages may call. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origins(Vec<HeaderValue>);

/// Why a text is no list of origins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadOrigin {
    /// What was given.
    pub given: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for BadOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.given, self.why)
    }
}

impl std::error::Error for BadOrigin {}

impl Origins {
    /// Of a list with commas between, such as `https://app.example.com, http://localhost:5173`.
    ///
    /// # Errors
    /// The first that is no origin as browsers write it.
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

    /// Whether pages of other origins are let in at all.
    pub(crate) fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The origin of a request, if its pages may call.
    fn of(&self, headers: &HeaderMap) -> Option<&HeaderValue> {
        let mut given = headers.get_all(header::ORIGIN).iter();
        let (Some(origin), None) = (given.next(), given.next()) else { return None };
        self.0.iter().find(|allowed| *allowed == origin)
    }

    /// The answer to a browser that asks, before a call, whether it may send one; `methods` are those of the path's route. `None`: this is no such question, or
    /// of an origin that may not.
    pub(crate) fn preflight<S>(&self, head: &Parts, methods: &str) -> Option<Answer<S>> {
        if !self.are_any() || head.method != Method::OPTIONS {
            return None;
        }
        head.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        self.of(&head.headers)?;
        let answer = Answer::json(StatusCode::NO_CONTENT.as_u16(), bytes::Bytes::new())
            .with_header("access-control-allow-methods", methods)
            .with_header("access-control-max-age", MAX_AGE_SECONDS);
        // The page is trusted with calls, so that it is with their headers; what is told back are names and nothing else.
        Some(match names(&head.headers) {
            Some(names) => answer.with_header("access-control-allow-headers", names),
            None => answer,
        })
    }

    /// Says in an answer whose pages may read it.
    pub(crate) fn mark(&self, asked: &HeaderMap, answered: &mut HeaderMap) {
        if !self.are_any() {
            return;
        }
        // Caches on the way must not hand what one origin was told to another.
        answered.append(header::VARY, VARY.clone());
        if let Some(origin) = self.of(asked) {
            answered.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            answered.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED.clone());
        }
    }
}

/// The names of headers that a preflight asks for, if they are names.
fn names(headers: &HeaderMap) -> Option<String> {
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)?.to_str().ok()?;
    let names = asked.split(',').map(str::trim).filter(|name| !name.is_empty());
    let all_are = asked.len() <= MAX_NAMES_BYTES
        && names.clone().all(|name| HeaderName::from_bytes(name.as_bytes()).is_ok());
    all_are.then(|| names.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
}

/// Whether a text is an origin exactly as a browser writes it.
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
            assert_eq!(Origins::parse(list).is_ok(), good, "{list}: {:?}", Origins::parse(list));
        }
        let many: Vec<_> = (0..=MAX_ORIGINS).map(|n| format!("https://a{n}.example")).collect();
        assert!(Origins::parse(&many.join(",")).is_err());
    }
}
