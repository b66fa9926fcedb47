//! Streams and bodies of the Responses API as servers write them. They are read the same way wherever they are cut and
//! however their lines end. Interrupted, failed and unreported answers are recognised. Our own encoder's output is read
//! back as it was given.

use bytes::{Bytes, BytesMut};
use headrace_domain::{
    Call, Conversation, DialectExtras, Endpoint, FinishReason, Message, Prompt, ReplyEvent, RequestId, Role,
    Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::EventSplitter;
use headrace_wire::{ReplyMeta, ShownSampling, encoder};

fn response(status: &str, more: &Value) -> Value {
    let mut response = json!({"id": "resp_67cc", "object": "response", "model": "gpt-x-2026", "status": status, "output": [],
        "usage": null, "error": null, "incomplete_details": null, "service_tier": "auto"});
    response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    response
}

fn usage() -> Value {
    json!({"input_tokens": 20, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1}, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 29})
}

const USED: Usage = Usage {
    input: 15,
    cached_input: 4,
    cache_write: 1,
    cache_write_1h: 0,
    output: 6,
    reasoning: 3,
    web_searches: 0,
};

/// Events before the end: reasoning, text, a call of a function, a call of a custom tool, and the work of a hosted
/// tool.
fn begun() -> Vec<Value> {
    vec![
        json!({"type": "response.created", "response": response("in_progress", &json!({}))}),
        json!({"type": "response.in_progress", "response": response("in_progress", &json!({}))}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": []}}),
        json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1"}}),
        json!({"type": "response.output_item.added", "output_index": 1, "item": {"type": "of_tomorrow", "content": "x", "name": {"a": 1}}}),
        json!({"type": "response.web_search_call.completed", "output_index": 1, "item_id": "ws_1"}),
        json!({"type": "response.content_part.added", "output_index": 2, "part": {"type": "output_text", "text": ""}}),
        json!({"type": "response.output_text.delta", "output_index": 2, "delta": "Héllo", "logprobs": []}),
        json!({"type": "response.output_text.done", "output_index": 2, "text": "Héllo"}),
        json!({"type": "response.output_item.added", "output_index": 3,
            "item": {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 3, "delta": "{\"a\":"}),
        json!({"type": "response.function_call_arguments.delta", "output_index": 3, "delta": "1}"}),
        json!({"type": "response.output_item.done", "output_index": 3,
            "item": {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{\"a\":1}"}}),
        json!({"type": "response.output_item.added", "output_index": 4,
            "item": {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "g", "input": ""}}),
        json!({"type": "response.custom_tool_call_input.delta", "output_index": 4, "delta": "x y"}),
        json!({"type": "response.output_item.done", "output_index": 4, "item": {"type": "custom_tool_call", "call_id": "call_2"}}),
    ]
}

fn completed() -> Value {
    json!({"type": "response.completed",
        "response": response("completed", &json!({"usage": usage(), "service_tier": "flex"}))})
}

fn stream(events: &[Value], line: &str) -> String {
    let event = |event: &Value| {
        format!("event: {}{line}data: {event}{line}{line}", event["type"].as_str().unwrap_or("x"))
    };
    events.iter().map(event).collect()
}

/// The whole content in one line.
fn said(events: &[ReplyEvent]) -> String {
    let told = |event: &ReplyEvent| match event {
        ReplyEvent::Text { text, .. } => text.clone(),
        ReplyEvent::Reasoning { text, .. } => format!("({text})"),
        ReplyEvent::ToolCallStart { index, id, name, .. } => format!("[{index} {id} {name}]"),
        ReplyEvent::ToolCallArguments { fragment, .. } => fragment.clone(),
        ReplyEvent::Finish { reason, .. } => format!("|{}", reason.name()),
        other => format!("{other:?}"),
    };
    events.iter().map(told).collect()
}

const SAID: &str = "(hm)Héllo[0 call_1 f]{\"a\":1}[1 call_2 g]x y|tool_calls";

/// Reads a stream that comes in these pieces. Returns the reader, its events and facts, and the fault that ended the
/// answer.
fn read(pieces: &[&[u8]], words: bool) -> (ReplyReader, Vec<ReplyEvent>, Vec<EventFacts>, Option<FaultKind>) {
    let (mut reader, mut splitter) = (ReplyReader::new(Endpoint::Responses, true, 1), EventSplitter::new());
    let (mut events, mut facts) = (Vec::new(), Vec::new());
    let mut all = || {
        for piece in pieces {
            splitter.push(Bytes::copy_from_slice(piece));
            while let Some(event) = splitter.next_event().unwrap() {
                let out = words.then_some(&mut events);
                facts.push(reader.event(&event.name, &event.data, out)?);
            }
        }
        reader.end()
    };
    let fault = all().err().map(|fault| fault.kind);
    (reader, events, facts, fault)
}

#[test]
fn a_stream_is_read_the_same_wherever_it_is_cut_and_however_its_lines_end() {
    let events = [begun(), vec![completed()]].concat();
    for line in ["\n", "\r\n", "\r"] {
        let text = stream(&events, line) + "data: [DONE]" + line + line;
        for cut in 0..=text.len() {
            let (before, after) = text.as_bytes().split_at(cut);
            let (reader, events, facts, fault) = read(&[before, after], true);
            assert_eq!((said(&events).as_str(), fault), (SAID, None), "{line:?} at {cut}");
            assert_eq!((reader.usage(), reader.model()), (Some(USED), Some("gpt-x-2026")));
            assert_eq!(
                (reader.upstream_id(), reader.finish(0)),
                (Some("resp_67cc"), Some(&FinishReason::ToolCalls))
            );
            assert_eq!(
                reader.reported().unwrap().service_tier.as_deref(),
                Some("flex"),
                "as it ended, not as it was asked for"
            );
            let ends = facts.iter().filter(|facts| facts.kind == EventKind::End).count();
            assert_eq!((ends, reader.is_over(), reader.notes()), (1, true, &[][..]));
            let first = facts.iter().position(|facts| facts.meaningful);
            assert_eq!(first, Some(3), "what opens a response is nothing of it yet");
        }
        // A stream that is passed on as it is gets read for the bill alone. The counts are the same.
        let (passed, words, ..) = read(&[text.as_bytes()], false);
        let (told, ..) = read(&[text.as_bytes()], true);
        assert_eq!((passed.usage(), passed.generated(), words.len()), (told.usage(), told.generated(), 0));
    }
}

#[test]
fn every_end_is_told_as_what_it_is() {
    use FaultKind::*;
    let ends = |kind: &str, more: Value| {
        let status = kind.trim_start_matches("response.");
        let mut more = more;
        more["usage"] = more.get("usage").cloned().unwrap_or_else(usage);
        json!({"type": kind, "response": response(status, &more)})
    };
    let bound = |reason: &str| ends("response.incomplete", json!({"incomplete_details": {"reason": reason}}));
    let failed = ends("response.failed", json!({"error": {"code": "server_error", "message": "it broke"}}));
    for (end, reason, fault) in [
        (ends("response.completed", json!({})), Some("stop"), None),
        (bound("max_output_tokens"), Some("length"), None),
        (bound("content_filter"), Some("content_filter"), None),
        (bound("something_new"), Some("length"), None),
        (failed, None, Some(ErrorInside(crate::FailureClass::ServerError))),
        (ends("response.failed", json!({})), None, Some(GaveUp)),
        (ends("response.cancelled", json!({})), None, Some(GaveUp)),
        (ends("response.completed", json!({"status": "in_progress"})), None, Some(BrokeOff)),
    ] {
        let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "abcdefgh"});
        let (reader, _, _, ended) = read(&[stream(&[text, end.clone()], "\n").as_bytes()], true);
        assert_eq!((reader.finish(0).map(FinishReason::name), ended), (reason, fault), "{end}");
        // A failed response is billed by the usage that its server reports.
        assert_eq!(reader.usage(), Some(USED), "{end}");
    }
}

#[test]
fn what_is_no_whole_stream_is_told_so() {
    use FaultKind::*;
    let all = [begun(), vec![completed()]].concat();
    for cut in 0..all.len() {
        let (reader, _, _, fault) = read(&[stream(&all[..cut], "\n").as_bytes()], true);
        assert_eq!(fault, Some(if cut == 0 { Empty } else { BrokeOff }), "after {cut} events");
        assert_eq!((reader.usage(), reader.finish(0)), (None, None));
    }
    let (_, _, _, fault) = read(&[(stream(&begun(), "\n") + "data: [DONE]\n\n").as_bytes()], true);
    assert_eq!(fault, Some(NoFinishReason), "an end without a last event");
    let error = crate::FailureClass::RateLimited;
    for inside in [
        json!({"type": "error", "code": "rate_limit_exceeded", "message": "Rate limit reached", "param": null, "sequence_number": 3}),
        json!({"error": {"code": "rate_limit_exceeded", "message": "Rate limit reached"}}),
    ] {
        let (_, _, _, fault) =
            read(&[stream(&[begun(), vec![inside.clone()]].concat(), "\n").as_bytes()], true);
        assert_eq!(fault, Some(ErrorInside(error)), "{inside}");
    }
    for (bad, kind) in [
        ("{\"type\":\"response.completed\"}", Misshapen),
        ("{}", Misshapen),
        ("{\"type\":", NotJson),
        ("[]", Misshapen),
    ] {
        let (_, _, _, fault) = read(&[format!("data: {bad}\n\n").as_bytes()], true);
        assert_eq!(fault, Some(kind), "{bad}");
    }
}

#[test]
fn of_a_report_every_valid_count_is_believed_and_no_other() {
    let totals = Some(Usage { input: 3, output: 1, ..Usage::default() });
    for (usage, expected, note) in [
        (Value::Null, None, None),
        (json!({}), None, None),
        (json!({"input_tokens": 3}), None, Some(FaultKind::UsageIncomplete)),
        (json!({"input_tokens": 3, "output_tokens": -1}), None, Some(FaultKind::UsageAbsurd)),
        (
            json!({"input_tokens": 3, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 9}}),
            totals,
            Some(FaultKind::UsageAbsurd),
        ),
        (
            json!({"input_tokens": 3, "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 2}}),
            totals,
            Some(FaultKind::UsageAbsurd),
        ),
        (json!("much"), None, Some(FaultKind::UsageAbsurd)),
    ] {
        let end = json!({"type": "response.completed", "response": response("completed", &json!({"usage": usage}))});
        let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "abcdefgh"});
        let (reader, _, _, fault) = read(&[stream(&[text, end], "\n").as_bytes()], true);
        assert_eq!((fault, reader.usage(), reader.generated()), (None, expected, 2), "{usage}");
        assert_eq!(reader.notes().first().map(|note| note.kind), note, "{usage}");
    }
}

#[test]
fn a_body_says_what_a_stream_does() {
    let output = json!([
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "content": 7},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Héllo", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{\"a\":1}"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": "x y"},
    ]);
    let whole = |body: &Value| {
        let (mut reader, mut events) = (ReplyReader::new(Endpoint::Responses, false, 1), Vec::new());
        let fault =
            reader.whole(body.to_string().as_bytes(), Some(&mut events)).err().map(|fault| fault.kind);
        (reader, said(&events), fault)
    };
    let (reader, said, fault) = whole(&response("completed", &json!({"output": output, "usage": usage()})));
    assert_eq!((said.as_str(), fault, reader.usage()), (SAID, None, Some(USED)));
    reader.reported().unwrap();
    let (reader, said, _) =
        whole(&response("incomplete", &json!({"incomplete_details": {"reason": "max_output_tokens"}})));
    assert_eq!((said.as_str(), reader.usage()), ("|length", None));
    let error = json!({"code": "server_error", "message": "it broke"});
    let broke = FaultKind::ErrorInside(crate::FailureClass::ServerError);
    for (body, expected) in [
        (response("failed", &json!({"error": error})), broke),
        (json!({"error": error}), broke),
        (response("queued", &json!({})), FaultKind::BrokeOff),
        (json!({"id": "resp_1", "output": []}), FaultKind::Misshapen),
        (json!([]), FaultKind::Misshapen),
    ] {
        assert_eq!(whole(&body).2, Some(expected), "{body}");
    }
}

/// A piece of an answer: text, reasoning or a call.
fn piece() -> impl Strategy<Value = (u8, String)> {
    (0..3_u8, "[a-zé\"\\\\\n ]{1,12}")
}

proptest! {
    #[test]
    fn what_our_encoder_writes_is_read_as_what_it_was_given(pieces in prop::collection::vec(piece(), 0..6), width in 1..64_usize, length in any::<bool>()) {
        let mut given = Vec::new();
        let mut calls = 0;
        for (kind, text) in pieces {
            let (choice, text, ids, logprobs) = (0, text, Vec::new(), Vec::new());
            match kind {
                0 => given.push(ReplyEvent::Text { choice, text, ids, logprobs }),
                1 => given.push(ReplyEvent::Reasoning { choice, text, ids, logprobs }),
                _ => {
                    let fragment = json!({"x": text}).to_string();
                    given.push(ReplyEvent::ToolCallStart { choice, index: calls, id: format!("call_{calls}"), name: "f".into() });
                    given.push(ReplyEvent::ToolCallArguments { choice, index: calls, fragment });
                    calls += 1;
                }
            }
        }
        let reason = if length { FinishReason::Length } else if calls > 0 { FinishReason::ToolCalls } else { FinishReason::Stop };
        given.push(ReplyEvent::Finish { choice: 0, reason });
        let messages = vec![Message::text(Role::User, "p")];
        let prompt = Prompt::Conversation(Conversation { messages, ..Conversation::default() });
        for stream in [true, false] {
            let call = Call { stream, dialect: DialectExtras::Responses(Default::default()), ..Call::of_prompt(Endpoint::Responses, "m".into(), prompt.clone()) };
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
            encoder.begin(&USED, &mut out);
            given.iter().for_each(|event| encoder.event(event, &mut out));
            encoder.finish(&USED, None, &mut out);
            let (mut reader, mut events) = (ReplyReader::new(Endpoint::Responses, stream, 1), Vec::new());
            if stream {
                let mut splitter = EventSplitter::new();
                for piece in out.chunks(width) {
                    splitter.push(Bytes::copy_from_slice(piece));
                    while let Some(event) = splitter.next_event().unwrap() {
                        reader.event(&event.name, &event.data, Some(&mut events)).unwrap();
                    }
                }
                reader.end().unwrap();
            } else {
                reader.whole(&out, Some(&mut events)).unwrap();
            }
            // Adjacent pieces of the same kind are joined.
            prop_assert_eq!(said(&events).replace(")(", ""), said(&given).replace(")(", ""));
            let used = reader.usage().unwrap();
            prop_assert_eq!((used.prompt_tokens(), used.cached_input), (USED.prompt_tokens(), USED.cached_input));
            prop_assert_eq!((used.output, used.reasoning), (USED.output, USED.reasoning));
        }
    }
}
