//! Reads events and whole bodies of OpenAI's Responses API, as its servers write them, into an [`AnswerReader`]. Items that
//! are not read, such as the work of tools on the server, are still passed on as they came.
//!
//! Source: <https://platform.openai.com/docs/api-reference/responses-streaming>.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::answer::{AnswerReader, EventReading, TextKind};
use super::calls::CallPiece;
use super::facts::EventKind;
use super::fault::{self, FaultKind, ReplyFault};
use super::lenient::{LenientCount, LenientItems, LenientText, or_default};
use super::openai::ErrorSigns;

/// The data that ends a stream, if the server sends it. The last event of the response has already ended the answer.
const DONE: &[u8] = b"[DONE]";

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type", default, borrow)]
    kind: LenientText<'a>,
    #[serde(default, borrow)]
    response: Option<&'a RawValue>,
    #[serde(default, borrow)]
    delta: LenientText<'a>,
    #[serde(default)]
    output_index: LenientCount,
    #[serde(default, borrow)]
    item: Option<&'a RawValue>,
}

/// A response, in an event or as a body.
#[derive(Deserialize)]
struct ResponseBody<'a> {
    #[serde(default, borrow)]
    id: LenientText<'a>,
    #[serde(default, borrow)]
    model: LenientText<'a>,
    #[serde(default, borrow)]
    status: LenientText<'a>,
    #[serde(default, borrow)]
    output: Option<&'a RawValue>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    service_tier: LenientText<'a>,
    #[serde(default, borrow, deserialize_with = "or_default")]
    incomplete_details: IncompleteDetails<'a>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct IncompleteDetails<'a> {
    #[serde(default, borrow)]
    reason: LenientText<'a>,
}

#[derive(Default, Deserialize)]
struct OutputItemBody<'a> {
    #[serde(rename = "type", default, borrow)]
    kind: LenientText<'a>,
    #[serde(default, borrow)]
    call_id: LenientText<'a>,
    #[serde(default, borrow)]
    name: LenientText<'a>,
    /// Only in a function call.
    #[serde(default, borrow)]
    arguments: LenientText<'a>,
    /// Only in a call of a custom tool.
    #[serde(default, borrow)]
    input: LenientText<'a>,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    summary: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct OutputPart<'a> {
    #[serde(default, borrow)]
    text: LenientText<'a>,
    #[serde(default, borrow)]
    refusal: LenientText<'a>,
}

/// The most calls of one response that are distinguished by their output index.
const MOST_CALLS: usize = 1024;

/// The output indexes of the items that are calls. Calls have numbers of their own, because other items are in between.
#[derive(Debug, Default)]
pub(super) struct CallItems(Vec<Option<u64>>);

impl CallItems {
    /// Records that the item at the output index `place` is a call. Returns the number of the call.
    fn begin(&mut self, place: Option<u64>) -> Option<u64> {
        if self.0.len() < MOST_CALLS {
            self.0.push(place);
        }
        u64::try_from(self.0.len() - 1).ok()
    }

    /// Returns the number of the call at the output index `place`. If there is none, returns the number after the last
    /// call.
    fn number(&self, place: Option<u64>) -> Option<u64> {
        let at = self.0.iter().rposition(|call| *call == place).unwrap_or(self.0.len());
        u64::try_from(at).ok()
    }
}

impl OutputItemBody<'_> {
    fn is_call(&self) -> bool {
        matches!(self.kind.as_str(), "function_call" | "custom_tool_call")
    }
}

/// Reads one event of a stream.
pub(super) fn event(
    name: &[u8],
    data: &[u8],
    called: &mut CallItems,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let data = data.trim_ascii();
    if data.is_empty() {
        reading.facts.kind = EventKind::Ping;
        return Ok(());
    }
    if answer.over {
        if data != DONE {
            answer.notes.add(FaultKind::AfterEnd, || format!("an event of {} bytes", data.len()));
        }
        return Ok(());
    }
    answer.begun = true;
    if data == DONE {
        answer.over = true;
        reading.facts.kind = EventKind::End;
        return answer.is_over();
    }
    let event: ResponsesEvent<'_> = fault::object(data)?;
    reading.facts.kind = EventKind::Content;
    let place = event.output_index.given();
    match event.kind.as_str() {
        "response.output_text.delta" => answer.said(0, TextKind::Answer, event.delta.as_str(), reading),
        "response.refusal.delta" => answer.said(0, TextKind::Refusal, event.delta.as_str(), reading),
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            answer.said(0, TextKind::Reasoning, event.delta.as_str(), reading);
        }
        "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
            let key = called.number(place);
            answer.called(
                0,
                CallPiece { key, arguments: event.delta.as_str(), ..CallPiece::default() },
                reading,
            )?;
        }
        "response.output_item.added" => {
            let item = item_of(event.item);
            if item.is_call() {
                let key = called.begin(place);
                let piece =
                    CallPiece { key, id: item.call_id.as_str(), name: item.name.as_str(), arguments: "" };
                answer.called(0, piece, reading)?;
            }
        }
        "response.output_item.done" if item_of(event.item).is_call() => {
            answer.call_over(0, called.number(place), reading);
        }
        "response.created" | "response.in_progress" | "response.queued" => {
            let body: ResponseBody<'_> = body_of(event.response)?;
            answer.named(body.model.given(), body.id.given());
        }
        "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
            reading.facts.kind = EventKind::End;
            return ended(&body_of(event.response)?, event.response, answer, reading);
        }
        "error" => return Err(error_inside(data)),
        // An error may have any shape.
        "" if name == b"error" || holds_error(data) => return Err(error_inside(data)),
        "" => return Err(ReplyFault::new(FaultKind::Misshapen, "its `type` is missing")),
        _ => {}
    }
    Ok(())
}

/// Reads a whole body.
pub(super) fn whole(
    data: &[u8],
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    let body: ResponseBody<'_> = match fault::object(data) {
        Err(_) if holds_error(data) => return Err(error_inside(data)),
        read => read?,
    };
    if body.status.given().is_none() {
        return Err(match body.error.is_some() || holds_error(data) {
            true => error_inside(data),
            false => ReplyFault::new(FaultKind::Misshapen, "its `status` is missing"),
        });
    }
    answer.begun = true;
    reading.facts.kind = EventKind::Content;
    let mut called = CallItems::default();
    for item in list::<&RawValue>(body.output).iter() {
        let item = item_of(Some(item));
        let reasons = item.kind.as_str() == "reasoning";
        for part in list::<OutputPart<'_>>(item.summary).iter().chain(list(item.content).iter()) {
            let spoken = if reasons { TextKind::Reasoning } else { TextKind::Answer };
            answer.said(0, spoken, part.text.as_str(), reading);
            answer.said(0, TextKind::Refusal, part.refusal.as_str(), reading);
        }
        if item.is_call() {
            let key = called.begin(None);
            let arguments = item.arguments.given().unwrap_or(item.input.as_str());
            let piece = CallPiece { key, id: item.call_id.as_str(), name: item.name.as_str(), arguments };
            answer.called(0, piece, reading)?;
            answer.call_over(0, key, reading);
        }
    }
    let raw = serde_json::from_slice(data).ok();
    ended(&body, raw, answer, reading)
}

/// Ends a response and reads its usage, even if the response failed.
fn ended(
    body: &ResponseBody<'_>,
    raw: Option<&RawValue>,
    answer: &mut AnswerReader,
    reading: &mut EventReading<'_>,
) -> Result<(), ReplyFault> {
    answer.named(body.model.given(), body.id.given());
    if let Some(tier) = body.service_tier.given() {
        answer.usage.tier(tier);
    }
    if let Some(usage) = body.usage {
        answer.usage.responses(usage, &mut answer.notes);
    }
    answer.over = true;
    let reason = match body.status.as_str() {
        // If there was a tool call, `finished` turns this into `tool_calls`.
        "completed" => "stop",
        "incomplete" if body.incomplete_details.reason.as_str() == "max_output_tokens" => "length",
        "incomplete" => body.incomplete_details.reason.given().unwrap_or("incomplete"),
        "failed" if body.error.is_some() => {
            return Err(error_inside(raw.map_or("{}", RawValue::get).as_bytes()));
        }
        "failed" => "error",
        "cancelled" => "cancelled",
        other => {
            let message =
                format!("it is {:?}, and no more of it comes", headrace_wire::fault::head(other, 40));
            return Err(ReplyFault::new(FaultKind::BrokeOff, message));
        }
    };
    answer.finished(0, reason, None, reading)?;
    answer.is_over()
}

/// Reads the known fields of an item. There are many kinds of items, and new ones appear.
fn item_of(item: Option<&RawValue>) -> OutputItemBody<'_> {
    item.and_then(|item| serde_json::from_str(item.get()).ok()).unwrap_or_default()
}

/// Reads a list. Any other value reads as an empty list.
fn list<'a, T: Deserialize<'a>>(list: Option<&'a RawValue>) -> LenientItems<T> {
    list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default()
}

fn body_of(response: Option<&RawValue>) -> Result<ResponseBody<'_>, ReplyFault> {
    let missing = || ReplyFault::new(FaultKind::Misshapen, "its `response` is missing");
    fault::object(response.ok_or_else(missing)?.get().as_bytes())
}

fn holds_error(data: &[u8]) -> bool {
    ErrorSigns::of(data).is_some_and(|signs| signs.is_error())
}

fn error_inside(data: &[u8]) -> ReplyFault {
    fault::error_inside(headrace_domain::Dialect::OpenAi, data)
}
