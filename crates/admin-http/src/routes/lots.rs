//! Lots, contracts and their payments: list, make, end and record them.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, LotAct, LotReply, NewLot as NewLotData};
use headrace_domain::{ModelName, OrgId, ProjectId};
use headrace_ledger::{LotId, LotKind, LotReport, LowBalance};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::check_org;
use crate::page::RowPage;
use crate::problem::ApiProblem;
use crate::routes::{ById, CreatedBody, bad_cursor};
use crate::values::{Dollars, Money, Name, Time};
use crate::who::AuthenticatedOperator;

/// The topic of changes that watching pages load again.
const CHANGED: &str = "credit";

/// The kind of a lot.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LotKind")]
enum KindShown {
    /// Paid in by the customer.
    Paid,
    /// A gift.
    Promotional,
    /// Paid later: calls add to what the organisation owes, up to the amount.
    Contract,
}

/// Money of an organisation that is limited in time or to some models, or that is paid later.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Lot")]
pub(crate) struct LotShown {
    /// The id, such as `lot_17`.
    id: String,
    org: String,
    kind: KindShown,
    /// The amount at the beginning. Of a contract: the most that the organisation may owe.
    amount: Money,
    /// The amount that calls can still draw.
    left: Money,
    begins: Time,
    /// When it ends. `null` if it never ends.
    ends: Option<Time>,
    /// The only models whose calls draw from it. `null` for all.
    models: Option<Vec<String>>,
    reference: String,
}

/// A lot to be made.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLot {
    kind: KindShown,
    /// Dollars, more than zero. Of a contract: the most that the organisation may owe.
    amount: Dollars,
    /// When calls begin to draw from it. If absent, now.
    begins: Option<Time>,
    /// When it ends. If absent, never.
    ends: Option<Time>,
    /// The only models whose calls draw from it. If absent, all.
    #[schemars(with = "Option<Vec<String>>", length(min = 1, max = 64))]
    models: Option<Vec<ModelName>>,
    /// A payment or a contract, for example. The same reference again is the same lot.
    #[serde(default)]
    #[schemars(length(max = 256))]
    reference: String,
}

/// The result of making a lot.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LotMade {
    lot: LotShown,
    /// Whether the same lot was made before under this reference, so that nothing was added now.
    before: bool,
}

/// The result of ending a lot.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LotEnded {
    id: String,
    /// What was left of it.
    left: Money,
}

/// A payment of what an organisation owes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPayment {
    /// Dollars: more than zero, and at most what is owed.
    amount: Dollars,
    /// An invoice, for example. The same reference again is the same payment.
    #[serde(default)]
    #[schemars(length(max = 256))]
    reference: String,
}

/// The result of a payment.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PaymentMade {
    org: String,
    amount: Money,
    /// What the organisation owes now, with what its calls in flight hold.
    owed: Money,
    /// Whether the same payment was recorded before under this reference.
    before: bool,
}

/// A filter for lots, and the requested page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LotQuery {
    /// Only lots of this organisation.
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    /// The maximum number of rows: 1 to 500.
    #[schemars(range(min = 1, max = 500))]
    limit: Option<u32>,
    /// The cursor: the `next` of the previous page.
    cursor: Option<String>,
}

/// A path with the id of a lot.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ByLot {
    /// The id, such as `lot_17`.
    id: String,
}

impl From<LotReport> for LotShown {
    fn from(of: LotReport) -> Self {
        let LotReport { lot, left } = of;
        let terms = lot.terms;
        let names = |models: &[ModelName]| models.iter().map(ToString::to_string).collect();
        Self {
            id: lot.id.to_string(),
            org: lot.org.to_string(),
            kind: match terms.kind {
                LotKind::Paid => KindShown::Paid,
                LotKind::Promotional => KindShown::Promotional,
                LotKind::Contract => KindShown::Contract,
            },
            amount: terms.amount.into(),
            left: left.into(),
            begins: Time(terms.begins),
            ends: terms.ends.map(Time),
            models: terms.models.as_deref().map(names),
            reference: terms.reference.to_string(),
        }
    }
}

/// Runs an act about lots or free tiers.
pub(crate) async fn run_lot_act(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: LotAct,
) -> Result<LotReply, ApiProblem> {
    match app.run(who, AdminCommand::Lots { act }).await? {
        AdminReply::Lots(reply) => Ok(reply),
        other => Err(unexpected(other)),
    }
}

fn other_reply(reply: LotReply) -> ApiProblem {
    unexpected(AdminReply::Lots(reply))
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<LotQuery>,
) -> Result<Json<RowPage<LotShown>>, ApiProblem> {
    if let Some(org) = &query.org {
        check_org(&who.operator, org)?;
    }
    let org = query.org.or_else(|| who.operator.org.clone());
    match run_lot_act(&app, &who, LotAct::List { org }).await? {
        LotReply::Lots(lots) => {
            let rows = lots.into_iter().map(LotShown::from).collect();
            RowPage::from_place(rows, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
        }
        other => Err(other_reply(other)),
    }
}

pub(crate) async fn make(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<OrgId>>,
    JsonBody(new): JsonBody<NewLot>,
) -> Result<CreatedBody<LotMade>, ApiProblem> {
    let NewLot { kind, amount: Dollars(amount), begins, ends, models, reference } = new;
    let lot = NewLotData {
        kind: match kind {
            KindShown::Paid => LotKind::Paid,
            KindShown::Promotional => LotKind::Promotional,
            KindShown::Contract => LotKind::Contract,
        },
        amount,
        begins: begins.map(|Time(time)| time),
        ends: ends.map(|Time(time)| time),
        models: models.map(Into::into),
        reference,
    };
    match run_lot_act(&app, &who, LotAct::Make { org: id, lot }).await? {
        LotReply::Made { lot, before } => {
            app.changed(CHANGED);
            Ok(CreatedBody(LotMade { lot: lot.into(), before }))
        }
        other => Err(other_reply(other)),
    }
}

pub(crate) async fn end(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ByLot { id }): PathName<ByLot>,
) -> Result<Json<LotEnded>, ApiProblem> {
    let lot: LotId = id.parse().map_err(|why: String| ApiProblem::form(Some("id"), why))?;
    match run_lot_act(&app, &who, LotAct::End { lot }).await? {
        LotReply::Ended { lot, left } => {
            app.changed(CHANGED);
            Ok(Json(LotEnded { id: lot.to_string(), left: left.into() }))
        }
        other => Err(other_reply(other)),
    }
}

pub(crate) async fn pay(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<OrgId>>,
    JsonBody(NewPayment { amount: Dollars(amount), reference }): JsonBody<NewPayment>,
) -> Result<Json<PaymentMade>, ApiProblem> {
    match run_lot_act(&app, &who, LotAct::Pay { org: id, amount, reference }).await? {
        LotReply::Paid { org, amount, owed, before } => {
            app.changed(CHANGED);
            let (amount, owed) = (amount.into(), owed.into());
            Ok(Json(PaymentMade { org: org.to_string(), amount, owed, before }))
        }
        other => Err(other_reply(other)),
    }
}

/// What happens to a project's calls that the money does not cover.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LowBalance")]
enum PolicyShown {
    /// They are refused.
    Refuse,
    /// They get as many tokens as the money covers.
    Cap,
}

/// The policy of a project for a low balance.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LowBalancePolicy {
    policy: PolicyShown,
}

pub(crate) async fn set_low_balance(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<ProjectId>>,
    JsonBody(LowBalancePolicy { policy }): JsonBody<LowBalancePolicy>,
) -> Result<Json<LowBalancePolicy>, ApiProblem> {
    let policy = match policy {
        PolicyShown::Refuse => LowBalance::Refuse,
        PolicyShown::Cap => LowBalance::Cap,
    };
    match run_lot_act(&app, &who, LotAct::SetLowBalance { project: id, policy }).await? {
        LotReply::LowBalanceSet { policy, .. } => {
            app.changed(CHANGED);
            let policy = match policy {
                LowBalance::Refuse => PolicyShown::Refuse,
                LowBalance::Cap => PolicyShown::Cap,
            };
            Ok(Json(LowBalancePolicy { policy }))
        }
        other => Err(other_reply(other)),
    }
}
