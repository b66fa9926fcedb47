//! Reads chunks and whole bodies of OpenAI's dialect, as OpenAI and other servers write them, into an [`AnswerReader`].
//!
//! Source: <https://platform.openai.com/docs/api-reference/chat-streaming>. Reasoning follows vLLM, SGLang, llama.cpp,
//! DeepSeek and OpenRouter. Log-probabilities are not read, because the other dialect cannot carry them.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::answer::{AnswerReader, EventReading, TextKind};
use super::calls::CallPiece;
use super::facts::EventKind;
use super::fault::{self, FaultKind, ReplyFault};
use super::glance;
use super::lenient::{
    LenientContent, LenientCount, LenientItems, LenientLength, LenientText, is_there, or_default,
};
use super::usage_counts::UsageNames;
use super::usual::{self, UsualAnswer, WeighedChoice};

/// A chunk, or a whole body.
#[derive(Deserialize)]
struct ChatBody<'a> {
    #[serde(default, borrow)]
    id: LenientText<'a>,
    #[serde(default, borrow)]
    model: LenientText<'a>,
    #[serde(default, borrow, deserialize_with = "or_default")]
    choices: LenientItems<ChoiceBody<'a>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    service_tier: LenientText<'a>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    /// `"error"` in the flat error shape of SGLang and of older vLLM versions.
    #[serde(default, borrow)]
    object: LenientText<'a>,
}

#[derive(Deserialize)]
struct ChoiceBody<'a> {
    #[serde(default)]
    index: LenientCount,
    /// Only in a chunk.
    #[serde(default, borrow, deserialize_with = "or_default")]
    delta: MessageBody<'a>,
    /// Only in a whole body.
    #[serde(default, borrow, deserialize_with = "or_default")]
    message: MessageBody<'a>,
    /// Only in text completions.
    #[serde(default, borrow)]
    text: LenientText<'a>,
    #[serde(default, borrow)]
    finish_reason: LenientText<'a>,
    /// vLLM: the stop string, or the id of the stop token.
    #[serde(default, borrow)]
    stop_reason: Option<&'a RawValue>,
    /// SGLang's name for the same.
    #[serde(default, borrow)]
    matched_stop: Option<&'a RawValue>,
    /// vLLM, on request: the ids generated since the last chunk.
    #[serde(default)]
    token_ids: LenientLength,
}

#[derive(Default, Deserialize)]
struct MessageBody<'a> {
    #[serde(default, borrow)]
    content: LenientContent<'a>,
    /// DeepSeek, SGLang, llama.cpp.
    #[serde(default, borrow)]
    reasoning_content: LenientText<'a>,
    /// vLLM, OpenRouter.
    #[serde(default, borrow)]
    reasoning: LenientText<'a>,
    /// OpenRouter and other Headrace servers: the signatures and sealed data of the reasoning.
    #[serde(default, borrow, deserialize_with = "or_default")]
    reasoning_details: LenientItems<DetailBody<'a>>,
    #[serde(default, borrow)]
    refusal: LenientText<'a>,
    #[serde(default, borrow, deserialize_with = "or_default")]
    tool_calls: LenientItems<CallBody<'a>>,
    /// The older form, from before `tool_calls`.
    #[serde(default, borrow)]
    function_call: Option<FunctionBody<'a>>,
}

/// A reasoning detail. A stream sends it in pieces. The reasoning text repeats its text.
#[derive(Deserialize)]
struct DetailBody<'a> {
    #[serde(default, borrow)]
    text: LenientText<'a>,
    #[serde(default, borrow)]
    signature: LenientText<'a>,
    #[serde(default, borrow)]
    data: LenientText<'a>,
}

#[derive(Deserialize)]
struct CallBody<'a> {
    #[serde(default)]
    index: LenientCount,
    #[serde(default, borrow)]
    id: LenientText<'a>,
    #[serde(default, borrow, deserialize_with = "or_default")]
    function: FunctionBody<'a>,
}

#[derive(Default, Deserialize)]
struct FunctionBody<'a> {
    #[serde(default, borrow)]
    name: LenientText<'a>,
    /// JSON as a string. Some servers send the JSON itself.
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

/// The data that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// Reads one event of a stream.
pub(super) fn event(
    name: &[u8],
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let data = data.trim_ascii();
    if data.is_empty() {
        // Some servers send empty data to keep the connection alive.
        reading.facts.kind = EventKind::Ping;
        return Ok(());
    }
    if answer.over {
        answer.notes.add(FaultKind::AfterEnd, || format!("an event of {} bytes", data.len()));
        return Ok(());
    }
    answer.begun = true;
    if data == DONE {
        answer.over = true;
        reading.facts.kind = EventKind::End;
        return answer.ends_stream(reading);
    }
    // Every chunk names the model and the answer, but only the first chunk is read for them.
    if reading.out.is_none()
        && name != b"error"
        && answer.model.is_some()
        && let Some(seen) = glance::chunk(data)
    {
        reading.facts.kind = EventKind::Content;
        if seen.bytes == 0 {
            answer.begins(seen.choice);
        }
        answer.heard(seen.choice, seen.bytes, reading);
        return Ok(());
    }
    if reading.out.is_none()
        && name != b"error"
        && let Some(chunk) = usual::chunk(data)
    {
        return weighed_chunk(&chunk, answer, reading);
    }
    event_in_full(name, data, answer, reading)
}

pub(super) fn weighed_chunk(
    chunk: &UsualAnswer<'_>,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    answer.named(chunk.model, chunk.id);
    reading.facts.kind = EventKind::UsageOnly;
    if let Some(choice) = &chunk.choice {
        reading.facts.kind = EventKind::Content;
        answer.begins(choice.index);
        weighed_piece(choice, answer, reading);
        if let Some(reason) = choice.finish {
            answer.finished(choice.index, reason, choice.stop, reading)?;
        }
    }
    take_weighed_usage(chunk, answer);
    Ok(())
}

pub(super) fn event_in_full(
    name: &[u8],
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let body = read(data)?;
    if name == b"error" {
        return Err(error_inside(data));
    }
    let usage = body.usage.is_some();
    answer.named(body.model.given(), body.id.given());
    for choice in body.choices.iter() {
        reading.facts.kind = EventKind::Content;
        let index = index_of(choice);
        answer.begins(index);
        piece(index, choice, &choice.delta, answer, reading)?;
        if let Some(reason) = choice.finish_reason.given() {
            answer.finished(index, reason, stop_string(choice).as_deref(), reading)?;
        }
    }
    take_usage(&body, answer);
    if body.choices.is_empty() && usage {
        reading.facts.kind = EventKind::UsageOnly;
    }
    Ok(())
}

/// Reads a whole body.
pub(super) fn whole(
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let weighed = if reading.out.is_none() { usual::whole(data) } else { None };
    let Some((body, choice)) = weighed.as_ref().and_then(|body| Some((body, body.choice.as_ref()?))) else {
        return whole_in_full(data, answer, reading);
    };
    answer.begun = true;
    answer.over = true;
    reading.facts.kind = EventKind::Content;
    answer.named(body.model, body.id);
    take_weighed_usage(body, answer);
    weighed_piece(choice, answer, reading);
    match choice.finish {
        Some(reason) => answer.finished(choice.index, reason, choice.stop, reading)?,
        None => answer.ended_silently(choice.index, reading)?,
    }
    answer.is_over()
}

pub(super) fn whole_in_full(
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let body = read(data)?;
    answer.begun = true;
    answer.over = true;
    reading.facts.kind = EventKind::Content;
    answer.named(body.model.given(), body.id.given());
    take_usage(&body, answer);
    if body.choices.is_empty() {
        return Err(ReplyFault::new(FaultKind::Misshapen, "its `choices` are empty or missing"));
    }
    for choice in body.choices.iter() {
        let index = index_of(choice);
        piece(index, choice, &choice.message, answer, reading)?;
        match choice.finish_reason.given() {
            Some(reason) => answer.finished(index, reason, stop_string(choice).as_deref(), reading)?,
            None => answer.ended_silently(index, reading)?,
        }
    }
    answer.is_over()
}

/// Reads the answer of an encoder. The body is passed on as it is, so only its model, id and usage are read.
pub(super) fn encoded(
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let body = read(data)?;
    answer.begun = true;
    answer.over = true;
    reading.facts.kind = EventKind::Content;
    answer.named(body.model.given(), body.id.given());
    take_usage(&body, answer);
    Ok(())
}

fn read(data: &[u8]) -> Result<ChatBody<'_>, ReplyFault> {
    let body: ChatBody<'_> = match fault::object(data) {
        // An error may have any shape.
        Err(_) if holds_error(data) => return Err(error_inside(data)),
        read => read?,
    };
    let flat = body.choices.is_empty() && body.usage.is_none() && holds_error(data);
    if body.error.is_some() || body.object.as_str() == "error" || flat {
        return Err(error_inside(data));
    }
    Ok(body)
}

/// Fields that mark a body as an error.
#[derive(Deserialize)]
pub(super) struct ErrorSigns {
    error: Option<IgnoredAny>,
    detail: Option<IgnoredAny>,
    message: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "is_there")]
    choices: bool,
}

impl ErrorSigns {
    /// Reads the fields of an object. `None` if `data` is not an object.
    pub(super) fn of(data: &[u8]) -> Option<Self> {
        // serde would accept a list as well.
        (data.trim_ascii_start().first() == Some(&b'{')).then(|| serde_json::from_slice(data).ok())?
    }

    pub(super) fn is_error(&self) -> bool {
        self.error.is_some() || self.detail.is_some() || self.message.is_some()
    }
}

/// Whether a body that is not an answer describes an error.
fn holds_error(data: &[u8]) -> bool {
    ErrorSigns::of(data).is_some_and(|signs| signs.is_error() && !signs.choices)
}

fn error_inside(data: &[u8]) -> ReplyFault {
    fault::error_inside(headrace_domain::Dialect::OpenAi, data)
}

fn take_usage(body: &ChatBody<'_>, answer: &mut AnswerReader) {
    if let Some(tier) = body.service_tier.given() {
        answer.usage.tier(tier);
    }
    if let Some(usage) = body.usage {
        answer.usage.openai(usage, &mut answer.notes);
    }
}

fn take_weighed_usage(body: &UsualAnswer<'_>, answer: &mut AnswerReader) {
    if let Some(tier) = body.tier {
        answer.usage.tier(tier);
    }
    if let Some(usage) = &body.usage {
        answer.usage.read(UsageNames::Chat, usage, &mut answer.notes);
    }
}

/// Counts the new part of a choice whose content is not needed.
fn weighed_piece(choice: &WeighedChoice<'_>, answer: &mut AnswerReader, reading: &mut EventReading<'_>) {
    let before = reading.facts.tokens;
    for bytes in choice.texts {
        answer.heard(choice.index, bytes, reading);
    }
    for bytes in &choice.calls {
        answer.heard_call(choice.index, *bytes, reading);
    }
    if let Some(ids) = choice.ids {
        reading.facts.tokens = before + ids;
    }
}

/// The index of a choice. A choice without an index is the first.
fn index_of(choice: &ChoiceBody<'_>) -> u32 {
    match choice.index {
        LenientCount::Absent => 0,
        LenientCount::Absurd => u32::MAX,
        LenientCount::Is(index) => u32::try_from(index).unwrap_or(u32::MAX),
    }
}

/// Reads the new part of a choice.
fn piece(
    index: u32,
    choice: &ChoiceBody<'_>,
    message: &MessageBody<'_>,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let before = reading.facts.tokens;
    // If a server sends both names, their values are the same.
    let reasoning = message.reasoning_content.given().unwrap_or(message.reasoning.as_str());
    reason(index, reasoning, &message.reasoning_details, answer, reading);
    answer.said(index, TextKind::Reasoning, &message.content.reasoning, reading);
    answer.said(index, TextKind::Answer, &message.content.text, reading);
    answer.said(index, TextKind::Refusal, message.refusal.as_str(), reading);
    answer.said(index, TextKind::Answer, choice.text.as_str(), reading);
    for call in message.tool_calls.iter() {
        call_piece(index, call.index.given(), call.id.as_str(), &call.function, answer, reading)?;
    }
    if let Some(function) = &message.function_call {
        call_piece(index, Some(0), "", function, answer, reading)?;
    }
    if let Some(ids) = choice.token_ids.0 {
        reading.facts.tokens = before + ids;
    }
    Ok(())
}

/// Adds reasoning with its signatures. In a whole message, one text holds all sections, and each detail repeats its own
/// section.
fn reason(
    index: u32,
    mut text: &str,
    details: &[DetailBody<'_>],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) {
    for detail in details {
        let own = detail.text.as_str();
        if let Some(at) = text.find(own).filter(|_| !own.is_empty()) {
            let (section, rest) = text.split_at(at + own.len());
            answer.said(index, TextKind::Reasoning, section, reading);
            text = rest;
        }
        if let Some(signature) = detail.signature.given() {
            answer.signed(index, signature, reading);
        }
        if let Some(data) = detail.data.given() {
            answer.redacted(index, data, reading);
        }
    }
    answer.said(index, TextKind::Reasoning, text, reading);
}

fn call_piece(
    choice: u32,
    key: Option<u64>,
    id: &str,
    function: &FunctionBody<'_>,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let arguments = match function.arguments {
        None => LenientText::default(),
        Some(json) if json.get().starts_with('"') => serde_json::from_str(json.get()).unwrap_or_default(),
        Some(json) => LenientText(json.get().into()),
    };
    let piece = CallPiece { key, id, name: function.name.as_str(), arguments: arguments.as_str() };
    answer.called(choice, piece, reading)
}

/// The stop string that matched, if the server names it. A number is a token id.
fn stop_string(choice: &ChoiceBody<'_>) -> Option<String> {
    [choice.stop_reason, choice.matched_stop]
        .into_iter()
        .flatten()
        .find_map(|json| serde_json::from_str::<String>(json.get()).ok())
}
