//! The settings of what leaves for customers and bookkeeping: receipts, webhooks and invoices. Must not know how they are read.

use super::field::{SettingField, field};
use super::value::SettingKind;

/// Names of settings that are read one by one.
pub(super) const ANSWER_HASH: &str = "receipts.answer_hash";
pub(super) const WEBHOOKS: &str = "webhooks";
pub(super) const INVOICE_SERIES: &str = "invoices.series";
pub(super) const INVOICE_ZONE: &str = "invoices.zone";
pub(super) const INVOICE_SELLER: &str = "invoices.seller_name";
pub(super) const INVOICE_ADDRESS: &str = "invoices.seller_address";
pub(super) const INVOICE_COUNTRY: &str = "invoices.seller_country";
pub(super) const INVOICE_TAX_ID: &str = "invoices.seller_tax_id";
pub(super) const INVOICE_TAX_CATEGORY: &str = "invoices.tax_category";
pub(super) const INVOICE_TAX_RATE: &str = "invoices.tax_rate";
pub(super) const INVOICE_DUE_DAYS: &str = "invoices.due_days";
pub(super) const INVOICE_NOTE: &str = "invoices.note";
pub(super) const INVOICE_BUYERS: &str = "invoices.buyers";

/// The settings of receipts, webhooks and invoices.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        ANSWER_HASH,
        SettingKind::Flag,
        "true",
        "Whether the bytes of an answer are hashed as they are sent (SHA-256), so that its receipt has their hash and length. Costs about a microsecond for each 1.5 KB of an answer. See [receipts](receipts.md).",
    ),
    field(
        WEBHOOKS,
        SettingKind::Tables,
        "",
        "Each table is an endpoint that receives events as [Standard Webhooks](https://www.standardwebhooks.com). It has `name` (lower-case letters, digits, hyphens), `url` and a secret: `whsec_` and the base64 of 24 to 64 random bytes, in `secret_file` or in the variable `HEADRACE_WEBHOOK_NAME_SECRET`. `events` lists the kinds that it receives: `budget.alert` (all by default). The address must be `https` and public, unless `hosts` lists it, such as `[\"http://10.0.0.7:8080\"]`. An event is repeated with growing gaps for three days, until the endpoint answers with a status of 200 to 299. Status 410 ends the endpoint. See [alerts](recipes/alerts.md).",
    ),
    field(
        INVOICE_SERIES,
        SettingKind::Text,
        "\"INV\"",
        "The text before the number of an invoice: `INV-1`. Each series has its own numbers, without gaps.",
    ),
    field(
        INVOICE_ZONE,
        SettingKind::Text,
        "\"UTC\"",
        "The IANA time zone in which months begin and end, such as `\"Europe/Berlin\"`.",
    ),
    field(
        INVOICE_SELLER,
        SettingKind::Text,
        "",
        "The seller's legal name. Without it, no invoice becomes final.",
    ),
    field(
        INVOICE_ADDRESS,
        SettingKind::Text,
        "",
        "The seller's address. Commas or line ends separate its lines.",
    ),
    field(INVOICE_COUNTRY, SettingKind::Text, "", "The seller's country: two letters, such as `\"DE\"`."),
    field(INVOICE_TAX_ID, SettingKind::Text, "", "The seller's identifier for taxes, such as a VAT number."),
    field(
        INVOICE_TAX_CATEGORY,
        SettingKind::Text,
        "",
        "The tax category in EN 16931: `S` (standard rate), `Z` (zero rated), `E` (exempt), `AE` (reverse charge), `K`, `G` or `O` (outside the scope). Default: `S` with a rate, `O` without one.",
    ),
    field(INVOICE_TAX_RATE, SettingKind::Text, "", "The tax rate in percent, such as `\"19\"` or `\"7.5\"`."),
    field(
        INVOICE_DUE_DAYS,
        SettingKind::Count { least: 0, most: 365 },
        "14",
        "Days from the issue of an invoice until it is due.",
    ),
    field(INVOICE_NOTE, SettingKind::Text, "", "A text at the end of each invoice."),
    field(
        INVOICE_BUYERS,
        SettingKind::Tables,
        "",
        "What differs by organisation. Each table has `org`, and `name`, `address`, `country`, `tax_id`, `zone`, `tax_category`, `tax_rate` or `reference`. See [monthly invoices](recipes/monthly-invoices.md).",
    ),
];
