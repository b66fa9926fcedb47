//! A trace record as spans. The span of the call or worker job is a child of its caller's span, and its stages and
//! attempts are its children. An attempt that follows a failed one links to it. Must not know the receiver.

use headrace_domain::{Attempt, AttemptOutcome, CallOutcome, StageSpan, TraceRecord};
use headrace_trace::TraceContext;

use crate::attributes::{count, error_type, flag, of_call, operation_of, span_name, text};
use crate::proto::{Event, Link, Span, SpanFlags, SpanKind, Status, StatusCode};

/// The `sampled` flag of W3C Trace Context.
const RECORDED: u32 = 1;
/// Flag: it is known whether the parent span belongs to another process.
const REMOTE_KNOWN: u32 = SpanFlags::ContextHasIsRemoteMask as u32;
/// Flag: the parent span belongs to another process.
const REMOTE: u32 = SpanFlags::ContextIsRemoteMask as u32;

/// All spans of a call. The call's own span comes first.
pub(crate) fn spans(record: &TraceRecord) -> Vec<Span> {
    let own = TraceContext::of(record);
    let mut spans = vec![root(record, own)];
    let stages = record.stages.iter().enumerate().filter(|(_, span)| span.inside.is_none());
    spans.extend(stages.enumerate().map(|(number, (at, span))| {
        let behind = record.stages.get(at.saturating_add(1)..).unwrap_or_default();
        let inside = behind.iter().take_while(|span| span.inside.is_some());
        stage(record, own, number, span, inside)
    }));
    spans.extend(record.attempts.iter().enumerate().map(|(at, attempt)| {
        let before = record.attempts.get(..at).unwrap_or_default();
        // A hedge, which runs beside a slow attempt, follows no failed one.
        let retried =
            before.iter().rposition(|earlier| earlier.prompt == attempt.prompt && came_to_nothing(earlier));
        self::attempt(record, own, at, attempt, retried)
    }));
    spans
}

const fn came_to_nothing(attempt: &Attempt) -> bool {
    matches!(attempt.outcome, AttemptOutcome::Refused { .. } | AttemptOutcome::Failed { .. })
}

fn ids(context: TraceContext) -> (Vec<u8>, Vec<u8>) {
    (context.trace.to_be_bytes().to_vec(), context.span.to_be_bytes().to_vec())
}

fn root(record: &TraceRecord, own: TraceContext) -> Span {
    let (trace_id, span_id) = ids(own);
    let start = record.started.get();
    let parent = record.parent_span_id.as_deref().and_then(|text| u64::from_str_radix(text, 16).ok());
    let remote = if parent.is_some() { REMOTE | REMOTE_KNOWN } else { 0 };
    let mut attributes = of_call(record);
    if record.endpoint.is_some() || record.worker_job.is_some() {
        attributes.push(text("http.request.method", "POST"));
    }
    attributes
        .extend(record.worker_job.iter().map(|job| text("headrace.worker_job.call", job.call.to_string())));
    attributes.extend(record.shadow_of.iter().map(|of| text("headrace.shadow_of", of.call.to_string())));
    if matches!(record.outcome, CallOutcome::Completed { .. }) {
        attributes.push(count("http.response.status_code", 200));
    }
    let first = record.first_token_ns.map(|nanos| Event {
        time_unix_nano: start.saturating_add(nanos),
        name: "headrace.first_token".to_owned(),
        ..Event::default()
    });
    Span {
        trace_id,
        span_id,
        parent_span_id: parent.map(|span| span.to_be_bytes().to_vec()).unwrap_or_default(),
        name: span_name(record, record.model_served.as_deref()),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(record.duration_ns),
        attributes,
        events: first.into_iter().collect(),
        status: status(record),
        flags: RECORDED | remote,
        ..Span::default()
    }
}

/// A server span has an error status only for failures of this server or an upstream. A caller's mistake or
/// disconnection is not an error.
fn status(record: &TraceRecord) -> Option<Status> {
    let is_error = match &record.outcome {
        CallOutcome::Failed { .. } => true,
        CallOutcome::Refused(refusal) => refusal.status >= 500,
        CallOutcome::Completed { .. } | CallOutcome::Cancelled { .. } => false,
    };
    is_error
        .then(|| Status { message: error_type(record).unwrap_or_default(), code: StatusCode::Error.into() })
}

fn stage<'s>(
    record: &TraceRecord,
    own: TraceContext,
    number: usize,
    span: &StageSpan,
    inside: impl Iterator<Item = &'s StageSpan>,
) -> Span {
    let (trace_id, span_id) = ids(own.stage(number));
    let start = record.started.get().saturating_add(span.start_ns);
    let mut attributes = vec![text("headrace.stage", span.stage.name())];
    attributes
        .extend(inside.map(|share| count(&format!("headrace.inside.{}_ns", share.stage), share.duration_ns)));
    Span {
        trace_id,
        span_id,
        parent_span_id: own.span.to_be_bytes().to_vec(),
        name: span.stage.name().to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(span.duration_ns),
        attributes,
        flags: RECORDED | REMOTE_KNOWN,
        ..Span::default()
    }
}

fn attempt(
    record: &TraceRecord,
    own: TraceContext,
    at: usize,
    attempt: &Attempt,
    retried: Option<usize>,
) -> Span {
    let (trace_id, span_id) = ids(own.attempt(at));
    let start = record.started.get().saturating_add(attempt.start_ns);
    let model = attempt.model.as_deref().or(record.model_served.as_deref());
    let code = match &attempt.outcome {
        AttemptOutcome::Refused { code, .. } | AttemptOutcome::Failed { code, .. } => Some(code.clone()),
        AttemptOutcome::Answered | AttemptOutcome::Outrun | AttemptOutcome::CutShort => None,
    };
    let mut attributes = vec![
        text("gen_ai.operation.name", operation_of(record)),
        text("gen_ai.provider.name", crate::attributes::provider(record)),
        text("headrace.worker", attempt.worker.as_ref()),
        text("headrace.attempt.outcome", attempt.outcome.name()),
        count("headrace.attempt.number", u64::try_from(at).unwrap_or(u64::MAX)),
        count("headrace.prompt", u64::from(attempt.prompt)),
        flag("headrace.attempt.retry", retried.is_some()),
    ];
    attributes.extend(model.map(|model| text("gen_ai.request.model", model)));
    attributes.extend(code.iter().map(|code| text("error.type", code.clone())));
    let link = retried.map(|earlier| {
        let (trace_id, span_id) = ids(own.attempt(earlier));
        Link { trace_id, span_id, attributes: vec![text("headrace.link", "retry_of")], ..Link::default() }
    });
    Span {
        trace_id,
        span_id,
        parent_span_id: own.span.to_be_bytes().to_vec(),
        name: span_name(record, model),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: start.saturating_add(attempt.duration_ns),
        attributes,
        links: link.into_iter().collect(),
        status: code.map(|code| Status { message: code, code: StatusCode::Error.into() }),
        flags: RECORDED | REMOTE_KNOWN,
        ..Span::default()
    }
}
