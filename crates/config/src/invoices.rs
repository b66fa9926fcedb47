//! Settings of invoices: `invoices.*` and `[[invoices.buyers]]`. Must not know how an invoice is made.

use headrace_admin::{InvoiceBuyer, InvoiceParty, InvoiceSettings, TaxRate};
use headrace_domain::OrgId;
use headrace_ledger::month_bounds;

use super::SettingsReader;
use super::billing_fields::{
    INVOICE_ADDRESS, INVOICE_BUYERS, INVOICE_COUNTRY, INVOICE_DUE_DAYS, INVOICE_NOTE, INVOICE_SELLER,
    INVOICE_SERIES, INVOICE_TAX_CATEGORY, INVOICE_TAX_ID, INVOICE_TAX_RATE, INVOICE_ZONE,
};
use super::table::TableReader;
use super::value::SettingKind;

impl SettingsReader {
    /// Reads what the settings say about invoices.
    pub(super) fn invoices(&mut self) -> InvoiceSettings {
        let usual = InvoiceSettings::default();
        let series = self.text(INVOICE_SERIES).unwrap_or(usual.series);
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if series.is_empty() || series.len() > 20 || !series.bytes().all(fits) {
            self.fault(INVOICE_SERIES, "must have 1 to 20 letters, digits or hyphens");
        }
        let zone = self.text(INVOICE_ZONE).unwrap_or(usual.zone);
        if !is_zone(&zone) {
            self.fault(INVOICE_ZONE, format!("`{zone}` is no IANA time zone, such as Europe/Berlin"));
        }
        let country = self.text(INVOICE_COUNTRY).unwrap_or_default();
        if !is_country(&country) {
            self.fault(INVOICE_COUNTRY, "must have two capital letters, such as DE");
        }
        let name = self.text(INVOICE_SELLER).filter(|name| !name.trim().is_empty());
        let address = address(self.text(INVOICE_ADDRESS));
        let tax_id = self.text(INVOICE_TAX_ID).filter(|id| !id.is_empty());
        let seller = name.map(|name| InvoiceParty { name, address, country, tax_id });
        let (category, rate) = (self.text(INVOICE_TAX_CATEGORY), self.text(INVOICE_TAX_RATE));
        let tax = tax(category, rate).unwrap_or_else(|(is_rate, why)| {
            self.fault(if is_rate { INVOICE_TAX_RATE } else { INVOICE_TAX_CATEGORY }, why);
            None
        });
        let due_days = self.count(INVOICE_DUE_DAYS);
        let mut settings = InvoiceSettings {
            series,
            zone,
            due_days: due_days.unwrap_or(usual.due_days),
            seller,
            tax: tax.unwrap_or_default(),
            note: self.text(INVOICE_NOTE).filter(|note| !note.is_empty()),
            buyers: usual.buyers,
        };
        for mut table in self.list(INVOICE_BUYERS) {
            if let Some((org, buyer)) = buyer(&mut table)
                && settings.buyers.insert(org.clone(), buyer).is_some()
            {
                table.problem("org", format!("`{org}` is named twice"));
            }
            self.settings.problems.extend(table.end());
        }
        settings
    }
}

fn is_zone(zone: &str) -> bool {
    month_bounds("2026-01", zone).is_some()
}

fn is_country(country: &str) -> bool {
    country.is_empty() || (country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// The lines of an address, which are separated by commas or line ends.
fn address(text: Option<String>) -> Vec<String> {
    let text = text.unwrap_or_default();
    let lines = text.split(['\n', ',']).map(str::trim).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// Reads a tax. `None` if neither part is given. The error says whether the rate is wrong, and why.
fn tax(category: Option<String>, rate: Option<String>) -> Result<Option<TaxRate>, (bool, String)> {
    let (category, rate) = (category.filter(|text| !text.is_empty()), rate.filter(|text| !text.is_empty()));
    if category.is_none() && rate.is_none() {
        return Ok(None);
    }
    let basis_points =
        rate.map(|rate| TaxRate::parse_percent(&rate)).transpose().map_err(|why| (true, why))?;
    let basis_points = basis_points.unwrap_or(0);
    let usual = if basis_points > 0 { "S" } else { "O" };
    let category = category.unwrap_or_else(|| usual.to_owned());
    if !TaxRate::CATEGORIES.contains(&category.as_str()) {
        return Err((false, format!("\"{category}\" is none of {}", TaxRate::CATEGORIES.join(", "))));
    }
    if (category == "S") != (basis_points > 0) {
        return Err((true, "category S needs a rate above 0, and the others have none".to_owned()));
    }
    Ok(Some(TaxRate { category, basis_points }))
}

/// Reads an `[[invoices.buyers]]` table. Returns `None` if it names no organisation.
fn buyer(table: &mut TableReader) -> Option<(OrgId, InvoiceBuyer)> {
    let org = table.need("org");
    let org =
        org.and_then(|org| OrgId::new(&org).map_err(|error| table.problem("org", error.to_string())).ok());
    let text = |table: &mut TableReader, key: &'static str| {
        table.take_text(key, SettingKind::Text).filter(|text| !text.is_empty())
    };
    let name = text(table, "name").unwrap_or_default();
    let address = address(text(table, "address"));
    let country = text(table, "country").unwrap_or_default();
    if !is_country(&country) {
        table.problem("country", "must have two capital letters, such as DE".to_owned());
    }
    let tax_id = text(table, "tax_id");
    let zone = text(table, "zone");
    if let Some(zone) = zone.as_deref().filter(|zone| !is_zone(zone)) {
        table.problem("zone", format!("`{zone}` is no IANA time zone, such as Europe/Berlin"));
    }
    let (category, rate) = (text(table, "tax_category"), text(table, "tax_rate"));
    let tax = tax(category, rate).unwrap_or_else(|(is_rate, why)| {
        table.problem(if is_rate { "tax_rate" } else { "tax_category" }, why);
        None
    });
    let reference = text(table, "reference");
    let party = InvoiceParty { name, address, country, tax_id };
    Some((org?, InvoiceBuyer { party, zone, tax, reference }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ServerSettings;
    use crate::layers::SettingLayers;

    fn read(text: &str) -> (InvoiceSettings, String) {
        let mut layers = SettingLayers::defaults();
        layers.file(Path::new("h.toml"), text);
        let (settings, layers) = ServerSettings::read(layers, true);
        let faults: Vec<String> = layers.problems.iter().map(ToString::to_string).collect();
        (settings.invoices, faults.join("\n"))
    }

    #[test]
    fn seller_taxes_and_buyers_are_read() {
        let (none, faults) = read("");
        assert_eq!((none, faults.as_str()), (InvoiceSettings::default(), ""));
        let (settings, faults) = read(
            r#"
            [invoices]
            series = "HR2026"
            zone = "Europe/Berlin"
            seller_name = "Example GmbH"
            seller_address = "Hauptstr. 1, 10115 Berlin"
            seller_country = "DE"
            seller_tax_id = "DE123456789"
            tax_rate = "19"
            due_days = 30
            note = "Thank you."
            [[invoices.buyers]]
            org = "acme"
            name = "Acme Inc."
            country = "US"
            tax_category = "O"
            zone = "America/New_York"
            reference = "PO 7"
            "#,
        );
        assert_eq!(faults, "");
        let seller = settings.seller.as_ref().unwrap();
        assert_eq!((seller.name.as_str(), seller.address.len()), ("Example GmbH", 2));
        assert_eq!(settings.tax, TaxRate { category: "S".to_owned(), basis_points: 1900 });
        assert_eq!((settings.series.as_str(), settings.due_days), ("HR2026", 30));
        let acme = OrgId::new("acme").unwrap();
        assert_eq!(settings.zone_of(&acme), "America/New_York");
        assert_eq!(settings.buyers[&acme].tax, Some(TaxRate { category: "O".to_owned(), basis_points: 0 }));
        assert_eq!(settings.zone_of(&OrgId::new("other").unwrap()), "Europe/Berlin");
    }

    #[test]
    fn every_fault_is_reported_with_its_place() {
        let (_, faults) = read(
            r#"
            [invoices]
            series = "a b"
            zone = "Mars/Crater"
            seller_country = "Germany"
            tax_rate = "120"
            [[invoices.buyers]]
            name = "x"
            [[invoices.buyers]]
            org = "acme"
            zone = "x"
            tax_category = "Q"
            country = "de"
            [[invoices.buyers]]
            org = "acme"
            tax_category = "S"
            colour = 1
            "#,
        );
        for expected in [
            "invoices.series: must have 1 to 20",
            "invoices.zone: `Mars/Crater` is no IANA time zone",
            "invoices.seller_country: must have two capital letters",
            "invoices.tax_rate: `120` is no rate",
            "invoices.buyers[0].org: is missing",
            "invoices.buyers[1].zone: `x` is no IANA",
            "invoices.buyers[1].tax_category: \"Q\" is none of",
            "invoices.buyers[1].country: must have two",
            "invoices.buyers[2].org: `acme` is named twice",
            "invoices.buyers[2].tax_rate: category S needs a rate",
            "colour",
        ] {
            assert!(faults.contains(expected), "{expected}\n---\n{faults}");
        }
    }
}
