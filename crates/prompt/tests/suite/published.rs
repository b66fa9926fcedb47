//! Replies and expected results from another parser's own tests (`extract_tool_parser.py` extracted them from the crate
//! `tool-parser`).

use std::sync::Arc;

use headrace_domain::{Conversation, FinishReason, Tool};
use headrace_prompt::{OfferedTools, ReplyFamily, ReplyForm, ReplyStyle};
use serde_json::Value;

use crate::families::read;
use crate::support::data;

/// The cases in which we read a reply differently, with the reason.
const OTHERWISE: [(&str, &str); 8] = [
    ("json::test_json_array_of_tools", "JSON in the middle of a line is text"),
    ("json::test_json_extraction_from_text", "JSON in the middle of a line is text"),
    ("minimax_m2::test_minimax_nested_json_in_parameters", "without a schema a list is a list"),
    (
        "minimax_m2::test_minimax_xml_entities",
        "templates write values as they are, so entities are the value's own",
    ),
    (
        "minimax_m2::test_minimax_incomplete_tool_call",
        "a model that stops behind its arguments has said them",
    ),
    ("qwen_xml::test_qwen_xml_whitespace_handling", "white space of a value is the value's own"),
    ("qwen_xml::test_qwen_xml_incomplete_tool_call", "a model that stops behind its arguments has said them"),
    ("qwen_xml::test_qwen_xml_empty_parameter_value", "white space of a value is the value's own"),
];

#[test]
fn what_another_parser_expects_is_read() {
    let table: Value = serde_json::from_slice(&data("tool-parser.json")).unwrap();
    let mut differ = Vec::new();
    for row in table["rows"].as_array().unwrap() {
        let test = row["test"].as_str().unwrap();
        let names: Vec<&str> = row["names"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        // That parser accepts calls of any name.
        let word = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        let text = row["text"].as_str().unwrap();
        let named = text.split(word).filter(|name| !name.is_empty()).chain(names.iter().copied());
        let tools =
            named.map(|name| Tool::function(name.trim_start_matches("functions."), None, None)).collect();
        let offered = OfferedTools::of(&Conversation { tools, ..Conversation::default() });
        let style = ReplyStyle {
            family: ReplyFamily::named(row["family"].as_str().unwrap()).unwrap(),
            thought: None,
        };
        let form = ReplyForm { style, offered: Arc::new(offered), ..ReplyForm::default() };
        let read = read(&form, &[text], &FinishReason::Stop);
        let arguments: Vec<Value> =
            read.calls.iter().map(|(_, arguments, _)| serde_json::from_str(arguments).unwrap()).collect();
        let fits = read.calls.len() as u64 == row["calls"].as_u64().unwrap()
            && read.calls.iter().zip(&names).all(|((name, _, _), expected)| name == expected)
            && row["arguments"].as_object().unwrap().iter().all(|(key, value)| arguments[0][key] == *value);
        if fits == OTHERWISE.iter().any(|(known, _)| *known == test) {
            differ.push(format!(
                "{test}: {} {names:?} {}\n  {:?}\n  {text:?}",
                row["calls"], row["arguments"], read.calls
            ));
        }
    }
    assert!(differ.is_empty(), "{}\n{}", differ.len(), differ.join("\n"));
}
