//! What goes back when something does not happen: one form for every route, with the way out. Never holds a secret.

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use headrace_admin::AdminError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::seams::Played;

/// Something that did not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) error: Box<Told>,
    /// Seconds after which trying again makes sense.
    pub(crate) retry_after_s: Option<u64>,
}

/// The body of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody {
    error: Told,
}

/// What is wrong, and the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ErrorDetail")]
pub(crate) struct Told {
    /// A stable name for programs.
    pub(crate) code: String,
    /// What is wrong, in words.
    pub(crate) message: String,
    /// What to do about it; empty where the message says it.
    pub(crate) remedy: String,
    /// The field or parameter that is meant, where it is one.
    pub(crate) field: Option<String>,
    /// The stage of a call that refused, where one did.
    pub(crate) stage: Option<String>,
    /// A page about it, where there is one.
    pub(crate) doc: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let error = Told {
            code: code.to_owned(),
            message: message.into(),
            remedy: String::new(),
            field: None,
            stage: None,
            doc: None,
        };
        Self { status, error: Box::new(error), retry_after_s: None }
    }

    /// A request whose form is wrong.
    pub(crate) fn form(field: Option<&str>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message).at(field)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// A fault of ours.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(crate) fn at(mut self, field: Option<&str>) -> Self {
        self.error.field = field.filter(|field| !field.is_empty()).map(str::to_owned);
        self
    }

    pub(crate) fn remedy(mut self, remedy: &str) -> Self {
        remedy.clone_into(&mut self.error.remedy);
        self
    }

    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }
}

impl Problem {
    /// As the answer to a call.
    pub(crate) fn played(self) -> Played {
        let (status, error) = (self.status.as_u16(), *self.error);
        let body = serde_json::to_vec(&ErrorBody { error }).unwrap_or_default();
        let body = Box::pin(futures_util::stream::iter([Ok(Bytes::from(body))]));
        Played { status, content_type: "application/json", headers: Vec::new(), body }
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let status = match error.code.as_str() {
            code if code.starts_with("unknown_") => StatusCode::NOT_FOUND,
            "exists" | "reference_used" | "last_owner" => StatusCode::CONFLICT,
            "store_failed" | "ledger_unavailable" | "ledger_undecided" | "not_running" | "not_listening"
            | "busy" => StatusCode::SERVICE_UNAVAILABLE,
            "internal" | "randomness" | "wrong_secret" | "ledger_emptied" => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        // "`name` must have 1 to 64 bytes" names its field.
        let field = error.message.strip_prefix('`').and_then(|rest| rest.split_once('`'));
        let field = field.filter(|_| error.code == "invalid").map(|(field, _)| field.to_owned());
        Self::new(status, &error.code, error.message).at(field.as_deref()).remedy(&error.remedy)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, error, retry_after_s } = self;
        let mut response = (status, Json(ErrorBody { error: *error })).into_response();
        if let Some(seconds) = retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl OperationOutput for Problem {
    type Inner = ErrorBody;

    fn operation_response(ctx: &mut GenContext, operation: &mut Operation) -> Option<Described> {
        <Json<ErrorBody> as OperationOutput>::operation_response(ctx, operation)
    }

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        Self::operation_response(ctx, operation).map(|told| (None, told)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_commands_have_the_status_of_what_they_mean() {
        for (code, message, status, field) in [
            ("unknown_key", "there is no key", 404, None),
            ("exists", "it is there", 409, None),
            ("invalid", "`name` must have 1 to 64 bytes", 422, Some("name")),
            ("invalid", "a correction of nothing", 422, None),
            ("store_failed", "`x`", 503, None),
            ("internal", "", 500, None),
            ("config_refused", "2 faults", 422, None),
        ] {
            let error =
                AdminError { code: code.to_owned(), message: message.to_owned(), remedy: "r".to_owned() };
            let problem = Problem::from(error);
            assert_eq!(problem.status.as_u16(), status, "{code}");
            assert_eq!(problem.error.field.as_deref(), field, "{code}");
        }
    }
}
