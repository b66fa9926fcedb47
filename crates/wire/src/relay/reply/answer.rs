//! What is known of an upstream's answer so far, whatever its dialect, and what each piece of it becomes.
//! Knows no JSON.

use headrace_domain::{FinishReason, ReplyEvent};

use crate::fault::head;

use super::calls::{Calls, Piece, Target};
use super::facts::{EventFacts, EventKind};
use super::fault::{FaultKind, Notes, ReplyFault};
use super::finish::{Ended, ended};
use super::lenient::MOST_NAME_BYTES;
use super::usage::Reports;

/// The most bytes of an answer's events that wait until a tool call is whole.
const MOST_WAITING_BYTES: usize = 1 << 20;
/// What an event takes beside its text.
const EVENT_BYTES: usize = 128;
/// The longest unknown finish reason that a note shows, in bytes.
const MOST_WORD_BYTES: usize = 64;
/// Bytes of text that are taken for one token, where nobody counted.
const BYTES_PER_TOKEN: u64 = 4;

/// The answer so far.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) model: Option<String>,
    pub(super) id: Option<String>,
    pub(super) usage: Reports,
    pub(super) notes: Notes,
    pub(super) generated: u64,
    /// Something came.
    pub(super) begun: bool,
    /// The stream's own end came.
    pub(super) over: bool,
    choices: Vec<Choice>,
}

/// One of the answers that were asked for.
#[derive(Debug, Default)]
struct Choice {
    finish: Option<FinishReason>,
    /// Something of it came, if only its role.
    begun: bool,
    /// It said why it does not answer.
    refused: bool,
    called: bool,
    calls: Calls,
    /// What came within a tool call's arguments and waits for their end.
    waiting: Vec<ReplyEvent>,
    /// Its bytes.
    waiting_bytes: usize,
}

/// One event being read: where its reply events go, and what it turned out to be.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub(super) out: Option<&'a mut Vec<ReplyEvent>>,
    pub(super) facts: EventFacts,
}

impl<'a> Reading<'a> {
    pub(super) fn new(out: Option<&'a mut Vec<ReplyEvent>>) -> Self {
        Self { out, facts: EventFacts { meaningful: false, tokens: 0, kind: EventKind::Other } }
    }

    /// Something of the answer with so many bytes came.
    fn saw(&mut self, bytes: usize) {
        self.facts.meaningful = true;
        self.facts.tokens += (bytes as u64).div_ceil(BYTES_PER_TOKEN);
    }
}

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    Answer,
    Reasoning,
    /// Why the model does not answer: text of the answer, which ends as refused.
    Refusal,
}

impl Answer {
    pub(super) fn new(choices: u32) -> Self {
        Self {
            model: None,
            id: None,
            usage: Reports::default(),
            notes: Notes::default(),
            generated: 0,
            begun: false,
            over: false,
            choices: (0..choices.max(1)).map(|_| Choice::default()).collect(),
        }
    }

    /// Who answers, as told first.
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

    /// Text of an answer.
    pub(super) fn said(&mut self, choice: u32, spoken: Spoken, text: &str, reading: &mut Reading<'_>) {
        if text.is_empty() {
            return;
        }
        let Some(state) = self.open_choice(choice) else { return };
        state.refused |= spoken == Spoken::Refusal;
        reading.saw(text.len());
        if let Some(out) = reading.out.as_deref_mut() {
            let (text, ids, logprobs) = (text.to_owned(), Vec::new(), Vec::new());
            state.emit(
                match spoken {
                    Spoken::Reasoning => ReplyEvent::Reasoning { choice, text, ids, logprobs },
                    Spoken::Answer | Spoken::Refusal => ReplyEvent::Text { choice, text, ids, logprobs },
                },
                out,
            );
        }
    }

    /// As many bytes of text, where nobody asks what it says.
    pub(super) fn heard(&mut self, choice: u32, bytes: usize, reading: &mut Reading<'_>) {
        if bytes > 0 && self.open_choice(choice).is_some() {
            reading.saw(bytes);
        }
    }

    /// A piece of a tool call with as many bytes, where nobody asks what it says. `false`: it is left out.
    pub(super) fn heard_call(&mut self, choice: u32, bytes: usize, reading: &mut Reading<'_>) -> bool {
        let Some(state) = self.open_choice(choice) else { return false };
        state.called = true;
        reading.saw(bytes);
        true
    }

    /// What vouches for the reasoning before it.
    pub(super) fn signed(&mut self, choice: u32, signature: &str, reading: &mut Reading<'_>) {
        let Some(state) = self.open_choice(choice) else { return };
        if let Some(out) = reading.out.as_deref_mut() {
            state.emit(ReplyEvent::ReasoningSignature { choice, signature: signature.to_owned() }, out);
        }
    }

    /// Reasoning that only the upstream can read.
    pub(super) fn redacted(&mut self, choice: u32, data: &str, reading: &mut Reading<'_>) {
        let Some(state) = self.open_choice(choice) else { return };
        reading.saw(data.len());
        if let Some(out) = reading.out.as_deref_mut() {
            state.emit(ReplyEvent::RedactedReasoning { choice, data: data.to_owned() }, out);
        }
    }

    /// A piece of a tool call.
    ///
    /// # Errors
    /// As [`Calls::piece`], where reply events are wanted.
    pub(super) fn called(
        &mut self,
        choice: u32,
        piece: Piece<'_>,
        reading: &mut Reading<'_>,
    ) -> Result<(), ReplyFault> {
        if !self.heard_call(choice, piece.name.len() + piece.arguments.len(), reading) {
            return Ok(());
        }
        let Self { choices, notes, id, .. } = self;
        let Some(state) = choices.get_mut(choice as usize) else { return Ok(()) };
        let Some(out) = reading.out.as_deref_mut() else { return Ok(()) };
        let seed = id.as_deref().unwrap_or_default();
        state.calls.piece(piece, &mut Target { choice, seed, notes, out })?;
        state.let_go(out);
        Ok(())
    }

    /// No more of a tool call comes.
    pub(super) fn call_over(&mut self, choice: u32, key: Option<u64>, reading: &mut Reading<'_>) {
        let Self { choices, notes, id, .. } = self;
        if let (Some(state), Some(out)) = (choices.get_mut(choice as usize), reading.out.as_deref_mut()) {
            let seed = id.as_deref().unwrap_or_default();
            state.calls.over(key, &mut Target { choice, seed, notes, out });
            state.let_go(out);
        }
    }

    /// An answer ended.
    ///
    /// # Errors
    /// The upstream gave up; a tool call without a name, where reply events are wanted.
    pub(super) fn finished(
        &mut self,
        choice: u32,
        reason: &str,
        matched: Option<&str>,
        reading: &mut Reading<'_>,
    ) -> Result<(), ReplyFault> {
        let reason = match ended(reason, matched) {
            Ended::By(reason) => reason,
            Ended::Nearly(nearest) => {
                let shown = head(reason, MOST_NAME_BYTES);
                self.notes.add(FaultKind::UnknownFinishReason, || format!("{shown:?} of choice {choice}"));
                nearest
            }
            Ended::Unknown => {
                let shown = head(reason, MOST_WORD_BYTES);
                self.notes.add(FaultKind::UnknownFinishReason, || {
                    format!("{shown:?} of choice {choice}, taken for `length`")
                });
                FinishReason::Length
            }
            Ended::GaveUp => {
                let message = format!("choice {choice} ended by {:?}", head(reason, MOST_NAME_BYTES));
                return Err(ReplyFault::new(FaultKind::GaveUp, message));
            }
        };
        self.ends(choice, reason, reading)
    }

    /// Something of a choice came.
    pub(super) fn begins(&mut self, choice: u32) {
        if let Some(state) = self.choices.get_mut(choice as usize) {
            state.begun = true;
        }
    }

    /// Whether every choice has a finish reason: nothing of the answer's content is missing.
    pub(super) fn has_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    /// The stream's own end came. A choice without a finish reason ends here, as it does in a whole answer: the end is the server's
    /// word that nothing is missing.
    ///
    /// # Errors
    /// As [`Self::finished`] and [`Self::is_over`].
    pub(super) fn ends_stream(&mut self, reading: &mut Reading<'_>) -> Result<(), ReplyFault> {
        for choice in 0..u32::try_from(self.choices.len()).unwrap_or(u32::MAX) {
            if self.choices.get(choice as usize).is_some_and(|state| state.begun && state.finish.is_none()) {
                self.ended_silently(choice, reading)?;
            }
        }
        self.is_over()
    }

    /// A whole answer ended without saying why.
    ///
    /// # Errors
    /// As [`Self::finished`].
    pub(super) fn ended_silently(
        &mut self,
        choice: u32,
        reading: &mut Reading<'_>,
    ) -> Result<(), ReplyFault> {
        self.notes.add(FaultKind::MissingFinishReason, || format!("choice {choice}"));
        self.ends(choice, FinishReason::Stop, reading)
    }

    fn ends(
        &mut self,
        choice: u32,
        reason: FinishReason,
        reading: &mut Reading<'_>,
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
            // Servers say `stop` of a call that the caller named.
            FinishReason::Stop if state.called => FinishReason::ToolCalls,
            FinishReason::Stop if state.refused => FinishReason::ContentFilter,
            other => other,
        };
        reading.facts.meaningful = true;
        if let Some(out) = reading.out.as_deref_mut() {
            let seed = id.as_deref().unwrap_or_default();
            state.calls.end(&mut Target { choice, seed, notes, out })?;
            out.append(&mut state.waiting);
            out.push(ReplyEvent::Finish { choice, reason: reason.clone() });
        }
        state.finish = Some(reason);
        Ok(())
    }

    /// The choice, where it was asked for and has not ended.
    fn open_choice(&mut self, choice: u32) -> Option<&mut Choice> {
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

    /// Whether what waits for tool calls to end is little enough to be kept.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn is_bounded(&self) -> Result<(), ReplyFault> {
        let waiting =
            self.choices.iter().fold(0_usize, |sum, choice| sum.saturating_add(choice.waiting_bytes));
        if waiting <= MOST_WAITING_BYTES {
            return Ok(());
        }
        let message = format!("{waiting} bytes of the answer wait for the end of tool calls");
        Err(ReplyFault::new(FaultKind::TooMuchHeld, message))
    }

    /// The answer says that it is over.
    ///
    /// # Errors
    /// No choice has a finish reason.
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

    /// The transport ended.
    ///
    /// # Errors
    /// What came is no whole answer.
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

impl Choice {
    /// Sends an event on, or keeps it while a tool call is under way: a call's pieces stand together.
    fn emit(&mut self, event: ReplyEvent, out: &mut Vec<ReplyEvent>) {
        if self.calls.is_open() {
            self.waiting_bytes = self.waiting_bytes.saturating_add(EVENT_BYTES + event.text_bytes());
            self.waiting.push(event);
        } else {
            out.push(event);
        }
    }

    fn let_go(&mut self, out: &mut Vec<ReplyEvent>) {
        if !self.calls.is_open() {
            out.append(&mut self.waiting);
            self.waiting_bytes = 0;
        }
    }
}
