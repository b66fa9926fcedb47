//! Positions of messages, tools and calls in a prompt. The tests change them one character at a time, and check where
//! the prompt changes.

use std::ops::Range;

use headrace_domain::{Conversation, Message, Role, Tool, ToolCall};
use headrace_prompt::{ChatTemplate, PromptPart, RenderOptions};
use serde_json::{Value, json};

use crate::support::{compile, data, demo_template, options};

fn conversation(texts: &[(Role, &str)]) -> Conversation {
    let messages = texts.iter().map(|(role, text)| Message::text(*role, *text)).collect();
    Conversation { messages, tools: Vec::new(), ..Conversation::default() }
}

/// Returns the positions of the messages' texts.
fn messages_in(
    template: &ChatTemplate,
    whole: &Conversation,
    options: &RenderOptions<'_>,
    text: &str,
) -> Vec<Option<Range<usize>>> {
    let mut messages = vec![None; whole.messages.len()];
    for place in template.places(whole, options, text) {
        if let PromptPart::Message(at) = place.part {
            assert_eq!(messages[at].replace(place.range), None, "each once");
        }
    }
    messages
}

fn templates() -> Vec<(String, ChatTemplate)> {
    let oracle: Value = serde_json::from_slice(&data("templates.json")).unwrap();
    let mut templates = vec![("demo".to_owned(), demo_template())];
    for (name, source) in oracle["templates"].as_object().unwrap() {
        let markup = ["<|im_start|>", "<|eot_id|>", "[INST]"];
        templates.push((name.clone(), compile(source.as_str().unwrap(), &markup)));
    }
    templates
}

#[test]
fn places_are_where_changed_messages_change_the_prompt() {
    let templates = templates();
    use Role::{Assistant, System, User};
    // Words that also occur in templates, repeated texts, white space around texts, masked characters, and the marks
    // themselves.
    for texts in [
        &[(User, "user")][..],
        &[(System, "s"), (User, "u"), (Assistant, "a"), (User, "\n"), (Assistant, "b"), (User, "user")],
        &[
            (System, "system"),
            (User, "e"),
            (Assistant, "e"),
            (User, "assistant"),
            (Assistant, "e"),
            (User, "e"),
        ],
        &[
            (User, "  head  \n"),
            (Assistant, " er "),
            (User, "<|im_start|>user"),
            (Assistant, "<"),
            (User, "[INST]"),
        ],
        &[(User, "I"), (Assistant, "\u{10f000}\u{10f001}I\u{10f002}"), (User, "\u{10f003} INST \u{10f004}")],
    ] {
        let whole = conversation(texts);
        for (name, template) in &templates {
            for options in [options(true), options(false)] {
                let render = |conversation: &Conversation| {
                    template.render(conversation, &options).unwrap().text().to_owned()
                };
                let text = render(&whole);
                let places = messages_in(template, &whole, &options, &text);
                for (index, (place, (_, content))) in places.into_iter().zip(texts).enumerate() {
                    assert_eq!(place.is_some(), !content.trim().is_empty(), "{name} {texts:?} {index}");
                    let Some(place) = place else { continue };
                    let shown = &text[place.clone()];
                    assert_eq!(shown.trim(), content.trim(), "{name} {texts:?} {index}");
                    // The longest text at which changes at both ends show: the message's own text, or that text without
                    // its white space.
                    let with = |content: String| {
                        let mut changed = whole.clone();
                        changed.messages[index].content = Some(content);
                        render(&changed)
                    };
                    let first = with(format!("~{shown}"));
                    let start = first.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
                    let last = with(format!("{shown}~"));
                    let end = last.bytes().rev().zip(text.bytes().rev()).take_while(|(a, b)| a == b).count();
                    assert_eq!(
                        (start, text.len() - end),
                        (place.start, place.end),
                        "{name} {texts:?} {index}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_a_template_leaves_out_or_changes_has_no_place_and_neither_has_what_follows() {
    use Role::{Assistant, System, User};
    let whole = conversation(&[(System, "s"), (User, "one"), (Assistant, "two"), (User, "three")]);
    let each = "{% for message in messages %}<{{ message.content }}>{% endfor %}";
    for (source, expected) in [
        (each, [Some(1..2), Some(4..7), Some(9..12), Some(14..19)]),
        (
            "{% for message in messages[1:] %}<{{ message.content }}>{% endfor %}",
            [None, Some(1..4), Some(6..9), Some(11..16)],
        ),
        (
            "{{ messages[1].content }} {% for message in messages %}<{{ message.content }}>{% endfor %}",
            [Some(5..6), Some(0..3), Some(13..16), Some(18..23)],
        ),
        ("{% for message in messages %}<{{ message.content[:2] }}>{% endfor %}", [None, None, None, None]),
        (
            "{% for message in messages %}<{{ message.content | length }}{{ message.content }}>{% endfor %}",
            [None, None, None, None],
        ),
    ] {
        let template = compile(source, &[]);
        let text = template.render(&whole, &options(true)).unwrap().text().to_owned();
        assert_eq!(messages_in(&template, &whole, &options(true), &text), expected, "{source} {text}");
    }
    // A different text has no positions.
    let template = compile(each, &[]);
    assert_eq!(template.places(&whole, &options(true), "[s]"), []);
}

/// Changes every string and number of a tool or a call. The prompt must change only within the range of that part.
#[test]
fn a_tool_and_a_call_stand_where_changing_them_changes_the_prompt() {
    let tool = |name: &str, about: &str| {
        let city = json!({"type": "string", "maxLength": 7});
        let parameters = json!({"type": "object", "properties": {"city": city}, "required": ["city"]});
        Tool::function(name, Some(about.to_owned()), Some(parameters))
    };
    let call = |name: &str| ToolCall {
        id: "call_abcdefg".to_owned(),
        name: name.to_owned(),
        arguments: r#"{"city": "Oslo {"}"#.to_owned(),
    };
    let mut whole =
        conversation(&[(Role::System, "Be kind."), (Role::User, "weather?"), (Role::User, "now!")]);
    whole.tools = vec![tool("weather", "Tells {the} weather, \"now\"."), tool("clock", "Tells the time.")];
    let calls = vec![call("weather")];
    whole
        .messages
        .insert(2, Message { content: None, tool_calls: calls, ..Message::text(Role::Assistant, "") });
    let result =
        Message { tool_call_id: Some("call_abcdefg".to_owned()), ..Message::text(Role::Tool, "rain") };
    whole.messages.insert(3, result);
    let mut told = (0, 0);
    for (name, template) in templates() {
        let render = |conversation: &Conversation| {
            template.render(conversation, &options(true)).map(|rendered| rendered.text().to_owned())
        };
        let Ok(text) = render(&whole) else { continue };
        let places = template.places(&whole, &options(true), &text);
        let range_of = |part| places.iter().find(|place| place.part == part).map(|place| place.range.clone());
        let check = |part: PromptPart, changed: Conversation, counter: &mut u32| {
            let Some(range) = range_of(part) else { return };
            let changed = render(&changed).unwrap();
            if changed == text {
                return; // The template does not show it.
            }
            let start = changed.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
            assert!(range.contains(&start), "{name}: {part:?} at {range:?}, changed at {start} of {text}");
            *counter += 1;
        };
        for at in 0..2 {
            for change in 0..3 {
                let mut changed = whole.clone();
                let tool = &mut changed.tools[at];
                match change {
                    0 => tool.name.replace_range(1..2, "#"),
                    1 => tool.description.as_mut().unwrap().insert(1, '#'),
                    _ => tool.parameters.as_mut().unwrap()["properties"]["city"]["maxLength"] = 8.into(),
                }
                check(PromptPart::Tool(at), changed, &mut told.0);
            }
        }
        for change in 0..2 {
            let mut changed = whole.clone();
            let call = &mut changed.messages[2].tool_calls[0];
            match change {
                0 => call.name.replace_range(1..2, "#"),
                _ => call.arguments = call.arguments.replace("Oslo", "Osla"),
            }
            check(PromptPart::Call { message: 2, call: 0 }, changed, &mut told.1);
        }
    }
    assert!(told.0 >= 6 && told.1 >= 2, "the demo model's template shows tools and calls: {told:?}");
}
