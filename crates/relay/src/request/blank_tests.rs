//! Blank messages in every dialect, for calls that are answered here and for calls that are relayed.

use headrace_domain::Endpoint;
use serde_json::{Value, json};

use crate::skim;
use headrace_wire::{BadRequest, WireLimits, parse};

const CHAT: Endpoint = Endpoint::ChatCompletions;
const MESSAGES: Endpoint = Endpoint::Messages;
const RESPONSES: Endpoint = Endpoint::Responses;

/// Texts without a visible character.
const BLANK: &[&str] = &[
    "",
    " ",
    "\n\t \r\n",
    "\u{a0}\u{3000}\u{2003}",
    "\u{200b}",
    "\u{200d}\u{2060}\u{feff}\u{ad}",
    "\u{3164}\u{2800}",
    "\u{e0020}\u{fe0f}",
    "\0\u{1b}",
];

fn body(endpoint: Endpoint, more: &Value) -> Vec<u8> {
    let mut body = json!({"model": "demo"});
    if endpoint == MESSAGES {
        body["max_tokens"] = json!(9);
    }
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string().into_bytes()
}

/// Reads a body twice: to answer it here, and to relay it.
fn read(endpoint: Endpoint, more: &Value) -> [Result<(), BadRequest>; 2] {
    let (body, limits) = (body(endpoint, more), WireLimits::default());
    let answered = parse(endpoint, &body, &limits).map(drop);
    [answered, skim(endpoint, body.into(), &limits).map(drop)]
}

fn refused(endpoint: Endpoint, more: &Value, code: &str, param: &str) {
    for read in read(endpoint, more) {
        let bad = read.expect_err(&format!("{endpoint:?} {more}"));
        assert_eq!((bad.code.name(), bad.param.as_deref()), (code, Some(param)), "{endpoint:?} {more}");
        let way_out = ["leave", "add a", "send a text", "at least one"];
        assert!(way_out.iter().any(|way| bad.message.contains(way)), "{}", bad.message);
    }
}

#[test]
fn blank_messages_of_the_user_are_refused_by_their_place() {
    let hi = json!({"role": "user", "content": "hi"});
    let answer = json!({"role": "assistant", "content": "yes"});
    for blank in BLANK {
        let user = json!({"role": "user", "content": blank});
        let part = |kind: &str| json!({"role": "user", "content": [{"type": kind, "text": blank}]});
        for endpoint in [CHAT, MESSAGES] {
            for (messages, param) in [
                (json!([user]), "messages[0].content"),
                (json!([part("text")]), "messages[0].content"),
                (json!([hi, answer, user]), "messages[2].content"),
                (json!([user, answer, hi]), "messages[0].content"),
                (json!([hi, answer, part("text")]), "messages[2].content"),
            ] {
                refused(endpoint, &json!({"messages": messages}), "empty_string", param);
            }
        }
        for (input, param) in [
            (json!(blank), "input"),
            (json!([user]), "input[0].content"),
            (json!([hi, answer, part("input_text")]), "input[2].content"),
        ] {
            let read = parse(RESPONSES, &body(RESPONSES, &json!({"input": input})), &WireLimits::default());
            let bad = read.unwrap_err();
            assert_eq!((bad.code.name(), bad.param.as_deref()), ("empty_string", Some(param)), "{input}");
        }
        for (more, param) in [
            (json!({"input": [user]}), "input[0].content"),
            (json!({"input": [hi, answer, part("input_text")]}), "input[2].content"),
            (json!({"input": blank}), "input"),
        ] {
            let bad = skim(RESPONSES, body(RESPONSES, &more).into(), &WireLimits::default()).unwrap_err();
            assert_eq!((bad.code.name(), bad.param.as_deref()), ("empty_string", Some(param)), "{more}");
        }
        refused(Endpoint::Completions, &json!({"prompt": blank}), "empty_prompt", "prompt");
        refused(Endpoint::Completions, &json!({"prompt": ["a", blank]}), "empty_prompt", "prompt[1]");
        refused(Endpoint::Embeddings, &json!({"input": blank}), "empty_prompt", "input");
        refused(Endpoint::Embeddings, &json!({"input": ["a", blank]}), "empty_prompt", "input[1]");
        for (endpoint, more, param) in [
            (Endpoint::Rerank, json!({"query": blank, "documents": ["d"]}), "query"),
            (Endpoint::Rerank, json!({"query": {"text": blank}, "documents": ["d"]}), "query.text"),
            (Endpoint::Rerank, json!({"query": "q", "documents": ["d", blank]}), "documents[1]"),
            (Endpoint::Rerank, json!({"query": "q", "documents": [{"text": blank}]}), "documents[0].text"),
            (Endpoint::Score, json!({"text_1": blank, "text_2": "b"}), "text_1"),
            (Endpoint::Score, json!({"text_1": ["a", blank], "text_2": ["b", "c"]}), "text_1[1]"),
            (Endpoint::Score, json!({"text_1": "a", "text_2": blank}), "text_2"),
            (Endpoint::Score, json!({"text_1": "a", "text_2": ["b", {"text": blank}]}), "text_2[1].text"),
        ] {
            refused(endpoint, &more, "empty_prompt", param);
        }
        let by_others_name = json!({"queries": "a", "documents": ["b", blank]});
        let bad =
            skim(Endpoint::Score, body(Endpoint::Score, &by_others_name).into(), &WireLimits::default());
        assert_eq!(bad.unwrap_err().param.as_deref(), Some("documents[1]"));
    }
    for (endpoint, more, param) in [
        (Endpoint::Embeddings, json!({"input": []}), "input"),
        (Endpoint::Rerank, json!({"query": "q", "documents": []}), "documents"),
        (Endpoint::Score, json!({"text_1": [], "text_2": "b"}), "text_1"),
        (Endpoint::Score, json!({"text_1": "a", "text_2": []}), "text_2"),
    ] {
        for read in read(endpoint, &more) {
            let bad = read.expect_err(&format!("{endpoint:?} {more}"));
            assert_eq!((bad.code.name(), bad.param.as_deref()), ("empty_array", Some(param)), "{more}");
        }
    }
    // Objects without a text, such as an image to be ranked, are for their server to judge.
    let image = json!({"query": "q", "documents": [{"image": "data:image/png;base64,AAAA"}, {"title": "", "text": "t"}]});
    assert!(skim(Endpoint::Rerank, body(Endpoint::Rerank, &image).into(), &WireLimits::default()).is_ok());
    for endpoint in [CHAT, MESSAGES] {
        refused(endpoint, &json!({"messages": []}), "empty_array", "messages");
        let no_parts = json!({"messages": [{"role": "user", "content": []}]});
        refused(endpoint, &no_parts, "empty_string", "messages[0].content");
        let parts = json!([{"type": "text", "text": ""}, {"type": "text", "text": " "}]);
        let read = read(endpoint, &json!({"messages": [{"role": "user", "content": parts}]}));
        assert!(read.iter().all(|read| read.is_err()), "{endpoint:?}");
    }
}

/// A content of the wrong type is not blank. If the call is relayed, the upstream or the translation names the fault.
#[test]
fn a_content_of_the_wrong_type_is_not_blank() {
    for content in [json!(7), json!(true), json!({"type": "text", "text": "hi"})] {
        let [answered, sent_on] = read(CHAT, &json!({"messages": [{"role": "user", "content": content}]}));
        assert_eq!(answered.expect_err("a wrong type").param.as_deref(), Some("messages[0].content"));
        assert_eq!(sent_on, Ok(()), "{content}");
    }
}

#[test]
fn a_conversation_must_say_something() {
    for blank in BLANK {
        let system = json!({"role": "system", "content": blank});
        refused(CHAT, &json!({"messages": [system]}), "empty_string", "messages");
        let developer = json!({"role": "developer", "content": [{"type": "text", "text": blank}]});
        refused(CHAT, &json!({"messages": [system, developer]}), "empty_string", "messages");
        refused(MESSAGES, &json!({"messages": [system]}), "empty_string", "messages");
        let alone = json!({"messages": [{"role": "assistant", "content": ""}]});
        for endpoint in [CHAT, MESSAGES] {
            assert!(read(endpoint, &alone)[0].is_err(), "{endpoint:?}");
        }
    }
}

#[test]
fn what_may_be_empty_stays_valid() {
    let hi = json!({"role": "user", "content": "hi"});
    let url = "data:image/png;base64,AAAA";
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    for blank in BLANK {
        for messages in [
            json!([{"role": "system", "content": blank}, hi]),
            json!([{"role": "system", "content": "be brief"}]),
            json!([hi, {"role": "assistant", "content": blank}, hi]),
            json!([hi, {"role": "assistant", "content": blank, "reasoning_content": "hm"}, hi]),
            json!([hi, {"role": "assistant", "content": null, "refusal": "no"}, hi]),
            json!([hi, {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": blank}]),
            json!([hi, {"role": "assistant", "content": blank, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": []}]),
            json!([{"role": "user", "content": [image]}]),
            json!([{"role": "user", "content": [{"type": "text", "text": blank}, image]}]),
            json!([{"role": "user", "content": [{"type": "text", "text": blank}, {"type": "text", "text": "hi"}]}]),
            json!([{"content": "hi", "role": "user"}]),
        ] {
            for read in read(CHAT, &json!({"messages": messages})) {
                read.unwrap_or_else(|bad| panic!("{messages}: {bad}"));
            }
        }
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        let image =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
        for more in [
            json!({"system": blank, "messages": [hi]}),
            json!({"messages": [hi, {"role": "assistant", "content": blank}, hi]}),
            json!({"messages": [hi, {"role": "assistant", "content": []}, hi]}),
            json!({"messages": [hi, {"role": "assistant", "content": [{"type": "text", "text": blank}, call]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": blank}]}]}),
            json!({"messages": [hi, {"role": "assistant", "content": [call]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]}),
            json!({"messages": [hi, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}, hi]}),
            json!({"messages": [{"role": "user", "content": [image]}]}),
        ] {
            for read in read(MESSAGES, &more) {
                read.unwrap_or_else(|bad| panic!("{more}: {bad}"));
            }
        }
        for more in [
            json!({"input": "hi", "instructions": blank}),
            json!({"input": [{"role": "system", "content": blank}, hi]}),
            json!({"input": [hi, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": blank}]}, hi]}),
            json!({"input": [hi, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": blank}]}),
            json!({"previous_response_id": "resp_1"}),
            json!({"previous_response_id": "resp_1", "input": []}),
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
        ] {
            for read in read(RESPONSES, &more) {
                read.unwrap_or_else(|bad| panic!("{more}: {bad}"));
            }
        }
    }
}

/// Anthropic's rule. It applies if the answer is written here.
#[test]
fn a_blank_block_of_text_beside_others_is_refused() {
    let blocks = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "\n\u{200b}"}]);
    let [answered, _] = read(MESSAGES, &json!({"messages": [{"role": "user", "content": blocks}]}));
    let bad = answered.unwrap_err();
    assert_eq!((bad.code.name(), bad.param.as_deref()), ("empty_string", Some("messages[0].content[1]")));
}

#[test]
fn an_id_of_a_file_is_not_sent_on() {
    let in_chat = |content: Value| json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, content]}]});
    let in_input = |content: Value| json!({"input": [{"role": "user", "content": [content]}]});
    for (endpoint, more, param) in [
        (
            CHAT,
            in_chat(json!({"type": "file", "file": {"file_id": "file-1"}})),
            "messages[0].content[1].file.file_id",
        ),
        (
            MESSAGES,
            in_chat(json!({"type": "document", "source": {"type": "file", "file_id": "file_1"}})),
            "messages[0].content[1].source.file_id",
        ),
        (
            MESSAGES,
            in_chat(json!({"type": "image", "source": {"file_id": "file_1", "type": "file"}})),
            "messages[0].content[1].source.file_id",
        ),
        (
            MESSAGES,
            in_chat(json!({"type": "container_upload", "file_id": "file_1"})),
            "messages[0].content[1].file_id",
        ),
        (
            RESPONSES,
            in_input(json!({"type": "input_file", "file_id": "file-1"})),
            "input[0].content[0].file_id",
        ),
        (
            RESPONSES,
            in_input(json!({"type": "input_image", "detail": "auto", "file_id": "file-1"})),
            "input[0].content[0].file_id",
        ),
        (
            RESPONSES,
            json!({"input": [{"type": "function_call_output", "call_id": "c",
                "output": [{"type": "input_file", "file_id": "file-1"}]}]}),
            "input[0].output[0].file_id",
        ),
    ] {
        let bad = skim(endpoint, body(endpoint, &more).into(), &WireLimits::default()).unwrap_err();
        let found = (bad.code.name(), bad.param.as_deref());
        assert_eq!(found, ("unsupported_content", Some(param)), "{more}");
        assert!(bad.message.contains("send the content itself"), "{}", bad.message);
    }
    // If the id is null, the field has no effect.
    let none =
        in_input(json!({"type": "input_image", "file_id": null, "image_url": "data:image/png;base64,AAAA"}));
    assert!(skim(RESPONSES, body(RESPONSES, &none).into(), &WireLimits::default()).is_ok());
}
