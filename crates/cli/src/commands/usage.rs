//! `headrace usage` and `headrace statement`: the ledger's charges, beside a running or a stopped server.

use std::process::ExitCode;
use std::sync::Arc;

use headrace_domain::{Clock, SystemClock};
use headrace_server::datadir::{self, SecretFiles};
use headrace_server::other_gateways::{self, PeerUsage};
use headrace_store::StoreName;
use headrace_terminal::output;
use headrace_trace::{Month, TraceError, UsageQuery, UsageReader, UsageReport};
use serde_json::json;

use crate::arguments::ServerArgs;
use crate::arguments::usage::{StatementArgs, UsageArgs};
use crate::commands::requests::name_of_running;
use crate::commands::{CommandError, configuration, data_dir, print, recent_calls};

/// Prints calls, tokens and money.
pub(crate) fn usage(args: &UsageArgs) -> ExitCode {
    let report_text = || {
        let query = args.query(SystemClock::new().now()).map_err(CommandError::Other)?;
        let elsewhere = usage_elsewhere(args, &query)?;
        // This directory is read last, so that it has every charge that the others have.
        let own = open(&args.at)?.usage(&query).map_err(failed)?;
        let Some(PeerUsage { answers, mut missing }) = elsewhere else { return Ok(shown(args, &own)) };
        let (others, unread) = own.read_others(&answers);
        missing.extend(unread);
        let report = own.over_gateways(&others);
        if args.at.json {
            let mut usage = report.json();
            let missing = missing.iter().map(|(gateway, why)| json!({ "gateway": gateway, "why": why }));
            usage["missing_gateways"] = missing.collect();
            return Ok(format!("{usage:#}\n"));
        }
        for (gateway, why) in &missing {
            let calls = "its calls are listed without a key, user or tag";
            output::note(&format!("gateway {gateway} did not answer: {why}: {calls}"));
        }
        Ok(shown(args, &report))
    };
    print(report_text())
}

fn shown(args: &UsageArgs, report: &UsageReport) -> String {
    match (args.at.json, args.csv) {
        (true, _) => format!("{:#}\n", report.json()),
        (_, true) => report.csv(),
        _ => report.table(),
    }
}

/// The usage of the other gateways that share the stores. `None` if this directory has its stores for itself.
fn usage_elsewhere(args: &UsageArgs, query: &UsageQuery) -> Result<Option<PeerUsage>, CommandError> {
    let config = configuration(&args.at)?;
    let fleet = match other_gateways::fleet(&config.data_dir, &SecretFiles::of(&config)) {
        Ok(Some(fleet)) => fleet,
        Ok(None) => return Ok(None),
        Err(error) => return Ok(Some(unasked(error.to_string()))),
    };
    let own = name_of_running(&config.data_dir);
    Ok(Some(fleet.usage(&UsageArgs::named(query), own.as_deref()).unwrap_or_else(unasked)))
}

fn unasked(why: String) -> PeerUsage {
    PeerUsage { answers: Vec::new(), missing: vec![("all others".to_owned(), why)] }
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
