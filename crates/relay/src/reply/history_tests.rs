//! Every reader accepts an answer of our encoders as history. Upstreams of either dialect get it in an order that their
//! API allows: tool results directly follow the message with their calls.

use bytes::{Bytes, BytesMut};
use headrace_domain::{
    Call, Conversation, Dialect, DialectExtras, Endpoint, FinishReason, Message, Prompt, ReplyEvent,
    RequestId, Role, Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{BodyEdits, EventSplitter, as_chat, skim, translated};
use headrace_wire::{ReplyMeta, ShownSampling, encoder};
use headrace_wire::{WireLimits, parse};

/// A piece of an answer: text, reasoning, reasoning with a signature, sealed reasoning or a call.
type Piece = (u8, String);

fn events(pieces: &[Piece]) -> Vec<ReplyEvent> {
    let (mut events, mut calls) = (Vec::new(), 0);
    for (kind, text) in pieces {
        let (choice, text, ids, logprobs) = (0, text.clone(), Vec::new(), Vec::new());
        match kind {
            0 => events.push(ReplyEvent::Text { choice, text, ids, logprobs }),
            1 => events.push(ReplyEvent::Reasoning { choice, text, ids, logprobs }),
            2 => {
                events.push(ReplyEvent::Reasoning { choice, text, ids, logprobs });
                events.push(ReplyEvent::ReasoningSignature { choice, signature: "c2ln".into() });
            }
            3 => events.push(ReplyEvent::RedactedReasoning { choice, data: "c2VhbGVk".into() }),
            _ => {
                let (index, id, name) = (calls, format!("call_{calls}"), "f".to_owned());
                events.push(ReplyEvent::ToolCallStart { choice, index, id, name });
                let fragment = json!({"x": text}).to_string();
                events.push(ReplyEvent::ToolCallArguments { choice, index, fragment });
                calls += 1;
            }
        }
    }
    let reason = if calls > 0 { FinishReason::ToolCalls } else { FinishReason::Stop };
    events.push(ReplyEvent::Finish { choice: 0, reason });
    events
}

fn written(endpoint: Endpoint, stream: bool, events: &[ReplyEvent]) -> Bytes {
    let messages = vec![Message::text(Role::User, "p")];
    let prompt = Prompt::Conversation(Conversation { messages, ..Conversation::default() });
    let is_response = endpoint == Endpoint::Responses;
    let dialect =
        if is_response { DialectExtras::Responses(Default::default()) } else { DialectExtras::None };
    let call = Call { stream, dialect, ..Call::of_prompt(endpoint, "m".into(), prompt) };
    let meta = ReplyMeta {
        request_id: RequestId::from_bits(7),
        created_unix_s: 1,
        model: "m".into(),
        system_fingerprint: String::new(),
        tier: headrace_domain::ServiceTier::Standard,
        chosen: ShownSampling::default(),
        diagnosis: None,
    };
    let (mut encoder, mut out) = (encoder(&call, meta), BytesMut::new());
    let used = Usage { input: 5, output: 5, ..Usage::default() };
    encoder.begin(&used, &mut out);
    events.iter().for_each(|event| encoder.event(event, &mut out));
    encoder.finish(&used, None, &mut out);
    out.freeze()
}

fn datas(bytes: Bytes) -> Vec<Value> {
    let mut splitter = EventSplitter::new();
    splitter.push(bytes);
    std::iter::from_fn(|| splitter.next_event().unwrap())
        .filter_map(|event| serde_json::from_slice(&event.data).ok())
        .collect()
}

/// The content of a streamed message, as a client assembles it.
fn content(events: &[Value]) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut input = String::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                input.clear();
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (block, delta) = (blocks.last_mut().unwrap(), &event["delta"]);
                for (from, to) in [("text", "text"), ("thinking", "thinking"), ("signature", "signature")] {
                    if let Some(more) = delta[from].as_str() {
                        block[to] = json!(block[to].as_str().unwrap_or_default().to_owned() + more);
                    }
                }
                input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" if !input.is_empty() => {
                blocks.last_mut().unwrap()["input"] = serde_json::from_str(&input).unwrap();
                input.clear();
            }
            _ => {}
        }
    }
    blocks
}

fn tools(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}))
        .collect()
}

/// The next turn's body in the caller's dialect: the answer as it came, the results of its tools, and the next user
/// message.
fn next_turn(endpoint: Endpoint, stream: bool, pieces: &[Piece]) -> Value {
    let given = events(pieces);
    let calls = pieces.iter().filter(|(kind, _)| *kind > 3).count();
    let ids = (0..calls).map(|call| format!("call_{call}"));
    let answer = written(endpoint, stream, &given);
    match endpoint {
        Endpoint::Messages => {
            let content = match stream {
                true => json!(content(&datas(answer))),
                false => serde_json::from_slice::<Value>(&answer).unwrap()["content"].clone(),
            };
            let mut results: Vec<Value> =
                ids.map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "r"})).collect();
            results.push(json!({"type": "text", "text": "go on"}));
            json!({"model": "m", "max_tokens": 9,
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": content},
                    {"role": "user", "content": results}]})
        }
        Endpoint::Responses => {
            let response = match stream {
                true => datas(answer).last().unwrap()["response"].clone(),
                false => serde_json::from_slice(&answer).unwrap(),
            };
            let mut input = vec![json!({"role": "user", "content": "p"})];
            input.extend(response["output"].as_array().unwrap().iter().cloned());
            input.extend(ids.map(|id| json!({"type": "function_call_output", "call_id": id, "output": "r"})));
            input.push(json!({"role": "user", "content": "go on"}));
            json!({"model": "m", "input": input, "max_output_tokens": 9,
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]})
        }
        _ => {
            let whole: Value = serde_json::from_slice(&written(endpoint, false, &given)).unwrap();
            let mut messages = vec![json!({"role": "user", "content": "p"})];
            messages.push(whole["choices"][0]["message"].clone());
            messages.extend(ids.map(|id| json!({"role": "tool", "tool_call_id": id, "content": "r"})));
            messages.push(json!({"role": "user", "content": "go on"}));
            json!({"model": "m", "max_completion_tokens": 9, "tools": tools(&["f"]), "messages": messages})
        }
    }
}

const EDITS: BodyEdits<'_> =
    BodyEdits { model: "up", usage: false, max_tokens: Some(("max_tokens", 9)), label: None };

fn put(call: &Call, to: Dialect) -> Value {
    let body = translated(call, to, &EDITS, &WireLimits::default()).unwrap_or_else(|bad| panic!("{bad:?}"));
    serde_json::from_slice(&body).unwrap()
}

/// OpenAI's rule: a message with calls is followed by exactly one message of role `tool` for each call.
fn is_chat_in_order(body: &Value) {
    let messages = body["messages"].as_array().unwrap();
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap();
            let at = open.iter().position(|call| *call == id);
            open.remove(at.unwrap_or_else(|| panic!("{id} was not called right before: {body}")));
            continue;
        }
        assert!(open.is_empty(), "{open:?} have no result right behind: {body}");
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        open = calls.map(|call| call["id"].as_str().unwrap()).collect();
    }
    assert!(open.is_empty(), "{body}");
}

/// Anthropic's rule: roles alternate, and the message after one with calls begins with a result for each call.
fn is_messages_in_order(body: &Value) {
    let messages = body["messages"].as_array().unwrap();
    let of = |message: &Value, kind: &str, key: &str| -> Vec<String> {
        let blocks = message["content"].as_array().cloned().unwrap_or_default();
        let blocks = blocks.iter().filter(|block| block["type"] == kind);
        blocks.map(|block| block[key].as_str().unwrap().to_owned()).collect()
    };
    for pair in messages.windows(2) {
        assert_ne!(pair[0]["role"], pair[1]["role"], "{body}");
        let (called, answered) = (of(&pair[0], "tool_use", "id"), of(&pair[1], "tool_result", "tool_use_id"));
        assert_eq!(called, answered, "{body}");
        if !called.is_empty() {
            assert_eq!(pair[1]["content"][called.len() - 1]["type"], "tool_result", "{body}");
            // No block follows the calls in their own message.
            let blocks = pair[0]["content"].as_array().unwrap();
            assert_eq!(blocks.last().unwrap()["type"], "tool_use", "{body}");
        }
    }
}

fn is_accepted(endpoint: Endpoint, stream: bool, pieces: &[Piece]) {
    let body = next_turn(endpoint, stream, pieces).to_string();
    let limits = WireLimits::default();
    // Models that are rendered on this side.
    let parsed = parse(endpoint, body.as_bytes(), &limits);
    let parsed = parsed.unwrap_or_else(|bad| panic!("{bad:?}: {body}"));
    let Prompt::Conversation(conversation) = &parsed.prompt else { panic!("{body}") };
    for pair in conversation.messages.windows(2) {
        let in_calls = !pair[0].tool_calls.is_empty();
        assert!(!in_calls || pair[1].role == Role::Tool, "{:?}: {body}", conversation.messages);
    }
    // Upstreams of both dialects.
    if endpoint == Endpoint::Responses {
        let chat = as_chat(&parsed, &WireLimits::default()).unwrap_or_else(|bad| panic!("{bad:?}: {body}"));
        is_chat_in_order(&put(&chat, Dialect::OpenAi));
        is_messages_in_order(&put(&chat, Dialect::Anthropic));
        return;
    }
    let call = skim(endpoint, Bytes::from(body.clone()), &limits).unwrap();
    match endpoint {
        Endpoint::Messages => is_chat_in_order(&put(&call, Dialect::OpenAi)),
        _ => {
            is_chat_in_order(&put(&call, Dialect::OpenAi));
            is_messages_in_order(&put(&call, Dialect::Anthropic));
        }
    }
}

#[test]
fn text_and_reasoning_behind_calls_are_accepted() {
    let piece = |kind: u8| (kind, "t".to_owned());
    for kinds in [
        &[4, 0][..],
        &[0, 4, 0, 4, 0],
        &[4, 1, 4],
        &[2, 4, 2, 4, 0],
        &[3, 4, 3, 0],
        &[1, 0, 1, 4, 1],
        &[1],
        &[2],
        &[3],
        &[4],
    ] {
        let pieces: Vec<Piece> = kinds.iter().copied().map(piece).collect();
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
            for stream in [false, true] {
                is_accepted(endpoint, stream, &pieces);
            }
        }
    }
}

proptest! {
    #[test]
    fn an_answer_of_ours_is_accepted_in_the_next_turn(
        pieces in prop::collection::vec((0..5_u8, "[a-zé\"\\\\\n]{1,8}"), 1..7),
        stream in any::<bool>(),
    ) {
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Responses] {
            is_accepted(endpoint, stream, &pieces);
        }
    }
}
