//! Edited bodies: the meaning of the edits, and that all other bytes stay unchanged.

use bytes::Bytes;
use headrace_domain::Endpoint;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{BodyEdits, edited, skim};
use headrace_wire::WireLimits;

const EDITS: BodyEdits<'_> =
    BodyEdits { model: "up/\"x\"", usage: true, max_tokens: Some(("max_completion_tokens", 9)), label: None };

fn edit(endpoint: Endpoint, body: &str, edits: &BodyEdits<'_>) -> String {
    let call = skim(endpoint, Bytes::copy_from_slice(body.as_bytes()), &WireLimits::default()).unwrap();
    String::from_utf8(edited(&call, edits).unwrap().to_vec()).unwrap()
}

#[test]
fn edits_stand_where_the_fields_stood() {
    let plain = BodyEdits { model: "up", usage: false, max_tokens: None, label: None };
    let usage = BodyEdits { usage: true, ..plain };
    let bound = BodyEdits { max_tokens: Some(("max_tokens", 7)), ..plain };
    let rows = [
        (r#"{"model":"m"}"#, plain, r#"{"model":"up"}"#),
        (r#" { "a" : 1.50 , "mod\u0065l" : "m" }"#, plain, r#" { "a" : 1.50 , "mod\u0065l" : "up" }"#),
        (
            r#"{"model":"m","stream":true}"#,
            usage,
            r#"{"model":"up","stream_options":{"include_usage":true},"stream":true}"#,
        ),
        (
            r#"{"stream_options":{},"model":"m","stream":true}"#,
            usage,
            r#"{"stream_options":{"include_usage":true},"model":"up","stream":true}"#,
        ),
        (
            r#"{"stream_options":null,"model":"m","stream":true}"#,
            usage,
            r#"{"stream_options":{"include_usage":true},"model":"up","stream":true}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{ "x" : [] }}"#,
            usage,
            r#"{"model":"up","stream":true,"stream_options":{"include_usage":true, "x" : [] }}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"x":1, "include_usage" : false }}"#,
            usage,
            r#"{"model":"up","stream":true,"stream_options":{"x":1, "include_usage" : true }}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
            usage,
            r#"{"model":"up","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (r#"{"model":"m","stream":false}"#, usage, r#"{"model":"up","stream":false}"#),
        (r#"{"model":"m","max_tokens":null}"#, bound, r#"{"model":"up","max_tokens":7}"#),
        (r#"{"model":"m"}"#, bound, r#"{"model":"up","max_tokens":7}"#),
        (r#"{"model":"m","max_tokens":3}"#, bound, r#"{"model":"up","max_tokens":3}"#),
        (r#"{"model":"m","max_completion_tokens":3}"#, bound, r#"{"model":"up","max_completion_tokens":3}"#),
        (r#"{"headrace":{"explain":true},"model":"m"}"#, plain, r#"{"model":"up"}"#),
        (r#"{ "timeout":1, "headrace":{} , "model":"m" }"#, plain, r#"{ "model":"up" }"#),
        (r#"{"model":"m", "timeout":1 , "headrace":{} }"#, plain, r#"{"model":"up" }"#),
        (r#"{"headrace":null,"a":0,"timeout":1,"model":"m","b":1}"#, plain, r#"{"a":0,"model":"up","b":1}"#),
    ];
    for (body, edits, expected) in rows {
        assert_eq!(edit(Endpoint::ChatCompletions, body, &edits), expected, "{body}");
    }
}

#[test]
fn messages_need_no_usage_asked_for() {
    let body = r#"{"model":"m","max_tokens":0,"stream":true,"x":[{}]}"#;
    assert_eq!(edit(Endpoint::Messages, body, &EDITS), body.replace("\"m\"", r#""up/\"x\"""#));
}

/// Small JSON of any shape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,6}|[\"\\\\{}\\[\\],:\n]{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-e\"\\\\]{1,2}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A field as written in a body: a key with or without escapes, white space, and the value.
fn spelled(key: &str, value: &Value, style: u8) -> String {
    let key = match style & 1 {
        0 => serde_json::to_string(key).unwrap(),
        _ => format!("\"{}\"", key.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect::<String>()),
    };
    let space = [" ", "", "\n\t", "\r "][usize::from(style >> 1 & 3)];
    let value = if style & 8 == 0 { value.to_string() } else { serde_json::to_string_pretty(value).unwrap() };
    format!("{space}{key}{space}:{space}{value}{space}")
}

proptest! {
    /// The edited body means the original with its edits, and the bytes of all other fields stay as they came.
    #[test]
    fn nothing_else_changes(
        others in prop::collection::btree_map("[f-k]{1,3}", any_json(), 0..4),
        own in prop::collection::btree_map("headrace|timeout", Just(Value::Null), 0..3),
        bound in prop::option::of(prop_oneof![Just(Value::Null), Just(json!(5))]),
        options in prop::option::of(prop_oneof![
            Just(Value::Null), Just(json!({})), Just(json!({"include_usage": false, "z": 1})), Just(json!({"y": [1, "}"]})),
        ]),
        stream in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut fields: Vec<(String, Value)> = others.into_iter().chain(own).collect();
        fields.push(("model".into(), json!("m")));
        fields.push(("stream".into(), json!(stream)));
        fields.extend(bound.map(|bound| ("max_completion_tokens".into(), bound)));
        fields.extend(options.map(|options| ("stream_options".into(), options)));
        let mut dice = seed;
        let mut roll = || {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            dice >> 33
        };
        fields.sort_by_cached_key(|_| roll());
        let spelled: Vec<String> =
            fields.iter().map(|(key, value)| spelled(key, value, u8::try_from(roll() & 15).unwrap())).collect();
        let body = format!("{{{}}}", spelled.join(","));
        let got = edit(Endpoint::ChatCompletions, &body, &EDITS);

        let mut expected: Map<String, Value> = fields.iter().cloned().collect();
        expected.remove("headrace");
        expected.remove("timeout");
        expected["model"] = json!(EDITS.model);
        let bound = expected.entry("max_completion_tokens").or_insert(Value::Null);
        if bound.is_null() {
            *bound = json!(9);
        }
        if stream {
            let options = expected.entry("stream_options").or_insert(Value::Null);
            if options.is_null() {
                *options = json!({});
            }
            options["include_usage"] = json!(true);
        }
        prop_assert_eq!(serde_json::from_str::<Value>(&got).unwrap(), Value::Object(expected), "{}", body);
        for ((key, _), text) in fields.iter().zip(&spelled) {
            let edited = ["headrace", "timeout", "model", "max_completion_tokens", "stream_options"];
            if !edited.contains(&key.as_str()) {
                // White space around a field may disappear together with a neighbour that is left out.
                prop_assert!(got.contains(text.trim()), "{} in {}", text, got);
            }
        }
    }

    /// If nothing is left out or added, the bytes around the model's name stay as they came.
    #[test]
    fn around_the_name_all_is_as_it_came(
        before in prop::collection::btree_map("[f-k]{1,3}", any_json(), 0..4),
        after in prop::collection::btree_map("[p-w]{1,3}", any_json(), 0..4),
        style in any::<u8>(),
    ) {
        let side = |fields: &std::collections::BTreeMap<String, Value>| {
            fields.iter().map(|(key, value)| spelled(key, value, style)).collect::<Vec<_>>()
        };
        let mut all = side(&before);
        all.push(" \"model\" : \u{0}".to_owned());
        all.extend(side(&after));
        let body = format!("{{{}}}", all.join(","));
        let plain = BodyEdits { model: "up", usage: true, max_tokens: None, label: None };
        let got = edit(Endpoint::ChatCompletions, &body.replacen('\u{0}', "\"m\"", 1), &plain);
        prop_assert_eq!(got, body.replacen('\u{0}', "\"up\"", 1));
    }
}

/// A caller's own salt is never passed on unchanged: two tenants with the same salt would share prefixes.
#[test]
fn a_label_takes_the_place_of_every_salt() {
    let label = |tenant: &str| headrace_domain::CacheSalt::derive(&[7; 32], tenant, "m", None).label();
    let a = label("a");
    let plain = BodyEdits { model: "up", usage: false, max_tokens: None, label: Some(("cache_salt", a)) };
    let extra = BodyEdits { label: Some(("extra_key", a)), ..plain };
    let none = BodyEdits { label: None, ..plain };
    for (body, edits, expected) in [
        (r#"{"model":"m","x":1}"#, plain, format!(r#"{{"model":"up","cache_salt":"{a}","x":1}}"#)),
        (r#"{"x":1,"model":"m"}"#, extra, format!(r#"{{"x":1,"model":"up","extra_key":"{a}"}}"#)),
        (
            r#"{"cache_salt":"s","model":"m","extra_key":"k"}"#,
            plain,
            format!(r#"{{"model":"up","cache_salt":"{a}"}}"#),
        ),
        (r#"{"model":"m","cache\u005fsalt":"s"}"#, extra, format!(r#"{{"model":"up","extra_key":"{a}"}}"#)),
        (r#"{"model":"m","cache_salt":"s"}"#, none, r#"{"model":"up"}"#.to_owned()),
    ] {
        let call =
            skim(Endpoint::ChatCompletions, Bytes::copy_from_slice(body.as_bytes()), &WireLimits::default());
        assert_eq!(edited(&call.unwrap(), &edits).unwrap(), expected, "{body}");
    }
    let salt = |body: &str| {
        let read =
            skim(Endpoint::ChatCompletions, Bytes::copy_from_slice(body.as_bytes()), &WireLimits::default());
        read.unwrap().cache_salt
    };
    let salts = [
        r#"{"model":"m"}"#,
        r#"{"model":"m","cache_salt":"a"}"#,
        r#"{"model":"m","extra_key":"a"}"#,
        r#"{"model":"m","cache_salt":"a","extra_key":"b"}"#,
        r#"{"model":"m","cache_salt":"1:a","extra_key":"b"}"#,
        r#"{"model":"m","cache_salt":"a:b","extra_key":"c"}"#,
        r#"{"model":"m","cache_salt":"a","extra_key":"b:c"}"#,
    ]
    .map(salt);
    for (at, one) in salts.iter().enumerate() {
        assert!(salts.iter().skip(at + 1).all(|other| one != other), "{salts:?}");
    }
}
