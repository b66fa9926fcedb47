//! Reads the texts, reasoning and tool calls out of an answer as it was sent: whole or streamed, in any dialect. Reads
//! answers of this server and those of upstreams that were passed on, so unknown parts are skipped.

use headrace_domain::Endpoint;
use serde_json::Value;

use super::stored::{AnswerPart, AnswerPartKind};

/// Maximum parts that are read of one answer. Further ones are dropped.
const MAX_PARTS: usize = 4096;

/// The parts of an answer. Empty if nothing can be read, and for vectors.
pub(crate) fn answer_parts(endpoint: Endpoint, sent: &[u8]) -> Vec<AnswerPart> {
    let mut parts = AnswerParts::default();
    let Some(read) = reader(endpoint) else { return Vec::new() };
    match serde_json::from_slice::<Value>(sent) {
        Ok(whole) => read(&mut parts, &whole),
        Err(_) => {
            for data in event_data(sent) {
                if let Ok(event) = serde_json::from_str::<Value>(&data) {
                    read(&mut parts, &event);
                }
            }
        }
    }
    parts.into_vec()
}

/// Adds what a whole answer, or an event of a stream, contains.
type PartReader = fn(&mut AnswerParts, &Value);

fn reader(endpoint: Endpoint) -> Option<PartReader> {
    Some(match endpoint {
        Endpoint::ChatCompletions | Endpoint::Completions => choices,
        Endpoint::Messages => messages,
        Endpoint::Responses => responses,
        Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => return None,
    })
}

/// The `data` of each server-sent event.
fn event_data(sent: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(sent);
    let (mut all, mut data) = (Vec::new(), String::new());
    for line in text.lines() {
        if let Some(more) = line.strip_prefix("data:") {
            if !data.is_empty() {
                data.push('\n');
            }
            data.push_str(more.strip_prefix(' ').unwrap_or(more));
        } else if line.is_empty() && !data.is_empty() {
            all.push(std::mem::take(&mut data));
        }
    }
    if !data.is_empty() {
        all.push(data);
    }
    all
}

/// The parts that were read so far.
#[derive(Default)]
struct AnswerParts {
    /// Each with what names it within the answer: the choice, and the index of the item or call.
    parts: Vec<((u32, u64), AnswerPart)>,
}

impl AnswerParts {
    /// Appends to the part of this place and kind, which is created if necessary.
    fn push(&mut self, place: (u32, u64), kind: AnswerPartKind, text: &str) {
        if !text.is_empty()
            && let Some(part) = self.part(place, kind)
        {
            part.text.push_str(text);
        }
    }

    fn part(&mut self, place: (u32, u64), kind: AnswerPartKind) -> Option<&mut AnswerPart> {
        let found = self.parts.iter().rposition(|(at, part)| *at == place && part.kind == kind);
        let index = match found {
            Some(index) => index,
            None if self.parts.len() >= MAX_PARTS => return None,
            None => {
                let part = AnswerPart { choice: place.0, kind, name: None, text: String::new() };
                self.parts.push((place, part));
                self.parts.len() - 1
            }
        };
        self.parts.get_mut(index).map(|(_, part)| part)
    }

    fn call(&mut self, place: (u32, u64), name: Option<&str>, arguments: &str) {
        let Some(part) = self.part(place, AnswerPartKind::ToolCall) else { return };
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            part.name = Some(name.to_owned());
        }
        part.text.push_str(arguments);
    }

    fn into_vec(self) -> Vec<AnswerPart> {
        let mut parts: Vec<_> = self.parts.into_iter().map(|(_, part)| part).collect();
        // Parts of a choice stay in the order in which they began.
        parts.sort_by_key(|part| part.choice);
        parts
    }
}

fn text_of<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn index_of(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or(0)
}

fn items<'v>(value: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Chat completions and completions: `choices`, each with `message`, `delta` or `text`.
fn choices(parts: &mut AnswerParts, value: &Value) {
    use AnswerPartKind::{Reasoning, Text};
    for choice in items(value, "choices") {
        let index = u32::try_from(index_of(choice, "index")).unwrap_or(u32::MAX);
        let at = (index, 0);
        parts.push(at, Text, text_of(choice, "text"));
        let Some(message) = choice.get("message").or_else(|| choice.get("delta")) else { continue };
        let reasoning = text_of(message, "reasoning_content");
        parts.push(
            at,
            Reasoning,
            if reasoning.is_empty() { text_of(message, "reasoning") } else { reasoning },
        );
        parts.push(at, Text, text_of(message, "content"));
        parts.push(at, Text, text_of(message, "refusal"));
        for (nth, call) in (0..).zip(items(message, "tool_calls")) {
            let call_index = call.get("index").and_then(Value::as_u64).unwrap_or(nth);
            if let Some(function) = call.get("function") {
                let name = function.get("name").and_then(Value::as_str);
                parts.call((index, call_index), name, text_of(function, "arguments"));
            }
        }
    }
}

/// Messages: `content` of a whole answer, or events about a content block.
fn messages(parts: &mut AnswerParts, value: &Value) {
    use AnswerPartKind::{Reasoning, Text};
    for (nth, block) in (0..).zip(items(value, "content")) {
        content_block(parts, nth, block);
    }
    let index = index_of(value, "index");
    match text_of(value, "type") {
        "content_block_start" => {
            if let Some(block) = value.get("content_block") {
                content_block(parts, index, block);
            }
        }
        "content_block_delta" => {
            let Some(delta) = value.get("delta") else { return };
            parts.push((0, index), Text, text_of(delta, "text"));
            parts.push((0, index), Reasoning, text_of(delta, "thinking"));
            let arguments = text_of(delta, "partial_json");
            if !arguments.is_empty() {
                parts.call((0, index), None, arguments);
            }
        }
        _ => {}
    }
}

fn content_block(parts: &mut AnswerParts, index: u64, block: &Value) {
    use AnswerPartKind::{Reasoning, Text};
    match text_of(block, "type") {
        "text" => parts.push((0, index), Text, text_of(block, "text")),
        "thinking" => parts.push((0, index), Reasoning, text_of(block, "thinking")),
        "tool_use" | "server_tool_use" => {
            // At the start of a stream, `input` is an empty object. Its text follows in pieces.
            let input =
                block.get("input").filter(|input| input.as_object().is_some_and(|all| !all.is_empty()));
            let input = input.map(Value::to_string).unwrap_or_default();
            parts.call((0, index), Some(text_of(block, "name")), &input);
        }
        _ => {}
    }
}

/// Responses: `output` of a whole answer, or events about an output item.
fn responses(parts: &mut AnswerParts, value: &Value) {
    use AnswerPartKind::{Reasoning, Text};
    let index = index_of(value, "output_index");
    let kind = text_of(value, "type");
    match kind {
        "response.output_text.delta" | "response.refusal.delta" => {
            parts.push((0, index), Text, text_of(value, "delta"));
        }
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            parts.push((0, index), Reasoning, text_of(value, "delta"));
        }
        "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
            parts.call((0, index), None, text_of(value, "delta"));
        }
        "response.output_item.added" => {
            let name = value.get("item").map(|item| text_of(item, "name")).unwrap_or_default();
            if !name.is_empty() {
                parts.call((0, index), Some(name), "");
            }
        }
        _ => {}
    }
    // The last event of a stream repeats the whole answer, which is only read if it is not a stream.
    if !kind.is_empty() {
        return;
    }
    for (nth, item) in (0..).zip(items(value, "output")) {
        match text_of(item, "type") {
            "message" => {
                for content in items(item, "content") {
                    parts.push((0, nth), Text, text_of(content, "text"));
                    parts.push((0, nth), Text, text_of(content, "refusal"));
                }
            }
            "reasoning" => {
                for content in items(item, "content").chain(items(item, "summary")) {
                    parts.push((0, nth), Reasoning, text_of(content, "text"));
                }
            }
            "function_call" => {
                parts.call((0, nth), Some(text_of(item, "name")), text_of(item, "arguments"));
            }
            "custom_tool_call" => parts.call((0, nth), Some(text_of(item, "name")), text_of(item, "input")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
