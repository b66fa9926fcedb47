//! Responses calls as chats: their meaning, their limits and their media. No input makes the conversion panic.

use headrace_domain::{Call, Code, Conversation, Endpoint, Prompt};
use headrace_wire::{BadRequest, WireLimits, parse, parse_chat};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::as_chat::{as_chat, body_of};

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

#[test]
fn as_a_chat_it_means_the_same() {
    let asked = read(&with(&json!({
        "instructions": "i", "temperature": 0.25, "top_p": 0.5, "top_k": -1, "seed": 3, "stop": ["s"], "stream": true,
        "presence_penalty": 1, "frequency_penalty": -1, "min_p": 0.125, "repetition_penalty": 1.5, "logit_bias": {"7": 2},
        "stop_token_ids": [5], "min_tokens": 1, "ignore_eos": true, "cache_salt": "c", "service_tier": "flex",
        "reasoning": {"effort": "high"}, "parallel_tool_calls": false,
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object", "properties":
            {"z": {"type": "string"}, "a": {}}}, "strict": true}, {"type": "function", "name": "g"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
        "input": [{"role": "user", "content": "u"}, {"type": "function_call", "call_id": "1", "name": "f",
            "arguments": "{\"z\": 1}"}, {"type": "function_call_output", "call_id": "1", "output": "o"}],
    })))
    .unwrap();
    let chat = as_chat(&asked, &WireLimits::default()).unwrap();
    let back = parse_chat(body_of(&chat).as_bytes(), &WireLimits::default()).unwrap();
    assert_eq!(back.prompt, asked.prompt);
    assert_eq!(back.sampling, asked.sampling);
    assert_eq!((&back.form, &back.reasoning), (&asked.form, &asked.reasoning));
    assert_eq!((back.stream, back.tier, &back.cache_salt), (true, asked.tier, &asked.cache_salt));
    let bad =
        as_chat(&read(&with(&json!({"top_logprobs": 1}))).unwrap(), &WireLimits::default()).unwrap_err();
    assert_eq!(bad.param.as_deref(), Some("top_logprobs"));
}

#[test]
fn a_chat_is_read_within_the_limits_of_its_response() {
    let usual = WireLimits::default();
    let image = json!({"type": "input_image", "image_url": "https://x/a.png"});
    let seen = json!({"role": "user", "content": [image]});
    let tools = |count: usize| -> Vec<Value> {
        (0..count).map(|at| json!({"type": "function", "name": format!("f{at}")})).collect()
    };
    let with_tools = |count| with(&json!({"input": [seen], "tools": tools(count)}));
    let wide = WireLimits { max_tools: usual.max_tools + 20, ..usual.clone() };
    let call = parse(Endpoint::Responses, with_tools(wide.max_tools).to_string().as_bytes(), &wide).unwrap();
    assert!(as_chat(&call, &wide).is_ok());
    assert_eq!(as_chat(&call, &usual).unwrap_err().param.as_deref(), Some("tools"));
    let narrow = WireLimits { max_tools: 2, ..usual.clone() };
    let call = read(&with_tools(3)).unwrap();
    assert_eq!(as_chat(&call, &narrow).unwrap_err().param.as_deref(), Some("tools"));
    // A chat may have more messages than its response has items, and more calls in one message.
    let few =
        WireLimits { max_messages: 3, max_tool_calls: 1, max_content_parts: 1, max_json_depth: 5, ..usual };
    let (call, output) = (
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "1", "output": [image]}),
    );
    for input in [json!([seen, call("1"), output]), json!([seen, call("1"), call("2")])] {
        let body = with(&json!({"instructions": "be brief", "input": input}));
        let call = parse(Endpoint::Responses, body.to_string().as_bytes(), &few).unwrap();
        assert!(as_chat(&call, &few).is_ok(), "{body}");
    }
}

#[test]
fn images_files_and_sounds_go_into_the_chat_where_they_stand() {
    let (url, pdf) = ("https://x/a.png", "data:application/pdf;base64,QUJD");
    let asked = read(&with(&json!({"input": [
        {"role": "user", "content": [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": url, "detail": "low"},
            {"type": "input_text", "text": "this"},
            {"type": "input_file", "file_data": pdf, "filename": "a.pdf"},
            {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": url}]},
        {"role": "user", "content": "and?"}]})))
    .unwrap();
    let chat = as_chat(&asked, &WireLimits::default()).unwrap();
    let Prompt::Relayed(relayed) = &chat.prompt else { panic!("a body") };
    assert_eq!(relayed.media, 4);
    assert!(relayed.text_bytes + url.len() + pdf.len() < relayed.body.len());
    let body: Value = serde_json::from_str(body_of(&chat)).unwrap();
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "text", "text": "this"},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}},
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "See the next message.", "tool_call_id": "1"},
            {"role": "user", "content": [
                {"type": "text", "text": "Images and files of the result of the tool call `1`:"}, image]},
            {"role": "user", "content": "and?"}])
    );
    // The chat converts back to the original messages, except that images of results are in a message of their own.
    let back = parse_chat(body_of(&chat).as_bytes(), &WireLimits::default()).unwrap();
    assert_eq!(conversation(&back).messages[0], conversation(&asked).messages[0]);
    for (part, param) in [
        (json!({"type": "input_image", "file_id": "file-1"}), "input[1].content[0].file_id"),
        (json!({"type": "input_file", "file_id": "file-1"}), "input[1].content[0].file_id"),
        (json!({"type": "input_file", "file_url": "https://x/a.pdf"}), "input[1].content[0]"),
    ] {
        let asked = read(&with(
            &json!({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]}),
        ));
        let bad = as_chat(&asked.unwrap(), &WireLimits::default()).unwrap_err();
        assert_eq!((bad.code, bad.param.as_deref()), (Code::UnsupportedContent, Some(param)));
    }
}

#[test]
fn the_grammar_of_a_custom_tool_is_told_to_models_of_others() {
    let grammar = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\""});
    let tools =
        json!([{"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": grammar}]);
    let body = json!({"installation": "i", "turn": "{}"});
    let call = read(&with(&json!({"tools": tools, "client_metadata": body}))).unwrap();
    let sent: Value =
        serde_json::from_str(body_of(&as_chat(&call, &WireLimits::default()).unwrap())).unwrap();
    let function = &sent["tools"][0]["function"];
    assert_eq!(
        (&function["name"], &function["description"]),
        (&json!("apply_patch"), &json!("Edits files."))
    );
    let input = &function["parameters"]["properties"]["input"];
    assert!(input["description"].as_str().unwrap().contains("start: \"*** Begin Patch\""), "{input}");
    assert!(sent.get("client_metadata").is_none());
    assert_eq!(
        read(&with(&json!({"client_metadata": {"a": 1}}))).unwrap_err().param.as_deref(),
        Some("client_metadata.a")
    );
}

#[test]
fn verbosity_reaches_chats() {
    for word in ["low", "high"] {
        let call = read(&with(&json!({"text": {"verbosity": word}}))).unwrap();
        let chat: Value =
            serde_json::from_str(body_of(&as_chat(&call, &WireLimits::default()).unwrap())).unwrap();
        assert_eq!(chat["verbosity"], word);
    }
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
            let _ = as_chat(&call, &WireLimits::default());
        }
    }
}
