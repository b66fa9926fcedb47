//! Balances, grants, budgets, and the ledger itself.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{AdminCommand, AdminReply, BudgetView, CreditView, GrantView, ServerStatus, TotalsView};
use headrace_domain::{OrgId, ProjectId};
use headrace_ledger::{BudgetPeriod, GrantKind, ProjectBudget};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::check_org;
use crate::page::{PageQuery, RowPage};
use crate::problem::ApiProblem;
use crate::routes::{ById, bad_cursor};
use crate::seams::{LedgerCheck, OpenHold};
use crate::values::{Dollars, Money, Name, Time};
use crate::who::AuthenticatedOperator;

/// The balance and budget of a project.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Credit {
    /// The organisation that pays.
    org: String,
    project: String,
    /// The organisation's balance, money held included.
    balance: Money,
    /// The amount that the organisation's calls in flight hold.
    held: Money,
    /// The amount that further calls of the organisation can hold.
    available: Money,
    /// The part of it that is in lots. Some of them may be for some models only.
    in_lots: Money,
    /// The amount that the organisation can still use under contracts.
    credit: Money,
    /// The amount that it owes under contracts, with what its calls in flight hold.
    owed: Money,
    /// `null` if the project has no budget.
    budget: Option<BudgetShown>,
}

/// The state of a project's budget.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Budget")]
pub(crate) struct BudgetShown {
    limit: Money,
    period: Period,
    /// Spent in the period.
    spent: Money,
    /// Held by the project's calls in flight.
    held: Money,
    left: Money,
    /// When the period ends. `null` if it never ends.
    resets: Option<Time>,
}

/// The period of a budget: the calendar month (UTC), or without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Period {
    #[default]
    Month,
    Total,
}

impl From<CreditView> for Credit {
    fn from(of: CreditView) -> Self {
        Self {
            org: of.org.to_string(),
            project: of.project.to_string(),
            balance: of.balance.into(),
            held: of.held.into(),
            available: of.available.into(),
            in_lots: of.in_lots.into(),
            credit: of.credit.into(),
            owed: of.owed.into(),
            budget: of.budget.map(BudgetShown::from),
        }
    }
}

impl From<BudgetView> for BudgetShown {
    fn from(of: BudgetView) -> Self {
        Self {
            limit: of.budget.limit.into(),
            period: match of.budget.period {
                BudgetPeriod::Month => Period::Month,
                BudgetPeriod::Total => Period::Total,
            },
            spent: of.spent.into(),
            held: of.held.into(),
            left: of.left.into(),
            resets: of.resets.map(Time),
        }
    }
}

/// Money to be added, or taken back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewGrant {
    /// Dollars: more than zero.
    amount: Dollars,
    /// A payment, or a gift.
    #[serde(default)]
    kind: Kind,
    /// An invoice or a ticket, for example. The same reference again is the same grant. For money taken back, the
    /// reason.
    #[serde(default)]
    #[schemars(length(max = 256))]
    reference: String,
    /// Takes back what was granted by mistake.
    #[serde(default)]
    correct: bool,
}

/// Where money comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "GrantKind")]
pub(crate) enum Kind {
    /// It was paid.
    #[default]
    Paid,
    /// It is a gift.
    Promotional,
}

impl From<Kind> for GrantKind {
    fn from(of: Kind) -> Self {
        match of {
            Kind::Paid => Self::Paid,
            Kind::Promotional => Self::Promotional,
        }
    }
}

impl From<GrantKind> for Kind {
    fn from(of: GrantKind) -> Self {
        match of {
            GrantKind::Paid => Self::Paid,
            GrantKind::Promotional => Self::Promotional,
        }
    }
}

/// The result of a grant.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Granted {
    org: String,
    /// The amount. Below zero if it was taken back.
    amount: Money,
    /// The balance now, money held included.
    balance: Money,
    /// Whether the same grant was made before under this reference, so that nothing was added now.
    before: bool,
}

/// Money added, or, below zero, taken back.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GrantShown {
    at: Time,
    actor: String,
    org: String,
    amount: Money,
    kind: Kind,
    reference: String,
}

impl From<GrantView> for GrantShown {
    fn from(of: GrantView) -> Self {
        Self {
            at: Time(of.at),
            actor: of.actor,
            org: of.org.to_string(),
            amount: of.amount.into(),
            kind: of.kind.into(),
            reference: of.reference,
        }
    }
}

/// A project's budget.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBudget {
    /// Dollars. `null` removes the budget, and 0 stops the project.
    limit: Option<Dollars>,
    #[serde(default)]
    period: Period,
}

/// Sums over the ledger.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Totals {
    /// Customers' money that is not held.
    available: Money,
    /// Customers' money held by calls in flight.
    held: Money,
    /// Usage at list price.
    revenue: Money,
    /// Usage that was written off. Zero or below.
    loss: Money,
    /// Holds open now.
    open_holds: u64,
    /// Holds ever settled.
    settled: u64,
}

impl From<TotalsView> for Totals {
    fn from(of: TotalsView) -> Self {
        let TotalsView { available, held, revenue, loss, open_holds, settled } = of;
        Self {
            available: available.into(),
            held: held.into(),
            revenue: revenue.into(),
            loss: loss.into(),
            open_holds,
            settled,
        }
    }
}

/// A filter for balances, and the requested page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreditQuery {
    /// Only projects of this organisation.
    #[schemars(with = "Option<Name>")]
    org: Option<OrgId>,
    /// The maximum number of rows: 1 to 500.
    #[schemars(range(min = 1, max = 500))]
    limit: Option<u32>,
    /// The cursor: the `next` of the previous page.
    cursor: Option<String>,
}

pub(crate) async fn credit(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<CreditQuery>,
) -> Result<Json<RowPage<Credit>>, ApiProblem> {
    if let Some(org) = &query.org {
        check_org(&who.operator, org)?;
    }
    let org = query.org.or_else(|| who.operator.org.clone());
    let mut rows = balances(&app, &who, org).await?;
    rows.sort_by(|one, other| one.project.cmp(&other.project));
    let rows = rows.into_iter().map(Credit::from);
    Ok(Json(RowPage::by(rows, query.limit, query.cursor.as_deref(), |row| row.project.clone())))
}

async fn balances(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    org: Option<OrgId>,
) -> Result<Vec<CreditView>, ApiProblem> {
    match app.run(who, AdminCommand::ShowCredit { org }).await? {
        AdminReply::Credit(rows) => Ok(rows),
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn grant(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<ProjectId>>,
    JsonBody(grant): JsonBody<NewGrant>,
) -> Result<Json<Granted>, ApiProblem> {
    let NewGrant { amount: Dollars(amount), kind, reference, correct } = grant;
    let (org, kind) = (org_of(&app, &id)?, kind.into());
    let command = match correct {
        true => AdminCommand::CorrectCredit { org, amount, kind, reason: reference },
        false => AdminCommand::GrantCredit { org, amount, kind, reference },
    };
    match app.run(&who, command).await? {
        AdminReply::CreditGranted { org, amount, balance, before } => {
            app.changed("credit");
            let (amount, balance) = (amount.into(), balance.into());
            Ok(Json(Granted { org: org.to_string(), amount, balance, before }))
        }
        other => Err(unexpected(other)),
    }
}

fn org_of(app: &AdminApp, id: &ProjectId) -> Result<OrgId, ApiProblem> {
    let unknown = || headrace_identity::IdentityError::UnknownProject(id.clone());
    let project = app.directory().project(id);
    Ok(project.ok_or_else(|| headrace_admin::AdminError::from(unknown()))?.org)
}

pub(crate) async fn grants(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<ProjectId>>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<GrantShown>>, ApiProblem> {
    let org = Some(org_of(&app, &id)?);
    match app.run(&who, AdminCommand::ListGrants { org }).await? {
        AdminReply::Grants(rows) => {
            let rows = rows.into_iter().map(GrantShown::from).collect();
            RowPage::from_place(rows, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn budget(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<ProjectId>>,
    JsonBody(new): JsonBody<NewBudget>,
) -> Result<Json<Credit>, ApiProblem> {
    let period = match new.period {
        Period::Month => BudgetPeriod::Month,
        Period::Total => BudgetPeriod::Total,
    };
    let budget = new.limit.map(|Dollars(limit)| ProjectBudget { limit, period });
    let org = org_of(&app, &id)?;
    app.run(&who, AdminCommand::SetBudget { project: id.clone(), budget }).await?;
    app.changed("budget");
    let rows = balances(&app, &who, Some(org)).await?;
    let row = rows.into_iter().find(|row| row.project == id);
    Ok(Json(row.ok_or_else(|| ApiProblem::not_found("the project has no account"))?.into()))
}

pub(crate) async fn totals(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Totals>, ApiProblem> {
    match app.run(&who, AdminCommand::Status).await? {
        AdminReply::Status(ServerStatus { totals, .. }) => Ok(Json(totals.into())),
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn verify(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<LedgerCheck>, ApiProblem> {
    let found = app.server(|server| server.verify()).await??;
    let told =
        if found.ok { "every invariant holds".to_owned() } else { format!("{} faults", found.finding_count) };
    app.note(&who, "ledger.verify", "ledger".to_owned(), told).await?;
    Ok(Json(found))
}

pub(crate) async fn holds(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<OpenHold>>, ApiProblem> {
    let mut holds = app.server(|server| server.holds()).await?;
    holds.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(Json(RowPage::by(holds, query.limit, query.cursor.as_deref(), |hold| hold.id.clone())))
}

/// The result of opening accounts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AccountsOpened {
    /// The number of opened accounts.
    opened: u64,
}

/// The result of setting the ledger's time back.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClockSet {
    /// The ledger's time before.
    from: Time,
    /// The ledger's time now, which is the clock's.
    to: Time,
}

pub(crate) async fn open_accounts(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<AccountsOpened>, ApiProblem> {
    match app.run(&who, AdminCommand::OpenAccounts).await? {
        AdminReply::AccountsOpened { count } => {
            app.changed("credit");
            Ok(Json(AccountsOpened { opened: count }))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn set_clock(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<ClockSet>, ApiProblem> {
    match app.run(&who, AdminCommand::SetLedgerClock).await? {
        AdminReply::LedgerClockSet { from, to } => Ok(Json(ClockSet { from: Time(from), to: Time(to) })),
        other => Err(unexpected(other)),
    }
}
