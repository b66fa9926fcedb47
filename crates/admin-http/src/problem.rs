//! Error responses: one form for every route, with a remedy. Must not hold secrets.

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use headrace_admin::AdminError;
use headrace_domain::AdminCode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use crate::seams::PlaygroundAnswer;

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiProblem {
    pub(crate) status: StatusCode,
    pub(crate) error: Box<ProblemBody>,
    /// Seconds after which the client may try again.
    pub(crate) retry_after_s: Option<u64>,
}

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody {
    error: ProblemBody,
}

/// What is wrong, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ErrorDetail")]
pub(crate) struct ProblemBody {
    /// A stable code for programs.
    #[schemars(schema_with = "codes")]
    pub(crate) code: AdminCode,
    /// What is wrong, in words.
    pub(crate) message: String,
    /// What to do about it. Empty if the message says it.
    pub(crate) remedy: String,
    /// The field or parameter at fault, if there is one.
    pub(crate) field: Option<String>,
    /// The stage that refused a call, if one did.
    pub(crate) stage: Option<String>,
    /// The documentation page of the code.
    pub(crate) doc: String,
}

/// The address of the directory of error pages. A page is named after its code.
pub(crate) const DOCS: &str = "https://github.com/headrace/headrace/blob/main/docs/admin-errors";

/// The codes that a response can contain.
fn codes(_: &mut SchemaGenerator) -> Schema {
    let public_codes = AdminCode::ALL.iter().filter(|code| !code.statuses().is_empty());
    json_schema!({ "type": "string", "enum": public_codes.map(|code| code.name()).collect::<Vec<_>>() })
}

impl ApiProblem {
    /// Makes an error with the code's default status.
    pub(crate) fn new(code: AdminCode, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let error = ProblemBody {
            code,
            message: message.into(),
            remedy: String::new(),
            field: None,
            stage: None,
            doc: format!("{DOCS}/{code}.md"),
        };
        Self { status, error: Box::new(error), retry_after_s: None }
    }

    /// The error for a malformed request.
    pub(crate) fn form(field: Option<&str>, message: impl Into<String>) -> Self {
        Self::new(AdminCode::Invalid, message).at(field)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(AdminCode::NotFound, message)
    }

    /// The error for an internal fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(AdminCode::Internal, message)
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

impl ApiProblem {
    /// Returns the error as the data of an event.
    pub(crate) fn into_event(self) -> String {
        serde_json::to_string(&ErrorBody { error: *self.error }).unwrap_or_default()
    }

    /// Returns the error as the response to a playground call.
    pub(crate) fn played(self) -> PlaygroundAnswer {
        let (status, error) = (self.status.as_u16(), *self.error);
        let body = serde_json::to_vec(&ErrorBody { error }).unwrap_or_default();
        let body = Box::pin(futures_util::stream::iter([Ok(Bytes::from(body))]));
        PlaygroundAnswer { status, content_type: "application/json", headers: Vec::new(), body }
    }
}

impl From<AdminError> for ApiProblem {
    fn from(error: AdminError) -> Self {
        // "`name` must have 1 to 64 bytes" names its field.
        let field = error.message.strip_prefix('`').and_then(|rest| rest.split_once('`'));
        let is_value = error.code == AdminCode::Invalid;
        let field = field.filter(|_| is_value).map(|(field, _)| field.to_owned());
        let problem = Self::new(error.code, error.message).at(field.as_deref()).remedy(&error.remedy);
        // The request was well-formed, or it would not have become a command.
        if is_value { Self { status: StatusCode::UNPROCESSABLE_ENTITY, ..problem } } else { problem }
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let Self { status, error, retry_after_s } = self;
        let mut response = (status, Json(ErrorBody { error: *error })).into_response();
        if let Some(seconds) = retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl OperationOutput for ApiProblem {
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
            (AdminCode::UnknownKey, "there is no key", 404, None),
            (AdminCode::Exists, "it is there", 409, None),
            (AdminCode::Invalid, "`name` must have 1 to 64 bytes", 422, Some("name")),
            (AdminCode::Invalid, "a correction of nothing", 422, None),
            (AdminCode::StoreFailed, "`x`", 503, None),
            (AdminCode::Internal, "", 500, None),
            (AdminCode::ConfigRefused, "2 faults", 422, None),
        ] {
            let problem = ApiProblem::from(AdminError::new(code, message, "r"));
            assert_eq!(problem.status.as_u16(), status, "{code}");
            assert!(code.statuses().contains(&status), "{code}");
            assert_eq!(problem.error.field.as_deref(), field, "{code}");
        }
    }

    /// The page of each code exists at the address that responses name, and shows a body that is really sent.
    #[test]
    fn every_code_has_its_page_with_the_body_as_it_is_sent() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin-errors");
        for code in AdminCode::ALL {
            let page = std::fs::read_to_string(format!("{docs}/{code}.md"))
                .unwrap_or_else(|error| panic!("{code}: {error}: `xtask -- errors` writes its page"));
            let shown = page.split("```json\n").nth(1).and_then(|rest| rest.split("\n```").next());
            assert_eq!(shown.is_some(), !code.statuses().is_empty(), "{code}");
            let Some(shown) = shown else { continue };
            let shown: serde_json::Value = serde_json::from_str(shown).unwrap();
            let of = |name: &str| shown["error"][name].as_str();
            let sent = ApiProblem::new(*code, of("message").unwrap()).at(of("field"));
            let sent = ErrorBody { error: *sent.remedy(of("remedy").unwrap()).error };
            assert_eq!(
                shown,
                serde_json::to_value(&sent).unwrap(),
                "{code}: `xtask -- errors` writes its page"
            );
            assert_eq!(of("doc").unwrap(), format!("{DOCS}/{code}.md"));
        }
        assert!(DOCS.ends_with("/docs/admin-errors"));
    }
}
