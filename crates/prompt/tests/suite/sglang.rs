//! Difficult replies in each family's form, compared with the results of SGLang's own readers (`record_sglang.py`
//! recorded them).

use std::sync::Arc;

use headrace_domain::{Conversation, FinishReason, Tool};
use headrace_prompt::{OfferedTools, ReplyFamily, ReplyForm, ReplyStyle};
use serde_json::Value;

use crate::families::read;
use crate::support::data;

/// The cases in which we read a reply differently: the family, the reply and the reason.
const OTHERWISE: [(&str, &str, &str); 14] = [
    ("qwen3_coder", "value 11", "the schema says a text, so `null` is one"),
    ("minimax_m2", "value 11", "the schema says a text, so `null` is one"),
    ("glm45", "value 10", "it writes a text as Python writes a truth"),
    ("glm45", "value 11", "it writes a text as Python writes nothing"),
    ("gemma4", "value 23", "it makes a null within a list a text"),
    ("pythonic", "value 15", "it reads no number below zero"),
    ("pythonic", "value 18", "it reads no number below zero"),
    ("pythonic", "words before", "a list in the middle of a line is text"),
    ("pythonic", "three, words before", "a list in the middle of a line is text"),
    ("step3", "value 8", "it reads no `<` within a value"),
    ("mimo", "value 11", "the schema says a text, so `null` is one"),
    ("minimax_m3", "value 23", "it makes a number without a schema a text"),
    ("minimax_m3", "value 26", "it makes a number without a schema a text"),
    ("minimax_m3", "three, words before", "it makes a number without a schema a text"),
];

#[test]
fn what_sglang_reads_is_read() {
    let table: Value = serde_json::from_slice(&data("sglang-replies.json")).unwrap();
    let tools = table["tools"].as_object().unwrap();
    let tools = tools.iter().map(|(name, schema)| Tool::function(name, None, Some(schema.clone()))).collect();
    let offered = Arc::new(OfferedTools::of(&Conversation { tools, ..Conversation::default() }));
    let rows = table["rows"].as_array().unwrap();
    assert!(rows.len() > 700);
    let mut differ = Vec::new();
    for row in rows {
        let field = |name: &str| row[name].as_str().unwrap();
        let family = ReplyFamily::named(field("family")).unwrap();
        let form = ReplyForm {
            style: ReplyStyle { family, thought: None },
            offered: Arc::clone(&offered),
            ..ReplyForm::default()
        };
        let read = read(&form, &[field("text")], &FinishReason::Stop);
        let calls: Vec<Value> = read
            .calls
            .iter()
            .map(|(name, arguments, _)| {
                serde_json::json!([name, serde_json::from_str::<Value>(arguments).unwrap()])
            })
            .collect();
        let same = Value::from(calls.clone()) == row["calls"] && read.text.trim() == field("out").trim();
        let known =
            OTHERWISE.iter().any(|(family, what, _)| *family == field("family") && *what == field("what"));
        if same == known {
            differ.push(format!(
                "{}, {}: {:?}\n  ours   {} {:?}\n  theirs {} {}",
                field("family"),
                field("what"),
                field("text"),
                Value::from(calls),
                read.text,
                row["calls"],
                row["out"]
            ));
        }
    }
    assert!(differ.is_empty(), "{}\n{}", differ.len(), differ.join("\n"));
}
