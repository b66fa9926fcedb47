//! Tests of parsed replies: a table, and the property that cutting the text changes nothing.

use std::sync::Arc;

use headrace_domain::{Conversation, FinishReason, ReplyEvent, TokenLogprob, Tool};
use headrace_prompt::{CallFault, CallIds, OfferedTools, ReplyFamily, ReplyForm, ReplyParser, ReplyStyle};
use proptest::prelude::*;
use serde_json::json;

use crate::support::demo_source;

/// An answer with its events joined.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    text: String,
    /// Text and calls in order: runs of text, then each call's name and arguments.
    order: Vec<(String, Option<String>)>,
    call_ids: Vec<String>,
    ids: Vec<u32>,
    logprobs: usize,
    finish: Option<FinishReason>,
}

/// Three tools, one with a schema.
fn offered() -> Arc<OfferedTools> {
    let tool = |name: &str, parameters| Tool::function(name, None, parameters);
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tools = vec![tool("f", None), tool("fé", None), tool("get_weather", Some(city))];
    Arc::new(OfferedTools::of(&Conversation { tools, ..Conversation::default() }))
}

fn read(family: ReplyFamily, pieces: &[&str], reason: FinishReason) -> Answer {
    let form =
        ReplyForm { style: ReplyStyle { family, thought: None }, offered: offered(), ..ReplyForm::default() };
    let mut parser = ReplyParser::new(&form, 3, CallIds::new(7));
    let mut events = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let id = u32::try_from(at).unwrap();
        let logprob = TokenLogprob { id, bytes: Vec::new(), logprob: Some(-1.0), top: Vec::new() };
        parser.push((*piece).to_owned(), vec![id], vec![logprob], &mut events);
    }
    parser.finish(reason, &mut events);
    let mut answer = Answer::default();
    for event in events {
        assert!(answer.finish.is_none(), "nothing follows the finish");
        match event {
            ReplyEvent::Text { choice: 3, text, ids, logprobs } => {
                answer.text += &text;
                answer.ids.extend(ids);
                answer.logprobs += logprobs.len();
                match answer.order.last_mut() {
                    Some((last, None)) => *last += &text,
                    _ if text.is_empty() => {}
                    _ => answer.order.push((text, None)),
                }
            }
            ReplyEvent::ToolCallStart { choice: 3, index, id, name } => {
                assert_eq!(index as usize, answer.call_ids.len());
                answer.call_ids.push(id);
                answer.order.push((name, Some(String::new())));
            }
            ReplyEvent::ToolCallArguments { choice: 3, index, fragment } => {
                assert_eq!(index as usize + 1, answer.call_ids.len());
                assert!(!fragment.is_empty());
                answer.order.last_mut().unwrap().1.as_mut().unwrap().push_str(&fragment);
            }
            ReplyEvent::Finish { choice: 3, reason } => answer.finish = Some(reason),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(answer.ids, (0..u32::try_from(pieces.len()).unwrap()).collect::<Vec<_>>(), "no id is lost");
    assert_eq!(answer.logprobs, pieces.len());
    answer
}

/// A run of text, or a call with its arguments.
type Item<'a> = (&'a str, Option<&'a str>);

const WEATHER: &str = r#"<tool_call>
{"name": "get_weather", "arguments": {"city": "Lisbon"}}
</tool_call>"#;

fn rows() -> Vec<(String, Vec<Item<'static>>)> {
    let weather: Item<'static> = ("get_weather", Some(r#"{"city": "Lisbon"}"#));
    let call = |json: &str| format!("<tool_call>\n{json}\n</tool_call>");
    vec![
        (String::new(), vec![]),
        ("Hello".into(), vec![("Hello", None)]),
        (" \n".into(), vec![(" \n", None)]),
        ("a\n".into(), vec![("a\n", None)]),
        ("a < b <tool> <tool_cal <<tool".into(), vec![("a < b <tool> <tool_cal <<tool", None)]),
        (WEATHER.into(), vec![weather]),
        (format!("\n{WEATHER}\n"), vec![weather]),
        (format!("Let me look.\n{WEATHER}"), vec![("Let me look.", None), weather]),
        (format!("a\n\n{WEATHER}"), vec![("a\n", None), weather]),
        (format!("a{WEATHER}b"), vec![("a", None), weather, ("b", None)]),
        (format!("{WEATHER}\nDone"), vec![weather, ("\nDone", None)]),
        (format!("{WEATHER}\n{WEATHER}"), vec![weather, weather]),
        (format!("{WEATHER} and {WEATHER}"), vec![weather, (" and ", None), weather]),
        (format!("<<tool_call{WEATHER}"), vec![("<<tool_call", None), weather]),
        (format!("<tool_call>{WEATHER}"), vec![("<tool_call>", None), weather]),
        (call(r#"{"name": "f", "arguments": {}}"#), vec![("f", Some("{}"))]),
        (call(r#"{"name": "f", "arguments": { }}"#), vec![("f", Some("{ }"))]),
        (
            r#"<tool_call>{"name":"f","arguments":{"a":{"b":[{}]}}}</tool_call>"#.into(),
            vec![("f", Some(r#"{"a":{"b":[{}]}}"#))],
        ),
        (
            call(r#"{"name": "f", "arguments": {"a": "}{\"}</tool_call>\\"}}"#),
            vec![("f", Some(r#"{"a": "}{\"}</tool_call>\\"}"#))],
        ),
        (call(r#"{"arguments": {"a": 1}, "name": "f"}"#), vec![("f", Some(r#"{"a": 1}"#))]),
        (
            call("\t{ \"name\" : \"f\\u00e9\" ,\n \"arguments\" : {\"a\":\n1} }  "),
            vec![("fé", Some("{\"a\":\n1}"))],
        ),
        // Arguments as a JSON string, or no arguments.
        (call(r#"{"name": "f", "arguments": "{\"a\": \"\\\"}\"}"}"#), vec![("f", Some(r#"{"a": "\"}"}"#))]),
        (call(r#"{"arguments": "", "name": "f"}"#), vec![("f", Some("{}"))]),
        (call(r#"{"name": "f"}"#), vec![("f", Some("{}"))]),
        (call(r#"{"name": "f", "arguments": null}"#), vec![("f", Some("{}"))]),
        // Several calls in one block.
        (
            call(
                "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}",
            ),
            vec![("f", Some(r#"{"a": 1}"#)), ("f", Some(r#"{"a": 2}"#))],
        ),
        // Accepted: a missing brace, a missing closing mark.
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}\n</tool_call>x".into(),
            vec![("f", Some("{}")), ("x", None)],
        ),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}".into(), vec![("f", Some("{}"))]),
        (
            format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{}}}}\n{WEATHER}"),
            vec![("f", Some("{}")), weather],
        ),
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\ntext".into(),
            vec![("f", Some("{}")), ("\ntext", None)],
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x\": 1}</tool_call>".into(),
            vec![("f", Some("{}")), (", \"x\": 1}</tool_call>", None)],
        ),
    ]
}

/// Texts that look like calls and are not. They are returned unchanged.
const NO_CALLS: [&str; 24] = [
    "<tool_call>",
    "<tool_call>\n{}\n</tool_call>",
    "<tool_call>\nnot json\n</tool_call>",
    "x\n<tool_call>\n{name: 'f'}\n</tool_call>\ny",
    r#"<tool_call>{"arguments": {"a": 1}}</tool_call>"#,
    r#"<tool_call>{"name": "", "arguments": {}}</tool_call>"#,
    r#"<tool_call>{"name": 1, "arguments": {}}</tool_call>"#,
    r#"<tool_call>{"name": "f", "arguments": "[]"}</tool_call>"#,
    r#"<tool_call>{"name": "f", "arguments": "{\"a\": }"}</tool_call>"#,
    r#"<tool_call>{"name": "f", "arguments": nil}</tool_call>"#,
    // Without arguments, the call lacks a property that its schema requires.
    r#"<tool_call>{"name": "get_weather"}</tool_call>"#,
    // Either all objects of a block become calls, or none does.
    r#"<tool_call>{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}</tool_call>"#,
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"f\", \"argu\n</tool_call>",
    r#"<tool_call>{"name": "f", "arguments": {}}{"name": "f", "argum"#,
    r#"<tool_call>{"name": "f", "other": {}}</tool_call>"#,
    r#"<tool_call>{"name": "f\q", "arguments": {}}</tool_call>"#,
    r#"<tool_call>[{"name": "f", "arguments": {}}]</tool_call>"#,
    "\n\n<tool_call>\n{\"name\": \"get_w",
    // Calls that cannot be carried out.
    "Look:\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n",
    r#"<tool_call>{"name": "f", "arguments": {"keywords"}}</tool_call>"#,
    r#"<tool_call>{"arguments": {"city": 1}, "name": "get_weather"}</tool_call>"#,
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>",
    r#"<tool_call>{"name": "f", "arguments": {"a": "b"#,
    r#"<tool_call>{"name": "f", "arguments": {"a": [}]}}</tool_call>"#,
];

#[test]
fn table() {
    for (text, expected) in rows() {
        let answer = read(ReplyFamily::Hermes, &[&text], FinishReason::Stop);
        let order: Vec<Item<'_>> = answer.order.iter().map(|(t, a)| (t.as_str(), a.as_deref())).collect();
        assert_eq!(order, expected, "{text:?}");
        let calls = expected.iter().any(|(_, arguments)| arguments.is_some());
        let finish = if calls { FinishReason::ToolCalls } else { FinishReason::Stop };
        assert_eq!(answer.finish, Some(finish), "{text:?}");
    }
    for text in NO_CALLS {
        let answer = read(ReplyFamily::Hermes, &[text], FinishReason::Stop);
        assert_eq!((answer.text.as_str(), answer.finish), (text, Some(FinishReason::Stop)));
    }
}

#[test]
fn a_call_cut_off_is_text() {
    let whole = WEATHER;
    let known = whole.find("}}").unwrap() + 1;
    for (at, _) in whole.char_indices() {
        let answer = read(ReplyFamily::Hermes, &[&whole[..at]], FinishReason::Length);
        assert_eq!(answer.finish, Some(FinishReason::Length));
        if at >= known {
            let call = ("get_weather".to_owned(), Some(r#"{"city": "Lisbon"}"#.to_owned()));
            assert_eq!((answer.order, answer.text.as_str()), (vec![call], ""));
        } else {
            assert_eq!(answer.text, &whole[..at]);
        }
    }
}

#[test]
fn why_a_call_is_none_is_told() {
    for (text, fault) in [
        (WEATHER.to_owned(), None),
        ("nothing".to_owned(), None),
        (WEATHER.replace("get_weather", "get_time"), Some(CallFault::NotOffered)),
        (WEATHER.replace("city", "town"), Some(CallFault::OffSchema)),
        (WEATHER.replace(": \"Lisbon\"", ""), Some(CallFault::NotJson)),
        (WEATHER[..WEATHER.len() - 20].to_owned(), Some(CallFault::Unfinished)),
        (WEATHER.replace("city", "town") + WEATHER, Some(CallFault::OffSchema)),
    ] {
        let form = ReplyForm {
            style: ReplyStyle { family: ReplyFamily::Hermes, thought: None },
            offered: offered(),
            ..ReplyForm::default()
        };
        let mut parser = ReplyParser::new(&form, 0, CallIds::new(1));
        let mut events = Vec::new();
        parser.push(text.to_owned(), Vec::new(), Vec::new(), &mut events);
        parser.finish(FinishReason::Stop, &mut events);
        assert_eq!(parser.fault(), fault, "{text}");
    }
}

#[test]
fn other_reasons_are_kept() {
    let matched = FinishReason::StopString { matched: "x".to_owned() };
    for reason in [FinishReason::Length, FinishReason::ContentFilter, matched] {
        assert_eq!(read(ReplyFamily::Hermes, &[WEATHER], reason.clone()).finish, Some(reason));
    }
}

#[test]
fn plain_models_make_no_calls() {
    let answer = read(ReplyFamily::Plain, &["\n", WEATHER, "\n"], FinishReason::Stop);
    assert_eq!((answer.text, answer.finish), (format!("\n{WEATHER}\n"), Some(FinishReason::Stop)));
}

#[test]
fn families_are_told_by_their_templates() {
    assert_eq!(ReplyFamily::detect(&demo_source()), ReplyFamily::Hermes);
    assert_eq!(ReplyFamily::detect("{{ messages[0].content }}"), ReplyFamily::Plain);
    // GPT-OSS's published template puts the name together from pieces.
    let published = r#""functions." + tool_call.name + "<|channel|>commentary " + "json<|message|>""#;
    assert_eq!(ReplyFamily::detect(published), ReplyFamily::Harmony);
    assert_eq!(ReplyFamily::detect("<tool_call>\n<function=\"arguments\"></tool_call>"), ReplyFamily::Plain);
}

#[test]
fn call_ids_are_distinct_and_repeat() {
    let ids = CallIds::new(5);
    let mut seen = std::collections::BTreeSet::new();
    for choice in 0..20 {
        for index in 0..20 {
            let id = ids.id(choice, index);
            assert_eq!(id, CallIds::new(5).id(choice, index));
            assert!(id.starts_with("call_") && id.len() == 37);
            assert!(seen.insert(id));
        }
    }
    assert_ne!(CallIds::new(6).id(0, 0), ids.id(0, 0));
}

fn replies() -> impl Strategy<Value = String> {
    let mut parts: Vec<String> = rows().into_iter().map(|(text, _)| text).collect();
    parts.extend(NO_CALLS.map(str::to_owned));
    let small = [
        "<tool_call>",
        "</tool_call>",
        "\n",
        " ",
        "{",
        "}",
        "\"name\"",
        ":",
        "\"f\"",
        "\"arguments\"",
        ",",
        "<",
        "é",
        "\\",
    ];
    parts.extend(small.map(str::to_owned));
    prop::collection::vec(prop::sample::select(parts), 0..6).prop_map(|parts| parts.concat())
}

/// Returns `text` cut at some of its character boundaries.
fn cut<'t>(text: &'t str, cuts: &[bool]) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for ((at, _), cut) in text.char_indices().zip(cuts.iter().cycle()) {
        if *cut {
            pieces.push(&text[from..at]);
            from = at;
        }
    }
    pieces.push(&text[from..]);
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn cutting_changes_nothing(text in replies(), cuts in prop::collection::vec(any::<bool>(), 1..40)) {
        for family in [ReplyFamily::Hermes, ReplyFamily::Plain] {
            let mut whole = read(family, &[&text], FinishReason::Stop);
            let mut pieces = read(family, &cut(&text, &cuts), FinishReason::Stop);
            (whole.ids, whole.logprobs) = (Vec::new(), 0);
            (pieces.ids, pieces.logprobs) = (Vec::new(), 0);
            prop_assert_eq!(pieces, whole);
        }
    }

    /// Everything except the syntax of emitted calls is returned.
    #[test]
    fn nothing_is_lost(text in replies()) {
        let answer = read(ReplyFamily::Hermes, &[&text], FinishReason::Stop);
        if answer.call_ids.is_empty() {
            prop_assert_eq!(answer.text, text);
        } else {
            let mut rest = text.as_str();
            for (piece, arguments) in &answer.order {
                // A call's name may come before or after its arguments, and it may be escaped.
                let (name, part) = arguments.as_ref().map_or((None, piece), |part| (Some(piece), part));
                prop_assert!(name.is_none_or(|name| rest.contains(name.as_str()) || name == "fé"));
                // Arguments may be written as a string with escapes.
                let escaped = serde_json::to_string(part).expect("a text");
                let escaped = escaped.get(1..escaped.len() - 1).expect("quotes");
                // The parser writes empty arguments if the call has none. Such arguments might be found in a later
                // call.
                let supplied = arguments.is_some() && part == "{}";
                let at = rest.find(part.as_str()).or_else(|| rest.find(escaped)).filter(|_| !supplied);
                prop_assert!(at.is_some() || supplied, "{part:?} not in {rest:?}");
                rest = at.and_then(|at| rest.get(at + part.len()..)).unwrap_or(rest);
            }
        }
    }
}
