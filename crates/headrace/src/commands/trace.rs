//! `headrace trace`: reads the stored traces beside a running or a stopped server.

use std::process::ExitCode;
use std::time::Duration;

use headrace_domain::{Clock, SystemClock, TraceRecord, UnixNanos};
use headrace_store::trace::SqliteTraceReader;
use headrace_trace::{TraceReader, WaterfallOptions, operator_json, table, waterfall};

use crate::cli::TraceArgs;
use crate::commands::{CommandError, data_dir};
use crate::{datadir, output};

/// Most calls in a list.
const MOST: usize = 10_000;
/// `--slowest` looks this far back.
const SLOWEST_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// A trace is written a moment after its answer: how often and how long one that is not there is looked for.
const PATIENCE: (u32, Duration) = (10, Duration::from_millis(50));

/// Draws a waterfall or a list.
pub(crate) fn run(args: &TraceArgs) -> ExitCode {
    match find(args) {
        Ok(text) => {
            output::say(&text);
            ExitCode::SUCCESS
        }
        Err(error) => error.exit(),
    }
}

fn find(args: &TraceArgs) -> Result<String, CommandError> {
    let path = datadir::trace_file(&data_dir(&args.at)?);
    if !path.exists() {
        let why = "name the server's data directory with --data-dir";
        return Err(CommandError::Other(format!("there are no traces at {}: {why}", path.display())));
    }
    let failed = |error: headrace_trace::TraceError| CommandError::Other(error.to_string());
    let reader = SqliteTraceReader::open(&path).map_err(failed)?;
    let (width, color) = output::terminal();
    let options = WaterfallOptions { width, color };
    let records = match (args.id, args.last, args.slowest) {
        (Some(id), ..) => {
            let record = patiently(|| reader.get(id)).map_err(failed)?;
            let missing = || {
                format!(
                    "there is no trace of {id}: calls are traced, GETs (models, requests) are not, refusals of callers without a good key are sampled, and traces are kept for a bounded time (traces.max_records, traces.max_age)"
                )
            };
            vec![record.ok_or_else(|| CommandError::Other(missing()))?]
        }
        (None, Some(count), _) => {
            let newest =
                patiently(|| reader.last(count.min(MOST)).map(|all| Some(all).filter(|all| !all.is_empty())));
            newest.map_err(failed)?.unwrap_or_default()
        }
        (None, None, count) => {
            let now = SystemClock::new().now();
            let ago = u64::try_from(SLOWEST_WITHIN.as_nanos()).unwrap_or(u64::MAX);
            let since = UnixNanos::new(now.get().saturating_sub(ago));
            reader.slowest(count.unwrap_or(1).min(MOST), since).map_err(failed)?
        }
    };
    Ok(show(&records, args.at.json, args.id.is_some() || args.last == Some(1), &options))
}

fn show(records: &[TraceRecord], json: bool, one: bool, options: &WaterfallOptions) -> String {
    match records {
        records if json => records.iter().map(|record| format!("{}\n", operator_json(record))).collect(),
        [record] if one => waterfall(record, options),
        records => table(records, options),
    }
}

fn patiently<T, E>(look: impl Fn() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
    for _ in 0..PATIENCE.0 {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        std::thread::sleep(PATIENCE.1);
    }
    look()
}
