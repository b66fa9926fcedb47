//! `headrace trace`: reads the stored traces beside a running or a stopped server, and draws or explains them.

use std::process::ExitCode;
use std::time::Duration;

use headrace_domain::{Clock, RequestId, SystemClock, TraceRecord, UnixNanos};
use headrace_explain::{Explanation, Trial, diff, explain_beside, why_cost};
use headrace_store::trace::SqliteTraceReader;
use headrace_trace::{TraceError, TraceReader, WaterfallOptions, operator_json, table, waterfall};
use serde::Serialize;

use crate::cli::{TraceArgs, TraceCommand};
use crate::commands::{CommandError, counterfactual, data_dir};
use crate::{datadir, output};

/// Most calls in a list.
const MOST: usize = 10_000;
/// `--slowest` looks this far back.
const SLOWEST_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// A trace is written a moment after its answer: how often and how long one that is not there is looked for.
const PATIENCE: (u32, Duration) = (10, Duration::from_millis(50));

/// Draws a waterfall or a list, or says in words why.
pub(crate) fn run(args: &TraceArgs) -> ExitCode {
    match find(args) {
        Ok(text) => {
            output::say_drawn(&text);
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
    let reader = SqliteTraceReader::open(&path).map_err(failed)?;
    let (width, color) = output::terminal();
    let json = args.at.json;
    if let Some(TraceCommand::Diff { first, second }) = &args.command {
        let difference = diff(&one(&reader, *first)?, &one(&reader, *second)?);
        return Ok(told(&difference, json, || difference.text(width)));
    }
    let records = chosen(args, &reader)?;
    if args.explain || args.why_cost {
        let missing = || CommandError::Other("there is no call to explain: none is traced yet".to_owned());
        let record = records.first().ok_or_else(missing)?;
        return if args.why_cost {
            let cost = why_cost(record);
            Ok(told(&cost, json, || cost.text(width)))
        } else {
            explained(args, &reader, record, width)
        };
    }
    let options = WaterfallOptions { width, color };
    Ok(show(&records, json, args.id.is_some() || args.last == Some(1), &options))
}

/// What an explanation says, and what came of a lever where one is to be tried.
fn explained(
    args: &TraceArgs,
    reader: &SqliteTraceReader,
    record: &TraceRecord,
    width: usize,
) -> Result<String, CommandError> {
    let explanation = explain_beside(reader, record).map_err(failed)?;
    let Some(lever) = args.lever else {
        return Ok(told(&explanation, args.at.json, || explanation.text(width)));
    };
    let trial = counterfactual::run(&args.at, record, lever)?;
    let whole = Explained { explanation: &explanation, trial: &trial };
    Ok(told(&whole, args.at.json, || format!("{}\n{}", explanation.text(width), trial.text(width))))
}

/// An explanation and a lever that was tried, as one object.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    trial: &'a Trial,
}

fn chosen(args: &TraceArgs, reader: &SqliteTraceReader) -> Result<Vec<TraceRecord>, CommandError> {
    Ok(match (args.id, args.last, args.slowest) {
        (Some(id), ..) => vec![one(reader, id)?],
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
    })
}

fn one(reader: &SqliteTraceReader, id: RequestId) -> Result<TraceRecord, CommandError> {
    let record = patiently(|| reader.get(id)).map_err(failed)?;
    record.ok_or_else(|| {
        CommandError::Other(format!(
            "there is no trace of {id}: calls are traced, GETs (models, requests) are not, refusals of callers without a good key are sampled, and traces are kept for a bounded time (traces.max_records, traces.max_age)"
        ))
    })
}

fn failed(error: TraceError) -> CommandError {
    CommandError::Other(error.to_string())
}

fn told(what: &impl Serialize, json: bool, text: impl Fn() -> String) -> String {
    match serde_json::to_string_pretty(what) {
        Ok(told) if json => format!("{told}\n"),
        _ => text(),
    }
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
