//! `headrace cache`: how much of the prompts came from prefix caches, by the stored traces, beside a running or a
//! stopped server.

use std::process::ExitCode;

use headrace_domain::{Clock, SystemClock};
use headrace_trace::TraceError;

use crate::arguments::cache::CacheArgs;
use crate::commands::{CommandError, print, traces};

/// Computes and prints the report.
pub(crate) fn run(args: &CacheArgs) -> ExitCode {
    let report_text = || {
        let failed = |error: TraceError| CommandError::Other(error.to_string());
        let query = args.query(SystemClock::new().now()).map_err(CommandError::Other)?;
        let report = traces(&args.at)?.cache(&query).map_err(failed)?;
        Ok(if args.at.json { format!("{:#}\n", report.json()) } else { report.table() })
    };
    print(report_text())
}
