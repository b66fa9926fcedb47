//! Route handlers by subject. A handler turns a request into a command and the reply into JSON. It must not decide who
//! may call it.

pub(crate) mod accounts;
mod audit_scope;
pub(crate) mod budget_scope;
pub(crate) mod budgets;
pub(crate) mod contents;
pub(crate) mod document;
pub(crate) mod events;
pub(crate) mod free_tiers;
pub(crate) mod gateway_list;
pub(crate) mod gateways;
pub(crate) mod invoices;
pub(crate) mod lots;
pub(crate) mod money;
pub(crate) mod operators;
pub(crate) mod places;
pub(crate) mod playground;
pub(crate) mod receipt_keys;
pub(crate) mod refunds;
pub(crate) mod requests;
pub(crate) mod scim_credentials;
pub(crate) mod search;
pub(crate) mod served;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod sign_in;
pub(crate) mod tiers;
pub(crate) mod webhooks;
pub(crate) mod words;

use std::borrow::Cow;

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::problem::ApiProblem;
use crate::values::Name;

/// A response for a created resource: status 201.
pub(crate) struct CreatedBody<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for CreatedBody<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Json(self.0)).into_response()
    }
}

impl<T: JsonSchema> OperationOutput for CreatedBody<T> {
    type Inner = T;

    fn operation_response(ctx: &mut GenContext, operation: &mut Operation) -> Option<Described> {
        <Json<T> as OperationOutput>::operation_response(ctx, operation)
    }

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        Self::operation_response(ctx, operation).map(|told| (Some(201), told)).into_iter().collect()
    }
}

/// A path with an id.
#[derive(Debug, Deserialize)]
pub(crate) struct ById<T> {
    /// The id.
    pub(crate) id: T,
}

/// The schema of an id is always [`Name`], for every type of id.
impl<T> JsonSchema for ById<T> {
    fn schema_name() -> Cow<'static, str> {
        "ById".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": { "id": Name::json_schema(generator) },
            "required": ["id"],
        })
    }
}

/// A path with a name.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ByName {
    /// The name.
    pub(crate) name: String,
}

/// The error for an invalid cursor.
fn bad_cursor() -> ApiProblem {
    ApiProblem::form(Some("cursor"), "this is no `next` of a page")
}
