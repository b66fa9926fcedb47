//! `headrace requests`: searches the stored traces for calls, beside a running or a stopped server. Gateways that share their
//! stores are searched together.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use headrace_admin::control;
use headrace_admin::{AdminCommand, AdminReply};
use headrace_domain::{Clock, SystemClock, TraceRecord};
use headrace_server::contents::search_contents;
use headrace_server::datadir::SecretFiles;
use headrace_server::other_gateways::{self, FleetReader, FleetSearch, OwnGateway};
use headrace_terminal::output;
use headrace_trace::{
    CallCursor, CallPage, CallQuery, ContentStore, TraceError, TraceReader, WaterfallOptions, table,
};
use headrace_wire::named_request;
use serde_json::Value;

use crate::arguments::requests::RequestsArgs;
use crate::commands::{CommandError, configuration, contents, print_with, stored_traces, time};

/// Searches and prints a page of calls.
pub(crate) fn run(args: &RequestsArgs) -> ExitCode {
    if let Some(command) = &args.command {
        return contents::requests(&args.at, command);
    }
    print_with(output::say_drawn, find(args))
}

fn find(args: &RequestsArgs) -> Result<String, CommandError> {
    let config = configuration(&args.at)?;
    let named = args.named(SystemClock::new().now()).map_err(CommandError::Other)?;
    if named.iter().any(|(name, _)| *name == "content") {
        stored_traces(&args.at)?;
        let filters = named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        contents::note_search(&args.at, filters)?;
    }
    let fleet = other_gateways::fleet(&config.data_dir, &SecretFiles::of(&config));
    let fleet = fleet.unwrap_or_else(|error| {
        output::note(&format!("other gateways are not searched: {error}"));
        None
    });
    match fleet {
        Some(fleet) => find_everywhere(args, &fleet, &config.data_dir),
        None => find_here(args),
    }
}

/// Searches the calls of one server.
fn find_here(args: &RequestsArgs) -> Result<String, CommandError> {
    let stored = stored_traces(&args.at)?;
    let query = args.query(SystemClock::new().now()).map_err(CommandError::Other)?;
    let reader = stored.traces().map_err(failed)?;
    let after = args.after.as_deref().map(parse).transpose().map_err(CommandError::Other)?;
    let limit = usize::from(args.limit);
    let contents = stored.contents();
    let mut page = page(reader.as_ref(), contents.as_ref(), &query, after, limit).map_err(failed)?;
    if page.unindexed > 0 && page.calls.len() < limit {
        output::note("indexing the traces that an older program wrote, once");
        stored.index_traces().map_err(failed)?;
        page = self::page(reader.as_ref(), contents.as_ref(), &query, after, limit).map_err(failed)?;
    }
    if args.at.json {
        return Ok(format!("{:#}\n", page.json()));
    }
    let records = page.calls.iter().map(|row| reader.get(row.id)).collect::<Result<Vec<_>, _>>();
    let records: Vec<TraceRecord> = records.map_err(failed)?.into_iter().flatten().collect();
    Ok(drawn(&records) + &afterwards(&page))
}

/// Searches the calls of all live gateways, and those in this directory.
fn find_everywhere(args: &RequestsArgs, fleet: &FleetReader, dir: &Path) -> Result<String, CommandError> {
    let now = SystemClock::new().now();
    let query = args.query(now).map_err(CommandError::Other)?;
    let named = args.named(now).map_err(CommandError::Other)?;
    let limit = usize::from(args.limit);
    // This gateway may not have answered a call yet.
    let stored = stored_traces(&args.at).ok();
    let reader = stored.as_ref().map(|stored| stored.traces()).transpose().map_err(failed)?;
    let contents = stored.as_ref().map(|stored| stored.contents());
    let mut own_page = |after: Option<&str>| match (&reader, &contents) {
        (Some(reader), Some(contents)) => {
            let after = after.map(parse).transpose()?;
            let page = page(reader.as_ref(), contents.as_ref(), &query, after, limit);
            Ok(page.map_err(|error| error.to_string())?.json())
        }
        _ => Ok(CallPage::default().json()),
    };
    let name = name_of_running(dir);
    let own = OwnGateway { name: name.clone(), page: &mut own_page };
    let search = FleetSearch { named, cursor: args.after.clone(), limit };
    let found = fleet.search(&search, own).map_err(CommandError::Other)?;
    if args.at.json {
        return Ok(format!("{found:#}\n"));
    }
    let rows = found.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (records, elsewhere) = records_of(rows, reader.as_ref(), fleet, name.as_deref())?;
    let mut text = drawn(&records);
    for (gateway, count) in elsewhere {
        text += &format!("{count} of these calls ran on gateway {gateway}\n");
    }
    for missing in found.get("missing_gateways").and_then(Value::as_array).into_iter().flatten() {
        let word = |field: &str| missing.get(field).and_then(Value::as_str).unwrap_or_default();
        text += &format!("gateway {} did not answer: {}\n", word("gateway"), word("why"));
    }
    if let Some(next) = found.get("next").and_then(Value::as_str) {
        text += &format!("older calls: --after {next}\n");
    }
    Ok(text)
}

/// The records of rows in order, as far as they can be read, and the number of calls of each other gateway.
fn records_of(
    rows: &[Value],
    reader: Option<&Arc<dyn TraceReader>>,
    fleet: &FleetReader,
    own: Option<&str>,
) -> Result<(Vec<TraceRecord>, BTreeMap<String, usize>), CommandError> {
    let mut records: Vec<Option<TraceRecord>> = Vec::with_capacity(rows.len());
    let (mut places, mut asked, mut elsewhere) = (Vec::new(), Vec::new(), BTreeMap::new());
    for row in rows {
        let word = |field: &str| row.get(field).and_then(Value::as_str).unwrap_or_default();
        let id = named_request(word("id"));
        let here = match (reader, id) {
            (Some(reader), Some(id)) => reader.get(id).map_err(failed)?,
            _ => None,
        };
        if here.is_none() && own != Some(word("gateway")) {
            *elsewhere.entry(word("gateway").to_owned()).or_default() += 1;
            places.push(records.len());
            asked.push((word("id").to_owned(), word("gateway").to_owned()));
        }
        records.push(here);
    }
    let found =
        if asked.is_empty() { Vec::new() } else { fleet.records(&asked).map_err(CommandError::Other)? };
    for (place, record) in places.into_iter().zip(found) {
        if let Some(slot) = records.get_mut(place) {
            *slot = record;
        }
    }
    Ok((records.into_iter().flatten().collect(), elsewhere))
}

/// The name of the gateway that runs with a data directory. `None` if none does.
pub(super) fn name_of_running(dir: &Path) -> Option<String> {
    let Ok(AdminReply::Status(status)) = control::call(dir, &AdminCommand::Status) else { return None };
    status.gateways.into_iter().find(|gateway| gateway.is_this).map(|gateway| gateway.name)
}

/// Searches until the page is full: one search covers a bounded number of calls.
fn page(
    reader: &dyn TraceReader,
    contents: &dyn ContentStore,
    query: &CallQuery,
    after: Option<CallCursor>,
    limit: usize,
) -> Result<CallPage, TraceError> {
    let mut page = search(reader, contents, query, after, limit)?;
    while let Some(next) = page.next.filter(|_| page.calls.len() < limit) {
        let more = search(reader, contents, query, Some(next), limit - page.calls.len())?;
        page.calls.extend(more.calls);
        (page.next, page.searched_to, page.unindexed) = (more.next, more.searched_to, more.unindexed);
    }
    Ok(page)
}

/// Searches the traces, or the contents if the query has a text in them.
fn search(
    reader: &dyn TraceReader,
    contents: &dyn ContentStore,
    query: &CallQuery,
    after: Option<CallCursor>,
    limit: usize,
) -> Result<CallPage, TraceError> {
    match query.content {
        Some(_) => search_contents(contents, reader, query, after, limit),
        None => reader.search(query, after, limit),
    }
}

fn parse(cursor: &str) -> Result<CallCursor, String> {
    cursor.parse().map_err(|error| format!("--after: {error}"))
}

fn failed(error: TraceError) -> CommandError {
    CommandError::Other(error.to_string())
}

fn drawn(records: &[TraceRecord]) -> String {
    let (width, color) = output::terminal();
    table(records, &WaterfallOptions { width, color })
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
