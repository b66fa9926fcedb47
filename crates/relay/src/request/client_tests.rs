//! Complete bodies as real clients of either dialect send them, translated into the other dialect.

use serde_json::json;

use super::translate_tests::{to_chat, to_messages};

/// A coding agent for Anthropic's API, some turns into its work.
#[test]
fn an_agent_of_anthropics_goes_to_chat() {
    let hint = json!({"type": "ephemeral", "ttl": "1h"});
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"file_path": {"type": "string"}}, "required": ["file_path"],
            "additionalProperties": false});
    let body = json!({
        "model": "m", "max_tokens": 32000, "stream": true,
        "system": [
            {"type": "text", "text": "x-billing: 1"},
            {"type": "text", "text": "You help with code.", "cache_control": hint},
        ],
        "tools": [{"name": "Read", "description": "Reads a file.", "input_schema": schema,
            "eager_input_streaming": true,
            "cache_control": hint}],
        "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "{\"device_id\":\"d\"}"}, "diagnostics": {"previous_message_id": null},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>r</system-reminder>"},
                {"type": "text", "text": "What is in a?", "cache_control": hint}]},
            {"role": "system", "content": [{"type": "text", "text": "Agent types: none"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "I look.", "signature": ""},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": false, "content": "1\tx",
                    "cache_control": hint},
                {"type": "text", "text": "Go on."}]},
        ],
    });
    let expected = json!({
        "model": "up", "max_completion_tokens": 32000, "stream": true,
            "stream_options": {"include_usage": true},
        "reasoning_effort": "medium", "user": "{\"device_id\":\"d\"}",
        "tools": [{"type": "function", "function": {"name": "Read", "description": "Reads a file.",
            "parameters": schema}}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "x-billing: 1"}, {"type": "text",
                "text": "You help with code."}]},
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>r</system-reminder>"},
                {"type": "text", "text": "What is in a?"}]},
            {"role": "system", "content": "Agent types: none"},
            {"role": "assistant", "content": "Looking.", "reasoning_content": "I look.", "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "Read",
                    "arguments": "{\"file_path\":\"/a\"}"}}]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "1\tx"},
            {"role": "user", "content": "Go on."},
        ],
    });
    assert_eq!(to_chat(&body).unwrap(), expected);
}

/// A program that sends messages of OpenAI's SDK back unchanged, including all empty fields.
#[test]
fn messages_as_openais_sdk_hands_them_back_go_to_messages() {
    let detail = json!({"type": "reasoning.text", "text": "I look.", "signature": "sig",
        "format": "anthropic-claude-v1", "index": 0});
    let call = json!({"id": "c1", "type": "function", "function": {"name": "look_up",
        "arguments": "{\"q\": \"\u{e9}\"}"}});
    let body = json!({
        "model": "m", "max_completion_tokens": 100, "n": 1, "stream": false, "metadata": {"run": "7"},
            "store": false,
        "prompt_cache_key": "k", "parallel_tool_calls": true, "tool_choice": "auto", "top_logprobs": null,
        "tools": [{"type": "function", "function": {"name": "look_up", "strict": false,
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}],
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Look up."},
            {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
                "function_call": null,
                "reasoning_content": "I look.", "reasoning_details": [detail], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ],
    });
    let expected = json!({
        "model": "up", "max_tokens": 100, "system": "Be brief.", "tool_choice": {"type": "auto"},
        "tools": [{"name": "look_up", "strict": false,
            "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}],
        "messages": [
            {"role": "user", "content": "Look up."},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "I look.", "signature": "sig"},
                {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"q": "\u{e9}"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "found"}]},
        ],
    });
    assert_eq!(to_messages(&body).unwrap(), expected);
}
