//! Per-request state that every stage shares: id, dialect, clock and trace record.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headrace_call_api::CallerInfo;
use headrace_call_state::{Answer, AnsweredRequest, InFlightSlot, Rejection};
use headrace_catalog::ServedModel;
use headrace_domain::{
    CallOutcome, Clock, ContentPlace, ContentVerdict, Dialect, Endpoint, RecordPolicy, RequestId, Stage,
    Timeline, TraceRecord, UnixNanos, parse_traceparent,
};
use headrace_engine_api::PinGuard;
use headrace_identity::Principal;
use headrace_ledger::StoredAnswer;
use headrace_moderation::PlaceholderMap;
use headrace_resources::{BatchLine, SocketSession};
use headrace_rollout::{CallCanaries, RunningCopy, ShadowRole};

use crate::idempotent_request::IdempotentRequest;
use crate::judging::{JudgeNotes, LateVerdicts};
use crate::kept_request::KeptRequest;

/// State of one request. Stages call [`RequestContext::end_stage`] as they end, which times them back to back.
pub(crate) struct RequestContext {
    pub(crate) id: RequestId,
    pub(crate) dialect: Dialect,
    /// Headers by which the caller's dialect changes the meaning of its body.
    pub(crate) dialect_headers: Vec<(&'static str, String)>,
    pub(crate) record: Box<TraceRecord>,
    pub(crate) clock: Arc<dyn Clock>,
    /// How the request's time is divided among the stages so far.
    pub(crate) line: Timeline,
    /// Set if this request is a shadow copy or may be copied.
    pub(crate) shadow: Option<Box<ShadowRole>>,
    /// The batch request that this call runs, if it is one.
    pub(crate) batch: Option<Box<BatchLine>>,
    /// The idempotency key of the request, if it has one.
    pub(crate) idempotency: Option<Box<IdempotentRequest>>,
    /// State of the WebSocket session that the request came on, if it came on one.
    pub(crate) turns: Option<SocketSession>,
    /// The canary watches that this request counts towards, if any.
    pub(crate) canaries: Option<Box<CallCanaries>>,
    /// What is recorded of the request. The default until its caller is known.
    pub(crate) records: RecordPolicy,
    /// The body, if it is recorded.
    pub(crate) request: Option<Box<KeptRequest>>,
    /// The values that content rules replaced in the call and that its answer gets back. They are kept nowhere else.
    pub(crate) placeholders: Option<Arc<PlaceholderMap>>,
    /// Slot in the in-flight table. `None` if the table was full or the request is a shadow copy.
    pub(crate) slot: Option<InFlightSlot>,
    /// What the call holds in the caches of engines between its rounds. Dropping it releases that.
    pub(crate) held: Option<Box<PinGuard>>,
    start_ns: u64,
    late_verdicts: OnceLock<Arc<LateVerdicts>>,
}

/// The minimum needed to write a trace if the request panics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestStart {
    pub(crate) id: RequestId,
    pub(crate) dialect: Dialect,
    endpoint: Option<Endpoint>,
    started: UnixNanos,
    start_ns: u64,
}

impl RequestStart {
    /// Starts a request that arrives now, under a fresh id.
    pub(crate) fn of(endpoint: Endpoint, caller: &CallerInfo) -> Self {
        Self {
            id: RequestId::fresh(caller.started),
            dialect: endpoint.dialect(),
            endpoint: Some(endpoint),
            started: caller.started,
            start_ns: caller.started_mono_ns,
        }
    }

    /// Creates the state of the request.
    pub(crate) fn open(self, clock: Arc<dyn Clock>) -> RequestContext {
        let mut context = RequestContext::open_as(self.id, clock, self.started, self.start_ns, self.dialect);
        context.record.endpoint = self.endpoint;
        context
    }

    /// The trace record of a request whose state was lost in a panic. Calls nothing that could panic again, not even
    /// the clock.
    pub(crate) fn panicked(self, clock: Arc<dyn Clock>) -> Box<TraceRecord> {
        let message = "a panic inside; what was known of the call went with it".to_owned();
        let mut record = self.open(clock).record;
        record.outcome = CallOutcome::Failed { stage: Stage::Deliver, message };
        record
    }
}

impl RequestContext {
    pub(crate) fn open(
        clock: Arc<dyn Clock>,
        started: UnixNanos,
        started_mono_ns: u64,
        dialect: Dialect,
    ) -> Self {
        Self::open_as(RequestId::fresh(started), clock, started, started_mono_ns, dialect)
    }

    fn open_as(
        id: RequestId,
        clock: Arc<dyn Clock>,
        started: UnixNanos,
        started_mono_ns: u64,
        dialect: Dialect,
    ) -> Self {
        let outcome = CallOutcome::Cancelled { why: "the client went away before an answer".into() };
        let record = TraceRecord::new(id, started, outcome);
        Self {
            id,
            dialect,
            dialect_headers: Vec::new(),
            record: Box::new(record),
            clock,
            line: Timeline::new(),
            shadow: None,
            batch: None,
            idempotency: None,
            turns: None,
            canaries: None,
            records: RecordPolicy::default(),
            request: None,
            placeholders: None,
            slot: None,
            held: None,
            start_ns: started_mono_ns,
            late_verdicts: OnceLock::new(),
        }
    }

    /// Verdicts of judges that the call does not wait for.
    pub(crate) fn late_verdicts(&self) -> &Arc<LateVerdicts> {
        self.late_verdicts.get_or_init(Arc::default)
    }

    /// Writes what judges decided and were asked into the record. Later verdicts are logged.
    pub(crate) fn note_judges(&mut self) {
        let Some(late) = self.late_verdicts.get() else { return };
        let JudgeNotes { verdicts, uses } = late.close();
        let is_input = |verdict: &ContentVerdict| verdict.place == Some(ContentPlace::Input);
        let (input, output): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(is_input);
        self.record.input_verdicts.extend(input);
        self.record.output_verdicts.extend(output);
        self.record.judge_uses.extend(uses);
    }

    /// The shadow copy that this request is, if it is one.
    pub(crate) fn copy(&self) -> Option<&RunningCopy> {
        self.shadow.as_deref().and_then(ShadowRole::copy)
    }

    /// Seed for sampling if the client sent none. A shadow copy uses the original request's id.
    pub(crate) fn drawn_bits(&self) -> u128 {
        self.copy().map_or(self.id, RunningCopy::of).bits()
    }

    /// Monotonic time of the request's first byte, in nanoseconds.
    pub(crate) const fn started_mono_ns(&self) -> u64 {
        self.start_ns
    }

    /// The minimum needed to write a trace if the request panics.
    pub(crate) fn start(&self) -> RequestStart {
        RequestStart {
            id: self.id,
            dialect: self.dialect,
            endpoint: self.record.endpoint,
            started: self.record.started,
            start_ns: self.start_ns,
        }
    }

    /// Takes what the settlement keeps of the answer, for repeats of the request.
    pub(crate) fn take_answer(&mut self) -> Option<StoredAnswer> {
        self.idempotency.as_deref_mut()?.take_answer()
    }

    /// Whether the charge must be on the disk before the client has its whole answer: a batch records that its request ended,
    /// and the answer to a request with a key must never be another one after a crash.
    pub(crate) const fn needs_durable_charge(&self) -> bool {
        self.batch.is_some() || self.idempotency.is_some()
    }

    /// Names the caller, whose calls are recorded by `records`.
    pub(crate) fn is_of(&mut self, principal: &Principal, records: RecordPolicy) {
        self.records = records;
        self.record.org = Some(principal.org.clone());
        self.record.project = Some(principal.project.clone());
        self.record.key = Some(principal.key.clone());
        if records.level.has_labels() {
            self.record.token_user.clone_from(&principal.user);
        } else {
            self.record.client = None;
        }
    }

    /// Records the endpoint, and the caller's trace ids if they are well-formed.
    pub(crate) fn describe(&mut self, endpoint: Endpoint, traceparent: Option<&str>) {
        self.record.endpoint = Some(endpoint);
        if let Some((trace, span)) = traceparent.and_then(parse_traceparent) {
            self.record.trace_id = Some(trace.to_owned());
            self.record.parent_span_id = Some(span.to_owned());
        }
    }

    /// Records the model that serves the request from now on.
    pub(crate) fn served_by(&mut self, model: &ServedModel) {
        self.record.model_served = Some(model.name.to_string());
        if let Some(slot) = &self.slot {
            slot.is_for(&model.name);
        }
        self.record.numerics =
            Some(model.backend.numerics()).filter(|known| !known.is_empty()).map(str::to_owned);
    }

    /// The request's id as headers: `x-request-id`, and for Anthropic's dialect also `request-id`, which its SDKs
    /// read.
    pub(crate) fn id_headers(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        AnsweredRequest::from(self).id_headers()
    }

    /// Nanoseconds since the request's first byte.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.clock.monotonic_nanos().saturating_sub(self.start_ns)
    }

    /// Monotonic time in nanoseconds at which `after` has elapsed since the first byte.
    pub(crate) fn deadline_ns(&self, after: Duration) -> u64 {
        self.start_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Ends `stage`. It began when the previous stage ended.
    pub(crate) fn end_stage(&mut self, stage: Stage) {
        self.line.mark(stage, self.elapsed_ns());
        if let Some(slot) = &self.slot {
            slot.has_done(stage);
        }
    }

    /// Publishes the current stage to the in-flight table. Does not affect the timings.
    pub(crate) fn is_in(&self, stage: Stage) {
        if let Some(slot) = &self.slot {
            slot.is_in(stage);
        }
    }

    /// Publishes the number of answer tokens to the in-flight table.
    pub(crate) fn publish_token_count(&self, tokens: u64) {
        if let Some(slot) = &self.slot {
            slot.has_written(tokens);
        }
    }

    /// Copies the spans and the duration into the record, as far as stages have ended.
    pub(crate) fn note_times(&mut self) {
        self.record.stages = self.line.spans().to_vec();
        self.record.duration_ns = self.line.end_ns();
    }

    /// Writes the outcome and the times into the record. The request ended when its last stage did.
    pub(crate) fn seal(&mut self, outcome: CallOutcome) {
        self.note_judges();
        self.record.outcome = outcome;
        self.record.duration_ns = self.line.end_ns();
        self.record.stages = std::mem::take(&mut self.line).into_spans();
    }

    /// Ends the request: returns the answer to the caller and the trace record.
    pub(crate) fn refuse(mut self, rejection: &Rejection) -> (Answer, Box<TraceRecord>) {
        self.end_stage(rejection.stage);
        let answer = rejection.answer(&self);
        (answer, self.into_record(CallOutcome::Refused(rejection.traced())))
    }

    /// Finishes the request and returns its trace record.
    pub(crate) fn into_record(mut self, outcome: CallOutcome) -> Box<TraceRecord> {
        self.seal(outcome);
        self.record
    }
}

impl From<&RequestContext> for AnsweredRequest {
    fn from(context: &RequestContext) -> Self {
        Self { id: context.id, dialect: context.dialect }
    }
}
