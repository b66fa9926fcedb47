//! Reads an upstream's answer, event by event or whole: its usage, its end and its faults. If the bytes are not passed
//! on as they are, the content becomes reply events, too. Knows no transport and no price.

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

use answer::{AnswerReader, EventReading};
use anthropic::OpenBlocks;
use responses::CallItems;
use usage::UsageReports;

/// The event that ends a complete stream. Some servers leave it out.
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
    answer: AnswerReader,
    blocks: OpenBlocks,
    called: CallItems,
}

impl ReplyReader {
    /// Creates a reader for answers of `endpoint` in the upstream's dialect. `choices` is the number of answers:
    /// prompts × `n`.
    pub fn new(endpoint: Endpoint, stream: bool, choices: u32) -> Self {
        let choices = if matches!(endpoint, Endpoint::Messages | Endpoint::Responses) { 1 } else { choices };
        let mut answer = AnswerReader::new(choices);
        if matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score) {
            answer.usage = UsageReports::of_encoder();
        }
        Self { endpoint, stream, answer, blocks: OpenBlocks::default(), called: CallItems::default() }
    }

    /// Reads one event of a stream. With `out`, it also adds the event's content as reply events. Without `out`, it
    /// copies nothing and does not put pieces of tool calls in order. An answer must be read in one of the two ways
    /// from start to end.
    ///
    /// Token ids and log-probabilities of OpenAI's dialect do not become part of the reply events. Anthropic's dialect
    /// cannot carry them, and an answer in the caller's own dialect is passed on as it is.
    ///
    /// # Errors
    /// A fault that ends the answer. Tolerated faults are in [`Self::notes`].
    pub fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        out: Option<&mut Vec<ReplyEvent>>,
    ) -> Result<EventFacts, ReplyFault> {
        self.delivered(true);
        let was_whole = self.has_finished();
        let mut reading = EventReading::new(out);
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
            // The content was complete before this event, so a fault here does not invalidate it.
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

    /// Reads a whole body, even if a stream was requested.
    ///
    /// # Errors
    /// The same as for [`Self::event`].
    pub fn whole(
        &mut self,
        body: &[u8],
        out: Option<&mut Vec<ReplyEvent>>,
    ) -> Result<EventFacts, ReplyFault> {
        self.delivered(false);
        let mut reading = EventReading::new(out);
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

    /// Handles the end of the transport.
    ///
    /// # Errors
    /// Fails if no data came, or if the answer broke off.
    pub fn end(&mut self) -> Result<(), ReplyFault> {
        self.answer.end()
    }

    /// Whether every choice has a finish reason, so that no content is missing.
    pub fn has_finished(&self) -> bool {
        self.answer.has_finished()
    }

    /// The usage that the upstream reported so far, in the classes that have prices. Before the end, it may cover only
    /// the prompt.
    pub fn usage(&self) -> Option<Usage> {
        self.reported().map(ReportedUsage::usage)
    }

    /// The usage that the upstream reported so far, in every class.
    pub fn reported(&self) -> Option<&ReportedUsage> {
        self.answer.usage.reported()
    }

    /// The usable part of the usage that the upstream reported so far.
    pub fn known_usage(&self) -> KnownUsage {
        self.answer.usage.known()
    }

    /// Names the missing part of the report, for which tokens must be estimated. `None` if no part is missing.
    pub fn usage_gap(&self) -> Option<&'static str> {
        self.answer.usage.gap()
    }

    /// The service tier that the upstream says it billed.
    pub fn service_tier(&self) -> Option<&str> {
        self.answer.usage.service_tier()
    }

    /// Tokens generated so far, of all choices together. Estimated if the upstream sends no ids.
    pub fn generated(&self) -> u64 {
        self.answer.generated
    }

    /// The finish reason of a choice. `None` if the choice has not ended.
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

    /// Whether the upstream marked the end of the answer.
    pub fn is_over(&self) -> bool {
        self.answer.over
    }

    /// Whether the last event came and reports the usage of the whole answer by itself, regardless of how the answer
    /// ended. Only the Responses API has such an event.
    pub fn has_final_usage(&self) -> bool {
        self.answer.over && self.endpoint == Endpoint::Responses
    }

    /// Tolerated faults, the first of each kind.
    pub fn notes(&self) -> &[ReplyFault] {
        self.answer.notes.all()
    }
}
