//! Serves the console's files. Must not know their contents.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use crate::problem::ApiProblem;
use headrace_domain::AdminCode;

/// A file of the console.
#[derive(Debug, Clone, Copy)]
pub struct ConsoleAsset {
    /// The contents.
    pub bytes: &'static [u8],
    /// The media type.
    pub mime: &'static str,
    /// The entity tag of this version, in quotes.
    pub etag: &'static str,
}

/// The source of the console's files, and the policy for them.
#[derive(Debug, Clone, Copy)]
pub struct ConsolePages {
    /// Returns the file at a path. The path has no leading slash.
    pub asset: fn(&str) -> Option<ConsoleAsset>,
    /// Returns the page to show for a missing file. `None` if the response is an ordinary error.
    pub missing: fn(&str) -> Option<ConsoleAsset>,
    /// The value of `content-security-policy`.
    pub policy: &'static str,
}

/// Answers a request that matches no route of the API.
pub(crate) fn answer(pages: ConsolePages, request: &Request) -> Response {
    let path = request.uri().path();
    if path == "/admin" || path.starts_with("/admin/") {
        return ApiProblem::not_found("there is no such route: /admin/v1/openapi.json lists them")
            .into_response();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused = ApiProblem::new(AdminCode::Method, "pages are only read");
        return ([(header::ALLOW, "GET, HEAD")], refused).into_response();
    }
    let path = path.trim_start_matches('/');
    let Some(asset) = (pages.asset)(path) else {
        return missing(pages, path);
    };
    let known = request.headers().get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let is_known = known.map(str::trim).any(|tag| tag == asset.etag || tag == "*");
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Response::new(Body::from(Bytes::from_static(asset.bytes))),
    };
    let headers = response.headers_mut();
    if !is_known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.mime));
    }
    headers.insert(header::ETAG, HeaderValue::from_static(asset.etag));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(pages.policy));
    response
}

/// The 404 response: a page if `pages` has one for the path, otherwise an error.
fn missing(pages: ConsolePages, path: &str) -> Response {
    let Some(shown) = (pages.missing)(path) else {
        return ApiProblem::not_found("there is no such page").into_response();
    };
    let headers = [(header::CONTENT_TYPE, shown.mime), (header::CONTENT_SECURITY_POLICY, pages.policy)];
    (StatusCode::NOT_FOUND, headers, Bytes::from_static(shown.bytes)).into_response()
}
