//! Fields that cannot be translated into the other dialect. Also checks that no field of either dialect was forgotten.

use serde_json::{Value, json};

use super::translate_tests::{chat, messages, to_chat, to_messages};
use super::{read_chat, read_messages};
use headrace_wire::BadRequest;

/// Every parameter of a chat completion that OpenAI's SDK 3.52 has.
const CHAT: &str = "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens \
    messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key \
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop \
    store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options";

/// Every field of the messages in a chat completion.
const CHAT_MESSAGE: &str = "annotations content name reasoning reasoning_content reasoning_details refusal role tool_call_id tool_calls";

/// Every parameter of a message in Anthropic's SDK 2.11, and the beta parameters that clients send.
const MESSAGES: &str = "betas cache_control container context_management diagnostics fallbacks inference_geo max_tokens \
    mcp_servers messages metadata model output_config output_format service_tier speed stop_sequences stream system \
    temperature thinking thread tool_choice tools top_k top_p user_profile_id workspace_id";

/// Every block type of a request.
const BLOCKS: &str = "text image document search_result thinking redacted_thinking tool_use tool_result";

const TABLES: &str = include_str!("translation.md");

/// Returns the entry for `field` in the table of the section that starts with `heading`.
fn fate(heading: &str, field: &str) -> String {
    let section = TABLES.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let row = section.lines().find(|line| line.starts_with(&format!("| `{field}` |")));
    let row = row.unwrap_or_else(|| panic!("{field} has no row"));
    row.rsplit('|').nth(1).unwrap().trim().to_owned()
}

/// Adds a field to the smallest body.
type Body = fn(&Value) -> Value;
/// Translates a body into the other dialect.
type Put = fn(&Value) -> Result<Value, BadRequest>;

/// A value that requests something, in any field.
fn something() -> Value {
    json!({"x-canary": ["x"]})
}

#[test]
fn every_field_has_its_row_and_the_row_is_true() {
    let sides: [(&str, &str, Body, Put); 2] =
        [("From chat", CHAT, chat, to_messages), ("From messages", MESSAGES, messages, to_chat)];
    for (heading, fields, body, put) in sides {
        for field in fields.split_whitespace() {
            let fate = fate(heading, field);
            let got = put(&body(&json!({field: something()})));
            if fate.starts_with("refused") || fate.starts_with("put") {
                // Translated fields are read by their type, so an invalid value is refused, too.
                let bad = got.expect_err(field);
                assert!(
                    bad.param.as_deref().is_some_and(|param| param.starts_with(field)),
                    "{field}: {bad:?}"
                );
                let unknown = bad.param.as_deref() == Some(field) && bad.code.name() == "unknown_parameter";
                assert!(!unknown, "{field}: {bad:?}");
            } else {
                assert!(fate.starts_with("not put"), "{field}: {fate}");
            }
            assert_ne!(
                put(&body(&json!({field: null}))).err().map(|bad| bad.code.name()),
                Some("unknown_parameter")
            );
        }
    }
    for field in CHAT_MESSAGE.split_whitespace() {
        fate("From chat", field);
    }
    for block in BLOCKS.split_whitespace() {
        fate("From messages", block);
    }
}

#[test]
fn every_row_of_the_code_is_in_the_tables() {
    for (heading, only, not_put) in [
        ("From chat", read_chat::ONLY_HERE, read_chat::NOT_PUT),
        ("From messages", read_messages::ONLY_HERE, read_messages::NOT_PUT),
    ] {
        for (field, _) in only {
            assert!(fate(heading, field).starts_with("refused"), "{field}");
        }
        for field in not_put {
            // The call already holds some of these fields, and they are translated from there.
            let put = ["max_completion_tokens", "max_tokens", "model", "stream"].contains(field);
            assert!(fate(heading, field).starts_with(if put { "put" } else { "not put" }), "{field}");
        }
    }
    for (field, _) in read_messages::TOOL_ONLY_HERE {
        assert!(TABLES.contains(&format!("`{field}`")), "{field}");
    }
}

fn refused(rows: &[(Value, &str, &str)], body: Body, put: Put, to: &str) {
    for (more, param, code) in rows {
        let bad = put(&body(more)).expect_err(&more.to_string());
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(*param), *code), "{more}: {bad}");
        if code.starts_with("unsupported") || code.starts_with("unknown") {
            assert!(bad.message.contains(&format!("speaks {to} dialect, which ")), "{bad}");
        }
    }
}

#[test]
fn chat_that_messages_cannot_say() {
    let said = |message: Value| {
        json!({"messages": [{"role": "user", "content": "u"}, message,
        {"role": "user", "content": "v"}]})
    };
    let part = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let rows = [
        (json!({"temperature": 1.01}), "temperature", "unsupported_value"),
        (json!({"n": 2}), "n", "unsupported_parameter"),
        (json!({"logit_bias": {"1": 2}}), "logit_bias", "unsupported_parameter"),
        (json!({"logprobs": true}), "logprobs", "unsupported_parameter"),
        (json!({"seed": 1}), "seed", "unsupported_parameter"),
        (json!({"reasoning_effort": "minimal"}), "reasoning_effort", "unsupported_value"),
        (json!({"service_tier": "flex"}), "service_tier", "unsupported_value"),
        (json!({"response_format": {"type": "json_object"}}), "response_format.type", "unsupported_value"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "description": "d",
                "schema": {}}}}),
            "response_format.json_schema.description",
            "unsupported_parameter",
        ),
        (
            json!({"tools": [{"type": "custom", "custom": {"name": "n"}}]}),
            "tools[0].type",
            "unsupported_value",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "n", "new": 1}}]}),
            "tools[0].function.new",
            "unknown_parameter",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}),
            "tool_choice.allowed_tools.tools",
            "empty_array",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                {"type": "function", "function": {"name": "g"}}]}}}),
            "tool_choice.allowed_tools.tools[0]",
            "invalid_value",
        ),
        (json!({"tool_choice": {"type": "custom"}}), "tool_choice.type", "unsupported_value"),
        (
            json!({"stream_options": {"include_obfuscation": true}}),
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        ),
        (json!({"user": "a", "safety_identifier": "b"}), "safety_identifier", "invalid_value"),
        (json!({"new_field": null}), "new_field", "unknown_parameter"),
        (json!({"guided_json": {}}), "guided_json", "unknown_parameter"),
        (said(json!({"role": "function", "content": "x"})), "messages[1].role", "invalid_value"),
        (
            said(json!({"role": "user", "name": "bob", "content": "x"})),
            "messages[1].name",
            "unsupported_parameter",
        ),
        (
            said(json!({"role": "assistant", "content": "x", "reasoning_details": [
                    {"type": "reasoning.summary"}]})),
            "messages[1].reasoning_details[0].type",
            "unsupported_value",
        ),
        (
            said(json!({"role": "assistant", "content": "x", "audio": {"id": "a"}})),
            "messages[1].audio",
            "unsupported_parameter",
        ),
        (
            said(json!({"role": "assistant", "content": "x", "annotations": [{}]})),
            "messages[1].annotations",
            "unsupported_parameter",
        ),
        (
            said(json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
                    "function": {"name": "f", "arguments": "[1]"}}]})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            said(json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function",
                    "function": {"name": "f", "arguments": "{\"a\":1,\"a\":2}"}}]})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            said(json!({"role": "user", "content": "x", "tool_calls": [{"id": "c", "type": "function",
                    "function": {"name": "f", "arguments": ""}}]})),
            "messages[1].tool_calls",
            "invalid_value",
        ),
        (
            said(json!({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "u"}}]})),
            "messages[1].content",
            "unsupported_content",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "a"}, {"role": "system", "content": "s"}]}),
            "messages[1]",
            "unsupported_value",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "s"}]}),
            "messages[1]",
            "unsupported_value",
        ),
        (json!({"messages": []}), "messages", "empty_array"),
        (
            part(json!({"type": "input_audio", "input_audio": {}})),
            "messages[0].content[0]",
            "unsupported_content",
        ),
        (
            part(json!({"input_audio": {}, "type": "input_audio"})),
            "messages[0].content[0]",
            "unsupported_content",
        ),
        (
            part(json!({"type": "text", "text": "t", "new": 1})),
            "messages[0].content[0].new",
            "unknown_parameter",
        ),
        (
            part(json!({"type": "image_url", "text": "t"})),
            "messages[0].content[0].image_url",
            "missing_required_parameter",
        ),
        (
            part(json!({"type": "image_url", "image_url": {"url": "u", "detail": "low"}})),
            "messages[0].content[0].image_url.detail",
            "unsupported_value",
        ),
        (
            part(json!({"type": "image_url", "image_url": {"url": "DATA:image/png,hi"}})),
            "messages[0].content[0].image_url.url",
            "invalid_value",
        ),
        (
            part(json!({"type": "file", "file": {"file_data": "data:text/plain;base64,aGk="}})),
            "messages[0].content[0].file.file_data",
            "unsupported_content",
        ),
    ];
    refused(&rows, chat, to_messages, "Anthropic's");
}

#[test]
fn messages_that_chat_cannot_say() {
    let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let answer = |blocks: Value| {
        json!({"messages": [{"role": "assistant", "content": blocks},
        {"role": "user", "content": "u"}]})
    };
    let call = json!({"type": "tool_use", "id": "c", "name": "f", "input": {}});
    let with = |mut block: Value, key: &str, value: Value| {
        block[key] = value;
        block
    };
    let rows = [
        (json!({"max_tokens": 0}), "max_tokens", "unsupported_value"),
        (json!({"thinking": {"type": "between_tools"}}), "thinking.type", "unsupported_value"),
        (
            json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}),
            "output_config.effort",
            "unsupported_value",
        ),
        (json!({"output_config": {"effort": "minimal"}}), "output_config.effort", "invalid_value"),
        (
            json!({"output_config": {"task_budget": {"total": 1}}}),
            "output_config.task_budget",
            "unsupported_parameter",
        ),
        (
            json!({"output_config": {"format": {"type": "grammar"}}}),
            "output_config.format.type",
            "unsupported_value",
        ),
        (json!({"container": "c"}), "container", "unsupported_parameter"),
        (json!({"mcp_servers": [{}]}), "mcp_servers", "unsupported_parameter"),
        (json!({"speed": "fast"}), "speed", "unsupported_parameter"),
        (json!({"inference_geo": "eu"}), "inference_geo", "unsupported_parameter"),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses"}]}}),
            "context_management.edits[0]",
            "unsupported_value",
        ),
        (json!({"metadata": {"external": "x"}}), "metadata.external", "unknown_parameter"),
        (json!({"new_field": 1}), "new_field", "unknown_parameter"),
        (
            json!({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}),
            "tools[0].type",
            "unsupported_value",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "defer_loading": true}]}),
            "tools[0].defer_loading",
            "unsupported_parameter",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]}),
            "tools[0].input_examples",
            "unsupported_parameter",
        ),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema", "missing_required_parameter"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name", "missing_required_parameter"),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
            "messages[1]",
            "unsupported_value",
        ),
        (
            json!({"messages": [{"role": "system", "content": "a", "output_config": {"effort": "low"}}]}),
            "messages[0].output_config",
            "unsupported_parameter",
        ),
        (
            block(json!({"type": "server_tool_use", "id": "s"})),
            "messages[0].content[0]",
            "unsupported_content",
        ),
        (block(json!({"type": "container_upload"})), "messages[0].content[0]", "unsupported_content"),
        (
            block(json!({"type": "image", "source": {"type": "file"}})),
            "messages[0].content[0].source.type",
            "unsupported_content",
        ),
        (
            block(json!({"type": "document", "source": {"type": "url", "url": "https://x"}})),
            "messages[0].content",
            "unsupported_content",
        ),
        (
            block(json!({"type": "document", "citations": {"enabled": true}, "source": {"type": "text",
                    "media_type": "text/plain", "data": "x"}})),
            "messages[0].content[0].citations.enabled",
            "unsupported_parameter",
        ),
        (block(call.clone()), "messages[0].content[0]", "invalid_value"),
        (
            block(json!({"type": "text", "text": "t", "new": 1})),
            "messages[0].content[0].new",
            "unknown_parameter",
        ),
        (
            answer(json!([{"type": "text", "text": "t", "citations": [{}]}])),
            "messages[0].content[0].citations",
            "unsupported_parameter",
        ),
        (
            answer(json!([with(call.clone(), "caller", json!({"type": "code_execution_20260120"}))])),
            "messages[0].content[0].caller.type",
            "unsupported_value",
        ),
        (
            answer(json!([with(call, "toolset_name", json!("t"))])),
            "messages[0].content[0].toolset_name",
            "unsupported_parameter",
        ),
    ];
    refused(&rows, messages, to_chat, "OpenAI's");
}
