//! A request with given headers, for tests of code that reads only headers.

use axum::body::Body;
use axum::extract::Request;

/// Builds a request to a route of the API.
pub(crate) fn request(headers: &[(&str, &str)]) -> Request {
    let builder = Request::builder().uri("/admin/v1/status");
    let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    builder.body(Body::empty()).unwrap()
}
