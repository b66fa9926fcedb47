//! `headrace margin`: the revenue of calls and the charges of upstreams, by the stored traces, beside a running or a
//! stopped server.

use std::process::ExitCode;

use headrace_domain::{Clock, SystemClock, UnixNanos};
use headrace_trace::MarginReport;

use crate::arguments::margin::MarginArgs;
use crate::commands::{CommandError, print, stored_traces, time};

/// Computes and prints the margin.
pub(crate) fn run(args: &MarginArgs) -> ExitCode {
    print(sum(args))
}

fn sum(args: &MarginArgs) -> Result<String, CommandError> {
    let stored = stored_traces(&args.at)?;
    let now = SystemClock::new().now();
    let since = args.since.map_or(UnixNanos::new(0), |when| when.at(now));
    // A call that begins now has not ended, and has no trace.
    let until = args.until.map_or(now, |when| when.at(now));
    if since >= until {
        return Err(CommandError::Other("--since must be before --until".to_owned()));
    }
    let mut margin = MarginReport::new(args.by());
    let mut first = None;
    let mut add = |record: &headrace_domain::TraceRecord| {
        first = Some(first.map_or(record.started, |first: UnixNanos| first.min(record.started)));
        margin.add(record);
    };
    let failed = |error: headrace_trace::TraceError| CommandError::Other(error.to_string());
    stored.traces().map_err(failed)?.each(since, until, &mut add).map_err(failed)?;
    if args.at.json {
        return Ok(format!("{:#}\n", margin.json()));
    }
    let from = first.map(|first| format!("calls since {}, UTC\n", time(Some(first)))).unwrap_or_default();
    Ok(format!("{from}{}", margin.table()))
}
