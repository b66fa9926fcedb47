//! Tables of good and bad Anthropic requests: their meaning, or the exact code and parameter of the refusal.

use headrace_domain::{
    CacheLife, CacheMarkAt, Call, ClearTools, ClearTrigger, Conversation, EndUser, Endpoint, MediaKind,
    MediaSource, Message, Prompt, Role, ToolCall, ToolChoice,
};
use serde_json::{Value, json};

use crate::fault::BadRequest;
use crate::limits::WireLimits;
use crate::request::parse_messages;

fn parse(more: &Value) -> Result<Call, BadRequest> {
    let mut body = json!({"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    parse_messages(body.to_string().as_bytes(), &WireLimits::default())
}

fn conversation(call: Call) -> Conversation {
    match call.prompt {
        Prompt::Conversation(conversation) => conversation,
        Prompt::Raw(_) | Prompt::Encode(_) | Prompt::Relayed(_) => panic!("a conversation"),
    }
}

#[test]
fn every_parameter_is_honoured() {
    let call = parse(&json!({
        "system": [{"type": "text", "text": "be ", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "text", "text": "brief"}],
        "temperature": 1, "top_p": 0.5, "top_k": 4, "stop_sequences": ["x"], "stream": true, "metadata": {"user_id": "u"},
        "service_tier": "auto", "thinking": {"type": "disabled"}, "tool_choice": {"type": "none"}, "seed": 5,
        "headrace": {"explain": true}, "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"properties": {}, "type": "object"}, "type": "custom", "cache_control": null}],
    }))
    .unwrap();
    assert_eq!(call.endpoint, Endpoint::Messages);
    let sampling = &call.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.max_tokens), (Some(1.0), Some(0.5), Some(9)));
    assert_eq!((sampling.stop.clone(), sampling.n, sampling.seed), (vec!["x".to_owned()], 1, Some(5)));
    assert!(call.stream && call.explain);
    assert_eq!(call.user, EndUser::named("u"));
    let conversation = conversation(call);
    assert_eq!(conversation.tool_choice, ToolChoice::None);
    assert_eq!(
        conversation.messages,
        [
            Message { joints: vec![3], ..Message::text(Role::System, "be brief") },
            Message::text(Role::User, "hi")
        ]
    );
    assert_eq!(
        conversation.tools[0].parameters.as_ref().unwrap().to_string(),
        r#"{"type":"object","properties":{}}"#
    );
}

#[test]
fn blocks_become_messages() {
    let call = parse(&json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}}, {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "r1"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "bad"}], "is_error": true},
            {"type": "text", "text": "go on"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t3", "name": "h", "input": {"z": 1.50,  "a": [ ]}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]}))
    .unwrap();
    let failed = json!([{"type": "text", "text": "ba"}, {"type": "text", "text": "d"}]);
    let failed = json!({"messages": [{"role": "assistant", "content": [
        {"type": "text", "text": "o"}, {"type": "text", "text": "k"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": true, "content": failed}]}]});
    let failed = conversation(parse(&failed).unwrap()).messages;
    let parts = |at: usize| failed[at].text_parts().collect::<Vec<_>>();
    assert_eq!((parts(0), parts(1)), (vec!["o", "k"], vec!["Error: ba", "d"]));
    let result =
        |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, text) };
    let expected = [
        Message { joints: vec![1], ..Message::text(Role::User, "ab") },
        Message {
            reasoning: Some("hm".into()),
            tool_calls: vec![
                ToolCall { id: "t1".into(), name: "f".into(), arguments: r#"{"b":1,"a":2}"#.into() },
                ToolCall { id: "t2".into(), name: "g".into(), arguments: "{}".into() },
            ],
            ..Message::text(Role::Assistant, "ok")
        },
        result("t1", "r1"),
        result("t2", "Error: bad"),
        Message::text(Role::User, "go on"),
        Message {
            content: None,
            tool_calls: vec![ToolCall {
                id: "t3".into(),
                name: "h".into(),
                arguments: r#"{"z":1.5,"a":[]}"#.into(),
            }],
            ..Message::text(Role::Assistant, "")
        },
        result("t3", ""),
        Message::text(Role::User, "c"),
    ];
    assert_eq!(conversation(call).messages, expected);
}

#[test]
fn bad_parameters_are_named() {
    let turn = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let rows = [
        (json!({"max_tokens": null}), "max_tokens", "missing_required_parameter"),
        (json!({"max_tokens": -1}), "max_tokens", "integer_below_min_value"),
        (json!({"temperature": 1.5}), "temperature", "decimal_above_max_value"),
        (json!({"stop_sequences": "x"}), "stop_sequences", "invalid_type"),
        (json!({"stop_sequences": [""]}), "stop_sequences[0]", "empty_string"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens", "missing_required_parameter"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1023}}),
            "thinking.budget_tokens",
            "integer_below_min_value",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000}),
            "thinking.budget_tokens",
            "integer_above_max_value",
        ),
        (json!({"thinking": {"type": "sometimes"}}), "thinking.type", "invalid_value"),
        (json!({"thinking": {}}), "thinking.type", "missing_required_parameter"),
        (
            json!({"thinking": {"type": "disabled", "display": "omitted"}}),
            "thinking.display",
            "invalid_value",
        ),
        (
            json!({"thinking": {"type": "adaptive", "budget_tokens": 2000}}),
            "thinking.budget_tokens",
            "invalid_value",
        ),
        (json!({"mcp_servers": [{"x": 1}]}), "mcp_servers", "unsupported_parameter"),
        (json!({"container": "c"}), "container", "unsupported_parameter"),
        (json!({"output_config": {"effort": "minimal"}}), "output_config.effort", "invalid_value"),
        (json!({"output_config": {"task_budget": {}}}), "output_config.task_budget", "unsupported_parameter"),
        (
            json!({"output_config": {"format": {"type": "json_object"}}}),
            "output_config.format.type",
            "invalid_value",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
            "missing_required_parameter",
        ),
        (
            json!({
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}}
            }),
            "output_config",
            "invalid_value",
        ),
        (json!({"chat_template": "x"}), "chat_template", "unsupported_parameter"),
        (json!({"n": 2}), "n", "unknown_parameter"),
        (json!({"metadata": {"x": 1}}), "metadata.x", "unknown_parameter"),
        (json!({"system": 5}), "system", "invalid_type"),
        (
            json!({"system": [{"type": "image", "source": {"type": "url", "url": "x"}}]}),
            "system[0]",
            "invalid_value",
        ),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice", "invalid_value"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name", "missing_required_parameter"),
        (json!({"tool_choice": {"type": "auto", "name": "f"}}), "tool_choice.name", "invalid_value"),
        (json!({"tool_choice": {"type": "maybe"}}), "tool_choice.type", "invalid_value"),
        (json!({"tool_choice": {}}), "tool_choice.type", "missing_required_parameter"),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]}),
            "tools[0].input_examples",
            "unsupported_parameter",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20260120"]}]}),
            "tools[0].allowed_callers",
            "unsupported_parameter",
        ),
        (
            turn(json!([{"type": "tool_result", "tool_use_id": "t9"}])),
            "messages[0].content[0].tool_use_id",
            "invalid_value",
        ),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "w"}]}),
            "tools[0].type",
            "unsupported_value",
        ),
        (json!({"tools": [{"name": "w"}]}), "tools[0].input_schema", "missing_required_parameter"),
        (json!({"messages": []}), "messages", "empty_array"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role", "invalid_value"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content", "missing_required_parameter"),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is "}]}),
            "messages[1].content",
            "invalid_value",
        ),
        (
            turn(json!([{"type": "image", "source": {"type": "base64", "data": "x"}}])),
            "messages[0].content[0].source.media_type",
            "missing_required_parameter",
        ),
        (
            turn(json!([{"type": "image", "source": {"type": "text", "data": "x"}}])),
            "messages[0].content[0].source",
            "invalid_value",
        ),
        (turn(json!([{"type": "document"}])), "messages[0].content[0].source", "missing_required_parameter"),
        (turn(json!([{"type": "text"}])), "messages[0].content[0].text", "missing_required_parameter"),
        (
            turn(json!([{"type": "text", "text": "x", "foo": 1}])),
            "messages[0].content[0].foo",
            "unknown_parameter",
        ),
        (
            turn(json!([{"type": "text", "text": "x", "is_error": true}])),
            "messages[0].content[0].is_error",
            "unknown_parameter",
        ),
        (
            turn(json!([{"type": "text", "text": "x", "cache_control": {"type": "forever"}}])),
            "messages[0].content[0].cache_control.type",
            "unsupported_value",
        ),
        (
            turn(json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])),
            "messages[0].content[0]",
            "invalid_value",
        ),
        (
            turn(json!([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}])),
            "messages[0].content[0].content[0].source",
            "missing_required_parameter",
        ),
        (
            turn(json!([{"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "tool_use", "id": "u", "name": "f", "input": {}}]}])),
            "messages[0].content[0].content[0]",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}),
            "messages[0].content[0]",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}]}]}),
            "messages[0].content[0].input",
            "invalid_type",
        ),
    ];
    for (more, param, code) in rows {
        let bad = parse(&more).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{more}: {bad}");
    }
}

#[test]
fn a_system_turn_stays_where_it_stands() {
    let call = parse(&json!({"system": "first", "messages": [
        {"role": "user", "content": "u"}, {"role": "system", "content": [{"type": "text", "text": "then "}, {"type": "text", "text": "this"}]},
        {"role": "user", "content": "go"}]}))
    .unwrap();
    assert_eq!(call.origin(2), headrace_domain::MessageOrigin::Message { index: 1, block: None });
    let expected = [
        Message::text(Role::System, "first"),
        Message::text(Role::User, "u"),
        Message { joints: vec![5], ..Message::text(Role::System, "then this") },
        Message::text(Role::User, "go"),
    ];
    let conversation = conversation(call);
    assert_eq!(conversation.messages, expected);
    assert!(!conversation.continues);
}

#[test]
fn a_last_turn_of_the_assistant_is_continued() {
    let user = json!({"role": "user", "content": "u"});
    let last =
        |content: Value| parse(&json!({"messages": [user, {"role": "assistant", "content": content}]}));
    let continued = conversation(last(json!("The answer is (")).unwrap());
    assert_eq!(continued.messages[1], Message::text(Role::Assistant, "The answer is ("));
    assert!(continued.continues);
    assert!(conversation(last(json!([{"type": "text", "text": ""}])).unwrap()).continues);
    for (content, param) in [
        (json!("ends in white space\n"), "messages[1].content"),
        (json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]), "messages[1]"),
    ] {
        let bad = last(content).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), "invalid_value"), "{bad}");
    }
}

#[test]
fn who_pays_is_not_told_to_the_model() {
    let header = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;";
    let system =
        |system: Value| match conversation(parse(&json!({"system": system})).unwrap()).messages.first() {
            Some(Message { role: Role::System, content, .. }) => content.clone(),
            _ => None,
        };
    let block = |text: &str| json!({"type": "text", "text": text});
    for (given, expected) in [
        (json!([block(header), block("be brief")]), Some("be brief")),
        (json!([block("be brief"), block(header)]), Some(&format!("be brief{header}")[..])),
        (json!([block(header)]), None),
        (json!(format!("{header}\nbe brief\n\nand kind")), Some("be brief\n\nand kind")),
        (json!(header), None),
        (json!("be brief"), Some("be brief")),
        (json!([]), Some("")),
    ] {
        assert_eq!(system(given.clone()).as_deref(), expected, "{given}");
    }
}

#[test]
fn every_block_is_taken_or_refused_by_its_name() {
    let turn = |block: &Value| {
        parse(&json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]}))
    };
    let text = |source: Value| json!({"type": "document", "source": source, "title": "T", "context": "C", "citations": {"enabled": false}});
    let blocks = |texts: &[&str]| -> Vec<Value> {
        texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
    };
    for (block, expected) in [
        (
            text(json!({"type": "text", "media_type": "text/plain", "data": "D"})),
            &["a", "T\n", "C\n", "D\n"][..],
        ),
        (text(json!({"type": "content", "content": "D"})), &["a", "T\n", "C\n", "D\n"]),
        (text(json!({"type": "content", "content": blocks(&["D"])})), &["a", "T\n", "C\n", "D\n"]),
        (
            text(json!({"type": "content", "content": blocks(&["D", "", "E"])})),
            &["a", "T\n", "C\n", "D", "E\n"],
        ),
        (
            json!({"type": "search_result", "title": "T", "source": "https://x", "content": blocks(&["D", "E"])}),
            &["a", "T\n", "https://x\n", "D", "E\n"],
        ),
        (
            json!({"type": "text", "text": "b", "citations": [{"type": "char_location", "cited_text": "x"}]}),
            &["a", "b"],
        ),
    ] {
        let messages = conversation(turn(&block).unwrap()).messages;
        assert_eq!(messages[0].text_parts().collect::<Vec<_>>(), expected, "{block}");
        let joints = messages[0].joints.clone();
        assert_eq!(messages, [Message { joints, ..Message::text(Role::User, expected.concat()) }], "{block}");
    }
    for kind in [
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "container_upload",
        "tool_reference",
        "browser_state",
        "mcp_tool_use",
        "hologram",
    ] {
        let bad = turn(&json!({"type": kind, "x": 1})).unwrap_err();
        let place = ("messages[0].content[1]", "unsupported_content");
        assert_eq!((bad.param.as_deref().unwrap(), bad.code.name()), place, "{bad}");
        assert_eq!(bad.message.contains(kind), kind != "hologram", "{bad}");
    }
    for (block, param, code) in [
        (text(json!({"type": "base64", "data": "x"})), ".source.media_type", "missing_required_parameter"),
        (text(json!({"type": "moon"})), ".source.type", "unsupported_value"),
        (
            text(json!({"media_type": "text/plain", "data": "x"})),
            ".source.type",
            "missing_required_parameter",
        ),
        (
            json!({"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": true}}),
            ".citations.enabled",
            "unsupported_parameter",
        ),
        (json!({"type": "text", "text": "x", "source": "y"}), ".source", "unknown_parameter"),
        (json!({"type": "search_result", "source": "x"}), ".content", "missing_required_parameter"),
        (json!({"type": "redacted_thinking", "data": "x"}), "", "invalid_value"),
    ] {
        let bad = turn(&block).unwrap_err();
        let expected = (Some(format!("messages[0].content[1]{param}")), code);
        assert_eq!((bad.param, bad.code.name()), expected, "{block}");
    }
    let sealed = parse(&json!({"messages": [
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}]},
        {"role": "user", "content": "u"}]}));
    assert_eq!(conversation(sealed.unwrap()).messages[0], Message::text(Role::Assistant, "a"));
}

#[test]
fn images_and_documents_are_kept_with_their_places() {
    let turn = |content: Value| {
        parse(&json!({"messages": [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}, "provider_specific_fields": {"x": 1}}]},
        {"role": "user", "content": content}]}))
    };
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}});
    let paper =
        json!({"type": "document", "title": "T", "source": {"type": "url", "url": "https://x/a.pdf"}});
    let call = turn(json!([
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}, image]},
        {"type": "text", "text": "see"}, paper, {"type": "image", "source": {"type": "file", "file_id": "f"}}]));
    let call = call.unwrap();
    let found: Vec<_> = conversation(call.clone())
        .messages
        .iter()
        .enumerate()
        .flat_map(|(at, message)| message.media.clone().into_iter().map(move |part| (at, part)))
        .map(|(at, part)| (call.place(at, &part), part.kind, part.source, part.behind_bytes, part.name))
        .collect();
    let data = MediaSource::Base64 { media_type: "image/png".into(), data: "QUJD".into() };
    let at = |place: &str| format!("messages[2].{place}");
    assert_eq!(
        found,
        [
            (at("content[0].content[1]"), MediaKind::Image, data, 1, None),
            (
                at("content[2]"),
                MediaKind::Document,
                MediaSource::Url("https://x/a.pdf".into()),
                3,
                Some("T".into())
            ),
            (at("content[3]"), MediaKind::Image, MediaSource::File("f".into()), 3, None),
        ]
    );
}

#[test]
fn results_of_tools_may_be_cleared() {
    let clears = |edit: Value| {
        let body = json!({"context_management": {"edits": [edit]}});
        parse(&body).map(|call| call.dialect.clears().cloned())
    };
    let usual = ClearTools {
        trigger: ClearTrigger::InputTokens(100_000),
        keep: 3,
        at_least_tokens: 0,
        exclude: vec![],
        inputs: false,
    };
    let kind = "clear_tool_uses_20250919";
    assert_eq!(clears(json!({"type": kind})), Ok(Some(usual.clone())));
    let all = json!({"trigger": {"type": "tool_uses", "value": 5}, "keep": {"type": "tool_uses", "value": 1},
        "clear_at_least": {"type": "input_tokens", "value": 50}, "exclude_tools": ["w"], "clear_tool_inputs": true, "type": kind});
    let expected = ClearTools {
        trigger: ClearTrigger::ToolUses(5),
        keep: 1,
        at_least_tokens: 50,
        exclude: vec!["w".into()],
        inputs: true,
    };
    assert_eq!(clears(all), Ok(Some(expected)));
    let none = json!({"type": kind, "exclude_tools": null, "clear_at_least": null, "trigger": null});
    assert_eq!(clears(none), Ok(Some(usual)));
    assert_eq!(clears(json!({"type": "clear_thinking_20251015", "keep": "all"})), Ok(None));
    for (edit, param) in [
        (json!({"type": "compact_20260112"}), "type"),
        (json!({"type": kind, "keep": {"type": "input_tokens", "value": 1}}), "keep.type"),
        (json!({"type": kind, "keep": {"type": "tool_uses"}}), "keep.value"),
        (json!({"type": kind, "hope": 1}), "hope"),
        (json!({"keep": "all"}), "type"),
    ] {
        let bad = clears(edit).unwrap_err();
        assert_eq!(bad.param, Some(format!("context_management.edits[0].{param}")));
    }
}

#[test]
fn four_places_of_a_cached_prefix_and_no_more() {
    let mark = json!({"type": "ephemeral"});
    let block = |text: &str| json!({"type": "text", "text": text, "cache_control": mark});
    let body = |blocks: usize, whole: Value| {
        let content: Vec<Value> = (0..blocks).map(|_| block("x")).collect();
        json!({
            "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "system": [block("s"), {"type": "text", "text": "t", "cache_control": null}],
            "messages": [{"role": "user", "content": content}], "cache_control": whole,
        })
    };
    parse(&body(2, Value::Null)).unwrap();
    parse(&body(1, mark.clone())).unwrap();
    for body in [body(3, Value::Null), body(2, mark.clone())] {
        let bad = parse(&body).unwrap_err();
        assert_eq!(bad.code.name(), "array_above_max_length");
        assert!(bad.message.contains("at most 4"), "{bad}");
    }
    let bad = parse(&json!({"cache_control": {"ttl": "5m"}})).unwrap_err();
    assert_eq!(bad.param.as_deref(), Some("cache_control.type"));
}

#[test]
fn what_is_to_be_kept_is_known_by_its_place_and_for_how_long() {
    let mark = json!({"type": "ephemeral"});
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let call = parse(&json!({
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": mark}]},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": [{"type": "text", "text": "d", "cache_control": hour}]}],
        "system": [{"type": "text", "text": "s", "cache_control": hour}],
        "cache_control": mark,
    }));
    let marks: Vec<_> = call.unwrap().cache_marks.into_iter().map(|mark| (mark.at, mark.life)).collect();
    let expected = [
        (CacheMarkAt::Message(0), CacheLife::Minutes),
        (CacheMarkAt::Message(2), CacheLife::Hour),
        (CacheMarkAt::Head, CacheLife::Hour),
        (CacheMarkAt::Last, CacheLife::Minutes),
    ];
    assert!(marks.len() == 4 && expected.iter().all(|mark| marks.contains(mark)), "{marks:?}");
}

#[test]
fn a_prompt_may_be_read_ahead_edited_and_asked_about() {
    assert_eq!(parse(&json!({"max_tokens": 0})).unwrap().sampling.max_tokens, Some(0));
    assert!(
        parse(&json!({"diagnostics": {"previous_message_id": null}})).unwrap().dialect.comparison().is_some()
    );
    let named = parse(&json!({"diagnostics": {"previous_message_id": "msg_1"}})).unwrap();
    let comparison = named.dialect.comparison().unwrap();
    assert_eq!(comparison.previous_answer.as_deref(), Some("msg_1"));
    assert!(parse(&json!({"diagnostics": null})).unwrap().dialect.comparison().is_none());
    let turn = |role: &str, n: usize| match role {
        "user" => json!({"role": "user", "content": "u"}),
        _ => {
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": format!("t{n}"), "signature": ""}, {"type": "text", "text": "a"}]})
        }
    };
    let messages: Vec<Value> =
        (0..6).flat_map(|n| [turn("user", n), turn("assistant", n)]).chain([turn("user", 9)]).collect();
    let kept = |edits: Value| {
        let call = parse(&json!({"messages": messages, "context_management": {"edits": edits}})).unwrap();
        conversation(call).messages.iter().filter(|message| message.reasoning.is_some()).count()
    };
    let clear = |keep: Value| json!([{"type": "clear_thinking_20251015", "keep": keep}]);
    assert_eq!(kept(json!([])), 6);
    assert_eq!(kept(clear(json!("all"))), 6);
    assert_eq!(kept(clear(json!({"type": "all"}))), 6);
    assert_eq!(kept(clear(json!({"type": "thinking_turns", "value": 2}))), 2);
    for (edits, param) in [
        (json!([{"type": "compact_20260112"}]), "context_management.edits[0].type"),
        (clear(json!("some")), "context_management.edits[0].keep"),
        (clear(json!({"type": "thinking_turns"})), "context_management.edits[0].keep.value"),
        (clear(json!({"type": "thinking_turns", "value": 0})), "context_management.edits[0].keep.value"),
        (json!([{"keep": "all"}]), "context_management.edits[0].type"),
    ] {
        let bad = parse(&json!({"context_management": {"edits": edits}})).unwrap_err();
        assert_eq!(bad.param.as_deref(), Some(param), "{bad}");
    }
}

#[test]
fn a_count_needs_no_bound_of_an_answer() {
    let limits = WireLimits::default();
    let body =
        json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}], "system": "s"}).to_string();
    let call = crate::questions::parse_count(body.as_bytes(), &limits).unwrap();
    assert_eq!(conversation(call).messages.len(), 2);
    assert_eq!(parse_messages(body.as_bytes(), &limits).unwrap_err().param.as_deref(), Some("max_tokens"));
    assert!(crate::questions::parse_count(b"{\"model\":\"demo\"}", &limits).is_err());
}
