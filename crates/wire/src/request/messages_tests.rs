//! Tables of good and bad Anthropic requests: what they mean, or the exact code and parameter of the refusal.

use headrace_domain::{Call, Conversation, Endpoint, Message, Prompt, Role, ToolCall, ToolChoice};
use serde_json::{Value, json};

use crate::{BadRequest, WireLimits, parse_messages};

fn parse(more: &Value) -> Result<Call, BadRequest> {
    let mut body = json!({"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    parse_messages(body.to_string().as_bytes(), &WireLimits::default())
}

fn conversation(call: Call) -> Conversation {
    match call.prompt {
        Prompt::Conversation(conversation) => conversation,
        Prompt::Raw(_) | Prompt::Relayed(_) => panic!("a conversation"),
    }
}

#[test]
fn every_parameter_is_honoured() {
    let call = parse(&json!({
        "system": [{"type": "text", "text": "be ", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "text", "text": "brief"}],
        "temperature": 1, "top_p": 0.5, "top_k": 4, "stop_sequences": ["x"], "stream": true, "metadata": {"user_id": "u"},
        "service_tier": "auto", "thinking": {"type": "disabled"}, "tool_choice": {"type": "none"}, "seed": 5,
        "headrace": {"explain": true}, "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"properties": {}, "type": "object"}, "type": "custom", "cache_control": null}],
    }))
    .unwrap();
    assert_eq!(call.endpoint, Endpoint::Messages);
    let sampling = &call.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.max_tokens), (Some(1.0), Some(0.5), Some(9)));
    assert_eq!((sampling.stop.clone(), sampling.n, sampling.seed), (vec!["x".to_owned()], 1, Some(5)));
    assert!(call.stream && call.explain);
    let conversation = conversation(call);
    assert_eq!(conversation.tool_choice, ToolChoice::None);
    assert_eq!(
        conversation.messages,
        [Message::text(Role::System, "be brief"), Message::text(Role::User, "hi")]
    );
    assert_eq!(
        conversation.tools[0].parameters.as_ref().unwrap().to_string(),
        r#"{"type":"object","properties":{}}"#
    );
}

#[test]
fn blocks_become_messages() {
    let call = parse(&json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}}, {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "r1"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "bad"}], "is_error": true},
            {"type": "text", "text": "go on"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t3", "name": "h", "input": {"z": 1.50,  "a": [ ]}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
        {"role": "user", "content": []},
    ]}))
    .unwrap();
    let result =
        |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, text) };
    let expected = [
        Message::text(Role::User, "ab"),
        Message {
            reasoning: Some("hm".into()),
            tool_calls: vec![
                ToolCall { id: "t1".into(), name: "f".into(), arguments: r#"{"b":1,"a":2}"#.into() },
                ToolCall { id: "t2".into(), name: "g".into(), arguments: "{}".into() },
            ],
            ..Message::text(Role::Assistant, "ok")
        },
        result("t1", "r1"),
        result("t2", "Error: bad"),
        Message::text(Role::User, "go on"),
        Message {
            content: None,
            tool_calls: vec![ToolCall {
                id: "t3".into(),
                name: "h".into(),
                arguments: r#"{"z":1.5,"a":[]}"#.into(),
            }],
            ..Message::text(Role::Assistant, "")
        },
        result("t3", ""),
        Message::text(Role::User, ""),
    ];
    assert_eq!(conversation(call).messages, expected);
}

#[test]
fn bad_parameters_are_named() {
    let turn = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let rows = [
        (json!({"max_tokens": null}), "max_tokens", "missing_required_parameter"),
        (json!({"max_tokens": 0}), "max_tokens", "integer_below_min_value"),
        (json!({"temperature": 1.5}), "temperature", "decimal_above_max_value"),
        (json!({"stop_sequences": "x"}), "stop_sequences", "invalid_type"),
        (json!({"stop_sequences": [""]}), "stop_sequences[0]", "empty_string"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens", "missing_required_parameter"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1023}}),
            "thinking.budget_tokens",
            "integer_below_min_value",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000}),
            "thinking.budget_tokens",
            "integer_above_max_value",
        ),
        (json!({"thinking": {"type": "sometimes"}}), "thinking.type", "invalid_value"),
        (json!({"thinking": {}}), "thinking.type", "missing_required_parameter"),
        (
            json!({"thinking": {"type": "disabled", "display": "omitted"}}),
            "thinking.display",
            "invalid_value",
        ),
        (
            json!({"thinking": {"type": "adaptive", "budget_tokens": 2000}}),
            "thinking.budget_tokens",
            "invalid_value",
        ),
        (json!({"mcp_servers": [{"x": 1}]}), "mcp_servers", "unsupported_parameter"),
        (json!({"container": "c"}), "container", "unsupported_parameter"),
        (json!({"output_config": {"effort": "minimal"}}), "output_config.effort", "invalid_value"),
        (json!({"output_config": {"task_budget": {}}}), "output_config.task_budget", "unsupported_parameter"),
        (
            json!({"output_config": {"format": {"type": "json_object"}}}),
            "output_config.format.type",
            "invalid_value",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
            "missing_required_parameter",
        ),
        (
            json!({
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}}
            }),
            "output_config",
            "invalid_value",
        ),
        (json!({"chat_template": "x"}), "chat_template", "unsupported_parameter"),
        (json!({"n": 2}), "n", "unknown_parameter"),
        (json!({"metadata": {"x": 1}}), "metadata.x", "unknown_parameter"),
        (json!({"system": 5}), "system", "invalid_type"),
        (json!({"system": [{"type": "image", "source": {}}]}), "system[0]", "unsupported_content"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name", "missing_required_parameter"),
        (json!({"tool_choice": {"type": "auto", "name": "f"}}), "tool_choice.name", "invalid_value"),
        (json!({"tool_choice": {"type": "maybe"}}), "tool_choice.type", "invalid_value"),
        (json!({"tool_choice": {}}), "tool_choice.type", "missing_required_parameter"),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]}),
            "tools[0].input_examples",
            "unsupported_parameter",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20260120"]}]}),
            "tools[0].allowed_callers",
            "unsupported_parameter",
        ),
        (
            turn(json!([{"type": "tool_result", "tool_use_id": "t9"}])),
            "messages[0].content[0].tool_use_id",
            "invalid_value",
        ),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "w"}]}),
            "tools[0].type",
            "unsupported_value",
        ),
        (json!({"tools": [{"name": "w"}]}), "tools[0].input_schema", "missing_required_parameter"),
        (json!({"messages": []}), "messages", "empty_array"),
        (json!({"messages": [{"role": "system", "content": "x"}]}), "messages[0].role", "unsupported_value"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content", "missing_required_parameter"),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is ("}]}),
            "messages[1]",
            "unsupported_value",
        ),
        (
            turn(json!([{"type": "image", "source": {"type": "url", "url": "http://[::1]/"}}])),
            "messages[0].content[0]",
            "unsupported_content",
        ),
        (turn(json!([{"type": "document"}])), "messages[0].content[0]", "unsupported_content"),
        (turn(json!([{"type": "text"}])), "messages[0].content[0].text", "missing_required_parameter"),
        (
            turn(json!([{"type": "text", "text": "x", "foo": 1}])),
            "messages[0].content[0].foo",
            "unknown_parameter",
        ),
        (
            turn(json!([{"type": "text", "text": "x", "is_error": true}])),
            "messages[0].content[0].is_error",
            "unknown_parameter",
        ),
        (
            turn(json!([{"type": "text", "text": "x", "cache_control": {"type": "forever"}}])),
            "messages[0].content[0].cache_control.type",
            "unsupported_value",
        ),
        (
            turn(json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])),
            "messages[0].content[0]",
            "invalid_value",
        ),
        (
            turn(json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}])),
            "messages[0].content[0].content[0]",
            "unsupported_content",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}]}]}),
            "messages[0].content[0].input",
            "invalid_type",
        ),
    ];
    for (more, param, code) in rows {
        let bad = parse(&more).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{more}: {bad}");
    }
}
