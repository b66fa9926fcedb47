//! Errors in SCIM's form (RFC 7644, 3.12). Must not hold secrets.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use headrace_identity::{IdentityError, StoreError};
use serde_json::json;

use crate::problem::ApiProblem;

/// The kinds of errors that SCIM names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScimKind {
    InvalidFilter,
    InvalidPath,
    InvalidSyntax,
    InvalidValue,
    NoTarget,
    Uniqueness,
}

impl ScimKind {
    const fn name(self) -> &'static str {
        match self {
            Self::InvalidFilter => "invalidFilter",
            Self::InvalidPath => "invalidPath",
            Self::InvalidSyntax => "invalidSyntax",
            Self::InvalidValue => "invalidValue",
            Self::NoTarget => "noTarget",
            Self::Uniqueness => "uniqueness",
        }
    }
}

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScimProblem {
    status: StatusCode,
    kind: Option<ScimKind>,
    detail: String,
    retry_after_s: Option<u64>,
}

impl ScimProblem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, kind: None, detail: detail.into(), retry_after_s: None }
    }

    /// The error for a request that cannot be carried out as it is.
    pub(super) fn bad(kind: ScimKind, detail: impl Into<String>) -> Self {
        let status = match kind {
            ScimKind::Uniqueness => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        Self { kind: Some(kind), ..Self::new(status, detail) }
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn unauthorized() -> Self {
        let detail =
            "send `Authorization: Bearer` with a SCIM credential: headrace scim create ORG makes one";
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(super) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this resource does not take this method")
    }

    pub(super) fn precondition() -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "the resource has another version: read it again")
    }

    pub(super) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "this failed within the server")
    }
}

impl From<IdentityError> for ScimProblem {
    fn from(error: IdentityError) -> Self {
        let detail = error.to_string();
        match error {
            IdentityError::Exists { .. } => Self::bad(ScimKind::Uniqueness, detail),
            IdentityError::Store(StoreError::Conflict { .. }) => Self::precondition(),
            IdentityError::Store(_) => {
                Self { retry_after_s: Some(5), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
            }
            // The resource itself was looked up before.
            _ => Self::bad(ScimKind::InvalidValue, detail),
        }
    }
}

impl From<ApiProblem> for ScimProblem {
    fn from(problem: ApiProblem) -> Self {
        let ApiProblem { status, error, retry_after_s } = problem;
        Self { status, kind: None, detail: error.message, retry_after_s }
    }
}

impl IntoResponse for ScimProblem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "schemas": ["urn:ietf:params:scim:api:messages:2.0:Error"],
            "status": self.status.as_str(),
            "detail": self.detail,
        });
        if let (Some(kind), Some(fields)) = (self.kind, body.as_object_mut()) {
            fields.insert("scimType".to_owned(), kind.name().into());
        }
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let content_type = [(header::CONTENT_TYPE, "application/scim+json")];
        let mut response = (self.status, content_type, Body::from(text)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
