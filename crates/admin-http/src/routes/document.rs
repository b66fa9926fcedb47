//! The document that describes the API, as it was committed. Must not know how it is made.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// A test compares it with the router.
const COMMITTED: &str = include_str!("../../openapi.json");

pub(crate) async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], COMMITTED).into_response()
}
