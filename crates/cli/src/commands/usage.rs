//! `headrace usage` and `headrace statement`: the ledger's charges, beside a running or a stopped server.

use std::process::ExitCode;
use std::sync::Arc;

use headrace_domain::{Clock, SystemClock};
use headrace_server::datadir;
use headrace_store::StoreName;
use headrace_trace::{Month, TraceError, UsageReader};

use crate::arguments::ServerArgs;
use crate::arguments::usage::{StatementArgs, UsageArgs};
use crate::commands::{CommandError, data_dir, print, recent_calls};

/// Prints calls, tokens and money.
pub(crate) fn usage(args: &UsageArgs) -> ExitCode {
    let report_text = || {
        let query = args.query(SystemClock::new().now()).map_err(CommandError::Other)?;
        let report = open(&args.at)?.usage(&query).map_err(failed)?;
        Ok(match (args.at.json, args.csv) {
            (true, _) => format!("{:#}\n", report.json()),
            (_, true) => report.csv(),
            _ => report.table(),
        })
    };
    print(report_text())
}

/// Prints a project's statement for a month.
pub(crate) fn statement(args: &StatementArgs) -> ExitCode {
    let report_text = || {
        let month = args.month.unwrap_or_else(|| Month::of(SystemClock::new().now()));
        let found = open(&args.at)?.statement(&args.project, month).map_err(failed)?;
        let missing =
            || format!("the ledger knows no project `{}`\n  try: headrace projects list", args.project);
        let statement = found.ok_or_else(|| CommandError::Other(missing()))?;
        Ok(match (args.at.json, args.csv) {
            (true, _) => format!("{:#}\n", statement.json()),
            (_, true) => statement.csv(),
            _ => statement.text(),
        })
    };
    print(report_text())
}

fn open(at: &ServerArgs) -> Result<Arc<dyn UsageReader>, CommandError> {
    let dir = data_dir(at)?;
    // Makes the server settle and store all ended calls before usage is read.
    recent_calls(&dir, 0);
    let stored = datadir::stored(&dir);
    let ledger = stored.place(StoreName::Ledger);
    if !ledger.exists() {
        let why = "name the server's data directory with --data-dir";
        return Err(CommandError::Other(format!("there is no ledger at {ledger}: {why}")));
    }
    stored.usage().map_err(failed)
}

fn failed(error: TraceError) -> CommandError {
    CommandError::Other(error.to_string())
}
