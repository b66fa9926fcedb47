//! The server as a whole: its status, its settings, its margin, and the audit log.

use axum::extract::State;
use axum::{Extension, Json};
use headrace_admin::{
    AdminCommand, AdminReply, AuditAct, AuditReply, AuditView, ServerStatus, SignedAuditHead,
};
use headrace_domain::OrgId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::{AdminApp, unexpected};
use crate::input::QueryInput;
use crate::page::{PageQuery, RowPage, rows};
use crate::problem::ApiProblem;
use crate::routes::audit_scope::is_row_of;
use crate::routes::bad_cursor;
use crate::routes::money::Totals;
use crate::seams::SettingInForce;
use crate::values::Time;
use crate::who::AuthenticatedOperator;

/// Maximum period of a shadow comparison, in hours.
const MAX_SHADOW_HOURS: u32 = 24 * 31;

/// Rows of the audit log that are read at once for an operator of one organisation, and how often for one page.
const AUDIT_ROWS_READ: u32 = 500;
const MAX_AUDIT_READS: usize = 8;

/// The status of the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Status {
    version: String,
    pid: u32,
    /// The address of the API.
    listen: String,
    started: Time,
    /// Whether new calls are served, for every model.
    ready: bool,
    /// Why not. Empty if `ready` is true.
    not_ready: Vec<String>,
    /// Calls in progress.
    in_flight: u64,
    models: Vec<String>,
    aliases: Vec<String>,
    stores: Vec<Store>,
    /// Revocations that are in force but not written yet.
    revocations_waiting: u64,
    /// `null` for roles that see no money.
    totals: Option<Totals>,
}

/// Whether a store can be written.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Store {
    store: String,
    /// The error of the last write. `null` if it succeeded.
    failing: Option<String>,
}

/// What a reload changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Reloaded {
    /// The settings that changed.
    changed: Vec<String>,
}

/// A row of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AuditShown {
    seq: u64,
    at: Time,
    actor: String,
    act: String,
    subject: String,
    detail: String,
}

impl From<AuditView> for AuditShown {
    fn from(of: AuditView) -> Self {
        let AuditView { seq, at, actor, act, subject, detail } = of;
        Self { seq, at: Time(at), actor, act, subject, detail }
    }
}

/// Filters and groups for the margin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MarginQuery {
    /// Groups, separated by commas: `day`, `org`, `project`, `key`, `model`, `upstream`, `target`. Default: `model`.
    by: Option<String>,
    /// Only calls from this time on. If absent, from the first call.
    from: Option<Time>,
    /// Only calls before this time. If absent, until now.
    to: Option<Time>,
}

/// The period of a shadow comparison.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShadowQuery {
    /// The number of past hours: 1 to 744. Default: 24.
    #[schemars(range(min = 1, max = 744))]
    hours: Option<u32>,
}

pub(crate) async fn status(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Status>, ApiProblem> {
    let AdminReply::Status(status) = app.run(&who, AdminCommand::Status).await? else {
        return Err(ApiProblem::internal("the command answered with something else"));
    };
    let ServerStatus { pid, version, listen, started, not_ready, in_flight, models, aliases, stores, .. } =
        status;
    let sees_money = crate::access::BILLING.allows(who.operator.role);
    Ok(Json(Status {
        version,
        pid,
        listen,
        started: Time(started),
        ready: not_ready.is_empty(),
        not_ready,
        in_flight,
        models,
        aliases,
        stores: stores.into_iter().map(|of| Store { store: of.store, failing: of.failing }).collect(),
        revocations_waiting: status.revocations_waiting,
        totals: sees_money.then(|| status.totals.into()),
    }))
}

pub(crate) async fn reload(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Reloaded>, ApiProblem> {
    match app.run(&who, AdminCommand::Reload).await? {
        AdminReply::Reloaded { changed } => {
            app.changed("settings");
            Ok(Json(Reloaded { changed }))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn settings(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<SettingInForce>>, ApiProblem> {
    let settings = app.server(|server| server.settings()).await??;
    RowPage::from_place(settings, query.limit, query.cursor.as_deref()).map(Json).ok_or_else(bad_cursor)
}

pub(crate) async fn margin(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<MarginQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let MarginQuery { by, from, to } = query;
    let by = by.unwrap_or_else(|| "model".to_owned());
    let ask = move |server: &dyn crate::seams::ServerAdmin| {
        server.margin(&by, from.map(|Time(at)| at), to.map(|Time(at)| at))
    };
    Ok(Json(app.server(ask).await??))
}

pub(crate) async fn shadow(
    State(app): State<AdminApp>,
    QueryInput(query): QueryInput<ShadowQuery>,
) -> Result<Json<Value>, ApiProblem> {
    let hours = query.hours.unwrap_or(24).clamp(1, MAX_SHADOW_HOURS);
    Ok(Json(app.server(move |server| server.shadow(hours)).await??))
}

/// A signed statement of where the audit log ends. `headrace audit verify` checks it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AuditHead {
    at: Time,
    /// The number of rows.
    rows: u64,
    /// The hash of the last row, in hexadecimal.
    head: String,
    /// What counts: the three values above, signed. A JWS in compact form (RFC 7515) with the algorithm EdDSA.
    jws: String,
    /// The public key as a JWK set (RFC 7517).
    keys: Value,
}

pub(crate) async fn audit_head(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<AuditHead>, ApiProblem> {
    match app.run(&who, AdminCommand::AuditLog { act: AuditAct::Head }).await? {
        AdminReply::AuditLog(AuditReply::Head { head: SignedAuditHead { at, rows, head, jws, keys } }) => {
            Ok(Json(AuditHead { at: Time(at), rows, head, jws, keys }))
        }
        other => Err(unexpected(other)),
    }
}

pub(crate) async fn audit(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(query): QueryInput<PageQuery>,
) -> Result<Json<RowPage<AuditShown>>, ApiProblem> {
    let before = query.cursor.as_deref().map(str::parse).transpose().map_err(|_| bad_cursor())?;
    let most = rows(query.limit);
    if let Some(org) = who.operator.org.clone() {
        return audit_of(&app, &who, &org, before, most).await.map(Json);
    }
    let last = u32::try_from(most).unwrap_or(u32::MAX);
    match app.run(&who, AdminCommand::ShowAudit { last, before }).await? {
        AdminReply::Audit(rows) => {
            let data: Vec<AuditShown> = rows.into_iter().rev().map(AuditShown::from).collect();
            // Rows are numbered from 1, so there is no page after row 1.
            let next =
                data.last().filter(|row| row.seq > 1 && data.len() == most).map(|row| row.seq.to_string());
            Ok(Json(RowPage { data, next }))
        }
        other => Err(unexpected(other)),
    }
}

/// The rows about an organisation, newest first. Reads a bounded number of rows, so a page may be short.
async fn audit_of(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    org: &OrgId,
    mut before: Option<u64>,
    most: usize,
) -> Result<RowPage<AuditShown>, ApiProblem> {
    let mut data = Vec::new();
    for _ in 0..MAX_AUDIT_READS {
        let read = AdminCommand::ShowAudit { last: AUDIT_ROWS_READ, before };
        let AdminReply::Audit(rows) = app.run(who, read).await? else {
            return Err(ApiProblem::internal("the command answered with something else"));
        };
        let oldest = rows.iter().map(|row| row.seq).min();
        for row in rows.into_iter().rev().filter(|row| is_row_of(app, org, row)) {
            if data.len() == most {
                let next = data.last().map(|row: &AuditShown| row.seq.to_string());
                return Ok(RowPage { data, next });
            }
            data.push(row.into());
        }
        // Rows are numbered from 1.
        match oldest.filter(|oldest| *oldest > 1) {
            Some(oldest) => before = Some(oldest),
            None => return Ok(RowPage { data, next: None }),
        }
    }
    Ok(RowPage { data, next: before.map(|before| before.to_string()) })
}
