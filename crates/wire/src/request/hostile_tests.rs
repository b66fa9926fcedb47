//! Hostile bodies. Each is refused with the parameter's name, and costs no work or memory in proportion to the numbers
//! in it.

use headrace_domain::Endpoint;
use proptest::prelude::*;

use crate::fault::BadRequest;
use crate::json::JsonReader;
use crate::limits::WireLimits;
use crate::request::parse;

const ALL: [Endpoint; 4] =
    [Endpoint::ChatCompletions, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses];

fn refused(endpoint: Endpoint, body: &str) -> BadRequest {
    parse(endpoint, body.as_bytes(), &WireLimits::default()).unwrap_err()
}

/// The most bytes that may be read before a list of a million items is refused. The test counts work instead of time.
const MAX_BYTES_READ: usize = 300_000;

#[test]
fn abuse_1_numbers_and_lists_beyond_reason() {
    let million = |item: &str| format!("[{item}{}]", format!(",{item}").repeat(999_999));
    let chat = |more: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],{more}}}"#);
    let raw = |prompt: &str| format!(r#"{{"model":"m","prompt":{prompt}}}"#);
    let rows = [
        (Endpoint::ChatCompletions, chat(r#""n":1000000"#), "n", "integer_above_max_value"),
        (Endpoint::ChatCompletions, chat(r#""n":1e6"#), "n", "invalid_type"),
        (
            Endpoint::ChatCompletions,
            chat(r#""max_tokens":9223372036854775808"#),
            "max_tokens",
            "integer_above_max_value",
        ),
        (
            Endpoint::ChatCompletions,
            chat(r#""max_tokens":99999999999999999999999"#),
            "max_tokens",
            "integer_above_max_value",
        ),
        (
            Endpoint::ChatCompletions,
            chat(r#""max_tokens":-99999999999999999999999"#),
            "max_tokens",
            "integer_below_min_value",
        ),
        (Endpoint::ChatCompletions, chat(r#""max_tokens":-1"#), "max_tokens", "integer_below_min_value"),
        (Endpoint::ChatCompletions, chat(r#""temperature":1e999"#), "temperature", "decimal_above_max_value"),
        (
            Endpoint::ChatCompletions,
            chat(r#""temperature":-1e999"#),
            "temperature",
            "decimal_below_min_value",
        ),
        (
            Endpoint::ChatCompletions,
            chat(r#""seed":99999999999999999999"#),
            "seed",
            "integer_above_max_value",
        ),
        (
            Endpoint::ChatCompletions,
            chat(&format!(r#""stop":{}"#, million("\"a\""))),
            "stop",
            "array_above_max_length",
        ),
        (
            Endpoint::ChatCompletions,
            chat(&format!(r#""tools":{}"#, million("{}"))),
            "tools[0].type",
            "missing_required_parameter",
        ),
        (
            Endpoint::ChatCompletions,
            format!(r#"{{"messages":{}}}"#, million(r#"{"role":"user","content":""}"#)),
            "messages",
            "array_above_max_length",
        ),
        (Endpoint::Completions, raw(&million("\"a\"")), "prompt", "array_above_max_length"),
        (Endpoint::Completions, raw(&million("[1]")), "prompt", "array_above_max_length"),
        (Endpoint::Completions, raw(&million("1")), "prompt", "array_above_max_length"),
        (
            Endpoint::Messages,
            format!(r#"{{"messages":{}}}"#, million(r#"{"role":"user","content":""}"#)),
            "messages",
            "array_above_max_length",
        ),
    ];
    for (endpoint, body, param, code) in rows {
        let limits = WireLimits::default();
        let mut reader = JsonReader::new(body.as_bytes(), 64, limits.max_free_form_values).unwrap();
        let bad = BadRequest::from(super::read(endpoint, &mut reader, &limits).unwrap_err());
        let work = reader.position();
        let shown = &body[..body.len().min(100)];
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{shown}: {bad}");
        assert!(work <= MAX_BYTES_READ, "{work} for {shown}");
    }
}

#[test]
fn not_a_number_is_not_json() {
    for word in ["NaN", "Infinity", "-Infinity", "nan", "0x10", "1_000"] {
        let bad = refused(Endpoint::ChatCompletions, &format!(r#"{{"temperature":{word}}}"#));
        assert_eq!((bad.code.name(), bad.param), ("invalid_json", None), "{word}: {}", bad.message);
    }
}

#[test]
fn depth_is_bounded_everywhere() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(60_000), close.repeat(60_000));
    for endpoint in ALL {
        assert_eq!(refused(endpoint, &"[".repeat(60_000)).code.name(), "invalid_type");
        let body = format!(r#"{{"tools":{}}}"#, deep("[", "]"));
        assert!(["invalid_type", "unsupported_parameter"].contains(&refused(endpoint, &body).code.name()));
    }
    let schema = |inner: &str| {
        format!(
            r#"{{"tools":[{{"type":"function","function":{{"name":"f","parameters":{{"x":{inner}}}}}}}]}}"#
        )
    };
    assert_eq!(refused(Endpoint::ChatCompletions, &schema(&deep("[", "]"))).code.name(), "json_too_deep");
    assert_eq!(
        refused(Endpoint::ChatCompletions, &schema(&deep("{\"a\":", "}"))).code.name(),
        "json_too_deep"
    );
    let arguments = deep("{\\\"a\\\":", "}");
    let body = format!(
        r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{arguments}"}}}}]}}]}}"#
    );
    let bad = refused(Endpoint::ChatCompletions, &body);
    assert_eq!(bad.param.as_deref(), Some("messages[0].tool_calls[0].function.arguments"));
    assert!(bad.message.len() < 2_000, "{}", bad.message.len());
}

#[test]
fn free_form_values_are_counted_over_the_whole_request() {
    let list = format!("[1{}]", ",1".repeat(30_000));
    let tool = |name: &str| {
        format!(r#"{{"type":"function","function":{{"name":"{name}","parameters":{{"enum":{list}}}}}}}"#)
    };
    let bad = refused(Endpoint::ChatCompletions, &format!(r#"{{"tools":[{},{}]}}"#, tool("a"), tool("b")));
    assert_eq!(bad.code.name(), "object_above_max_properties");
    assert!(bad.param.unwrap().starts_with("tools[1].function.parameters.enum["));
    let pairs: Vec<_> = (0..1025).map(|id| format!("\"{id}\":1")).collect();
    let bad = refused(Endpoint::Completions, &format!(r#"{{"logit_bias":{{{}}}}}"#, pairs.join(",")));
    assert_eq!((bad.param.as_deref(), bad.code.name()), (Some("logit_bias"), "object_above_max_properties"));
}

#[test]
fn one_meaning_or_none() {
    for endpoint in ALL {
        for (body, code, param) in [
            (r#"{"model":"a","model":"a"}"#, "duplicate_key", Some("model")),
            (r#"{"model":"a","m\u006fdel":"b"}"#, "duplicate_key", Some("model")),
            ("", "invalid_json", None),
            ("[]", "invalid_type", None),
            ("\"x\"", "invalid_type", None),
            (r#"{"model":"a"} {}"#, "invalid_json", None),
            (r#"{"model":"\ud800"}"#, "invalid_json", None),
        ] {
            let bad = refused(endpoint, body);
            assert_eq!((bad.code.name(), bad.param.as_deref()), (code, param), "{body}");
        }
        let bad = parse(endpoint, b"{\"model\":\"\xff\"}", &WireLimits::default()).unwrap_err();
        assert_eq!(bad.code.name(), "invalid_json");
    }
    let nested = r#"{"messages":[{"role":"user","content":"a","content":"b"}]}"#;
    assert_eq!(refused(Endpoint::ChatCompletions, nested).param.as_deref(), Some("messages[0].content"));
    let long_key = format!(r#"{{"{}":1}}"#, "k".repeat(100_000));
    assert!(refused(Endpoint::Messages, &long_key).message.len() < 1_000);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for endpoint in ALL {
            let _ = parse(endpoint, &bytes, &WireLimits::default());
        }
    }

    #[test]
    fn no_mutation_makes_it_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let good = br#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00\n"}]}],"tools":
            [{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"temperature":0.5,"logit_bias":{"1":2}}"#;
        let mut bytes = good.to_vec();
        let index = at.index(bytes.len());
        if cut { bytes.truncate(index) } else { bytes[index] = byte }
        for endpoint in ALL {
            let _ = parse(endpoint, &bytes, &WireLimits::default());
        }
    }

    #[test]
    fn message_text_arrives_byte_for_byte(text in any::<String>()) {
        prop_assume!(!headrace_domain::is_blank(&text));
        let body = serde_json::json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).to_string();
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
            let call = parse(endpoint, body.as_bytes(), &WireLimits::default()).unwrap();
            let headrace_domain::Prompt::Conversation(conversation) = call.prompt else { panic!() };
            prop_assert_eq!(conversation.messages[0].content.as_deref(), Some(text.as_str()));
        }
    }
}
