//! Tables of response formats and other options for an answer, in every spelling of every dialect.

use std::sync::Arc;

use headrace_domain::{
    Call, Conversation, CustomInput, Endpoint, FormTag, GrammarSyntax, JsonForm, Prompt, ReasoningOptions,
    ResponseFormat, TaggedForm, ToolChoice,
};
use serde_json::{Value, json};

use crate::fault::BadRequest;
use crate::limits::WireLimits;
use crate::request::parse;

fn read(endpoint: Endpoint, more: &Value) -> Result<Call, BadRequest> {
    let mut body = match endpoint {
        Endpoint::Completions => json!({"model": "demo", "prompt": "hi"}),
        _ => json!({"model": "demo", "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]}),
    };
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    parse(endpoint, body.to_string().as_bytes(), &WireLimits::default())
}

fn chat(more: &Value) -> Result<Call, BadRequest> {
    read(Endpoint::ChatCompletions, more)
}

fn conversation(call: &Call) -> &Conversation {
    match &call.prompt {
        Prompt::Conversation(conversation) => conversation,
        Prompt::Raw(_) | Prompt::Encode(_) | Prompt::Relayed(_) => panic!("a conversation"),
    }
}

fn json_form(schema: Value) -> JsonForm {
    JsonForm { name: None, schema, strict: false, compact: false, white_space: None }
}

fn unordered() -> Value {
    json!({"required": ["z"], "properties": {"z": {"minimum": 1, "type": "integer"}, "a": {}}, "type": "object"})
}

#[test]
fn formats_of_openai_become_forms() {
    let schema = unordered();
    let named = JsonForm { name: Some("answer".into()), strict: true, ..json_form(schema.clone()) };
    for (format, expected) in [
        (json!({"type": "text"}), None),
        (json!(null), None),
        (json!({"type": "json_object"}), Some(ResponseFormat::JsonObject)),
        (
            json!({"type": "json_object", "schema": schema}),
            Some(ResponseFormat::JsonSchema(json_form(schema.clone()))),
        ),
        (
            json!({"type": "json_schema", "json_schema": {"name": "answer", "description": "d", "strict": true, "schema": schema}}),
            Some(ResponseFormat::JsonSchema(named.clone())),
        ),
        (
            json!({"json_schema": {"schema": schema, "strict": null, "name": "answer"}, "type": "json_schema"}),
            Some(ResponseFormat::JsonSchema(JsonForm { strict: false, ..named })),
        ),
    ] {
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Completions] {
            let call = read(endpoint, &json!({"response_format": format})).unwrap();
            assert_eq!(call.form, expected.clone().map(Arc::new), "{format}");
            // The answer's keys follow this order, so no key may move.
            if let Some(ResponseFormat::JsonSchema(form)) = call.form.as_deref() {
                assert_eq!(form.schema.to_string(), schema.to_string());
            }
        }
    }
}

#[test]
fn structured_outputs_become_forms() {
    let schema = unordered();
    let tags = json!({"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]});
    let newer = json!({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [
        {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": {}}, "end": "</f>"}]}});
    let tagged = ResponseFormat::Tags(TaggedForm {
        tags: vec![FormTag { begin: "<f>".into(), schema: json!({}), end: "</f>".into() }],
        triggers: vec!["<f".into()],
    });
    let closed = json!({"type": "object", "properties": {
        "properties": {"type": "object", "properties": {}}, "open": {"properties": {}, "additionalProperties": true}}});
    for (outputs, expected) in [
        (json!({"json": schema}), ResponseFormat::JsonSchema(json_form(schema.clone()))),
        (
            json!({"json": schema.to_string(), "regex": null}),
            ResponseFormat::JsonSchema(json_form(schema.clone())),
        ),
        (json!({"regex": "a+"}), ResponseFormat::Regex("a+".into())),
        (json!({"choice": ["a", "b"]}), ResponseFormat::Choice(vec!["a".into(), "b".into()])),
        (
            json!({"grammar": "root ::= \"a\""}),
            ResponseFormat::Grammar { text: "root ::= \"a\"".into(), syntax: GrammarSyntax::Either },
        ),
        (json!({"json_object": true}), ResponseFormat::JsonObject),
        (json!({"json_object": false, "regex": "x"}), ResponseFormat::Regex("x".into())),
        (json!({"structural_tag": tags}), tagged.clone()),
        (json!({"structural_tag": tags.to_string()}), tagged.clone()),
        (json!({"structural_tag": newer}), tagged.clone()),
        (
            json!({"json": {"type": "array"}, "disable_any_whitespace": true, "whitespace_pattern": " ?"}),
            ResponseFormat::JsonSchema(JsonForm {
                compact: true,
                white_space: Some(" ?".into()),
                ..json_form(json!({"type": "array"}))
            }),
        ),
        (
            json!({"json_object": true, "disable_any_whitespace": true}),
            ResponseFormat::JsonSchema(JsonForm { compact: true, ..json_form(json!({"type": "object"})) }),
        ),
        (
            json!({"json": closed, "disable_additional_properties": true}),
            ResponseFormat::JsonSchema(json_form(json!({"type": "object", "properties": {
                "properties": {"type": "object", "properties": {}, "additionalProperties": false},
                "open": {"properties": {}, "additionalProperties": true}}, "additionalProperties": false}))),
        ),
    ] {
        let call = chat(&json!({"structured_outputs": outputs})).unwrap();
        assert_eq!(call.form, Some(Arc::new(expected)), "{outputs}");
    }
    let call = chat(&json!({"response_format": tags})).unwrap();
    assert_eq!(call.form, Some(Arc::new(tagged)));
}

#[test]
fn bad_forms_are_placed() {
    let format = |format: Value| json!({"response_format": format});
    let outputs = |outputs: Value| json!({"structured_outputs": outputs});
    let long = "x".repeat(131_073);
    let tag = json!({"begin": "<f>", "schema": {}, "end": "x"});
    for (more, param, code) in [
        (format(json!({})), "response_format.type", "missing_required_parameter"),
        (format(json!("json")), "response_format", "invalid_type"),
        (format(json!({"type": "xml"})), "response_format.type", "invalid_value"),
        (format(json!({"type": "text", "x": 1})), "response_format.x", "unknown_parameter"),
        (format(json!({"type": "json_schema"})), "response_format.json_schema", "missing_required_parameter"),
        (
            format(json!({"type": "text", "json_schema": {"name": "n", "schema": {}}})),
            "response_format.json_schema",
            "invalid_value",
        ),
        (format(json!({"type": "text", "schema": {}})), "response_format.schema", "invalid_value"),
        (
            format(json!({"type": "json_schema", "json_schema": {"schema": {}}})),
            "response_format.json_schema.name",
            "missing_required_parameter",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}})),
            "response_format.json_schema.name",
            "invalid_value",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "n"}})),
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (
            format(json!({"type": "json_schema", "json_schema": {"name": "n", "schema": []}})),
            "response_format.json_schema.schema",
            "invalid_type",
        ),
        (
            format(json!({"type": "structural_tag", "structures": [tag], "triggers": ["<g"]})),
            "response_format.structures[0]",
            "invalid_value",
        ),
        (
            format(json!({"type": "structural_tag", "structures": [tag]})),
            "response_format.triggers",
            "missing_required_parameter",
        ),
        (outputs(json!({})), "structured_outputs", "invalid_value"),
        (outputs(json!({"json_object": false})), "structured_outputs", "invalid_value"),
        (outputs(json!({"regex": "a", "choice": ["a"]})), "structured_outputs", "invalid_value"),
        (outputs(json!({"json": "{\"a\":"})), "structured_outputs.json", "invalid_value"),
        (outputs(json!({"json": 5})), "structured_outputs.json", "invalid_type"),
        (outputs(json!({"regex": ""})), "structured_outputs.regex", "empty_string"),
        (outputs(json!({"grammar": long})), "structured_outputs.grammar", "string_above_max_length"),
        (outputs(json!({"choice": []})), "structured_outputs.choice", "empty_array"),
        (outputs(json!({"choice": [1]})), "structured_outputs.choice[0]", "invalid_type"),
        (outputs(json!({"choice": vec!["a"; 4097]})), "structured_outputs.choice", "array_above_max_length"),
        (
            outputs(json!({"regex": "a", "disable_any_whitespace": true})),
            "structured_outputs",
            "invalid_value",
        ),
        (outputs(json!({"backend": "x"})), "structured_outputs.backend", "unknown_parameter"),
        (
            outputs(json!({"structural_tag": {"format": {"type": "sequence"}}})),
            "structured_outputs.structural_tag.format.type",
            "unsupported_value",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "response_format",
            "invalid_value",
        ),
        (json!({"guided_regex": "a"}), "guided_regex", "unsupported_parameter"),
    ] {
        let bad = chat(&more).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{bad}");
    }
}

#[test]
fn anthropics_formats_become_forms() {
    let schema = unordered();
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let call = read(Endpoint::Messages, &more).unwrap();
        assert_eq!(call.form, Some(Arc::new(ResponseFormat::JsonSchema(json_form(schema.clone())))));
    }
    for more in [
        json!({"output_config": {}}),
        json!({"output_config": {"format": null}}),
        json!({"output_format": null}),
    ] {
        assert_eq!(read(Endpoint::Messages, &more).unwrap().form, None);
    }
}

#[test]
fn wishes_for_thinking() {
    let wish = |enabled, effort: Option<&str>, budget_tokens, hidden| ReasoningOptions {
        enabled,
        effort: effort.map(str::to_owned),
        budget_tokens,
        hidden,
    };
    for (more, expected) in [
        (json!({"reasoning_effort": null}), wish(None, None, None, false)),
        (json!({"reasoning_effort": "none"}), wish(Some(false), None, None, false)),
        (json!({"reasoning_effort": "minimal"}), wish(Some(true), Some("minimal"), None, false)),
        (json!({"reasoning_effort": "xhigh"}), wish(Some(true), Some("xhigh"), None, false)),
        (json!({"enable_thinking": false}), wish(Some(false), None, None, false)),
        (
            json!({"chat_template_kwargs": {"enable_thinking": false, "x": 1}}),
            wish(Some(false), None, None, false),
        ),
        (json!({"chat_template_kwargs": {"thinking": true}}), wish(Some(true), None, None, false)),
        (json!({"include_reasoning": false, "thinking_token_budget": 0}), wish(None, None, Some(0), true)),
    ] {
        assert_eq!(chat(&more).unwrap().reasoning, expected, "{more}");
    }
    let call = chat(&json!({"chat_template_kwargs": {"b": {"y": 1, "x": null}, "a": "s"}})).unwrap();
    assert_eq!(
        Value::Object(conversation(&call).template.clone()).to_string(),
        r#"{"b":{"y":1,"x":null},"a":"s"}"#
    );
    for (more, expected) in [
        (json!({"thinking": null}), wish(None, None, None, false)),
        (json!({"thinking": {"type": "disabled"}}), wish(Some(false), None, None, false)),
        (json!({"thinking": {"type": "adaptive"}}), wish(None, None, None, false)),
        (json!({"thinking": {"type": "adaptive", "display": "summarized"}}), wish(None, None, None, false)),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}),
            wish(Some(true), None, Some(1024), true),
        ),
        (json!({"output_config": {"effort": "max"}}), wish(None, Some("max"), None, false)),
        (
            json!({"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 2000}}),
            wish(Some(true), Some("low"), Some(2000), false),
        ),
    ] {
        assert_eq!(read(Endpoint::Messages, &more).unwrap().reasoning, expected, "{more}");
    }
}

#[test]
fn tools_that_must_be_called() {
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tools = json!([function("f"), function("g"), {"type": "custom", "custom": {"name": "c"}}]);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (choice, expected) in [
        (json!("auto"), ToolChoice::Auto),
        (json!("none"), ToolChoice::None),
        (json!("required"), ToolChoice::Required),
        (function("g"), ToolChoice::Named("g".into())),
        (json!({"type": "custom", "custom": {"name": "c"}}), ToolChoice::Named("c".into())),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("f")]}}),
            ToolChoice::Allowed { names: names(&["f"]), required: false },
        ),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"tools": [function("g"), {"type": "custom", "name": "c"}], "mode": "required"}}),
            ToolChoice::Allowed { names: names(&["g", "c"]), required: true },
        ),
    ] {
        let call =
            chat(&json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false})).unwrap();
        assert_eq!(conversation(&call).tool_choice, expected);
        assert!(conversation(&call).one_call);
    }
    assert!(!conversation(&chat(&json!({"tools": tools})).unwrap()).one_call);
    let allowed = |inner: Value| json!({"type": "allowed_tools", "allowed_tools": inner});
    for (choice, param, code) in [
        (json!("any"), "tool_choice", "invalid_value"),
        (json!(1), "tool_choice", "invalid_type"),
        (json!({"type": "function"}), "tool_choice.function", "missing_required_parameter"),
        (json!({"function": {"name": "f"}}), "tool_choice.type", "missing_required_parameter"),
        (
            json!({"type": "function", "function": {}}),
            "tool_choice.function.name",
            "missing_required_parameter",
        ),
        (json!({"type": "file_search"}), "tool_choice.type", "invalid_value"),
        (function("h"), "tool_choice", "invalid_value"),
        (allowed(json!({"mode": "auto", "tools": [function("h")]})), "tool_choice", "invalid_value"),
        (allowed(json!({"mode": "auto", "tools": []})), "tool_choice.allowed_tools.tools", "empty_array"),
        (allowed(json!({"mode": "any", "tools": []})), "tool_choice.allowed_tools.mode", "invalid_value"),
    ] {
        let bad = chat(&json!({"tools": tools, "tool_choice": choice})).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{choice}: {bad}");
    }
    let bad = chat(&json!({"tool_choice": "required"})).unwrap_err();
    assert_eq!((bad.param.as_deref(), bad.code.name()), (Some("tool_choice"), "invalid_value"));

    let tools = json!([{"name": "f", "input_schema": {}, "strict": true, "eager_input_streaming": true, "defer_loading": true,
                        "input_examples": [], "allowed_callers": ["direct"]}]);
    for (choice, expected, one_call) in [
        (json!({"type": "auto", "disable_parallel_tool_use": true}), ToolChoice::Auto, true),
        (json!({"type": "any"}), ToolChoice::Required, false),
        (
            json!({"type": "tool", "name": "f", "disable_parallel_tool_use": true}),
            ToolChoice::Named("f".into()),
            true,
        ),
        (json!({"type": "none"}), ToolChoice::None, false),
    ] {
        let call = read(Endpoint::Messages, &json!({"tools": tools, "tool_choice": choice})).unwrap();
        let conversation = conversation(&call);
        assert_eq!((&conversation.tool_choice, conversation.one_call), (&expected, one_call), "{choice}");
        assert!(conversation.tools[0].strict);
    }
}

#[test]
fn custom_tools_are_functions_of_one_text() {
    let tool = |format: Value| json!([{"type": "custom", "custom": {"name": "c", "description": "d", "format": format}}]);
    let lark = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"a\""}});
    let regex = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}});
    let held = |form| Some(CustomInput::Form(Box::new(form)));
    for (format, expected) in [
        (json!(null), Some(CustomInput::Text)),
        (json!({"type": "text"}), Some(CustomInput::Text)),
        (lark, held(ResponseFormat::Grammar { text: "start: \"a\"".into(), syntax: GrammarSyntax::Lark })),
        (regex, held(ResponseFormat::Regex("a+".into()))),
    ] {
        let call = chat(&json!({"tools": tool(format), "messages": [
            {"role": "user", "content": "u"},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "c", "input": "a\n\"b\""}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"}]}))
        .unwrap();
        let conversation = conversation(&call);
        let [tool] = &conversation.tools[..] else { panic!("one tool") };
        assert_eq!(
            (tool.name.as_str(), tool.description.as_deref(), tool.custom.clone()),
            ("c", Some("d"), expected)
        );
        assert_eq!(tool.parameters.as_ref().unwrap()["required"], json!(["input"]));
        assert_eq!(conversation.messages[1].tool_calls[0].arguments, r#"{"input":"a\n\"b\""}"#);
    }
    for (tools, param, code) in [
        (
            tool(json!({"type": "grammar"})),
            "tools[0].custom.format.grammar.definition",
            "missing_required_parameter",
        ),
        (
            tool(json!({"type": "grammar", "grammar": {"syntax": "ebnf"}})),
            "tools[0].custom.format.grammar.syntax",
            "invalid_value",
        ),
        (tool(json!({"type": "json"})), "tools[0].custom.format.type", "invalid_value"),
        (json!([{"type": "custom"}]), "tools[0].custom", "missing_required_parameter"),
        (
            json!([{"type": "custom", "custom": {"name": "c"}, "function": {"name": "f"}}]),
            "tools[0].function",
            "invalid_value",
        ),
    ] {
        let bad = chat(&json!({"tools": tools})).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{tools}: {bad}");
    }
}

#[test]
fn each_result_answers_one_call() {
    let user = json!({"role": "user", "content": "u"});
    let calls = |ids: &[&str]| {
        let call =
            |id: &&str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        json!({"role": "assistant", "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "r"});
    for messages in [
        vec![user.clone(), calls(&["a", "b"]), result("b"), result("a")],
        vec![calls(&["a"]), result("a"), user.clone(), calls(&["a"]), result("a")],
        vec![calls(&["a", "b"]), result("a"), user.clone()],
    ] {
        chat(&json!({"messages": messages})).unwrap();
    }
    for (messages, param) in [
        (vec![user.clone(), result("a")], "messages[1].tool_call_id"),
        (vec![result("a"), calls(&["a"])], "messages[0].tool_call_id"),
        (vec![calls(&["a", "a"])], "messages[0].tool_calls[1].id"),
        (vec![calls(&["a"]), calls(&["b", "a"])], "messages[1].tool_calls[1].id"),
        (vec![calls(&["a"]), result("a"), result("a")], "messages[2].tool_call_id"),
    ] {
        let bad = chat(&json!({"messages": messages})).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), "invalid_value"), "{bad}");
    }
    let used = |id: &str| json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}}]});
    let answered = |id: &str| json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "r"}]});
    for (messages, param) in [
        (vec![answered("a")], "messages[0].content[0].tool_use_id"),
        (vec![user.clone(), used("a"), answered("b")], "messages[2].content[0].tool_use_id"),
        (vec![user, used("a"), answered("a"), used("a"), answered("a")], "messages[3].content[0].id"),
    ] {
        let bad = read(Endpoint::Messages, &json!({"messages": messages})).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), "invalid_value"), "{bad}");
    }
}
