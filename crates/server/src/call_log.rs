//! One log line per call and refusal, written when it is over. Contains no text of prompts or answers, nor upstream
//! messages about them. Must not know where lines go.

use headrace_domain::{CallOutcome, TraceRecord};
use headrace_trace::{RecordObserver, SharedRecord};

/// The target of these lines in the log filter.
pub(crate) const TARGET: &str = "headrace_calls";
/// A microsecond in nanoseconds.
const MICRO: u64 = 1_000;

/// Logs each call that ends.
pub(crate) struct CallLog;

impl RecordObserver for CallLog {
    fn seen(&self, record: &SharedRecord) {
        // The gateway that sent a worker job logs its call.
        if record.worker_job.is_some() {
            return;
        }
        match &record.outcome {
            CallOutcome::Failed { stage, .. } => {
                if tracing::enabled!(target: TARGET, tracing::Level::WARN) {
                    let failure = record.failure();
                    let status = failure.as_ref().map_or(500, |failure| failure.status);
                    let code = failure.as_ref().map(|failure| failure.code.as_str());
                    line(record, "failed", status, code, Some(stage.name()));
                }
            }
            _ if !tracing::enabled!(target: TARGET, tracing::Level::INFO) => {}
            CallOutcome::Completed { .. } => line(record, "completed", 200, None, None),
            CallOutcome::Cancelled { .. } => line(record, "cancelled", 499, None, None),
            CallOutcome::Refused(refusal) => {
                line(record, "refused", refusal.status, Some(&refusal.code), Some(refusal.stage.name()));
            }
        }
    }
}

fn line(record: &TraceRecord, outcome: &str, status: u16, code: Option<&str>, stage: Option<&str>) {
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                target: TARGET,
                request_id = %record.request_id,
                trace_id = record.trace_id.as_deref(),
                outcome,
                status,
                code,
                stage,
                endpoint = record.endpoint.map(|endpoint| endpoint.name()),
                model = record.model_served.as_deref(),
                // The caller's own spelling, which may contain anything.
                model_asked = record.model_asked.as_deref().filter(|_| record.model_served.is_none()).map(tracing::field::debug),
                org = record.org.as_ref().map(tracing::field::display),
                project = record.project.as_ref().map(tracing::field::display),
                key = record.key.as_ref().map(tracing::field::display),
                upstream = record.upstream.as_deref(),
                stream = record.stream,
                attempts = record.attempts.len(),
                duration_us = record.duration_ns / MICRO,
                server_us = record.server_ns() / MICRO,
                first_token_us = record.time_to_first_token_ns().map(|nanos| nanos / MICRO),
                input_tokens = record.usage.prompt_tokens(),
                cached_tokens = record.usage.cached_input,
                output_tokens = record.usage.completion_tokens(),
                cost_nano_dollars = record.cost.get(),
                loss_nano_dollars = record.loss.get(),
                "call"
            )
        };
    }
    match &record.outcome {
        CallOutcome::Failed { .. } => log!(warn),
        _ => log!(info),
    }
}
