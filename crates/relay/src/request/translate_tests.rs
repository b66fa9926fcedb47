//! Translation of bodies into another dialect: golden pairs, and round trips that change nothing.

use bytes::Bytes;
use headrace_domain::{Dialect, Endpoint};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{BodyEdits, skim, translated};
use headrace_wire::{BadRequest, WireLimits};

pub(super) const EDITS: BodyEdits<'_> = BodyEdits { model: "up", usage: true, max_tokens: None, label: None };

/// Translates `body` into the dialect that its endpoint does not use.
pub(super) fn put(endpoint: Endpoint, body: &str, edits: &BodyEdits<'_>) -> Result<Value, BadRequest> {
    let call = skim(endpoint, Bytes::copy_from_slice(body.as_bytes()), &WireLimits::default())?;
    let to = match endpoint.dialect() {
        Dialect::OpenAi => Dialect::Anthropic,
        Dialect::Anthropic => Dialect::OpenAi,
    };
    let body = translated(&call, to, edits, &WireLimits::default())?;
    Ok(serde_json::from_slice(&body).expect("JSON"))
}

pub(super) fn to_messages(body: &Value) -> Result<Value, BadRequest> {
    put(Endpoint::ChatCompletions, &body.to_string(), &EDITS)
}

pub(super) fn to_chat(body: &Value) -> Result<Value, BadRequest> {
    put(Endpoint::Messages, &body.to_string(), &EDITS)
}

/// Adds the fields of `more` to the smallest body.
pub(super) fn with(base: Value, more: &Value) -> Value {
    let mut body = base;
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

pub(super) fn chat(more: &Value) -> Value {
    let base =
        json!({"model": "m", "max_completion_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    with(base, more)
}

pub(super) fn messages(more: &Value) -> Value {
    with(json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}), more)
}

/// Each pair has the same meaning in both dialects.
#[test]
fn pairs_are_put_both_ways() {
    let tool = json!({"type": "function", "function": {
        "name": "f", "description": "d", "parameters": {"type": "object", "b": 1, "a": 1.50}, "strict": true}});
    let custom = json!({"name": "f", "description": "d", "input_schema": {"type": "object", "b": 1,
        "a": 1.50}, "strict": true});
    let png = "data:image/png;base64,aGk=";
    let png_source = json!({"type": "base64", "media_type": "image/png", "data": "aGk="});
    let rows = [
        (json!({}), json!({})),
        (
            json!({"temperature": 0.5, "top_p": 0.25, "top_k": 7}),
            json!({"temperature": 0.5, "top_p": 0.25, "top_k": 7}),
        ),
        (json!({"stop": ["a", "b"]}), json!({"stop_sequences": ["a", "b"]})),
        (json!({"user": "u"}), json!({"metadata": {"user_id": "u"}})),
        (json!({"service_tier": "auto"}), json!({"service_tier": "auto"})),
        (json!({"service_tier": "default"}), json!({"service_tier": "standard_only"})),
        (json!({"stream": true, "stream_options": {"include_usage": true}}), json!({"stream": true})),
        (json!({"reasoning_effort": "none"}), json!({"thinking": {"type": "disabled"}})),
        (
            json!({"reasoning_effort": "xhigh"}),
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {
                "name": "answer", "strict": true, "schema": {"type": "object", "z": 0, "a": 1e2}}}}),
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "z": 0,
                "a": 1e2}}}}),
        ),
        (json!({"tools": [tool]}), json!({"tools": [custom]})),
        (
            json!({"tools": [tool], "tool_choice": "auto"}),
            json!({"tools": [custom], "tool_choice": {"type": "auto"}}),
        ),
        (
            json!({"tools": [tool], "tool_choice": "none"}),
            json!({"tools": [custom], "tool_choice": {"type": "none"}}),
        ),
        (
            json!({"tools": [tool], "tool_choice": "required"}),
            json!({"tools": [custom], "tool_choice": {"type": "any"}}),
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": false}),
            json!({"tools": [custom], "tool_choice": {"type": "tool", "name": "f",
                "disable_parallel_tool_use": true}}),
        ),
        (
            json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}),
            json!({"system": "s", "messages": [{"role": "user", "content": "u"}]}),
        ),
        (
            json!({"messages": [{"role": "system", "content": [{"type": "text", "text": "s"}, {"type": "text",
                "text": "t"}]},
                {"role": "user", "content": "u"}, {"role": "system", "content": "later"}]}),
            json!({"system": [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}],
                "messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "later"}]}),
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": png}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "file", "file": {"filename": "a.pdf",
                    "file_data": "data:application/pdf;base64,aGk="}}]}]}),
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "look"}, {"type": "image", "source": png_source},
                {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                    "data": "aGk="}, "title": "a.pdf"}]}]}),
        ),
        (
            json!({"messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "two calls",
                    "reasoning_content": "hm",
                    "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "sig",
                        "format": "anthropic-claude-v1", "index": 0}, {"type": "reasoning.encrypted",
                        "data": "x", "format": "anthropic-claude-v1", "index": 1}],
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f",
                            "arguments": "{\"a\":12345678901234567890123}"}},
                        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "r1"},
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "r"},
                    {"type": "text", "text": "2"}]},
                {"role": "user", "content": "and?"}]}),
            json!({"messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"}, {"type": "redacted_thinking",
                        "data": "x"},
                    {"type": "text", "text": "two calls"},
                    {"type": "tool_use", "id": "c1", "name": "f",
                        "input": {"a": 12_345_678_901_234_567_890_123_f64}},
                    {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "r1"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "r"},
                        {"type": "text", "text": "2"}]},
                    {"type": "text", "text": "and?"}]}]}),
        ),
    ];
    for (openai, anthropic) in rows {
        let (openai, anthropic) = (
            with(chat(&json!({"model": "up"})), &openai),
            with(messages(&json!({"model": "up"})), &anthropic),
        );
        assert_eq!(to_messages(&openai).unwrap(), anthropic, "{openai}");
        // One pair has a number of 23 digits in the text of its arguments. This test's JSON library spells that number
        // differently.
        if !openai.to_string().contains("12345678901234567890123") {
            assert_eq!(to_chat(&anthropic).unwrap(), openai, "{anthropic}");
        }
    }
}

/// Different spellings with the same meaning.
#[test]
fn what_goes_to_messages_in_one_way_alone() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let rows = [
        (json!({"stop": "a"}), json!({"stop_sequences": ["a"]})),
        (
            json!({"stop": null, "n": 1, "seed": null, "logprobs": false, "top_logprobs": 0,
                "frequency_penalty": 0}),
            json!({}),
        ),
        (
            json!({"top_k": -1, "temperature": null, "prompt_cache_key": "k", "store": false, "modalities": [
                "text"]}),
            json!({}),
        ),
        (
            json!({"headrace": {"explain": true}, "timeout": 3, "stream_options": {"include_usage": true},
                "stream": true}),
            json!({"stream": true}),
        ),
        (json!({"safety_identifier": "u", "user": "u"}), json!({"metadata": {"user_id": "u"}})),
        (
            json!({"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": false}),
            json!({}),
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false}),
            json!({"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}}),
        ),
        (
            json!({"messages": [{"role": "developer", "content": "d"}, user(json!("u")), {"role": "assistant",
                "content": "a", "refusal": null,
                "tool_calls": null, "annotations": []}, {"role": "system", "content": "s"}, user(json!([
                    {"type": "text", "text": "v"}])),
                {"role": "developer", "content": "t"}]}),
            json!({"system": "d", "messages": [user(json!("u")), {"role": "assistant", "content": "a"},
                user(json!("v")),
                {"role": "system", "content": [{"type": "text", "text": "s"}, {"type": "text",
                    "text": "t"}]}]}),
        ),
        (
            json!({"messages": [user(json!("u")), {"role": "assistant", "content": "", "tool_calls": [
                {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
                {"role": "tool", "tool_call_id": "c", "name": "f", "content": [{"type": "image_url",
                    "image_url": {"url": "http://i", "detail": "auto"}}]}]}),
            json!({"messages": [user(json!("u")), {"role": "assistant", "content": [{"type": "tool_use",
                "id": "c", "name": "f", "input": {}}]},
                user(json!([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image",
                    "source": {"type": "url", "url": "http://i"}}]}]))]}),
        ),
        (
            json!({"messages": [user(json!("u")), {"role": "assistant", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                user(json!("wait")), {"role": "tool", "tool_call_id": "c", "content": "r"}]}),
            json!({"messages": [user(json!("u")),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                user(json!([{"type": "tool_result", "tool_use_id": "c", "content": "r"},
                    {"type": "text", "text": "wait"}]))]}),
        ),
        (
            json!({"messages": [user(json!("a")), user(json!("b"))]}),
            json!({"messages": [user(json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))]}),
        ),
    ];
    for (more, expected) in rows {
        assert_eq!(
            to_messages(&chat(&more)).unwrap(),
            with(messages(&json!({"model": "up"})), &expected),
            "{more}"
        );
    }
}

#[test]
fn what_goes_to_chat_in_one_way_alone() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let text = |text: &str| json!({"type": "text", "text": text});
    let rows = [
        (json!({"thinking": {"type": "adaptive", "display": "summarized"}}), json!({})),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 4096}}), json!({"reasoning_effort": "low"})),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 10_000}}),
            json!({"reasoning_effort": "medium"}),
        ),
        (
            json!({"thinking": {"budget_tokens": 31_999, "type": "enabled"}}),
            json!({"reasoning_effort": "high"}),
        ),
        (
            json!({"output_config": {"effort": "max"}, "speed": "standard"}),
            json!({"reasoning_effort": "max"}),
        ),
        (
            json!({"cache_control": {"type": "ephemeral"}, "diagnostics": {"previous_message_id": "m"}}),
            json!({}),
        ),
        (
            json!({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                "betas": []}),
            json!({}),
        ),
        (json!({"cache_salt": "s"}), json!({"cache_salt": "s"})),
        (
            json!({"tools": [{"type": "custom", "name": "f", "input_schema": {},
                "cache_control": {"type": "ephemeral"},
                "eager_input_streaming": true, "defer_loading": false, "allowed_callers": ["direct"],
                    "input_examples": []}]}),
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        ),
        (
            json!({"messages": [user(json!("u")), {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "a", "citations": null, "cache_control": {"type": "ephemeral",
                    "ttl": "1h"}},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"k" : [1, 2.50]},
                    "caller": {"type": "direct"}}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "d", "name": "f", "input": {}}]},
                user(json!([
                    {"type": "tool_result", "tool_use_id": "c", "is_error": true, "content": "no"},
                    {"type": "tool_result", "tool_use_id": "d", "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                            "data": "aGk="}}]}]))]}),
            json!({"messages": [user(json!("u")),
                {"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"k\":[1,2.5]}"}},
                    {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "Error: no"},
                {"role": "tool", "tool_call_id": "d", "content": "The result is in the next message."},
                user(json!([text("Images and files of the result of the tool call `d`:"),
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]))]}),
        ),
        (
            json!({"messages": [user(json!([
                {"type": "document", "title": "T", "context": "C", "citations": {"enabled": false},
                    "source": {"type": "text", "media_type": "text/plain", "data": "body"}},
                {"type": "document", "source": {"type": "content", "content": [text("x"), text("y")]}},
                {"type": "search_result", "source": "s", "title": "t", "content": [text("z")]}]))]}),
            json!({"messages": [user(json!([text("T"), text("C"), text("body"), text("x"), text("y"),
                text("t"), text("s"), text("z")]))]}),
        ),
    ];
    for (more, expected) in rows {
        assert_eq!(
            to_chat(&messages(&more)).unwrap(),
            with(chat(&json!({"model": "up"})), &expected),
            "{more}"
        );
    }
}

#[test]
fn bounds_to_tokens_and_numbers_keep_their_spelling() {
    let bounded = BodyEdits { max_tokens: Some(("max_tokens", 5)), ..EDITS };
    let open = r#"{"model":"m","messages":[{"role":"user","content":"é\n"}],"temperature":0.50}"#;
    let call =
        skim(Endpoint::ChatCompletions, Bytes::from_static(open.as_bytes()), &WireLimits::default()).unwrap();
    let body = translated(&call, Dialect::Anthropic, &bounded, &WireLimits::default()).unwrap();
    let expected =
        r#"{"model":"up","max_tokens":5,"messages":[{"role":"user","content":"é\n"}],"temperature":0.50}"#;
    assert_eq!(body, expected);
    assert_eq!(
        put(Endpoint::ChatCompletions, open, &EDITS).unwrap_err().param.as_deref(),
        Some("max_tokens")
    );
    let named = put(Endpoint::Messages, &messages(&json!({})).to_string(), &bounded).unwrap();
    assert_eq!((&named["max_tokens"], named.get("max_completion_tokens")), (&json!(9), None));

    let input = r#"{"n":123456789012345678901234567890.10,"n2":1e400}"#;
    let history = format!(
        r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"c","name":"f","input":{input}}}]}},{{"role":"user","content":"u"}}]}}"#
    );
    let call = skim(Endpoint::Messages, Bytes::from(history), &WireLimits::default()).unwrap();
    let body = translated(&call, Dialect::OpenAi, &EDITS, &WireLimits::default()).unwrap();
    let arguments = serde_json::to_string(input).unwrap();
    assert!(String::from_utf8_lossy(&body).contains(&format!("\"arguments\":{arguments}")));
}

/// A conversation that both dialects can express, in chat form: no empty texts, and tool results right after their
/// calls.
fn conversations() -> impl Strategy<Value = Vec<Value>> {
    let text = "[a-z][a-z\u{e9}\"\\\\\n]{0,7}";
    let user = prop_oneof![
        text.prop_map(|text| json!({"role": "user", "content": text})),
        (text, text).prop_map(|(one, two)| json!({"role": "user", "content": [
            {"type": "text", "text": one}, {"type": "image_url", "image_url": {"url": "https://i"}},
                {"type": "text", "text": two}]})),
    ];
    let answer =
        (prop::option::of(text), 0..3_usize, prop::option::of(text)).prop_map(|(said, calls, thought)| {
            let mut message = json!({"role": "assistant", "content": said});
            if said.is_none() && calls == 0 {
                message["content"] = json!("a");
            }
            if let Some(thought) = thought {
                message["reasoning_content"] = json!(thought);
                message["reasoning_details"] = json!([{"type": "reasoning.text", "text": thought,
                "signature": "s", "format": "anthropic-claude-v1", "index": 0}]);
            }
            if calls > 0 {
                let call = |at| {
                    json!({"id": format!("c{at}"), "type": "function", "function": {"name": "f",
                "arguments": format!("{{\"a\":{at}}}")}})
                };
                message["tool_calls"] = (0..calls).map(call).collect();
            }
            message
        });
    let round = (user, answer, text);
    (prop::option::of(text), prop::collection::vec(round, 0..4), text).prop_map(|(system, rounds, last)| {
        let mut messages: Vec<Value> =
            system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
        let mut after_tools = false;
        for (user, answer, result) in rounds {
            if !after_tools {
                messages.push(user);
            }
            let calls = answer["tool_calls"].as_array().cloned().unwrap_or_default();
            after_tools = !calls.is_empty();
            messages.push(answer);
            for call in calls {
                messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": result}));
            }
        }
        messages.push(json!({"role": "user", "content": last}));
        messages
    })
}

proptest! {
    /// A round trip changes nothing that both dialects can express.
    #[test]
    fn there_and_back(
        messages in conversations(),
        params in prop::sample::subsequence(vec![
            ("temperature", json!(0.5)), ("top_p", json!(0.9)), ("stop", json!(["x"])), ("user", json!("u")),
            ("reasoning_effort", json!("high")), ("service_tier", json!("default")),
            ("tools", json!([{"type": "function", "function": {"name": "f",
                "parameters": {"type": "object"}}}])),
        ], 0..8),
    ) {
        let mut more: Map<String, Value> = params.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        more.insert("messages".into(), Value::Array(messages));
        let body = with(chat(&json!({"model": "up"})), &Value::Object(more));
        let there = to_messages(&body).unwrap();
        let back = to_chat(&there).unwrap();
        prop_assert_eq!(&back, &body);
        prop_assert_eq!(to_messages(&back).unwrap(), there);
    }
}
