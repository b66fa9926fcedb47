//! The state of an upstream's answer in any dialect, and the conversion of its pieces into reply events.
//! Knows no JSON.

use headrace_domain::{FinishReason, ReplyEvent};

use headrace_wire::fault::head;

use super::calls::{CallAssembler, CallPiece, CallSink};
use super::facts::{EventFacts, EventKind};
use super::fault::{FaultKind, FaultNotes, ReplyFault};
use super::finish::{FinishMeaning, ended};
use super::lenient::MOST_NAME_BYTES;
use super::usage::UsageReports;

/// Limit in bytes for events that wait until a tool call is whole.
const MOST_WAITING_BYTES: usize = 1 << 20;
/// Bytes that an event counts for beside its text.
const EVENT_BYTES: usize = 128;
/// The longest part of an unknown finish reason that a note shows, in bytes.
const MOST_WORD_BYTES: usize = 64;
/// Bytes of text per token, if the upstream sends no count.
const BYTES_PER_TOKEN: u64 = 4;

/// The answer so far.
#[derive(Debug)]
pub(super) struct AnswerReader {
    pub(super) model: Option<String>,
    pub(super) id: Option<String>,
    pub(super) usage: UsageReports,
    pub(super) notes: FaultNotes,
    pub(super) generated: u64,
    /// Any data has come.
    pub(super) begun: bool,
    /// The upstream marked the end of the answer.
    pub(super) over: bool,
    choices: Vec<ChoiceReader>,
}

/// One of the requested answers.
#[derive(Debug, Default)]
struct ChoiceReader {
    finish: Option<FinishReason>,
    /// Any part of the choice has come, even if only its role.
    begun: bool,
    /// The model refused to answer.
    refused: bool,
    called: bool,
    calls: CallAssembler,
    /// Events that came during the arguments of a tool call and wait for their end.
    waiting: Vec<ReplyEvent>,
    /// Bytes of the waiting events.
    waiting_bytes: usize,
}

/// One event that is being read: the target for its reply events, and the facts about it.
#[derive(Debug)]
pub(super) struct EventReading<'a> {
    pub(super) out: Option<&'a mut Vec<ReplyEvent>>,
    pub(super) facts: EventFacts,
}

impl<'a> EventReading<'a> {
    pub(super) fn new(out: Option<&'a mut Vec<ReplyEvent>>) -> Self {
        Self { out, facts: EventFacts { meaningful: false, tokens: 0, kind: EventKind::Other } }
    }

    /// Records visible content of this length.
    fn saw(&mut self, bytes: usize) {
        self.facts.meaningful = true;
        self.facts.tokens += (bytes as u64).div_ceil(BYTES_PER_TOKEN);
    }
}

/// The kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    Answer,
    Reasoning,
    /// The model's refusal. It counts as text of the answer, and the choice ends with a content filter.
    Refusal,
}

impl AnswerReader {
    pub(super) fn new(choices: u32) -> Self {
        Self {
            model: None,
            id: None,
            usage: UsageReports::default(),
            notes: FaultNotes::default(),
            generated: 0,
            begun: false,
            over: false,
            choices: (0..choices.max(1)).map(|_| ChoiceReader::default()).collect(),
        }
    }

    /// Records the model and the id of the answer. The first value of each counts.
    pub(super) fn named(&mut self, model: Option<&str>, id: Option<&str>) {
        for (slot, given) in [(&mut self.model, model), (&mut self.id, id)] {
            if slot.is_none()
                && let Some(given) = given
            {
                *slot = Some(head(given, MOST_NAME_BYTES).to_owned());
            }
        }
    }

    pub(super) fn finish_of(&self, choice: u32) -> Option<&FinishReason> {
        self.choices.get(usize::try_from(choice).ok()?)?.finish.as_ref()
    }

    /// Adds a text to a choice.
    pub(super) fn said(&mut self, choice: u32, spoken: TextKind, text: &str, reading: &mut EventReading<'_>) {
        if text.is_empty() {
            return;
        }
        let Some(state) = self.open_choice(choice) else { return };
        state.refused |= spoken == TextKind::Refusal;
        reading.saw(text.len());
        if let Some(out) = reading.out.as_deref_mut() {
            let (text, ids, logprobs) = (text.to_owned(), Vec::new(), Vec::new());
            state.emit(
                match spoken {
                    TextKind::Reasoning => ReplyEvent::Reasoning { choice, text, ids, logprobs },
                    TextKind::Answer | TextKind::Refusal => ReplyEvent::Text { choice, text, ids, logprobs },
                },
                out,
            );
        }
    }

    /// Counts the bytes of a text whose content is not needed.
    pub(super) fn heard(&mut self, choice: u32, bytes: usize, reading: &mut EventReading<'_>) {
        if bytes > 0 && self.open_choice(choice).is_some() {
            reading.saw(bytes);
        }
    }

    /// Counts the bytes of a tool call's piece whose content is not needed. Returns `false` if the piece is left out.
    pub(super) fn heard_call(&mut self, choice: u32, bytes: usize, reading: &mut EventReading<'_>) -> bool {
        let Some(state) = self.open_choice(choice) else { return false };
        state.called = true;
        reading.saw(bytes);
        true
    }

    /// Adds the signature of the reasoning before it.
    pub(super) fn signed(&mut self, choice: u32, signature: &str, reading: &mut EventReading<'_>) {
        let Some(state) = self.open_choice(choice) else { return };
        if let Some(out) = reading.out.as_deref_mut() {
            state.emit(ReplyEvent::ReasoningSignature { choice, signature: signature.to_owned() }, out);
        }
    }

    /// Adds reasoning that only the upstream can read.
    pub(super) fn redacted(&mut self, choice: u32, data: &str, reading: &mut EventReading<'_>) {
        let Some(state) = self.open_choice(choice) else { return };
        reading.saw(data.len());
        if let Some(out) = reading.out.as_deref_mut() {
            state.emit(ReplyEvent::RedactedReasoning { choice, data: data.to_owned() }, out);
        }
    }

    /// Adds a piece of a tool call.
    ///
    /// # Errors
    /// The same as for [`CallAssembler::piece`], if reply events are requested.
    pub(super) fn called(
        &mut self,
        choice: u32,
        piece: CallPiece<'_>,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        if !self.heard_call(choice, piece.name.len() + piece.arguments.len(), reading) {
            return Ok(());
        }
        let Self { choices, notes, id, .. } = self;
        let Some(state) = choices.get_mut(choice as usize) else { return Ok(()) };
        let Some(out) = reading.out.as_deref_mut() else { return Ok(()) };
        let seed = id.as_deref().unwrap_or_default();
        state.calls.piece(piece, &mut CallSink { choice, seed, notes, out })?;
        state.release_waiting(out);
        Ok(())
    }

    /// Marks a tool call as complete.
    pub(super) fn call_over(&mut self, choice: u32, key: Option<u64>, reading: &mut EventReading<'_>) {
        let Self { choices, notes, id, .. } = self;
        if let (Some(state), Some(out)) = (choices.get_mut(choice as usize), reading.out.as_deref_mut()) {
            let seed = id.as_deref().unwrap_or_default();
            state.calls.over(key, &mut CallSink { choice, seed, notes, out });
            state.release_waiting(out);
        }
    }

    /// Ends a choice with the upstream's finish reason.
    ///
    /// # Errors
    /// Fails if the upstream gave up. If reply events are requested, also fails if a tool call has no name.
    pub(super) fn finished(
        &mut self,
        choice: u32,
        reason: &str,
        matched: Option<&str>,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        let reason = match ended(reason, matched) {
            FinishMeaning::By(reason) => reason,
            FinishMeaning::Nearly(nearest) => {
                let shown = head(reason, MOST_NAME_BYTES);
                self.notes.add(FaultKind::UnknownFinishReason, || format!("{shown:?} of choice {choice}"));
                nearest
            }
            FinishMeaning::Unknown => {
                let shown = head(reason, MOST_WORD_BYTES);
                self.notes.add(FaultKind::UnknownFinishReason, || {
                    format!("{shown:?} of choice {choice}, taken for `length`")
                });
                FinishReason::Length
            }
            FinishMeaning::GaveUp => {
                let message = format!("choice {choice} ended by {:?}", head(reason, MOST_NAME_BYTES));
                return Err(ReplyFault::new(FaultKind::GaveUp, message));
            }
        };
        self.ends(choice, reason, reading)
    }

    /// Marks a choice as begun.
    pub(super) fn begins(&mut self, choice: u32) {
        if let Some(state) = self.choices.get_mut(choice as usize) {
            state.begun = true;
        }
    }

    /// Whether every choice has a finish reason, so that no content is missing.
    pub(super) fn has_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    /// Handles the end marker of the stream. A choice without a finish reason ends here, as in a whole answer: the
    /// server's marker says that no content is missing.
    ///
    /// # Errors
    /// The same as for [`Self::finished`] and [`Self::is_over`].
    pub(super) fn ends_stream(&mut self, reading: &mut EventReading<'_>) -> Result<(), ReplyFault> {
        for choice in 0..u32::try_from(self.choices.len()).unwrap_or(u32::MAX) {
            if self.choices.get(choice as usize).is_some_and(|state| state.begun && state.finish.is_none()) {
                self.ended_silently(choice, reading)?;
            }
        }
        self.is_over()
    }

    /// Ends a choice that has no finish reason.
    ///
    /// # Errors
    /// The same as for [`Self::finished`].
    pub(super) fn ended_silently(
        &mut self,
        choice: u32,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        self.notes.add(FaultKind::MissingFinishReason, || format!("choice {choice}"));
        self.ends(choice, FinishReason::Stop, reading)
    }

    fn ends(
        &mut self,
        choice: u32,
        reason: FinishReason,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        if self.finish_of(choice).is_some() {
            self.notes.add(FaultKind::FinishTwice, || format!("choice {choice}"));
            return Ok(());
        }
        if self.open_choice(choice).is_none() {
            return Ok(());
        }
        let Self { choices, notes, id, .. } = self;
        let Some(state) = choices.get_mut(choice as usize) else { return Ok(()) };
        let reason = match reason {
            // Servers report `stop` for a tool that the caller named.
            FinishReason::Stop if state.called => FinishReason::ToolCalls,
            FinishReason::Stop if state.refused => FinishReason::ContentFilter,
            other => other,
        };
        reading.facts.meaningful = true;
        if let Some(out) = reading.out.as_deref_mut() {
            let seed = id.as_deref().unwrap_or_default();
            state.calls.end(&mut CallSink { choice, seed, notes, out })?;
            out.append(&mut state.waiting);
            out.push(ReplyEvent::Finish { choice, reason: reason.clone() });
        }
        state.finish = Some(reason);
        Ok(())
    }

    /// Returns the choice if it was requested and has not ended. Otherwise adds a note.
    fn open_choice(&mut self, choice: u32) -> Option<&mut ChoiceReader> {
        let count = self.choices.len();
        match self.choices.get_mut(usize::try_from(choice).ok()?) {
            None => self.notes.add(FaultKind::ChoiceOutOfRange, || format!("choice {choice} of {count}")),
            Some(state) if state.finish.is_some() => {
                self.notes.add(FaultKind::AfterFinish, || format!("choice {choice}"));
            }
            Some(state) => {
                state.begun = true;
                return Some(state);
            }
        }
        None
    }

    /// Checks the limit for events that wait for tool calls to end.
    ///
    /// # Errors
    /// Fails if the limit is exceeded.
    pub(super) fn is_bounded(&self) -> Result<(), ReplyFault> {
        let waiting =
            self.choices.iter().fold(0_usize, |sum, choice| sum.saturating_add(choice.waiting_bytes));
        if waiting <= MOST_WAITING_BYTES {
            return Ok(());
        }
        let message = format!("{waiting} bytes of the answer wait for the end of tool calls");
        Err(ReplyFault::new(FaultKind::TooMuchHeld, message))
    }

    /// Checks the choices at the end marker of the answer.
    ///
    /// # Errors
    /// Fails if no choice has a finish reason.
    pub(super) fn is_over(&mut self) -> Result<(), ReplyFault> {
        let ended = self.choices.iter().filter(|choice| choice.finish.is_some()).count();
        if ended == 0 {
            let message = "no answer has a finish reason";
            return Err(ReplyFault::new(FaultKind::NoFinishReason, message));
        }
        if ended < self.choices.len() {
            let message = || format!("{ended} of {} answers ended", self.choices.len());
            self.notes.add(FaultKind::FewerChoices, message);
        }
        Ok(())
    }

    /// Handles the end of the transport.
    ///
    /// # Errors
    /// Fails if the data so far is not a whole answer.
    pub(super) fn end(&mut self) -> Result<(), ReplyFault> {
        if self.over {
            return Ok(());
        }
        if !self.begun {
            return Err(ReplyFault::new(FaultKind::Empty, "it ended before anything came"));
        }
        if self.has_finished() {
            self.notes.add(FaultKind::MissingEnd, || "all finish reasons are here".into());
            return Ok(());
        }
        let tokens = self.generated;
        let message = format!("it ended after about {tokens} tokens, without a finish reason");
        Err(ReplyFault::new(FaultKind::BrokeOff, message))
    }
}

impl ChoiceReader {
    /// Emits an event, or keeps it while a tool call is open, because the pieces of a call must be contiguous.
    fn emit(&mut self, event: ReplyEvent, out: &mut Vec<ReplyEvent>) {
        if self.calls.is_open() {
            self.waiting_bytes = self.waiting_bytes.saturating_add(EVENT_BYTES + event.text_bytes());
            self.waiting.push(event);
        } else {
            out.push(event);
        }
    }

    fn release_waiting(&mut self, out: &mut Vec<ReplyEvent>) {
        if !self.calls.is_open() {
            out.append(&mut self.waiting);
            self.waiting_bytes = 0;
        }
    }
}
