//! Round trips through our own encoders: random answers in both dialects, streamed and whole, are read back as they
//! were given.

use bytes::{Bytes, BytesMut};
use headrace_domain::{
    Call, Conversation, Endpoint, FinishReason, Message, Prompt, PromptItem, ReplyEvent, RequestId, Role,
    SamplingRequest, Usage,
};
use proptest::prelude::*;

use super::*;
use crate::EventSplitter;
use headrace_wire::{ReplyMeta, ShownSampling, encoder};

fn call(endpoint: Endpoint, stream: bool, choices: u32) -> Call {
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
        sampling: SamplingRequest { n: choices, ..SamplingRequest::default() },
        stream,
        include_usage: true,
        return_token_ids: false,
        explain: false,
        cache_marks: Vec::new(),
        cache_salt: None,
        timeout: None,
        tier: headrace_domain::ServiceTier::Standard,
        user: None,
        labels: None,
        form: None,
        dialect: Default::default(),
        reasoning: Default::default(),
    }
}

const USAGE: Usage = Usage {
    input: 5,
    cached_input: 16,
    cache_write: 0,
    cache_write_1h: 0,
    output: 10,
    reasoning: 0,
    web_searches: 0,
};

fn written(call: &Call, events: &[ReplyEvent]) -> Bytes {
    let meta = ReplyMeta {
        request_id: RequestId::from_bits(7),
        created_unix_s: 1_700_000_000,
        model: "mödel \"x\"".into(),
        system_fingerprint: "fp".into(),
        tier: headrace_domain::ServiceTier::Standard,
        chosen: ShownSampling::default(),
        diagnosis: None,
    };
    let mut out = BytesMut::new();
    let mut encoder = encoder(call, meta);
    encoder.begin(&Usage { output: 0, ..USAGE }, &mut out);
    for event in events {
        encoder.keep_alive(&mut out);
        encoder.event(event, &mut out);
    }
    encoder.finish(&USAGE, None, &mut out);
    out.freeze()
}

/// Reads the bytes with and without reply events, and checks that both agree.
fn read(call: &Call, bytes: Bytes) -> (ReplyReader, Vec<ReplyEvent>) {
    let reader = || ReplyReader::new(call.endpoint, call.stream, call.sampling.n);
    let (mut reading, mut looking, mut out) = (reader(), reader(), Vec::new());
    if call.stream {
        let mut splitter = EventSplitter::new();
        splitter.push(bytes);
        while let Some(event) = splitter.next_event().unwrap() {
            let read = reading.event(&event.name, &event.data, Some(&mut out)).unwrap();
            assert_eq!(looking.event(&event.name, &event.data, None).unwrap(), read);
        }
        assert!(!splitter.is_mid_event());
    } else {
        let read = reading.whole(&bytes, Some(&mut out)).unwrap();
        assert_eq!(looking.whole(&bytes, None).unwrap(), read);
    }
    reading.end().unwrap();
    assert_eq!(reading.usage(), looking.usage());
    assert_eq!(reading.generated(), looking.generated());
    assert_eq!(reading.finish(0), looking.finish(0));
    (reading, out)
}

/// A piece of an answer.
#[derive(Debug, Clone)]
enum RoundTripPiece {
    Text(String),
    /// Text and signature.
    Reasoning(String, Option<String>),
    Redacted(String),
    Tool(String, Vec<String>),
}

fn piece() -> impl Strategy<Value = RoundTripPiece> {
    let text = || prop_oneof![any::<String>(), "[a-c\"\\\\\nй😀 ]{0,12}"];
    let arguments = prop::sample::select(vec![
        vec![],
        vec!["{}"],
        vec!["{\"a", "\":\"}{\\", "\"\"", "}"],
        vec!["{\"é😀\":[1,{\"x\":null}]}"],
        vec!["", "{\"cut\":", "", "\"of"],
    ]);
    prop_oneof![
        3 => text().prop_map(RoundTripPiece::Text),
        2 => (text(), prop::option::of("[a-z/+=]{1,8}")).prop_map(|(text, mark)| RoundTripPiece::Reasoning(text, mark)),
        1 => "[a-z/+=]{1,8}".prop_map(RoundTripPiece::Redacted),
        2 => ("[a-z]{1,5}", arguments).prop_map(|(name, parts)| {
            RoundTripPiece::Tool(name, parts.into_iter().map(str::to_owned).collect())
        }),
    ]
}

fn reason() -> impl Strategy<Value = FinishReason> {
    prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::ToolCalls),
        Just(FinishReason::ContentFilter),
        "[a-z]{1,4}".prop_map(|matched| FinishReason::StopString { matched }),
    ]
}

type Reply = (Vec<RoundTripPiece>, FinishReason);

fn reply() -> impl Strategy<Value = Reply> {
    (prop::collection::vec(piece(), 0..6), reason())
}

/// Chunks of a chat do not mark the end of a call. If the arguments do not either, the following pieces wait for the
/// end of the answer.
fn tell_where_calls_end((pieces, _): &mut Reply) {
    let before_last = pieces.len().saturating_sub(1);
    for piece in pieces.iter_mut().take(before_last) {
        if let RoundTripPiece::Tool(_, parts) = piece
            && serde_json::from_str::<serde_json::Value>(&parts.concat()).is_err()
        {
            *parts = vec!["{".to_owned(), "}".to_owned()];
        }
    }
}

fn events(choice: u32, (pieces, reason): &Reply) -> Vec<ReplyEvent> {
    let (mut events, mut calls) = (Vec::new(), 0);
    let text = |text: &String| ReplyEvent::Text {
        choice,
        text: text.clone(),
        ids: Vec::new(),
        logprobs: Vec::new(),
    };
    for piece in pieces {
        match piece {
            RoundTripPiece::Text(said) => events.push(text(said)),
            RoundTripPiece::Reasoning(said, signature) => {
                let (text, ids, logprobs) = (said.clone(), Vec::new(), Vec::new());
                events.push(ReplyEvent::Reasoning { choice, text, ids, logprobs });
                let signature = signature.clone();
                events
                    .extend(signature.map(|signature| ReplyEvent::ReasoningSignature { choice, signature }));
            }
            RoundTripPiece::Redacted(data) => {
                events.push(ReplyEvent::RedactedReasoning { choice, data: data.clone() });
            }
            RoundTripPiece::Tool(name, parts) => {
                let (index, id) = (calls, format!("call_{choice}_{calls}"));
                calls += 1;
                events.push(ReplyEvent::ToolCallStart { choice, index, id, name: name.clone() });
                events.extend(parts.iter().map(|part| ReplyEvent::ToolCallArguments {
                    choice,
                    index,
                    fragment: part.clone(),
                }));
            }
        }
    }
    events.push(ReplyEvent::Finish { choice, reason: reason.clone() });
    events
}

/// The order of an answer's parts that a format keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptOrder {
    /// The whole order.
    Order,
    /// Reasoning, text and calls are separate (OpenAI's whole messages).
    Parts,
    /// Only text (completions).
    TextOnly,
}

/// The events of one choice in a normal form: neighbours joined, empty events and everything that the format loses left
/// out.
fn normal(events: &[ReplyEvent], choice: u32, keeps: KeptOrder, input_is_json: bool) -> Vec<String> {
    let mut parts: Vec<(u8, String)> = Vec::new();
    let mut called = false;
    for event in events {
        match event {
            ReplyEvent::Text { choice: of, text, .. } if *of == choice => join(&mut parts, 2, text),
            ReplyEvent::Reasoning { choice: of, text, .. } if *of == choice => {
                join(&mut parts, if keeps == KeptOrder::TextOnly { 2 } else { 1 }, text);
            }
            ReplyEvent::ReasoningSignature { choice: of, signature } if *of == choice => {
                parts.push((0, format!("signed {signature}")));
            }
            ReplyEvent::RedactedReasoning { choice: of, data } if *of == choice => {
                parts.push((0, format!("redacted {data}")));
            }
            ReplyEvent::ToolCallStart { choice: of, index, id, name } if *of == choice => {
                called = true;
                parts.push((3, format!("call {index} {id} {name}")));
                parts.push((4, String::new()));
            }
            ReplyEvent::ToolCallArguments { choice: of, fragment, .. } if *of == choice => {
                join(&mut parts, 4, fragment);
            }
            ReplyEvent::Finish { choice: of, reason } if *of == choice => {
                let tools = called && *reason == FinishReason::Stop && keeps != KeptOrder::TextOnly;
                let reason = if tools { &FinishReason::ToolCalls } else { reason };
                parts.push((9, format!("finish {reason:?}")));
            }
            _ => {}
        }
    }
    for (kind, text) in &mut parts {
        match kind {
            4 if text.trim().is_empty() => *text = "{}".to_owned(),
            // A whole message holds arguments that are not JSON as a string.
            4 if input_is_json && serde_json::from_str::<serde_json::Value>(text).is_err() => {
                *text = serde_json::to_string(text).unwrap();
            }
            _ => {}
        }
    }
    match keeps {
        KeptOrder::Order => {}
        KeptOrder::Parts => {
            let all = |of: u8| -> String {
                parts.iter().filter(|(kind, _)| *kind == of).map(|(_, text)| text.as_str()).collect()
            };
            let mut apart = vec![(1, all(1)), (2, all(2))];
            apart.extend(parts.iter().filter(|(kind, _)| *kind == 0 || *kind >= 3).cloned());
            apart.sort_by_key(|(kind, _)| *kind == 0);
            parts = apart;
        }
        KeptOrder::TextOnly => {
            let said: String =
                parts.iter().filter(|(kind, _)| *kind == 2).map(|(_, text)| text.as_str()).collect();
            let finish = parts.pop();
            parts = vec![(2, said)];
            parts.extend(finish);
        }
    }
    parts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(kind, text)| format!("{kind} {text}"))
        .collect()
}

fn join(parts: &mut Vec<(u8, String)>, kind: u8, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some((open, said)) if *open == kind => said.push_str(text),
        _ => parts.push((kind, text.to_owned())),
    }
}

fn check(endpoint: Endpoint, stream: bool, replies: &[Reply], keeps: KeptOrder) -> Result<(), TestCaseError> {
    let call = call(endpoint, stream, u32::try_from(replies.len()).unwrap());
    let given: Vec<ReplyEvent> =
        (0..).zip(replies).flat_map(|(choice, reply)| events(choice, reply)).collect();
    let (reader, out) = read(&call, written(&call, &given));
    let input_is_json = endpoint == Endpoint::Messages && !stream;
    for choice in 0..call.sampling.n {
        prop_assert_eq!(
            normal(&out, choice, keeps, input_is_json),
            normal(&given, choice, keeps, input_is_json)
        );
    }
    prop_assert_eq!(reader.usage(), Some(USAGE));
    prop_assert_eq!(reader.model(), Some("mödel \"x\""));
    prop_assert!(reader.upstream_id().is_some());
    prop_assert_eq!(reader.notes(), &[]);
    Ok(())
}

/// The data of the events of our own stream, in either dialect.
fn datas(endpoint: Endpoint, reply: &Reply) -> Vec<Bytes> {
    let call = call(endpoint, true, 1);
    let mut splitter = EventSplitter::new();
    splitter.push(written(&call, &events(0, reply)));
    std::iter::from_fn(|| splitter.next_event().unwrap()).map(|event| event.data).collect()
}

proptest! {
    /// Changed bytes and events out of order cause a fault or none, but never a panic. A reader without reply events
    /// finds no fault that a full reader does not find.
    #[test]
    fn no_stream_makes_it_panic(
        endpoint in prop::sample::select(vec![Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages]),
        reply in reply(),
        wounds in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 0..4),
        swaps in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..3),
    ) {
        let mut datas: Vec<Vec<u8>> = datas(endpoint, &reply).iter().map(|data| data.to_vec()).collect();
        let event_count = datas.len();
        for (event, place, byte) in wounds {
            let wounded = &mut datas[event.index(event_count)];
            if !wounded.is_empty() {
                let at = place.index(wounded.len());
                wounded[at] = byte;
            }
        }
        for [one, other] in swaps {
            let (one, other) = (one.index(datas.len()), other.index(datas.len()));
            datas.swap(one, other);
        }
        let (mut reading, mut looking) = (ReplyReader::new(endpoint, true, 1), ReplyReader::new(endpoint, true, 1));
        let mut out = Vec::new();
        let read = datas.iter().try_for_each(|data| reading.event(b"", data, Some(&mut out)).map(|_| ()));
        let looked = datas.iter().try_for_each(|data| looking.event(b"", data, None).map(|_| ()));
        let (_, _) = (reading.end(), looking.end());
        if read.is_ok() {
            prop_assert!(looked.is_ok(), "{looked:?}");
            prop_assert_eq!(reading.usage(), looking.usage());
            prop_assert_eq!(reading.finish(0), looking.finish(0));
        }
    }

    #[test]
    fn chats(mut replies in prop::collection::vec(reply(), 1..3)) {
        replies.iter_mut().for_each(tell_where_calls_end);
        check(Endpoint::ChatCompletions, true, &replies, KeptOrder::Order)?;
        check(Endpoint::ChatCompletions, false, &replies, KeptOrder::Parts)?;
    }

    #[test]
    fn completions(replies in prop::collection::vec(reply(), 1..3)) {
        check(Endpoint::Completions, true, &replies, KeptOrder::TextOnly)?;
        check(Endpoint::Completions, false, &replies, KeptOrder::TextOnly)?;
    }

    #[test]
    fn messages(reply in reply()) {
        check(Endpoint::Messages, true, std::slice::from_ref(&reply), KeptOrder::Order)?;
        check(Endpoint::Messages, false, &[reply], KeptOrder::Order)?;
    }
}
