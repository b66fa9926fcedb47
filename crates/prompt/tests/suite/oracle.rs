//! Compares renderings with those recorded from transformers, and the demo model's prompts down to the ids.

use headrace_domain::{Conversation, Message, Role, Tool, ToolCall};
use headrace_prompt::TemplateError;
use headrace_tokenizer::Segment;
use serde_json::{Value, json};

use crate::support::{compile, data, demo_template, demo_tokenizer, options};

/// Control tokens of well-known models. Masking them must not change the rendered text.
const MARKUP: [&[&str]; 3] = [
    &[],
    &[
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    ],
    &[
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        "<|eot_id|>",
        "<|start_header_id|>",
    ],
];

#[test]
fn renderings_are_those_of_transformers() {
    let oracle: Value = serde_json::from_slice(&data("templates.json")).unwrap();
    let mut count = 0;
    for (name, source) in oracle["templates"].as_object().unwrap() {
        for markup in MARKUP {
            let template = compile(source.as_str().unwrap(), markup);
            for (conversation, expected) in oracle["expected"][name].as_object().unwrap() {
                let given = &oracle["conversations"][conversation];
                let mut extra = given.get("kw").cloned().unwrap_or_else(|| json!({}));
                if given["cont"] == true {
                    extra["continue_final_message"] = json!(true);
                }
                let options = options(given.get("gen") != Some(&json!(false)));
                let got = template.render_values(&given["m"], given.get("tools"), &extra, &options);
                let wants_text: Vec<&Value> =
                    ["text", "raw_text"].iter().filter_map(|key| expected.get(key)).collect();
                let wants_error = ["error", "raw_error"].iter().any(|key| expected.get(key).is_some());
                let right = match &got {
                    Ok(rendered) => wants_text.iter().any(|text| *text == rendered.text()),
                    Err(_) => wants_error,
                };
                assert!(right, "{name} {conversation} {markup:?}\n got {got:?}\nwant {expected}");
                if let (Err(TemplateError::Raised { message, .. }), Some(wanted)) =
                    (&got, expected.get("message"))
                {
                    assert_eq!(message, wanted.as_str().unwrap(), "{name} {conversation}");
                }
                if let Ok(rendered) = &got {
                    let joined: String = rendered.segments().iter().map(Segment::text).collect();
                    assert_eq!(joined, rendered.text());
                }
                count += 1;
            }
        }
    }
    assert_eq!(count, 4 * 44 * 3);
}

fn conversation(case: &Value) -> Conversation {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let messages = case["messages"].as_array().unwrap().iter().map(|message| {
        let role = match message["role"].as_str().unwrap() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => Role::Tool,
        };
        let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| ToolCall {
            id: text(&call["id"]).unwrap_or_default(),
            name: text(&call["function"]["name"]).unwrap(),
            arguments: text(&call["function"]["arguments"])
                .unwrap_or_else(|| call["function"]["arguments"].to_string()),
        });
        Message { content: text(&message["content"]), tool_calls: calls.collect(), ..Message::text(role, "") }
    });
    let tools = case["tools"].as_array().into_iter().flatten().map(|tool| {
        let function = &tool["function"];
        let (name, description) = (text(&function["name"]).unwrap(), text(&function["description"]));
        Tool::function(name, description, function.get("parameters").cloned())
    });
    Conversation { messages: messages.collect(), tools: tools.collect(), ..Conversation::default() }
}

#[test]
fn demo_prompts_are_those_of_transformers_to_the_id() {
    let (template, tokenizer) = (demo_template(), demo_tokenizer());
    let cases: Vec<Value> = serde_json::from_slice(&data("demo-conversations.json")).unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let rendered = template.render(&conversation(&case), &options(true)).unwrap();
        assert_eq!(rendered.text(), case["rendered"], "{case}");
        let ids = tokenizer.encode_segments(&rendered.segments(), false).unwrap();
        assert_eq!(json!(ids), case["ids"], "{case}");
        assert_eq!(ids, tokenizer.encode(rendered.text(), false).unwrap());
    }
}

#[test]
fn demo_tool_turns() {
    let template = demo_template();
    let call = |arguments: &str| ToolCall {
        id: "call_1".to_owned(),
        name: "get_weather".to_owned(),
        arguments: arguments.to_owned(),
    };
    let mut conversation = Conversation {
        messages: vec![
            Message::text(Role::User, "Weather?"),
            Message {
                content: None,
                tool_calls: vec![call(r#"{"city":"Lisbon","n":[1,2.0]}"#)],
                ..Message::text(Role::Assistant, "")
            },
            Message { tool_call_id: Some("call_1".to_owned()), ..Message::text(Role::Tool, "22") },
        ],
        tools: vec![Tool::function("get_weather", None, None)],
        ..Conversation::default()
    };
    let text = template.render(&conversation, &options(true)).unwrap().into_text();
    let tools = "<|im_start|>system\n# Tools\n{\"name\": \"get_weather\", \"arguments\": {}} <|im_end|>\n";
    let rest = "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n\
        {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lisbon\", \"n\": [1, 2.0]}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\n22\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text, format!("{tools}{rest}"));
    // Tools that must not be called are not offered.
    conversation.tool_choice = headrace_domain::ToolChoice::None;
    assert_eq!(template.render(&conversation, &options(true)).unwrap().text(), rest);
    // Arguments that are not a JSON object are shown unchanged.
    conversation.messages[1].tool_calls = vec![call("{broken")];
    let text = template.render(&conversation, &options(true)).unwrap().into_text();
    assert!(text.contains("\"arguments\": {broken}\n</tool_call>"), "{text}");
}

#[test]
fn answers_are_continued_where_they_end() {
    let template = demo_template();
    let conversation = Conversation {
        messages: vec![Message::text(Role::User, "Count"), Message::text(Role::Assistant, "One, two, ")],
        ..Conversation::default()
    };
    let text = template.render_to_continue(&conversation, &options(true)).unwrap().into_text();
    assert_eq!(text, "<|im_start|>user\nCount<|im_end|>\n<|im_start|>assistant\nOne, two, ");
    let hidden = compile("{{ messages[0].content }}", &[]);
    let error = hidden.render_to_continue(&conversation, &options(true)).unwrap_err();
    assert!(matches!(error, TemplateError::Render { .. }), "{error}");
}
