//! Stage `deliver`: encodes reply events as bytes in the caller's dialect. Streamed and whole answers share one
//! encoder, so they cannot differ. Must not know where the events come from.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use headrace_call_state::delivery::DeliverySender;
use headrace_domain::{Call, ContinuedAnswer, ReplyEvent, RequestId, TokenLogprob, UnixNanos, Usage};
use headrace_moderation::PlaceholderMap;
use headrace_wire::{ErrorFacts, ReplyEncoder, content_type, encoder};

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::recorded_reply::RecordedReply;
use super::reply_meta::meta_of;
use super::restore::{AnswerRestore, repeated_placeholders, restored_body};
use super::screen::OutputScreen;
use super::source::source_event::{RawPiece, ReplyProgress};

/// The most bytes of text that are checked on the event loop.
const SCREENED_INLINE_BYTES: usize = 16 << 10;
/// The most log-probabilities and ids that are written as JSON on the event loop. More of them take milliseconds.
const ENCODED_INLINE: usize = 4096;
/// Bytes that one of them usually takes as JSON. A buffer of the final size does not have to grow by copying.
const WRITTEN_BYTES: usize = 80;

/// The answer while it is being made.
pub(super) struct ReplyWriter {
    encoder: EncoderState,
    stream: bool,
    /// How each choice ended.
    finish: Vec<&'static str>,
    has_begun: bool,
    meaningful: bool,
    written: EncodedFrames,
    /// Log-probabilities and ids that the encoder has received. They determine how much work it has.
    taken_in: usize,
    content_type: &'static str,
    deliver_ns: u64,
    /// The end of an answer that is passed on as it came. `None` if the encoder writes the answer.
    passed_end: Option<BytesMut>,
    /// Checks the answer against content rules. `None` if none apply to it.
    screen: Option<Box<OutputScreen>>,
    /// Puts values back into the answer. `None` if nothing of the call was replaced.
    restore: Option<Box<AnswerRestore>>,
    /// The placeholders in an answer that repeats texts of its call, and is no text itself.
    repeated: Option<Arc<PlaceholderMap>>,
    /// The answer as it is recorded, if that is not as it is sent.
    recorded: Option<Box<RecordedReply>>,
}

/// The state of the encoder.
enum EncoderState {
    /// Not made yet: an answer that is passed on as it came needs an encoder only if it fails.
    Ahead(EncoderSetup),
    Here(Box<dyn ReplyEncoder>),
    /// The answer is over.
    Over,
}

/// What an encoder is made from.
struct EncoderSetup {
    work: Arc<RenderedWork>,
    request: RequestId,
    started: UnixNanos,
    /// A later call continues from the answer.
    keeps: bool,
    /// The answer goes out as the upstream wrote it.
    is_passed: bool,
}

impl EncoderSetup {
    fn make(&self) -> Box<dyn ReplyEncoder> {
        let meta = meta_of(&self.work, self.request, self.started);
        let mut encoder = encoder(&self.work.call, meta);
        if self.keeps {
            encoder.keep();
        }
        if self.is_passed {
            encoder.passed();
        }
        encoder
    }
}

impl EncoderState {
    /// The state after a write. `None` means that the answer is over.
    fn of(encoder: Option<Box<dyn ReplyEncoder>>) -> Self {
        encoder.map_or(Self::Over, Self::Here)
    }

    /// The encoder, which is made if necessary. `None` only if the answer is over.
    fn get(&mut self) -> Option<&mut (dyn ReplyEncoder + 'static)> {
        if let Self::Ahead(making) = self {
            *self = Self::Here(making.make());
        }
        match self {
            Self::Here(encoder) => Some(&mut **encoder),
            Self::Ahead(_) | Self::Over => None,
        }
    }

    /// Like [`Self::get`], and ends the answer.
    fn take(&mut self) -> Option<Box<dyn ReplyEncoder>> {
        match std::mem::replace(self, Self::Over) {
            Self::Ahead(making) => Some(making.make()),
            Self::Here(encoder) => Some(encoder),
            Self::Over => None,
        }
    }

    fn passed(&mut self) {
        match self {
            Self::Ahead(making) => making.is_passed = true,
            Self::Here(encoder) => encoder.passed(),
            Self::Over => {}
        }
    }
}

/// What the encoder wrote, and how many tokens of the answer it completes.
#[derive(Default)]
struct EncodedFrames {
    bytes: BytesMut,
    /// Ids from the answer's start that are visible in what was written, as text or as ids.
    tokens: u64,
    /// Ids of each choice that are not visible yet. Their text is held back: it may become a stop string or a tool
    /// call, or it is half a character.
    unseen: Vec<u64>,
    /// The answer contains the ids themselves.
    with_ids: bool,
    /// The part of the answer that is to be stored.
    kept: Option<Bytes>,
}

impl EncodedFrames {
    fn of(call: &Call, choices: usize) -> Self {
        Self { unseen: vec![0; choices], with_ids: call.return_token_ids, ..Self::default() }
    }

    /// Writes an event. It completes all earlier tokens of its choice if the bytes show something of the answer. The
    /// opening of a choice does not.
    fn event(&mut self, encoder: &mut dyn ReplyEncoder, event: &ReplyEvent) {
        let before = self.bytes.len();
        encoder.event(event, &mut self.bytes);
        let (choice, ids, shows) = match event {
            ReplyEvent::Text { choice, text, ids, logprobs }
            | ReplyEvent::Reasoning { choice, text, ids, logprobs } => {
                (*choice, ids.len(), self.with_ids || !text.is_empty() || !logprobs.is_empty())
            }
            ReplyEvent::ReasoningSignature { choice, .. }
            | ReplyEvent::RedactedReasoning { choice, .. }
            | ReplyEvent::ToolCallStart { choice, .. }
            | ReplyEvent::ToolCallArguments { choice, .. }
            | ReplyEvent::Encoded { choice, .. }
            | ReplyEvent::Finish { choice, .. } => (*choice, 0, true),
            ReplyEvent::Prompt { .. } => return,
        };
        if let Some(unseen) = self.unseen.get_mut(choice as usize) {
            *unseen += ids as u64;
            if shows && self.bytes.len() > before {
                self.tokens += std::mem::take(unseen);
            }
        }
    }

    /// Counts tokens whose ids are withheld. They complete with the next event of their choice that shows something.
    fn count(&mut self, choice: u32, ids: u64) {
        if let Some(unseen) = self.unseen.get_mut(choice as usize) {
            *unseen += ids;
        }
    }

    /// Counts the tokens that never became visible by themselves. Called at the end of the answer, which completes
    /// them.
    fn all(&mut self) {
        self.tokens += self.unseen.iter_mut().map(std::mem::take).sum::<u64>();
    }
}

impl ReplyWriter {
    pub(super) fn new(work: &Arc<RenderedWork>, context: &RequestContext) -> Self {
        let choices = work.choices() as usize;
        let making = EncoderSetup {
            work: Arc::clone(work),
            request: context.id,
            started: context.record.started,
            keeps: context.turns.is_some(),
            is_passed: false,
        };
        let restore = AnswerRestore::of(work, context);
        let repeated = repeated_placeholders(work, context);
        let is_recorded = context.request.is_some() && (restore.is_some() || repeated.is_some());
        let recorded = is_recorded.then(|| Box::new(RecordedReply::of(work, context)));
        Self {
            content_type: content_type(&work.call),
            encoder: EncoderState::Ahead(making),
            stream: work.call.stream,
            finish: vec!["unfinished"; choices],
            has_begun: false,
            meaningful: false,
            written: EncodedFrames::of(&work.call, choices),
            taken_in: 0,
            deliver_ns: 0,
            passed_end: None,
            screen: OutputScreen::of(work, context),
            restore,
            repeated,
            recorded,
        }
    }

    /// Encodes what a source has yielded.
    pub(super) async fn take(
        &mut self,
        more: &ReplyProgress,
        events: &mut Vec<ReplyEvent>,
        context: &RequestContext,
    ) {
        if self.screen.is_some() {
            self.screen_events(events).await;
        }
        if let Some(prompt) = &more.prompt {
            self.begin(prompt);
        }
        self.restore_events(events);
        self.meaningful |= more.meaningful;
        self.write_events(events).await;
        if let Some(tokens) = more.tokens {
            let delivered = self.screen.as_ref().map(|screen| screen.delivered_tokens(tokens, false));
            self.written.tokens = delivered.map_or(tokens, |delivered| delivered.max(self.written.tokens));
        }
        self.deliver_ns += context.clock.monotonic_nanos().saturating_sub(more.at_ns);
    }

    /// Takes a piece of an answer that is already in the caller's dialect. Its end is kept as the answer's end.
    pub(super) fn pass(&mut self, passed: RawPiece, context: &RequestContext) {
        let RawPiece { bytes, tokens, last, meaningful, at_ns } = passed;
        if self.passed_end.is_none() {
            self.encoder.passed();
        }
        let end = self.passed_end.get_or_insert_default();
        match last {
            // A whole answer is not copied: it may have megabytes.
            true if end.is_empty() => {
                *end = bytes.try_into_mut().unwrap_or_else(|bytes| BytesMut::from(&*bytes))
            }
            true => end.extend_from_slice(&bytes),
            false => self.written.bytes.extend_from_slice(&bytes),
        }
        self.written.tokens = tokens;
        self.meaningful |= meaningful;
        self.deliver_ns += context.clock.monotonic_nanos().saturating_sub(at_ns);
    }

    /// Hands encoded bytes to the transport. A whole answer has none before its end.
    pub(super) fn hand_over(&mut self, sender: &DeliverySender, context: &RequestContext) {
        self.hand_over_recorded(sender);
        if self.written.bytes.is_empty() {
            return;
        }
        let from = context.clock.monotonic_nanos();
        sender.push(&mut self.written.bytes, self.written.tokens);
        self.deliver_ns += context.clock.monotonic_nanos().saturating_sub(from);
    }

    /// Hands over what is recorded, if that is not what is sent.
    pub(super) fn hand_over_recorded(&mut self, sender: &DeliverySender) {
        if let Some(recorded) = &mut self.recorded {
            recorded.hand_over(sender);
        }
    }

    pub(super) fn keep_alive(&mut self, sender: &DeliverySender) {
        if let Some(encoder) = self.encoder.get() {
            encoder.keep_alive(&mut self.written.bytes);
        }
        sender.push(&mut self.written.bytes, self.written.tokens);
    }

    /// Notes in a stream that another worker continues an answer in its own way.
    pub(super) fn remark(&mut self, continued: &[ContinuedAnswer], sender: &DeliverySender) {
        let Some(encoder) = self.encoder.get() else { return };
        for ContinuedAnswer { choice, after_tokens, .. } in continued {
            let text = format!("headrace: continued choice={choice} after_tokens={after_tokens}");
            encoder.remark(&text, &mut self.written.bytes);
        }
        if !self.written.bytes.is_empty() {
            sender.push(&mut self.written.bytes, self.written.tokens);
        }
    }

    /// Encodes the end of an answer that ended well. If the answer is not streamed, that is all of it.
    pub(super) async fn finish(
        &mut self,
        usage: &Usage,
        explained: Option<serde_json::Value>,
        now: UnixNanos,
    ) -> BytesMut {
        if let Some(end) = self.passed_end.take() {
            self.encoder = EncoderState::Over;
            if let Some(recorded) = &mut self.recorded {
                recorded.pass(&end);
            }
            return self.with_repeated_values(end);
        }
        if let Some(encoder) = self.encoder.get() {
            encoder.ended_at(now.seconds());
        }
        self.begin(&Usage { output: 0, reasoning: 0, ..*usage });
        if let Some(recorded) = &mut self.recorded {
            recorded.finish(usage, explained.as_ref(), now);
        }
        let usage = *usage;
        // A stream has already written what it received. A whole answer is written here.
        let large = !self.stream && self.taken_in > ENCODED_INLINE;
        let bytes = if large { self.taken_in.saturating_mul(WRITTEN_BYTES) } else { 0 };
        let end = move |mut encoder: Box<dyn ReplyEncoder>, written: &mut EncodedFrames| {
            written.bytes.reserve(bytes);
            encoder.finish(&usage, explained.as_ref(), &mut written.bytes);
            written.kept = encoder.kept();
            written.all();
            // The encoder's data is freed here too.
            drop(encoder);
            None
        };
        self.with_encoder(large, end).await;
        let end = std::mem::take(&mut self.written.bytes);
        self.with_repeated_values(end)
    }

    /// Puts values back into a whole answer that repeats texts of its call.
    fn with_repeated_values(&self, end: BytesMut) -> BytesMut {
        let restored = self.repeated.as_ref().and_then(|map| restored_body(map, &end));
        restored.map_or(end, |restored| BytesMut::from(restored.as_bytes()))
    }

    /// Encodes the end of an answer that failed after it began.
    pub(super) fn fail(&mut self, facts: &ErrorFacts) -> BytesMut {
        // Bytes left here by a panic were settled as not delivered.
        self.written.bytes.clear();
        if let Some(recorded) = &mut self.recorded {
            recorded.fail(facts);
        }
        if let Some(encoder) = self.encoder.get() {
            encoder.fail(facts, &mut self.written.bytes);
            self.written.kept = encoder.kept();
        }
        std::mem::take(&mut self.written.bytes)
    }

    /// Takes the part that is to be stored of an answer. Later calls return `None`.
    pub(super) fn kept(&mut self) -> Option<Bytes> {
        self.written.kept.take()
    }

    pub(super) fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// Whether there is something to show, so that the status line may go out.
    pub(super) fn is_meaningful(&self) -> bool {
        self.meaningful
    }

    /// The number of the answer's tokens that the encoded bytes complete.
    pub(super) fn written(&self) -> u64 {
        self.written.tokens
    }

    /// Takes the nanoseconds spent on encoding and handing over since the last call.
    pub(super) fn take_deliver_ns(&mut self) -> u64 {
        std::mem::take(&mut self.deliver_ns)
    }

    /// The content rules' view of the answer. `None` if none apply to it.
    pub(super) fn screen(&self) -> Option<&OutputScreen> {
        self.screen.as_deref()
    }

    /// Whether content rules ended the answer, so that nothing more of it goes out.
    pub(super) fn is_cut(&self) -> bool {
        self.screen.as_ref().is_some_and(|screen| screen.has_ended())
    }

    /// How each choice ended.
    pub(super) fn finish_names(&self) -> &[&'static str] {
        &self.finish
    }

    fn begin(&mut self, prompt: &Usage) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.begin(prompt);
        }
        if let Some(encoder) = self.encoder.get() {
            encoder.begin(prompt, &mut self.written.bytes);
        }
    }

    /// Puts values back into events that leave, after they were recorded.
    fn restore_events(&mut self, events: &mut Vec<ReplyEvent>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.take(events);
        }
        if let Some(restore) = &mut self.restore {
            restore.apply(events);
            restore.take_uncounted().into_iter().for_each(|(choice, ids)| self.written.count(choice, ids));
        }
    }

    /// Leaves the events that content rules let pass. Much text is checked off the event loop.
    async fn screen_events(&mut self, events: &mut Vec<ReplyEvent>) {
        let Some(mut screen) = self.screen.take() else { return };
        screen.judge(events).await;
        let bytes = events.iter().map(ReplyEvent::text_bytes).sum::<usize>();
        if bytes.saturating_add(screen.held_bytes()) <= SCREENED_INLINE_BYTES {
            screen.apply(events);
        } else {
            let mut taken = std::mem::take(events);
            let screening = tokio::task::spawn_blocking(move || {
                screen.apply(&mut taken);
                (screen, taken)
            });
            match screening.await {
                Ok((checked, passed)) => (screen, *events) = (checked, passed),
                Err(stopped) => {
                    // Nothing leaves that was not checked.
                    self.encoder = EncoderState::Over;
                    if let Ok(panic) = stopped.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                    return;
                }
            }
        }
        screen.take_uncounted().into_iter().for_each(|(choice, ids)| self.written.count(choice, ids));
        self.screen = Some(screen);
    }

    /// Ends the answer if a judge that the call does not wait for has found it unfit. Returns whether it did.
    pub(super) async fn end_if_unfit(&mut self) -> bool {
        if self.is_cut() || !self.screen.as_ref().is_some_and(|screen| screen.is_unfit()) {
            return false;
        }
        let mut events = Vec::new();
        self.screen_events(&mut events).await;
        self.restore_events(&mut events);
        self.write_events(&mut events).await;
        self.is_cut()
    }

    async fn write_events(&mut self, events: &mut Vec<ReplyEvent>) {
        let mut weight = 0;
        for event in &*events {
            match event {
                ReplyEvent::Finish { choice, reason } => {
                    if let Some(slot) = self.finish.get_mut(*choice as usize) {
                        *slot = reason.name();
                    }
                }
                ReplyEvent::Prompt { prompt, .. } => weight += scores(&prompt.logprobs) + prompt.ids.len(),
                ReplyEvent::Text { ids, logprobs, .. } | ReplyEvent::Reasoning { ids, logprobs, .. } => {
                    self.taken_in += ids.len() + scores(logprobs);
                }
                ReplyEvent::ReasoningSignature { .. }
                | ReplyEvent::RedactedReasoning { .. }
                | ReplyEvent::ToolCallStart { .. }
                | ReplyEvent::ToolCallArguments { .. } => {}
                // As many numbers to write as a text of this many tokens has.
                ReplyEvent::Encoded { values, .. } => self.taken_in += values.len(),
            }
        }
        if weight <= ENCODED_INLINE {
            for event in events.drain(..) {
                if let Some(encoder) = self.encoder.get() {
                    self.written.event(encoder, &event);
                }
            }
            return;
        }
        self.taken_in += weight;
        let events = std::mem::take(events);
        let bytes = if self.stream { weight.saturating_mul(WRITTEN_BYTES) } else { 0 };
        let large = move |mut encoder: Box<dyn ReplyEncoder>, written: &mut EncodedFrames| {
            written.bytes.reserve(bytes);
            events.into_iter().for_each(|event| written.event(&mut *encoder, &event));
            Some(encoder)
        };
        self.with_encoder(true, large).await;
    }

    /// Runs `write` with the encoder and what it has written so far. If `large`, it runs off the event loop. A panic
    /// there is resumed here.
    async fn with_encoder<W>(&mut self, large: bool, write: W)
    where
        W: FnOnce(Box<dyn ReplyEncoder>, &mut EncodedFrames) -> Option<Box<dyn ReplyEncoder>>
            + Send
            + 'static,
    {
        let Some(encoder) = self.encoder.take() else { return };
        if !large {
            self.encoder = EncoderState::of(write(encoder, &mut self.written));
            return;
        }
        let mut written = std::mem::take(&mut self.written);
        let writing = tokio::task::spawn_blocking(move || {
            let encoder = write(encoder, &mut written);
            (encoder, written)
        });
        match writing.await {
            Ok((encoder, written)) => (self.encoder, self.written) = (EncoderState::of(encoder), written),
            Err(stopped) => {
                if let Ok(panic) = stopped.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// Counts log-probabilities, including alternatives.
fn scores(tokens: &[TokenLogprob]) -> usize {
    tokens.iter().map(|token| token.top.len() + 1).sum()
}

#[cfg(test)]
mod tests;
