//! Good answers of both dialects, event by event, and the parts of them that faults change. Knows no HTTP.

use serde_json::{Value, json};

/// The text of every good answer.
pub const TEXT: &str = "Hello, world";
/// Input tokens of every good answer.
pub const INPUT_TOKENS: u32 = 5;
/// Output tokens of every good answer.
pub const OUTPUT_TOKENS: u32 = 3;

const PIECES: [&str; 3] = ["Hello", ", ", "world"];

/// The endpoint whose answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Chat,
    Completions,
    Messages,
}

/// The parts of a stream's end to write, and the places of its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) finish: bool,
    pub(crate) done: bool,
    pub(crate) usage: UsageAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageAt {
    Nowhere,
    End,
    Twice,
    Everywhere,
}

impl Parts {
    pub(crate) const GOOD: Self = Self { finish: true, done: true, usage: UsageAt::End };
}

/// One event: its name, or an empty name if the dialect has none, and its data.
pub(crate) type Event = (&'static str, String);

/// The events of a stream. The first ones contain the text.
pub(crate) fn events(shape: Shape, model: &str, parts: Parts) -> Vec<Event> {
    match shape {
        Shape::Messages => messages(model, parts),
        Shape::Chat | Shape::Completions => openai(shape, model, parts),
    }
}

/// An error as an event of a stream.
pub(crate) fn error_event(shape: Shape) -> Event {
    match shape {
        Shape::Messages => ("error", error(shape, "overloaded_error", "Overloaded").to_string()),
        _ => ("", error(shape, "server_error", "The server had an error").to_string()),
    }
}

/// An error as a body.
pub(crate) fn error(shape: Shape, kind: &str, message: &str) -> Value {
    match shape {
        Shape::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
        _ => json!({"error": {"message": message, "type": kind, "param": null, "code": null}}),
    }
}

fn usage(shape: Shape, output: u32) -> Value {
    match shape {
        Shape::Messages => json!({"input_tokens": INPUT_TOKENS, "output_tokens": output}),
        _ => json!({
            "prompt_tokens": INPUT_TOKENS, "completion_tokens": output, "total_tokens": INPUT_TOKENS + output
        }),
    }
}

fn openai(shape: Shape, model: &str, parts: Parts) -> Vec<Event> {
    let (id, object) = match shape {
        Shape::Completions => ("cmpl-1", "text_completion"),
        _ => ("chatcmpl-1", "chat.completion.chunk"),
    };
    let chunk = |choices: Value, tokens: Option<u32>| {
        let mut chunk =
            json!({"id": id, "object": object, "created": 1_790_000_000, "model": model, "choices": choices});
        if let (Some(tokens), Some(fields)) = (tokens, chunk.as_object_mut()) {
            fields.insert("usage".to_owned(), usage(shape, tokens));
        }
        ("", chunk.to_string())
    };
    let choice = |text: &str, finish: Option<&str>| match shape {
        Shape::Completions => json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": finish}]),
        _ if finish.is_some() => {
            json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": finish}])
        }
        _ => json!([{"index": 0, "delta": {"content": text}, "logprobs": null, "finish_reason": null}]),
    };
    let everywhere = |tokens: u32| (parts.usage == UsageAt::Everywhere).then_some(tokens);
    let mut events = Vec::new();
    if shape == Shape::Chat {
        let role =
            json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]);
        events.push(chunk(role, everywhere(0)));
    }
    events.extend((1..).zip(PIECES).map(|(tokens, piece)| chunk(choice(piece, None), everywhere(tokens))));
    if parts.finish {
        events.push(chunk(choice("", Some("stop")), everywhere(OUTPUT_TOKENS)));
    }
    match parts.usage {
        UsageAt::Nowhere | UsageAt::Everywhere => {}
        UsageAt::End => events.push(chunk(json!([]), Some(OUTPUT_TOKENS))),
        UsageAt::Twice => {
            events.push(chunk(json!([]), Some(OUTPUT_TOKENS)));
            events.push(chunk(json!([]), Some(OUTPUT_TOKENS + 2)));
        }
    }
    if parts.done {
        events.push(("", "[DONE]".to_owned()));
    }
    events
}

fn messages(model: &str, parts: Parts) -> Vec<Event> {
    let message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": null,
        "stop_sequence": null,
    });
    let mut start = json!({"type": "message_start", "message": message});
    if parts.usage != UsageAt::Nowhere
        && let Some(fields) = start.pointer_mut("/message").and_then(Value::as_object_mut)
    {
        fields.insert("usage".to_owned(), usage(Shape::Messages, 1));
    }
    let block =
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    let mut events = vec![
        ("message_start", start.to_string()),
        ("content_block_start", block.to_string()),
        ("ping", json!({"type": "ping"}).to_string()),
    ];
    for piece in PIECES {
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}});
        events.push(("content_block_delta", delta.to_string()));
    }
    events.push(("content_block_stop", json!({"type": "content_block_stop", "index": 0}).to_string()));
    let reason = if parts.finish { json!("end_turn") } else { Value::Null };
    let closing = |tokens: Option<u32>| {
        let delta = json!({"stop_reason": reason, "stop_sequence": null});
        let mut event = json!({"type": "message_delta", "delta": delta});
        if let (Some(tokens), Some(fields)) = (tokens, event.as_object_mut()) {
            fields.insert("usage".to_owned(), usage(Shape::Messages, tokens));
        }
        ("message_delta", event.to_string())
    };
    match parts.usage {
        UsageAt::Nowhere if !parts.finish => {}
        UsageAt::Nowhere => events.push(closing(None)),
        UsageAt::End => events.push(closing(Some(OUTPUT_TOKENS))),
        UsageAt::Twice => events.extend([closing(Some(OUTPUT_TOKENS)), closing(Some(OUTPUT_TOKENS + 2))]),
        UsageAt::Everywhere => events.extend((1..=OUTPUT_TOKENS).map(|tokens| closing(Some(tokens)))),
    }
    if parts.done {
        events.push(("message_stop", json!({"type": "message_stop"}).to_string()));
    }
    events
}

/// A whole answer.
pub(crate) fn whole(shape: Shape, model: &str, parts: Parts) -> Value {
    let finish = |reason: &'static str| if parts.finish { json!(reason) } else { Value::Null };
    let mut body = match shape {
        Shape::Chat => json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": model,
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": TEXT}, "logprobs": null,
                "finish_reason": finish("stop"),
            }],
        }),
        Shape::Completions => json!({
            "id": "cmpl-1", "object": "text_completion", "created": 1_790_000_000, "model": model,
            "choices": [{"index": 0, "text": TEXT, "logprobs": null, "finish_reason": finish("stop")}],
        }),
        Shape::Messages => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": TEXT}], "stop_reason": finish("end_turn"), "stop_sequence": null,
        }),
    };
    if let (true, Some(fields)) = (parts.usage != UsageAt::Nowhere, body.as_object_mut()) {
        fields.insert("usage".to_owned(), usage(shape, OUTPUT_TOKENS));
    }
    body
}
