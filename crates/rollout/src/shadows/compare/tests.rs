//! What two answers have in common, in every dialect, streamed and whole.

use serde_json::{Value, json};

use super::*;

const SECRET: [u8; 32] = [7; 32];

fn form(endpoint: Endpoint, stream: bool, choices: u32) -> ComparedShape {
    ComparedShape { endpoint, stream, choices }
}

fn whole(choices: &[Value]) -> Bytes {
    let choices: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let finish = if message.get("tool_calls").is_some() { "tool_calls" } else { "stop" };
            json!({"index": index, "message": message, "finish_reason": finish})
        })
        .collect();
    json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices})
        .to_string()
        .into()
}

fn says(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn calls(tools: &[(&str, &str)]) -> Value {
    let tools: Vec<Value> = tools
        .iter()
        .enumerate()
        .map(|(at, (name, arguments))| {
            json!({"id": format!("call_{at}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": null, "tool_calls": tools})
}

#[test]
fn what_two_answers_have_in_common_is_told_in_figures() {
    let f = |arguments| calls(&[("f", arguments)]);
    // Same overall, thousandths in common, same finish, same tools, same arguments.
    for (real, copy, expected) in [
        (says("abcd"), says("abcd"), (true, 1000, true, true, true)),
        (says("abcd"), says("abXd"), (false, 500, true, true, true)),
        (says("ab"), says("abcd"), (false, 500, true, true, true)),
        (says("äöü"), says("äöx"), (false, 666, true, true, true)),
        (says(""), says(""), (true, 1000, true, true, true)),
        (says(""), says("abcd"), (false, 0, true, true, true)),
        (f("{\"a\": 1, \"b\": 2}"), f("{\"b\":2,\"a\":1}"), (true, 1000, true, true, true)),
        (f("{\"a\": 1}"), f("{\"a\": 2}"), (false, 1000, true, true, false)),
        (f("{}"), calls(&[("g", "{}")]), (false, 1000, true, false, false)),
        (f("{}"), calls(&[("f", "{}"), ("f", "{}")]), (false, 1000, true, false, false)),
        (f("{}"), says("abcd"), (false, 0, false, false, false)),
        // Arguments that are not JSON are compared as they are.
        (f("not json"), f("not  json"), (false, 1000, true, true, false)),
    ] {
        let form = form(Endpoint::ChatCompletions, false, 1);
        let (a, b) = (whole(std::slice::from_ref(&real)), whole(std::slice::from_ref(&copy)));
        let found = compare(form, &a, &b, &SECRET).unwrap();
        let told =
            (found.same, found.common_permille, found.same_finish, found.same_tools, found.same_arguments);
        assert_eq!(told, expected, "{real} and {copy}");
        assert_eq!(found.digests[0] == found.digests[1], found.same, "{real} and {copy}");
        assert!(found.digests.iter().all(|digest| digest.len() == DIGEST_DIGITS));
        assert_ne!(compare(form, &a, &b, &[8; 32]).unwrap().digests, found.digests, "the key is in them");
    }
}

#[test]
fn every_choice_counts() {
    let form = form(Endpoint::ChatCompletions, false, 2);
    let of = |a: &str, b: &str| whole(&[says(a), says(b)]);
    let found = compare(form, &of("abcd", "efgh"), &of("abcd", "efXh"), &SECRET).unwrap();
    assert_eq!((found.same, found.common_permille, found.characters), (false, 750, [8, 8]));
    // The digest separates one choice from the next.
    let found = compare(form, &of("ab", "c"), &of("a", "bc"), &SECRET).unwrap();
    assert_ne!(found.digests[0], found.digests[1]);
}

#[test]
fn streams_say_what_whole_answers_say_in_every_dialect() {
    let chat = |pieces: &[&str]| -> Bytes {
        let chunk = |delta: Value, finish: Value| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            format!(
                "data: {}\n\n",
                json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
            )
        };
        let mut all: String =
            pieces.iter().map(|piece| chunk(json!({"content": piece}), Value::Null)).collect();
        all.push_str(": a sign of life\n\n");
        all.push_str(&chunk(json!({}), json!("stop")));
        all.push_str("data: [DONE]\n\n");
        all.into()
    };
    let form_of = form(Endpoint::ChatCompletions, true, 1);
    let found = compare(form_of, &chat(&["ab", "cd"]), &chat(&["a", "bc", "d"]), &SECRET).unwrap();
    assert!(found.same && found.same_finish && found.characters == [4, 4]);
    assert_eq!(
        compare(
            form_of,
            &chat(&["ab"]),
            &Bytes::from_static(b"data: {\"error\":{\"message\":\"m\"}}\n\n"),
            &SECRET
        ),
        None
    );

    let message = |text: &str| -> Bytes {
        json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": null,
            "content": [{"type": "thinking", "thinking": text, "signature": "s"}, {"type": "text", "text": "abcd"}],
            "usage": {"input_tokens": 1, "output_tokens": 1}})
        .to_string()
        .into()
    };
    // Reasoning is not part of an answer.
    let found =
        compare(form(Endpoint::Messages, false, 1), &message("so"), &message("or so"), &SECRET).unwrap();
    assert!(found.same && found.characters == [4, 4]);

    let completion = |text: &str| -> Bytes {
        json!({"id": "x", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": text, "finish_reason": "length"}]})
        .to_string()
        .into()
    };
    let form_of = form(Endpoint::Completions, false, 1);
    assert_eq!(
        compare(form_of, &completion("abcd"), &completion("abc"), &SECRET).unwrap().common_permille,
        750
    );
}
