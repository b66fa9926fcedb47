//! Templates of models for text and images, which read contents as lists of parts. transformers rendered the expected
//! prompts (`data/record_parts.py`).

use headrace_domain::{Conversation, Message, Role};
use headrace_tokenizer::Segment;
use serde_json::Value;

use crate::support::{compile, data, options};

const MARKUP: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<end_of_utterance>"];

fn conversation(turns: &Value) -> Conversation {
    let message = |turn: &Value| {
        let role = match turn[0].as_str().unwrap() {
            "system" => Role::System,
            "assistant" => Role::Assistant,
            _ => Role::User,
        };
        Message::text(role, turn[1].as_str().unwrap())
    };
    Conversation {
        messages: turns.as_array().unwrap().iter().map(message).collect(),
        ..Conversation::default()
    }
}

#[test]
fn texts_reach_templates_that_read_parts() {
    let rows: Vec<Value> = serde_json::from_slice(&data("parts.json")).unwrap();
    for row in &rows {
        let template = compile(row["template"].as_str().unwrap(), &MARKUP);
        let conversation = conversation(&row["messages"]);
        let rendered = template.render(&conversation, &options(true)).unwrap();
        assert_eq!(rendered.text(), row["prompt"], "{row:#}");
        // The mark that a message spells out stays text.
        let marks = |text: &str| text.matches("<end_of_utterance>").count();
        let spelt: usize =
            conversation.messages.iter().filter_map(|message| message.content.as_deref()).map(marks).sum();
        let trusted =
            rendered.segments().into_iter().filter(|segment| matches!(segment, Segment::Trusted(_)));
        let written: usize = trusted.map(|segment| marks(segment.text())).sum();
        assert_eq!(written + spelt, marks(rendered.text()), "{row:#}");
    }
    assert_eq!(rows.len(), 6);
}

#[test]
fn an_answer_is_continued_in_a_template_that_reads_parts() {
    let rows: Vec<Value> = serde_json::from_slice(&data("parts.json")).unwrap();
    let template = compile(rows[0]["template"].as_str().unwrap(), &MARKUP);
    let messages = vec![Message::text(Role::User, "Hello"), Message::text(Role::Assistant, "Well")];
    let conversation = Conversation { messages, ..Conversation::default() };
    let rendered = template.render_to_continue(&conversation, &options(true)).unwrap();
    assert_eq!(rendered.text(), "<|im_start|>User: Hello<end_of_utterance>\nAssistant: Well");
}
