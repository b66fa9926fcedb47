//! Parses a reply that arrives in pieces into text and tool calls as events. Must not know dialects, tokens or the
//! origin of the text.

use headrace_domain::{FinishReason, ReplyEvent, RequestId, TokenLogprob};

use crate::family::ReplyFamily;
use crate::offered::CallFault;

mod body;
mod form;
mod gemma;
mod harmony;
mod known;
mod machine;
mod named;
mod nested;
mod object;
mod piece;
mod pythonic;
mod span;
mod step;
mod tagged;

pub use form::ReplyForm;
use harmony::HarmonyMachine;
use machine::MarkMachine;
use piece::ReplyPiece;

/// The source of tool-call ids. They derive from the request, so that a replayed answer has the same ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallIds {
    bits: u128,
}

impl CallIds {
    /// Creates the ids for the request with these 128 bits.
    pub const fn new(request_bits: u128) -> Self {
        Self { bits: request_bits }
    }

    /// Returns the id of call `index` of answer `choice`: `call_` and 32 hexadecimal digits. Within a request, distinct
    /// inputs give distinct ids.
    pub fn id(self, choice: u32, index: u32) -> String {
        // Every step is a bijection on 128 bits, so distinct calls of a request get distinct ids.
        let place = (u128::from(choice) << 32) | u128::from(index);
        let mut bits = self.bits ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        for _ in 0..2 {
            bits ^= bits >> 65;
            bits = bits.wrapping_mul(0xda94_2042_e4dd_58b5_d6e8_feb8_6659_fd93);
        }
        format!("call_{:032x}", bits ^ (bits >> 61))
    }
}

impl From<RequestId> for CallIds {
    fn from(request: RequestId) -> Self {
        Self::new(request.bits())
    }
}

/// Parses one answer. The result does not depend on how the text was cut into pieces, except for the number of events.
#[derive(Debug)]
pub struct ReplyParser {
    choice: u32,
    call_ids: CallIds,
    machine: ReplyMachine,
    /// The ids that the model gave its calls and that were used.
    given: Vec<String>,
    /// The number of tokens that arrived within the reasoning.
    reasoning: u64,
    finished: bool,
}

#[derive(Debug)]
enum ReplyMachine {
    /// Everything is text.
    Plain,
    Marked(Box<MarkMachine>),
    Harmony(Box<HarmonyMachine>),
}

impl ReplyMachine {
    /// Returns the pieces that `text` completes. Empty if everything is text.
    fn push(&mut self, text: &str) -> Vec<ReplyPiece> {
        match self {
            Self::Plain => Vec::new(),
            Self::Marked(machine) => machine.push(text),
            Self::Harmony(harmony) => harmony.push(text),
        }
    }

    fn finish(&mut self, stopped: bool) -> Vec<ReplyPiece> {
        match self {
            Self::Plain => Vec::new(),
            Self::Marked(machine) => machine.finish(stopped),
            Self::Harmony(harmony) => harmony.finish(stopped),
        }
    }

    fn calls(&self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::Marked(machine) => machine.calls(),
            Self::Harmony(harmony) => harmony.calls(),
        }
    }

    fn fault(&self) -> Option<CallFault> {
        match self {
            Self::Plain => None,
            Self::Marked(machine) => machine.fault(),
            Self::Harmony(harmony) => harmony.fault(),
        }
    }

    fn is_thinking(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::Marked(machine) => machine.is_thinking(),
            Self::Harmony(harmony) => harmony.is_thinking(),
        }
    }
}

impl ReplyParser {
    /// Creates a parser for answer `choice`. Text that looks like a call remains text if there is no such tool or its
    /// arguments are not JSON for the tool's schema.
    pub fn new(form: &ReplyForm, choice: u32, call_ids: CallIds) -> Self {
        let machine = match form.style.family {
            ReplyFamily::Harmony => ReplyMachine::Harmony(Box::new(HarmonyMachine::new(&form.offered))),
            family => {
                let calls = family != ReplyFamily::Plain && !form.offered.is_empty();
                let marks = form.style.thought.is_some() || family.answer().is_some();
                match calls || marks || !form.hidden.is_empty() {
                    true => ReplyMachine::Marked(Box::new(MarkMachine::new(form))),
                    false => ReplyMachine::Plain,
                }
            }
        };
        Self { choice, call_ids, machine, given: Vec::new(), reasoning: 0, finished: false }
    }

    /// Takes the next piece of the answer's text with its ids and log-probabilities. Appends the events that are
    /// decided now to `out`. Ids and log-probabilities are emitted at once: with the piece's first text event, or with
    /// an empty one before all other events.
    pub fn push(
        &mut self,
        text: String,
        ids: Vec<u32>,
        logprobs: Vec<TokenLogprob>,
        out: &mut Vec<ReplyEvent>,
    ) {
        let says_nothing = text.is_empty() && ids.is_empty() && logprobs.is_empty();
        if self.finished || says_nothing {
            return;
        }
        if matches!(self.machine, ReplyMachine::Plain) {
            // Emitted unchanged.
            out.push(ReplyEvent::Text { choice: self.choice, text, ids, logprobs });
            return;
        }
        let before = self.machine.calls();
        // The mark that closes the reasoning counts as reasoning.
        let thought = self.machine.is_thinking();
        let pieces = self.machine.push(&text);
        if thought || self.machine.is_thinking() {
            self.reasoning = self.reasoning.saturating_add(ids.len() as u64);
        }
        let mut carried = (!ids.is_empty() || !logprobs.is_empty()).then_some((ids, logprobs));
        if !matches!(pieces.first(), Some(ReplyPiece::Text(_) | ReplyPiece::Thought(_))) {
            out.extend(carried.take().map(|(ids, logprobs)| ReplyEvent::Text {
                choice: self.choice,
                text: String::new(),
                ids,
                logprobs,
            }));
        }
        self.emit(pieces, before, carried.unwrap_or_default(), out);
    }

    /// Ends the answer: emits the text that was held back, and the finish event. An answer that stopped by itself after
    /// making calls finishes with [`FinishReason::ToolCalls`].
    pub fn finish(&mut self, reason: FinishReason, out: &mut Vec<ReplyEvent>) {
        if self.finished {
            return;
        }
        self.finished = true;
        let before = self.machine.calls();
        let pieces = self.machine.finish(reason == FinishReason::Stop);
        self.emit(pieces, before, (Vec::new(), Vec::new()), out);
        let calls = self.machine.calls();
        let reason = if reason == FinishReason::Stop && calls > 0 { FinishReason::ToolCalls } else { reason };
        out.push(ReplyEvent::Finish { choice: self.choice, reason });
    }

    /// Returns the fault of the first text that looked like a call and is not one.
    pub fn fault(&self) -> Option<CallFault> {
        self.machine.fault()
    }

    /// The number of tokens that arrived within the reasoning, including the mark that closes it.
    pub const fn reasoning_tokens(&self) -> u64 {
        self.reasoning
    }

    /// Whether the answer is within its reasoning now.
    pub fn is_thinking(&self) -> bool {
        self.machine.is_thinking()
    }

    /// Returns the id of a call. Uses the model's own id unless another call of the answer already has it.
    fn call_id(&mut self, index: u32, given: Option<String>) -> String {
        match given.filter(|id| !id.is_empty() && !self.given.contains(id)) {
            Some(id) => {
                self.given.push(id.clone());
                id
            }
            None => self.call_ids.id(self.choice, index),
        }
    }

    fn emit(
        &mut self,
        pieces: Vec<ReplyPiece>,
        calls_before: u32,
        mut carried: (Vec<u32>, Vec<TokenLogprob>),
        out: &mut Vec<ReplyEvent>,
    ) {
        let choice = self.choice;
        let mut next = calls_before;
        for piece in pieces {
            out.push(match piece {
                ReplyPiece::Text(text) => {
                    let (ids, logprobs) = std::mem::take(&mut carried);
                    ReplyEvent::Text { choice, text, ids, logprobs }
                }
                ReplyPiece::Thought(text) => {
                    let (ids, logprobs) = std::mem::take(&mut carried);
                    ReplyEvent::Reasoning { choice, text, ids, logprobs }
                }
                ReplyPiece::Call { id, name } => {
                    let index = next;
                    next = next.saturating_add(1);
                    ReplyEvent::ToolCallStart { choice, index, id: self.call_id(index, id), name }
                }
                // The arguments belong to the previous call.
                ReplyPiece::Arguments(fragment) => {
                    ReplyEvent::ToolCallArguments { choice, index: next.saturating_sub(1), fragment }
                }
            });
        }
    }
}
