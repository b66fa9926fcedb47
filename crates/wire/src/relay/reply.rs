//! Reads an upstream's answer, event by event or whole: what it used, how it ended, what is wrong with it, and, where its bytes
//! are not passed on as they are, what it says, as reply events. Knows no transport and no price.

mod answer;
mod anthropic;
mod calls;
mod conceal;
mod facts;
mod fault;
mod finish;
mod glance;
mod lenient;
mod openai;
mod reported;
mod responses;
mod strict;
mod usage;
mod usage_body;
mod usage_counts;
mod usual;
mod usual_message;

#[cfg(test)]
mod bound_tests;
#[cfg(test)]
mod end_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod responses_tests;
#[cfg(test)]
mod round_trip_tests;
#[cfg(test)]
mod usage_tests;
#[cfg(test)]
mod usual_tests;

pub use conceal::{concealed, concealed_class, concealed_usage};
pub use facts::{EventFacts, EventKind};
pub use fault::{FaultKind, ReplyFault};
pub use reported::{KnownUsage, ReportedUsage};

use headrace_domain::{Endpoint, FinishReason, ReplyEvent, Usage};

use answer::{Answer, Reading};
use anthropic::Blocks;
use responses::Called;
use usage::Reports;

/// What ends a good stream: the event that some servers leave out.
pub const fn end_of_stream(endpoint: Endpoint) -> &'static [u8] {
    match endpoint {
        Endpoint::ChatCompletions
        | Endpoint::Completions
        | Endpoint::Responses
        | Endpoint::Embeddings
        | Endpoint::Rerank
        | Endpoint::Score => b"data: [DONE]\n\n",
        Endpoint::Messages => b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    }
}

/// Reads one answer.
#[derive(Debug)]
pub struct ReplyReader {
    endpoint: Endpoint,
    stream: bool,
    answer: Answer,
    blocks: Blocks,
    called: Called,
}

impl ReplyReader {
    /// A reader of what `endpoint` answers, in the upstream's dialect: a stream or not, with so many answers (prompts × `n`).
    pub fn new(endpoint: Endpoint, stream: bool, choices: u32) -> Self {
        let choices = if matches!(endpoint, Endpoint::Messages | Endpoint::Responses) { 1 } else { choices };
        let mut answer = Answer::new(choices);
        if matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score) {
            answer.usage = Reports::of_encoder();
        }
        Self { endpoint, stream, answer, blocks: Blocks::default(), called: Called::default() }
    }

    /// Takes one event of a stream. With `out` it also gives what the event says, as reply events; without, nothing is copied,
    /// and pieces of tool calls are not put in order. An answer is read in one of the two ways from beginning to end.
    ///
    /// Token ids and log-probabilities of OpenAI's dialect do not become part of the reply events: Anthropic's has no place for
    /// them, and an answer in the caller's own dialect is passed on as it is.
    ///
    /// # Errors
    /// A fault that ends the answer. One that is put up with stands in [`Self::notes`].
    pub fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        out: Option<&mut Vec<ReplyEvent>>,
    ) -> Result<EventFacts, ReplyFault> {
        self.delivered(true);
        let was_whole = self.has_finished();
        let mut reading = Reading::new(out);
        let read = match self.endpoint {
            Endpoint::Responses => {
                responses::event(name, data, &mut self.called, &mut self.answer, &mut reading)
            }
            Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Embeddings
            | Endpoint::Rerank
            | Endpoint::Score => openai::event(name, data, &mut self.answer, &mut reading),
            Endpoint::Messages => {
                anthropic::event(name, data, &mut self.blocks, &mut self.answer, &mut reading)
            }
        };
        match read {
            Ok(()) => {}
            // The content has ended: a fault of what follows takes nothing from it.
            Err(fault) if was_whole => {
                self.answer.notes.add(FaultKind::AfterEnd, || fault.to_string());
                return Ok(EventFacts { meaningful: false, tokens: 0, kind: EventKind::Broken });
            }
            Err(fault) => return Err(fault),
        }
        self.answer.generated += reading.facts.tokens;
        if reading.out.is_some() {
            self.answer.is_bounded()?;
        }
        Ok(reading.facts)
    }

    /// Takes a body that is no stream, whatever was asked for.
    ///
    /// # Errors
    /// As [`Self::event`].
    pub fn whole(
        &mut self,
        body: &[u8],
        out: Option<&mut Vec<ReplyEvent>>,
    ) -> Result<EventFacts, ReplyFault> {
        self.delivered(false);
        let mut reading = Reading::new(out);
        match self.endpoint {
            Endpoint::Responses => responses::whole(body, &mut self.answer, &mut reading)?,
            Endpoint::ChatCompletions | Endpoint::Completions => {
                openai::whole(body, &mut self.answer, &mut reading)?;
            }
            Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => {
                openai::encoded(body, &mut self.answer, &mut reading)?;
            }
            Endpoint::Messages => anthropic::whole(body, &mut self.answer, &mut reading)?,
        }
        self.answer.generated += reading.facts.tokens;
        Ok(reading.facts)
    }

    fn delivered(&mut self, as_stream: bool) {
        if self.stream != as_stream {
            let what = if as_stream { "a stream where a whole body" } else { "a whole body where a stream" };
            self.answer.notes.add(FaultKind::OtherDelivery, || format!("{what} was asked for"));
        }
    }

    /// The transport ended.
    ///
    /// # Errors
    /// Nothing came, or the answer broke off.
    pub fn end(&mut self) -> Result<(), ReplyFault> {
        self.answer.end()
    }

    /// Whether every choice has a finish reason: nothing of the answer's content is missing.
    pub fn has_finished(&self) -> bool {
        self.answer.has_finished()
    }

    /// What the upstream reported so far, in the classes that have prices. Before the end it may be the prompt's part only.
    pub fn usage(&self) -> Option<Usage> {
        self.reported().map(ReportedUsage::usage)
    }

    /// What the upstream reported so far, in every class.
    pub fn reported(&self) -> Option<&ReportedUsage> {
        self.answer.usage.reported()
    }

    /// The usable part of what the upstream reported so far.
    pub fn known_usage(&self) -> KnownUsage {
        self.answer.usage.known()
    }

    /// Names what the report lacks so that tokens have to be estimated. `None` if it lacks nothing.
    pub fn usage_gap(&self) -> Option<&'static str> {
        self.answer.usage.gap()
    }

    /// The service tier that the upstream says it billed.
    pub fn service_tier(&self) -> Option<&str> {
        self.answer.usage.service_tier()
    }

    /// Tokens generated so far, all answers together; estimated where the upstream does not send ids.
    pub fn generated(&self) -> u64 {
        self.answer.generated
    }

    /// Why a choice ended.
    pub fn finish(&self, choice: u32) -> Option<&FinishReason> {
        self.answer.finish_of(choice)
    }

    /// The model that answered, as the upstream names it.
    pub fn model(&self) -> Option<&str> {
        self.answer.model.as_deref()
    }

    /// The upstream's id of the answer.
    pub fn upstream_id(&self) -> Option<&str> {
        self.answer.id.as_deref()
    }

    /// Whether the stream's own end came.
    pub fn is_over(&self) -> bool {
        self.answer.over
    }

    /// Whether the last event came that says in itself what the answer took, however that ended: a response's does.
    pub fn is_told_whole(&self) -> bool {
        self.answer.over && self.endpoint == Endpoint::Responses
    }

    /// Faults that were put up with, the first of each kind.
    pub fn notes(&self) -> &[ReplyFault] {
        self.answer.notes.all()
    }
}
