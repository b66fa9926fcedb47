//! The texts of a relayed body that the content rules receive.

use serde_json::{Value, json};

use headrace_domain::{Endpoint, TextPlace};
use headrace_wire::WireLimits;

use super::{skim, texts};

fn of(body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    assert!(texts(body.to_string().as_bytes(), &mut |text, _| found.push(text.to_owned())));
    found
}

#[test]
fn a_chat_is_shown_without_the_dialects_own_words() {
    let body = json!({"model": "m", "user": "u", "stop": ["s"], "metadata": {"k": "v"}, "temperature": 1,
        "messages": [
        {"role": "system", "content": "be good"},
        {"role": "user", "name": "bob", "content": [{"type": "text", "text": "ba"}, {"type": "text",
            "text": "d"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://x/y"}}]},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "index": 0, "function": {"name": "f",
                "arguments": "{\"k\":\"l\\u0069ne\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"}]});
    assert_eq!(
        of(&body),
        [
            "be good",
            "bob",
            "ba",
            "d",
            "https://x/y",
            "bad",
            "hm",
            "c1",
            "f",
            "{\"k\":\"l\\u0069ne\"}",
            "k",
            "line",
            "c1",
            "done"
        ]
    );
}

#[test]
fn tools_and_formats_are_shown_with_their_schemas() {
    let schema = json!({"type": "object", "properties": {"p": {"enum": ["e"]}}});
    let inside = ["type", "object", "properties", "p", "enum", "e"];
    let function = json!({"name": "n", "description": "d", "strict": true, "parameters": schema});
    let expected = ["n", "d"].iter().chain(&inside).copied().collect::<Vec<_>>();
    assert_eq!(of(&json!({"tools": [{"type": "function", "function": function}]})), expected);
    assert_eq!(of(&json!({"functions": [function]})), expected);
    let tool = json!({"type": "custom", "name": "n", "description": "d", "input_schema": schema,
        "cache_control": {"type": "ephemeral"}});
    assert_eq!(of(&json!({"tools": [tool]})), expected);
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "description": "d",
        "schema": schema}});
    assert_eq!(of(&json!({"response_format": format})), expected);
    let config = json!({"effort": "low", "format": {"type": "json_schema", "schema": schema}});
    assert_eq!(of(&json!({"output_config": config})), inside);
}

#[test]
fn messages_are_shown_to_the_last_block() {
    let body = json!({"model": "m", "max_tokens": 1, "system": [{"type": "text", "text": "s",
        "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "document", "title": "t", "context": "c", "source": {"media_type": "text/plain",
                    "data": "plain", "type": "text"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "AAAA"}, {"type": "redacted_thinking",
                    "data": "AAAA"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"k": ["v"]}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "is_error": false,
                "content": [
                {"type": "text", "text": "on"}, {"type": "text", "text": "e"}]}, {"type": "text",
                    "text": "two"}]}]});
    assert_eq!(of(&body), ["s", "t", "c", "plain", "hm", "c1", "f", "k", "v", "c1", "on", "e", "one", "two"]);
}

#[test]
fn prompts_and_what_nobody_knows_are_shown() {
    assert_eq!(of(&json!({"model": "m", "prompt": ["a", "c"], "suffix": "b"})), ["a", "c", "b"]);
    assert_eq!(of(&json!({"documents": [{"k": "v"}], "x": 1, "y": "z"})), ["documents", "k", "v", "y", "z"]);
    assert_eq!(of(&json!({"messages": "a"})), ["a"]);
    assert_eq!(
        of(&json!({"messages": [{"content": {"k": "v"}, "odd": "o"}, "b"]})),
        ["k", "v", "odd", "o", "b"]
    );
}

#[test]
fn ids_and_embeddings_are_told_from_texts() {
    for body in [
        r#"{"prompt":[1,2]}"#,
        r#"{"prompt":["a",[1]]}"#,
        r#"{"prompt_token_ids":[1]}"#,
        r#"{"prompt_embeds":"AAAA"}"#,
        r#"{"prompt":"a""#,
    ] {
        assert!(!texts(body.as_bytes(), &mut |_, _| {}), "{body}");
    }
    assert!(texts(br#"{"prompt":"a","prompt_embeds":null}"#, &mut |_, _| {}));
}

/// Contents of messages with whether they are the user's.
fn contents_of(body: &Value) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut each = |text: &str, place| {
        if let TextPlace::Content { of_user } = place {
            found.push((text.to_owned(), of_user));
        }
    };
    assert!(texts(body.to_string().as_bytes(), &mut each));
    found
}

#[test]
fn contents_are_told_from_names_with_their_speaker() {
    let parts = json!([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]);
    let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]},
        {"type": "text", "text": "d"}]);
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "name": "n", "content": parts},
        {"role": "assistant", "content": "a"}, {"content": "none"}, {"role": "user", "content": result}]);
    let of = |rows: &[(&str, bool)]| -> Vec<(String, bool)> {
        rows.iter().map(|(text, of_user)| ((*text).to_owned(), *of_user)).collect()
    };
    let mut expected =
        vec![("s", false), ("b", true), ("c", true), ("a", false), ("none", true), ("r", false), ("d", true)];
    assert_eq!(contents_of(&json!({"messages": messages})), of(&expected));
    expected.truncate(4);
    let items = json!({"input": messages.as_array().unwrap()[..3]});
    assert_eq!(contents_of(&items), of(&expected));
    // The keys of a message may come in any order.
    let mut found = Vec::new();
    let body =
        br#"{"messages":[{"content":"a","role":"assistant"},{"content":[{"text":"b"}],"role":"user"}]}"#;
    assert!(texts(body, &mut |text, place| found.push((text.to_owned(), place))));
    let place = |of_user| TextPlace::Content { of_user };
    assert_eq!(found, [("a".to_owned(), place(false)), ("b".to_owned(), place(true))]);
}

#[test]
fn inputs_and_prompts_are_texts_of_their_own() {
    for body in [json!({"input": ["a", "b"]}), json!({"prompt": ["a", "b"]}), json!({"input": "a"})] {
        let is_apart = |_: &str, place| assert_eq!(place, TextPlace::Apart, "{body}");
        assert!(texts(body.to_string().as_bytes(), &mut { is_apart }));
    }
}

/// Tools of the body are shown with all of their keys, those of an item with what a model sees.
#[test]
fn tools_are_shown_by_the_list_that_holds_them() {
    let tools = json!([{"type": "web_search_20250305", "name": "n", "max_uses": 3},
        {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "f"}]}]);
    assert_eq!(
        of(&json!({"tools": tools})),
        ["n", "max_uses", "s", "tools", "type", "function", "name", "f"]
    );
    assert_eq!(of(&json!({"input": [{"type": "mcp_list_tools", "tools": tools}]})), ["n", "s", "f"]);
}

/// `skim` leaves the fields of a format to the receiver. Rules do not pass a body that may be read in two ways.
#[test]
fn a_format_with_a_second_spelling_is_not_shown_whole() {
    for field in ["response_format", "output_config"] {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "a"}], field: {"Type": "x"}});
        let body = body.to_string();
        let limits = WireLimits::default();
        assert!(skim(Endpoint::ChatCompletions, body.clone().into(), &limits).is_ok(), "{body}");
        assert!(!texts(body.as_bytes(), &mut |_, _| {}), "{body}");
    }
}

/// One rule for all dialects, because a server may read the fields of another one.
#[test]
fn the_fields_of_every_dialect_are_shown() {
    let body = json!({"user": "u", "safety_identifier": "s", "metadata": {"user_id": "m", "k": "v"},
        "tool_choice": {"function": {"name": "f"}}, "text": {"format": {"name": "n"}}, "functions": [{"name": "g"}],
        "input": [{"role": "user", "content": "i"}], "messages": [{"content": "c"}], "system": "y"});
    assert_eq!(of(&body), ["n", "g", "i", "c", "y"]);
}
