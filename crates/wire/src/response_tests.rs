//! Tables of requests, with their meaning or their refusal. Also tests that a stream's joined events are the whole
//! answer, for random answers that are cut anywhere.

use bytes::BytesMut;
use headrace_domain::{
    Call, Code, Conversation, Endpoint, FinishReason, Message, MessageOrigin, Prompt, ReplyEvent, RequestId,
    ResponseFormat, Role, ServiceTier, ToolCall, ToolChoice, Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::encoder::{ReplyMeta, ShownSampling};
use crate::common::error::ErrorFacts;
use crate::encode::encoder;
use crate::fault::BadRequest;
use crate::limits::WireLimits;
use crate::request::parse;
use crate::sse::SseReader;

mod hosted;

fn read(body: &Value) -> Result<Call, BadRequest> {
    parse(Endpoint::Responses, body.to_string().as_bytes(), &WireLimits::default())
}

fn with(more: &Value) -> Value {
    let mut body = json!({"model": "m", "input": "hi"});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn conversation(call: &Call) -> &Conversation {
    match &call.prompt {
        Prompt::Conversation(conversation) => conversation,
        Prompt::Raw(_) | Prompt::Encode(_) | Prompt::Relayed(_) => panic!("a conversation"),
    }
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

#[test]
fn a_turn_of_the_assistant_is_one_message_of_several_items() {
    let call_of = |mut message: Message, calls: Vec<ToolCall>| {
        message.tool_calls = calls;
        message
    };
    // The text `hm`.
    let sealed = "hr1t.aG0";
    let body = with(&json!({"instructions": "be brief", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": "commentary",
            "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{\"z\": 1,\"a\":2}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x\"y"},
        {"type": "function_call_output", "call_id": "1", "output": "o"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "p"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "content": null},
    ]}));
    let call_read = read(&body).unwrap();
    let result = |id: &str, text: &str| {
        let mut message = Message::text(Role::Tool, text);
        message.tool_call_id = Some(id.into());
        message
    };
    let mut turn = call_of(
        Message::text(Role::Assistant, "c"),
        vec![call("1", "f", "{\"z\": 1,\"a\":2}"), call("2", "g", r#"{"input":"x\"y"}"#)],
    );
    turn.reasoning = Some("hm".into());
    let mut last = Message::text(Role::Assistant, "");
    last.reasoning = Some("so".into());
    let expected = [
        Message::text(Role::System, "be brief"),
        Message { joints: vec![1], ..Message::text(Role::User, "ab") },
        turn,
        result("1", "o"),
        result("2", "p"),
        last,
    ];
    assert_eq!(conversation(&call_read).messages, expected);
    let places: Vec<_> = (0..expected.len()).map(|at| call_read.origin(at)).collect();
    let at = |index| MessageOrigin::Message { index, block: None };
    assert_eq!(places, [MessageOrigin::System, at(0), at(1), at(5), at(6), at(7)]);
}

#[test]
fn what_is_asked_of_the_answer() {
    let call = read(&with(&json!({
        "max_output_tokens": 7, "top_logprobs": 2, "stream": true, "temperature": 0.5, "service_tier": "flex",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true},
                  {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
                  {"type": "mcp", "server_label": "x"}],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        "parallel_tool_calls": false, "previous_response_id": "resp_1", "store": false,
        "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
            "schema": {"type": "object", "properties": {"z": {}, "a": {}}}}},
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
    })))
    .unwrap();
    assert_eq!((call.sampling.max_tokens, call.sampling.logprobs), (Some(7), Some(2)));
    assert!(call.stream && call.tier == ServiceTier::Flex);
    let conversation = conversation(&call);
    assert_eq!(conversation.tool_choice, ToolChoice::Allowed { names: vec!["f".into()], required: true });
    assert!(conversation.one_call && conversation.tools[0].strict && conversation.tools[1].custom.is_some());
    let Some(ResponseFormat::JsonSchema(form)) = call.form.as_deref() else { panic!("a form") };
    assert_eq!(form.schema["properties"].to_string(), r#"{"z":{},"a":{}}"#);
    assert_eq!((call.reasoning.effort.as_deref(), call.reasoning.enabled), (Some("low"), Some(true)));
    let ask = call.dialect.response().unwrap();
    assert!(ask.sealed_reasoning && ask.reasoning_summary && !ask.store);
    assert_eq!(
        (ask.previous.as_deref(), ask.skipped_tools.as_slice()),
        (Some("resp_1"), &["mcp".to_owned()][..])
    );
    let echo: Value = serde_json::from_str(&format!("{{{}}}", ask.echo.trim_end_matches(','))).unwrap();
    assert_eq!(echo["tools"].as_array().unwrap().len(), 2);
    assert_eq!(echo["text"]["format"]["name"], "n");
    assert_eq!(echo["tool_choice"]["mode"], "required");
    // By default the answer may be stored, and its input is kept for that.
    assert_eq!(read(&with(&json!({}))).unwrap().dialect.response().unwrap().input, "\"hi\"");
}

#[test]
fn what_is_refused_and_where() {
    let part = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (more, code, param) in [
        (json!({"input": null}), Code::InvalidType, "input"),
        (json!({"input": []}), Code::MissingRequiredParameter, "input"),
        (json!({"input": [{"type": "web_search_call"}]}), Code::MissingRequiredParameter, "input[0].action"),
        (json!({"input": [{"type": "image_generation_call"}]}), Code::UnsupportedContent, "input[0].type"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            Code::UnsupportedContent,
            "input[0].type",
        ),
        (json!({"input": [{"content": "x"}]}), Code::MissingRequiredParameter, "input[0].type"),
        (json!({"input": [{"role": "tool", "content": "x"}]}), Code::InvalidValue, "input[0].role"),
        (json!({"input": [{"role": "user", "content": "x", "y": 1}]}), Code::UnknownParameter, "input[0].y"),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}),
            Code::InvalidValue,
            "input",
        ),
        (
            json!({"input": [{"type": "compaction", "encrypted_content": "gAAA"}]}),
            Code::InvalidValue,
            "input[0].encrypted_content",
        ),
        (part(json!({"type": "hologram"})), Code::UnsupportedContent, "input[0].content[0]"),
        (
            part(json!({"type": "input_image"})),
            Code::MissingRequiredParameter,
            "input[0].content[0].image_url",
        ),
        (
            part(json!({"type": "input_file", "file_id": "f", "file_url": "u"})),
            Code::InvalidValue,
            "input[0].content[0].file_id",
        ),
        (json!({"tools": [{"type": "function"}]}), Code::MissingRequiredParameter, "tools[0].name"),
        (json!({"tool_choice": {"type": "function", "name": "f"}}), Code::InvalidValue, "tool_choice"),
        (json!({"tool_choice": "required"}), Code::InvalidValue, "tool_choice"),
        (
            json!({"previous_response_id": "a", "conversation": "b"}),
            Code::InvalidValue,
            "previous_response_id",
        ),
        (json!({"background": true, "store": false}), Code::InvalidValue, "background"),
        (json!({"truncation": "some"}), Code::InvalidValue, "truncation"),
        (json!({"include": ["x"]}), Code::InvalidValue, "include[0]"),
        (json!({"max_tokens": 1}), Code::UnsupportedParameter, "max_tokens"),
        (json!({"n": 2}), Code::UnsupportedParameter, "n"),
        (json!({"max_output_tokens": 0}), Code::IntegerBelowMinValue, "max_output_tokens"),
        (json!({"metadata": {"k": 1}}), Code::InvalidType, "metadata.k"),
        (json!({"text": {"format": {"type": "xml"}}}), Code::InvalidValue, "text.format.type"),
        (json!({"reasoning": {"effort": "huge"}}), Code::InvalidValue, "reasoning.effort"),
    ] {
        let bad = read(&with(&more)).unwrap_err();
        assert_eq!((bad.code, bad.param.as_deref()), (code, Some(param)), "{more}: {bad}");
    }
    let limits = WireLimits { skip_hosted_tools: false, ..WireLimits::default() };
    let body = with(&json!({"tools": [{"type": "web_search"}]})).to_string();
    let bad = parse(Endpoint::Responses, body.as_bytes(), &limits).unwrap_err();
    assert_eq!((bad.code, bad.param.as_deref()), (Code::UnsupportedValue, Some("tools[0].type")));
}

const USAGE: Usage = Usage {
    input: 5,
    cached_input: 16,
    cache_write: 0,
    cache_write_1h: 0,
    output: 7,
    reasoning: 3,
    web_searches: 0,
};

fn written(call: &Call, events: &[ReplyEvent], failed: bool) -> String {
    let meta = ReplyMeta {
        request_id: RequestId::from_bits(7),
        created_unix_s: 1_700_000_000,
        model: "m".into(),
        system_fingerprint: String::new(),
        tier: ServiceTier::Standard,
        chosen: ShownSampling { temperature: 0.7, top_p: 0.9 },
        diagnosis: None,
    };
    let (mut encoder, mut out) = (encoder(call, meta), BytesMut::new());
    encoder.begin(&Usage::default(), &mut out);
    events.iter().for_each(|event| encoder.event(event, &mut out));
    encoder.ended_at(1_700_000_009);
    if failed {
        encoder.fail(&ErrorFacts::new(Code::InternalError, "why", RequestId::from_bits(7)), &mut out);
    }
    encoder.finish(&USAGE, None, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn events_of(stream: &str) -> Vec<Value> {
    let mut events = SseReader::new().push(stream.as_bytes()).unwrap();
    // No `[DONE]` follows a failure.
    let ends_well = events.last().is_none_or(|event| event.name != "response.failed");
    assert!(!ends_well || events.pop().unwrap().is_done());
    let read = events.iter().enumerate().map(|(at, event)| {
        let data: Value = serde_json::from_str(&event.data).unwrap();
        assert_eq!(data["type"], event.name.as_str());
        assert_eq!(data["sequence_number"], at);
        data
    });
    read.collect()
}

/// Joins the events of a stream to the output, and checks that each item has one id from start to end.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    for event in events {
        let name = event["type"].as_str().unwrap();
        let at = event["output_index"].as_u64().map_or(usize::MAX, |at| usize::try_from(at).unwrap());
        let delta = event["delta"].as_str().unwrap_or_default();
        let append = |slot: &mut Value| *slot = Value::from(slot.as_str().unwrap().to_owned() + delta);
        if name == "response.output_item.added" {
            assert_eq!(at, items.len());
            items.push(event["item"].clone());
            continue;
        }
        let Some(item) = items.get_mut(at) else { continue };
        match event.get("item_id") {
            Some(id) => assert_eq!(id, &item["id"], "{name}"),
            None => assert_eq!(event["item"]["id"], item["id"], "{name}"),
        }
        match name {
            "response.content_part.added" => item["content"] = json!([event["part"]]),
            "response.reasoning_summary_part.added" => item["summary"] = json!([event["part"]]),
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                append(&mut item["content"][0]["text"]);
            }
            "response.reasoning_summary_text.delta" => append(&mut item["summary"][0]["text"]),
            "response.function_call_arguments.delta" => append(&mut item["arguments"]),
            "response.custom_tool_call_input.delta" => append(&mut item["input"]),
            "response.output_item.done" => {
                item["status"] = event["item"]["status"].clone();
                // The encoded content is known only at the end.
                item["encrypted_content"] = event["item"]["encrypted_content"].clone();
                let mut done = event["item"].clone();
                done["encrypted_content"] = item["encrypted_content"].clone();
                assert_eq!(*item, done);
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"]);
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
            "response.custom_tool_call_input.done" => assert_eq!(event["input"], item["input"]),
            _ => {}
        }
    }
    items
}

/// The events of an answer: reasoning, texts and calls in any order, cut anywhere.
fn answer() -> impl Strategy<Value = Vec<ReplyEvent>> {
    let cut = |text: String, width: usize| -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(width).map(|chunk| chunk.iter().collect()).collect()
    };
    let piece = (0..4_usize, "[a-z\"\\\\é😀\n]{0,12}", 1..5_usize, any::<bool>());
    (prop::collection::vec(piece, 0..6), 0..3_usize).prop_map(move |(pieces, reason)| {
        let mut events = Vec::new();
        let mut calls = 0;
        for (kind, said, width, custom) in pieces {
            let (ids, logprobs) = (Vec::new(), Vec::new());
            match kind {
                0 => events.extend(cut(said, width).into_iter().map(|text| ReplyEvent::Reasoning {
                    choice: 0,
                    text,
                    ids: ids.clone(),
                    logprobs: logprobs.clone(),
                })),
                1 => events.push(ReplyEvent::RedactedReasoning { choice: 0, data: said }),
                2 => {
                    let (index, id) = (calls, format!("call_{calls}"));
                    calls += 1;
                    let name = if custom { "g" } else { "f" }.to_owned();
                    events.push(ReplyEvent::ToolCallStart { choice: 0, index, id, name });
                    for fragment in cut(json!({"input": said}).to_string(), width) {
                        events.push(ReplyEvent::ToolCallArguments { choice: 0, index, fragment });
                    }
                }
                _ => events.extend(cut(said, width).into_iter().map(|text| ReplyEvent::Text {
                    choice: 0,
                    text,
                    ids: ids.clone(),
                    logprobs: logprobs.clone(),
                })),
            }
        }
        let reason = [FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls][reason].clone();
        events.push(ReplyEvent::Finish { choice: 0, reason });
        events
    })
}

proptest! {
    #[test]
    fn no_mutation_makes_it_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let good = br#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"\ud83d\ude00"}]},{"type":
            "function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"reasoning","summary":[],"encrypted_content":"hr1t.aGk"}],
            "tools":[{"type":"custom","name":"g","format":{"type":"grammar","syntax":"lark","definition":"a"}}],"tool_choice":
            {"type":"custom","name":"g"},"text":{"format":{"type":"json_schema","name":"n","schema":{}}},"metadata":{"a":"b"}}"#;
        let mut bytes = good.to_vec();
        let index = at.index(bytes.len());
        if cut { bytes.truncate(index) } else { bytes[index] = byte }
        if let Ok(call) = parse(Endpoint::Responses, &bytes, &WireLimits::default()) {
            // All parameters that the answer repeats are JSON.
            serde_json::from_str::<Value>(&written(&call, &[], false)).unwrap();
        }
    }

    #[test]
    fn a_streams_events_joined_are_the_whole_answer(
        events in answer(), summary in any::<bool>(), sealed in any::<bool>(),
    ) {
        let mut body = with(&json!({"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}));
        if summary {
            body["reasoning"] = json!({"summary": "auto"});
        }
        if sealed {
            body["include"] = json!(["reasoning.encrypted_content"]);
        }
        let whole: Value = serde_json::from_str(&written(&read(&body).unwrap(), &events, false)).unwrap();
        body["stream"] = json!(true);
        let stream = events_of(&written(&read(&body).unwrap(), &events, false));
        let last = &stream[stream.len() - 1];
        prop_assert_eq!(&last["response"], &whole);
        let mut output = whole["output"].as_array().unwrap().clone();
        output.iter_mut().for_each(|item| {
            let sealed = item["encrypted_content"].clone();
            item["encrypted_content"] = sealed;
        });
        prop_assert_eq!(joined(&stream), output);
        let cut = whole["status"] == "incomplete";
        prop_assert_eq!(last["type"].as_str().unwrap(), if cut { "response.incomplete" } else { "response.completed" });
        prop_assert_eq!(&whole["temperature"], &json!(0.7));
        prop_assert!(stream.iter().all(|event| event["type"] != "response.failed"));
    }
}

#[test]
fn a_stream_that_fails_ends_in_response_failed() {
    let call = read(&with(&json!({"stream": true}))).unwrap();
    let text = ReplyEvent::Text { choice: 0, text: "half".into(), ids: Vec::new(), logprobs: Vec::new() };
    let events = events_of(&written(&call, &[text], true));
    let last = &events[events.len() - 1];
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "half");
}

#[test]
fn what_a_custom_tool_gets_is_the_text_alone() {
    let call = read(&with(&json!({"tools": [{"type": "custom", "name": "g"}]}))).unwrap();
    let events = [
        ReplyEvent::ToolCallStart { choice: 0, index: 0, id: "c".into(), name: "g".into() },
        ReplyEvent::ToolCallArguments { choice: 0, index: 0, fragment: "{\"input\": \"a\\n".into() },
        ReplyEvent::ToolCallArguments { choice: 0, index: 0, fragment: "b\"}".into() },
        ReplyEvent::Finish { choice: 0, reason: FinishReason::ToolCalls },
    ];
    let whole: Value = serde_json::from_str(&written(&call, &events, false)).unwrap();
    let item = &whole["output"][0];
    assert_eq!((&item["type"], &item["input"]), (&json!("custom_tool_call"), &json!("a\nb")));
    assert_eq!((&item["call_id"], &item["status"]), (&json!("c"), &json!("completed")));
}

#[test]
fn a_developer_may_offer_more_tools_in_an_item() {
    let tool = |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let more = |name: &str| json!({"type": "additional_tools", "role": "developer", "id": "at_1", "tools": [tool(name)]});
    let said = json!({"role": "user", "content": "hi"});
    let body = with(
        &json!({"input": [more("g"), said], "tools": [tool("f")], "tool_choice": {"type": "function", "name": "g"}}),
    );
    let text = read(&body).unwrap();
    let names =
        |call: &Call| conversation(call).tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&text), ["f", "g"], "behind the call's own, wherever the input stands");
    assert_eq!(conversation(&text).messages.len(), 1, "the model reads them as tools, not as words");
    let echo = &text.dialect.response().unwrap().echo;
    let echo: Value = serde_json::from_str(&format!("{{{}}}", echo.trim_end_matches(','))).unwrap();
    assert_eq!(echo["tools"].as_array().unwrap().len(), 1, "what is repeated is the parameter");
    // A later turn still has these tools. If it offers a tool with the same name, its own tool counts.
    let history = json!([more("g"), more("h")]).to_string();
    let next = with(
        &json!({"previous_response_id": "resp_1", "tools": [tool("h")], "tool_choice": {"type": "function", "name": "g"}}),
    );
    let next =
        crate::responses::with_history(read(&next).unwrap(), &[&history], &WireLimits::default()).unwrap();
    assert_eq!(names(&next), ["h", "g"]);
    for (bad, param) in [
        (json!({"input": [more("f"), said], "tools": [tool("f")]}), "input.tools[0].name"),
        (json!({"input": [{"type": "additional_tools", "role": "user", "tools": []}]}), "input[0].role"),
        (json!({"input": [{"type": "additional_tools", "role": "developer"}]}), "input[0].tools"),
        (json!({"input": [said], "tool_choice": {"type": "function", "name": "g"}}), "tool_choice"),
    ] {
        let bad = read(&with(&bad)).unwrap_err();
        assert!(
            bad.param.as_deref().is_some_and(|at| at.split('.').next() == param.split('.').next()),
            "{bad}"
        );
    }
    let lost =
        with(&json!({"previous_response_id": "resp_1", "tool_choice": {"type": "function", "name": "x"}}));
    let lost = crate::responses::with_history(read(&lost).unwrap(), &[&history], &WireLimits::default())
        .unwrap_err();
    assert_eq!(lost.param.as_deref(), Some("tool_choice"));
}

#[test]
fn verbosity_is_repeated_and_reaches_templates() {
    for word in ["low", "high"] {
        let answer = read(&with(&json!({"text": {"verbosity": word}}))).unwrap();
        assert_eq!(conversation(&answer).template.get("verbosity"), Some(&json!(word)));
        assert!(answer.dialect.response().unwrap().echo.contains(&format!("\"verbosity\":\"{word}\"")));
    }
    let usual = read(&with(&json!({"text": {"verbosity": "medium"}}))).unwrap();
    assert_eq!(usual, read(&with(&json!({}))).unwrap(), "the usual is what is said anyway");
    let bad = read(&with(&json!({"text": {"verbosity": "none"}}))).unwrap_err();
    assert_eq!((bad.code, bad.param.as_deref()), (Code::InvalidValue, Some("text.verbosity")));
}
