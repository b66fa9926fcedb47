//! `headrace invoices`.

use std::path::Path;
use std::process::ExitCode;

use headrace_admin::{
    AdminCommand, AdminReply, InvoiceAct, InvoiceDocument, InvoiceLine, InvoiceReply, InvoiceSummary,
};
use headrace_terminal::output;

use crate::arguments::invoices::{InvoiceFormat, InvoicesArgs, InvoicesCommand};
use crate::commands::{CommandError, ask, execute, print, time, unexpected};

/// Computes, numbers, lists, shows or exports invoices.
pub(crate) fn run(args: InvoicesArgs) -> ExitCode {
    let act = match args.command {
        InvoicesCommand::Draft { org, month } => InvoiceAct::Draft { org, month },
        InvoicesCommand::Final { org, month } => InvoiceAct::Final { org, month },
        InvoicesCommand::Credit { number } => InvoiceAct::Credit { number },
        InvoicesCommand::List { org } => InvoiceAct::List { org },
        InvoicesCommand::Show { number } => InvoiceAct::Show { number },
        InvoicesCommand::Export { number, format, out } => {
            let reply = ask(&args.at, AdminCommand::Invoices { act: InvoiceAct::Show { number } });
            return print(reply.and_then(|reply| export(reply, format, out.as_deref())));
        }
    };
    execute(&args.at, AdminCommand::Invoices { act }, describe)
}

/// Writes an invoice to a file, or returns its text.
fn export(reply: AdminReply, format: InvoiceFormat, out: Option<&Path>) -> Result<String, CommandError> {
    let AdminReply::Invoices(InvoiceReply::Invoice(invoice)) = reply else {
        return Err(CommandError::Other(unexpected(&reply)));
    };
    let text = match format {
        InvoiceFormat::Json => serde_json::to_string_pretty(&invoice)
            .map(|text| format!("{text}\n"))
            .map_err(|error| CommandError::Other(error.to_string()))?,
        InvoiceFormat::Csv => invoice.csv(),
        InvoiceFormat::Html => invoice.html(),
    };
    let Some(out) = out else { return Ok(text) };
    std::fs::write(out, text).map_err(|error| CommandError::Other(format!("{}: {error}", out.display())))?;
    Ok(format!("{} written to {}\n", invoice.number.as_deref().unwrap_or("draft"), out.display()))
}

fn describe(reply: AdminReply) -> String {
    match reply {
        AdminReply::Invoices(InvoiceReply::Invoice(invoice)) => text(&invoice),
        AdminReply::Invoices(InvoiceReply::Invoices(all)) if all.is_empty() => {
            "no final invoices: headrace invoices final ORG MONTH makes one\n".to_owned()
        }
        AdminReply::Invoices(InvoiceReply::Invoices(all)) => {
            let head = ["invoice", "organisation", "month", "charged", "due", "final since (UTC)"];
            let row = |of: InvoiceSummary| {
                let money = |amount: String| format!("${amount}");
                vec![
                    of.number,
                    of.org.to_string(),
                    of.month,
                    money(of.charged),
                    money(of.due),
                    time(Some(of.created)),
                ]
            };
            output::table(&head, all.into_iter().map(row).collect())
        }
        other => unexpected(&other),
    }
}

/// An invoice as text.
fn text(invoice: &InvoiceDocument) -> String {
    let title = match &invoice.number {
        Some(number) if invoice.is_credit_note() => {
            format!("Credit note {number} (corrects {})", invoice.corrects.as_deref().unwrap_or_default())
        }
        Some(number) => format!("Invoice {number}"),
        None => "Draft".to_owned(),
    };
    let mut text = format!(
        "{title} of organisation {} for {}, {} to {} ({})\n",
        invoice.org, invoice.month, invoice.from, invoice.to, invoice.zone
    );
    let head = ["line", "project", "model", "class", "tokens", "per million", "amount", "net"];
    let row = |line: &InvoiceLine| {
        let price = line.model.as_ref().map(|_| line.unit_price.to_string()).unwrap_or_default();
        let tokens = line.model.as_ref().map(|_| line.quantity.to_string()).unwrap_or_default();
        vec![
            line.id.to_string(),
            line.project.clone(),
            line.model.clone().unwrap_or_default(),
            line.class.clone(),
            tokens,
            price,
            line.amount.to_string(),
            line.net.to_string(),
        ]
    };
    let totals = &invoice.totals;
    let mut rows: Vec<Vec<String>> = invoice.lines.iter().map(row).collect();
    let mut rounding: Vec<String> = vec![String::new(); head.len()];
    if let [_, name, .., amount, _] = rounding.as_mut_slice() {
        *name = "rounding to cents".to_owned();
        *amount = totals.rounding_to_cents.to_string();
    }
    rows.push(rounding);
    text += &output::table(&head, rows);
    text += &format!("net ${}\n", totals.net);
    for tax in &invoice.taxes {
        text += &format!("tax {} {} % ${}\n", tax.category, tax.percent, tax.amount);
    }
    text + &format!(
        "total ${} · given ${} · paid from balance and lots ${} · rounding ${} · due ${} on {}\n",
        totals.gross, totals.allowance, totals.paid, totals.rounding, totals.due, invoice.due_date
    )
}
