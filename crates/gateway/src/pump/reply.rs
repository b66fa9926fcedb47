//! Stages `postprocess` and `deliver`: engine events to reply events (tool calls taken out of the text) to bytes in the
//! caller's dialect. One machine for streamed and whole answers, so that they cannot differ.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Endpoint, Prompt, PromptItem, ReplyEvent, ShownPrompt, TokenLogprob, ToolChoice, Usage,
};
use headrace_engine_api::{Event, JobError};
use headrace_prompt::{CallIds, OfferedTools, ReplyFamily, ReplyParser};
use headrace_wire::{ErrorFacts, ReplyEncoder, ReplyMeta, encoder};

use crate::delivery::DeliverySender;
use crate::dossier::Dossier;
use crate::lane::Lane;
use crate::state::Work;

/// Log-probabilities and ids that are written as JSON on the event loop; more of them take milliseconds.
const ENCODED_INLINE: usize = 4096;
/// What one of them takes as JSON, mostly: a buffer made so large at once does not grow by copying itself.
const WRITTEN_BYTES: usize = 80;

/// The answer in the making.
pub(super) struct Reply {
    work: Arc<Work>,
    /// `None` only once the answer is over.
    encoder: Option<Box<dyn ReplyEncoder>>,
    parsers: Vec<ReplyParser>,
    finish: Vec<&'static str>,
    begun: bool,
    meaningful: bool,
    /// What the prompt took, as far as it showed when the answer began.
    prompt: Usage,
    /// Ids generated so far, over all choices.
    generated: u64,
    /// Of those, ids up to the end of what is encoded.
    written: u64,
    /// Ids whose text waits in a choice's parser.
    unwritten: Vec<u64>,
    /// Log-probabilities and tokens that the encoder has taken in: what its work goes by.
    taken_in: usize,
    content_type: &'static str,
    first_token_ns: Option<u64>,
    postprocess_ns: u64,
    deliver_ns: u64,
    events: Vec<ReplyEvent>,
    out: BytesMut,
}

impl Reply {
    pub(super) fn new(work: Arc<Work>, dossier: &Dossier) -> Self {
        let meta = ReplyMeta {
            request_id: dossier.id,
            created_unix_s: dossier.record.started.seconds(),
            model: work.call.model.clone(),
            system_fingerprint: work.model.lane.numerics().to_owned(),
            tier: work.call.tier,
        };
        let choices = u32::try_from(work.prompts.len()).unwrap_or(u32::MAX).saturating_mul(work.sampling.n);
        let (family, encoder) = (family(&work), encoder(&work.call, meta));
        let offered = Arc::new(match (&work.call.prompt, family) {
            (Prompt::Conversation(conversation), ReplyFamily::Hermes) => OfferedTools::of(conversation),
            _ => OfferedTools::default(),
        });
        let parsers = (0..choices)
            .map(|choice| ReplyParser::new(family, choice, CallIds::from(dossier.id), &offered))
            .collect();
        Self {
            content_type: encoder.content_type(),
            encoder: Some(encoder),
            work,
            parsers,
            unwritten: vec![0; choices as usize],
            finish: vec!["unfinished"; choices as usize],
            begun: false,
            meaningful: false,
            prompt: Usage::default(),
            generated: 0,
            written: 0,
            taken_in: 0,
            first_token_ns: None,
            postprocess_ns: 0,
            deliver_ns: 0,
            events: Vec::new(),
            out: BytesMut::new(),
        }
    }

    /// Takes one event of the job of prompt `job`. An error ends the call.
    pub(super) async fn take(&mut self, job: usize, event: Event, dossier: &Dossier) -> Result<(), JobError> {
        let from = dossier.clock.monotonic_nanos();
        let (mut choice, mut ids) = (None, 0);
        match event {
            Event::Started { cached_tokens } => {
                self.begin(u64::from(cached_tokens));
                if self.wants_prompt() && self.work.sampling.prompt_logprobs.is_none() {
                    self.prompt_of(job, Vec::new());
                }
            }
            Event::Scored(scores) => {
                self.begin(0);
                self.meaningful = true;
                if self.wants_prompt() {
                    self.prompt_of(job, scores.tokens);
                }
            }
            Event::Tokens { choice: of, ids: new, text, logprobs } => {
                self.begin(0);
                self.meaningful = true;
                (choice, ids) = (Some(of), new.len() as u64);
                self.generated += ids;
                self.taken_in += new.len() + scores(&logprobs);
                if self.first_token_ns.is_none() {
                    self.first_token_ns = Some(dossier.elapsed_ns());
                }
                if let Some(parser) = self.parsers.get_mut(of as usize) {
                    parser.push(&text, new, logprobs, &mut self.events);
                }
            }
            Event::Finished { choice: of, reason } => {
                self.begin(0);
                self.meaningful = true;
                choice = Some(of);
                if let Some(parser) = self.parsers.get_mut(of as usize) {
                    parser.finish(reason, &mut self.events);
                }
            }
            Event::Done(_) => {}
            Event::Failed { error, .. } => return Err(error),
        }
        let parsed = dossier.clock.monotonic_nanos();
        self.encode(choice, ids).await;
        self.postprocess_ns += parsed.saturating_sub(from);
        self.deliver_ns += dossier.clock.monotonic_nanos().saturating_sub(parsed);
        Ok(())
    }

    /// Gives what is encoded to the transport. Of a whole answer nothing is, before its end.
    pub(super) fn hand_over(&mut self, sender: &DeliverySender, dossier: &Dossier) {
        if self.out.is_empty() {
            return;
        }
        let from = dossier.clock.monotonic_nanos();
        sender.push(&mut self.out, self.written);
        self.deliver_ns += dossier.clock.monotonic_nanos().saturating_sub(from);
    }

    pub(super) fn keep_alive(&mut self, sender: &DeliverySender) {
        if let Some(encoder) = &mut self.encoder {
            encoder.keep_alive(&mut self.out);
        }
        sender.push(&mut self.out, self.written);
    }

    /// The end of an answer that ended well; of a whole answer, all of it.
    pub(super) async fn finish(
        &mut self,
        usage: &Usage,
        mut explained: Option<serde_json::Value>,
    ) -> BytesMut {
        self.begin(usage.cached_input);
        if let Some(serde_json::Value::Object(block)) = &mut explained {
            // Spelled as in the trace; how the call as a whole ended is not known yet.
            block.insert("outcome".to_owned(), serde_json::json!({ "finish_reasons": self.finish_names() }));
        }
        let usage = *usage;
        // A stream has written what it took in; a whole answer is written here.
        let large = !self.work.call.stream && self.taken_in > ENCODED_INLINE;
        let bytes = if large { self.taken_in.saturating_mul(WRITTEN_BYTES) } else { 0 };
        let end = move |mut encoder: Box<dyn ReplyEncoder>, out: &mut BytesMut| {
            out.reserve(bytes);
            encoder.finish(&usage, explained.as_ref(), out);
            // What it took in is let go of here, too.
            drop(encoder);
            None
        };
        self.with_encoder(large, end).await;
        std::mem::take(&mut self.out)
    }

    /// The end of one that failed after it began.
    pub(super) fn fail(&mut self, facts: &ErrorFacts) -> BytesMut {
        // What a panic left here was settled as not delivered.
        self.out.clear();
        if let Some(encoder) = &mut self.encoder {
            encoder.fail(facts, &mut self.out);
        }
        std::mem::take(&mut self.out)
    }

    pub(super) fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// Whether there is something to show, so that the status line may go out.
    pub(super) fn is_meaningful(&self) -> bool {
        self.meaningful
    }

    pub(super) fn generated(&self) -> u64 {
        self.generated
    }

    /// What the call took at least: an engine that died, or was too slow to let go, has not said what it did.
    pub(super) fn at_least(&self, reported: Usage) -> Usage {
        if reported.output >= self.generated {
            return reported;
        }
        let has_prompt = reported.input + reported.cached_input > 0;
        Usage { output: self.generated, ..if has_prompt { reported } else { self.prompt } }
    }

    pub(super) fn first_token_ns(&self) -> Option<u64> {
        self.first_token_ns
    }

    /// Time spent in post-processing and in encoding and handing over, in nanoseconds.
    pub(super) fn times_ns(&self) -> (u64, u64) {
        (self.postprocess_ns, self.deliver_ns)
    }

    /// How each choice ended; behind a colon, why something that looked like a tool call was given out as text.
    pub(super) fn finish_names(&self) -> Vec<String> {
        let fault = |parser: &ReplyParser| parser.fault().map(|fault| format!(":{}", fault.name()));
        let faults = self.parsers.iter().map(|parser| fault(parser).unwrap_or_default());
        self.finish.iter().zip(faults).map(|(name, fault)| format!("{name}{fault}")).collect()
    }

    fn begin(&mut self, cached: u64) {
        if !self.begun {
            self.begun = true;
            let prompt = self.work.prompt_tokens();
            let cached_input = cached.min(prompt);
            self.prompt = Usage { input: prompt - cached_input, cached_input, ..Usage::default() };
            if let Some(encoder) = &mut self.encoder {
                encoder.begin(&self.prompt, &mut self.out);
            }
        }
    }

    /// Encodes what the parsers gave. The tokens of a choice are written once an event of it shows in the bytes.
    async fn encode(&mut self, choice: Option<u32>, ids: u64) {
        let before = self.out.len();
        self.write_events().await;
        if let Some(unwritten) = choice.and_then(|choice| self.unwritten.get_mut(choice as usize)) {
            *unwritten += ids;
            if self.out.len() > before {
                self.written += std::mem::take(unwritten);
            }
        }
    }

    async fn write_events(&mut self) {
        let mut weight = 0;
        for event in &self.events {
            match event {
                ReplyEvent::Finish { choice, reason } => {
                    if let Some(slot) = self.finish.get_mut(*choice as usize) {
                        *slot = reason.name();
                    }
                }
                ReplyEvent::Prompt { prompt, .. } => weight += scores(&prompt.logprobs) + prompt.ids.len(),
                _ => {}
            }
        }
        if weight <= ENCODED_INLINE {
            if let Some(encoder) = &mut self.encoder {
                self.events.drain(..).for_each(|event| encoder.event(&event, &mut self.out));
            }
            return;
        }
        self.taken_in += weight;
        let events = std::mem::take(&mut self.events);
        let written = if self.work.call.stream { weight } else { 0 };
        let large = move |mut encoder: Box<dyn ReplyEncoder>, out: &mut BytesMut| {
            out.reserve(written.saturating_mul(WRITTEN_BYTES));
            events.into_iter().for_each(|event| encoder.event(&event, out));
            Some(encoder)
        };
        self.with_encoder(true, large).await;
    }

    /// Lets `write` have the encoder and what it has written so far; where it is `large`, off the event loop. What panics
    /// there panics here.
    async fn with_encoder<W>(&mut self, large: bool, write: W)
    where
        W: FnOnce(Box<dyn ReplyEncoder>, &mut BytesMut) -> Option<Box<dyn ReplyEncoder>> + Send + 'static,
    {
        let Some(encoder) = self.encoder.take() else { return };
        if !large {
            self.encoder = write(encoder, &mut self.out);
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        let writing = tokio::task::spawn_blocking(move || {
            let encoder = write(encoder, &mut out);
            (encoder, out)
        });
        match writing.await {
            Ok((encoder, out)) => (self.encoder, self.out) = (encoder, out),
            Err(stopped) => {
                if let Ok(panic) = stopped.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }

    fn wants_prompt(&self) -> bool {
        let call = &self.work.call;
        call.echo || call.return_token_ids || call.sampling.prompt_logprobs.is_some()
    }

    /// The prompt of a job, once for each of its choices.
    fn prompt_of(&mut self, job: usize, logprobs: Vec<TokenLogprob>) {
        let Some(ids) = self.work.prompts.get(job) else { return };
        let Lane::Tokens(lane) = &self.work.model.lane;
        let text = match &self.work.call.prompt {
            Prompt::Raw(items) if self.work.call.echo => match items.get(job) {
                Some(PromptItem::Text(text)) => text.clone(),
                _ => lane.tokenizer.decode(ids, false),
            },
            _ => String::new(),
        };
        let prompt = Arc::new(ShownPrompt { text, ids: Arc::clone(ids), logprobs });
        let first = u32::try_from(job).unwrap_or(u32::MAX).saturating_mul(self.work.sampling.n);
        for choice in first..first.saturating_add(self.work.sampling.n) {
            self.events.push(ReplyEvent::Prompt { choice, prompt: Arc::clone(&prompt) });
        }
    }
}

/// Log-probabilities, alternatives included.
fn scores(tokens: &[TokenLogprob]) -> usize {
    tokens.iter().map(|token| token.top.len() + 1).sum()
}

/// Tool calls are looked for only where tools were offered: elsewhere the same text is just text.
fn family(work: &Work) -> ReplyFamily {
    let Lane::Tokens(lane) = &work.model.lane;
    match &work.call.prompt {
        Prompt::Conversation(conversation)
            if work.call.endpoint != Endpoint::Completions
                && !conversation.tools.is_empty()
                && conversation.tool_choice != ToolChoice::None =>
        {
            lane.family
        }
        _ => ReplyFamily::Plain,
    }
}
