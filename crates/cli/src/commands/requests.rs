//! `headrace requests`: searches the stored traces for calls, beside a running or a stopped server.

use std::process::ExitCode;

use headrace_domain::{Clock, SystemClock, TraceRecord};
use headrace_terminal::output;
use headrace_trace::{CallPage, TraceError, WaterfallOptions, table};

use crate::arguments::requests::RequestsArgs;
use crate::commands::{CommandError, print_with, stored_traces, time};

/// Searches and prints a page of calls.
pub(crate) fn run(args: &RequestsArgs) -> ExitCode {
    print_with(output::say_drawn, find(args))
}

fn find(args: &RequestsArgs) -> Result<String, CommandError> {
    let stored = stored_traces(&args.at)?;
    let query = args.query(SystemClock::new().now()).map_err(CommandError::Other)?;
    let failed = |error: TraceError| CommandError::Other(error.to_string());
    let reader = stored.traces().map_err(failed)?;
    let limit = usize::from(args.limit);
    let mut page = reader.search(&query, args.after, limit).map_err(failed)?;
    if page.unindexed > 0 && page.calls.len() < limit {
        output::note("indexing the traces that an older program wrote, once");
        stored.index_traces().map_err(failed)?;
        page = reader.search(&query, args.after, limit).map_err(failed)?;
    }
    // One search covers a bounded number of calls, so continue until the page is full.
    while let Some(next) = page.next.filter(|_| page.calls.len() < limit) {
        let more = reader.search(&query, Some(next), limit - page.calls.len()).map_err(failed)?;
        page.calls.extend(more.calls);
        (page.next, page.searched_to, page.unindexed) = (more.next, more.searched_to, more.unindexed);
    }
    if args.at.json {
        return Ok(format!("{:#}\n", page.json()));
    }
    let records = page.calls.iter().map(|row| reader.get(row.id)).collect::<Result<Vec<_>, _>>();
    let records: Vec<TraceRecord> = records.map_err(failed)?.into_iter().flatten().collect();
    let (width, color) = output::terminal();
    Ok(table(&records, &WaterfallOptions { width, color }) + &afterwards(&page))
}

/// The lines after the page: how to get older calls, and how many calls are not indexed yet.
fn afterwards(page: &CallPage) -> String {
    let mut text = String::new();
    if let (Some(next), Some(last)) = (page.next, page.calls.last()) {
        text += &format!("older than {}: --after {next}\n", time(Some(last.started)));
    }
    if page.unindexed > 0 {
        text += &format!("{} older calls are still being indexed\n", page.unindexed);
    }
    text
}
