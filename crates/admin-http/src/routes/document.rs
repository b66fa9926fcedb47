//! Serves the committed OpenAPI document. Must not know how it is generated.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The committed document. A test compares it with the router.
const COMMITTED: &str = include_str!("../../openapi.json");

pub(crate) async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], COMMITTED).into_response()
}
