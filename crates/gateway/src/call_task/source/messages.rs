//! The message source: an upstream server and its answer. An answer in the caller's dialect is passed on as it came;
//! one in another dialect is read into reply events. In both cases its usage, its end and its faults are read here.
//! Must not know sockets or money.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use headrace_domain::{Endpoint, FinishReason, PriceTier, ReplyEvent, Stage, Usage, UsageSource};
use headrace_engine_api::{AbandonPolicy, RelayError, RelayEvent, RelayedEvent};
use headrace_fleet::{Placement, WorkerOutcome};
use headrace_relay::{EventFacts, EventKind, ReplyFault, end_of_stream};
use headrace_wire::WireLimits;

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::asked_server::AskedServer;
use super::faults;
use super::formatted_text::FormattedText;
use super::resume::{PartialText, TextResume};
use super::source_event::{LostJob, LostRace, RawPiece, ReplyProgress, SourceEvent};

/// The most bytes of a passed-on answer that go out together, if they have already arrived.
const TOGETHER: usize = 16 * 1024;
/// How long an abandoned answer is still read, for upstreams with [`AbandonPolicy::Drain`].
const DRAINING: Duration = Duration::from_secs(30);

/// The most bytes that are kept of what precedes the answer's first content.
const OPENING_BYTES: usize = 16 * 1024;

/// See the top of the file.
pub(crate) struct MessageSource {
    work: Arc<RenderedWork>,
    /// The upstream that was asked last.
    asked: Option<AskedServer>,
    /// The second upstream of a race, until one of the two produces output.
    rival: Option<Box<AskedServer>>,
    /// Set if another upstream may continue an answer that breaks off.
    resume: Option<Box<TextResume>>,
    /// The prompt's usage has been sent.
    begun: bool,
    first_token_ns: Option<u64>,
    postprocess_ns: u64,
    /// An item that came after a batch and is to be returned next.
    kept: Option<SourceEvent>,
    /// The answers' texts, if they are to be checked against a form (`heard`), and the events of an answer that is
    /// passed on (`overheard`).
    heard: Option<Box<FormattedText>>,
    overheard: Vec<ReplyEvent>,
}

impl MessageSource {
    pub(super) fn new(work: Arc<RenderedWork>, limits: &WireLimits) -> Self {
        let resume = work.messages.as_ref().filter(|messages| messages.may_resume).map(|_| Box::default());
        Self {
            heard: FormattedText::of(&work, limits).map(Box::new),
            overheard: Vec::new(),
            work,
            asked: None,
            rival: None,
            resume,
            begun: false,
            first_token_ns: None,
            postprocess_ns: 0,
            kept: None,
        }
    }

    /// Sets the upstream that was asked, for a new answer or to continue an unfinished one.
    pub(super) fn ask(&mut self, asked: AskedServer) {
        if self.resume.as_ref().is_some_and(|resume| resume.may_go_on()) {
            let (usage, generated) = (self.usage(), self.generated());
            let reported = self.is_known();
            if let Some(resume) = &mut self.resume {
                resume.goes_on(usage, reported, generated);
            }
        }
        self.kept = None;
        self.asked = Some(asked);
    }

    pub(super) fn text_begun(&self) -> Option<PartialText> {
        let generated = self.asked.as_ref().map_or(0, |asked| asked.reader.generated());
        self.resume.as_ref()?.begun(generated)
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

    pub(super) fn only_one(&self) -> Option<&Placement> {
        let asked =
            self.asked.as_ref().filter(|asked| !asked.shown && !asked.ended && self.rival.is_none())?;
        if self.resume.as_ref().is_some_and(|resume| resume.has_begun()) {
            return None;
        }
        asked.placement.as_ref()
    }

    pub(super) fn ask_too(&mut self, asked: AskedServer) {
        self.rival = Some(Box::new(asked));
    }

    pub(super) fn upstream(&self) -> Option<&Arc<str>> {
        self.asked.as_ref().map(|asked| &asked.facts.upstream)
    }

    pub(super) fn take_back(&mut self) -> Option<Placement> {
        self.asked.as_mut()?.let_go()
    }

    pub(super) fn answered_ns(&self) -> Option<u64> {
        self.asked.as_ref()?.answered_ns
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_none()
    }

    /// Waits for the next item of the server and processes it. Cancelling the wait loses nothing. Output that is passed
    /// on goes out together as far as it has arrived: each piece alone would cost a wake-up and a write.
    pub(super) async fn next(
        &mut self,
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        // Read once for everything that came together: reading the clock costs as much as handling a short event.
        let mut from = None;
        let mut said = self.step(dossier, events, &mut from).await;
        if let SourceEvent::Passed(passed) = &mut said
            && !passed.last
        {
            self.together(passed, dossier, events, &mut from);
        }
        let to = dossier.clock.monotonic_nanos();
        self.postprocess_ns += from.map_or(0, |from| to.saturating_sub(from));
        said.is_here_at(to);
        said
    }

    /// Adds the pieces that have already arrived.
    fn together(
        &mut self,
        passed: &mut RawPiece,
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
        from: &mut Option<u64>,
    ) {
        let mut pieces = BytesMut::new();
        while passed.bytes.len().max(pieces.len()) < TOGETHER {
            let next = self.step(dossier, events, from).now_or_never();
            let Some(SourceEvent::Passed(more)) = next else {
                self.kept = next;
                break;
            };
            if more.last {
                self.kept = Some(SourceEvent::Passed(more));
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
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
        from: &mut Option<u64>,
    ) -> SourceEvent {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        if let Some(said) = self.raced(dossier, events).await {
            return said;
        }
        loop {
            let Some(asked) = &mut self.asked else { return SourceEvent::Over };
            let came = asked.next().await;
            let here_ns = *from.get_or_insert_with(|| dossier.clock.monotonic_nanos());
            if let Some(said) = self.take(came, dossier, events) {
                return said;
            }
            // The time spent waiting from here on is not work.
            self.postprocess_ns += dossier.clock.monotonic_nanos().saturating_sub(here_ns);
            *from = None;
        }
    }

    /// Reads two racing answers until one of them has output or fails. Returns `None` if there is only one.
    async fn raced(&mut self, dossier: &RequestContext, events: &mut Vec<ReplyEvent>) -> Option<SourceEvent> {
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
            let said = self.take(came, dossier, events);
            let failed = match said {
                None => continue,
                Some(SourceEvent::Lost(lost)) => Some(lost),
                Some(SourceEvent::More(more)) if !more.meaningful && !self.has_ended() => {
                    // It only opens an answer. It is discarded, because the other upstream may yet be the one that
                    // answers.
                    events.clear();
                    self.begun = false;
                    continue;
                }
                Some(said) => {
                    self.kept = Some(said);
                    None
                }
            };
            let mut left = self.rival.take()?;
            if failed.is_some() {
                std::mem::swap(self.asked.as_mut()?, &mut left);
            }
            let used = left.usage(self.likely_prompt());
            return Some(SourceEvent::Outrun(Box::new(LostRace { placement: left.let_go()?, used, failed })));
        }
    }

    fn has_ended(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.ended)
    }

    /// Processes an event. Returns `None` if nothing of it is for the client.
    fn take(
        &mut self,
        came: Option<RelayEvent>,
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        let asked = self.asked.as_mut()?;
        match came {
            Some(RelayEvent::Head(_)) => {
                asked.heard = true;
                None
            }
            // Anything after the end of an answer does not belong to it.
            Some(RelayEvent::Event(_) | RelayEvent::Whole(_)) if asked.ended => None,
            Some(RelayEvent::Event(event)) => self.event(&event, dossier, events),
            Some(RelayEvent::Whole(body)) => {
                // If an upstream does not stream, its answer is written as a stream here.
                if self.work.call.stream {
                    asked.as_is = false;
                    if let Err(why) = asked.allowance.read_whole(body.len()) {
                        return Some(SourceEvent::Lost(self.lost(faults::of_bounds(why))));
                    }
                }
                let before = events.len();
                let out = match (asked.as_is, &self.heard) {
                    (false, _) => Some(&mut *events),
                    (true, Some(_)) => Some(&mut self.overheard),
                    (true, None) => None,
                };
                let conceal = asked.conceal;
                match asked.reader.whole(&body, out) {
                    Ok(facts) => {
                        asked.ended = true;
                        let told = events.get(before..).unwrap_or_default();
                        if let Err(lost) = self.within_bounds(told) {
                            return Some(SourceEvent::Lost(lost));
                        }
                        self.hear(told);
                        self.raw_event(&facts, conceal.whole(body), dossier)
                    }
                    Err(fault) => Some(SourceEvent::Lost(self.misread(&fault))),
                }
            }
            Some(RelayEvent::Failed(_)) if asked.ended => Some(self.over(dossier)),
            // The content is complete, so the way in which its transport ended does not matter.
            Some(RelayEvent::Failed(_)) if asked.reader.has_finished() && asked.reader.end().is_ok() => {
                Some(self.all_came(dossier))
            }
            Some(RelayEvent::Failed(error)) => {
                let mut lost = faults::of_relay(&error, asked.facts.dialect);
                if error == RelayError::NoMemory {
                    lost.why = asked.allowance.why();
                }
                asked.ended_as(&WorkerOutcome::from(&error));
                Some(SourceEvent::Lost(self.lost(lost)))
            }
            None => match asked.reader.end() {
                Ok(()) => Some(self.all_came(dossier)),
                Err(fault) => Some(SourceEvent::Lost(self.misread(&fault))),
            },
        }
    }

    fn event(
        &mut self,
        event: &RelayedEvent,
        dossier: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        let asked = self.asked.as_mut()?;
        let before = events.len();
        let out = match (asked.as_is, &self.heard) {
            (false, _) => Some(&mut *events),
            (true, Some(_)) => Some(&mut self.overheard),
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
        let told = events.get(before..).unwrap_or_default();
        if let Err(lost) = self.within_bounds(told) {
            return Some(SourceEvent::Lost(lost));
        }
        self.hear(told);
        // The usage was requested for the bill, not by the caller.
        let for_us = facts.kind == EventKind::UsageOnly && !self.work.call.include_usage;
        if for_us { None } else { self.raw_event(&facts, self.whole_end(&facts, event), dossier) }
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
    fn within_bounds(&mut self, told: &[ReplyEvent]) -> Result<(), Box<LostJob>> {
        let Some(asked) = &mut self.asked else { return Ok(()) };
        let text = told.iter().map(ReplyEvent::text_bytes).sum();
        let Err(why) = asked.allowance.check(asked.reader.generated(), text) else { return Ok(()) };
        asked.answer = None;
        let fault = faults::of_bounds(why);
        asked.ended_as(&fault.outcome());
        Err(self.lost(fault))
    }

    /// Keeps the text that is to be checked: from `raw_event`, or from the events of an answer that is passed on.
    fn hear(&mut self, told: &[ReplyEvent]) {
        if let Some(heard) = &mut self.heard {
            heard.take(told);
            heard.take(&self.overheard);
            self.overheard.clear();
        }
    }

    pub(super) fn heard(&mut self) -> Option<Box<FormattedText>> {
        self.heard.take()
    }

    /// The item for the client.
    fn raw_event(
        &mut self,
        facts: &EventFacts,
        bytes: Bytes,
        dossier: &RequestContext,
    ) -> Option<SourceEvent> {
        let meaningful = facts.meaningful;
        if meaningful && self.first_token_ns.is_none() {
            self.first_token_ns = Some(dossier.elapsed_ns());
            dossier.is_in(Stage::Decode);
        }
        dossier.publish_token_count(self.generated());
        let likely = self.likely_prompt();
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
        let prompt = (!std::mem::replace(&mut self.begun, true)).then(|| {
            let known = asked.conceal.usage(asked.reader.usage().unwrap_or(likely));
            Box::new(Usage { output: 0, reasoning: 0, ..known })
        });
        let tokens = Some(self.generated());
        Some(SourceEvent::More(ReplyProgress { prompt, tokens, meaningful, at_ns: 0 }))
    }

    /// Ends the answer after its transport has ended.
    fn all_came(&mut self, dossier: &RequestContext) -> SourceEvent {
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.as_is && !asked.ended) else {
            return self.over(dossier);
        };
        // Only the final event is missing. Without it the answer would look cut off.
        asked.ended = true;
        let end = Bytes::from_static(end_of_stream(self.work.call.endpoint));
        let (bytes, tokens) = (asked.with_opening(end), asked.reader.generated());
        SourceEvent::Passed(RawPiece { bytes, tokens, last: true, meaningful: false, at_ns: 0 })
    }

    fn over(&mut self, dossier: &RequestContext) -> SourceEvent {
        let now_ns = dossier.elapsed_ns();
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
        let faults::SourceFault { mut why, cause, mut may_move, broke } = fault;
        let shown = self.asked.as_ref().is_some_and(|asked| asked.shown);
        let mut goes_on = false;
        if let Some(resume) = self.resume.as_mut().filter(|resume| resume.has_begun()) {
            // An upstream that failed to continue the answer has not changed it, so another one may try.
            may_move |= resume.is_resumed() && !shown;
            goes_on = resume.may_go_on();
            why = resume.broke(why);
        }
        let (may_move, unless_seen) = (may_move && (!shown || goes_on), may_move && shown);
        Box::new(LostJob { part: 0, job: 0, why, cause, may_move, unless_seen, broke })
    }

    /// Resets the source after its output was taken back before any of it left.
    pub(super) fn unsaid(&mut self) {
        (self.begun, self.first_token_ns) = (false, None);
        self.heard.iter_mut().for_each(|heard| heard.unsaid());
        if let Some(resume) = &mut self.resume {
            **resume = TextResume::default();
        }
    }

    /// Abandons an answer that is no longer needed.
    pub(super) async fn cancel(&mut self) {
        self.rival = None;
        let Some(asked) = &mut self.asked else { return };
        let drained = asked.facts.abandoned == AbandonPolicy::Drain && asked.heard && !asked.ended;
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
            let _ = tokio::time::timeout(DRAINING, reading).await;
        }
        asked.answer = None;
    }

    fn likely_prompt(&self) -> Usage {
        let input = self.work.messages.as_ref().map_or(0, |messages| messages.likely_prompt_tokens);
        Usage { input, ..Usage::default() }
    }

    pub(super) fn usage(&self) -> Usage {
        let last = self.usage_of_last();
        let all = self.resume.as_ref().map_or(last, |resume| resume.usage(last, self.is_known()));
        self.asked.as_ref().map_or(all, |asked| asked.conceal.usage(all))
    }

    /// The usage of the upstream that was asked last.
    pub(super) fn usage_of_last(&self) -> Usage {
        self.asked.as_ref().map_or_else(Usage::default, |asked| asked.usage(self.likely_prompt()))
    }

    pub(super) fn price_tier(&self) -> PriceTier {
        let named = self.asked.as_ref().and_then(|asked| asked.reader.service_tier());
        named.map_or_else(|| self.work.call.tier.into(), PriceTier::reported)
    }

    pub(super) fn usage_source(&self) -> UsageSource {
        match self.why_estimated() {
            None => UsageSource::Reported,
            Some(_) => UsageSource::Estimated,
        }
    }

    /// Says why a part of the usage is an estimate. `None` if all of it is the upstream's own.
    pub(super) fn why_estimated(&self) -> Option<&'static str> {
        if self.resume.as_ref().is_some_and(|resume| resume.is_resumed()) {
            return Some("several upstreams made the answer, each from where the one before broke off");
        }
        match &self.asked {
            Some(asked) => asked.why_estimated(),
            None => Some("no upstream answered"),
        }
    }

    /// The oddities of the answer that did not end it, each as `kind: detail`.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = self.asked.as_ref().map_or(&[][..], |asked| asked.reader.notes());
        notes.iter().map(ToString::to_string).collect()
    }

    pub(super) fn first_token_ns(&self) -> Option<u64> {
        self.first_token_ns
    }

    pub(super) fn postprocess_ns(&self) -> u64 {
        self.postprocess_ns
    }

    pub(super) fn finish_name(&self, choice: usize) -> Option<&'static str> {
        let choice = u32::try_from(choice).ok()?;
        self.asked.as_ref()?.reader.finish(choice).map(FinishReason::name)
    }

    pub(super) fn answer_id(&self) -> Option<&str> {
        self.asked.as_ref()?.reader.upstream_id()
    }

    pub(super) fn answered_as(&self) -> Option<&str> {
        self.asked.as_ref()?.reader.model()
    }
}
