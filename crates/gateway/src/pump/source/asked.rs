//! An upstream that was asked, and how far its answer came. Must not know what becomes of the answer.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use headrace_domain::Usage;
use headrace_engine_api::{RelayAnswer, RelayEvent, RelayFacts};
use headrace_fleet::{Outcome, Placement};
use headrace_wire::relay::{KnownUsage, ReplyReader};

use crate::pump::asking::Asking;

use super::allowance::Allowance;
use super::conceal::Conceal;

/// A server that was asked, and how far its answer came.
pub(crate) struct Asked {
    pub(super) facts: RelayFacts,
    pub(super) answer: Option<Box<dyn RelayAnswer>>,
    pub(super) reader: ReplyReader,
    pub(super) placement: Option<Placement>,
    /// How much of its answer is taken.
    pub(super) allowance: Allowance,
    pub(super) answered_ns: Option<u64>,
    /// What comes goes to the client as it is.
    pub(super) as_is: bool,
    /// How its caller is shown the answer.
    pub(super) conceal: Conceal,
    /// Events before the first text, such as the role. They go out with that text: until then another upstream may answer, and the
    /// client must not see both.
    pub(super) opening: BytesMut,
    /// It has begun to answer: what it computes is paid for.
    pub(super) heard: bool,
    /// Something went out that a client may see.
    pub(super) shown: bool,
    /// Its last event is here.
    pub(super) ended: bool,
}

impl Asked {
    pub(crate) fn new(facts: &RelayFacts, asking: Asking, placement: Placement) -> Self {
        let Asking { answer, reader, as_is, allowance, conceal } = asking;
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
            heard: false,
            shown: false,
            ended: false,
        }
    }

    /// Returns the next event. After the end of an answer it does not wait.
    pub(super) async fn next(&mut self) -> Option<RelayEvent> {
        let answer = self.answer.as_mut()?;
        if self.ended { answer.next().now_or_never().flatten() } else { answer.next().await }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayEvent>> {
        self.answer.as_mut().map_or(Poll::Ready(None), |answer| answer.poll_next(cx))
    }

    /// Breaks its answer off.
    pub(super) fn let_go(&mut self) -> Option<Placement> {
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
    pub(super) fn ended_as(&mut self, outcome: &Outcome) {
        if let Some(placement) = &mut self.placement {
            placement.ended(outcome);
        }
    }

    /// Returns the usage that the upstream reports. A part that the report lacks, or that is not final, is estimated by its bytes.
    pub(super) fn usage(&self, likely_prompt: Usage) -> Usage {
        let KnownUsage { mut usage, has_prompt, has_answer, total } = self.reader.known_usage();
        if !self.heard && !(has_prompt && has_answer) {
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

    /// Says why a part of the usage is an estimate. `None` if all of it is the upstream's own.
    pub(super) fn why_estimated(&self) -> Option<&'static str> {
        match self.reader.usage_gap() {
            _ if !self.heard => None,
            None if self.is_final() => None,
            None => Some("the answer broke off before its last usage report"),
            Some(gap) => Some(gap),
        }
    }

    /// Whether its last event was read. A response that failed says in it what it took, too.
    fn is_final(&self) -> bool {
        self.ended || self.reader.is_told_whole()
    }
}
