//! A trace record as one OTLP log record. Must not know the receiver.

use headrace_domain::{CallOutcome, TraceRecord};
use headrace_trace::TraceContext;

use crate::attributes::{of_call, outcome, span_name};
use crate::proto::{AnyValue, LogRecord, SeverityNumber, Value};

/// The name of the event.
const EVENT: &str = "headrace.call";

/// The log record of a finished call. `now` is in nanoseconds since 1970.
pub(crate) fn line(record: &TraceRecord, now: u64) -> LogRecord {
    let severity = match &record.outcome {
        CallOutcome::Completed { .. } | CallOutcome::Cancelled { .. } => SeverityNumber::Info,
        CallOutcome::Refused(refusal) if refusal.status < 500 => SeverityNumber::Info,
        CallOutcome::Refused(_) => SeverityNumber::Warn,
        CallOutcome::Failed { .. } => SeverityNumber::Error,
    };
    let said = format!("{}: {}", span_name(record, record.model_served.as_deref()), outcome(record));
    let context = TraceContext::of(record);
    LogRecord {
        time_unix_nano: record.started.get().saturating_add(record.duration_ns),
        severity_number: severity.into(),
        severity_text: severity.as_str_name().trim_start_matches("SEVERITY_NUMBER_").to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(said)) }),
        attributes: of_call(record),
        trace_id: context.trace.to_be_bytes().to_vec(),
        span_id: context.span.to_be_bytes().to_vec(),
        observed_time_unix_nano: now,
        event_name: EVENT.to_owned(),
        ..LogRecord::default()
    }
}
