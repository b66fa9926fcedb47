//! What travels with a request through every stage: its id, its dialect, its clock and its trace.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::Head;
use headrace_domain::{
    Clock, Dialect, Endpoint, NanoDollars, Outcome, PriceTier, RequestId, Stage, TRACE_VERSION, Timeline,
    TraceRecord, UnixNanos, Usage, UsageSource,
};
use headrace_identity::Principal;

use crate::batch_line::BatchLine;
use crate::board::Seat;
use crate::canary::Trial;
use crate::catalog::ServedModel;
use crate::objects::newest::Turns;
use crate::shadows::{Running, Shadow};

/// The request's file. Stages follow each other: each is timed by [`Dossier::mark`], from the last mark on.
pub(crate) struct Dossier {
    pub(crate) id: RequestId,
    pub(crate) dialect: Dialect,
    /// Headers by which the caller's dialect changes what its body means.
    pub(crate) dialect_headers: Vec<(&'static str, String)>,
    pub(crate) record: Box<TraceRecord>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where its time went so far.
    pub(crate) line: Timeline,
    /// What it has to do with copies of calls; mostly nothing.
    pub(crate) shadow: Option<Box<Shadow>>,
    /// Which request of a batch it is; mostly none.
    pub(crate) batch: Option<Box<BatchLine>>,
    /// What its connection of turns keeps; mostly it came on none.
    pub(crate) turns: Option<Turns>,
    /// What the model that takes it is watched for.
    pub(crate) trial: Option<Box<Trial>>,
    /// Where it is seen by whoever watches, if there was room.
    pub(crate) seat: Option<Seat>,
    start_ns: u64,
}

/// What is known of a request from its first moment: enough for a trace if a panic takes the rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stub {
    pub(crate) id: RequestId,
    pub(crate) dialect: Dialect,
    endpoint: Option<Endpoint>,
    started: UnixNanos,
    start_ns: u64,
}

impl Stub {
    /// Of a request that arrives now, under an id of its own.
    pub(crate) fn of(head: &Head) -> Self {
        Self {
            id: RequestId::fresh(head.started),
            dialect: head.endpoint.dialect(),
            endpoint: Some(head.endpoint),
            started: head.started,
            start_ns: head.started_mono_ns,
        }
    }

    /// Its file.
    pub(crate) fn open(self, clock: Arc<dyn Clock>) -> Dossier {
        let mut dossier = Dossier::open_as(self.id, clock, self.started, self.start_ns, self.dialect);
        dossier.record.endpoint = self.endpoint;
        dossier
    }

    /// The record of a request whose file a panic took. Reads nothing that could fail once more, not even the clock.
    pub(crate) fn panicked(self, clock: Arc<dyn Clock>) -> Box<TraceRecord> {
        let message = "a panic inside; what was known of the call went with it".to_owned();
        let mut record = self.open(clock).record;
        record.outcome = Outcome::Failed { stage: Stage::Deliver, message };
        record
    }
}

impl Dossier {
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
        let record = TraceRecord {
            version: TRACE_VERSION,
            request_id: id,
            trace_id: None,
            parent_span_id: None,
            started,
            duration_ns: 0,
            first_token_ns: None,
            after_ns: 0,
            form_ns: 0,
            org: None,
            project: None,
            key: None,
            user: None,
            endpoint: None,
            model_asked: None,
            model_served: None,
            numerics: None,
            stream: false,
            stages: Vec::new(),
            usage: Usage::default(),
            price_tier: PriceTier::Standard,
            usage_source: UsageSource::Counted,
            why_estimated: None,
            answer_notes: Vec::new(),
            upstream: None,
            upstream_model: None,
            upstream_id: None,
            attempts: Vec::new(),
            continued: Vec::new(),
            engine: None,
            held: NanoDollars::ZERO,
            cost: NanoDollars::ZERO,
            loss: NanoDollars::ZERO,
            paid: None,
            billed: None,
            connection: None,
            moderation: None,
            outcome: Outcome::Cancelled { why: "the client went away before an answer".into() },
            kept_answers: None,
            told_of_cache: None,
            failed_with: None,
            shadow_of: None,
        };
        Self {
            id,
            dialect,
            dialect_headers: Vec::new(),
            record: Box::new(record),
            clock,
            line: Timeline::new(),
            shadow: None,
            batch: None,
            turns: None,
            trial: None,
            seat: None,
            start_ns: started_mono_ns,
        }
    }

    /// The copy of a call that it is, if it is one.
    pub(crate) fn copy(&self) -> Option<&Running> {
        self.shadow.as_deref().and_then(Shadow::copy)
    }

    /// What its random numbers follow from, where its caller names no seed.
    pub(crate) fn drawn_bits(&self) -> u128 {
        self.copy().map_or(self.id, Running::of).bits()
    }

    /// When its first byte came, in nanoseconds of the clock's monotonic time.
    pub(crate) const fn started_mono_ns(&self) -> u64 {
        self.start_ns
    }

    /// What remains of it if a panic takes the rest.
    pub(crate) fn stub(&self) -> Stub {
        Stub {
            id: self.id,
            dialect: self.dialect,
            endpoint: self.record.endpoint,
            started: self.record.started,
            start_ns: self.start_ns,
        }
    }

    /// Names the caller.
    pub(crate) fn is_of(&mut self, principal: &Principal) {
        self.record.org = Some(principal.org.clone());
        self.record.project = Some(principal.project.clone());
        self.record.key = Some(principal.key.clone());
    }

    /// Names what was called, and takes the caller's trace ids where they are well-formed.
    pub(crate) fn describe(&mut self, endpoint: Endpoint, traceparent: Option<&str>) {
        self.record.endpoint = Some(endpoint);
        if let Some((trace, span)) = traceparent.and_then(parse_traceparent) {
            self.record.trace_id = Some(trace.to_owned());
            self.record.parent_span_id = Some(span.to_owned());
        }
    }

    /// Names the model that handles it from now on.
    pub(crate) fn served_by(&mut self, model: &ServedModel) {
        self.record.model_served = Some(model.name.to_string());
        if let Some(seat) = &self.seat {
            seat.is_for(&model.name);
        }
        self.record.numerics =
            Some(model.lane.numerics()).filter(|known| !known.is_empty()).map(str::to_owned);
    }

    /// The request's id as headers: `x-request-id`, and under the name that Anthropic's SDKs read.
    pub(crate) fn id_headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let own = (self.dialect == Dialect::Anthropic).then_some("request-id");
        let id = self.id;
        ["x-request-id"].into_iter().chain(own).map(move |name| (name, id.to_string()))
    }

    /// Nanoseconds since the request's first byte.
    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.clock.monotonic_nanos().saturating_sub(self.start_ns)
    }

    /// When so much time has passed since the request's first byte, in nanoseconds of the clock's monotonic time.
    pub(crate) fn deadline_ns(&self, after: Duration) -> u64 {
        self.start_ns.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Ends `stage`, which began at the last mark.
    pub(crate) fn mark(&mut self, stage: Stage) {
        self.line.mark(stage, self.elapsed_ns());
        if let Some(seat) = &self.seat {
            seat.has_done(stage);
        }
    }

    /// Shows to whoever watches that it is in `stage` from now on; times are another matter.
    pub(crate) fn is_in(&self, stage: Stage) {
        if let Some(seat) = &self.seat {
            seat.is_in(stage);
        }
    }

    /// Shows whoever watches how many tokens of the answer are there.
    pub(crate) fn has_written(&self, tokens: u64) {
        if let Some(seat) = &self.seat {
            seat.has_written(tokens);
        }
    }

    /// Puts the spans and the duration into the record, as far as they have been marked.
    pub(crate) fn note_times(&mut self) {
        self.record.stages = self.line.spans().to_vec();
        self.record.duration_ns = self.line.end_ns();
    }

    /// Writes the outcome into the record, and its times: it was over at the last mark.
    pub(crate) fn seal(&mut self, outcome: Outcome) {
        self.record.outcome = outcome;
        self.record.duration_ns = self.line.end_ns();
        self.record.stages = std::mem::take(&mut self.line).into_spans();
    }

    /// Closes the file: its record, sealed with the outcome.
    pub(crate) fn close(mut self, outcome: Outcome) -> Box<TraceRecord> {
        self.seal(outcome);
        self.record
    }
}

/// `00-TRACE(32)-SPAN(16)-FLAGS(2)`, lower-case hexadecimal, neither id all zero (W3C Trace Context, level 1).
fn parse_traceparent(header: &str) -> Option<(&str, &str)> {
    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let set = |text: &str| text.bytes().any(|b| b != b'0');
    let well_formed = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    let closed = version != "00" || parts.next().is_none();
    (well_formed && closed && set(trace) && set(span)).then_some((trace, span))
}

#[cfg(test)]
mod tests {
    use super::parse_traceparent;

    #[test]
    fn traceparent_is_taken_only_when_well_formed() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let good = format!("00-{trace}-00f067aa0ba902b7-01");
        assert_eq!(parse_traceparent(&good), Some((trace, "00f067aa0ba902b7")));
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(parse_traceparent(bad), None, "{bad}");
        }
    }
}
