//! The one-pass readers agree with the full readers on any bytes: the same facts, notes and faults.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::answer::{AnswerReader, EventReading};
use super::{ReplyFault, anthropic, openai, usual, usual_message};

/// Values of unexpected types, or in unusual spellings.
const ODD: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "01",
    "1.5",
    "1e3",
    "1e999",
    "-0",
    "9007199254740993",
    "007",
    "1.",
    "-",
    "99999999999999999999",
    "\"\"",
    "\"x\"",
    "\"stop\"",
    "\"error\"",
    "\"a\\\"b\\n\"",
    "\"\\u00e9\\u4e2d\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "\"\\udc00\"",
    "\"\\ud800\\u0041\"",
    "\"\\x\"",
    "\"é中😀\"",
    "\"\u{1}\"",
    "[]",
    "{}",
    "[1,2]",
    "[\"a\",{\"b\":[{}]}]",
    "{\"a\":{\"b\":[1,\"]\"]}}",
    "{\"a\":1,\"a\":2}",
    "[1,]",
    "{\"a\"}",
    "nul",
    "tru",
    "[null]",
    "\u{c}1",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
];

fn odd() -> BoxedStrategy<String> {
    select(ODD).prop_map(str::to_owned).boxed()
}

/// Mostly `usual`, sometimes an odd value.
fn mostly(usual: BoxedStrategy<String>) -> BoxedStrategy<String> {
    prop_oneof![8 => usual, 1 => odd()].boxed()
}

fn one_of(texts: &'static [&'static str]) -> BoxedStrategy<String> {
    mostly(select(texts).prop_map(str::to_owned).boxed())
}

/// An object with some of these fields in any order. Sometimes a field occurs twice, and sometimes there are other
/// fields.
fn object(fields: Vec<(&'static str, BoxedStrategy<String>)>) -> BoxedStrategy<String> {
    let others = ["logprobs", "created", "us\\u0061ge", "x"].map(|key| (key, odd()));
    let known = fields.len();
    let all: Vec<_> = fields.into_iter().chain(others).collect();
    let field = (0..all.len() * 4).prop_flat_map(move |at| {
        let at = if at < all.len() { at } else { at % known };
        let (key, value) = all[at].clone();
        value.prop_map(move |value| (at, format!("\"{key}\":{value}")))
    });
    let twice = prop_oneof![12 => Just(false), 1 => Just(true)];
    let comma = prop_oneof![Just(","), Just(" , "), Just(",\n\t\r")];
    (prop::collection::vec(field, 0..=known + 2), twice, comma)
        .prop_map(|(fields, twice, comma)| {
            let mut seen = Vec::new();
            let mut kept = Vec::new();
            for (at, field) in fields {
                if twice || !seen.contains(&at) {
                    seen.push(at);
                    kept.push(field);
                }
            }
            format!("{{{}}}", kept.join(comma))
        })
        .boxed()
}

fn list(of: BoxedStrategy<String>) -> BoxedStrategy<String> {
    mostly(prop::collection::vec(of, 0..3).prop_map(|items| format!("[{}]", items.join(","))).boxed())
}

const TEXTS: &[&str] = &[
    "null",
    "\"\"",
    "\"hello\"",
    "\"a \\\"quote\\\" of \\u4e2d\"",
    "\"中文 text that is longer than a word\"",
];
const COUNTS: &[&str] = &["null", "0", "1", "3", "12", "100000", "9007199254740992", "2.0"];

fn usage() -> BoxedStrategy<String> {
    let count = || one_of(COUNTS);
    let of_prompt =
        object(vec![("cached_tokens", count()), ("cache_write_tokens", count()), ("audio_tokens", count())]);
    let of_answer = object(vec![("reasoning_tokens", count()), ("audio_tokens", count())]);
    mostly(object(vec![
        ("prompt_tokens", count()),
        ("completion_tokens", count()),
        ("total_tokens", count()),
        ("prompt_tokens_details", mostly(of_prompt)),
        ("completion_tokens_details", mostly(of_answer)),
        ("prompt_cache_hit_tokens", count()),
        ("prompt_cache_miss_tokens", count()),
        ("cached_tokens", count()),
        ("reasoning_tokens", count()),
        ("input_tokens", count()),
        ("output_tokens_details", one_of(&["null", "{\"reasoning_tokens\":1}", "[]", "\"x\""])),
        ("cache_read_input_tokens", count()),
    ]))
}

fn message() -> BoxedStrategy<String> {
    let text = || one_of(TEXTS);
    let function = object(vec![("name", text()), ("arguments", text())]);
    let call = object(vec![("index", one_of(COUNTS)), ("id", text()), ("function", mostly(function))]);
    mostly(object(vec![
        ("role", one_of(&["\"assistant\""])),
        ("content", text()),
        ("reasoning_content", text()),
        ("reasoning", text()),
        ("reasoning_details", one_of(&["null", "[]", "[{\"text\":\"a\",\"signature\":\"b\"}]"])),
        ("refusal", one_of(&["null", "null", "\"no\""])),
        ("tool_calls", list(call)),
        ("function_call", one_of(&["null", "null", "{\"name\":\"f\",\"arguments\":\"{}\"}"])),
    ]))
}

fn body(said: &'static str) -> BoxedStrategy<String> {
    let choice = object(vec![
        ("index", one_of(&["0", "0", "0", "1", "5", "4294967296", "null"])),
        (said, message()),
        (if said == "delta" { "message" } else { "delta" }, one_of(&["null", "{\"content\":\"x\"}"])),
        ("text", one_of(TEXTS)),
        (
            "finish_reason",
            one_of(&["null", "\"stop\"", "\"length\"", "\"STOP\"", "\"abort\"", "\"safety\"", "\"x\""]),
        ),
        ("stop_reason", one_of(&["null", "5", "\"END\""])),
        ("matched_stop", one_of(&["null", "7", "\"END\""])),
        ("token_ids", one_of(&["null", "[]", "[1,2,3]", "[1, \"x\" ,{}]"])),
    ]);
    object(vec![
        ("id", one_of(&["\"chatcmpl-1\"", "null", "\"\""])),
        ("model", one_of(&["\"m\"", "null", "7"])),
        ("choices", list(mostly(choice))),
        ("usage", usage()),
        ("service_tier", one_of(&["null", "\"flex\"", "\"default\""])),
        ("error", one_of(&["null", "null", "{\"message\":\"x\",\"type\":\"overloaded\"}"])),
        ("object", one_of(&["\"chat.completion\"", "\"chat.completion\"", "\"error\"", "null"])),
    ])
}

fn message_body() -> BoxedStrategy<String> {
    let (text, count) = (|| one_of(TEXTS), || one_of(COUNTS));
    let block = object(vec![
        (
            "type",
            one_of(&[
                "\"text\"",
                "\"text\"",
                "\"thinking\"",
                "\"tool_use\"",
                "\"redacted_thinking\"",
                "\"x\"",
            ]),
        ),
        ("text", text()),
        ("thinking", text()),
        ("signature", text()),
        ("data", text()),
        ("id", text()),
        ("name", text()),
        ("input", one_of(&["null", "{}", "{ \"a\" : [1] }", "\"x\""])),
    ]);
    let usage = object(vec![
        ("input_tokens", count()),
        ("output_tokens", count()),
        ("cache_read_input_tokens", count()),
        ("cache_creation_input_tokens", count()),
        ("prompt_tokens", count()),
        ("completion_tokens", count()),
        (
            "cache_creation",
            mostly(object(vec![
                ("ephemeral_5m_input_tokens", count()),
                ("ephemeral_1h_input_tokens", count()),
            ])),
        ),
        ("output_tokens_details", mostly(object(vec![("thinking_tokens", count())]))),
        (
            "server_tool_use",
            mostly(object(vec![("web_search_requests", count()), ("web_fetch_requests", count())])),
        ),
        ("service_tier", one_of(&["\"standard\"", "null", "\"\""])),
    ]);
    object(vec![
        ("type", one_of(&["\"message\"", "\"message\"", "\"error\"", "null"])),
        ("id", one_of(&["\"msg_1\"", "null", "\"\""])),
        ("model", one_of(&["\"m\"", "null", "7"])),
        ("content", list(mostly(block))),
        (
            "stop_reason",
            one_of(&[
                "null",
                "\"end_turn\"",
                "\"stop_sequence\"",
                "\"refusal\"",
                "\"pause_turn\"",
                "\"error\"",
            ]),
        ),
        ("stop_sequence", one_of(&["null", "\"END\"", "\"\""])),
        ("usage", mostly(usage)),
        ("error", one_of(&["null", "null", "{\"message\":\"x\",\"type\":\"overloaded_error\"}"])),
    ])
}

/// A body as it is, cut off, or with some bytes changed.
fn bytes(of: BoxedStrategy<String>) -> BoxedStrategy<Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0..4, select(b"\"\\{}[],:0-9eE. \n\x00\xff\xc3ua".to_vec()));
    (of, prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2)], prop::collection::vec(change, 1..4))
        .prop_map(|(text, how, changes)| {
            let mut bytes = text.into_bytes();
            for (place, kind, byte) in changes.into_iter().take(if how == 0 { 0 } else { 3 }) {
                let at = place.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
                match kind {
                    _ if how == 1 || bytes.is_empty() => bytes.truncate(at),
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.push(byte),
                }
            }
            bytes
        })
        .boxed()
}

/// The complete state of an answer after it was read.
fn outcome(
    choices: u32,
    before: &[&str],
    read: impl FnOnce(&mut AnswerReader, &mut EventReading<'_>) -> Result<(), ReplyFault>,
) -> String {
    let mut answer = AnswerReader::new(choices);
    for event in before {
        let _ = openai::event_in_full(b"", event.as_bytes(), &mut answer, &mut EventReading::new(None));
    }
    let mut reading = EventReading::new(None);
    let result = read(&mut answer, &mut reading);
    format!("{result:?} {:?} {answer:?}", reading.facts)
}

const BEFORE: &[&[&str]] = &[
    &[],
    &[r#"{"model":"m","id":"i","choices":[{"delta":{"content":"a"}}]}"#],
    &[
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":2}}"#,
    ],
];

fn same_whole(body: &[u8], choices: u32) -> Result<(), TestCaseError> {
    let weighed = outcome(choices, &[], |answer, reading| openai::whole(body, answer, reading));
    let full = outcome(choices, &[], |answer, reading| openai::whole_in_full(body, answer, reading));
    prop_assert_eq!(weighed, full, "{}", String::from_utf8_lossy(body));
    Ok(())
}

fn same_chunk(data: &[u8], choices: u32, before: &[&str]) -> Result<(), TestCaseError> {
    let Some(chunk) = usual::chunk(data) else { return Ok(()) };
    let weighed = outcome(choices, before, |answer, reading| openai::weighed_chunk(&chunk, answer, reading));
    let full = outcome(choices, before, |answer, reading| openai::event_in_full(b"", data, answer, reading));
    prop_assert_eq!(weighed, full, "{}", String::from_utf8_lossy(data));
    Ok(())
}

fn same_message(body: &[u8]) -> Result<(), TestCaseError> {
    let weighed = outcome(1, &[], |answer, reading| anthropic::whole(body, answer, reading));
    let full = outcome(1, &[], |answer, reading| anthropic::whole_in_full(body, answer, reading));
    prop_assert_eq!(weighed, full, "{}", String::from_utf8_lossy(body));
    Ok(())
}

#[test]
fn a_signature_alone_begins_a_message() {
    for kind in ["text", "thinking", "tool_use"] {
        for stop_reason in ["end_turn", "error"] {
            let block = json!({"type": kind, "signature": "hello"});
            let body = json!({"content": [block], "stop_reason": stop_reason}).to_string();
            same_message(body.as_bytes()).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_whole_answer_weighs_what_it_is_read_as(body in bytes(body("message")), choices in 1_u32..3) {
        same_whole(&body, choices)?;
    }

    #[test]
    fn a_chunk_weighs_what_it_is_read_as(
        data in bytes(body("delta")),
        choices in 1_u32..3,
        before in select(BEFORE),
    ) {
        same_chunk(&data, choices, before)?;
    }

    #[test]
    fn a_whole_message_weighs_what_it_is_read_as(body in bytes(message_body())) {
        same_message(&body)?;
    }
}

const WHOLE: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"An answer \u00e9\n","refusal":null,"annotations":[],"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},"logprobs":{"content":[{"token":"a","logprob":-1.5e-3,"bytes":[97],"top_logprobs":[]}]},"finish_reason":"tool_calls","stop_reason":null}],"usage":{"prompt_tokens":70,"completion_tokens":12,"total_tokens":82,"prompt_tokens_details":{"cached_tokens":64,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":3}},"service_tier":"default","system_fingerprint":"fp"}"#;

const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"so \u4e2d","signature":"s"},{"type":"text","text":"An answer","citations":null},{"type":"tool_use","id":"t","name":"f","input":{"a":[1,"]"]}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":70,"cache_creation_input_tokens":8,"cache_read_input_tokens":64,"cache_creation":{"ephemeral_5m_input_tokens":8,"ephemeral_1h_input_tokens":0},"output_tokens":12,"service_tier":"standard","server_tool_use":{"web_search_requests":1}}}"#;

const CHUNKS: &[&str] = &[
    r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
    r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a"}}]}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"reasoning_content":"so"},"token_ids":[1,2]}]}"#,
    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":12,"total_tokens":82}}"#,
];

/// Every prefix of a text, and every change of a single byte.
fn broken(text: &str) -> impl Iterator<Item = Vec<u8>> {
    let bytes = text.as_bytes();
    let changed = (0..bytes.len()).flat_map(move |at| {
        let others =
            [b'"', b'{', b'}', b'[', b']', b',', b':', b'\\', b' ', b'\n', b'0', b'n', 0, 0x80, 0xff];
        others.map(|other| [&bytes[..at], &[other], &bytes[at + 1..]].concat())
    });
    (0..bytes.len()).map(move |end| bytes[..end].to_vec()).chain(changed)
}

#[test]
fn the_usual_answers_are_weighed_and_none_that_is_cut_or_changed_passes_for_one() {
    let completion = r#"{"choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    for body in [WHOLE, completion] {
        assert!(usual::whole(body.as_bytes()).is_some(), "{body}");
        broken(body).for_each(|body| same_whole(&body, 1).unwrap());
    }
    for chunk in CHUNKS {
        assert!(usual::chunk(chunk.as_bytes()).is_some(), "{chunk}");
        broken(chunk).for_each(|chunk| same_chunk(&chunk, 1, &[]).unwrap());
    }
    assert!(usual_message::message(MESSAGE.as_bytes()).is_some());
    broken(MESSAGE).for_each(|body| same_message(&body).unwrap());
}

/// The fields of an answer, each with a usual value.
const FIELDS: &[(&str, &str)] = &[
    ("id", "\"c\""),
    ("model", "\"m\""),
    ("object", "\"chat.completion\""),
    ("service_tier", "\"flex\""),
    ("error", "null"),
    ("index", "0"),
    ("content", "\"hello\""),
    ("reasoning_content", "\"so\""),
    ("reasoning", "\"so it is\""),
    ("reasoning_details", "[]"),
    ("refusal", "null"),
    ("function_call", "null"),
    ("name", "\"f\""),
    ("arguments", "\"{}\""),
    ("other", "null"),
    ("text", "null"),
    ("finish_reason", "\"stop\""),
    ("stop_reason", "\"A\""),
    ("matched_stop", "\"B\""),
    ("token_ids", "null"),
    ("logprobs", "null"),
    ("prompt_tokens", "70"),
    ("completion_tokens", "12"),
    ("total_tokens", "82"),
    ("cached_tokens", "7"),
    ("cache_write_tokens", "5"),
    ("audio_tokens", "3"),
    ("reasoning_tokens", "2"),
];

/// An answer with its message in the field `said` and with these values for [`FIELDS`].
fn answer(said: &str, value: impl Fn(&str) -> &'static str) -> String {
    let of = |names: &[&str]| {
        names.iter().map(|name| format!("\"{name}\":{}", value(name))).collect::<Vec<_>>().join(",")
    };
    let other = if said == "delta" { "message" } else { "delta" };
    format!(
        r#"{{{},"choices":[{{{},"{said}":{{{},"tool_calls":[{{"function":{{{}}}}}]}},"{other}":{}}}],"usage":{{{},"prompt_tokens_details":{{{}}},"completion_tokens_details":{{{}}}}}}}"#,
        of(&["id", "model", "object", "service_tier", "error"]),
        of(&["index", "text", "finish_reason", "stop_reason", "matched_stop", "token_ids", "logprobs"]),
        of(&["content", "reasoning_content", "reasoning", "reasoning_details", "refusal", "function_call"]),
        of(&["name", "arguments"]),
        value("other"),
        of(&["prompt_tokens", "completion_tokens", "total_tokens"]),
        of(&["cached_tokens", "cache_write_tokens", "audio_tokens"]),
        of(&["reasoning_tokens"]),
    )
}

#[test]
fn whatever_stands_in_a_field_weighs_what_it_is_read_as() {
    let usual = |name: &str| FIELDS.iter().find(|(field, _)| *field == name).unwrap().1;
    assert!(usual::whole(answer("message", usual).as_bytes()).is_some());
    assert!(usual::chunk(answer("delta", usual).as_bytes()).is_some());
    for (field, _) in FIELDS {
        for odd in ODD.iter().chain(TEXTS).chain(COUNTS) {
            let value = |name: &str| if name == *field { *odd } else { usual(name) };
            same_whole(answer("message", value).as_bytes(), 1).unwrap();
            for before in BEFORE {
                same_chunk(answer("delta", value).as_bytes(), 1, before).unwrap();
            }
        }
    }
}
