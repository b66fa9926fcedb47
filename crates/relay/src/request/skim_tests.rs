//! The fields of a relayed call that `skim` reads, those that it leaves alone, and those that it refuses as `parse`
//! does.

use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Call, Endpoint, Prompt, ServiceTier};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{model_named, skim};
use headrace_wire::{BadRequest, WireLimits, parse};

const ALL: [Endpoint; 3] = [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages];

fn read(endpoint: Endpoint, body: &str) -> Result<Call, BadRequest> {
    skim(endpoint, Bytes::copy_from_slice(body.as_bytes()), &WireLimits::default())
}

fn size(endpoint: Endpoint, body: &Value) -> (usize, u32) {
    match read(endpoint, &body.to_string()).unwrap().prompt {
        Prompt::Relayed(relayed) => (relayed.text_bytes, relayed.media),
        _ => panic!("a body that is sent on"),
    }
}

#[test]
fn what_limits_and_money_need_is_read() {
    let body = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true, "x": 1}, "n": 3,
        "max_completion_tokens": 7, "service_tier": "flex", "timeout": 2.5, "headrace": {"explain": true},
        "cache_salt": "s", "temperature": "hot", "messages": 5, "no_such": {"a": [1, null]}});
    let text = body.to_string();
    let call = read(Endpoint::ChatCompletions, &text).unwrap();
    assert_eq!((call.model.as_str(), call.stream, call.include_usage, call.explain), ("m", true, true, true));
    assert_eq!((call.sampling.n, call.sampling.max_tokens), (3, Some(7)));
    assert_eq!((call.tier, call.timeout), (ServiceTier::Flex, Some(Duration::from_secs_f32(2.5))));
    assert_eq!(call.cache_salt.as_deref(), Some("s"));
    let Prompt::Relayed(relayed) = call.prompt else { panic!("a body that is sent on") };
    assert_eq!(relayed.body, text);

    let call =
        read(Endpoint::Messages, r#"{"model":"m","max_tokens":0,"n":2,"service_tier":"standard_only"}"#)
            .unwrap();
    assert_eq!((call.sampling.n, call.sampling.max_tokens, call.include_usage), (1, Some(0), true));
    assert_eq!(call.tier, ServiceTier::Standard);
}

/// For fields that both read, `skim` refuses with the same code and parameter as `parse`.
#[test]
fn what_is_read_is_refused_as_ever() {
    let deep = format!(r#"{{"model":"m","max_tokens":1,"x":{}1{}}}"#, "[".repeat(64), "]".repeat(64));
    let rows = [
        ("", "invalid_json"),
        ("[]", "invalid_type"),
        (r#"{"model":"m"} x"#, "invalid_json"),
        (r#"{"model":"m","x":tru}"#, "invalid_json"),
        (r#"{"model":"m","x":"\ud800"}"#, "invalid_json"),
        ("{\"model\":\"m\",\"x\":\"\u{1}\"}", "invalid_json"),
        (r#"{"model":"m","x":{"a":1,"\u0061":2}}"#, "duplicate_key"),
        (r#"{"model":"m","mod\u0065l":"n"}"#, "duplicate_key"),
        (deep.as_str(), "json_too_deep"),
        (r#"{"model":""}"#, "empty_string"),
        (r#"{"model":7}"#, "invalid_type"),
        (r#"{"max_tokens":1}"#, "missing_required_parameter"),
        (r#"{"model":"m","stream":1}"#, "invalid_type"),
        (r#"{"model":"m","max_tokens":1048577}"#, "integer_above_max_value"),
        (r#"{"model":"m","max_tokens":-1}"#, "integer_below_min_value"),
        (r#"{"model":"m","max_tokens":1e3}"#, "invalid_type"),
        (r#"{"model":"m","max_tokens":1,"timeout":0}"#, "decimal_below_min_value"),
        (r#"{"model":"m","max_tokens":1,"headrace":{"x":1}}"#, "unknown_parameter"),
        (r#"{"model":"m","max_tokens":1,"cache_salt":[]}"#, "invalid_type"),
    ];
    for (body, code) in rows {
        for endpoint in ALL {
            let bad = read(endpoint, body).unwrap_err();
            assert_eq!(bad.code.name(), code, "{body}: {bad}");
        }
    }
    let openai = [
        (r#""n":129"#, "n", "integer_above_max_value"),
        (r#""n":true"#, "n", "invalid_type"),
        (r#""max_tokens":0"#, "max_tokens", "integer_below_min_value"),
        (r#""service_tier":5"#, "service_tier", "invalid_type"),
        (r#""stream_options":{"include_usage":1}"#, "stream_options.include_usage", "invalid_type"),
    ];
    let prompts = [
        (Endpoint::ChatCompletions, r#""messages":[{"role":"user","content":"x"}]"#),
        (Endpoint::Completions, r#""prompt":"x""#),
    ];
    for (more, param, code) in openai {
        for (endpoint, prompt) in prompts {
            let body = format!(r#"{{"model":"m",{prompt},{more}}}"#);
            let bad = read(endpoint, &body).unwrap_err();
            assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{body}");
            assert_eq!(parse(endpoint, body.as_bytes(), &WireLimits::default()).unwrap_err(), bad, "{body}");
        }
    }
    let both = r#"{"model":"m","max_tokens":1,"max_completion_tokens":2}"#;
    assert_eq!(read(Endpoint::ChatCompletions, both).unwrap_err().code.name(), "invalid_value");
    let ranked = r#"{"model":"m","prompt":"x","best_of":5}"#;
    assert_eq!(read(Endpoint::Completions, ranked).unwrap_err().param.as_deref(), Some("best_of"));
    assert_eq!(
        read(Endpoint::Messages, r#"{"model":"m"}"#).unwrap_err().param.as_deref(),
        Some("max_tokens")
    );
    assert_eq!(
        skim(ALL[0], Bytes::from_static(b"{\"\xff\":1}"), &WireLimits::default()).unwrap_err().code.name(),
        "invalid_json"
    );
}

/// Parameters of some servers that would bypass limits, prices or fairness.
#[test]
fn nothing_gets_around_what_is_decided_here() {
    for (more, param) in [
        (r#""n_predict":-1"#, "n_predict"),
        (r#""max_new_tokens":9"#, "max_new_tokens"),
        (r#""n_cmpl":9"#, "n_cmpl"),
        (r#""models":["dear"]"#, "models"),
        (r#""fallbacks":[{"model":"dear"}]"#, "fallbacks"),
        (r#""priority":-1"#, "priority"),
        (r#""kv_transfer_params":{"remote_host":"h"}"#, "kv_transfer_params"),
        (r#""bootstrap_host":"h""#, "bootstrap_host"),
        (r#""logits_processors":["os.system"]"#, "logits_processors"),
    ] {
        for endpoint in ALL {
            let bad = read(endpoint, &format!(r#"{{"model":"m","max_tokens":1,{more}}}"#)).unwrap_err();
            assert_eq!(
                (bad.param.as_deref(), bad.code.name()),
                (Some(param), "unsupported_parameter"),
                "{more}"
            );
        }
    }
    let nothing =
        r#"{"model":"m","max_tokens":1,"priority":0,"models":[],"fallbacks":null,"n_predict":null}"#;
    for endpoint in ALL {
        read(endpoint, nothing).unwrap();
    }
}

#[test]
fn lists_are_bounded() {
    let limits = WireLimits::default();
    let many = |item: &str, count: usize| vec![item; count].join(",");
    let message = r#"{"role":"user","content":"x"}"#;
    let rows = [
        (format!(r#""messages":[{}]"#, many(message, limits.max_messages + 1)), "messages"),
        (
            format!(r#""messages":[{{"content":[{}]}}]"#, many("{}", limits.max_content_parts + 1)),
            "messages[0].content",
        ),
        (
            format!(r#""messages":[{{"tool_calls":[{}]}}]"#, many("{}", limits.max_tool_calls + 1)),
            "messages[0].tool_calls",
        ),
        (format!(r#""tools":[{}]"#, many("{}", limits.max_tools + 1)), "tools"),
    ];
    for (more, param) in rows {
        let bad = read(Endpoint::ChatCompletions, &format!(r#"{{"model":"m",{more}}}"#)).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), "array_above_max_length"));
    }
    let values = format!(r#"{{"model":"m","x":[{}]}}"#, many("0", limits.max_free_form_values));
    assert_eq!(
        read(Endpoint::ChatCompletions, &values).unwrap_err().code.name(),
        "object_above_max_properties"
    );
    let prompts = format!(r#"{{"model":"m","prompt":[{}]}}"#, many("\"a\"", limits.max_prompts + 1));
    assert_eq!(read(Endpoint::Completions, &prompts).unwrap_err().param.as_deref(), Some("prompt"));
    let choices = format!(r#"{{"model":"m","n":2,"prompt":[{}]}}"#, many("\"a\"", 65));
    assert_eq!(read(Endpoint::Completions, &choices).unwrap_err().param.as_deref(), Some("n"));
}

#[test]
fn text_and_media_are_measured() {
    let base64 = "A".repeat(1000);
    let user = |parts: Value| json!({"model": "", "messages": [{"role": "", "content": parts}]});
    let chat = |mut body: Value| {
        body["model"] = json!("m");
        size(Endpoint::ChatCompletions, &body)
    };
    assert_eq!(chat(user(json!("12345"))), (5, 0));
    assert_eq!(chat(user(json!("\u{e9}\n"))), (3, 0));
    let image = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{base64}")}});
    assert_eq!(chat(user(json!([image, {"type": "text", "text": "123"}]))), (3, 1));
    let link = json!({"type": "image_url", "image_url": {"url": "https://x"}});
    assert_eq!(chat(user(json!([link]))), (9, 1));
    let sound = json!({"type": "input_audio", "input_audio": {"data": base64, "format": ""}});
    let file = json!({"type": "file", "file": {"file_data": base64, "filename": "12"}});
    assert_eq!(chat(user(json!([sound, file]))), (2, 2));
    // A text always counts, even if it looks like data, and in every place.
    assert_eq!(chat(user(json!([{"type": "", "text": format!("data:,{base64}")}]))), (1006, 0));
    let schema = json!({"model": "", "tools": [{"function": {"parameters": {"data": base64,
        "url": "data:1"}}}]});
    assert_eq!(chat(schema), (1006, 0));
    let blocks = json!([
        {"type": "image", "source": {"type": "base64", "media_type": "", "data": base64}},
        {"type": "document", "source": {"data": base64, "type": "text", "media_type": ""}, "title": "12"},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "123"}]}},
        {"type": "tool_result", "tool_use_id": "1", "content": [
            {"type": "image", "source": {"type": "base64", "data": base64}}, {"type": "text", "text": "1234"}]},
    ]);
    let body = json!({"model": "m", "max_tokens": 1, "system": "12", "messages": [{"role": "",
        "content": blocks}]});
    assert_eq!(size(Endpoint::Messages, &body), (1000 + 2 + 3 + 1 + 4 + 2, 4));
    let prompts = json!({"model": "m", "prompt": ["12", [1, 2, 3]], "suffix": "1"});
    assert_eq!(size(Endpoint::Completions, &prompts), (15, 0));
    assert_eq!(size(Endpoint::Completions, &json!({"model": "m", "prompt": [1, 2]})), (8, 0));
}

#[test]
fn the_model_is_found_before_the_body_is_read() {
    let rows = [
        (r#"{"model":"m""#, Some("m")),
        (r#" { "x" : {"model":"a","y":["}",{"z":"\"]"}]} , "model" : "b\u0063" }"#, Some("bc")),
        (r#"{"x":-1.5e3,"y":null,"mod\u0065l":"m"}"#, Some("m")),
        (r#"{"x":[1,2,{"model":"a"}]}"#, None),
        (r#"{"model":7}"#, None),
        (r#"{"model":null,"model":"m"}"#, None),
        (r#"["model"]"#, None),
        (r#"{"x":"#, None),
        (r#"{"x":]"#, None),
        (r#"{"x":,"model":"m"}"#, None),
        ("", None),
        ("{", None),
        (r#"{"x":"\"#, None),
        (r#"{"\"#, None),
    ];
    for (body, expected) in rows {
        assert_eq!(model_named(body.as_bytes()).as_deref(), expected, "{body}");
    }
}

proptest! {
    /// No input makes a reader panic, and `skim` and `model_named` find the same model in every accepted body.
    #[test]
    fn any_bytes(body in prop::collection::vec(prop_oneof![
        Just(b'{'), Just(b'}'),
            Just(b'"'), Just(b'['), Just(b']'), Just(b','), Just(b':'), Just(b'\\'), Just(b' '), any::<u8>(),
    ], 0..40), named in any::<bool>()) {
        let body = if named { [br#"{"model":"m","x":"#, body.as_slice(), b"}"].concat() } else { body };
        let found = model_named(&body);
        super::texts(&body, &mut |_, _| {});
        for endpoint in ALL {
            if let Ok(call) = skim(endpoint, Bytes::from(body.clone()), &WireLimits::default()) {
                prop_assert_eq!(found.as_ref(), Some(&call.model));
            }
        }
    }
}

#[test]
fn of_a_response_its_bound_and_its_size_are_read() {
    let body = json!({"model": "m", "stream": true, "max_output_tokens": 7, "instructions": "12", "of_tomorrow": {"a": [1.50]},
    "tools": [{"type": "web_search"}], "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "1234"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAAAAAAAAAA"}]},
        {"type": "function_call_output", "call_id": "c", "output": "12345678"},
        {"type": "item_of_tomorrow", "words": ["12"]},
    ]});
    let call = read(Endpoint::Responses, &body.to_string()).unwrap();
    assert_eq!((call.sampling.max_tokens, call.stream, call.sampling.n), (Some(7), true, 1));
    let (plain, media) = size(Endpoint::Responses, &body);
    assert_eq!(media, 1);
    let mut longer = body.clone();
    longer["input"][1]["output"] = json!("12345678 and as many more");
    assert_eq!(
        size(Endpoint::Responses, &longer).0 - plain,
        " and as many more".len(),
        "texts count, data does not"
    );
    for (param, code) in
        [("max_output_tokens", "integer_below_min_value"), ("priority", "unsupported_parameter")]
    {
        let mut bad = body.clone();
        bad[param] = if param == "priority" { json!(5) } else { json!(0) };
        let bad = read(Endpoint::Responses, &bad.to_string()).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code));
    }
}

#[test]
fn the_end_user_is_where_its_dialect_has_it() {
    let user = |more: &str| {
        format!(r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"x"}}],{more}}}"#)
    };
    for (endpoint, more, expected) in [
        (Endpoint::ChatCompletions, r#""user":"u""#, Some("u")),
        (Endpoint::ChatCompletions, r#""user":"u","safety_identifier":"s""#, Some("s")),
        (Endpoint::ChatCompletions, r#""user":"u","safety_identifier":5"#, Some("u")),
        (Endpoint::ChatCompletions, r#""metadata":{"user_id":"m"}"#, None),
        (Endpoint::Messages, r#""metadata":{"k":"v","user_id":"m"}"#, Some("m")),
        (Endpoint::Messages, r#""metadata":["user_id"]"#, None),
        (Endpoint::Messages, r#""user":"u","safety_identifier":"s""#, None),
    ] {
        let call = read(endpoint, &user(more)).unwrap();
        assert_eq!(call.user.as_ref().map(|user| user.as_str()), expected, "{more}");
    }
    let bad = read(Endpoint::Messages, &user(r#""metadata":{"User_id":"m"}"#)).unwrap_err();
    assert_eq!(bad.param.as_deref(), Some("metadata.User_id"));
}
