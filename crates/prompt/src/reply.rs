//! The reply read back: text and tool calls as events, from text that arrives in pieces.
//! Must not know dialects, tokens or how the text came about.

use std::sync::Arc;

use headrace_domain::{FinishReason, ReplyEvent, RequestId, TokenLogprob};

use crate::family::ReplyFamily;
use crate::hermes::{Hermes, Piece};
use crate::offered::{CallFault, OfferedTools};

/// Where the ids of tool calls come from: the request, so that a replayed answer has the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallIds {
    bits: u128,
}

impl CallIds {
    /// Ids for the request with these 128 bits.
    pub const fn new(request_bits: u128) -> Self {
        Self { bits: request_bits }
    }

    /// The id of call `index` of answer `choice`: `call_` and 32 hexadecimal digits, distinct for distinct inputs
    /// within a request.
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

/// Reads one answer. What comes out does not depend on how the text was cut into pieces, save for the number of
/// events that carry it.
#[derive(Debug)]
pub struct ReplyParser {
    choice: u32,
    call_ids: CallIds,
    machine: Option<Hermes>,
    finished: bool,
}

impl ReplyParser {
    /// A parser for answer `choice` of a model of `family`, to which these tools were offered. What looks like a call and
    /// cannot be carried out, because there is no such tool or its arguments are not JSON for the tool's schema, is text.
    pub fn new(family: ReplyFamily, choice: u32, call_ids: CallIds, offered: &Arc<OfferedTools>) -> Self {
        let machine = match family {
            ReplyFamily::Hermes => Some(Hermes::new(Arc::clone(offered))),
            _ => None,
        };
        Self { choice, call_ids, machine, finished: false }
    }

    /// Takes the next piece of the answer's text with the ids and log-probabilities that came with it, and adds what
    /// is decided by now to `out`. Ids and log-probabilities go out at once, on the piece's first text event or on an
    /// empty one before everything else.
    pub fn push(
        &mut self,
        text: &str,
        ids: Vec<u32>,
        logprobs: Vec<TokenLogprob>,
        out: &mut Vec<ReplyEvent>,
    ) {
        if self.finished {
            return;
        }
        let before = self.calls();
        let pieces = match &mut self.machine {
            Some(machine) => machine.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Text(text.to_owned())],
        };
        let mut carried = (!ids.is_empty() || !logprobs.is_empty()).then_some((ids, logprobs));
        if !matches!(pieces.first(), Some(Piece::Text(_))) {
            out.extend(carried.take().map(|(ids, logprobs)| ReplyEvent::Text {
                choice: self.choice,
                text: String::new(),
                ids,
                logprobs,
            }));
        }
        self.emit(pieces, before, carried.unwrap_or_default(), out);
    }

    /// The answer has ended: gives out what was held back and the finish event. An answer that stopped by itself
    /// after making calls finishes with [`FinishReason::ToolCalls`].
    pub fn finish(&mut self, reason: FinishReason, out: &mut Vec<ReplyEvent>) {
        if self.finished {
            return;
        }
        self.finished = true;
        let before = self.calls();
        let pieces = self.machine.as_mut().map(Hermes::finish).unwrap_or_default();
        self.emit(pieces, before, (Vec::new(), Vec::new()), out);
        let reason =
            if reason == FinishReason::Stop && self.calls() > 0 { FinishReason::ToolCalls } else { reason };
        out.push(ReplyEvent::Finish { choice: self.choice, reason });
    }

    /// What was wrong with the first text that looked like a call and is none.
    pub fn fault(&self) -> Option<CallFault> {
        self.machine.as_ref().and_then(Hermes::fault)
    }

    fn calls(&self) -> u32 {
        self.machine.as_ref().map_or(0, Hermes::calls)
    }

    fn emit(
        &self,
        pieces: Vec<Piece>,
        calls_before: u32,
        mut carried: (Vec<u32>, Vec<TokenLogprob>),
        out: &mut Vec<ReplyEvent>,
    ) {
        let choice = self.choice;
        let mut next = calls_before;
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    let (ids, logprobs) = std::mem::take(&mut carried);
                    out.push(ReplyEvent::Text { choice, text, ids, logprobs });
                }
                Piece::Call { name, arguments: fragment } => {
                    let index = next;
                    next = next.saturating_add(1);
                    let id = self.call_ids.id(choice, index);
                    out.push(ReplyEvent::ToolCallStart { choice, index, id, name });
                    out.push(ReplyEvent::ToolCallArguments { choice, index, fragment });
                }
            }
        }
    }
}
