//! An upstream that was asked, and its answer so far. Must not know what becomes of the answer.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use headrace_domain::{FinishReason, Usage};
use headrace_engine_api::{RelayAnswer, RelayEvent, RelayFacts};
use headrace_fleet::{Placement, WorkerOutcome};
use headrace_relay::{KnownUsage, ReplyReader};
use tokio::time::{Instant, timeout_at};

use crate::call_task::relay_attempt::RelayAttempt;

use super::allowance::AnswerAllowance;
use super::conceal::CacheConcealment;

/// How long the source waits for the usage report once every choice has its finish reason.
const USAGE_WAIT: Duration = Duration::from_secs(2);
/// How long the source waits for the end of the stream once the usage report has arrived too. Most servers send it at
/// once, and the connection can be reused only after it.
const END_WAIT: Duration = Duration::from_millis(250);

/// An upstream that was asked, and its answer so far.
pub(crate) struct AskedServer {
    pub(super) facts: RelayFacts,
    pub(super) answer: Option<Box<dyn RelayAnswer>>,
    pub(super) reader: ReplyReader,
    pub(super) placement: Option<Placement>,
    /// How much of its answer is accepted.
    pub(super) allowance: AnswerAllowance,
    pub(super) answered_ns: Option<u64>,
    /// What comes goes to the client as it is.
    pub(super) as_is: bool,
    /// How the caller sees the cached tokens in the answer.
    pub(super) conceal: CacheConcealment,
    /// Events before the first text, such as the role. They go out with that text: until then another upstream may answer, and the
    /// client must not see both.
    pub(super) opening: BytesMut,
    /// It has begun to answer, so its work is paid for.
    pub(super) answering: bool,
    /// Output that a client may see went out.
    pub(super) shown: bool,
    /// Its last event has arrived.
    pub(super) ended: bool,
    /// When its content was complete: every choice had a finish reason.
    whole_since: Option<Instant>,
    /// When its usage report had arrived too.
    reported_since: Option<Instant>,
}

impl AskedServer {
    pub(crate) fn new(facts: &RelayFacts, attempt: RelayAttempt, placement: Placement) -> Self {
        let RelayAttempt { answer, reader, as_is, allowance, conceal } = attempt;
        Self {
            facts: facts.clone(),
            answer: Some(answer),
            reader,
            placement: Some(placement),
            allowance,
            answered_ns: None,
            as_is,
            conceal,
            opening: BytesMut::new(),
            answering: false,
            shown: false,
            ended: false,
            whole_since: None,
            reported_since: None,
        }
    }

    /// The name of the upstream.
    pub(crate) const fn upstream(&self) -> &Arc<str> {
        &self.facts.upstream
    }

    /// The id that the upstream gave its answer.
    pub(crate) fn answer_id(&self) -> Option<&str> {
        self.reader.upstream_id()
    }

    /// The model that answered, according to the upstream.
    pub(crate) fn answered_as(&self) -> Option<&str> {
        self.reader.model()
    }

    /// The oddities of the answer that did not end it, each as `kind: detail`.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.reader.notes().iter().map(ToString::to_string).collect()
    }

    /// How a choice ended, according to the upstream.
    pub(super) fn finish_name(&self, choice: usize) -> Option<&'static str> {
        self.reader.finish(u32::try_from(choice).ok()?).map(FinishReason::name)
    }

    /// Returns the next event. After the end of an answer it does not wait. Once its content is complete, an answer is
    /// over after a short wait: neither silence nor heartbeats of its transport prolong a call.
    pub(super) async fn next(&mut self) -> Option<RelayEvent> {
        if self.ended {
            return self.answer.as_mut()?.next().now_or_never().flatten();
        }
        let until = self.over_at();
        let answer = self.answer.as_mut()?;
        let Some(until) = until else { return answer.next().await };
        let next = timeout_at(until, answer.next()).await;
        if next.is_err() {
            self.answer = None;
        }
        next.ok().flatten()
    }

    /// The time at which the answer is over without its own end. `None` before its content is complete.
    fn over_at(&mut self) -> Option<Instant> {
        if !self.reader.has_finished() {
            return None;
        }
        let whole_since = *self.whole_since.get_or_insert_with(Instant::now);
        let usage_by = whole_since + USAGE_WAIT;
        if self.reader.usage_gap().is_some() {
            return Some(usage_by);
        }
        let reported_since = *self.reported_since.get_or_insert_with(Instant::now);
        Some(usage_by.min(reported_since + END_WAIT))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayEvent>> {
        self.answer.as_mut().map_or(Poll::Ready(None), |answer| answer.poll_next(cx))
    }

    /// Breaks its answer off, and takes its placement.
    pub(super) fn abandon(&mut self) -> Option<Placement> {
        self.answer = None;
        self.placement.take()
    }

    /// Returns the kept opening, followed by these bytes.
    pub(super) fn with_opening(&mut self, bytes: Bytes) -> Bytes {
        if self.opening.is_empty() {
            return bytes;
        }
        let mut all = std::mem::take(&mut self.opening);
        all.extend_from_slice(&bytes);
        all.freeze()
    }

    /// Reports the outcome to the fleet, which chooses among upstreams.
    pub(super) fn ended_as(&mut self, outcome: &WorkerOutcome) {
        if let Some(placement) = &mut self.placement {
            placement.ended(outcome);
        }
    }

    /// Returns the usage that the upstream reports. A part that the report lacks, or that is not final, is estimated by its bytes.
    pub(super) fn usage(&self, likely_prompt: Usage) -> Usage {
        let KnownUsage { mut usage, has_prompt, has_answer, total } = self.reader.known_usage();
        let is_complete = has_prompt && has_answer;
        if !self.answering && !is_complete {
            return Usage::default();
        }
        if !(has_answer && self.is_final()) {
            let shown = self.reader.generated().saturating_sub(usage.reasoning);
            usage.output = usage.output.max(shown);
        }
        if !has_prompt {
            let cached = usage.prompt_tokens();
            let answer = usage.output.saturating_add(usage.reasoning);
            let whole = total.map_or(likely_prompt.input, |total| total.saturating_sub(answer));
            usage.input = whole.saturating_sub(cached);
        }
        usage
    }

    /// Why a part of the usage is an estimate. `None` if all of it is the upstream's own.
    pub(super) fn why_estimated(&self) -> Option<&'static str> {
        match self.reader.usage_gap() {
            _ if !self.answering => None,
            None if self.is_final() => None,
            None => Some("the answer broke off before its last usage report"),
            Some(gap) => Some(gap),
        }
    }

    /// Whether its last event was read. A failed response reports its usage in that event too.
    fn is_final(&self) -> bool {
        self.ended || self.reader.has_final_usage()
    }
}
