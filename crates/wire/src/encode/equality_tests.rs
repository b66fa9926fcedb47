//! Streamed equals whole: the joined chunks of a stream are the whole answer, in each dialect. The answers are random,
//! and their text is cut into events in every way.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Call, CompletionsExtras, Conversation, DialectExtras, Endpoint, FinishReason, Message, Prompt,
    PromptItem, ReplyEvent, RequestId, Role, SamplingRequest, ShownPrompt, TokenLogprob, TopLogprob, Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::encoder::{ReplyMeta, ShownSampling};
use crate::encode::encoder;
use crate::sse::SseReader;

/// The parameters of a call that decide the shape of its answer.
#[derive(Debug, Clone)]
struct AnswerShape {
    logprobs: bool,
    prompt_logprobs: bool,
    token_ids: bool,
    echo: bool,
    usage: bool,
    explain: bool,
}

fn asked() -> impl Strategy<Value = AnswerShape> {
    any::<[bool; 6]>().prop_map(|[logprobs, prompt_logprobs, token_ids, echo, usage, explain]| AnswerShape {
        logprobs,
        prompt_logprobs,
        token_ids,
        echo,
        usage,
        explain,
    })
}

fn call(endpoint: Endpoint, asked: &AnswerShape, stream: bool) -> Call {
    let echo = asked.echo && endpoint == Endpoint::Completions;
    let logprobs = asked.logprobs.then_some(2);
    Call {
        endpoint,
        model: "asked".into(),
        prompt: match endpoint {
            Endpoint::Completions => Prompt::Raw(vec![PromptItem::Text("p".into())]),
            _ => Prompt::Conversation(Conversation {
                messages: vec![Message::text(Role::User, "p")],
                ..Conversation::default()
            }),
        },
        origins: Vec::new(),
        sampling: SamplingRequest {
            n: 3,
            logprobs,
            prompt_logprobs: if echo && asked.logprobs {
                logprobs
            } else {
                asked.prompt_logprobs.then_some(1)
            },
            ..SamplingRequest::default()
        },
        stream,
        include_usage: asked.usage,
        return_token_ids: asked.token_ids,
        explain: asked.explain,
        cache_marks: Vec::new(),
        cache_salt: None,
        timeout: None,
        tier: headrace_domain::ServiceTier::Standard,
        user: None,
        labels: None,
        form: None,
        dialect: DialectExtras::completions(CompletionsExtras { echo, ..CompletionsExtras::default() }),
        reasoning: Default::default(),
    }
}

/// A piece of an answer before it is cut into events.
#[derive(Debug, Clone)]
enum AnswerPiece {
    Text { reasoning: bool, text: String, tokens: Vec<TokenLogprob> },
    Tool { name: String, fragments: Vec<String> },
    Signature(String),
    Redacted(String),
}

fn token() -> impl Strategy<Value = TokenLogprob> {
    let bytes = prop_oneof![
        prop::sample::select(vec![
            b"\xf0\x9f".to_vec(),
            b"\x98\x80".to_vec(),
            b"".to_vec(),
            b"\"\n".to_vec()
        ]),
        "[a-cé😀]{0,3}".prop_map(String::into_bytes),
    ];
    let logprob = prop_oneof![(-20_f32..0.0), Just(f32::NEG_INFINITY)];
    let top = (any::<u32>(), bytes.clone(), logprob.clone()).prop_map(|(id, bytes, logprob)| TopLogprob {
        id,
        bytes,
        logprob,
    });
    (any::<u32>(), bytes, logprob, prop::collection::vec(top, 0..3))
        .prop_map(|(id, bytes, logprob, top)| TokenLogprob { id, bytes, logprob: Some(logprob), top })
}

fn piece() -> impl Strategy<Value = AnswerPiece> {
    let text = prop_oneof![Just(String::new()), any::<String>(), "[a-c\"\\\\\nй😀 ]{0,12}"];
    prop_oneof![
        4 => (prop::bool::weighted(0.2), text, prop::collection::vec(token(), 0..4))
            .prop_map(|(reasoning, text, tokens)| AnswerPiece::Text { reasoning, text, tokens }),
        1 => ("[a-z]{1,5}", prop::collection::vec("[a-z\\{\\}\":1é]{0,5}", 0..4))
            .prop_map(|(name, fragments)| AnswerPiece::Tool { name, fragments }),
        1 => "[a-z+/=\"]{1,9}".prop_map(AnswerPiece::Signature),
        1 => "[a-z+/=\"]{1,9}".prop_map(AnswerPiece::Redacted),
    ]
}

fn reason() -> impl Strategy<Value = FinishReason> {
    prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::ToolCalls),
        Just(FinishReason::ContentFilter),
        any::<String>().prop_map(|matched| FinishReason::StopString { matched }),
    ]
}

/// One answer: its pieces and its finish reason.
type Answer = (Vec<AnswerPiece>, FinishReason);

fn prompt_event(choice: u32) -> ReplyEvent {
    let token = |id, bytes: &[u8], logprob| TokenLogprob { id, bytes: bytes.to_vec(), logprob, top: vec![] };
    ReplyEvent::Prompt {
        choice,
        prompt: Arc::new(ShownPrompt {
            text: "pé".into(),
            ids: vec![1, 2, 3].into(),
            logprobs: vec![
                token(1, b"<s>", None),
                token(2, b"p\xc3", Some(-1.0)),
                token(3, b"\xa9", Some(-2.0)),
            ],
        }),
    }
}

/// Returns the events of an answer. `cuts` gives the number of characters after which each text is cut (0: not at all).
fn events(
    choice: u32,
    (pieces, reason): &Answer,
    with_prompt: bool,
    cuts: &mut dyn FnMut() -> usize,
) -> Vec<ReplyEvent> {
    let mut events = Vec::new();
    if with_prompt {
        events.push(prompt_event(choice));
    }
    let mut tools = 0;
    for piece in pieces {
        match piece {
            AnswerPiece::Text { reasoning, text, tokens } => {
                cut_text(choice, *reasoning, text, tokens, cuts(), &mut events);
            }
            AnswerPiece::Signature(signature) => {
                events.push(ReplyEvent::ReasoningSignature { choice, signature: signature.clone() });
            }
            AnswerPiece::Redacted(data) => {
                events.push(ReplyEvent::RedactedReasoning { choice, data: data.clone() });
            }
            AnswerPiece::Tool { name, fragments } => {
                let index = tools;
                tools += 1;
                let id = format!("call_{index}");
                events.push(ReplyEvent::ToolCallStart { choice, index, id, name: name.clone() });
                let joined = fragments.concat();
                let parts = if cuts().is_multiple_of(2) { fragments.clone() } else { vec![joined] };
                events.extend(parts.into_iter().map(|fragment| ReplyEvent::ToolCallArguments {
                    choice,
                    index,
                    fragment,
                }));
            }
        }
    }
    events.push(ReplyEvent::Finish { choice, reason: reason.clone() });
    events
}

fn cut_text(
    choice: u32,
    reasoning: bool,
    text: &str,
    tokens: &[TokenLogprob],
    width: usize,
    events: &mut Vec<ReplyEvent>,
) {
    let chars: Vec<char> = text.chars().collect();
    let width = if width == 0 { chars.len().max(1) } else { width };
    let mut pieces: Vec<String> = chars.chunks(width).map(|chunk| chunk.iter().collect()).collect();
    // There are as many events as the longer of both lists needs. The shorter list is filled up with empty entries.
    let mut tokens: Vec<&[TokenLogprob]> =
        if width.is_multiple_of(2) { tokens.chunks(1).collect() } else { vec![tokens] };
    let count = pieces.len().max(tokens.len()).max(1);
    pieces.resize(count, String::new());
    tokens.resize(count, &[]);
    for (text, tokens) in pieces.into_iter().zip(tokens) {
        let ids = tokens.iter().map(|token| token.id).collect();
        let logprobs = tokens.to_vec();
        events.push(if reasoning {
            ReplyEvent::Reasoning { choice, text, ids, logprobs }
        } else {
            ReplyEvent::Text { choice, text, ids, logprobs }
        });
    }
}

const USAGE: Usage = Usage {
    input: 5,
    cached_input: 16,
    cache_write: 2,
    cache_write_1h: 4,
    output: 7,
    reasoning: 3,
    web_searches: 0,
};

/// Encodes these events for a call.
fn written(call: &Call, events: &[ReplyEvent]) -> BytesMut {
    let meta = ReplyMeta {
        request_id: RequestId::from_bits(7),
        created_unix_s: 1_700_000_000,
        model: "mödel \"x\"".into(),
        system_fingerprint: "fp".into(),
        tier: headrace_domain::ServiceTier::Standard,
        chosen: ShownSampling::default(),
        diagnosis: None,
    };
    let explain = json!({"cost": "1"});
    let mut out = BytesMut::new();
    let mut encoder = encoder(call, meta);
    encoder.begin(&Usage { output: 0, reasoning: 0, ..USAGE }, &mut out);
    for (index, event) in events.iter().enumerate() {
        if index % 3 == 0 {
            encoder.keep_alive(&mut out);
        }
        encoder.event(event, &mut out);
    }
    encoder.finish(&USAGE, call.explain.then_some(&explain), &mut out);
    let end = out.len();
    encoder.finish(&USAGE, None, &mut out);
    encoder.keep_alive(&mut out);
    assert_eq!(out.len(), end, "nothing follows the end");
    out
}

/// Returns the data of a stream's events, and checks that the stream has a regular end.
fn read_stream(bytes: &[u8]) -> Vec<Value> {
    let mut events = SseReader::new().push(bytes).unwrap();
    if events.iter().any(|event| event.is_done()) {
        assert!(events.pop().unwrap().is_done());
    }
    events
        .iter()
        .map(|event| {
            let data: Value = serde_json::from_str(&event.data).unwrap();
            if !event.name.is_empty() {
                assert_eq!(data["type"], event.name.as_str());
            }
            data
        })
        .collect()
}

fn push_text(slot: &mut Value, more: &Value) {
    if let Some(more) = more.as_str() {
        *slot = Value::from(slot.as_str().unwrap_or("").to_owned() + more);
    }
}

fn extend(slot: &mut Value, more: &Value) {
    if let Some(more) = more.as_array() {
        let mut list = slot.as_array().cloned().unwrap_or_default();
        list.extend(more.iter().cloned());
        *slot = Value::from(list);
    }
}

fn keep(slot: &mut Value, more: &Value) {
    if !more.is_null() {
        *slot = more.clone();
    }
}

/// Joins OpenAI chunks into the shape of a whole answer.
fn join_openai(chunks: &[Value]) -> Value {
    let mut whole = json!({});
    let mut choices: BTreeMap<u64, Value> = BTreeMap::new();
    for chunk in chunks {
        for key in [
            "id",
            "created",
            "model",
            "system_fingerprint",
            "usage",
            "headrace",
            "prompt_token_ids",
            "prompt_logprobs",
        ] {
            keep(&mut whole[key], &chunk[key]);
        }
        for part in chunk["choices"].as_array().unwrap() {
            let choice = choices
                .entry(part["index"].as_u64().unwrap())
                .or_insert_with(|| json!({"index": part["index"]}));
            for key in ["finish_reason", "stop_reason", "prompt_token_ids", "prompt_logprobs"] {
                keep(&mut choice[key], &part[key]);
            }
            push_text(&mut choice["text"], &part["text"]);
            extend(&mut choice["token_ids"], &part["token_ids"]);
            for key in ["content", "tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                extend(&mut choice["logprobs"][key], &part["logprobs"][key]);
            }
            let delta = &part["delta"];
            keep(&mut choice["message"]["role"], &delta["role"]);
            push_text(&mut choice["message"]["content"], &delta["content"]);
            push_text(&mut choice["message"]["reasoning_content"], &delta["reasoning_content"]);
            extend(&mut choice["message"]["reasoning_details"], &delta["reasoning_details"]);
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
                let calls = &mut choice["message"]["tool_calls"];
                if calls.is_null() {
                    *calls = json!([]);
                }
                let calls = calls.as_array_mut().unwrap();
                if calls.len() == index {
                    calls.push(json!({}));
                }
                keep(&mut calls[index]["id"], &call["id"]);
                keep(&mut calls[index]["type"], &call["type"]);
                keep(&mut calls[index]["function"]["name"], &call["function"]["name"]);
                push_text(&mut calls[index]["function"]["arguments"], &call["function"]["arguments"]);
            }
        }
    }
    whole["choices"] = choices.into_values().collect();
    tidy(whole)
}

/// Drops nulls and empty strings, lists and objects, because a stream cannot distinguish them from absent values.
fn tidy(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(keep_items).collect()),
        Value::Object(map) => map
            .into_iter()
            .filter(|(key, _)| key != "object")
            .map(|(key, value)| (key, tidy(value)))
            .filter(|(_, value)| {
                *value != json!({}) && *value != json!([]) && *value != json!("") && !value.is_null()
            })
            .collect(),
        scalar => scalar,
    }
}

/// Items of a list keep their positions, even if they are empty.
fn keep_items(value: Value) -> Value {
    if value.is_object() { tidy(value) } else { value }
}

/// Joins Anthropic events into the shape of a whole message.
fn join_anthropic(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut blocks: Vec<Value> = Vec::new();
    let mut open = None;
    for event in events {
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                assert_eq!((open, event["index"].as_u64()), (None, Some(blocks.len() as u64)));
                open = event["index"].as_u64();
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(open, event["index"].as_u64());
                let block = blocks.last_mut().unwrap();
                let delta = &event["delta"];
                push_text(&mut block["text"], &delta["text"]);
                push_text(&mut block["thinking"], &delta["thinking"]);
                push_text(&mut block["signature"], &delta["signature"]);
                push_text(&mut block["partial"], &delta["partial_json"]);
            }
            "content_block_stop" => {
                assert_eq!(open, event["index"].as_u64());
                open = None;
                let block = blocks.last_mut().unwrap();
                if let Some(partial) = block["partial"].as_str().map(str::to_owned) {
                    block["input"] = match serde_json::from_str(partial.trim()) {
                        Ok(input) => input,
                        Err(_) if partial.trim().is_empty() => json!({}),
                        Err(_) => Value::from(partial),
                    };
                }
                block.as_object_mut().unwrap().remove("partial");
            }
            "message_delta" => {
                for key in ["stop_reason", "stop_sequence"] {
                    message[key] = event["delta"][key].clone();
                }
                message["usage"] = event["usage"].clone();
                keep(&mut message["headrace"], &event["headrace"]);
            }
            "message_stop" => assert_eq!(event, events.last().unwrap()),
            "ping" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    message["content"] = blocks.into();
    tidy(message)
}

/// Interleaves answers as a batch yields them: one event of each in turn.
fn interleave(mut answers: Vec<Vec<ReplyEvent>>) -> Vec<ReplyEvent> {
    answers.iter_mut().for_each(|events| events.reverse());
    let mut all = Vec::new();
    while answers.iter().any(|events| !events.is_empty()) {
        all.extend(answers.iter_mut().filter_map(Vec::pop));
    }
    all
}

fn check(
    endpoint: Endpoint,
    asked: &AnswerShape,
    answers: &[Answer],
    widths: &[usize],
    join: fn(&[Value]) -> Value,
) -> Result<(), TestCaseError> {
    let (streaming, whole) = (call(endpoint, asked, true), call(endpoint, asked, false));
    let with_prompt = streaming.dialect.echo()
        || streaming.return_token_ids
        || streaming.sampling.prompt_logprobs.is_some();
    let mut widths = widths.iter().copied().cycle();
    let mut cut = || widths.next().unwrap_or(0);
    let all = |cuts: &mut dyn FnMut() -> usize| -> Vec<Vec<ReplyEvent>> {
        (0..).zip(answers).map(|(choice, answer)| events(choice, answer, with_prompt, cuts)).collect()
    };
    let streamed = written(&streaming, &interleave(all(&mut cut)));
    let whole = written(&whole, &all(&mut || 0).concat());
    let mut whole: Value = serde_json::from_slice(&whole).unwrap();
    if !asked.usage && endpoint != Endpoint::Messages {
        whole.as_object_mut().unwrap().remove("usage");
    }
    prop_assert_eq!(join(&read_stream(&streamed)), tidy(whole));
    Ok(())
}

fn answer() -> impl Strategy<Value = Answer> {
    (prop::collection::vec(piece(), 0..8), reason())
}

fn no_tools((pieces, reason): Answer) -> Answer {
    (pieces.into_iter().filter(|piece| !matches!(piece, AnswerPiece::Tool { .. })).collect(), reason)
}

proptest! {
    #[test]
    fn streamed_chat_equals_whole(
        asked in asked(),
        answers in prop::collection::vec(answer(), 1..4),
        widths in prop::collection::vec(0_usize..5, 1..10),
    ) {
        check(Endpoint::ChatCompletions, &asked, &answers, &widths, join_openai)?;
    }

    #[test]
    fn streamed_completions_equal_whole(
        asked in asked(),
        answers in prop::collection::vec(answer().prop_map(no_tools), 1..4),
        widths in prop::collection::vec(0_usize..5, 1..10),
    ) {
        check(Endpoint::Completions, &asked, &answers, &widths, join_openai)?;
    }

    #[test]
    fn streamed_messages_equal_whole(
        asked in asked(),
        answer in answer(),
        widths in prop::collection::vec(0_usize..5, 1..10),
    ) {
        check(Endpoint::Messages, &asked, &[answer], &widths, join_anthropic)?;
    }
}
