//! The trace record of one job. It is filled while the job runs and handed over once, when the job ends. A job has no
//! caller and no price at the worker. Must not know who keeps records.

use std::sync::Arc;

use headrace_domain::{
    CallOutcome, Clock, EngineRun, EngineSeen, EngineTrace, KeyId, ReaderPauses, RequestId, Stage, Timeline,
    TraceRecord, TraceSink, UnixNanos, WORKER_JOB_KEY, WorkerJob, parse_traceparent,
};
use headrace_engine_api::{Capabilities, JobError, JobEvent, JobReport};

/// The cancellation reason of a job that its gateway dropped.
pub(crate) const CANCELLED_BY_GATEWAY: &str = "the gateway cancelled the job";
/// The cancellation reason of a job whose events the gateway did not read.
pub(crate) const UNREAD_TOO_LONG: &str = "the gateway read nothing of the job for too long";

/// The stages of a request before an engine has its job, and the trace that it belongs to.
#[derive(Debug)]
pub(crate) struct JobArrival {
    started: UnixNanos,
    start_ns: u64,
    /// The W3C trace id and the gateway's span id. `None` if the gateway sent no valid header.
    parent: Option<(String, String)>,
    line: Timeline,
    form_ns: u64,
}

/// The record of a job that an engine has accepted.
pub(crate) struct JobRecord {
    record: Box<TraceRecord>,
    line: Timeline,
    clock: Arc<dyn Clock>,
    traces: Arc<dyn TraceSink>,
    start_ns: u64,
    submitted_ns: u64,
    /// The engine has begun the job.
    has_begun: bool,
    /// Finish reasons by choice.
    finish: Vec<(u32, &'static str)>,
}

impl JobArrival {
    /// Creates the stages of a request whose head was complete at `started`, and at `start_ns` of the clock's monotonic
    /// time. `traceparent` is the gateway's header. An invalid one counts as none.
    pub(crate) fn new(started: UnixNanos, start_ns: u64, traceparent: Option<&str>) -> Self {
        let parent = traceparent.and_then(parse_traceparent);
        let parent = parent.map(|(trace, span)| (trace.to_owned(), span.to_owned()));
        Self { started, start_ns, parent, line: Timeline::new(), form_ns: 0 }
    }

    /// Ends `stage` at `now_ns` of the clock's monotonic time. It began when the previous stage ended.
    pub(crate) fn mark(&mut self, stage: Stage, now_ns: u64) {
        self.line.mark(stage, now_ns.saturating_sub(self.start_ns));
    }

    /// Ends the stage that compiled the job's response format.
    pub(crate) fn mark_form(&mut self, now_ns: u64) {
        let before_ns = self.line.end_ns();
        self.mark(Stage::Render, now_ns);
        self.form_ns = self.line.end_ns().saturating_sub(before_ns);
    }
}

impl JobRecord {
    /// Creates the record of a job that an engine has just accepted. `call` is the gateway's call.
    pub(crate) fn new(
        arrival: JobArrival,
        call: RequestId,
        engine: &Capabilities,
        clock: Arc<dyn Clock>,
        traces: Arc<dyn TraceSink>,
    ) -> Self {
        let JobArrival { started, start_ns, parent, line, form_ns } = arrival;
        let (trace_id, parent_span_id) = parent.unzip();
        let outcome = CallOutcome::Cancelled { why: CANCELLED_BY_GATEWAY.to_owned() };
        let record = TraceRecord {
            trace_id,
            parent_span_id,
            form_ns,
            key: KeyId::new(WORKER_JOB_KEY).ok(),
            model_asked: Some(engine.model.clone()),
            model_served: Some(engine.model.clone()),
            numerics: Some(&engine.numerics).filter(|known| !known.is_empty()).cloned(),
            stream: true,
            worker_job: Some(Box::new(WorkerJob { call })),
            ..TraceRecord::new(RequestId::fresh(started), started, outcome)
        };
        let submitted_ns = line.end_ns();
        let (has_begun, finish) = (false, Vec::new());
        Self { record: Box::new(record), line, clock, traces, start_ns, submitted_ns, has_begun, finish }
    }

    fn elapsed_ns(&self) -> u64 {
        self.clock.monotonic_nanos().saturating_sub(self.start_ns)
    }

    /// Updates the record with an event. Reads the clock for the first tokens only.
    pub(crate) fn note(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Started { .. } => self.has_begun = true,
            JobEvent::Tokens { .. } if self.record.first_token_ns.is_none() => {
                self.record.first_token_ns = Some(self.elapsed_ns());
            }
            JobEvent::Finished { choice, reason } => self.finish.push((*choice, reason.name())),
            _ => {}
        }
    }

    /// Hands over the record of a job whose choices have all ended.
    pub(crate) fn completed(mut self, report: &JobReport) {
        self.finish.sort_by_key(|(choice, _)| *choice);
        let finish = self.finish.iter().map(|(_, reason)| (*reason).to_owned()).collect();
        self.end(CallOutcome::Completed { finish }, report);
    }

    /// Hands over the record of a job that was cancelled.
    pub(crate) fn cancelled(self, why: &str, report: &JobReport) {
        self.end(CallOutcome::Cancelled { why: why.to_owned() }, report);
    }

    /// Hands over the record of a job that its engine ended with an error.
    pub(crate) fn failed(self, error: &JobError, report: &JobReport) {
        let stage = self.stage();
        self.broke(stage, error.to_string(), report);
    }

    /// Hands over the record of a job whose engine ended without a last event.
    pub(crate) fn deserted(self) {
        let stage = self.stage();
        self.broke(stage, "the engine ended before the job did".to_owned(), &JobReport::default());
    }

    /// Hands over the record of a job that failed in `stage`.
    pub(crate) fn broke(self, stage: Stage, message: String, report: &JobReport) {
        self.end(CallOutcome::Failed { stage, message }, report);
    }

    /// The stage of the job, by its events so far.
    const fn stage(&self) -> Stage {
        match (self.record.first_token_ns, self.has_begun) {
            (Some(_), _) => Stage::Decode,
            (None, true) => Stage::Prefill,
            (None, false) => Stage::Queue,
        }
    }

    fn end(self, outcome: CallOutcome, report: &JobReport) {
        let until_ns = self.elapsed_ns();
        let Self { mut record, mut line, traces, submitted_ns, .. } = self;
        let EngineTrace { queue_ns, prefill_ns, decode_ns, paused_ns, .. } = report.engine;
        let run = EngineRun { submitted_ns, queue_ns, prefill_ns, decode_ns, paused_ns };
        let pauses = ReaderPauses::default();
        let seen = EngineSeen { first_token_ns: record.first_token_ns, until_ns, pauses: &pauses };
        line.engine(std::iter::once(run), &seen);
        record.usage = report.usage;
        record.engine = Some(&report.engine).filter(|engine| engine.steps > 0).cloned();
        record.duration_ns = line.end_ns();
        record.stages = line.into_spans();
        record.outcome = outcome;
        traces.record(record);
    }
}
