//! Arguments of `headrace invoices`. Must not know what the commands do.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use headrace_domain::OrgId;

use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace invoices draft default 2026-11   the invoice as it is now\n  headrace invoices list                    the final ones"
)]
pub(crate) struct InvoicesArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: InvoicesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum InvoicesCommand {
    /// Show the invoice of a month as it is now
    Draft {
        /// Organisation id
        org: OrgId,
        /// Month, such as 2026-11
        month: String,
    },
    /// Give the invoice of a month that is over its number
    Final {
        /// Organisation id
        org: OrgId,
        /// Month, such as 2026-11
        month: String,
    },
    /// Make the credit note for refunds since a final invoice
    Credit {
        /// Number of the invoice, such as INV-1
        number: String,
    },
    /// List final invoices
    List {
        /// Only those of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Show a final invoice
    Show {
        /// Number, such as INV-1
        number: String,
    },
    /// Write a final invoice as JSON, CSV, or HTML to print
    Export {
        /// Number, such as INV-1
        number: String,
        /// Format
        #[arg(long, value_enum, default_value_t = InvoiceFormat::Html)]
        format: InvoiceFormat,
        /// File to write [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// A format of an invoice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InvoiceFormat {
    Json,
    Csv,
    Html,
}
