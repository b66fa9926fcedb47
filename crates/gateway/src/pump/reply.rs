//! Stage `deliver`: reply events to bytes in the caller's dialect. One machine for streamed and whole answers, so that they
//! cannot differ. Must not know where the events come from.

use bytes::BytesMut;
use headrace_domain::{ReplyEvent, TokenLogprob, Usage};
use headrace_wire::{ErrorFacts, ReplyEncoder, ReplyMeta, encoder};

use crate::delivery::DeliverySender;
use crate::dossier::Dossier;
use crate::state::Work;

use super::source::said::More;

/// Log-probabilities and ids that are written as JSON on the event loop; more of them take milliseconds.
const ENCODED_INLINE: usize = 4096;
/// What one of them takes as JSON, mostly: a buffer made so large at once does not grow by copying itself.
const WRITTEN_BYTES: usize = 80;

/// The answer in the making.
pub(super) struct Reply {
    /// `None` only once the answer is over.
    encoder: Option<Box<dyn ReplyEncoder>>,
    stream: bool,
    /// How each choice ended.
    finish: Vec<&'static str>,
    begun: bool,
    meaningful: bool,
    written: Written,
    /// Log-probabilities and ids that the encoder has taken in: what its work goes by.
    taken_in: usize,
    content_type: &'static str,
    deliver_ns: u64,
}

/// What the encoder wrote, and how many tokens of the answer it completes.
#[derive(Default)]
struct Written {
    bytes: BytesMut,
    /// Ids whose events show in what was written, from the answer's start.
    tokens: u64,
    /// Ids of a choice whose events do not show yet.
    unseen: Vec<u64>,
}

impl Written {
    /// Writes an event. The tokens of a choice are written once an event of it shows in the bytes.
    fn event(&mut self, encoder: &mut dyn ReplyEncoder, event: &ReplyEvent) {
        let before = self.bytes.len();
        encoder.event(event, &mut self.bytes);
        let (choice, ids) = ids_of(event);
        if let Some(unseen) = self.unseen.get_mut(choice as usize) {
            *unseen += ids as u64;
            if self.bytes.len() > before {
                self.tokens += std::mem::take(unseen);
            }
        }
    }

    /// The end of the answer completes whatever did not show by itself.
    fn all(&mut self) {
        self.tokens += self.unseen.iter_mut().map(std::mem::take).sum::<u64>();
    }
}

impl Reply {
    pub(super) fn new(work: &Work, dossier: &Dossier) -> Self {
        let meta = ReplyMeta {
            request_id: dossier.id,
            created_unix_s: dossier.record.started.seconds(),
            model: work.call.model.clone(),
            system_fingerprint: work.model.lane.numerics().to_owned(),
            tier: work.call.tier,
        };
        let (choices, encoder) = (work.choices() as usize, encoder(&work.call, meta));
        Self {
            content_type: encoder.content_type(),
            encoder: Some(encoder),
            stream: work.call.stream,
            finish: vec!["unfinished"; choices],
            begun: false,
            meaningful: false,
            written: Written { unseen: vec![0; choices], ..Written::default() },
            taken_in: 0,
            deliver_ns: 0,
        }
    }

    /// Encodes what a source has said.
    pub(super) async fn take(&mut self, more: &More, events: &mut Vec<ReplyEvent>, dossier: &Dossier) {
        if let Some(prompt) = &more.prompt {
            self.begin(prompt);
        }
        self.meaningful |= more.meaningful;
        self.write_events(events).await;
        self.deliver_ns += dossier.clock.monotonic_nanos().saturating_sub(more.at_ns);
    }

    /// Gives what is encoded to the transport. Of a whole answer nothing is, before its end.
    pub(super) fn hand_over(&mut self, sender: &DeliverySender, dossier: &Dossier) {
        if self.written.bytes.is_empty() {
            return;
        }
        let from = dossier.clock.monotonic_nanos();
        sender.push(&mut self.written.bytes, self.written.tokens);
        self.deliver_ns += dossier.clock.monotonic_nanos().saturating_sub(from);
    }

    pub(super) fn keep_alive(&mut self, sender: &DeliverySender) {
        if let Some(encoder) = &mut self.encoder {
            encoder.keep_alive(&mut self.written.bytes);
        }
        sender.push(&mut self.written.bytes, self.written.tokens);
    }

    /// The end of an answer that ended well; of a whole answer, all of it.
    pub(super) async fn finish(&mut self, usage: &Usage, explained: Option<serde_json::Value>) -> BytesMut {
        self.begin(&Usage { output: 0, reasoning: 0, ..*usage });
        let usage = *usage;
        // A stream has written what it took in; a whole answer is written here.
        let large = !self.stream && self.taken_in > ENCODED_INLINE;
        let bytes = if large { self.taken_in.saturating_mul(WRITTEN_BYTES) } else { 0 };
        let end = move |mut encoder: Box<dyn ReplyEncoder>, written: &mut Written| {
            written.bytes.reserve(bytes);
            encoder.finish(&usage, explained.as_ref(), &mut written.bytes);
            written.all();
            // What it took in is let go of here, too.
            drop(encoder);
            None
        };
        self.with_encoder(large, end).await;
        std::mem::take(&mut self.written.bytes)
    }

    /// The end of one that failed after it began.
    pub(super) fn fail(&mut self, facts: &ErrorFacts) -> BytesMut {
        // What a panic left here was settled as not delivered.
        self.written.bytes.clear();
        if let Some(encoder) = &mut self.encoder {
            encoder.fail(facts, &mut self.written.bytes);
        }
        std::mem::take(&mut self.written.bytes)
    }

    pub(super) fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// Whether there is something to show, so that the status line may go out.
    pub(super) fn is_meaningful(&self) -> bool {
        self.meaningful
    }

    /// Tokens of the answer that what was encoded completes.
    pub(super) fn written(&self) -> u64 {
        self.written.tokens
    }

    /// Nanoseconds spent on encoding and handing over, since this was asked before.
    pub(super) fn take_deliver_ns(&mut self) -> u64 {
        std::mem::take(&mut self.deliver_ns)
    }

    /// How each choice ended.
    pub(super) fn finish_names(&self) -> &[&'static str] {
        &self.finish
    }

    fn begin(&mut self, prompt: &Usage) {
        if !std::mem::replace(&mut self.begun, true)
            && let Some(encoder) = &mut self.encoder
        {
            encoder.begin(prompt, &mut self.written.bytes);
        }
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
                ReplyEvent::ToolCallStart { .. } | ReplyEvent::ToolCallArguments { .. } => {}
            }
        }
        if weight <= ENCODED_INLINE {
            for event in events.drain(..) {
                if let Some(encoder) = &mut self.encoder {
                    self.written.event(&mut **encoder, &event);
                }
            }
            return;
        }
        self.taken_in += weight;
        let events = std::mem::take(events);
        let bytes = if self.stream { weight.saturating_mul(WRITTEN_BYTES) } else { 0 };
        let large = move |mut encoder: Box<dyn ReplyEncoder>, written: &mut Written| {
            written.bytes.reserve(bytes);
            events.into_iter().for_each(|event| written.event(&mut *encoder, &event));
            Some(encoder)
        };
        self.with_encoder(true, large).await;
    }

    /// Lets `write` have the encoder and what it has written so far; where it is `large`, off the event loop. What panics
    /// there panics here.
    async fn with_encoder<W>(&mut self, large: bool, write: W)
    where
        W: FnOnce(Box<dyn ReplyEncoder>, &mut Written) -> Option<Box<dyn ReplyEncoder>> + Send + 'static,
    {
        let Some(encoder) = self.encoder.take() else { return };
        if !large {
            self.encoder = write(encoder, &mut self.written);
            return;
        }
        let mut written = std::mem::take(&mut self.written);
        let writing = tokio::task::spawn_blocking(move || {
            let encoder = write(encoder, &mut written);
            (encoder, written)
        });
        match writing.await {
            Ok((encoder, written)) => (self.encoder, self.written) = (encoder, written),
            Err(stopped) => {
                if let Ok(panic) = stopped.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// The choice of an event, and how many ids came with it.
fn ids_of(event: &ReplyEvent) -> (u32, usize) {
    match event {
        ReplyEvent::Text { choice, ids, .. } | ReplyEvent::Reasoning { choice, ids, .. } => {
            (*choice, ids.len())
        }
        ReplyEvent::Prompt { choice, .. }
        | ReplyEvent::ToolCallStart { choice, .. }
        | ReplyEvent::ToolCallArguments { choice, .. }
        | ReplyEvent::Finish { choice, .. } => (*choice, 0),
    }
}

/// Log-probabilities, alternatives included.
fn scores(tokens: &[TokenLogprob]) -> usize {
    tokens.iter().map(|token| token.top.len() + 1).sum()
}
