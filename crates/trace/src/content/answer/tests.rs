//! Answers as servers send them, and the parts that are read from them.

use super::*;

/// The parts as `choice kind name: text`.
fn read(endpoint: Endpoint, sent: &str) -> Vec<String> {
    let parts = answer_parts(endpoint, sent.as_bytes());
    let shown = parts.iter().map(|part| {
        let name = part.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        format!("{} {:?}{name}: {}", part.choice, part.kind, part.text)
    });
    shown.collect()
}

fn stream(events: &[Value]) -> String {
    events.iter().map(|event| format!("event: x\ndata: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
}

#[test]
fn a_streamed_answer_reads_as_the_whole_one() {
    use serde_json::json;
    let chat = json!({"choices": [
        {"index": 0, "message": {"reasoning_content": "so", "content": "Hi \"x\"", "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"a\":1}"}}, {"function": {"name": "g", "arguments": "{}"}}]}},
        {"index": 1, "message": {"content": "two"}}]});
    let delta = |index: u32, delta: Value| json!({"choices": [{"index": index, "delta": delta}]});
    let chat_stream = stream(&[
        delta(0, json!({"role": "assistant", "reasoning_content": "s"})),
        delta(1, json!({"content": "tw"})),
        delta(0, json!({"reasoning_content": "o"})),
        delta(0, json!({"content": "Hi "})),
        delta(0, json!({"content": "\"x\""})),
        delta(0, json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{\"a\""}}]})),
        delta(0, json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]})),
        delta(0, json!({"tool_calls": [{"index": 1, "function": {"name": "g", "arguments": "{}"}}]})),
        delta(1, json!({"content": "o"})),
        json!({"choices": [], "usage": {}}),
    ]);
    let expected =
        ["0 Reasoning: so", "0 Text: Hi \"x\"", "0 ToolCall f: {\"a\":1}", "0 ToolCall g: {}", "1 Text: two"];
    for sent in [chat.to_string(), chat_stream] {
        assert_eq!(read(Endpoint::ChatCompletions, &sent), expected, "{sent}");
    }

    let messages = json!({"type": "message", "content": [
        {"type": "thinking", "thinking": "so"}, {"type": "text", "text": "Hi"},
        {"type": "tool_use", "name": "f", "input": {"a": 1}}]});
    let block = |index: u32, kind: &str, field: Value| json!({"type": kind, "index": index, (if kind == "content_block_start" { "content_block" } else { "delta" }): field});
    let messages_stream = stream(&[
        block(0, "content_block_start", json!({"type": "thinking", "thinking": ""})),
        block(0, "content_block_delta", json!({"type": "thinking_delta", "thinking": "so"})),
        block(1, "content_block_start", json!({"type": "text", "text": ""})),
        block(1, "content_block_delta", json!({"type": "text_delta", "text": "H"})),
        block(1, "content_block_delta", json!({"type": "text_delta", "text": "i"})),
        block(2, "content_block_start", json!({"type": "tool_use", "name": "f", "input": {}})),
        block(2, "content_block_delta", json!({"type": "input_json_delta", "partial_json": "{\"a\":"})),
        block(2, "content_block_delta", json!({"type": "input_json_delta", "partial_json": "1}"})),
    ]);
    for sent in [messages.to_string(), messages_stream] {
        let expected = ["0 Reasoning: so", "0 Text: Hi", "0 ToolCall f: {\"a\":1}"];
        assert_eq!(read(Endpoint::Messages, &sent), expected, "{sent}");
    }

    let output = json!([
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"}]);
    let event =
        |index: u32, kind: &str, delta: &str| json!({"type": kind, "output_index": index, "delta": delta});
    let responses_stream = stream(&[
        event(0, "response.reasoning_text.delta", "so"),
        event(1, "response.output_text.delta", "H"),
        event(1, "response.output_text.delta", "i"),
        json!({"type": "response.output_item.added", "output_index": 2, "item": {"type": "function_call", "name": "f"}}),
        event(2, "response.function_call_arguments.delta", "{}"),
        json!({"type": "response.completed", "response": {"output": output}}),
    ]);
    for sent in [json!({"object": "response", "output": output}).to_string(), responses_stream] {
        let expected = ["0 Reasoning: so", "0 Text: Hi", "0 ToolCall f: {}"];
        assert_eq!(read(Endpoint::Responses, &sent), expected, "{sent}");
    }
    assert_eq!(read(Endpoint::Completions, r#"{"choices":[{"index":0,"text":"abc"}]}"#), ["0 Text: abc"]);
}

#[test]
fn what_cannot_be_read_is_skipped() {
    for sent in ["", "{", "data: {\"choices\"", "data: 7\n\n", "\u{0}", "[]", "null", r#"{"choices":7}"#] {
        assert!(read(Endpoint::ChatCompletions, sent).is_empty(), "{sent}");
        assert!(read(Endpoint::Messages, sent).is_empty() && read(Endpoint::Responses, sent).is_empty());
    }
    assert!(read(Endpoint::Embeddings, r#"{"choices":[{"text":"a"}]}"#).is_empty());
    // A stream whose end is missing.
    let cut = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choi";
    assert_eq!(read(Endpoint::ChatCompletions, cut), ["0 Text: a"]);
}
