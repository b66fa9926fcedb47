//! The keys that sign receipts. Must not know what a receipt says.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::{AdminApp, unexpected};
use crate::problem::ApiProblem;
use crate::who::AuthenticatedOperator;

/// The key that signs receipts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReceiptKey {
    /// Its id, which receipts and the published keys name (`kid`).
    id: String,
}

pub(crate) async fn rotate(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<ReceiptKey>, ApiProblem> {
    match app.run(&who, AdminCommand::RotateReceiptKey).await? {
        AdminReply::ReceiptKeyRotated { id } => Ok(Json(ReceiptKey { id })),
        other => Err(unexpected(other)),
    }
}
