//! Stages `postprocess` and `deliver`: engine events to reply events (tool calls taken out of the text) to bytes in the
//! caller's dialect. One machine for streamed and whole answers, so that they cannot differ.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{Endpoint, Prompt, PromptItem, ReplyEvent, TokenLogprob, ToolChoice, Usage};
use headrace_engine_api::{Event, JobError};
use headrace_prompt::{CallIds, ReplyFamily, ReplyParser};
use headrace_wire::{ErrorFacts, ReplyEncoder, ReplyMeta, encoder};

use crate::delivery::DeliverySender;
use crate::dossier::Dossier;
use crate::state::Work;

/// The answer in the making.
pub(super) struct Reply {
    work: Arc<Work>,
    encoder: Box<dyn ReplyEncoder>,
    parsers: Vec<ReplyParser>,
    finish: Vec<&'static str>,
    begun: bool,
    meaningful: bool,
    /// Ids generated so far, over all choices.
    generated: u64,
    /// Of those, ids up to the end of what is encoded.
    written: u64,
    /// Ids whose text waits in a choice's parser.
    unwritten: Vec<u64>,
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
            system_fingerprint: work.model.capabilities.numerics.clone(),
            tier: work.call.tier,
        };
        let choices = u32::try_from(work.prompts.len()).unwrap_or(u32::MAX).saturating_mul(work.sampling.n);
        let family = family(&work);
        let parsers =
            (0..choices).map(|choice| ReplyParser::new(family, choice, CallIds::from(dossier.id))).collect();
        Self {
            encoder: encoder(&work.call, meta),
            work,
            parsers,
            unwritten: vec![0; choices as usize],
            finish: vec!["unfinished"; choices as usize],
            begun: false,
            meaningful: false,
            generated: 0,
            written: 0,
            first_token_ns: None,
            postprocess_ns: 0,
            deliver_ns: 0,
            events: Vec::new(),
            out: BytesMut::new(),
        }
    }

    /// Takes one event of the job of prompt `job`. An error ends the call.
    pub(super) fn take(&mut self, job: usize, event: Event, dossier: &Dossier) -> Result<(), JobError> {
        let from = dossier.clock.monotonic_nanos();
        let (mut choice, mut ids) = (None, 0);
        match event {
            Event::Started { cached_tokens } => {
                self.begin(u64::from(cached_tokens));
                if self.wants_prompt() && self.work.sampling.prompt_logprobs.is_none() {
                    self.prompt_of(job, &[]);
                }
            }
            Event::Scored(scores) => {
                self.begin(0);
                self.meaningful = true;
                if self.wants_prompt() {
                    self.prompt_of(job, &scores.tokens);
                }
            }
            Event::Tokens { choice: of, ids: new, text, logprobs } => {
                self.begin(0);
                self.meaningful = true;
                (choice, ids) = (Some(of), new.len() as u64);
                self.generated += ids;
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
        self.encode(choice, ids);
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
        self.encoder.keep_alive(&mut self.out);
        sender.push(&mut self.out, self.written);
    }

    /// The end of an answer that ended well; of a whole answer, all of it.
    pub(super) fn finish(&mut self, usage: &Usage, explained: Option<&serde_json::Value>) -> BytesMut {
        self.begin(usage.cached_input);
        self.encoder.finish(usage, explained, &mut self.out);
        std::mem::take(&mut self.out)
    }

    /// The end of one that failed after it began.
    pub(super) fn fail(&mut self, facts: &ErrorFacts) -> BytesMut {
        self.encoder.fail(facts, &mut self.out);
        std::mem::take(&mut self.out)
    }

    pub(super) fn content_type(&self) -> &'static str {
        self.encoder.content_type()
    }

    /// Whether there is something to show, so that the status line may go out.
    pub(super) fn is_meaningful(&self) -> bool {
        self.meaningful
    }

    pub(super) fn generated(&self) -> u64 {
        self.generated
    }

    pub(super) fn first_token_ns(&self) -> Option<u64> {
        self.first_token_ns
    }

    /// Time spent in post-processing and in encoding and handing over, in nanoseconds.
    pub(super) fn times_ns(&self) -> (u64, u64) {
        (self.postprocess_ns, self.deliver_ns)
    }

    pub(super) fn finish_names(&self) -> Vec<String> {
        self.finish.iter().map(|name| (*name).to_owned()).collect()
    }

    fn begin(&mut self, cached: u64) {
        if !self.begun {
            self.begun = true;
            let prompt = self.work.prompt_tokens();
            let cached_input = cached.min(prompt);
            let usage = Usage { input: prompt - cached_input, cached_input, ..Usage::default() };
            self.encoder.begin(&usage, &mut self.out);
        }
    }

    /// Encodes what the parsers gave. The tokens of a choice are written once an event of it shows in the bytes.
    fn encode(&mut self, choice: Option<u32>, ids: u64) {
        let before = self.out.len();
        for event in self.events.drain(..) {
            if let ReplyEvent::Finish { choice, reason } = &event
                && let Some(slot) = self.finish.get_mut(*choice as usize)
            {
                *slot = reason.name();
            }
            self.encoder.event(&event, &mut self.out);
        }
        if let Some(unwritten) = choice.and_then(|choice| self.unwritten.get_mut(choice as usize)) {
            *unwritten += ids;
            if self.out.len() > before {
                self.written += std::mem::take(unwritten);
            }
        }
    }

    fn wants_prompt(&self) -> bool {
        let call = &self.work.call;
        call.echo || call.return_token_ids || call.sampling.prompt_logprobs.is_some()
    }

    /// The prompt of a job, once for each of its choices.
    fn prompt_of(&mut self, job: usize, scores: &[TokenLogprob]) {
        let Some(ids) = self.work.prompts.get(job) else { return };
        let text = match &self.work.call.prompt {
            Prompt::Raw(items) => match items.get(job) {
                Some(PromptItem::Text(text)) => text.clone(),
                _ => self.work.model.tokenizer.decode(ids, false),
            },
            Prompt::Conversation(_) => self.work.model.tokenizer.decode(ids, false),
        };
        let first = u32::try_from(job).unwrap_or(u32::MAX).saturating_mul(self.work.sampling.n);
        for choice in first..first.saturating_add(self.work.sampling.n) {
            self.events.push(ReplyEvent::Prompt {
                choice,
                text: text.clone(),
                ids: ids.to_vec(),
                logprobs: scores.to_vec(),
            });
        }
    }
}

/// Tool calls are looked for only where tools were offered: elsewhere the same text is just text.
fn family(work: &Work) -> ReplyFamily {
    match &work.call.prompt {
        Prompt::Conversation(conversation)
            if work.call.endpoint != Endpoint::Completions
                && !conversation.tools.is_empty()
                && conversation.tool_choice != ToolChoice::None =>
        {
            work.model.family
        }
        _ => ReplyFamily::Plain,
    }
}
