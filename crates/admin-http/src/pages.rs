//! The files of the console, as they go out. Must not know what stands in them.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use crate::problem::Problem;

/// A file of the console.
#[derive(Debug, Clone)]
pub struct Asset {
    /// What stands in it.
    pub bytes: Bytes,
    /// Its media type.
    pub content_type: &'static str,
    /// What tells this version of it from others, in quotes.
    pub etag: String,
}

/// Where the console's files come from, and what they may do.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    /// The file of a path that begins with `/`.
    pub asset: fn(&str) -> Option<Asset>,
    /// The value of `content-security-policy`.
    pub policy: &'static str,
}

/// One line, where the program has no console.
pub const NO_PAGES: Pages = Pages { asset: one_line, policy: "default-src 'none'; frame-ancestors 'none'" };

fn one_line(path: &str) -> Option<Asset> {
    (path == "/").then(|| Asset {
        bytes: Bytes::from_static(
            b"<!doctype html><title>Headrace</title><p>The admin API is at <code>/admin/v1</code>, described by <code>/admin/v1/openapi.json</code>.",
        ),
        content_type: "text/html; charset=utf-8",
        etag: "\"none\"".to_owned(),
    })
}

/// Answers what is no route of the API.
pub(crate) fn answer(pages: Pages, request: &Request) -> Response {
    let path = request.uri().path();
    if path == "/admin" || path.starts_with("/admin/") {
        return Problem::not_found("there is no such route: /admin/v1/openapi.json lists them")
            .into_response();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", "pages are only read");
        return ([(header::ALLOW, "GET, HEAD")], refused).into_response();
    }
    let Some(asset) = (pages.asset)(path) else {
        return Problem::not_found("there is no such page").into_response();
    };
    let known = request.headers().get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let is_known = known.map(str::trim).any(|tag| tag == asset.etag || tag == "*");
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Response::new(Body::from(asset.bytes)),
    };
    let headers = response.headers_mut();
    if !is_known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    }
    if let Ok(etag) = HeaderValue::from_str(&asset.etag) {
        headers.insert(header::ETAG, etag);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(pages.policy));
    response
}
