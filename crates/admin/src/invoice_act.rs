//! Commands about invoices as serializable data, and what they answer. Contains no decisions.

use headrace_domain::{OrgId, UnixNanos};
use headrace_ledger::ChargeGroup;
use serde::{Deserialize, Serialize};

use crate::invoice::{InvoiceDocument, PriceVersion};
use crate::invoice_settings::InvoiceSettings;

/// A command about invoices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum InvoiceAct {
    /// Computes the invoice of an organisation for a month.
    Draft {
        /// The organisation.
        org: OrgId,
        /// The month, such as `2026-11`.
        month: String,
    },
    /// Gives the invoice of a month that is over its number. It never changes afterwards.
    Final {
        /// The organisation.
        org: OrgId,
        /// The month, such as `2026-11`.
        month: String,
    },
    /// Makes the credit note for refunds since a final invoice and its earlier credit notes.
    Credit {
        /// Series and number of the invoice, such as `INV-12`.
        number: String,
    },
    /// Lists final invoices, oldest number first.
    List {
        /// Only those of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Returns a final invoice.
    Show {
        /// Series and number, such as `INV-12`.
        number: String,
    },
}

/// The reply to a command about invoices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InvoiceReply {
    /// An invoice.
    Invoice(Box<InvoiceDocument>),
    /// Final invoices, by series and number.
    Invoices(Vec<InvoiceSummary>),
}

/// A final invoice in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvoiceSummary {
    /// Series and number.
    pub number: String,
    /// The kind: `invoice` or `credit_note`.
    pub kind: String,
    /// The organisation.
    pub org: OrgId,
    /// The month.
    pub month: String,
    /// When it became final.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// The BLAKE3 hash of its text in hexadecimal, which the audit log has too.
    pub hash: String,
    /// What the ledger charged, in whole cents, as dollars.
    pub charged: String,
    /// What is due, in dollars.
    pub due: String,
}

/// What invoices take from the settings in force.
pub struct InvoiceSource {
    /// Returns the settings of invoices.
    pub settings: Box<dyn Fn() -> InvoiceSettings + Send + Sync>,
    /// Returns a function that finds the version of a price.
    pub versions: PriceVersions,
}

/// Returns a function that finds the version of a price, with the prices in force. Versions that apply from a later day than the
/// given one, such as `2026-11-30`, are left out.
pub type PriceVersions = Box<dyn Fn(&str) -> PriceFinder + Send + Sync>;
/// Finds the version of a price. `None` if the settings do not have the price any more.
pub type PriceFinder = Box<dyn Fn(&ChargeGroup) -> Option<PriceVersion>>;

impl Default for InvoiceSource {
    /// Settings without a seller, and no prices.
    fn default() -> Self {
        Self { settings: Box::new(InvoiceSettings::default), versions: Box::new(|_| Box::new(|_| None)) }
    }
}
