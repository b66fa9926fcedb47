//! Where messages stand in a prompt: told by rendering them changed, one character at a time, and looking where the prompt
//! changes.

use headrace_domain::{Conversation, Message, Role, ToolChoice};
use serde_json::Value;

use crate::support::{compile, data, demo_template, options};

fn conversation(texts: &[(Role, &str)]) -> Conversation {
    let messages = texts.iter().map(|(role, text)| Message::text(*role, *text)).collect();
    Conversation { messages, tools: Vec::new(), tool_choice: ToolChoice::Auto }
}

#[test]
fn places_are_where_changed_messages_change_the_prompt() {
    let oracle: Value = serde_json::from_slice(&data("templates.json")).unwrap();
    let mut templates = vec![("demo", demo_template())];
    for (name, source) in oracle["templates"].as_object().unwrap() {
        templates.push((name, compile(source.as_str().unwrap(), &["<|im_start|>", "<|eot_id|>", "[INST]"])));
    }
    use Role::{Assistant, System, User};
    // Words that stand in templates too, the same text twice, white space around it, what is masked, and marks themselves.
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
                let places = template.places(&whole, &options, &text);
                assert_eq!(places.len(), texts.len());
                for (index, (place, (_, content))) in places.into_iter().zip(texts).enumerate() {
                    assert_eq!(place.is_some(), !content.trim().is_empty(), "{name} {texts:?} {index}");
                    let Some(place) = place else { continue };
                    let shown = &text[place.clone()];
                    assert_eq!(shown.trim(), content.trim(), "{name} {texts:?} {index}");
                    // The longest text with which both ends show: of the message's own, or of it without its white space.
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
        assert_eq!(template.places(&whole, &options(true), &text), expected, "{source} {text}");
    }
    // Of another text: nothing.
    let template = compile(each, &[]);
    assert_eq!(template.places(&whole, &options(true), "[s]"), [None, None, None, None]);
}
