//! Invoices as data: lines from the ledger, one line that rounds to cents, taxes and totals. The same charges and settings
//! always give the same invoice. Must not know how an invoice is stored or shown.
//!
//! Fields follow EN 16931: a line's net amount is BT-131, the price for the base quantity BT-146 and BT-149, the sum of the
//! lines BT-106, the allowance BT-107, the total without tax BT-109, the tax BT-110, the total with tax BT-112, what was paid
//! BT-113, the rounding amount BT-114 and what is due BT-115.

use std::collections::BTreeMap;

use headrace_domain::{NanoDollars, OrgId, ProjectId, UnixNanos, rfc3339};
use headrace_ledger::{ChargeGroup, FundedAmounts, OrgCharges, WindowBounds};
use serde::{Deserialize, Serialize};

use crate::invoice_amounts::{CentAmount, decimal, round};
use crate::invoice_settings::{InvoiceParty, InvoiceSettings, TaxRate};

/// The tokens that a price is for.
const BASE_QUANTITY: u64 = 1_000_000;
/// The type of a commercial invoice (UNTDID 1001, BT-3).
const INVOICE_TYPE: u32 = 380;
/// The type of a credit note.
const CREDIT_NOTE_TYPE: u32 = 381;

/// The version of a price: the table of the settings that has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PriceVersion {
    /// The first day on which it applies. `None` if it always did.
    pub from: Option<String>,
    /// The service tier. `None` for the standard one.
    pub tier: Option<String>,
    /// The tier whose holders have it. `None` for all callers.
    pub holder_tier: Option<String>,
}

/// Whether an invoice can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvoiceState {
    /// It is computed anew each time.
    Draft,
    /// It has a number and never changes.
    Final,
}

/// A line of an invoice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceLine {
    /// Its number on the invoice, from 1 (BT-126).
    pub id: u32,
    /// The project.
    pub project: String,
    /// The model. `None` on a line for what was not charged, or was refunded.
    pub model: Option<String>,
    /// The class of tokens, `not_charged`, or `refund`.
    pub class: String,
    /// The number of tokens (BT-129).
    pub quantity: u64,
    /// The price of `base_quantity` tokens in dollars (BT-146).
    #[serde(with = "decimal::nanos")]
    pub unit_price: NanoDollars,
    /// The tokens that the price is for (BT-149).
    pub base_quantity: u64,
    /// The version of the price, if the settings still have it.
    pub price: Option<PriceVersion>,
    /// The amount that the ledger has, in dollars.
    #[serde(with = "decimal::nanos")]
    pub amount: NanoDollars,
    /// The amount in whole cents (BT-131).
    #[serde(with = "decimal::cents")]
    pub net: CentAmount,
}

/// The tax of one category (BG-23).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceTax {
    /// The category (BT-118).
    pub category: String,
    /// The rate in percent (BT-119).
    pub percent: String,
    /// The taxed amount (BT-116).
    #[serde(with = "decimal::cents")]
    pub base: CentAmount,
    /// The tax (BT-117).
    #[serde(with = "decimal::cents")]
    pub amount: CentAmount,
}

/// The totals of an invoice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceTotals {
    /// The sum of the lines' exact amounts: what the ledger charged less what it refunded. On a credit note, what it refunded.
    #[serde(with = "decimal::nanos")]
    pub charged: NanoDollars,
    /// The line *rounding to cents*: what the total in cents has more or less than `charged`.
    #[serde(with = "decimal::nanos")]
    pub rounding_to_cents: NanoDollars,
    /// `charged` and `rounding_to_cents` together.
    #[serde(with = "decimal::cents")]
    pub charged_cents: CentAmount,
    /// The sum of the lines' net amounts (BT-106).
    #[serde(with = "decimal::cents")]
    pub net: CentAmount,
    /// The part that free tiers and promotional lots cover. It is given, so that no tax is due on it (BT-107).
    #[serde(with = "decimal::cents")]
    pub allowance: CentAmount,
    /// `net` less `allowance` (BT-109).
    #[serde(with = "decimal::cents")]
    pub taxable: CentAmount,
    /// The tax (BT-110).
    #[serde(with = "decimal::cents")]
    pub tax: CentAmount,
    /// With tax (BT-112).
    #[serde(with = "decimal::cents")]
    pub gross: CentAmount,
    /// What the balance and paid lots have paid already (BT-113). The rest is charged to contracts.
    #[serde(with = "decimal::cents")]
    pub paid: CentAmount,
    /// The difference between `charged_cents` and `net` (BT-114).
    #[serde(with = "decimal::cents")]
    pub rounding: CentAmount,
    /// What is due (BT-115).
    #[serde(with = "decimal::cents")]
    pub due: CentAmount,
}

/// Where the ledger has the charges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceLedger {
    /// The number of settled calls.
    pub calls: u64,
    /// The number of the last row that was read.
    pub last_row: u64,
    /// The checksum of that row, in hexadecimal.
    pub checksum: String,
    /// The first moment of the period. That of the month, or the end of the invoice before, if that had another time zone.
    #[serde(with = "rfc3339")]
    pub start: UnixNanos,
    /// The first moment after the period.
    #[serde(with = "rfc3339")]
    pub end: UnixNanos,
}

/// An invoice. See the top of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceDocument {
    /// Series and number, such as `INV-12` (BT-1). `None` for a draft.
    pub number: Option<String>,
    /// Whether it can change.
    pub state: InvoiceState,
    /// The type (BT-3).
    #[serde(rename = "type")]
    pub kind: u32,
    /// The organisation.
    pub org: String,
    /// The month, such as `2026-11`.
    pub month: String,
    /// The time zone of the month.
    pub zone: String,
    /// The first day (BT-73).
    pub from: String,
    /// The last day (BT-74).
    pub to: String,
    /// The day of issue (BT-2).
    pub issued: String,
    /// The day on which it is due (BT-9).
    pub due_date: String,
    /// The currency (BT-5).
    pub currency: String,
    /// The seller (BG-4). Without a name if the settings have none.
    pub seller: InvoiceParty,
    /// The buyer (BG-7).
    pub buyer: InvoiceParty,
    /// The invoice that a credit note corrects (BT-25). `None` for an invoice.
    #[serde(default)]
    pub corrects: Option<String>,
    /// The buyer's reference (BT-10).
    pub buyer_reference: Option<String>,
    /// The lines, by project, model, class and price (BG-25).
    pub lines: Vec<InvoiceLine>,
    /// The taxes, by category.
    pub taxes: Vec<InvoiceTax>,
    /// The totals (BG-22).
    pub totals: InvoiceTotals,
    /// A text for the reader (BT-22).
    pub note: Option<String>,
    /// Where the ledger has the charges.
    pub ledger: InvoiceLedger,
}

/// The days of an invoice, each as `2026-11-30`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvoiceDays {
    /// The first day of the month.
    pub from: String,
    /// The last day of the month.
    pub to: String,
    /// The day of issue.
    pub issued: String,
    /// The day on which it is due.
    pub due: String,
}

impl InvoiceDocument {
    /// Computes the invoice of an organisation for a month, as a draft. `version` finds the version of a price.
    ///
    /// # Errors
    /// Returns an error if a sum does not fit.
    pub fn draft(
        settings: &InvoiceSettings,
        (org, month): (&OrgId, &str),
        days: InvoiceDays,
        (charges, period): (&OrgCharges, WindowBounds),
        version: &dyn Fn(&ChargeGroup) -> Option<PriceVersion>,
    ) -> Result<Self, AmountOverflow> {
        let buyer = settings.buyers.get(org).cloned().unwrap_or_default();
        let mut party = buyer.party;
        if party.name.is_empty() {
            party.name = org.to_string();
        }
        let tax = buyer.tax.as_ref().unwrap_or(&settings.tax);
        let lines = lines(charges, version)?;
        let refunded = charges.refunded_after(0).ok_or(AmountOverflow)?;
        let funded = less(charges.funded, refunded).ok_or(AmountOverflow)?;
        let (totals, taxes) = totals(&lines, tax, funded)?;
        Ok(Self {
            number: None,
            state: InvoiceState::Draft,
            kind: INVOICE_TYPE,
            org: org.to_string(),
            month: month.to_owned(),
            zone: settings.zone_of(org).to_owned(),
            from: days.from,
            to: days.to,
            issued: days.issued,
            due_date: days.due,
            currency: "USD".to_owned(),
            seller: settings.seller.clone().unwrap_or_default(),
            buyer: party,
            corrects: None,
            buyer_reference: buyer.reference,
            lines,
            taxes,
            totals,
            note: settings.note.clone(),
            ledger: ledger_of(charges, period),
        })
    }

    /// Computes the credit note for refunds of the charges on a final invoice, by project, as a draft. `charges` are those of
    /// the invoice's month, and `after` is the number of the last row that earlier documents have.
    ///
    /// # Errors
    /// Returns an error if a sum does not fit.
    pub fn credit_note(
        &self,
        charges: &OrgCharges,
        after: u64,
        (issued, due): (String, String),
    ) -> Result<Self, AmountOverflow> {
        let tax = TaxRate {
            category: self.taxes.first().map_or_else(|| "O".to_owned(), |tax| tax.category.clone()),
            basis_points: self
                .taxes
                .first()
                .and_then(|tax| TaxRate::parse_percent(&tax.percent).ok())
                .unwrap_or(0),
        };
        let refunds = refunds(charges, after)?;
        let lines = project_lines(&refunds, "refund", 1..).collect::<Result<Vec<_>, _>>()?;
        let funded = charges.refunded_after(after).ok_or(AmountOverflow)?;
        let (totals, taxes) = totals(&lines, &tax, funded)?;
        Ok(Self {
            number: None,
            state: InvoiceState::Draft,
            kind: CREDIT_NOTE_TYPE,
            corrects: self.number.clone(),
            issued,
            due_date: due,
            lines,
            taxes,
            totals,
            ledger: ledger_of(charges, self.period()),
            ..self.clone()
        })
    }

    /// The period whose charges are on the invoice.
    pub const fn period(&self) -> WindowBounds {
        WindowBounds { start: self.ledger.start, end: self.ledger.end }
    }

    /// Whether this is a credit note.
    pub fn is_credit_note(&self) -> bool {
        self.kind == CREDIT_NOTE_TYPE
    }

    /// The same invoice with its number. It never changes afterwards.
    #[must_use]
    pub fn with_number(&self, number: String) -> Self {
        Self { number: Some(number), state: InvoiceState::Final, ..self.clone() }
    }
}

/// A sum does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmountOverflow;

fn ledger_of(charges: &OrgCharges, WindowBounds { start, end }: WindowBounds) -> InvoiceLedger {
    InvoiceLedger {
        start,
        end,
        calls: charges.calls,
        last_row: charges.last_row,
        checksum: charges.last_checksum.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// The refunds in rows after `after`, by project.
fn refunds(charges: &OrgCharges, after: u64) -> Result<BTreeMap<ProjectId, NanoDollars>, AmountOverflow> {
    let mut sums: BTreeMap<ProjectId, NanoDollars> = BTreeMap::new();
    for (_, refund) in charges.refunds.iter().filter(|(row, _)| *row > after) {
        let sum = sums.entry(refund.project.clone()).or_default();
        *sum = sum.checked_add(refund.amount).map_err(|_| AmountOverflow)?;
    }
    Ok(sums)
}

/// Lines with one amount by project, such as refunds.
fn project_lines(
    amounts: &BTreeMap<ProjectId, NanoDollars>,
    class: &'static str,
    mut ids: std::ops::RangeFrom<u32>,
) -> impl Iterator<Item = Result<InvoiceLine, AmountOverflow>> {
    amounts.iter().map(move |(project, amount)| {
        Ok(InvoiceLine {
            id: ids.next().ok_or(AmountOverflow)?,
            project: project.to_string(),
            model: None,
            class: class.to_owned(),
            quantity: 1,
            unit_price: *amount,
            base_quantity: 1,
            price: None,
            amount: *amount,
            net: round(*amount),
        })
    })
}

fn lines(
    charges: &OrgCharges,
    version: &dyn Fn(&ChargeGroup) -> Option<PriceVersion>,
) -> Result<Vec<InvoiceLine>, AmountOverflow> {
    let mut lines = Vec::with_capacity(charges.lines.len().saturating_add(charges.not_charged.len()));
    let mut ids = 1_u32..;
    for (group, (tokens, amount)) in &charges.lines {
        lines.push(InvoiceLine {
            id: ids.next().ok_or(AmountOverflow)?,
            project: group.project.to_string(),
            model: Some(group.model.to_string()),
            class: group.class.name().to_owned(),
            quantity: *tokens,
            unit_price: NanoDollars::new(group.price.get()),
            base_quantity: BASE_QUANTITY,
            price: version(group),
            amount: *amount,
            net: round(*amount),
        });
    }
    let returned = refunds(charges, 0)?
        .into_iter()
        .map(|(project, amount)| Ok((project, amount.checked_neg().map_err(|_| AmountOverflow)?)))
        .collect::<Result<BTreeMap<_, _>, AmountOverflow>>()?;
    for (amounts, class) in [(&charges.not_charged, "not_charged"), (&returned, "refund")] {
        let next = u32::try_from(lines.len()).map_err(|_| AmountOverflow)?.saturating_add(1);
        for line in project_lines(amounts, class, next..) {
            lines.push(line?);
        }
    }
    Ok(lines)
}

/// The differences of two amounts. Returns `None` if one does not fit.
fn less(of: FundedAmounts, other: FundedAmounts) -> Option<FundedAmounts> {
    Some(FundedAmounts {
        given: of.given.checked_sub(other.given).ok()?,
        owed: of.owed.checked_sub(other.owed).ok()?,
    })
}

fn totals(
    lines: &[InvoiceLine],
    tax: &TaxRate,
    funded: FundedAmounts,
) -> Result<(InvoiceTotals, Vec<InvoiceTax>), AmountOverflow> {
    let overflow = |_| AmountOverflow;
    let charged = NanoDollars::checked_sum(lines.iter().map(|line| line.amount)).map_err(overflow)?;
    let charged_cents = round(charged);
    let rounding_to_cents =
        charged_cents.nanos().ok_or(AmountOverflow)?.checked_sub(charged).map_err(overflow)?;
    let net = lines.iter().try_fold(CentAmount(0), |sum, line| sum.plus(line.net)).ok_or(AmountOverflow)?;
    let allowance = round(funded.given);
    let taxable = net.minus(allowance).ok_or(AmountOverflow)?;
    let amount = taxable.times_basis_points(tax.basis_points).ok_or(AmountOverflow)?;
    let gross = taxable.plus(amount).ok_or(AmountOverflow)?;
    let rounding = charged_cents.minus(net).ok_or(AmountOverflow)?;
    // The balance and lots paid when the calls were settled. Taxes and what contracts cover are due.
    let paid = charged_cents.minus(allowance).and_then(|paid| paid.minus(round(funded.owed)));
    let paid = paid.ok_or(AmountOverflow)?;
    let due = gross.minus(paid).and_then(|due| due.plus(rounding)).ok_or(AmountOverflow)?;
    let taxes =
        vec![InvoiceTax { category: tax.category.clone(), percent: tax.percent(), base: taxable, amount }];
    let totals = InvoiceTotals {
        charged,
        rounding_to_cents,
        charged_cents,
        net,
        allowance,
        taxable,
        tax: amount,
        gross,
        paid,
        rounding,
        due,
    };
    Ok((totals, taxes))
}
