//! Invoices as comma-separated values and as a page to print. Must not know how an invoice is made.

use std::fmt::Write as _;

use crate::invoice::{InvoiceDocument, InvoiceLine, InvoiceState};
use crate::invoice_amounts::dollars;
use crate::invoice_settings::InvoiceParty;

/// The columns of the values.
const COLUMNS: [&str; 13] = [
    "number",
    "org",
    "month",
    "line",
    "project",
    "model",
    "class",
    "price_from",
    "tier",
    "tokens",
    "dollars_per_million",
    "amount_dollars",
    "net_dollars",
];

/// The style of the page, on screens and on paper.
const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;color:#111;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:22px;margin:0 0 .25rem}.parties{display:flex;gap:4rem;margin:1.5rem 0}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.25rem .5rem;border-bottom:1px solid #ccc;vertical-align:top}th{border-bottom:2px solid #111}\
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.totals{width:auto;margin:1.5rem 0 0 auto}\
.draft{color:#a00;font-weight:bold}.small{color:#555;font-size:12px;overflow-wrap:anywhere}\
@media print{body{margin:0;max-width:none;font-size:10pt}thead{display:table-header-group}tr{break-inside:avoid}\
@page{size:A4;margin:18mm}}";

impl InvoiceDocument {
    /// The lines as comma-separated values with a header (RFC 4180), then the line that rounds to cents, taxes and totals.
    pub fn csv(&self) -> String {
        let mut text = csv_row(&COLUMNS.map(str::to_owned));
        let number = self.number.clone().unwrap_or_default();
        let row = |rest: [String; 10]| {
            let start = [number.clone(), self.org.clone(), self.month.clone()];
            csv_row(&start.into_iter().chain(rest).collect::<Vec<_>>())
        };
        for line in &self.lines {
            let version = line.price.clone().unwrap_or_default();
            text += &row([
                line.id.to_string(),
                line.project.clone(),
                line.model.clone().unwrap_or_default(),
                line.class.clone(),
                version.from.unwrap_or_default(),
                version.tier.or(version.holder_tier).unwrap_or_default(),
                line.quantity.to_string(),
                dollars(line.unit_price),
                dollars(line.amount),
                line.net.to_string(),
            ]);
        }
        let mut sum = |name: &str, amount: String, net: String| {
            let mut rest: [String; 10] = Default::default();
            let [_, project, .., of, in_cents] = &mut rest;
            (*project, *of, *in_cents) = (name.to_owned(), amount, net);
            text += &row(rest);
        };
        let totals = &self.totals;
        sum("rounding to cents", dollars(totals.rounding_to_cents), String::new());
        sum("charged", dollars(totals.charged), totals.charged_cents.to_string());
        sum("net", String::new(), totals.net.to_string());
        sum("free tiers and promotional credit", String::new(), totals.allowance.to_string());
        sum("net without them", String::new(), totals.taxable.to_string());
        for tax in &self.taxes {
            sum(&format!("tax {} {} %", tax.category, tax.percent), String::new(), tax.amount.to_string());
        }
        sum("total", String::new(), totals.gross.to_string());
        sum("paid from balance and lots", String::new(), totals.paid.to_string());
        sum("rounding", String::new(), totals.rounding.to_string());
        sum("due", String::new(), totals.due.to_string());
        text
    }

    /// The invoice as a page of HTML that prints on paper. It has no script and loads nothing.
    pub fn html(&self) -> String {
        let title = match (&self.number, self.state) {
            (Some(number), InvoiceState::Final) if self.is_credit_note() => format!("Credit note {number}"),
            (Some(number), InvoiceState::Final) => format!("Invoice {number}"),
            _ => "Draft of an invoice".to_owned(),
        };
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n<style>{STYLE}</style>\n\
             </head>\n<body>\n<h1>{0}</h1>\n",
            escaped(&title)
        );
        if self.state == InvoiceState::Draft {
            page += "<p class=\"draft\">This draft is no invoice. Its amounts may still change.</p>\n";
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<p>Issued {} · due {} · {} to {} ({}) · {}</p>",
            escaped(&self.issued),
            escaped(&self.due_date),
            escaped(&self.from),
            escaped(&self.to),
            escaped(&self.zone),
            escaped(&self.currency),
        );
        if let Some(corrects) = &self.corrects {
            let _ = writeln!(page, "<p>Corrects invoice {}</p>", escaped(corrects));
        }
        page += "<div class=\"parties\">\n";
        page += &party("From", &self.seller, None);
        page += &party("To", &self.buyer, self.buyer_reference.as_deref());
        page += "</div>\n<table>\n<thead><tr><th>Project</th><th>Model</th><th>Tokens of class</th>\
                 <th class=\"n\">Tokens</th><th class=\"n\">Per million</th><th class=\"n\">Exact</th>\
                 <th class=\"n\">Net</th></tr></thead>\n<tbody>\n";
        for line in &self.lines {
            page += &html_line(line);
        }
        let totals = &self.totals;
        let _ = writeln!(
            page,
            "<tr><td colspan=\"5\">Rounding to cents</td><td class=\"n\">{}</td><td></td></tr>\n</tbody>\n</table>",
            dollars(totals.rounding_to_cents)
        );
        page += "<table class=\"totals\">\n";
        let mut sum = |name: &str, amount: String| {
            let _ = writeln!(page, "<tr><td>{}</td><td class=\"n\">{amount}</td></tr>", escaped(name));
        };
        sum("Net", totals.net.to_string());
        if totals.allowance.0 != 0 {
            sum("Free tiers and promotional credit", format!("-{}", totals.allowance));
            sum("Net without them", totals.taxable.to_string());
        }
        for tax in &self.taxes {
            sum(&format!("Tax {} {} %", tax.category, tax.percent), tax.amount.to_string());
        }
        sum("Total", totals.gross.to_string());
        sum("Paid from balance and lots", totals.paid.to_string());
        if totals.rounding.0 != 0 {
            sum("Rounding", totals.rounding.to_string());
        }
        sum(&format!("Due ({})", self.currency), totals.due.to_string());
        page += "</table>\n";
        if let Some(note) = &self.note {
            let _ = writeln!(page, "<p>{}</p>", escaped(note));
        }
        let _ = writeln!(
            page,
            "<p class=\"small\">{} calls. Ledger: ${} charged, up to row {} with the checksum {}.</p>\n</body>\n</html>",
            self.ledger.calls,
            dollars(totals.charged),
            self.ledger.last_row,
            escaped(&self.ledger.checksum)
        );
        page
    }
}

fn party(title: &str, party: &InvoiceParty, reference: Option<&str>) -> String {
    let mut text = format!("<div><strong>{title}</strong><br>{}", escaped(&party.name));
    let country = Some(&party.country).filter(|country| !country.is_empty());
    for line in party.address.iter().chain(country) {
        text += &format!("<br>{}", escaped(line));
    }
    if let Some(tax_id) = &party.tax_id {
        text += &format!("<br>Tax id {}", escaped(tax_id));
    }
    if let Some(reference) = reference {
        text += &format!("<br>Your reference {}", escaped(reference));
    }
    text + "</div>\n"
}

fn html_line(line: &InvoiceLine) -> String {
    let version = line.price.clone().unwrap_or_default();
    let from = version.from.map(|from| format!(", prices of {from}")).unwrap_or_default();
    let tier = version.tier.or(version.holder_tier).map(|tier| format!(", {tier}")).unwrap_or_default();
    let class = match &line.model {
        Some(_) => format!("{}{from}{tier}", line.class),
        None if line.class == "refund" => "refunded".to_owned(),
        None => "not charged: calls that failed, or cost more than was held for them".to_owned(),
    };
    let (tokens, price) = match &line.model {
        Some(_) => (line.quantity.to_string(), dollars(line.unit_price)),
        None => (String::new(), String::new()),
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{tokens}</td><td class=\"n\">{price}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        escaped(&line.project),
        escaped(line.model.as_deref().unwrap_or_default()),
        escaped(&class),
        dollars(line.amount),
        line.net
    )
}

/// Escapes a text for HTML, including attributes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// A row of comma-separated values. A field that a spreadsheet would take for a formula gets an apostrophe in front.
fn csv_row(fields: &[String]) -> String {
    let field = |field: &String| {
        let is_number = field.parse::<f64>().is_ok();
        let is_formula = !is_number && field.starts_with(['=', '+', '-', '@', '\t', '\r']);
        let text = if is_formula { format!("'{field}") } else { field.clone() };
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text
        }
    };
    let fields: Vec<String> = fields.iter().map(field).collect();
    format!("{}\r\n", fields.join(","))
}
