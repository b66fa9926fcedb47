//! What the settings say about invoices: seller, buyers, taxes, series. Must not know charges.

use std::collections::BTreeMap;

use headrace_domain::OrgId;
use serde::{Deserialize, Serialize};

/// A seller or a buyer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InvoiceParty {
    /// Its legal name.
    pub name: String,
    /// Its address, by line.
    #[serde(default)]
    pub address: Vec<String>,
    /// Its country: two capital letters (ISO 3166-1). Empty if it is not known.
    #[serde(default)]
    pub country: String,
    /// Its identifier for taxes, such as a VAT number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tax_id: Option<String>,
}

/// How a buyer is taxed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaxRate {
    /// The category of UNCL 5305 that EN 16931 uses: `S`, `Z`, `E`, `AE`, `K`, `G` or `O`.
    pub category: String,
    /// The rate in hundredths of a percent: 1900 is 19 %.
    pub basis_points: u32,
}

impl TaxRate {
    /// The categories that are known.
    pub const CATEGORIES: [&'static str; 7] = ["S", "Z", "E", "AE", "K", "G", "O"];

    /// The rate in percent, as text: `19`, `7.5`.
    pub fn percent(&self) -> String {
        let (whole, part) = (self.basis_points / 100, self.basis_points % 100);
        match part {
            0 => whole.to_string(),
            part if part % 10 == 0 => format!("{whole}.{}", part / 10),
            part => format!("{whole}.{part:02}"),
        }
    }

    /// Parses a rate in percent with at most two decimals.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn parse_percent(text: &str) -> Result<u32, String> {
        let bad = || format!("`{text}` is no rate in percent, such as 19 or 7.5");
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 2 || part.len() > 2 || !is_number(whole) || !is_number(part) {
            return Err(bad());
        }
        format!("{whole}{part:0<2}").parse().map_err(|_| bad())
    }
}

impl Default for TaxRate {
    /// Outside the scope of taxes.
    fn default() -> Self {
        Self { category: "O".to_owned(), basis_points: 0 }
    }
}

/// What the settings say about one buyer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InvoiceBuyer {
    /// The buyer. Without a name it is the organisation's id.
    pub party: InvoiceParty,
    /// The time zone of its months. `None` for the seller's.
    pub zone: Option<String>,
    /// How it is taxed. `None` as others are.
    pub tax: Option<TaxRate>,
    /// Its own reference, which invoices repeat.
    pub reference: Option<String>,
}

/// What the settings say about invoices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvoiceSettings {
    /// The series of invoices and credit notes: the text before the number.
    pub series: String,
    /// The time zone of months.
    pub zone: String,
    /// Days until an invoice is due.
    pub due_days: u32,
    /// The seller. `None` if no name is set; then no invoice becomes final.
    pub seller: Option<InvoiceParty>,
    /// How buyers are taxed.
    pub tax: TaxRate,
    /// A text at the end of each invoice.
    pub note: Option<String>,
    /// What differs by organisation.
    pub buyers: BTreeMap<OrgId, InvoiceBuyer>,
}

impl Default for InvoiceSettings {
    fn default() -> Self {
        Self {
            series: "INV".to_owned(),
            zone: "UTC".to_owned(),
            due_days: 14,
            seller: None,
            tax: TaxRate::default(),
            note: None,
            buyers: BTreeMap::new(),
        }
    }
}

impl InvoiceSettings {
    /// The time zone of an organisation's months.
    pub fn zone_of(&self, org: &OrgId) -> &str {
        self.buyers.get(org).and_then(|buyer| buyer.zone.as_deref()).unwrap_or(&self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_as_percent() {
        for (text, points, written) in [
            ("19", 1900, "19"),
            ("7.5", 750, "7.5"),
            ("0", 0, "0"),
            ("8.25", 825, "8.25"),
            ("5.10", 510, "5.1"),
        ] {
            let rate =
                TaxRate { category: "S".to_owned(), basis_points: TaxRate::parse_percent(text).unwrap() };
            assert_eq!((rate.basis_points, rate.percent().as_str()), (points, written), "{text}");
        }
        for bad in ["", "100", "1.234", "-1", "x", ".5", "1,5", " 1"] {
            assert!(TaxRate::parse_percent(bad).is_err(), "{bad}");
        }
    }
}
