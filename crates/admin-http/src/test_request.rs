//! A request with such headers, for tests of what is read from them alone.

use axum::body::Body;
use axum::extract::Request;

/// To a route of the API.
pub(crate) fn request(headers: &[(&str, &str)]) -> Request {
    let builder = Request::builder().uri("/admin/v1/status");
    let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    builder.body(Body::empty()).unwrap()
}
