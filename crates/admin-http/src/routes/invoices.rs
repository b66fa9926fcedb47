//! Invoices of organisations by month: drafts, final ones, and their texts.

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use headrace_admin::{
    AdminCommand, AdminReply, InvoiceAct, InvoiceDocument, InvoiceReply, InvoiceSummary, unknown_invoice,
};
use headrace_domain::OrgId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::{AdminApp, unexpected};
use crate::input::{JsonBody, PathName, QueryInput};
use crate::org_scope::{check_org, is_within};
use crate::problem::ApiProblem;
use crate::routes::{ById, CreatedBody};
use crate::values::{Name, Time};
use crate::who::AuthenticatedOperator;

const CHANGED: &str = "invoices";

/// An organisation and a month.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InvoiceMonth {
    #[schemars(with = "Name")]
    org: OrgId,
    /// The month, such as `2026-11`.
    #[schemars(regex(pattern = r"^\d{4}-(0[1-9]|1[0-2])$"))]
    month: String,
}

/// A final invoice in a list. Amounts are dollars with two decimals.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InvoiceRow {
    number: String,
    /// `invoice` or `credit_note`.
    kind: String,
    org: String,
    month: String,
    /// When it became final.
    created: Time,
    /// The BLAKE3 hash of its text in hexadecimal, as in the audit log.
    hash: String,
    /// What the ledger charged.
    charged: String,
    due: String,
}

/// A text for people or for other programs.
pub(crate) struct TextFile {
    name: String,
    mime: &'static str,
    text: String,
}

impl IntoResponse for TextFile {
    fn into_response(self) -> Response {
        let Self { name, mime, text } = self;
        // As an attachment, the page does not run in the origin of the console.
        let disposition = format!("attachment; filename=\"{name}\"");
        ([(header::CONTENT_TYPE, mime.to_owned()), (header::CONTENT_DISPOSITION, disposition)], text)
            .into_response()
    }
}

impl OperationOutput for TextFile {
    type Inner = Self;

    fn operation_response(_: &mut GenContext, _: &mut Operation) -> Option<Described> {
        Some(Described { description: "The text, as an attachment".to_owned(), ..Described::default() })
    }
}

async fn run(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    act: InvoiceAct,
) -> Result<InvoiceReply, ApiProblem> {
    match app.run(who, AdminCommand::Invoices { act }).await? {
        AdminReply::Invoices(reply) => Ok(reply),
        other => Err(unexpected(other)),
    }
}

fn other(reply: InvoiceReply) -> ApiProblem {
    unexpected(AdminReply::Invoices(reply))
}

fn to_json(invoice: &InvoiceDocument) -> Result<Value, ApiProblem> {
    serde_json::to_value(invoice).map_err(|error| ApiProblem::form(None, error.to_string()))
}

pub(crate) async fn draft(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    QueryInput(InvoiceMonth { org, month }): QueryInput<InvoiceMonth>,
) -> Result<Json<Value>, ApiProblem> {
    check_org(&who.operator, &org)?;
    match run(&app, &who, InvoiceAct::Draft { org, month }).await? {
        InvoiceReply::Invoice(invoice) => to_json(&invoice).map(Json),
        reply => Err(other(reply)),
    }
}

pub(crate) async fn finish(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    JsonBody(InvoiceMonth { org, month }): JsonBody<InvoiceMonth>,
) -> Result<CreatedBody<Value>, ApiProblem> {
    match run(&app, &who, InvoiceAct::Final { org, month }).await? {
        InvoiceReply::Invoice(invoice) => {
            app.changed(CHANGED);
            to_json(&invoice).map(CreatedBody)
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn credit(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<String>>,
) -> Result<CreatedBody<Value>, ApiProblem> {
    match run(&app, &who, InvoiceAct::Credit { number: id }).await? {
        InvoiceReply::Invoice(note) => {
            app.changed(CHANGED);
            to_json(&note).map(CreatedBody)
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn list(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
) -> Result<Json<Vec<InvoiceRow>>, ApiProblem> {
    let org = who.operator.org.clone();
    let row = |of: InvoiceSummary| InvoiceRow {
        number: of.number,
        kind: of.kind,
        org: of.org.to_string(),
        month: of.month,
        created: Time(of.created),
        hash: of.hash,
        charged: of.charged,
        due: of.due,
    };
    match run(&app, &who, InvoiceAct::List { org }).await? {
        InvoiceReply::Invoices(all) => Ok(Json(all.into_iter().map(row).collect())),
        reply => Err(other(reply)),
    }
}

/// Finds an invoice that the operator may see. Others answer as missing.
async fn find(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    number: String,
) -> Result<Box<InvoiceDocument>, ApiProblem> {
    let gone = || -> ApiProblem { unknown_invoice(&number).into() };
    let act = InvoiceAct::Show { number: number.clone() };
    match run(app, who, act).await? {
        InvoiceReply::Invoice(invoice) => {
            let org = OrgId::new(&invoice.org).map_err(|_| gone())?;
            if is_within(&who.operator, &org) { Ok(invoice) } else { Err(gone()) }
        }
        reply => Err(other(reply)),
    }
}

pub(crate) async fn one(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<String>>,
) -> Result<Json<Value>, ApiProblem> {
    to_json(find(&app, &who, id).await?.as_ref()).map(Json)
}

pub(crate) async fn csv(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<String>>,
) -> Result<TextFile, ApiProblem> {
    let invoice = find(&app, &who, id).await?;
    let name = format!("{}.csv", invoice.number.as_deref().unwrap_or_default());
    Ok(TextFile { name, mime: "text/csv; charset=utf-8", text: invoice.csv() })
}

pub(crate) async fn html(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    PathName(ById { id }): PathName<ById<String>>,
) -> Result<TextFile, ApiProblem> {
    let invoice = find(&app, &who, id).await?;
    let name = format!("{}.html", invoice.number.as_deref().unwrap_or_default());
    Ok(TextFile { name, mime: "text/html; charset=utf-8", text: invoice.html() })
}
