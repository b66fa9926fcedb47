//! Refunds of calls' charges.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, RefundView};
use headrace_domain::RequestId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName};
use crate::problem::ApiProblem;
use crate::routes::ById;
use crate::values::{Dollars, Money};
use crate::who::AuthenticatedOperator;

/// A charge to be given back, or a part of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRefund {
    /// Dollars, more than zero. If absent, all of the charge that was not refunded before.
    amount: Option<Dollars>,
    /// A ticket, for example. The same reference again is the same refund.
    #[schemars(length(min = 1, max = 256))]
    reference: String,
}

/// The result of a refund.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RefundAnswer {
    /// The call.
    request: String,
    org: String,
    project: String,
    /// The charge of the call.
    charged: Money,
    /// The amount of this refund.
    amount: Money,
    /// The amount of the charge that can still be refunded.
    left: Money,
    reference: String,
    /// The balance now, money held included.
    balance: Money,
    /// Whether the same refund was made before under this reference, so that nothing was given back now.
    before: bool,
}

pub(crate) async fn refund(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<RequestId>>,
    JsonBody(NewRefund { amount, reference }): JsonBody<NewRefund>,
) -> Result<Json<RefundAnswer>, ApiProblem> {
    let amount = amount.map(|Dollars(amount)| amount);
    match app.run(&who, AdminCommand::Refund { hold: id.hold(), amount, reference }).await? {
        AdminReply::Refunded(refund) => {
            app.changed("credit");
            let RefundView { org, project, charged, amount, left, reference, balance, before, .. } = refund;
            Ok(Json(RefundAnswer {
                request: id.to_string(),
                org: org.to_string(),
                project: project.to_string(),
                charged: charged.into(),
                amount: amount.into(),
                left: left.into(),
                reference,
                balance: balance.into(),
                before,
            }))
        }
        other => Err(unexpected(other)),
    }
}
