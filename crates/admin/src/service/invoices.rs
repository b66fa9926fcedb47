//! Invoices: computed from the journal as drafts, and numbered once when their month is over. The number, the text and the
//! row of the audit log are one transaction.

use std::time::Duration;

use headrace_domain::{AdminCode, OrgId, UnixNanos};
use headrace_identity::{IdentityError, NewDocument, NumberedDocument, StoreError};
use headrace_ledger::{OrgCharges, WindowBounds, charges_of, days_after, local_date, month_bounds};

use super::AdminService;
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::invoice::{AmountOverflow, InvoiceDays, InvoiceDocument};
use crate::invoice_act::{InvoiceAct, InvoiceReply, InvoiceSummary};
use crate::invoice_settings::InvoiceSettings;

/// The kinds of invoices and of credit notes among numbered documents.
const INVOICE: &str = "invoice";
const CREDIT_NOTE: &str = "credit_note";
/// Time after the end of a month at which it is over even if the ledger has had no transaction since. The clock of a
/// database may be behind this machine's by less.
const SETTLED_AFTER: Duration = Duration::from_secs(600);

impl AdminService {
    pub(super) fn invoices(
        &self,
        act: InvoiceAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let reply = match act {
            InvoiceAct::Draft { org, month } => {
                let settings = (self.invoices.settings)();
                let period = self.period(&settings, &org, &month)?;
                InvoiceReply::Invoice(Box::new(self.draft(&settings, (&org, &month), period, now)?))
            }
            InvoiceAct::Final { org, month } => {
                InvoiceReply::Invoice(Box::new(self.finish(&org, &month, actor, now)?))
            }
            InvoiceAct::Credit { number } => {
                InvoiceReply::Invoice(Box::new(self.make_credit_note(&number, actor, now)?))
            }
            InvoiceAct::List { org } => {
                let all = self.directory.documents()?;
                let own = all.iter().filter(|document| org.as_ref().is_none_or(|org| document.org == *org));
                InvoiceReply::Invoices(own.map(summary).collect::<Result<_, _>>()?)
            }
            InvoiceAct::Show { number } => InvoiceReply::Invoice(Box::new(parsed(&self.numbered(&number)?)?)),
        };
        Ok(AdminReply::Invoices(reply))
    }

    /// Returns the period of a month's invoice: the month in the organisation's time zone. If the final invoice of the month
    /// before or after has another zone, the period joins its period, so that no charge is on two invoices or on none.
    fn period(
        &self,
        settings: &InvoiceSettings,
        org: &OrgId,
        month: &str,
    ) -> Result<WindowBounds, AdminError> {
        if self.directory.org(org).is_none() {
            return Err(IdentityError::UnknownOrg(org.clone()).into());
        }
        let mut period = month_bounds(month, settings.zone_of(org)).ok_or_else(|| {
            let message = format!("`month` must be a month such as 2026-11, not `{month}`");
            AdminError::new(AdminCode::Invalid, message, "headrace invoices --help")
        })?;
        let all = self.directory.documents()?;
        for document in all.iter().filter(|document| document.kind == INVOICE && document.org == *org) {
            if month_after(&document.period).as_deref() == Some(month) {
                period.start = parsed(document)?.period().end;
            } else if month_after(month).as_ref() == Some(&document.period) {
                period.end = parsed(document)?.period().start;
            }
        }
        Ok(period)
    }

    /// Computes the invoice of a period.
    fn draft(
        &self,
        settings: &InvoiceSettings,
        (org, month): (&OrgId, &str),
        period: WindowBounds,
        now: UnixNanos,
    ) -> Result<InvoiceDocument, AdminError> {
        let zone = settings.zone_of(org);
        let charges = self.charges(org, period, now)?;
        let day = |time| local_date(time, zone).unwrap_or_default();
        let issued = day(now);
        let days = InvoiceDays {
            from: day(period.start),
            to: day(UnixNanos::new(period.end.get().saturating_sub(1))),
            due: days_after(&issued, settings.due_days).unwrap_or_default(),
            issued,
        };
        let versions = (self.invoices.versions)(&days.to);
        let invoice = InvoiceDocument::draft(settings, (org, month), days, (&charges, period), &*versions);
        invoice.map_err(too_large)
    }

    /// Reads the charges of a period.
    fn charges(&self, org: &OrgId, period: WindowBounds, now: UnixNanos) -> Result<OrgCharges, AdminError> {
        let unavailable =
            |why: String| AdminError::new(AdminCode::LedgerUnavailable, why, "headrace ledger verify");
        // An empty batch writes what this process still has to write, and reads what other gateways wrote.
        let written = self.ledger.transact(Vec::new(), now).durable.wait();
        written.map_err(|error| unavailable(error.to_string()))?;
        charges_of(self.ledger.history(), org, period).map_err(|error| unavailable(error.to_string()))
    }

    fn finish(
        &self,
        org: &OrgId,
        month: &str,
        actor: &str,
        now: UnixNanos,
    ) -> Result<InvoiceDocument, AdminError> {
        let settings = (self.invoices.settings)();
        if settings.seller.is_none() {
            let message = "an invoice needs a seller: set invoices.seller_name";
            return Err(AdminError::new(AdminCode::Invalid, message, "docs/recipes/monthly-invoices.md"));
        }
        let period = self.period(&settings, org, month)?;
        self.refuse_existing(org, month)?;
        // Before the charges are read: what is settled from now on is later than the period.
        if self.ledger.time() < period.end && now < period.end.after(SETTLED_AFTER) {
            let zone = settings.zone_of(org);
            let message = format!("{month} is not over in {zone}: more may be charged to it");
            return Err(AdminError::new(AdminCode::MonthOpen, message, "headrace invoices draft"));
        }
        let draft = self.draft(&settings, (org, month), period, now)?;
        let new = NewDocument {
            series: settings.series.clone(),
            kind: INVOICE.to_owned(),
            org: org.clone(),
            period: month.to_owned(),
            about: String::new(),
            created: now,
            actor: actor.to_owned(),
        };
        let write = |number: u64| written(&draft, &settings.series, number);
        match self.directory.number_document(&new, &write) {
            Ok(document) => parsed(&document),
            Err(IdentityError::Store(StoreError::Duplicate { .. })) => {
                // Another gateway was faster.
                self.refuse_existing(org, month)?;
                Err(AdminError::new(AdminCode::InvoiceExists, "the invoice exists", "headrace invoices list"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The document with this number.
    fn numbered(&self, number: &str) -> Result<NumberedDocument, AdminError> {
        let unknown = || unknown_invoice(number);
        let (series, digits) = number.rsplit_once('-').ok_or_else(unknown)?;
        let digits = digits.parse().map_err(|_| unknown())?;
        self.directory.document(series, digits)?.ok_or_else(unknown)
    }

    /// Makes the credit note for the refunds of an invoice's charges that no document has yet.
    fn make_credit_note(
        &self,
        number: &str,
        actor: &str,
        now: UnixNanos,
    ) -> Result<InvoiceDocument, AdminError> {
        let document = self.numbered(number)?;
        let invoice = parsed(&document)?;
        if document.kind != INVOICE {
            let message = format!("`{number}` is a credit note: name the invoice that it corrects");
            return Err(AdminError::new(AdminCode::Invalid, message, "headrace invoices list"));
        }
        let mut after = invoice.ledger.last_row;
        for other in self.directory.documents()? {
            if other.kind == CREDIT_NOTE && other.org == document.org && other.period == document.period {
                after = after.max(parsed(&other)?.ledger.last_row);
            }
        }
        let settings = (self.invoices.settings)();
        let charges = self.charges(&document.org, invoice.period(), now)?;
        let issued = local_date(now, &invoice.zone).unwrap_or_default();
        let due = days_after(&issued, settings.due_days).unwrap_or_default();
        let note = invoice.credit_note(&charges, after, (issued, due)).map_err(too_large)?;
        if note.lines.is_empty() {
            let message = format!("no charge on {number} was refunded that a document does not have");
            return Err(AdminError::new(AdminCode::Invalid, message, "headrace invoices list"));
        }
        let new = NewDocument {
            series: document.series.clone(),
            kind: CREDIT_NOTE.to_owned(),
            org: document.org.clone(),
            period: document.period.clone(),
            // Two gateways that see the same refunds make one credit note.
            about: format!("{}-{} after row {after}", document.series, document.number),
            created: now,
            actor: actor.to_owned(),
        };
        let write = |next: u64| written(&note, &document.series, next);
        let made = self.directory.number_document(&new, &write).map_err(|error| match error {
            IdentityError::Store(StoreError::Duplicate { .. }) => {
                let message = format!("another gateway has just made a credit note for {number}");
                AdminError::new(AdminCode::InvoiceExists, message, "headrace invoices list")
            }
            error => error.into(),
        })?;
        parsed(&made)
    }

    /// Refuses a month that has its invoice.
    fn refuse_existing(&self, org: &OrgId, month: &str) -> Result<(), AdminError> {
        let all = self.directory.documents()?;
        let is_it =
            |other: &&NumberedDocument| other.kind == INVOICE && other.org == *org && other.period == month;
        let Some(found) = all.iter().find(is_it) else { return Ok(()) };
        let name = format!("{}-{}", found.series, found.number);
        let message = format!("{name} is the invoice of `{org}` for {month}, and never changes");
        Err(AdminError::new(AdminCode::InvoiceExists, message, format!("headrace invoices show {name}")))
    }
}

/// The error for a number that no invoice has, or one of another organisation.
pub fn unknown_invoice(number: &str) -> AdminError {
    let message = format!("there is no invoice `{number}`");
    AdminError::new(AdminCode::UnknownInvoice, message, "headrace invoices list")
}

/// The month after a month such as `2026-11`. `None` if it is none.
fn month_after(month: &str) -> Option<String> {
    let (year, month) = month.split_once('-')?;
    let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
    let (year, month) = if month < 12 { (year, month + 1) } else { (year + 1, 1) };
    Some(format!("{year:04}-{month:02}"))
}

/// The text of an invoice with its number.
fn written(draft: &InvoiceDocument, series: &str, number: u64) -> String {
    // The fields have no maps with other keys than text, so that this cannot fail.
    serde_json::to_string(&draft.with_number(format!("{series}-{number}"))).unwrap_or_default()
}

fn too_large(_: AmountOverflow) -> AdminError {
    AdminError::new(AdminCode::Invalid, "the sums of the invoice do not fit 64 bits", "")
}

fn parsed(document: &NumberedDocument) -> Result<InvoiceDocument, AdminError> {
    serde_json::from_str(&document.text).map_err(|error| {
        let message = format!("{}-{} cannot be read: {error}", document.series, document.number);
        AdminError::new(
            AdminCode::StoreFailed,
            message,
            "use the version of Headrace that made it, or a newer one",
        )
    })
}

fn summary(document: &NumberedDocument) -> Result<InvoiceSummary, AdminError> {
    let invoice = parsed(document)?;
    Ok(InvoiceSummary {
        number: format!("{}-{}", document.series, document.number),
        kind: document.kind.clone(),
        org: document.org.clone(),
        month: document.period.clone(),
        created: document.created,
        hash: document.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        charged: invoice.totals.charged_cents.to_string(),
        due: invoice.totals.due.to_string(),
    })
}
