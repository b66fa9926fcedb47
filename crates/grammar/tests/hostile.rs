//! Abuse case 2: input that tries to break, block or fill the server is refused in time, or does no harm.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support.rs"]
mod support;

use headrace_domain::{GrammarSyntax, ResponseFormat};
use headrace_grammar::GrammarFault;
use serde_json::{Value, json};
use support::{Rng, compile, compile_in_time, demo, schema, walk};

fn lark(text: String) -> ResponseFormat {
    ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark }
}

#[test]
fn abuse_2_hostile_forms_are_refused_or_harmless() {
    let deep = |open: &str, close: &str| format!("{}\"a\"{}", open.repeat(60_000), close.repeat(60_000));
    let chain: String = (0..9_000).map(|at| format!("r{at}: r{} \"a\"\n", at + 1)).collect();
    let wide: Vec<Value> = (0..3_000)
        .map(
            |at| json!({"type": "object", "properties": {format!("p{at}"): {"pattern": format!("^{at}+x")}}}),
        )
        .collect();
    let patterns: serde_json::Map<String, Value> =
        (0..200).map(|at| (format!("a.*{at}"), json!({}))).collect();
    let forms = [
        lark(format!("start: {}", deep("(", ")"))),
        lark(format!("start: {}", deep("[", "]"))),
        lark(format!("start: r0\n{chain}r9000: \"b\"")),
        lark("start: start".to_owned()),
        lark("start: a\na: b\nb: a".to_owned()),
        lark("start: /a{1,100000}{1,100000}/".to_owned()),
        lark("start: (((/a/?){1,10000}){1,10000}){1,10000}".to_owned()),
        lark("%import common.NOTHING\nstart: \"a\"".to_owned()),
        lark(format!("start: %json {}1{}", "[".repeat(5_000), "]".repeat(5_000))),
        ResponseFormat::Grammar { text: format!("root ::= {}", deep("(", ")")), syntax: GrammarSyntax::Gbnf },
        ResponseFormat::Grammar { text: "root ::= root root | root".to_owned(), syntax: GrammarSyntax::Gbnf },
        ResponseFormat::Regex(format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000))),
        ResponseFormat::Regex("(a{1,1000}){1,1000}".to_owned()),
        ResponseFormat::Regex("(.*a){20}".to_owned()),
        ResponseFormat::Regex("(?=a)b".to_owned()),
        ResponseFormat::Choice(vec![String::new()]),
        ResponseFormat::Choice((0..20_000).map(|at| at.to_string()).collect()),
        schema(json!({"anyOf": wide})),
        schema(json!({"patternProperties": patterns})),
        schema(json!({"type": "string", "maxLength": 100_000_000})),
        schema(json!({"type": "object", "description": "x".repeat(300_000)})),
        schema(json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1})),
    ];
    for (at, form) in forms.into_iter().enumerate() {
        // The limit is 100 ms of CPU time. On a busy machine the refusal takes longer.
        let (mut took, mut compiled) = (Vec::new(), None);
        while compiled.is_none() {
            let began = std::time::Instant::now();
            let told = compile_in_time(form.clone());
            took.push(began.elapsed());
            compiled = (took.last().unwrap().as_millis() < 3_000).then_some(told);
            assert!(compiled.is_some() || took.len() < 5, "form {at} took {took:?}");
        }
        let compiled = compiled.unwrap();
        match compiled {
            Err(GrammarFault::Broke { detail }) => panic!("form {at}: {detail}"),
            Err(_) => {}
            Ok(grammar) => {
                assert!(grammar.state_bytes() <= 32 << 20, "form {at}");
                // The answer may fail within its limits, without affecting others.
                let mut state = grammar.begin();
                let mut mask = vec![0; 128];
                for _ in 0..50 {
                    if state.mask(&mut mask).is_err() || state.is_over() {
                        break;
                    }
                    let next = (0..4096u32).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).unwrap();
                    if state.accept(next).is_err() {
                        break;
                    }
                }
            }
        }
    }
    // Other forms are still served.
    let grammar = compile(ResponseFormat::JsonObject).unwrap();
    assert!(walk(&mut *grammar.begin(), &mut Rng(1), 30).is_some());
}

#[test]
fn abuse_2_a_repetition_of_a_repetition_is_refused() {
    for form in [
        ResponseFormat::Regex("(a+)+$".to_owned()),
        schema(json!({"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}})),
    ] {
        let fault = compile(form).unwrap_err();
        assert!(
            matches!(&fault, GrammarFault::Unsupported { keyword, .. } if keyword == "pattern"),
            "{fault}"
        );
    }
}

#[test]
fn abuse_2_endless_unique_forms_fill_no_memory() {
    for at in 0..400 {
        let unique = json!({"type": "object", "properties": {format!("p{at}"): {"type": "string"}}, "additionalProperties": false});
        compile(schema(unique)).unwrap();
    }
    let (forms, bytes) = demo().compiler.kept();
    assert!(forms <= 256 && bytes <= 128 << 20, "{forms} forms, {bytes} bytes");
    // A cached form is not compiled again.
    let form = || schema(json!({"const": "the same"}));
    let first = compile(form()).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &compile(form()).unwrap()));
}
