//! The message source: an upstream server and its answer. An answer in the caller's dialect is passed on as it came;
//! one in another dialect is read into reply events. In both cases its usage, its end and its faults are read here.
//! Must not know sockets or money.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use headrace_domain::{Endpoint, PriceTier, ReplyEvent, Stage, Usage, UsageSource};
use headrace_engine_api::{AbandonPolicy, RelayError, RelayEvent, RelayedEvent};
use headrace_fleet::{Placement, WorkerOutcome};
use headrace_relay::{EventFacts, EventKind, ReplyFault, end_of_stream};
use headrace_wire::WireLimits;

use crate::request_context::RequestContext;
use crate::state::{RelayedMessages, RenderedWork};

use super::asked_server::AskedServer;
use super::faults;
use super::formatted_text::FormattedText;
use super::resume::{PartialText, TextResume};
use super::source_event::{LostJob, LostRace, RawPiece, ReplyProgress, SourceEvent};
use super::source_report::{SourceTimes, SourceUsage};

/// The most bytes of a passed-on answer that go out together, if they have already arrived.
const MOST_JOINED_BYTES: usize = 16 * 1024;
/// How long an abandoned answer is still read, for upstreams with [`AbandonPolicy::Drain`].
const DRAIN_WAIT: Duration = Duration::from_secs(30);

/// The most bytes that are kept of what precedes the answer's first content.
const OPENING_BYTES: usize = 16 * 1024;

/// See the top of the file.
pub(crate) struct MessageSource {
    work: Arc<RenderedWork>,
    /// The estimated usage of the prompt.
    likely_prompt: Usage,
    /// The upstream that was asked last.
    asked: Option<AskedServer>,
    /// The second upstream of a race, until one of the two produces output.
    rival: Option<Box<AskedServer>>,
    /// Set if another upstream may continue an answer that breaks off.
    resume: Option<Box<TextResume>>,
    /// The prompt's usage has been sent.
    prompt_is_sent: bool,
    times: SourceTimes,
    /// An item that came after a batch and is to be returned next.
    pending: Option<SourceEvent>,
    /// The answers' texts, if they are to be checked against a form.
    checked_text: Option<Box<FormattedText>>,
    /// The events of an answer that is passed on, if its text is to be checked.
    passed_events: Vec<ReplyEvent>,
}

impl MessageSource {
    pub(super) fn new(work: Arc<RenderedWork>, messages: &RelayedMessages, limits: &WireLimits) -> Self {
        let resume = messages.may_resume.then(Box::default);
        let likely_prompt = Usage { input: messages.likely_prompt_tokens, ..Usage::default() };
        Self {
            checked_text: FormattedText::of(&work, limits).map(Box::new),
            passed_events: Vec::new(),
            work,
            likely_prompt,
            asked: None,
            rival: None,
            resume,
            prompt_is_sent: false,
            times: SourceTimes::default(),
            pending: None,
        }
    }

    /// Sets the upstream that was asked, for a new answer or to continue an unfinished one.
    pub(crate) fn ask(&mut self, asked: AskedServer) {
        if self.resume.as_ref().is_some_and(|resume| resume.can_continue()) {
            let (usage, generated) = (self.known_usage(), self.generated());
            let reported = self.is_known();
            if let Some(resume) = &mut self.resume {
                resume.continue_elsewhere(usage, reported, generated);
            }
        }
        self.pending = None;
        self.asked = Some(asked);
    }

    /// The text of an answer that broke off, for another upstream to continue.
    pub(crate) fn partial_text(&self) -> Option<PartialText> {
        let generated = self.asked.as_ref().map_or(0, |asked| asked.reader.generated());
        self.resume.as_ref()?.partial(generated)
    }

    /// Tokens of the answer, including those of all upstreams that broke off.
    fn generated(&self) -> u64 {
        let before = self.resume.as_ref().map_or(0, |resume| resume.generated());
        before.saturating_add(self.asked.as_ref().map_or(0, |asked| asked.reader.generated()))
    }

    /// Whether the upstream that was asked last has reported the prompt's usage.
    fn is_known(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.reader.usage().is_some())
    }

    pub(super) fn only_worker(&self) -> Option<&Placement> {
        let asked =
            self.asked.as_ref().filter(|asked| !asked.shown && !asked.ended && self.rival.is_none())?;
        if self.resume.as_ref().is_some_and(|resume| resume.has_output()) {
            return None;
        }
        asked.placement.as_ref()
    }

    /// Adds a second upstream that was asked. The one that produces the first output keeps the call.
    pub(crate) fn ask_too(&mut self, asked: AskedServer) {
        self.rival = Some(Box::new(asked));
    }

    /// The upstream that has the call.
    pub(crate) const fn server(&self) -> Option<&AskedServer> {
        self.asked.as_ref()
    }

    pub(super) fn take_back(&mut self, _: usize) -> Option<Placement> {
        self.asked.as_mut()?.abandon()
    }

    pub(super) fn answered_ns(&self, _: usize) -> Option<u64> {
        self.asked.as_ref()?.answered_ns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_none()
    }

    /// Waits for the next item of the server and processes it. Cancelling the wait loses nothing. Output that is passed
    /// on goes out together as far as it has arrived: each piece alone would cost a wake-up and a write.
    pub(super) async fn next(
        &mut self,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        // Read once for everything that came together: reading the clock costs as much as handling a short event.
        let mut from = None;
        let mut event = self.step(context, events, &mut from).await;
        if let SourceEvent::Passed(passed) = &mut event
            && !passed.last
        {
            self.join_pieces(passed, context, events, &mut from);
        }
        let to = context.clock.monotonic_nanos();
        self.times.postprocess_ns += from.map_or(0, |from| to.saturating_sub(from));
        event.set_arrival(to);
        event
    }

    pub(super) fn next_ready(
        &mut self,
        _: u64,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        self.next(context, events).now_or_never()
    }

    /// Each item was timed when it came.
    pub(super) const fn time_batch(&self, _: u64, at_ns: u64, _: &RequestContext) -> u64 {
        at_ns
    }

    /// Adds the pieces that have already arrived.
    fn join_pieces(
        &mut self,
        passed: &mut RawPiece,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
        from: &mut Option<u64>,
    ) {
        let mut pieces = BytesMut::new();
        while passed.bytes.len().max(pieces.len()) < MOST_JOINED_BYTES {
            let next = self.step(context, events, from).now_or_never();
            let Some(SourceEvent::Passed(more)) = next else {
                self.pending = next;
                break;
            };
            if more.last {
                self.pending = Some(SourceEvent::Passed(more));
                break;
            }
            if pieces.is_empty() {
                pieces.extend_from_slice(&passed.bytes);
            }
            pieces.extend_from_slice(&more.bytes);
            passed.tokens = more.tokens;
            passed.meaningful |= more.meaningful;
        }
        if !pieces.is_empty() {
            passed.bytes = pieces.freeze();
        }
    }

    /// The next item. Sets `from` to the time when its first event arrived, unless it is already set.
    async fn step(
        &mut self,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
        from: &mut Option<u64>,
    ) -> SourceEvent {
        if let Some(pending) = self.pending.take() {
            return pending;
        }
        if let Some(event) = self.raced(context, events).await {
            return event;
        }
        loop {
            let Some(asked) = &mut self.asked else { return SourceEvent::Over };
            let came = asked.next().await;
            let here_ns = *from.get_or_insert_with(|| context.clock.monotonic_nanos());
            if let Some(event) = self.take(came, context, events) {
                return event;
            }
            // The time spent waiting from here on is not work.
            self.times.postprocess_ns += context.clock.monotonic_nanos().saturating_sub(here_ns);
            *from = None;
        }
    }

    /// Reads two racing answers until one of them has output or fails. Returns `None` if there is only one.
    async fn raced(&mut self, context: &RequestContext, events: &mut Vec<ReplyEvent>) -> Option<SourceEvent> {
        loop {
            let (asked, rival) = (self.asked.as_mut()?, self.rival.as_mut()?);
            let (is_rival, came) = poll_fn(|cx| match asked.poll(cx) {
                Poll::Ready(came) => Poll::Ready((false, came)),
                Poll::Pending => rival.poll(cx).map(|came| (true, came)),
            })
            .await;
            if is_rival {
                std::mem::swap(asked, rival);
            }
            let taken = self.take(came, context, events);
            let failed = match taken {
                None => continue,
                Some(SourceEvent::Lost(lost)) => Some(lost),
                Some(SourceEvent::More(more)) if !more.meaningful && !self.has_ended() => {
                    // It only opens an answer. It is discarded, because the other upstream may yet be the one that
                    // answers.
                    events.clear();
                    self.prompt_is_sent = false;
                    continue;
                }
                Some(event) => {
                    self.pending = Some(event);
                    None
                }
            };
            let mut loser = self.rival.take()?;
            if failed.is_some() {
                std::mem::swap(self.asked.as_mut()?, &mut loser);
            }
            let used = loser.usage(self.likely_prompt);
            return Some(SourceEvent::Outrun(Box::new(LostRace {
                placement: loser.abandon()?,
                used,
                failed,
            })));
        }
    }

    fn has_ended(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.ended)
    }

    /// Processes an event. Returns `None` if nothing of it is for the client.
    fn take(
        &mut self,
        event: Option<RelayEvent>,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        let asked = self.asked.as_mut()?;
        match event {
            Some(RelayEvent::Head(_)) => {
                asked.answering = true;
                None
            }
            // Anything after the end of an answer does not belong to it.
            Some(RelayEvent::Event(_) | RelayEvent::Whole(_)) if asked.ended => None,
            Some(RelayEvent::Event(event)) => self.event(&event, context, events),
            Some(RelayEvent::Whole(body)) => {
                // If an upstream does not stream, its answer is written as a stream here.
                if self.work.call.stream {
                    asked.as_is = false;
                    if let Err(rejection) = asked.allowance.read_whole(body.len()) {
                        return Some(SourceEvent::Lost(self.lost(faults::of_bounds(rejection))));
                    }
                }
                let before = events.len();
                let out = match (asked.as_is, &self.checked_text) {
                    (false, _) => Some(&mut *events),
                    (true, Some(_)) => Some(&mut self.passed_events),
                    (true, None) => None,
                };
                let conceal = asked.conceal;
                match asked.reader.whole(&body, out) {
                    Ok(facts) => {
                        asked.ended = true;
                        let new_events = events.get(before..).unwrap_or_default();
                        if let Err(lost) = self.within_bounds(new_events) {
                            return Some(SourceEvent::Lost(lost));
                        }
                        self.keep_text(new_events);
                        self.raw_event(&facts, conceal.whole(body), context)
                    }
                    Err(fault) => Some(SourceEvent::Lost(self.misread(&fault))),
                }
            }
            Some(RelayEvent::Failed(_)) if asked.ended => Some(self.end(context)),
            // The content is complete, so the way in which its transport ended does not matter.
            Some(RelayEvent::Failed(_)) if asked.reader.has_finished() && asked.reader.end().is_ok() => {
                Some(self.complete(context))
            }
            Some(RelayEvent::Failed(error)) => {
                let mut lost = faults::of_relay(&error, asked.facts.dialect);
                if error == RelayError::NoMemory {
                    lost.rejection = asked.allowance.rejection();
                }
                asked.ended_as(&WorkerOutcome::from(&error));
                Some(SourceEvent::Lost(self.lost(lost)))
            }
            None => match asked.reader.end() {
                Ok(()) => Some(self.complete(context)),
                Err(fault) => Some(SourceEvent::Lost(self.misread(&fault))),
            },
        }
    }

    fn event(
        &mut self,
        event: &RelayedEvent,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        let asked = self.asked.as_mut()?;
        let before = events.len();
        let out = match (asked.as_is, &self.checked_text) {
            (false, _) => Some(&mut *events),
            (true, Some(_)) => Some(&mut self.passed_events),
            (true, None) => None,
        };
        let facts = match asked.reader.event(&event.name, &event.data, out) {
            Ok(facts) => facts,
            Err(fault) => return Some(SourceEvent::Lost(self.misread(&fault))),
        };
        if let (Some(resume), Some(new)) = (&mut self.resume, events.get_mut(before..)) {
            resume.take(new);
        }
        if facts.kind == EventKind::Broken {
            return None;
        }
        asked.ended |= facts.kind == EventKind::End;
        let new_events = events.get(before..).unwrap_or_default();
        if let Err(lost) = self.within_bounds(new_events) {
            return Some(SourceEvent::Lost(lost));
        }
        self.keep_text(new_events);
        // The usage was requested for the bill, not by the caller.
        let for_us = facts.kind == EventKind::UsageOnly && !self.work.call.include_usage;
        if for_us { None } else { self.raw_event(&facts, self.whole_end(&facts, event), context) }
    }

    /// An event as it came. The last event of a response also gets what ends every stream, which its server may leave
    /// out.
    fn whole_end(&self, facts: &EventFacts, event: &RelayedEvent) -> Bytes {
        let Some(asked) = self.asked.as_ref().filter(|asked| asked.as_is) else { return event.raw.clone() };
        let shown = asked.conceal.event(event);
        let is_response = self.work.call.endpoint == Endpoint::Responses;
        if !(facts.kind == EventKind::End && is_response) {
            return shown;
        }
        [&shown[..], end_of_stream(Endpoint::Responses)].concat().into()
    }

    /// Checks the answer with these events against its bounds. An answer that is cut is not read further, because its
    /// upstream might never end it.
    fn within_bounds(&mut self, new_events: &[ReplyEvent]) -> Result<(), Box<LostJob>> {
        let Some(asked) = &mut self.asked else { return Ok(()) };
        let text = new_events.iter().map(ReplyEvent::text_bytes).sum();
        let Err(rejection) = asked.allowance.check(asked.reader.generated(), text) else { return Ok(()) };
        asked.answer = None;
        let fault = faults::of_bounds(rejection);
        asked.ended_as(&fault.outcome());
        Err(self.lost(fault))
    }

    /// Keeps the text that is to be checked: from `raw_event`, or from the events of an answer that is passed on.
    fn keep_text(&mut self, new_events: &[ReplyEvent]) {
        if let Some(checked_text) = &mut self.checked_text {
            checked_text.take(new_events);
            checked_text.take(&self.passed_events);
            self.passed_events.clear();
        }
    }

    pub(super) fn take_checked_text(&mut self) -> Option<Box<FormattedText>> {
        self.checked_text.take()
    }

    /// The item for the client.
    fn raw_event(
        &mut self,
        facts: &EventFacts,
        bytes: Bytes,
        context: &RequestContext,
    ) -> Option<SourceEvent> {
        let meaningful = facts.meaningful;
        if meaningful && self.times.first_token_ns.is_none() {
            self.times.first_token_ns = Some(context.elapsed_ns());
            context.is_in(Stage::Decode);
        }
        context.publish_token_count(self.generated());
        let asked = self.asked.as_mut()?;
        if meaningful && let Some(placement) = &mut asked.placement {
            placement.began();
        }
        if !asked.shown {
            asked.allowance.is_passed_on();
        }
        if asked.as_is {
            let (tokens, last) = (asked.reader.generated(), asked.ended);
            let room = OPENING_BYTES.saturating_sub(asked.opening.len());
            if !asked.shown && !meaningful && !last && bytes.len() <= room {
                asked.opening.extend_from_slice(&bytes);
                return None;
            }
            asked.shown |= !last;
            let bytes = asked.with_opening(bytes);
            return Some(SourceEvent::Passed(RawPiece { bytes, tokens, last, meaningful, at_ns: 0 }));
        }
        asked.shown |= meaningful;
        let prompt = (!std::mem::replace(&mut self.prompt_is_sent, true)).then(|| {
            let known = asked.conceal.usage(asked.reader.usage().unwrap_or(self.likely_prompt));
            Box::new(Usage { output: 0, reasoning: 0, ..known })
        });
        let tokens = Some(self.generated());
        Some(SourceEvent::More(ReplyProgress { prompt, tokens, meaningful, at_ns: 0 }))
    }

    /// Ends the answer after its transport has ended.
    fn complete(&mut self, context: &RequestContext) -> SourceEvent {
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.as_is && !asked.ended) else {
            return self.end(context);
        };
        // Only the final event is missing. Without it the answer would look cut off.
        asked.ended = true;
        let end = Bytes::from_static(end_of_stream(self.work.call.endpoint));
        let (bytes, tokens) = (asked.with_opening(end), asked.reader.generated());
        SourceEvent::Passed(RawPiece { bytes, tokens, last: true, meaningful: false, at_ns: 0 })
    }

    fn end(&mut self, context: &RequestContext) -> SourceEvent {
        let now_ns = context.elapsed_ns();
        if let Some(asked) = &mut self.asked {
            asked.ended = true;
            asked.answered_ns = Some(now_ns);
            asked.answer = None;
            asked.ended_as(&WorkerOutcome::Answered);
        }
        SourceEvent::Over
    }

    /// Handles a fault in the answer.
    fn misread(&mut self, fault: &ReplyFault) -> Box<LostJob> {
        if let Some(asked) = &mut self.asked {
            asked.ended_as(&faults::outcome_of(fault));
        }
        self.lost(faults::of_reply(fault))
    }

    fn lost(&mut self, fault: faults::SourceFault) -> Box<LostJob> {
        let faults::SourceFault { mut rejection, cause, mut may_move, broke } = fault;
        let shown = self.asked.as_ref().is_some_and(|asked| asked.shown);
        let mut can_continue = false;
        if let Some(resume) = self.resume.as_mut().filter(|resume| resume.has_output()) {
            // An upstream that failed to continue the answer has not changed it, so another one may try.
            may_move |= resume.is_resumed() && !shown;
            can_continue = resume.can_continue();
            rejection = resume.note_failure(rejection);
        }
        let (may_move, may_move_if_unseen) = (may_move && (!shown || can_continue), may_move && shown);
        Box::new(LostJob { part: 0, job: 0, rejection, cause, may_move, may_move_if_unseen, broke })
    }

    /// Resets the source after its whole output was taken back before any of it left.
    pub(crate) fn discard_output(&mut self) {
        (self.prompt_is_sent, self.times.first_token_ns) = (false, None);
        self.checked_text.iter_mut().for_each(|checked_text| checked_text.clear());
        if let Some(resume) = &mut self.resume {
            **resume = TextResume::default();
        }
    }

    pub(super) fn running(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    /// Abandons an answer that is no longer needed.
    pub(super) async fn cancel(&mut self) {
        self.rival = None;
        let Some(asked) = &mut self.asked else { return };
        let drained = asked.facts.abandoned == AbandonPolicy::Drain && asked.answering && !asked.ended;
        if drained {
            let reading = async {
                while let Some(came) = asked.next().await {
                    match came {
                        RelayEvent::Event(event) => {
                            match asked.reader.event(&event.name, &event.data, None) {
                                Ok(facts) => asked.ended |= facts.kind == EventKind::End,
                                Err(_) => break,
                            }
                        }
                        RelayEvent::Whole(body) => asked.ended = asked.reader.whole(&body, None).is_ok(),
                        RelayEvent::Head(_) => {}
                        RelayEvent::Failed(_) => break,
                    }
                }
            };
            // The usage known by then is billed.
            let _ = tokio::time::timeout(DRAIN_WAIT, reading).await;
        }
        asked.answer = None;
    }

    pub(super) fn usage(&self) -> SourceUsage {
        let why_estimated = self.why_estimated();
        let known_by = match why_estimated {
            None => UsageSource::Reported,
            Some(_) => UsageSource::Estimated,
        };
        SourceUsage { usage: self.known_usage(), known_by, why_estimated }
    }

    fn known_usage(&self) -> Usage {
        let last = self.usage_of(0);
        let all = self.resume.as_ref().map_or(last, |resume| resume.usage(last, self.is_known()));
        self.asked.as_ref().map_or(all, |asked| asked.conceal.usage(all))
    }

    /// The usage of the upstream that was asked last.
    pub(super) fn usage_of(&self, _: usize) -> Usage {
        self.asked.as_ref().map_or_else(Usage::default, |asked| asked.usage(self.likely_prompt))
    }

    pub(super) fn price_tier(&self) -> PriceTier {
        let named = self.asked.as_ref().and_then(|asked| asked.reader.service_tier());
        named.map_or_else(|| self.work.call.tier.into(), PriceTier::reported)
    }

    /// Why a part of the usage is an estimate. `None` if all of it is the upstream's own.
    fn why_estimated(&self) -> Option<&'static str> {
        if self.resume.as_ref().is_some_and(|resume| resume.is_resumed()) {
            return Some("several upstreams made the answer, each from where the one before broke off");
        }
        match &self.asked {
            Some(asked) => asked.why_estimated(),
            None => Some("no upstream answered"),
        }
    }

    pub(super) const fn times(&self) -> SourceTimes {
        self.times
    }

    /// The encoder has not seen the end of an answer that was passed on as it came.
    pub(super) fn finish_name(&self, choice: usize, encoded: &'static str) -> Cow<'static, str> {
        let reported = self.asked.as_ref().and_then(|asked| asked.finish_name(choice));
        reported.unwrap_or(encoded).into()
    }
}
