//! Extractors for handlers: a typed body, query or path, or an error that names the field. Must not know any route.

use std::time::Duration;

use aide::generate::GenContext;
use aide::openapi::Operation;
use aide::operation::OperationInput;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use headrace_domain::AdminCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::problem::ApiProblem;

/// Maximum size of an ordinary request body, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;
/// Maximum time for reading a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body of at most `MOST_BYTES` bytes.
pub(crate) struct JsonBody<T, const MOST_BYTES: usize = MAX_BODY_BYTES>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync, const MOST_BYTES: usize> FromRequest<S>
    for JsonBody<T, MOST_BYTES>
{
    type Rejection = ApiProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiProblem> {
        if !is_json(request.headers()) {
            let message = "the body must be JSON, with `content-type: application/json`";
            return Err(ApiProblem::form(None, message));
        }
        let bytes = read(request, MOST_BYTES).await?;
        let mut reader = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            let field = (path != ".").then_some(path.as_str());
            ApiProblem::form(field, format!("the body is not what this takes: {}", error.inner()))
        })?;
        reader.end().map_err(|error| ApiProblem::form(None, format!("the body is not JSON: {error}")))?;
        Ok(Self(value))
    }
}

/// Reads a whole body of at most `most_bytes` bytes, within [`BODY_TIMEOUT`].
pub(crate) async fn read(request: Request, most_bytes: usize) -> Result<Bytes, ApiProblem> {
    let body = Limited::new(request.into_body(), most_bytes).collect();
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(ApiProblem::new(AdminCode::TooLarge, format!("the body has more than {most_bytes} bytes")))
        }
        Ok(Err(_)) => Err(ApiProblem::form(None, "the body broke off")),
        Err(_) => Err(ApiProblem::new(
            AdminCode::TooSlow,
            format!("the body took more than {} s", BODY_TIMEOUT.as_secs()),
        )),
    }
}

/// Returns whether the content type is JSON. An HTML form of another site cannot send this type.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

impl<T: JsonSchema, const MOST_BYTES: usize> OperationInput for JsonBody<T, MOST_BYTES> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        <Json<T> as OperationInput>::operation_input(ctx, operation);
    }
}

/// The query string as a type.
pub(crate) struct QueryInput<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryInput<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
        let Query(asked) = Query::try_from_uri(&parts.uri).map_err(|error| {
            ApiProblem::form(None, format!("the query is not what this takes: {}", error.body_text()))
        })?;
        Ok(Self(asked))
    }
}

impl<T: JsonSchema> OperationInput for QueryInput<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        <Query<T> as OperationInput>::operation_input(ctx, operation);
    }
}

/// The named part of a path as a type. A value that the type rejects is answered with "not found".
pub(crate) struct PathName<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathName<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        let found = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        found
            .map(|axum::extract::Path(named)| Self(named))
            .map_err(|error| ApiProblem::not_found(error.body_text()))
    }
}

impl<T: JsonSchema> OperationInput for PathName<T> {
    fn operation_input(ctx: &mut GenContext, operation: &mut Operation) {
        <axum::extract::Path<T> as OperationInput>::operation_input(ctx, operation);
    }
}
