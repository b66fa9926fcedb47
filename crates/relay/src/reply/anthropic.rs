//! Reads events and whole messages of Anthropic's dialect into an [`AnswerReader`].
//!
//! Source: <https://docs.anthropic.com/en/api/messages-streaming>. Events of unknown types are left out, as the source
//! asks.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer::{AnswerReader, EventReading, TextKind};
use super::calls::CallPiece;
use super::facts::EventKind;
use super::fault::{self, FaultKind, ReplyFault};
use super::glance;
use super::lenient::{LenientCount, LenientItems, LenientText, or_default};
use super::usage_counts::UsageNames;
use super::usual_message;

/// An event of a stream.
#[derive(Deserialize)]
struct AnthropicEvent<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: LenientText<'a>,
    #[serde(default)]
    index: LenientCount,
    #[serde(default, borrow)]
    message: Option<AnthropicMessage<'a>>,
    #[serde(default, borrow)]
    content_block: Option<AnthropicBlock<'a>>,
    #[serde(default, borrow, deserialize_with = "or_default")]
    delta: AnthropicDelta<'a>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// A whole message, or the beginning of one.
#[derive(Deserialize)]
struct AnthropicMessage<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: LenientText<'a>,
    #[serde(default, borrow)]
    id: LenientText<'a>,
    #[serde(default, borrow)]
    model: LenientText<'a>,
    #[serde(default, borrow)]
    content: Option<LenientItems<AnthropicBlock<'a>>>,
    #[serde(default, borrow)]
    stop_reason: LenientText<'a>,
    #[serde(default, borrow)]
    stop_sequence: LenientText<'a>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnthropicBlock<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: LenientText<'a>,
    #[serde(default, borrow)]
    text: LenientText<'a>,
    #[serde(default, borrow)]
    thinking: LenientText<'a>,
    #[serde(default, borrow)]
    signature: LenientText<'a>,
    #[serde(default, borrow)]
    data: LenientText<'a>,
    #[serde(default, borrow)]
    id: LenientText<'a>,
    #[serde(default, borrow)]
    name: LenientText<'a>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct AnthropicDelta<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: LenientText<'a>,
    #[serde(default, borrow)]
    text: LenientText<'a>,
    #[serde(default, borrow)]
    thinking: LenientText<'a>,
    #[serde(default, borrow)]
    signature: LenientText<'a>,
    #[serde(default, borrow)]
    partial_json: LenientText<'a>,
    #[serde(default, borrow)]
    stop_reason: LenientText<'a>,
    #[serde(default, borrow)]
    stop_sequence: LenientText<'a>,
}

/// The open blocks of a message. The dialect allows at most one.
#[derive(Debug, Default)]
pub(super) struct OpenBlocks {
    open: Vec<OpenBlock>,
    /// Number of tool calls that began.
    calls: u64,
}

#[derive(Debug)]
struct OpenBlock {
    index: u64,
    kind: BlockKind,
    /// Number of the tool call, if the block is one.
    call: Option<u64>,
    /// The input from the start of a tool call. It counts only if no piece follows.
    input: String,
    signature: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    Redacted,
    ToolUse,
    /// A type that only this dialect has.
    Other,
}

impl BlockKind {
    fn of(name: &str) -> Self {
        match name {
            "text" => Self::Text,
            "thinking" => Self::Thinking,
            "redacted_thinking" => Self::Redacted,
            "tool_use" => Self::ToolUse,
            _ => Self::Other,
        }
    }
}

/// Limit in bytes for the signature of a reasoning section. It comes in pieces and is kept until it is whole.
const MOST_SIGNATURE_BYTES: usize = 1 << 20;

/// The only choice: a message is one answer.
const ONLY: u32 = 0;

/// Reads one event of a stream.
pub(super) fn event(
    name: &[u8],
    data: &[u8],
    blocks: &mut OpenBlocks,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    if answer.over {
        answer.notes.add(FaultKind::AfterEnd, || format!("an event of {} bytes", data.len()));
        return Ok(());
    }
    answer.begun = true;
    if reading.out.is_none()
        && let Some(seen) = glance::delta(data)
    {
        reading.facts.kind = EventKind::Content;
        answer.heard(ONLY, seen.bytes, reading);
        return Ok(());
    }
    let event: AnthropicEvent<'_> = match fault::object(data) {
        Err(_) if name == b"error" => return Err(error_inside(data)),
        read => read?,
    };
    // Some servers leave out either the event's name or its `type`. The two never contradict each other.
    let kind = event.kind.given().map_or(name, str::as_bytes);
    match kind {
        b"message_start" => start(&event, blocks, answer, reading)?,
        b"content_block_start" => {
            reading.facts.kind = EventKind::Content;
            if let Some(block) = &event.content_block {
                blocks.open(event.index, block, answer, reading)?;
            }
        }
        b"content_block_delta" => {
            reading.facts.kind = EventKind::Content;
            blocks.delta(event.index, &event.delta, answer, reading)?;
        }
        b"content_block_stop" => {
            reading.facts.kind = EventKind::Content;
            blocks.close(event.index, answer, reading)?;
        }
        b"message_delta" => {
            reading.facts.kind = EventKind::Content;
            take_usage(event.usage, answer);
            if let Some(reason) = event.delta.stop_reason.given() {
                blocks.close_all(answer, reading)?;
                answer.finished(ONLY, reason, event.delta.stop_sequence.given(), reading)?;
            }
        }
        b"message_stop" => {
            reading.facts.kind = EventKind::End;
            answer.over = true;
            if !answer.has_finished() {
                blocks.close_all(answer, reading)?;
            }
            answer.ends_stream(reading)?;
        }
        b"ping" => reading.facts.kind = EventKind::Ping,
        b"error" => return Err(error_inside(data)),
        _ if event.error.is_some() => return Err(error_inside(data)),
        other => {
            let shown = || format!("an event {:?}", bounded_name(other));
            answer.notes.add(FaultKind::UnknownEvent, shown);
        }
    }
    Ok(())
}

/// Reads a whole message.
pub(super) fn whole(
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let weighed = if reading.out.is_none() { usual_message::message(data) } else { None };
    let Some(message) = weighed else { return whole_in_full(data, answer, reading) };
    answer.begun = true;
    answer.over = true;
    reading.facts.kind = EventKind::Content;
    answer.named(message.model, message.id);
    if let Some(usage) = &message.usage {
        answer.usage.read(UsageNames::Anthropic, usage, &mut answer.notes);
    }
    if message.has_signature {
        answer.begins(ONLY);
    }
    for bytes in message.texts {
        answer.heard(ONLY, bytes, reading);
    }
    for bytes in message.calls {
        answer.heard_call(ONLY, bytes, reading);
    }
    match message.stop_reason {
        Some(reason) => answer.finished(ONLY, reason, message.stop_sequence, reading),
        None => answer.ended_silently(ONLY, reading),
    }
}

pub(super) fn whole_in_full(
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let message: AnthropicMessage<'_> = fault::object(data)?;
    if message.error.is_some() || message.kind.as_str() == "error" {
        return Err(error_inside(data));
    }
    answer.begun = true;
    answer.over = true;
    reading.facts.kind = EventKind::Content;
    answer.named(message.model.given(), message.id.given());
    take_usage(message.usage, answer);
    let Some(content) = &message.content else {
        return Err(ReplyFault::new(FaultKind::Misshapen, "it has no `content`"));
    };
    let mut blocks = OpenBlocks::default();
    for (index, block) in content.iter().enumerate() {
        blocks.open(LenientCount::Is(index as u64), block, answer, reading)?;
        blocks.close_all(answer, reading)?;
    }
    match message.stop_reason.given() {
        Some(reason) => answer.finished(ONLY, reason, message.stop_sequence.given(), reading),
        None => answer.ended_silently(ONLY, reading),
    }
}

fn start(
    event: &AnthropicEvent<'_>,
    blocks: &mut OpenBlocks,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let Some(message) = &event.message else { return Ok(()) };
    answer.named(message.model.given(), message.id.given());
    answer.begins(ONLY);
    take_usage(message.usage, answer);
    for (index, block) in message.content.iter().flat_map(|content| content.iter()).enumerate() {
        blocks.open(LenientCount::Is(index as u64), block, answer, reading)?;
        blocks.close_all(answer, reading)?;
    }
    Ok(())
}

fn take_usage(usage: Option<&RawValue>, answer: &mut AnswerReader) {
    if let Some(usage) = usage {
        answer.usage.anthropic(usage, &mut answer.notes);
    }
}

fn error_inside(data: &[u8]) -> ReplyFault {
    fault::error_inside(headrace_domain::Dialect::Anthropic, data)
}

/// Shortens a name that an upstream made up, for a note.
fn bounded_name(name: &[u8]) -> String {
    String::from_utf8_lossy(name.get(..64).unwrap_or(name)).into_owned()
}

impl OpenBlocks {
    fn open(
        &mut self,
        index: LenientCount,
        block: &AnthropicBlock<'_>,
        answer: &mut AnswerReader,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        let index = index.given().unwrap_or(0);
        if !self.open.is_empty() {
            answer.notes.add(FaultKind::OutOfOrder, || format!("block {index} began before another ended"));
            self.close_all(answer, reading)?;
        }
        let kind = BlockKind::of(block.kind.as_str());
        let mut open = OpenBlock {
            index,
            kind,
            call: None,
            input: String::new(),
            signature: block.signature.as_str().to_owned(),
        };
        match kind {
            BlockKind::Text => answer.said(ONLY, TextKind::Answer, block.text.as_str(), reading),
            BlockKind::Thinking => answer.said(ONLY, TextKind::Reasoning, block.thinking.as_str(), reading),
            BlockKind::Redacted => answer.redacted(ONLY, block.data.as_str(), reading),
            BlockKind::ToolUse => {
                block.input.map_or("", RawValue::get).clone_into(&mut open.input);
                let (id, name) = (block.id.as_str(), block.name.as_str());
                open.call = Some(self.calls);
                self.calls += 1;
                let piece = CallPiece { key: open.call, id, name, ..CallPiece::default() };
                answer.called(ONLY, piece, reading)?;
            }
            BlockKind::Other => {
                let name = block.kind.as_str();
                let shown = || format!("a block of type {:?}", bounded_name(name.as_bytes()));
                answer.notes.add(FaultKind::NotCarried, shown);
            }
        }
        self.open.push(open);
        Ok(())
    }

    fn delta(
        &mut self,
        index: LenientCount,
        delta: &AnthropicDelta<'_>,
        answer: &mut AnswerReader,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        let index = index.given().unwrap_or(0);
        let open = self.open.iter_mut().find(|open| open.index == index);
        if open.is_none() {
            answer
                .notes
                .add(FaultKind::OutOfOrder, || format!("a piece of block {index}, which is not open"));
        }
        match delta.kind.as_str() {
            "text_delta" => answer.said(ONLY, TextKind::Answer, delta.text.as_str(), reading),
            "thinking_delta" => answer.said(ONLY, TextKind::Reasoning, delta.thinking.as_str(), reading),
            "signature_delta" => match open {
                Some(open) => {
                    open.signature.push_str(delta.signature.as_str());
                    if open.signature.len() > MOST_SIGNATURE_BYTES {
                        let message = format!("a signature of more than {MOST_SIGNATURE_BYTES} bytes");
                        return Err(ReplyFault::new(FaultKind::TooMuchHeld, message));
                    }
                }
                None => answer.signed(ONLY, delta.signature.as_str(), reading),
            },
            "input_json_delta" => {
                let arguments = delta.partial_json.as_str();
                let key = match open {
                    // The input of a tool that runs at the upstream.
                    Some(open) if open.kind != BlockKind::ToolUse => return Ok(()),
                    Some(open) => {
                        if !arguments.is_empty() {
                            open.input.clear();
                        }
                        open.call
                    }
                    // No call has this number.
                    None => Some(u64::MAX),
                };
                answer.called(ONLY, CallPiece { key, arguments, ..CallPiece::default() }, reading)?;
            }
            other => {
                let shown = || format!("a piece of type {:?}", bounded_name(other.as_bytes()));
                answer.notes.add(FaultKind::NotCarried, shown);
            }
        }
        Ok(())
    }

    fn close(
        &mut self,
        index: LenientCount,
        answer: &mut AnswerReader,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        let index = index.given().unwrap_or(0);
        match self.open.iter().position(|open| open.index == index) {
            Some(at) => self.open.swap_remove(at).close(answer, reading),
            None => Ok(()),
        }
    }

    fn close_all(
        &mut self,
        answer: &mut AnswerReader,
        reading: &mut EventReading<'_>,
    ) -> Result<(), ReplyFault> {
        self.open.drain(..).try_for_each(|open| open.close(answer, reading))
    }
}

impl OpenBlock {
    fn close(self, answer: &mut AnswerReader, reading: &mut EventReading<'_>) -> Result<(), ReplyFault> {
        if !self.signature.is_empty() {
            answer.signed(ONLY, &self.signature, reading);
        }
        if !self.input.is_empty() {
            let piece = CallPiece { key: self.call, arguments: &self.input, ..CallPiece::default() };
            answer.called(ONLY, piece, reading)?;
        }
        if self.call.is_some() {
            answer.call_over(ONLY, self.call, reading);
        }
        Ok(())
    }
}
