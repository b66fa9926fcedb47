//! Tables of good and bad chat requests: their meaning, or the exact code and parameter of the refusal.

use headrace_domain::{
    Call, EndUser, Endpoint, MediaKind, MediaPart, MediaSource, Message, Prompt, Role, ToolCall, ToolChoice,
};
use serde_json::{Value, json};

use crate::fault::BadRequest;
use crate::limits::WireLimits;
use crate::request::parse_chat;

fn parse(body: &Value) -> Result<Call, BadRequest> {
    parse_chat(body.to_string().as_bytes(), &WireLimits::default())
}

/// A good body with the fields of `more`.
fn with(more: &Value) -> Value {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn conversation(call: &Call) -> &headrace_domain::Conversation {
    match &call.prompt {
        Prompt::Conversation(conversation) => conversation,
        Prompt::Raw(_) | Prompt::Encode(_) | Prompt::Relayed(_) => panic!("a conversation"),
    }
}

#[test]
fn the_smallest_request() {
    let call = parse(&with(&json!({}))).unwrap();
    assert_eq!(call.endpoint, Endpoint::ChatCompletions);
    assert_eq!(call.model, "demo");
    assert_eq!(conversation(&call).messages, [Message::text(Role::User, "hi")]);
    assert_eq!((call.sampling.n, call.sampling.max_tokens, call.sampling.temperature), (1, None, None));
    assert!(!call.stream && !call.include_usage && !call.return_token_ids && !call.explain);
}

#[test]
fn every_parameter_is_honoured() {
    let body = with(&json!({
        "temperature": 0.5, "top_p": 1, "top_k": 7, "min_p": 0.25, "frequency_penalty": -2, "presence_penalty": 2.0,
        "repetition_penalty": 1.5, "logit_bias": {"9": -100, "0": 1.5}, "stop": ["a", "b"], "stop_token_ids": [3, 1],
        "max_tokens": 5, "max_completion_tokens": 5, "min_tokens": 2, "ignore_eos": true, "n": 3, "best_of": 3,
        "seed": -1, "logprobs": true, "top_logprobs": 20, "prompt_logprobs": 1, "return_token_ids": true,
        "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false},
        "headrace": {"explain": true}, "cache_salt": "s", "timeout": 2.5, "service_tier": "flex",
    }));
    let call = parse(&body).unwrap();
    let sampling = &call.sampling;
    assert_eq!(sampling.temperature, Some(0.5));
    assert_eq!(sampling.top_p, Some(1.0));
    assert_eq!(sampling.top_k, Some(std::num::NonZeroU32::new(7)));
    assert_eq!(sampling.min_p, Some(0.25));
    assert_eq!((sampling.frequency_penalty, sampling.presence_penalty), (Some(-2.0), Some(2.0)));
    assert_eq!(sampling.repetition_penalty, Some(1.5));
    assert_eq!(sampling.logit_bias, [(0, 1.5), (9, -100.0)]);
    assert_eq!(sampling.stop, ["a", "b"]);
    assert_eq!(sampling.stop_token_ids, [3, 1]);
    assert_eq!((sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos), (Some(5), 2, true));
    assert_eq!((sampling.n, sampling.seed), (3, Some(u64::MAX)));
    assert_eq!((sampling.logprobs, sampling.prompt_logprobs), (Some(20), Some(1)));
    assert!(call.stream && call.include_usage && call.return_token_ids && call.explain);
    assert_eq!(call.timeout, Some(std::time::Duration::from_millis(2500)));
    assert_eq!(call.tier, headrace_domain::ServiceTier::Flex);
    assert_eq!(call.cache_salt.as_deref(), Some("s"));
}

#[test]
fn verbosity_is_a_variable_of_the_template_that_has_to_be_there() {
    for word in ["low", "high"] {
        let call =
            parse(&with(&json!({"verbosity": word, "chat_template_kwargs": {"verbosity": "x", "y": 1}})))
                .unwrap();
        let Prompt::Conversation(conversation) = call.prompt else { panic!() };
        assert_eq!(Value::from(conversation.template), json!({"verbosity": word, "y": 1}));
        assert!(conversation.asks_verbosity);
    }
    // If the caller sets the template variable directly, `asks_verbosity` stays false.
    let call = parse(&with(&json!({"chat_template_kwargs": {"verbosity": "low"}}))).unwrap();
    let Prompt::Conversation(conversation) = call.prompt else { panic!() };
    assert!(!conversation.asks_verbosity && conversation.template.contains_key("verbosity"));
}

#[test]
fn harmless_and_neutral_parameters_change_nothing() {
    let plain = parse(&with(&json!({}))).unwrap();
    for more in [
        json!({"user": null, "safety_identifier": "", "prompt_cache_key": "k", "metadata": null}),
        json!({"store": false, "service_tier": "auto", "prompt_cache_retention": "in_memory"}),
        json!({"service_tier": "default", "parallel_tool_calls": true, "modalities": ["text"]}),
        json!({"verbosity": "medium", "include_reasoning": true, "chat_template_kwargs": {}, "structured_outputs": null}),
        json!({"prediction": {"type": "content", "content": "x"}, "prompt_cache_options": {"mode": "explicit"}}),
        json!({"response_format": {"type": "text"}, "functions": null, "audio": null, "reasoning_effort": null}),
        json!({"temperature": null, "stop": null, "stop_token_ids": null, "n": null, "tools": null, "tool_choice": null}),
        json!({"tool_choice": "auto", "tools": [], "stop": [], "logit_bias": {}}),
        json!({"stream_options": null, "logprobs": false, "top_logprobs": 0, "best_of": 1, "headrace": null}),
        json!({"add_generation_prompt": true, "continue_final_message": false, "chat_template": null}),
        json!({"use_beam_search": false, "length_penalty": 1, "bad_words": [], "skip_special_tokens": true}),
    ] {
        assert_eq!(parse(&with(&more)).unwrap(), plain, "{more}");
    }
    let longest = "é".repeat(WireLimits::default().max_label_bytes / 2);
    assert_eq!(parse(&with(&json!({"prompt_cache_key": longest}))).unwrap(), plain);
    for (more, user) in [
        (json!({"user": longest}), longest.as_str()),
        (json!({"user": "u"}), "u"),
        (json!({"safety_identifier": "s", "user": "u"}), "s"),
        (json!({"user": "u", "safety_identifier": null}), "u"),
    ] {
        let call = parse(&with(&more)).unwrap();
        assert_eq!(call, Call { user: EndUser::named(user), ..plain.clone() }, "{more}");
    }
    let off = parse(&with(&json!({"top_k": -1}))).unwrap();
    assert_eq!(off.sampling.top_k, Some(None));
    let seeds = [(json!(u64::MAX), u64::MAX), (json!(i64::MIN), 1 << 63), (json!(0), 0)];
    for (seed, expected) in seeds {
        assert_eq!(parse(&with(&json!({"seed": seed}))).unwrap().sampling.seed, Some(expected));
    }
}

#[test]
fn bad_parameters_are_named() {
    let long = "x".repeat(2000);
    let label = "x".repeat(WireLimits::default().max_label_bytes + 1);
    let rows = [
        (json!({"temperature": 2.1}), "temperature", "decimal_above_max_value"),
        (json!({"temperature": -0.1}), "temperature", "decimal_below_min_value"),
        (json!({"temperature": "1"}), "temperature", "invalid_type"),
        (json!({"top_p": 0}), "top_p", "decimal_below_min_value"),
        (json!({"top_p": 1e-60}), "top_p", "decimal_below_min_value"),
        (json!({"top_p": 1.01}), "top_p", "decimal_above_max_value"),
        (json!({"top_k": -2}), "top_k", "integer_below_min_value"),
        (json!({"top_k": 1_i64 << 40}), "top_k", "integer_above_max_value"),
        (json!({"min_p": 1.5}), "min_p", "decimal_above_max_value"),
        (json!({"frequency_penalty": 2.5}), "frequency_penalty", "decimal_above_max_value"),
        (json!({"presence_penalty": -2.5}), "presence_penalty", "decimal_below_min_value"),
        (json!({"repetition_penalty": 0}), "repetition_penalty", "decimal_below_min_value"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x", "invalid_value"),
        (json!({"logit_bias": {"01": 1}}), "logit_bias.01", "invalid_value"),
        (json!({"logit_bias": {"+1": 1}}), "logit_bias.+1", "invalid_value"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5", "decimal_above_max_value"),
        (json!({"logit_bias": [1]}), "logit_bias", "invalid_type"),
        (json!({"stop": ""}), "stop", "empty_string"),
        (json!({"stop": ["a", ""]}), "stop[1]", "empty_string"),
        (json!({"stop": vec!["a"; 5]}), "stop", "array_above_max_length"),
        (json!({"stop": long}), "stop", "string_above_max_length"),
        (json!({"stop": 5}), "stop", "invalid_type"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids[0]", "integer_below_min_value"),
        (json!({"stop_token_ids": [1.5]}), "stop_token_ids[0]", "invalid_type"),
        (json!({"max_tokens": 0}), "max_tokens", "integer_below_min_value"),
        (json!({"max_tokens": -1}), "max_tokens", "integer_below_min_value"),
        (json!({"max_tokens": 1_u64 << 63}), "max_tokens", "integer_above_max_value"),
        (json!({"max_tokens": 1e3}), "max_tokens", "invalid_type"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens", "integer_below_min_value"),
        (json!({"max_tokens": 4, "max_completion_tokens": 5}), "max_completion_tokens", "invalid_value"),
        (json!({"max_tokens": 4, "min_tokens": 5}), "min_tokens", "integer_above_max_value"),
        (json!({"n": 0}), "n", "integer_below_min_value"),
        (json!({"n": 1_000_000}), "n", "integer_above_max_value"),
        (json!({"n": 2, "best_of": 4}), "best_of", "unsupported_parameter"),
        (json!({"seed": "1"}), "seed", "invalid_type"),
        (json!({"seed": 1.5}), "seed", "invalid_type"),
        (json!({"logprobs": 5}), "logprobs", "invalid_type"),
        (json!({"top_logprobs": 3}), "top_logprobs", "invalid_value"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "integer_above_max_value"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs", "integer_below_min_value"),
        (json!({"stream": "yes"}), "stream", "invalid_type"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", "invalid_value"),
        (json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x", "unknown_parameter"),
        (
            json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}),
            "stream_options.continuous_usage_stats",
            "unsupported_parameter",
        ),
        (json!({"headrace": {"explain": 1}}), "headrace.explain", "invalid_type"),
        (json!({"timeout": 0}), "timeout", "decimal_below_min_value"),
        (json!({"timeout": 1e9}), "timeout", "decimal_above_max_value"),
        (json!({"timeout": "5"}), "timeout", "invalid_type"),
        (json!({"headrace": {"x": 1}}), "headrace.x", "unknown_parameter"),
        (json!({"cache_salt": ""}), "cache_salt", "empty_string"),
        (json!({"model": ""}), "model", "empty_string"),
        (json!({"model": null}), "model", "invalid_type"),
        (json!({"model": long}), "model", "string_above_max_length"),
        (json!({"model": "a\nb"}), "model", "invalid_value"),
        (json!({"frobnicate": null}), "frobnicate", "unknown_parameter"),
        (json!({"prompt": "x"}), "prompt", "unknown_parameter"),
        (json!({"guided_json": {}}), "guided_json", "unsupported_parameter"),
        (json!({"audio": {"voice": "x"}}), "audio", "unsupported_parameter"),
        (json!({"modalities": ["text", "audio"]}), "modalities", "unsupported_parameter"),
        (json!({"modalities": []}), "modalities", "unsupported_parameter"),
        (json!({"functions": []}), "functions", "unsupported_parameter"),
        (json!({"function_call": "auto"}), "function_call", "unsupported_parameter"),
        (json!({"reasoning_effort": "lots"}), "reasoning_effort", "invalid_value"),
        (json!({"verbosity": "lots"}), "verbosity", "invalid_value"),
        (json!({"verbosity": 1}), "verbosity", "invalid_type"),
        (json!({"web_search_options": {}}), "web_search_options", "unsupported_parameter"),
        (json!({"logits_processors": ["os.system"]}), "logits_processors", "unsupported_parameter"),
        (json!({"store": true}), "store", "unsupported_parameter"),
        (json!({"service_tier": "priority"}), "service_tier", "unsupported_parameter"),
        (json!({"service_tier": 1}), "service_tier", "invalid_type"),
        (json!({"parallel_tool_calls": "no"}), "parallel_tool_calls", "invalid_type"),
        (json!({"chat_template": "{{ x }}"}), "chat_template", "unsupported_parameter"),
        (json!({"chat_template": ""}), "chat_template", "unsupported_parameter"),
        (json!({"chat_template_kwargs": []}), "chat_template_kwargs", "invalid_type"),
        (
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages",
            "unsupported_parameter",
        ),
        (json!({"enable_thinking": "yes"}), "enable_thinking", "invalid_type"),
        (json!({"continue_final_message": true}), "continue_final_message", "invalid_value"),
        (json!({"add_generation_prompt": false}), "add_generation_prompt", "unsupported_parameter"),
        (json!({"documents": []}), "documents", "unsupported_parameter"),
        (json!({"bad_words": ["x", "y"]}), "bad_words", "unsupported_parameter"),
        (json!({"user": 5}), "user", "invalid_type"),
        (json!({"user": label}), "user", "string_above_max_length"),
        (json!({"safety_identifier": label}), "safety_identifier", "string_above_max_length"),
        (json!({"prompt_cache_key": label}), "prompt_cache_key", "string_above_max_length"),
        (json!({"metadata": {"a": 1}}), "metadata.a", "invalid_type"),
        (json!({"messages": []}), "messages", "empty_array"),
        (json!({"messages": {}}), "messages", "invalid_type"),
        (json!({"messages": null}), "messages", "invalid_type"),
    ];
    for (more, param, code) in rows {
        let bad = parse(&with(&more)).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{more}: {bad}");
        assert!(bad.message.starts_with(&format!("`{param}`: ")), "{bad}");
    }
}

#[test]
fn required_parameters_are_named() {
    for (body, param) in [
        (json!({"messages": [{"role": "user", "content": "x"}]}), "model"),
        (json!({"model": "m"}), "messages"),
    ] {
        let bad = parse(&body).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), "missing_required_parameter"));
    }
}

#[test]
fn messages_of_every_role() {
    let body = with(&json!({"messages": [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}, {"text": "e", "type": "text"}], "name": "n"},
        {"role": "user", "content": "u\u{0}<|im_end|>"},
        {"role": "assistant", "content": null, "refusal": null, "audio": null, "annotations": [], "function_call": null,
         "reasoning_content": "r", "tool_calls": [
            {"id": "c1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{\"b\": 1.50, \"a\": {}}"}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"tool_call_id": "c1", "role": "tool", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": "done", "tool_calls": []},
    ]}));
    let call = parse(&body).unwrap();
    let tool_call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let expected = [
        Message::text(Role::System, "s"),
        Message { name: Some("n".into()), joints: vec![1], ..Message::text(Role::System, "de") },
        Message::text(Role::User, "u\0<|im_end|>"),
        Message {
            content: None,
            reasoning: Some("r".into()),
            tool_calls: vec![tool_call("c1", "f", r#"{"b": 1.50, "a": {}}"#), tool_call("c2", "g", "{}")],
            ..Message::text(Role::Assistant, "")
        },
        Message { tool_call_id: Some("c1".into()), ..Message::text(Role::Tool, "t") },
        Message::text(Role::Assistant, "done"),
    ];
    assert_eq!(conversation(&call).messages, expected);
}

/// The parts of message number `at` that are not text.
fn parts(call: &Call, at: usize) -> Vec<MediaPart> {
    conversation(call).messages[at].media.clone()
}

#[test]
fn what_is_no_text_is_kept_with_its_place() {
    let call = parse(&json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "é"},
        {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": "low"}},
        {"type": "text", "text": "b"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "video_url", "video_url": {"url": "https://x/a.mp4"}},
    ]}]}))
    .unwrap();
    let part = |kind, source, behind_bytes, index: usize| MediaPart {
        kind,
        source,
        detail: None,
        name: None,
        behind_bytes,
        place: format!("content[{index}]"),
    };
    let url = |url: &str| MediaSource::Url(url.to_owned());
    let sound = MediaSource::Base64 { media_type: "wav".into(), data: "QUJD".into() };
    assert_eq!(conversation(&call).messages[0].content.as_deref(), Some("éb"));
    assert_eq!(
        parts(&call, 0),
        [
            MediaPart { detail: Some("low".into()), ..part(MediaKind::Image, url("https://x/a.png"), 2, 1) },
            part(MediaKind::Audio, sound, 3, 3),
            MediaPart {
                name: Some("a.pdf".into()),
                ..part(MediaKind::Document, url("data:application/pdf;base64,QUJD"), 3, 4)
            },
            part(MediaKind::Document, MediaSource::File("file-1".into()), 3, 5),
            part(MediaKind::Video, url("https://x/a.mp4"), 3, 6),
        ]
    );
    assert_eq!(call.place(0, &parts(&call, 0)[1]), "messages[0].content[3]");
}

#[test]
fn past_answers_may_say_what_nobody_here_knows() {
    let call = parse(&json!({"model": "m", "messages": [
        {"role": "user", "content": "u"},
        {"provider_specific_fields": {"a": [1]}, "role": "assistant", "content": null, "refusal": "I will not.",
            "tool_calls": [{"id": "c", "type": "function", "provider_specific_fields": null,
                "function": {"name": "f", "arguments": "{}", "provider_specific_fields": {"x": 1}}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]}))
    .unwrap();
    let said = &conversation(&call).messages[1];
    assert_eq!((said.content.as_deref(), said.tool_calls.len()), (Some("I will not."), 1));
    for role in ["user", "system"] {
        let body = json!({"model": "m", "messages": [{"provider_specific_fields": 1, "role": role, "content": "x"}]});
        let bad = parse(&body).unwrap_err();
        assert_eq!(bad.param.as_deref(), Some("messages[0].provider_specific_fields"));
    }
}

#[test]
fn bad_messages_are_placed() {
    let call = |function: Value| json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]});
    let rows = [
        (json!({"content": "x"}), "messages[1].role", "missing_required_parameter"),
        (json!({"role": "user"}), "messages[1].content", "missing_required_parameter"),
        (json!({"role": "user", "content": null}), "messages[1].content", "missing_required_parameter"),
        (json!({"role": "assistant"}), "messages[1].content", "missing_required_parameter"),
        (json!({"role": "tool", "content": "x"}), "messages[1].tool_call_id", "missing_required_parameter"),
        (
            json!({"role": "user", "content": "x", "tool_call_id": "c"}),
            "messages[1].tool_call_id",
            "invalid_value",
        ),
        (
            json!({"role": "user", "content": "x", "reasoning": "c"}),
            "messages[1].reasoning_content",
            "invalid_value",
        ),
        (json!({"role": "robot", "content": "x"}), "messages[1].role", "invalid_value"),
        (json!({"role": "function", "content": "x"}), "messages[1].role", "unsupported_value"),
        (json!({"role": 5, "content": "x"}), "messages[1].role", "invalid_type"),
        (json!({"role": "user", "content": 5}), "messages[1].content", "invalid_type"),
        (json!({"role": "user", "content": "x", "colour": 1}), "messages[1].colour", "unknown_parameter"),
        (json!({"role": "user", "content": "x", "name": ""}), "messages[1].name", "empty_string"),
        (
            json!({"role": "assistant", "content": "x", "function_call": {}}),
            "messages[1].function_call",
            "unsupported_parameter",
        ),
        (json!("hi"), "messages[1]", "invalid_type"),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "hologram", "hologram": {}}]}),
            "messages[1].content[1]",
            "unsupported_content",
        ),
        (
            json!({"role": "user", "content": [{"image_url": {}, "type": "image_url"}]}),
            "messages[1].content[0].image_url.url",
            "missing_required_parameter",
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "image_url": {"url": "x"}}]}),
            "messages[1].content[0].image_url",
            "unknown_parameter",
        ),
        (
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": "huge"}}]}),
            "messages[1].content[0].image_url.detail",
            "invalid_value",
        ),
        (
            json!({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}),
            "messages[1].content[0].input_audio.data",
            "missing_required_parameter",
        ),
        (
            json!({"role": "user", "content": [{"type": "file", "file": {}}]}),
            "messages[1].content[0].file.file_data",
            "missing_required_parameter",
        ),
        (
            json!({"role": "user", "content": [{"type": "file", "file": {"file_id": "f", "file_data": "d"}}]}),
            "messages[1].content[0].file.file_id",
            "invalid_value",
        ),
        (json!({"role": "user", "content": "x", "refusal": "no"}), "messages[1].refusal", "invalid_value"),
        (
            json!({"role": "user", "content": [{"type": "text"}]}),
            "messages[1].content[0].text",
            "missing_required_parameter",
        ),
        (
            json!({"role": "user", "content": [{"text": "x"}]}),
            "messages[1].content[0].type",
            "missing_required_parameter",
        ),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}),
            "messages[1].content[0].y",
            "unknown_parameter",
        ),
        (json!({"role": "user", "content": ["x"]}), "messages[1].content[0]", "invalid_type"),
        (
            call(json!({"name": "f", "arguments": "[1]"})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            call(json!({"name": "f", "arguments": "{\"a\":"})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            call(json!({"name": "f", "arguments": "{\"a\":1,\"a\":1}"})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            call(json!({"name": "f", "arguments": "{} x"})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_value",
        ),
        (
            call(json!({"name": "f", "arguments": {}})),
            "messages[1].tool_calls[0].function.arguments",
            "invalid_type",
        ),
        (
            call(json!({"name": "f"})),
            "messages[1].tool_calls[0].function.arguments",
            "missing_required_parameter",
        ),
        (
            call(json!({"name": "f g", "arguments": "{}"})),
            "messages[1].tool_calls[0].function.name",
            "invalid_value",
        ),
        (
            json!({"role": "user", "content": "x", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
            "messages[1].tool_calls",
            "invalid_value",
        ),
    ];
    for (message, param, code) in rows {
        let body = with(&json!({"messages": [{"role": "user", "content": "hi"}, message.clone()]}));
        let bad = parse(&body).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{message}: {bad}");
        assert!(!bad.message.contains("passwd") && !bad.message.contains("169"), "it never repeats content");
    }
}

#[test]
fn tools_are_checked_and_put_in_order() {
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let good = with(&json!({"tool_choice": "none", "tools": [
        {"function": {"parameters": {"required": ["b"], "properties": {"b": {"description": "d", "type": "string"}, "a": {"type": "integer", "maximum": 5.5}}, "type": "object"}, "name": "f", "strict": false, "description": "D"}, "type": "function"},
        {"type": "function", "function": {"name": "g"}},
    ]}));
    let call = parse(&good).unwrap();
    let conversation = conversation(&call);
    assert_eq!(conversation.tool_choice, ToolChoice::None);
    assert_eq!(
        conversation.tools[0].parameters.as_ref().unwrap().to_string(),
        r#"{"type":"object","properties":{"b":{"type":"string","description":"d"},"a":{"type":"integer","maximum":5.5}},"required":["b"]}"#
    );
    assert_eq!(conversation.tools[0].description.as_deref(), Some("D"));
    assert_eq!(conversation.tools[1].parameters, None);

    let path = "tools[0].function";
    let rows = [
        (tool(json!({})), format!("{path}.name"), "missing_required_parameter"),
        (tool(json!({"name": ""})), format!("{path}.name"), "invalid_value"),
        (tool(json!({"name": "x".repeat(65)})), format!("{path}.name"), "invalid_value"),
        (tool(json!({"name": "f", "strict": 1})), format!("{path}.strict"), "invalid_type"),
        (tool(json!({"name": "f", "parameters": []})), format!("{path}.parameters"), "invalid_type"),
        (
            tool(json!({"name": "f", "parameters": {"type": "string"}})),
            format!("{path}.parameters.type"),
            "invalid_value",
        ),
        (
            tool(json!({"name": "f", "parameters": {"properties": 1}})),
            format!("{path}.parameters.properties"),
            "invalid_type",
        ),
        (tool(json!({"name": "f", "x": 1})), format!("{path}.x"), "unknown_parameter"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type".into(), "unsupported_value"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function".into(), "missing_required_parameter"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}]}),
            "tools[1].function.name".into(),
            "invalid_value",
        ),
        (json!({"tools": vec![1; 129]}), "tools[0]".into(), "invalid_type"),
    ];
    for (more, param, code) in rows {
        let bad = parse(&with(&more)).unwrap_err();
        assert_eq!((bad.param, bad.code.name()), (Some(param), code), "{more}");
    }
}

#[test]
fn the_order_of_a_schemas_keywords_never_matters_and_that_of_its_names_stays() {
    let one = r#"{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"b":{"type":"string","format":"date"},"a":{}}}}}]}"#;
    let two = r#"{"tools":[{"function":{"parameters":{"properties":{"b":{"format":"date","type":"string"},"a":{}},"type":"object"},"name":"f"},"type":"function"}],"messages":[{"content":"x","role":"user"}],"model":"m"}"#;
    let limits = WireLimits::default();
    let (one, two) =
        (parse_chat(one.as_bytes(), &limits).unwrap(), parse_chat(two.as_bytes(), &limits).unwrap());
    assert_eq!(one, two);
    let text = |call: &Call| conversation(call).tools[0].parameters.as_ref().unwrap().to_string();
    assert_eq!(text(&one), text(&two));
    assert_eq!(
        text(&one),
        r#"{"type":"object","properties":{"b":{"type":"string","format":"date"},"a":{}}}"#
    );
}

#[test]
fn a_last_message_of_the_assistant_is_continued_where_that_is_asked_for() {
    let messages =
        json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "The answer is"}]);
    let continues = |more: Value| {
        let mut body = with(&more);
        body["messages"] = messages.clone();
        parse(&body).map(|call| conversation(&call).continues)
    };
    assert_eq!(continues(json!({})), Ok(false));
    assert_eq!(continues(json!({"continue_final_message": true})), Ok(true));
    assert_eq!(continues(json!({"continue_final_message": true, "add_generation_prompt": false})), Ok(true));
    for more in [
        json!({"continue_final_message": true, "add_generation_prompt": true}),
        json!({"continue_final_message": false, "add_generation_prompt": false}),
    ] {
        let bad = continues(more).unwrap_err();
        assert_eq!(bad.param.as_deref(), Some("add_generation_prompt"), "{bad}");
    }
}
