//! Streams and whole answers byte for byte, so that a change of the wire format is noticed.

use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{
    Call, Code, Endpoint, FinishReason, ReplyEvent, RequestId, ShownPrompt, TokenLogprob, TopLogprob, Usage,
};
use serde_json::{Value, json};

use crate::common::encoder::{ReplyEncoder, ReplyMeta, ShownSampling};
use crate::common::error::ErrorFacts;
use crate::encode::{content_type, encoder};
use crate::limits::WireLimits;
use crate::request::parse;

const USAGE: Usage = Usage {
    input: 5,
    cached_input: 16,
    cache_write: 0,
    cache_write_1h: 0,
    output: 2,
    reasoning: 1,
    web_searches: 0,
};

fn call(endpoint: Endpoint, more: &Value) -> Call {
    let mut body = match endpoint {
        Endpoint::Completions => json!({"model": "m", "prompt": "x"}),
        _ => json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}),
    };
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    parse(endpoint, body.to_string().as_bytes(), &WireLimits::default()).unwrap()
}

fn start(call: &Call) -> Box<dyn ReplyEncoder> {
    let meta = ReplyMeta {
        request_id: RequestId::from_bits(0xabc),
        created_unix_s: 17,
        model: "m".into(),
        system_fingerprint: "f".into(),
        tier: headrace_domain::ServiceTier::Standard,
        chosen: ShownSampling::default(),
        diagnosis: None,
    };
    encoder(call, meta)
}

fn written(call: &Call, events: &[ReplyEvent], explain: Option<&Value>) -> String {
    let mut encoder = start(call);
    let mut out = BytesMut::new();
    encoder.begin(&Usage { output: 0, reasoning: 0, ..USAGE }, &mut out);
    for event in events {
        encoder.event(event, &mut out);
    }
    encoder.finish(&USAGE, explain, &mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn prompt(text: &str, ids: &[u32], logprobs: Vec<TokenLogprob>) -> ReplyEvent {
    let prompt = Arc::new(ShownPrompt { text: text.into(), ids: ids.into(), logprobs });
    ReplyEvent::Prompt { choice: 0, prompt }
}

fn text(text: &str, ids: &[u32]) -> ReplyEvent {
    ReplyEvent::Text { choice: 0, text: text.into(), ids: ids.to_vec(), logprobs: vec![] }
}

fn finish(reason: FinishReason) -> ReplyEvent {
    ReplyEvent::Finish { choice: 0, reason }
}

fn scored(id: u32, bytes: &[u8], logprob: f32) -> TokenLogprob {
    let top = vec![TopLogprob { id, bytes: bytes.to_vec(), logprob }];
    TokenLogprob { id, bytes: bytes.to_vec(), logprob: Some(logprob), top }
}

fn tool_call() -> Vec<ReplyEvent> {
    vec![
        ReplyEvent::ToolCallStart { choice: 0, index: 0, id: "c".into(), name: "f".into() },
        ReplyEvent::ToolCallArguments { choice: 0, index: 0, fragment: "{\"a\":".into() },
        ReplyEvent::ToolCallArguments { choice: 0, index: 0, fragment: "1}".into() },
        finish(FinishReason::ToolCalls),
    ]
}

/// Compares the output. `CHAT`, `TEXT` and `ID` in `expected` stand for parts that every chunk repeats.
fn check(written: &str, expected: &str) {
    let chat = r#"{"id":"chatcmpl-00000000000000000000000000000abc","object":"chat.completion.chunk","created":17,"model":"m","system_fingerprint":"f","choices":"#;
    let text = r#"{"id":"cmpl-00000000000000000000000000000abc","object":"text_completion","created":17,"model":"m","system_fingerprint":"f","choices":"#;
    let expected = expected
        .replace("CHAT", chat)
        .replace("TEXT", text)
        .replace("ID", "00000000000000000000000000000abc")
        .lines()
        .map(str::trim)
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(written.trim_end(), expected.trim(), "\n{written}");
}

#[test]
fn chat_stream() {
    let call = call(
        Endpoint::ChatCompletions,
        &json!({"stream": true, "stream_options": {"include_usage": true}, "headrace": {"explain": true}}),
    );
    // The first token is only a part of a character, but the role is sent anyway.
    let events = [
        text("", &[1]),
        ReplyEvent::Reasoning { choice: 0, text: "hm".into(), ids: vec![], logprobs: vec![] },
        text("é\"\n", &[2]),
        finish(FinishReason::StopString { matched: "END".into() }),
    ];
    check(
        &written(&call, &events, Some(&json!({"cost": 1}))),
        r#"data: CHAT[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

        data: CHAT[{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":null,"finish_reason":null}],"usage":null}

        data: CHAT[{"index":0,"delta":{"content":"é\"\n"},"logprobs":null,"finish_reason":null}],"usage":null}

        data: CHAT[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}],"usage":null}

        data: CHAT[],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":16},"completion_tokens_details":{"reasoning_tokens":1}},"headrace":{"cost":1}}

        data: [DONE]"#,
    );
}

#[test]
fn chat_stream_with_tools_ids_and_logprobs() {
    let stream = json!({"stream": true, "logprobs": true, "top_logprobs": 1, "return_token_ids": true});
    let call = call(Endpoint::ChatCompletions, &stream);
    let mut events = vec![
        prompt("x", &[8, 9], vec![]),
        ReplyEvent::Text {
            choice: 0,
            text: String::new(),
            ids: vec![4],
            logprobs: vec![scored(4, b"\xf0\x9f", -0.5)],
        },
    ];
    events.extend(tool_call());
    check(
        &written(&call, &events, None),
        r#"data: CHAT[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[8,9]}

        data: CHAT[{"index":0,"delta":{"content":""},"logprobs":{"content":[{"token":"\\xf0\\x9f","logprob":-0.5,"bytes":[240,159],"top_logprobs":[{"token":"\\xf0\\x9f","logprob":-0.5,"bytes":[240,159]}]}],"refusal":null},"finish_reason":null,"token_ids":[4]}]}

        data: CHAT[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}

        data: [DONE]"#,
    );
}

#[test]
fn chat_whole() {
    let call = call(Endpoint::ChatCompletions, &json!({}));
    check(
        &written(&call, &tool_call(), Some(&json!({"cost": 1}))),
        r#"{"id":"chatcmpl-ID","object":"chat.completion","created":17,"model":"m","system_fingerprint":"f","choices":[{"index":0,"message":{"role":"assistant","content":null,"refusal":null,"annotations":[],"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":16},"completion_tokens_details":{"reasoning_tokens":1}},"headrace":{"cost":1}}"#,
    );
}

#[test]
fn completions_stream_with_echo() {
    let call = call(
        Endpoint::Completions,
        &json!({"stream": true, "echo": true, "logprobs": 1, "return_token_ids": true}),
    );
    let first = TokenLogprob { id: 8, bytes: b"x".to_vec(), logprob: None, top: vec![] };
    let events = [
        prompt("x", &[8], vec![first]),
        ReplyEvent::Text {
            choice: 0,
            text: "yz".into(),
            ids: vec![4],
            logprobs: vec![scored(4, b"yz", -0.5)],
        },
        finish(FinishReason::Length),
    ];
    check(
        &written(&call, &events, None),
        r#"data: TEXT[{"index":0,"text":"x","logprobs":{"tokens":["x"],"token_logprobs":[null],"top_logprobs":[null],"text_offset":[0]},"finish_reason":null,"prompt_token_ids":[8]}]}

        data: TEXT[{"index":0,"text":"yz","logprobs":{"tokens":["yz"],"token_logprobs":[-0.5],"top_logprobs":[{"yz":-0.5}],"text_offset":[1]},"finish_reason":null,"token_ids":[4]}]}

        data: TEXT[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}

        data: [DONE]"#,
    );
}

#[test]
fn completions_whole() {
    let call = call(Endpoint::Completions, &json!({"prompt_logprobs": 1, "return_token_ids": true}));
    let first = TokenLogprob { id: 8, bytes: b"x".to_vec(), logprob: None, top: vec![] };
    let events = [
        prompt("xy", &[8, 9], vec![first, scored(9, b"y", -2.0)]),
        text("z", &[4]),
        finish(FinishReason::Stop),
    ];
    check(
        &written(&call, &events, None),
        r#"{"id":"cmpl-ID","object":"text_completion","created":17,"model":"m","system_fingerprint":"f","choices":[{"index":0,"text":"z","logprobs":null,"finish_reason":"stop","prompt_token_ids":[8,9],"prompt_logprobs":[null,{"9":{"logprob":-2.0,"rank":1,"decoded_token":"y"}}],"token_ids":[4]}],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":16},"completion_tokens_details":{"reasoning_tokens":1}}}"#,
    );
}

#[test]
fn anthropic_stream() {
    let call = call(Endpoint::Messages, &json!({"stream": true}));
    let mut events = vec![text("", &[1]), text("h", &[2]), text("i", &[3])];
    events.extend(tool_call());
    check(
        &written(&call, &events, Some(&json!({"cost": 1}))),
        r#"event: message_start
        data: {"type":"message_start","message":{"id":"msg_ID","type":"message","role":"assistant","model":"m","container":null,"stop_details":null,"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":16,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"output_tokens":0,"output_tokens_details":{"thinking_tokens":0},"server_tool_use":null,"inference_geo":null,"service_tier":"standard"}}}

        event: content_block_start
        data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"","citations":null}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"h"}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"i"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":0}

        event: content_block_start
        data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c","name":"f","input":{},"caller":{"type":"direct"}}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"1}"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":1}

        event: message_delta
        data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":16,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"output_tokens":3,"output_tokens_details":{"thinking_tokens":1},"server_tool_use":null,"inference_geo":null,"service_tier":"standard"},"headrace":{"cost":1}}

        event: message_stop
        data: {"type":"message_stop"}"#,
    );
}

#[test]
fn anthropic_whole() {
    let call = call(Endpoint::Messages, &json!({}));
    let mut events =
        vec![ReplyEvent::Reasoning { choice: 0, text: "hm".into(), ids: vec![], logprobs: vec![] }];
    events.extend([text("hi", &[]), finish(FinishReason::StopString { matched: "x".into() })]);
    check(
        &written(&call, &events, None),
        r#"{"id":"msg_ID","type":"message","role":"assistant","model":"m","container":null,"stop_details":null,"content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"hi","citations":null}],"stop_reason":"stop_sequence","stop_sequence":"x","usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":16,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"output_tokens":3,"output_tokens_details":{"thinking_tokens":1},"server_tool_use":null,"inference_geo":null,"service_tier":"standard"}}"#,
    );
    // Arguments that were cut off stay readable, and the body is still JSON.
    let cut = &tool_call()[..2];
    let body: Value = serde_json::from_str(&written(&call, cut, None)).unwrap();
    assert_eq!(body["content"][0]["input"], "{\"a\":");
    assert_eq!(body["stop_reason"], Value::Null);
}

#[test]
fn reasoning_with_what_vouches_for_it() {
    let events = [
        ReplyEvent::Reasoning { choice: 0, text: "hm".into(), ids: vec![], logprobs: vec![] },
        ReplyEvent::ReasoningSignature { choice: 0, signature: "s".into() },
        ReplyEvent::RedactedReasoning { choice: 0, data: "d".into() },
        finish(FinishReason::Stop),
    ];
    let stream = json!({"stream": true});
    check(
        &written(&call(Endpoint::ChatCompletions, &stream), &events, None),
        r#"data: CHAT[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.text","text":"hm","signature":"s","format":"anthropic-claude-v1","index":0}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.encrypted","data":"d","format":"anthropic-claude-v1","index":1}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}

        data: [DONE]"#,
    );
    let streamed = written(&call(Endpoint::Messages, &stream), &events, None);
    let blocks = streamed.split_once("event: content_block_start").unwrap().1;
    check(
        blocks.split_once("event: message_delta").unwrap().0.trim_start(),
        r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

        event: content_block_delta
        data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":0}

        event: content_block_start
        data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"d"}}

        event: content_block_stop
        data: {"type":"content_block_stop","index":1}"#,
    );
    let whole: Value =
        serde_json::from_str(&written(&call(Endpoint::Messages, &json!({})), &events, None)).unwrap();
    assert_eq!(
        whole["content"],
        json!([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}])
    );
}

#[test]
fn an_error_never_looks_like_success() {
    let facts = ErrorFacts::new(Code::EngineFailed, "the engine failed", RequestId::from_bits(0xabc));
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages] {
        for stream in [true, false] {
            let call = call(endpoint, &json!({"stream": stream}));
            let mut encoder = start(&call);
            let mut out = BytesMut::new();
            encoder.begin(&USAGE, &mut out);
            encoder.event(&text("partial", &[1]), &mut out);
            assert_eq!(out.is_empty(), !stream, "a whole answer writes nothing before its end");
            let before = out.len();
            encoder.fail(&facts, &mut out);
            let end = out.len();
            encoder.event(&text("more", &[1]), &mut out);
            encoder.keep_alive(&mut out);
            encoder.finish(&USAGE, None, &mut out);
            encoder.fail(&facts, &mut out);
            assert_eq!(out.len(), end, "nothing follows an error");
            let written = String::from_utf8(out.to_vec()).unwrap();
            assert!(!written.contains("[DONE]") && !written.contains("message_stop"));
            let last = written.get(before..).unwrap();
            let body =
                String::from_utf8(crate::common::error::error_body(endpoint.dialect(), &facts)).unwrap();
            let expected = match (endpoint, stream) {
                (_, false) => body,
                (Endpoint::Messages, true) => format!("event: error\ndata: {body}\n\n"),
                (_, true) => format!("data: {body}\n\n"),
            };
            assert_eq!(last, expected);
            assert_eq!(encoder.content_type(), if stream { "text/event-stream" } else { "application/json" });
        }
    }
}

#[test]
fn the_content_type_is_known_before_there_is_an_encoder() {
    use Endpoint::{ChatCompletions, Completions, Embeddings, Messages, Rerank, Responses, Score};
    let chat = json!([{"role": "user", "content": "x"}]);
    let streams = [true, false].map(|stream| json!({"stream": stream}));
    let rows = [
        (ChatCompletions, json!({"messages": chat}), &streams[..]),
        (Messages, json!({"messages": chat, "max_tokens": 9}), &streams[..]),
        (Completions, json!({"prompt": "x"}), &streams[..]),
        (Responses, json!({"input": "x", "store": false}), &streams[..]),
        (Embeddings, json!({"input": "x"}), &[json!({})]),
        (Rerank, json!({"query": "x", "documents": ["y"]}), &[json!({})]),
        (Score, json!({"text_1": "x", "text_2": "y"}), &[json!({})]),
    ];
    for (endpoint, mut body, ways) in rows {
        body["model"] = json!("m");
        for way in ways {
            way.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
            let call = parse(endpoint, body.to_string().as_bytes(), &WireLimits::default()).unwrap();
            assert_eq!(content_type(&call), start(&call).content_type(), "{body}");
        }
    }
}

#[test]
fn keep_alive_means_nothing() {
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
        let call = call(endpoint, &json!({"stream": true}));
        let mut encoder = start(&call);
        let mut out = BytesMut::new();
        encoder.keep_alive(&mut out);
        assert_eq!(&out[..], b": keep-alive\n\n");
        encoder.begin(&USAGE, &mut out);
        out.clear();
        encoder.keep_alive(&mut out);
        let expected = if endpoint == Endpoint::Messages {
            "event: ping\ndata: {\"type\":\"ping\"}\n\n"
        } else {
            ": keep-alive\n\n"
        };
        assert_eq!(&out[..], expected.as_bytes());
    }
}

#[test]
fn a_remark_is_a_comment_of_a_stream_and_nothing_of_a_whole_answer() {
    for (endpoint, stream) in [
        (Endpoint::ChatCompletions, true),
        (Endpoint::Completions, true),
        (Endpoint::Messages, true),
        (Endpoint::ChatCompletions, false),
        (Endpoint::Completions, false),
        (Endpoint::Messages, false),
    ] {
        let (mut encoder, mut out) = (start(&call(endpoint, &json!({"stream": stream}))), BytesMut::new());
        encoder.remark("headrace: so", &mut out);
        assert_eq!(&out[..], if stream { b": headrace: so\n\n".as_slice() } else { b"" });
    }
}

#[test]
fn a_custom_tools_call_is_its_text() {
    let tools = json!([{"type": "custom", "custom": {"name": "f"}}]);
    let call_of = |stream: bool| call(Endpoint::ChatCompletions, &json!({"tools": tools, "stream": stream}));
    let piece =
        |fragment: &str| ReplyEvent::ToolCallArguments { choice: 0, index: 0, fragment: fragment.into() };
    let events = [
        ReplyEvent::ToolCallStart { choice: 0, index: 0, id: "c".into(), name: "f".into() },
        piece("{\"inp"),
        piece("ut\": \"a\\"),
        piece("nb\"}"),
        finish(FinishReason::ToolCalls),
    ];
    let whole = written(&call_of(false), &events, None);
    let expected = r#""tool_calls":[{"id":"c","type":"custom","custom":{"name":"f","input":"a\nb"}}]"#;
    assert!(whole.contains(expected), "{whole}");
    check(
        &written(&call_of(true), &events, None),
        r#"data: CHAT[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"custom","custom":{"name":"f","input":""}}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"tool_calls":[{"index":0,"custom":{"input":"a"}}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{"tool_calls":[{"index":0,"custom":{"input":"\nb"}}]},"logprobs":null,"finish_reason":null}]}

        data: CHAT[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}

        data: [DONE]"#,
    );
}

#[test]
fn a_call_that_was_named_ends_with_stop_and_one_that_was_required_with_tool_calls() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let named = json!({"type": "function", "function": {"name": "f"}});
    for (choice, expected) in
        [(json!("auto"), "tool_calls"), (json!("required"), "tool_calls"), (named, "stop")]
    {
        for stream in [false, true] {
            let call = call(
                Endpoint::ChatCompletions,
                &json!({"tools": tools, "tool_choice": choice, "stream": stream}),
            );
            let out = written(&call, &tool_call(), None);
            assert!(out.contains(&format!(r#""finish_reason":"{expected}""#)), "{choice} {out}");
        }
    }
    let tools = json!([{"name": "f", "input_schema": {}}]);
    let call =
        call(Endpoint::Messages, &json!({"tools": tools, "tool_choice": {"type": "tool", "name": "f"}}));
    assert!(written(&call, &tool_call(), None).contains(r#""stop_reason":"tool_use""#));
}

#[test]
fn hidden_thinking_is_said_and_not_shown() {
    let thought = ReplyEvent::Reasoning { choice: 0, text: "secret".into(), ids: vec![], logprobs: vec![] };
    let events = [thought.clone(), thought, text("ok", &[]), finish(FinishReason::Stop)];
    for stream in [false, true] {
        let thinking = json!({"type": "adaptive", "display": "omitted"});
        let omitted = call(Endpoint::Messages, &json!({"thinking": thinking, "stream": stream}));
        let out = written(&omitted, &events, None);
        assert!(out.contains(r#"{"type":"thinking","thinking":"","signature":""}"#), "{out}");
        assert!(!out.contains("secret"), "{out}");
        let left_out =
            call(Endpoint::ChatCompletions, &json!({"include_reasoning": false, "stream": stream}));
        let out = written(&left_out, &events, None);
        assert!(!out.contains("secret") && !out.contains("reasoning_content"), "{out}");
    }
}

#[test]
fn a_chunk_is_the_same_whichever_choice_spoke_first() {
    let said =
        |choice, text: &str| ReplyEvent::Text { choice, text: text.into(), ids: vec![7], logprobs: vec![] };
    let thought = |choice, text: &str| ReplyEvent::Reasoning {
        choice,
        text: text.into(),
        ids: vec![7],
        logprobs: vec![],
    };
    for usage in [false, true] {
        let call = call(
            Endpoint::ChatCompletions,
            &json!({"stream": true, "n": 2, "stream_options": {"include_usage": usage}}),
        );
        for text in ["a", "plain words, é 模 😀", "\"", "a\"b", "\\", "\n", "\u{1}", "\u{7f}", "</script>"]
        {
            let of_the_other = |first: &[ReplyEvent]| {
                let events = [said(1, text), thought(1, text), said(1, text), finish(FinishReason::Stop)];
                let written = written(&call, &[first, &events].concat(), None);
                let lines = written.lines().filter(|line| line.contains("\"index\":1"));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            let alone = of_the_other(&[]);
            assert_eq!(alone.len(), 4);
            let chunk: Value = serde_json::from_str(alone[1].strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(chunk["choices"][0]["delta"], json!({"content": text}));
            assert_eq!(of_the_other(&[said(0, "x")]), alone, "{text:?}");
            assert_eq!(of_the_other(&[thought(1, "y")])[2..], alone[1..], "{text:?}");
        }
    }
}
