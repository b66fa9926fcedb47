//! The JSON-Schema-Test-Suite (draft 2020-12), judged by the masks. For each schema that compiles, every valid instance
//! must pass and no invalid one may. Schemas that cannot be enforced must be refused by name.
//!
//! `data/json-schema-test-suite.json` has the files for these keywords from Python's `jsonschema` 4.26, without
//! comments. Its licence is in the same directory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_checkpoint::TokenizerConfig;
use headrace_domain::{JsonForm, ResponseFormat};
use headrace_engine_api::CompiledGrammar;
use headrace_grammar::{FormCompiler, FormLimits, GrammarFault};
use headrace_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

const SUITE: &str = include_str!("data/json-schema-test-suite.json");
/// The id that ends an answer. The ids below it are bytes.
const END: u32 = 256;
/// Most key orders of one instance that are tried.
const MOST_WAYS: usize = 120;

/// Valid instances that are never written: a whole number that a schema names or requires, spelled with a zero
/// fraction.
const NEVER_WRITTEN: [&str; 9] = [
    "const: const with 0 does not match other zero-like types: 0.0",
    "const: const with 1 does not match true: 1.0",
    "const: const with -2.0 matches integer and float types: -2.0",
    "const: float and integers are equal up to 64-bit representation limits: 9007199254740992.0",
    "enum: enum with 0 does not match false: 0.0",
    "enum: enum with [0] does not match [false]: [0.0]",
    "enum: enum with 1 does not match true: 1.0",
    "enum: enum with [1] does not match [true]: [1.0]",
    "type: integer type matches integers: 1.0",
];

/// A compiler over single bytes, so that tokenization does not matter.
fn compiler() -> FormCompiler {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let letter = |byte: u8| {
        let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
        let code = if printable(byte) { u32::from(byte) } else { 0x100 + before };
        char::from_u32(code).unwrap().to_string()
    };
    let vocab: Map<String, Value> = (0..=255u8).map(|byte| (letter(byte), json!(byte))).collect();
    let end = json!({"id": END, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let file = json!({
        "version": "1.0", "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let tokenizer = Tokenizer::new(file.to_string().as_bytes(), &TokenizerConfig::default()).unwrap();
    FormCompiler::new(Arc::new(tokenizer), &[END], END + 1)
}

/// Whether a grammar accepts a text as a whole answer.
fn passes(grammar: &dyn CompiledGrammar, text: &str) -> bool {
    let mut state = grammar.begin();
    if text.bytes().any(|byte| state.is_over() || state.accept(u32::from(byte)).is_err()) {
        return false;
    }
    let mut mask = vec![0; 9];
    state.is_over() || state.mask(&mut mask).is_ok() && mask[8] & 1 == 1
}

/// The same value with its keys in every order, because a grammar requires the schema's order.
fn ways(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => {
            let each: Vec<Vec<Value>> = items.iter().map(ways).collect();
            let mut all = vec![Vec::new()];
            for ways in &each {
                all = all
                    .iter()
                    .flat_map(|begun: &Vec<Value>| {
                        ways.iter().map(move |way| [begun.as_slice(), std::slice::from_ref(way)].concat())
                    })
                    .take(MOST_WAYS)
                    .collect();
            }
            all.into_iter().map(Value::Array).collect()
        }
        Value::Object(members) => {
            let members: Vec<(&String, Vec<Value>)> =
                members.iter().map(|(key, value)| (key, ways(value))).collect();
            let mut all = Vec::new();
            orders(&members, &mut Vec::new(), &mut all);
            all
        }
        scalar => vec![scalar.clone()],
    }
}

fn orders(members: &[(&String, Vec<Value>)], begun: &mut Vec<(String, Value)>, all: &mut Vec<Value>) {
    if begun.len() == members.len() {
        all.push(Value::Object(begun.iter().cloned().collect()));
        return;
    }
    for (key, ways) in
        members.iter().filter(|(key, _)| begun.iter().all(|(other, _)| other != *key)).collect::<Vec<_>>()
    {
        for way in ways {
            if all.len() >= MOST_WAYS {
                return;
            }
            begun.push(((*key).clone(), way.clone()));
            orders(members, begun, all);
            begun.pop();
        }
    }
}

#[test]
fn what_passes_is_what_the_suite_says() {
    let suite: BTreeMap<String, Vec<Value>> = serde_json::from_str(SUITE).unwrap();
    let compiler = compiler();
    let (mut wrong, mut missed, mut refused) = (Vec::new(), Vec::new(), BTreeMap::<String, usize>::new());
    let (mut compiled, mut judged) = (0, 0);
    for (file, groups) in &suite {
        for group in groups {
            let name = format!("{file}: {}", group["description"].as_str().unwrap());
            let form = ResponseFormat::JsonSchema(JsonForm {
                name: None,
                schema: group["schema"].clone(),
                strict: false,
                compact: false,
                white_space: None,
            });
            let grammar = match compiler.compile(&Arc::new(form), &FormLimits::default()) {
                Ok(grammar) => grammar,
                Err(GrammarFault::Unsupported { keyword, path, why }) => {
                    assert!(!why.is_empty(), "{name}");
                    let keyword = if path.is_empty() || path.starts_with('/') {
                        keyword
                    } else {
                        panic!("{name}: {path}")
                    };
                    *refused.entry(keyword).or_default() += 1;
                    continue;
                }
                // An `$id` changes the base of references.
                Err(GrammarFault::Invalid { path, .. }) if path.ends_with("$ref") => {
                    *refused.entry("$ref".to_owned()).or_default() += 1;
                    continue;
                }
                Err(GrammarFault::Unsatisfiable { .. }) => {
                    // Then no instance may be valid.
                    for test in group["tests"].as_array().unwrap() {
                        if test["valid"] == true {
                            missed.push(format!("{name}: refused as unsatisfiable: {}", test["data"]));
                        }
                    }
                    *refused.entry("(nothing fits)".to_owned()).or_default() += 1;
                    continue;
                }
                Err(GrammarFault::TooCostly { what, .. }) => {
                    *refused.entry(format!("({what})")).or_default() += 1;
                    continue;
                }
                Err(fault) => panic!("{name}: {fault:?}"),
            };
            compiled += 1;
            for test in group["tests"].as_array().unwrap() {
                judged += 1;
                let valid = test["valid"] == true;
                let any = ways(&test["data"]).iter().any(|way| passes(&*grammar, &way.to_string()));
                if any != valid {
                    let list = if any { &mut wrong } else { &mut missed };
                    list.push(format!("{name}: {}", test["data"]));
                }
            }
        }
    }
    println!("{compiled} schemas compiled, {judged} instances judged; refused: {refused:?}");
    assert!(wrong.is_empty(), "passes and is not valid:\n{}", wrong.join("\n"));
    assert_eq!(missed, NEVER_WRITTEN, "valid and does not pass");
    assert!(compiled > 120 && judged > 400, "{compiled} {judged}");
    for keyword in
        ["not", "if", "contains", "propertyNames", "uniqueItems", "unevaluatedProperties", "dependentSchemas"]
    {
        assert!(refused.contains_key(keyword), "{keyword}: {refused:?}");
    }
}
