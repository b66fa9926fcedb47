//! `headrace trace`: draws or explains the stored traces, beside a running or a stopped server.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::iter;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use headrace_config::ServerSettings;
use headrace_domain::{Clock, RequestId, SystemClock, TraceRecord, UnixNanos};
use headrace_explain::{Explanation, Trial, diff, explain_beside, why_cost};
use headrace_server::datadir::SecretFiles;
use headrace_server::other_gateways::{self, GatewaySearch};
use headrace_terminal::output;
use headrace_trace::{
    TraceError, TraceReader, WaterfallOptions, operator_json, other_names, slowest_table, table, trace_name,
    waterfall,
};
use serde::Serialize;

use crate::arguments::{NamedCall, ServerArgs, TraceArgs, TraceCommand};
use crate::commands::{CommandError, configuration, counterfactual, recent_calls, traces};

/// Maximum number of calls in a list.
const MOST: usize = 10_000;
/// Maximum number of calls that are requested from a running server's memory.
const MOST_IN_MEMORY: usize = 1_000;
/// The period that `--slowest` covers.
const SLOWEST_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Number and interval of attempts to find a trace. It is stored a moment after its answer.
const PATIENCE: (u32, Duration) = (10, Duration::from_millis(50));

/// Draws a waterfall or a list, or prints an explanation.
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
    let traces = TraceSource::open(&args.at)?;
    let (width, color) = output::terminal();
    let json = args.at.json;
    if let Some(TraceCommand::Diff { first, second }) = &args.command {
        let difference = diff(&traces.one(first)?, &traces.one(second)?);
        return Ok(format_output(&difference, json, || difference.text(width)));
    }
    let records = traces.chosen(args)?;
    if args.explain || args.why_cost {
        let missing = || CommandError::Other("there is no call to explain: none is traced yet".to_owned());
        let record = records.first().ok_or_else(missing)?;
        return if args.why_cost {
            let cost = why_cost(record);
            Ok(format_output(&cost, json, || cost.text(width)))
        } else {
            explained(args, traces.reader.as_ref(), record, width)
        };
    }
    let options = WaterfallOptions { width, color };
    Ok(show(&records, args, &options))
}

/// Returns the explanation of a call, and the result of a trial if a lever is given.
fn explained(
    args: &TraceArgs,
    reader: &dyn TraceReader,
    record: &TraceRecord,
    width: usize,
) -> Result<String, CommandError> {
    let explanation = explain_beside(reader, record).map_err(failed)?;
    let Some(lever) = args.lever else {
        return Ok(format_output(&explanation, args.at.json, || explanation.text(width)));
    };
    let trial = counterfactual::run(&args.at, record, lever)?;
    let whole = ExplainedTrial { explanation: &explanation, trial: &trial };
    Ok(format_output(&whole, args.at.json, || format!("{}\n{}", explanation.text(width), trial.text(width))))
}

/// An explanation and the trial of a lever, as one object.
#[derive(Serialize)]
struct ExplainedTrial<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    trial: &'a Trial,
}

/// The stored traces, and the settings of the server that may be running.
pub(super) struct TraceSource {
    reader: Arc<dyn TraceReader>,
    config: ServerSettings,
}

impl TraceSource {
    pub(super) fn open(at: &ServerArgs) -> Result<Self, CommandError> {
        Ok(Self { reader: traces(at)?, config: configuration(at)? })
    }

    fn chosen(&self, args: &TraceArgs) -> Result<Vec<TraceRecord>, CommandError> {
        match (&args.id, args.last, args.slowest) {
            (Some(call), ..) => Ok(vec![self.one(call)?]),
            (None, Some(count), _) => self.newest(count.min(MOST)),
            (None, None, count) => {
                let now = SystemClock::new().now();
                let ago = u64::try_from(SLOWEST_WITHIN.as_nanos()).unwrap_or(u64::MAX);
                let since = UnixNanos::new(now.get().saturating_sub(ago));
                self.reader.slowest(count.unwrap_or(1).min(MOST), since).map_err(failed)
            }
        }
    }

    /// Returns the newest calls, without shadow copies and worker jobs. A running server also knows calls that it does
    /// not store, because it samples the refusals of clients without a valid key.
    fn newest(&self, count: usize) -> Result<Vec<TraceRecord>, CommandError> {
        let mut newest = recent_calls(&self.config.data_dir, count.min(MOST_IN_MEMORY));
        let known: HashSet<RequestId> = newest.iter().map(|record| record.request_id).collect();
        let mut wanted = count;
        loop {
            let stored = self.reader.last(wanted).map_err(failed)?;
            let all = stored.len() < wanted;
            let calls: Vec<TraceRecord> = stored.into_iter().filter(TraceRecord::is_call).collect();
            // Shadow copies and worker jobs may be among the newest records, so read more.
            if calls.len() >= count || all || wanted >= MOST {
                newest.extend(calls.into_iter().filter(|record| !known.contains(&record.request_id)));
                break;
            }
            wanted = wanted.saturating_mul(2).clamp(16, MOST);
        }
        newest.sort_by_key(|record| Reverse((record.started, record.request_id.bits())));
        newest.truncate(count);
        Ok(newest)
    }

    /// Finds a call, also at other gateways.
    pub(super) fn one(&self, call: &NamedCall) -> Result<TraceRecord, CommandError> {
        let found = patiently(|| self.in_store_or_memory(call)).map_err(failed)?;
        if let Some(found) = found {
            return Ok(found);
        }
        let elsewhere =
            other_gateways::find_call(&self.config.data_dir, &SecretFiles::of(&self.config), &call.name);
        let elsewhere = elsewhere.unwrap_or_else(|error| GatewaySearch {
            silent: Some(error.to_string()),
            ..GatewaySearch::default()
        });
        if let Some(silent) = &elsewhere.silent {
            output::note(&format!("gateways that did not answer: {silent}"));
        }
        if let Some((_, gateway)) = &elsewhere.found {
            output::note(&format!("this call ran on gateway {gateway}"));
        }
        elsewhere.found.map(|(record, _)| record).ok_or_else(|| {
            CommandError::Other(format!(
                "there is no trace of {}: calls are traced, GETs (models, requests) are not, refusals of callers without a good key are sampled, and traces are kept for a bounded time (traces.max_records, traces.max_age)\n  try: headrace trace --last 20",
                call.name
            ))
        })
    }

    /// Returns the newest record of a call by its own id, by the id of its upstream's answer, or by its client's trace
    /// id.
    fn in_store_or_memory(&self, call: &NamedCall) -> Result<Option<TraceRecord>, TraceError> {
        if let Some(stored) = call.id.map(|id| self.reader.get(id)).transpose()?.flatten() {
            return Ok(Some(stored));
        }
        // A call here that serves one of another server has that call's digits as its trace id, and so has a worker job.
        let digits = call.id.map(trace_name).filter(|digits| *digits != call.name);
        let names = || iter::once(call.name.as_str()).chain(digits.as_deref());
        for name in names() {
            if let Some(stored) = self.reader.named(name)?.into_iter().next() {
                return Ok(Some(stored));
            }
        }
        let in_memory = recent_calls(&self.config.data_dir, MOST_IN_MEMORY);
        let is_meant = |record: &TraceRecord| {
            Some(record.request_id) == call.id
                || other_names(record).any(|other| names().any(|name| other == name))
        };
        Ok(in_memory.into_iter().find(is_meant))
    }
}

fn failed(error: TraceError) -> CommandError {
    CommandError::Other(error.to_string())
}

fn format_output(what: &impl Serialize, json: bool, text: impl Fn() -> String) -> String {
    match serde_json::to_string_pretty(what) {
        Ok(told) if json => format!("{told}\n"),
        _ => text(),
    }
}

fn show(records: &[TraceRecord], args: &TraceArgs, options: &WaterfallOptions) -> String {
    match records {
        records if args.at.json => {
            records.iter().map(|record| format!("{}\n", operator_json(record))).collect()
        }
        [record] if args.id.is_some() || args.last == Some(1) => waterfall(record, options),
        records if args.slowest.is_some() => slowest_table(records, options),
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
